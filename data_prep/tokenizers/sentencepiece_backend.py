"""The `tokenizers` library's form of a SentencePiece BPE or Unigram model: pieces, ids, merges."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer, models

SPACE = "▁"
# Worse than any spelling in ordinary pieces, whose scores are logarithms of shares, about -20 at the lowest.
_HIDDEN_SCORE = -1e4
# What tokenizers are known to disagree on.
ADVERSARIAL_TEXTS = (
    "", " ", "  ", " a", "a ", "  a  b  ", "a\u00a0b\u3000c\u2028d", "\n", "\n\n a\n", "a\tb\r\nc", "\0", "a\0b",
    SPACE, f"{SPACE}a", f" {SPACE}", "<s>", "</s>", "<pad>", "<unk>", "a</s>b", " </s> ", "<s> a </s>", "<0x0A>", "<0xZZ>",
    "č", "c\u030c", "\u030c", " \u030ca", "\u1e9b\u0323", "ﬁ½…²", "ＡＢＣ", "\ufeffa", "\u200b", "a\u00adb", "\u2585", "\ufffd", "\ufffe",
    "😀", "😀😀 😀", "👩‍👩‍👧‍👦", "🇸🇮", "👍🏽", "漢字かな交じり文", "नमस्ते", "مرحبا", "𐍈𝔊", "\U0010ffff", "\u0001\u007f\u0080\u009f",
    "x" * 5_000, "ab" * 3_000, "čš" * 1_000, "-" * 999, " " * 999, "aaaa aaa aa a", "1234567890" * 20, "a.b,c;d:e!f?g",
)  # fmt: skip


def hf_tokenizer(model: SentencePieceProcessor, *, is_unigram: bool = False) -> Tokenizer:
    """The backend tokenizer with the pieces and ids of a SentencePiece model.

    No piece holds a space but at its start, so that cutting the text before each space changes nothing.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers

    tokenizer = Tokenizer(_unigram(model) if is_unigram else _bpe(model))
    # Not the Metaspace pre-tokenizer: it adds no dummy prefix to a text that begins with a space.
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = [model.id_to_piece(i) for i in range(model.get_piece_size()) if model.is_control(i) or model.is_unknown(i)]
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in specials])
    return tokenizer


def _bpe(model: SentencePieceProcessor) -> models.BPE:
    """The merges of a BPE model.

    SentencePiece joins the neighbours whose joint piece has the best score, leftmost first.  So every way to cut a piece in
    two pieces is a merge, ranked by the score of the whole.
    """
    from tokenizers import models

    ids = range(model.get_piece_size())
    pieces = [model.id_to_piece(i) for i in ids]
    scores = {pieces[i]: model.get_score(i) for i in ids if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(scores, key=lambda piece: -scores[piece])
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=merges,
        unk_token=pieces[model.unk_id()],
        fuse_unk=True,
        byte_fallback=any(model.is_byte(i) for i in ids),
    )


def _joined_pieces(model: SentencePieceProcessor) -> dict[str, float]:
    """Score of each ordinary piece of several characters: what BPE joins."""
    ids = range(model.get_piece_size())
    ordinary = (i for i in ids if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i)))
    return {piece: model.get_score(i) for i in ordinary if len(piece := model.id_to_piece(i)) > 1}


def equal_rivals(model: SentencePieceProcessor) -> tuple[str, str] | None:
    """Two pieces of a BPE model that have one score and may compete for a text; None where there are none, as its trainer makes them.

    Two compete where they share an end and a beginning, or where one is part of a piece that is joined as early.  Runs of one character, such as
    the spaces that Llama and Mistral have with one score, are compared by text instead: `split_in_two_ways`.
    """
    scores = {piece: score for piece, score in _joined_pieces(model).items() if len(set(piece)) > 1}
    of_score: dict[float, list[str]] = {}
    for piece, score in scores.items():
        of_score.setdefault(score, []).append(piece)
    for score, pieces in of_score.items():
        if len(pieces) < 2:
            continue
        beginnings = {piece[:cut]: piece for piece in pieces for cut in range(1, len(piece))}
        for piece in pieces:
            other = next((found for cut in range(1, len(piece)) if (found := beginnings.get(piece[cut:])) not in (None, piece)), None)
            other = other or next((whole for whole, its in scores.items() if its >= score and whole != piece and piece in whole), None)
            if other is not None:
                return piece, other
    return None


def split_in_two_ways(model: SentencePieceProcessor) -> list[str]:
    """Texts in which a piece overlaps itself, so that SentencePiece's leftmost joining might be another than that of the first merge; runs of all
    lengths of the characters that pieces repeat."""
    ids = range(model.get_piece_size())
    pieces = {model.id_to_piece(i) for i in ids}
    joined = _joined_pieces(model)
    longest = {piece[0]: len(piece) for piece in sorted(joined, key=len) if len(set(piece)) == 1}
    runs = [f"a{character * number}b" for character, length in longest.items() for number in range(2, 3 * length)]
    overlapping = [
        piece + piece[border:]
        for piece in joined
        for border in range(1, len(piece))
        if piece.startswith(piece[-border:]) and {piece[:-border], piece[-border:], piece[border:]} <= pieces
    ]
    return [text.replace(SPACE, " ") for text in (*runs, *overlapping)]


def _unigram(model: SentencePieceProcessor) -> models.Unigram:
    from tokenizers import models

    byte_fallback = any(model.is_byte(i) for i in range(model.get_piece_size()))
    return models.Unigram(hide_from_text(model), unk_id=model.unk_id(), byte_fallback=byte_fallback)


def hide_from_text(model: SentencePieceProcessor) -> list[tuple[str, float]]:
    """Pieces and scores of a Unigram model, so low for special and byte tokens that a text which spells one is not cut into it.

    The `tokenizers` library looks for all pieces in a text; SentencePiece only for ordinary ones.
    """
    ids = range(model.get_piece_size())
    hidden = (model.is_control(i) or model.is_unknown(i) or model.is_byte(i) for i in ids)
    return [(model.id_to_piece(i), _HIDDEN_SCORE if hide else model.get_score(i)) for i, hide in zip(ids, hidden)]
