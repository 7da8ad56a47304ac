"""The tokens of an auxiliary tokenizer, of the same kind as a given one, trained on a text."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from data_prep.tokenizers.extension import Candidate, candidates_of, keeps_digits_apart
from data_prep.tokenizers.token_bytes import Spelling, spelling_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# As Yamaguchi et al. (2024) train theirs.
AUXILIARY_TOKENS = 50_000
SPACE = "▁"
_FEWEST_COUNTS = 2
# As SentencePiece by default: no token mixes letters with digits or signs, and each has at most one space, at its start.
_WORDS = r"{space}?[\p{{L}}\p{{M}}]+|{number}|{space}?[^\p{{L}}\p{{M}}\p{{N}}{space}]+|{space}"


def train_candidates(description: Mapping[str, Any], sentences: Iterable[str], *, num_tokens: int = AUXILIARY_TOKENS) -> list[Candidate]:
    """Train a tokenizer of the same kind on a text and give its tokens, from the most to the least wanted.

    Normalizer and, for byte-level BPE, pre-tokenizer are those of the given one, so that what is learned can be reached there.
    The same sentences give the same candidates.

    Args:
        description: content of a tokenizer.json.
        num_tokens: as many as this, or fewer where the text has fewer.

    Raises:
        ValueError: if the tokenizer is of an unknown kind.
    """
    if description["model"]["type"] == "Unigram":
        return _unigram_candidates(_normalized(description, sentences), num_tokens)
    tokenizer = _untrained_bpe(description, spelling_of(dict(description)))
    from tokenizers import pre_tokenizers, trainers

    is_byte_level = spelling_of(dict(description)).form == "byte-level"
    alphabet = pre_tokenizers.ByteLevel.alphabet() if is_byte_level else []
    trainer = trainers.BpeTrainer(vocab_size=num_tokens, min_frequency=_FEWEST_COUNTS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    return candidates_of(json.loads(tokenizer.to_str()))


def word_cutter(description: Mapping[str, Any]) -> tuple[Any, Any]:
    """The normalizer (or None) and the pre-tokenizer that a tokenizer of the described kind is trained with."""
    tokenizer = _untrained_bpe(description, spelling_of(dict(description)))
    return tokenizer.normalizer, tokenizer.pre_tokenizer


def _untrained_bpe(description: Mapping[str, Any], spelling: Spelling) -> Tokenizer:
    """BPE without tokens that cuts a text into words as the described tokenizer does, or as SentencePiece where that does not.

    Also for WordPiece, whose own trainer gives other tokens each time: words begin with the mark of a space.
    """
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

    model = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer = Tokenizer.from_str(json.dumps({**_without_tokens(description), "model": model}))
    if spelling.form != "byte-level":
        space = spelling.space_marker or SPACE
        number = r"\p{N}" if keeps_digits_apart(description) else rf"{space}?\p{{N}}"
        words = pre_tokenizers.Split(Regex(_WORDS.format(space=space, number=number)), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(space, split=False), words])
        tokenizer.decoder = decoders.Metaspace(space)
    return tokenizer


def _normalized(description: Mapping[str, Any], sentences: Iterable[str]) -> Iterator[str]:
    from tokenizers import Tokenizer

    space = spelling_of(dict(description)).space_marker or SPACE
    model = {"type": "BPE", "vocab": {}, "merges": []}
    normalizer = Tokenizer.from_str(json.dumps({**_without_tokens(description), "model": model})).normalizer
    for sentence in sentences:
        yield sentence if normalizer is None else normalizer.normalize_str(sentence).replace(space, " ")


def _without_tokens(description: Mapping[str, Any]) -> dict[str, Any]:
    return {**description, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}


def _unigram_candidates(sentences: Iterable[str], num_tokens: int) -> list[Candidate]:
    """Train with SentencePiece: the trainer of `tokenizers` gives other tokens each time."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="unigram",
        vocab_size=num_tokens,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    trained = SentencePieceProcessor(model_proto=model.getvalue())
    ids = (i for i in range(trained.get_piece_size()) if not (trained.is_control(i) or trained.is_unknown(i)))
    scored = sorted(((trained.id_to_piece(i), trained.get_score(i)) for i in ids), key=lambda pair: -pair[1])
    return [Candidate(piece.replace(SPACE, " ").encode(), score) for piece, score in scored]
