"""A folder's tokenizer: what commands would refuse of it, and on request whether every way to read its files gives the same ids."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conversion.checkpoints.for_engine import require_rows
from conversion.inspection.description import Description
from data_prep.tokenizers.files import TOKENIZER_FILES, backend_rows, foreign_tokenizer, load_tokenizer, tokenizer_files
from data_prep.tokenizers.plain_tokenizer import read_plain_backend
from data_prep.tokenizers.protobuf import provide_sentencepiece_messages
from data_prep.tokenizers.sentencepiece_backend import ADVERSARIAL_TEXTS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_TEXTS = (
    *ADVERSARIAL_TEXTS,
    "Čez cesto je šla žaba, 12.345 ljudi je štelo do 100.000!",
    "It's 5 o'clock; they've got 1234567 apples (and pears).",
    "Straße, façade, naïve, Þórr, żółć, đuveč, ćevapčići",
    "Съешь ещё этих мягких булок. Γαζίες καὶ μυρτιές.",
    "def f(x):\n\n\treturn {'a': x ** 2}  # ok\n",
    "https://example.org/?q=a%20b&c=d_e-f user@example.org",
    "今日は良い天気です。안녕하세요 สวัสดี",
)
_SHOWN_IDS = 8
Reading = tuple[list[list[int]], list[str]]  # ids and decoded text, text by text


def look_at(description: Description, directory: Path) -> None:
    """Count a folder's tokens, and name what makes every command refuse its tokenizer."""
    with description.refusals():
        if tokenizer_files(directory):
            _count(description, directory)
        elif (sentence := foreign_tokenizer(directory)) is not None:  # a conversion does without
            description.notes.append(sentence)


def _count(description: Description, directory: Path) -> None:
    backend = read_plain_backend(directory) or load_tokenizer(directory).backend_tokenizer
    needed, known = backend_rows(backend), backend.get_vocab(with_added_tokens=True)
    description.tokenizer_size = len(known)
    if needed > len(known):
        description.notes.append(f"{needed - len(known):,} ids of the tokenizer, which needs {needed:,} rows, have no token")
    if description.vocab_size is not None:
        require_rows(directory, needed=needed, rows=description.vocab_size)


def check_up(description: Description, directory: Path, *, other_python: Path | None = None) -> None:
    """Compare all libraries that load a tokenizer on adversarial and real text, and say what it puts around a text and which tokens no text reaches.

    Args:
        other_python: an interpreter with another version of transformers, whose class is compared too.
    """
    from conversion.embeddings.vocabularies.vocabulary import Kind, Vocabulary
    from data_prep.tokenizers.frame import frame_of

    tokenizer = None
    with description.refusals():
        tokenizer = load_tokenizer(directory)
    if tokenizer is None:
        return
    specials = [str(token) for token in tokenizer.all_special_tokens]
    texts = [*_TEXTS, *(f"a {token} b{token}c" for token in specials)]
    own = _read(tokenizer, texts)
    others = _readings(directory, other_python)
    comparisons = {name: _compared(description, name, read, texts, own, specials) for name, read in others.items()}
    try:
        frame: Any = frame_of(tokenizer)
        around = f"{tokenizer.convert_ids_to_tokens(list(frame.front))} and {tokenizer.convert_ids_to_tokens(list(frame.back))}"
    except ValueError as error:
        around = str(error)
    try:
        unreached: Any = int((Vocabulary.of(tokenizer).as_source().kinds == Kind.UNREACHED).sum())
    except ValueError as error:
        unreached = str(error)
    description.tokenizer = {
        **comparisons,
        "special tokens": {role: str(token) for role, token in tokenizer.special_tokens_map.items()},
        "around a text": around,
        "chat template": "yes" if tokenizer.chat_template else "none",
        "tokens that no text reaches": unreached,
    }


def _readings(directory: Path, other_python: Path | None) -> dict[str, Callable[[Sequence[str]], Reading]]:
    """Name -> what reads texts in that way, for those that the folder's files allow."""
    import transformers
    from transformers import AutoTokenizer

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    readings: dict[str, Callable[[Sequence[str]], Reading]] = {}
    if (directory / "tokenizer.json").is_file():
        readings["tokenizer.json alone"] = lambda texts: _alone(directory, texts)
        readings["AutoTokenizer"] = lambda texts: _read(AutoTokenizer.from_pretrained(directory, **options), texts)
    has_slow_files = any((directory / name).is_file() for name in ("vocab.json", "vocab.txt", *TOKENIZER_FILES[1:3]))
    if has_slow_files and transformers.__version__.startswith("4."):
        provide_sentencepiece_messages()
        readings["the slow class"] = lambda texts: _read(AutoTokenizer.from_pretrained(directory, use_fast=False, **options), texts)
    if other_python is not None:
        readings[f"AutoTokenizer of {other_python}"] = lambda texts: _elsewhere(other_python, directory, texts)
    return readings


def _compared(
    description: Description,
    name: str,
    read: Callable[[Sequence[str]], Reading],
    texts: Sequence[str],
    own: Reading,
    specials: Sequence[str],
) -> str:
    """How a reading compares with ours; what differs is a problem, but where only the spelling of a special token does."""
    try:
        ids, decoded = read(texts)
    except Exception as error:  # the library raises anything
        return f"cannot be loaded ({' '.join(str(error).split())[:200]})"
    different = [i for i in range(len(texts)) if (ids[i], decoded[i]) != (own[0][i], own[1][i])]
    plain = [i for i in different if not any(token in texts[i] for token in specials)]
    if not different:
        return f"the same on {len(texts)} texts"
    first = (plain or different)[0]
    what = "ids" if ids[first] != own[0][first] else "decoded text"
    if not plain:
        return f"the same, but for texts that spell a special token, such as {texts[first]!r}"
    start = next((i for i, (a, b) in enumerate(zip(ids[first], own[0][first])) if a != b), min(len(ids[first]), len(own[0][first])))
    shown = [found[first][start : start + _SHOWN_IDS] for found in (ids, own[0])] if what == "ids" else [decoded[first], own[1][first]]
    description.problems.append(
        f"{name} gives other {what} than our commands for {len(plain)} of {len(texts)} texts: of {texts[first][:60]!r} {shown[0]!r} where they"
        f" have {shown[1]!r}; a model loaded that way would get other tokens than in training"
    )
    return f"other {what} for {len(plain)} of {len(texts)} texts"


def _read(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Reading:
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return ids, [tokenizer.decode(of_text, clean_up_tokenization_spaces=False) for of_text in ids]


def _alone(directory: Path, texts: Sequence[str]) -> Reading:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    ids = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    return ids, [backend.decode(of_text, skip_special_tokens=False) for of_text in ids]


_ELSEWHERE = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True, trust_remote_code=False)
ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in json.load(sys.stdin)]
print(json.dumps([ids, [tokenizer.decode(of_text, clean_up_tokenization_spaces=False) for of_text in ids]]))
"""


def _elsewhere(python: Path, directory: Path, texts: Sequence[str]) -> Reading:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(python), "-c", _ELSEWHERE, str(directory)],
        input=json.dumps(texts),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or ["it says nothing"])[-1])
    ids, decoded = json.loads(done.stdout.splitlines()[-1])
    return ids, decoded
