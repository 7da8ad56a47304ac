"""Where a text may be split so that the token ids of its parts are those of the whole: derived from the tokenizer, or refused.

A tokenizer of the `tokenizers` library normalizes a text, cuts it with its pre-tokenizer, and gives each part to its model, which looks at
nothing else.  So a cache by parts is exact for every model that draws no random numbers (BPE dropout), if the cuts are the library's.
Three kinds of cuts are known:

- *spaces*: a space is written ▁ and the text is cut before each (Metaspace, or Split at ▁).
- *pairs*: a BPE model joins two neighbouring symbols only by a merge.  Where no merge has a left side that ends in a character x and a right
  side that begins with y, nothing ever joins across xy, and the merges on the two sides do not see each other: cutting there changes
  nothing.  That holds with and without a pre-tokenizer (Llama 2 and Mistral have none) and finds cuts at punctuation and line ends
  too.  Characters beyond ASCII count as one.
- *expressions*: the regular expressions of GPT-2, alone or behind a cut at digits (SmolLM2, Falcon), and of Llama 3 and Qwen, before byte-level BPE.

Tokens that were added to the vocabulary as ordinary text (Gemma's runs of line ends) are cut out of a text before all else, the leftmost first and of those
the longest, and what lies between them is a text for itself.  Only where a space is put before a text does one that holds such a token go to
the library, which also does what is not supported here: normalizers, unless they only write spaces as ▁.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.native import cache_dir
from data_prep.tokenizers.token_bytes import BYTE_TO_CHARACTER

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "▁"
NUM_CODE_POINTS = 0x110000
BY_PAIRS, GPT2, LLAMA3, DIGITS = range(4)  # as in word_encoder.c
IS_DIGIT = 4  # a bit beside the categories
OTHER, LETTER, NUMBER, WHITE_SPACE = range(4)

_BEYOND_ASCII = 128
# Characters that NFC leaves as they are, next to any of each other: none decomposes or is combined with another.  Latin letters, accented ones
# too, Cyrillic and common marks: most text, and 20 times faster to recognise than to normalize.
_INERT = re.compile("[\u0000-\u02ff\u0370-\u0373\u0375-\u037d\u0400-\u0482\u048a-\u0530\u2010-\u2027\u2030-\u205e\u20a0-\u20bf]*")
_MAX_ADDED_TOKENS = 16  # a text is searched for each
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_EXPRESSIONS = {_LLAMA3.replace("DIGITS", "{1,3}"): 3, _LLAMA3.replace("DIGITS", ""): 1}  # most digits in a word


class NotExactError(Exception):
    """Why nothing is known about where texts of this tokenizer may be cut."""


@dataclass(frozen=True)
class Merges:
    """A BPE model by its ids.

    Attributes:
        triples: (num_merges, 3) int32: left, right and both, in order of rank.
        symbols: int32, id of each character by code point, or of each byte; -1 for none.
        byte_ids: (256,) int32, ids of <0x00> ... <0xFF>, which spell what has no symbol; None without them.
        unknown: id of what has no symbol otherwise; -1 where that cannot happen.
        fuse_unknown: whether several of these in a row are one.
        whole: words that are tokens whatever the merges say.
    """

    triples: NDArray[np.int32]
    symbols: NDArray[np.int32]
    byte_ids: NDArray[np.int32] | None = None
    unknown: int = -1
    fuse_unknown: bool = False
    whole: dict[bytes, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WordRules:
    """How a text becomes words whose ids do not depend on their neighbours.

    Attributes:
        cutting: BY_PAIRS, GPT2, LLAMA3 or DIGITS.
        prepare: text -> text that is cut, where a space stands for ▁.
        word_of: a word as the model takes it.
        cuts: (129, 256) uint8, whether words part between two characters (ASCII; all others are 128); for BY_PAIRS.
        max_digits: in a word; for LLAMA3, and for DIGITS, where 0 is any number.
        merges: None where the library's model is asked.
        added_tokens: ids of the tokens that are cut out of a text before all else.
        are_cut_here: whether that is done here; otherwise a text with one of them goes to the library.
    """

    cutting: int
    prepare: Callable[[str], str]
    word_of: Callable[[bytes], str]
    cuts: NDArray[np.uint8]
    max_digits: int = 0
    merges: Merges | None = None
    added_tokens: dict[str, int] = field(default_factory=dict)
    are_cut_here: bool = False


def word_rules(tokenizer: Tokenizer) -> WordRules:
    """The rules of a tokenizer that is used without special tokens, and takes text that spells one as text.

    Raises:
        NotExactError: if no exact cuts are known.
    """
    description = json.loads(tokenizer.to_str())
    model = description["model"]
    added = _added_tokens(description)
    cutters = _steps(description["pre_tokenizer"], "pretokenizers")
    if any(step["type"] == "ByteLevel" for step in cutters):
        cutting, max_digits, add_space = _expression(cutters)
        if any(step["type"] == "ByteLevel" for step in _steps(description["normalizer"], "normalizers")):
            raise NotExactError("its normalizer spells bytes")
        return WordRules(
            cutting,
            _prepare(tokenizer, description["normalizer"], "unless space" if add_space else "no"),
            lambda word: "".join(BYTE_TO_CHARACTER[byte] for byte in word),
            np.zeros((_BEYOND_ASCII + 1, 256), dtype=np.uint8),
            max_digits,
            _byte_merges(model) if model["type"] == "BPE" else None,
            *_cut_out(added, add_space),
        )
    native_normalizer, prefix, has_marks = _space_normalizer(description["normalizer"])
    cut_at_spaces, pre_prefix, marks_here = _space_cutter(
        cutters, has_normalizer=description["normalizer"] is not None, leaves_no_space=has_marks
    )
    if not (has_marks or marks_here):
        raise NotExactError("it does not write spaces as ▁")
    if prefix != "no" and pre_prefix != "no":
        raise NotExactError("its normalizer and its pre-tokenizer both add a space")
    merges, joined = _space_merges(model) if model["type"] == "BPE" else (None, None)
    if joined is None and not cut_at_spaces:
        raise NotExactError(f"its {model['type']} model may join across spaces")
    added_tokens, are_cut_here = _cut_out(added, prefix != "no" or pre_prefix != "no")
    return WordRules(
        BY_PAIRS,
        _prepare(tokenizer, None if native_normalizer else description["normalizer"], pre_prefix if pre_prefix != "no" else prefix, SPACE),
        lambda word: word.decode().replace(" ", SPACE),
        _cut_table(joined, cut_at_spaces=cut_at_spaces),
        merges=merges,
        added_tokens=added_tokens,
        are_cut_here=are_cut_here,
    )


def _steps(part: dict[str, Any] | None, nested: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for inner in part[nested] for step in _steps(inner, nested)]
    return [part]


def _cut_out(added: list[dict[str, Any]], adds_space: bool) -> tuple[dict[str, int], bool]:
    """Ids of the added tokens, and whether they may be cut out here: not where a space is put before a text, which it is not before each part."""
    are_plain = not any(token["single_word"] or token["lstrip"] or token["rstrip"] for token in added)
    if len(added) > _MAX_ADDED_TOKENS and (adds_space or not are_plain):
        why = "it puts a space before its texts" if are_plain else "these take the spaces beside them, or are whole words only"
        raise NotExactError(f"{len(added)} tokens were added to it, and {why}")
    return {token["content"]: token["id"] for token in added}, are_plain and not adds_space


def _added_tokens(description: dict[str, Any]) -> list[dict[str, Any]]:
    """Tokens that are cut out of a text before it is normalized; special ones are not, since they are taken as text."""
    added = [token for token in description["added_tokens"] if not token["special"]]
    if any(token["normalized"] for token in added) and description["normalizer"] is not None:
        raise NotExactError("its added tokens are matched in normalized text")
    return [token for token in added if token["content"]]


def _prepare(tokenizer: Tokenizer, normalized: dict[str, Any] | None, prefix: str, space: str = " ") -> Callable[[str], str]:
    """The text that is cut: normalized, with a space in front where the tokenizer adds one, and spaces for ▁."""
    normalizer = tokenizer.normalizer
    is_nfc = normalized == {"type": "NFC"}

    def prepare(text: str) -> str:
        if normalized is not None and not (is_nfc and _INERT.fullmatch(text)):
            text = normalizer.normalize_str(text)
        if space != " " and space in text:
            text = text.replace(space, " ")
        if prefix == "always" or (prefix == "unless space" and not text.startswith(" ")):
            text = " " + text if text else text
        return text

    return prepare


def _expression(cutters: Sequence[dict[str, Any]]) -> tuple[int, int, bool]:
    """Kind of cutting, most digits of a word, and whether a space is put before a text that has none."""
    *before, last = cutters
    if last["type"] != "ByteLevel":
        raise NotExactError("its pre-tokenizer goes on behind ByteLevel")
    if not before and last["use_regex"]:
        return GPT2, 0, last["add_prefix_space"]
    if len(before) == 1 and before[0]["type"] == "Digits" and last["use_regex"] and not last["add_prefix_space"]:
        return DIGITS, int(before[0]["individual_digits"]), False
    if len(before) == 1 and not last["use_regex"] and not last["add_prefix_space"]:
        [split] = before
        digits = _EXPRESSIONS.get(split["pattern"].get("Regex", "")) if split["type"] == "Split" else None
        if digits is not None and split["behavior"] == "Isolated" and not split["invert"]:
            return LLAMA3, digits, False
    raise NotExactError("its pre-tokenizer is unknown")


def _space_normalizer(normalizer: dict[str, Any] | None) -> tuple[bool, str, bool]:
    """Whether it does nothing but write spaces as ▁, where it adds one in front, and whether no space is left behind it."""
    steps = _steps(normalizer, "normalizers")
    marks = [step["type"] == "Replace" and step["pattern"].get("String") == " " and step["content"] == SPACE for step in steps]
    prepends = [place for place, step in enumerate(steps) if step["type"] == "Prepend"]
    # A space in front is one only if it becomes a mark after that.
    known = all(steps[place]["prepend"] == SPACE or (steps[place]["prepend"] == " " and any(marks[place:])) for place in prepends)
    if known and len(prepends) < 2 and sum(marks) + len(prepends) == len(steps):
        return True, "always" if prepends else "no", any(marks)
    return False, "no", marks[-1]


def _space_cutter(cutters: Sequence[dict[str, Any]], *, has_normalizer: bool, leaves_no_space: bool) -> tuple[bool, str, bool]:
    """Whether it cuts before each ▁, where it adds one in front, and whether it writes ▁."""
    if not cutters:
        return False, "no", False
    if len(cutters) > 1:
        raise NotExactError("its pre-tokenizer is unknown")
    [step] = cutters
    if step["type"] == "Metaspace" and step["replacement"] == SPACE:
        scheme = step.get("prepend_scheme", "always")
        if scheme == "first" and has_normalizer:
            raise NotExactError("where its text begins depends on what its normalizer takes away")
        return step.get("split", True), "no" if scheme == "never" else "unless space", True
    if step["type"] == "Split" and step["pattern"] == {"String": " "} and leaves_no_space:
        return False, "no", False  # Gemma's: there is nothing that it could cut
    if step["type"] == "Split" and step["pattern"] == {"String": SPACE} and step["behavior"] == "MergedWithNext" and not step["invert"]:
        return True, "no", False
    raise NotExactError("its pre-tokenizer is unknown")


def _require_plain(model: dict[str, Any]) -> None:
    if model.get("dropout"):
        raise NotExactError("its merges are left out at random")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise NotExactError("it marks where words go on or end")
    if len(set(model["vocab"].values())) < len(model["vocab"]):
        raise NotExactError("two of its tokens have one id")


def _pairs(model: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])  # old files have strings
    return [(left, right) for left, right in pairs]


def _triples(pairs: Iterable[tuple[str, str]], vocab: dict[str, int]) -> NDArray[np.int32]:
    return np.array([(vocab[left], vocab[right], vocab[left + right]) for left, right in pairs], dtype=np.int32).reshape(-1, 3)


def _byte_merges(model: dict[str, Any]) -> Merges:
    _require_plain(model)
    vocab = model["vocab"]
    missing = [character for character in BYTE_TO_CHARACTER if character not in vocab]
    if missing and (model.get("unk_token") is not None or model.get("byte_fallback")):
        raise NotExactError(f"{len(missing)} bytes have no token, and another stands for them")
    symbols = np.array([vocab.get(character, -1) for character in BYTE_TO_CHARACTER], dtype=np.int32)
    byte_of = {character: byte for byte, character in enumerate(BYTE_TO_CHARACTER)}
    whole = {}
    if model.get("ignore_merges"):
        whole = {bytes(map(byte_of.__getitem__, token)): i for token, i in vocab.items() if set(token) <= byte_of.keys()}
    return Merges(_triples(_pairs(model), vocab), symbols, whole=whole)


def _space_merges(model: dict[str, Any]) -> tuple[Merges, NDArray[np.bool_]]:
    """The merges, and (129, 129) whether two neighbouring characters may be joined."""
    _require_plain(model)
    vocab, pairs = model["vocab"], _pairs(model)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    spelled = [token in vocab for token in byte_tokens] if model.get("byte_fallback") else [False]
    unknown = vocab.get(model.get("unk_token"))
    if any(spelled) != all(spelled):
        raise NotExactError("some bytes have no token")
    if not all(spelled) and unknown is None:
        raise NotExactError("it drops unknown characters")
    if SPACE not in vocab:
        raise NotExactError("▁ has no token")
    if model.get("ignore_merges"):
        raise NotExactError("its words are looked up whole")
    unlike_text = {*byte_tokens, model.get("unk_token")}
    if any(left in unlike_text or right in unlike_text for left, right in pairs):
        raise NotExactError("its merges join what is not text")
    symbols = np.full(NUM_CODE_POINTS, -1, dtype=np.int32)
    for token, i in vocab.items():
        if len(token) == 1:
            symbols[ord(token)] = i
    symbols[ord(" ")] = symbols[ord(SPACE)]
    joined = np.zeros((_BEYOND_ASCII + 1, _BEYOND_ASCII + 1), dtype=bool)
    for left, right in pairs:
        joined[_class(left[-1]), _class(right[0])] = True
    if not all(spelled):  # two unknown characters may become one token
        unsure = [*(symbols[:_BEYOND_ASCII] < 0), True]
        joined |= np.outer(unsure, unsure)
    byte_ids = np.array([vocab[token] for token in byte_tokens], dtype=np.int32) if all(spelled) else None
    return Merges(_triples(pairs, vocab), symbols, byte_ids, -1 if unknown is None else unknown, bool(model.get("fuse_unk"))), joined


def _class(character: str) -> int:
    return ord(" ") if character == SPACE else min(ord(character), _BEYOND_ASCII)


def _cut_table(joined: NDArray[np.bool_] | None, *, cut_at_spaces: bool) -> NDArray[np.uint8]:
    cuts = np.zeros((_BEYOND_ASCII + 1, 256), dtype=np.uint8)
    if joined is not None:
        cuts[:, : _BEYOND_ASCII + 1] = ~joined
    if cut_at_spaces:
        cuts[:, ord(" ")] = 1
    return cuts


def categories() -> NDArray[np.uint8]:
    """(NUM_CODE_POINTS,) letter, number, white space or other, as the library's regular expressions see each code point.

    Asked of the library itself, because its Unicode version is its own; kept in the user's cache, since that takes 2 s.
    """
    return _kept("categories", _categories)


def digits() -> NDArray[np.uint8]:
    """(NUM_CODE_POINTS,) 1 for what the library's cut at digits takes for one, asked of the library and kept."""
    return _kept("digits", _digits)


