"""The tokenizer in a GGUF file, as the files of a Hugging Face tokenizer.

Byte-level BPE comes with its merges and the name of the rule that cuts a text into words; SentencePiece's BPE with the scores of its
pieces.  transformers' own reader gives a byte-level file the rules of Llama, so SmolLM2 gets a start token and joined digits from it.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.tokenizers.protobuf import bytes_field, float_field, int_field
from data_prep.tokenizers.token_bytes import respellings

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerFast

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6  # ggml's numbers are SentencePiece's
_SENTENCEPIECE_BPE = 2
_NO_ID = (1 << 64) - 1  # -1 as protocol buffers write it

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINE_ENDS_AND_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt4(digits: str) -> str:
    """Contractions, words with the sign before them, numbers, other signs with the space before them, line ends, other white space."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINE_ENDS_AND_SPACE}"


def _gpt4o(digits: str, contractions: str) -> str:
    """The same, but that words also end before a capital that follows small letters, with marks among the letters, and contractions behind their word."""
    capitals, small = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{capitals}*{small}+{contractions}|{before}{capitals}+{small}*{contractions}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINE_ENDS_AND_SPACE}"


@dataclass(frozen=True)
class WordRule:
    """How byte-level BPE cuts a text into words, by llama.cpp's name of it (`tokenizer.ggml.pre`).

    Attributes:
        expression: what a word is; empty where GPT-2's own expression cuts.
        single_digits: whether each digit is a word, before GPT-2's expression.
        composes: whether the text is normalized to NFC.
        takes_whole_words: whether a word that is a token is that token, whatever the merges say.
        starts: whether a text begins with the start token where the file does not say.
    """

    expression: str = ""
    single_digits: bool = False
    composes: bool = False
    takes_whole_words: bool = False
    starts: bool = False


# As in the tokenizer.json of the models that the names are of.
WORD_RULES = {
    "gpt-2": WordRule(),
    "smollm": WordRule(single_digits=True),
    "llama-bpe": WordRule(_gpt4(r"\p{N}{1,3}"), takes_whole_words=True, starts=True),
    "dbrx": WordRule(_gpt4(r"\p{N}{1,3}")),
    "qwen2": WordRule(_gpt4(r"\p{N}"), composes=True),
    "gpt-4o": WordRule(_gpt4o(r"\p{N}{1,3}", f"{_CONTRACTIONS}?")),
    "tekken": WordRule(_gpt4o(r"\p{N}", ""), takes_whole_words=True, starts=True),
}
# Names that llama.cpp gives to the same rule for the tokenizers of other models: StarCoder's and Granite's, OLMo's, SmolLM3's.
_SAME = {"starcoder": "smollm", "refact": "smollm", "olmo": "gpt-2", "smaug-bpe": "dbrx"}
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_KEY = "tokenizer.ggml."


def read_tokenizer(metadata: Mapping[str, Any], source: str) -> PreTrainedTokenizerFast:
    """The fast tokenizer that the metadata of a file describes, with its special tokens and chat template.

    Raises:
        ValueError: if there is none, or one of a kind or with a rule that is not supported, or its parts contradict each other.
    """
    from transformers import PreTrainedTokenizerFast

    model, tokens = metadata.get(f"{_KEY}model"), metadata.get(f"{_KEY}tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ValueError(f"{source} holds no tokenizer ({_KEY}tokens); give a folder that has it by --tokenizer")
    kinds = metadata.get(f"{_KEY}token_type") or [_NORMAL] * len(tokens)
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ValueError(f"{source} has {len(tokens)} tokens, {len(set(tokens))} of them different, with {len(kinds)} types; copy it again")
    if model == "gpt2":
        backend, starts = _byte_level(metadata, tokens, kinds, source)
    elif model == "llama":
        backend, starts = _sentencepiece(metadata, tokens, kinds, source), True
    else:
        raise ValueError(
            f"{source} has a tokenizer of the kind {model!r}; known are gpt2 and llama: give a folder that has it by --tokenizer"
        )
    roles = {role: tokens[token_id] for role, token_id in token_ids(metadata, len(tokens), source).items()}
    if metadata.get(f"{_KEY}add_bos_token", starts) and "bos_token" in roles:
        _start_with(backend, roles["bos_token"])
    settings: dict[str, Any] = {"clean_up_tokenization_spaces": False, "model_input_names": ["input_ids", "attention_mask"]}
    if context := metadata.get(f"{metadata.get('general.architecture')}.context_length"):
        settings["model_max_length"] = context
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **settings, **roles)
    tokenizer.chat_template = metadata.get("tokenizer.chat_template")
    return tokenizer


def token_ids(metadata: Mapping[str, Any], num_tokens: int, source: str) -> dict[str, int]:
    """Role (`bos_token`) -> id.

    Raises:
        ValueError: for an id that no token has.
    """
    ids = {role: metadata[f"{_KEY}{name}_token_id"] for role, name in _ROLES.items() if f"{_KEY}{name}_token_id" in metadata}
    if wrong := [f"{role} {token_id}" for role, token_id in ids.items() if not isinstance(token_id, int) or not 0 <= token_id < num_tokens]:
        raise ValueError(f"{source} names {', '.join(wrong)}, but has {num_tokens} tokens; copy or download it again")
    return ids


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int], source: str) -> tuple[Tokenizer, bool]:
    from tokenizers import Regex, Tokenizer, decoders, models

    name = metadata.get(f"{_KEY}pre")
    rule = WORD_RULES.get(_SAME.get(str(name), str(name)))
    if rule is None:
        raise ValueError(
            f"{source} has the pre-tokenization rule {name!r} ({_KEY}pre), which is not supported; known are {', '.join([*WORD_RULES, *_SAME])}:"
            " give a folder with its tokenizer by --tokenizer"
        )
    merges = [tuple(merge.split(" ")) for merge in metadata.get(f"{_KEY}merges", [])]
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    if wrong := [merge for merge in merges if len(merge) != 2 or not {*merge, "".join(merge)} <= ids.keys()]:
        raise ValueError(f"{source} has {len(wrong)} merges of what are not two tokens, such as {' '.join(wrong[0])!r}; copy it again")
    backend = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=rule.takes_whole_words))
    backend.normalizer, backend.pre_tokenizer = _cutting(rule)
    added = respellings(token for token, kind in zip(tokens, kinds, strict=True) if kind in (_CONTROL, _USER_DEFINED))
    respelled = [decoders.Replace(Regex(found), spelled) for found, spelled in added]
    backend.decoder = decoders.Sequence([*respelled, decoders.ByteLevel()]) if respelled else decoders.ByteLevel()
    _add_tokens(backend, tokens, kinds)
    return backend, rule.starts


def _cutting(rule: WordRule) -> tuple[Normalizer | None, PreTokenizer]:
    """What makes words of a text by a rule."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule.single_digits else []
    steps += [pre_tokenizers.Split(Regex(rule.expression), "isolated")] if rule.expression else []
    steps += [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not rule.expression)]
    return normalizers.NFC() if rule.composes else None, pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]


def is_byte_level(backend: Tokenizer) -> bool:
    """Whether a tokenizer's words are written in the letters that stand for bytes."""
    return "ByteLevel" in repr(backend.pre_tokenizer)


def word_rule_of(backend: Tokenizer, texts: Iterable[str]) -> str | None:
    """The name of the rule that makes the same words of all texts as a byte-level tokenizer, None where none does."""
    texts = list(texts)

    def words(normalizer: Normalizer | None, pre_tokenizer: PreTokenizer) -> list[list[str]]:
        normal = [normalizer.normalize_str(text) if normalizer else text for text in texts]
        return [[word for word, _ in pre_tokenizer.pre_tokenize_str(text)] for text in normal]

    expected = words(backend.normalizer, backend.pre_tokenizer)
    takes_whole_words = bool(backend.model.ignore_merges)
    for name, rule in WORD_RULES.items():
        if rule.takes_whole_words == takes_whole_words and words(*_cutting(rule)) == expected:
            return name
    return None


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int], source: str) -> Tokenizer:
    """By way of SentencePiece's own file, so that the ids are held to those of the `sentencepiece` package."""
    from data_prep.tokenizers.sentencepiece_file import load_sentencepiece

    scores = metadata.get(f"{_KEY}scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ValueError(f"{source} has no score for each of its {len(tokens)} tokens ({_KEY}scores); give --tokenizer, or copy it again")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(_model_proto(metadata, tokens, kinds, scores, source))
        backend = load_sentencepiece(Path(folder)).backend_tokenizer
    _add_tokens(backend, tokens, kinds)
    return backend


def _model_proto(metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float], source: str) -> bytes:
    """SentencePiece's file (sentencepiece_model.proto): pieces, what trained them, how text is normalized."""
    pieces = [
        bytes_field(1, bytes_field(1, token.encode()) + float_field(2, struct.pack("<f", score)) + int_field(3, kind))
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
    ]
    ids = token_ids(metadata, len(tokens), source)
    unknown = next((number for number, kind in enumerate(kinds) if kind == _UNKNOWN), ids.get("unk_token"))
    if unknown is None:
        raise ValueError(f"{source} has no token for what is unknown, which SentencePiece needs; copy or download it again")
    named = {40: unknown, 41: ids.get("bos_token", _NO_ID), 42: ids.get("eos_token", _NO_ID), 43: ids.get("pad_token", _NO_ID)}
    trainer = int_field(3, _SENTENCEPIECE_BPE) + int_field(4, len(tokens)) + int_field(35, int(_BYTE in kinds))
    trainer += b"".join(int_field(number, value) for number, value in named.items())
    # The name of a role's piece, where it is not SentencePiece's own (unk_piece is field 45, and so on in order).
    trainer += b"".join(bytes_field(number + 5, tokens[value].encode()) for number, value in named.items() if value != _NO_ID)
    prefix = bool(metadata.get(f"{_KEY}add_space_prefix", True))
    normalizer = bytes_field(1, b"identity") + int_field(3, int(prefix)) + int_field(4, 0) + int_field(5, 1)
    return b"".join(pieces) + bytes_field(2, trainer) + bytes_field(3, normalizer)


def _add_tokens(backend: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Make known which tokens are found in a text before it is cut: control tokens, and those that a user defined."""
    from tokenizers import AddedToken

    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (_CONTROL, _USER_DEFINED):
            backend.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False)])


def _start_with(backend: Tokenizer, token: str) -> None:
    from tokenizers import processors

    start = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, backend.token_to_id(token))]
    )
    byte_level = backend.post_processor
    backend.post_processor = processors.Sequence([byte_level, start]) if byte_level is not None else start