def _kept(name: str, make: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
    import tokenizers

    path = cache_dir() / f"{name}-{tokenizers.__version__}.npy"
    try:
        found: NDArray[np.uint8] = np.load(path)
        if found.shape == (NUM_CODE_POINTS,):
            return found
    except (OSError, ValueError):
        pass
    found = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.stem}.{os.getpid()}.npy")  # several processes may be at it
        np.save(partial, found)
        partial.replace(path)
    except OSError:
        pass  # found again next time
    return found


def _categories() -> NDArray[np.uint8]:
    found = np.full(NUM_CODE_POINTS, OTHER, dtype=np.uint8)
    for kind, expression in ((LETTER, r"\p{L}+"), (NUMBER, r"\p{N}+"), (WHITE_SPACE, r"\s+")):
        found[_code_points(expression)] = kind
    return found


def _digits() -> NDArray[np.uint8]:
    from tokenizers import pre_tokenizers

    code_points = [*range(0xD800), *range(0xE000, NUM_CODE_POINTS)]  # without surrogates
    found = np.zeros(NUM_CODE_POINTS, dtype=np.uint8)
    for _, (start, end) in pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str("a".join(map(chr, code_points))):
        if end - start == 1 and start % 2 == 0:  # cut off from the letters beside it
            found[code_points[start // 2]] = 1
    return found


def _code_points(expression: str) -> NDArray[np.bool_]:
    from tokenizers import Regex, pre_tokenizers

    code_points = [*range(0xD800), *range(0xE000, NUM_CODE_POINTS)]  # without surrogates
    rest = pre_tokenizers.Split(Regex(expression), "removed").pre_tokenize_str("".join(map(chr, code_points)))
    matches = np.ones(NUM_CODE_POINTS, dtype=bool)
    matches[0xD800:0xE000] = False
    for _, (start, end) in rest:
        matches[code_points[start] : code_points[end - 1] + 1] = False
    return matches
