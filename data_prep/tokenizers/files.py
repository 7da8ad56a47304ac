"""Load a Hugging Face tokenizer from a local folder, and compute its digest."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from json.encoder import encode_basestring
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from common.artifacts import digest_pieces
from common.own_files import require_own
from common.plain_files import require_plain_files
from common.quiet_library import quiet_transformers
from data_prep.tokenizers.token_bytes import without_respellings

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
)
# Files of other libraries' tokenizers, and whose they are; each line of tiktoken's is a token in base64 and its rank.
_LONG_NUMBER = re.compile(rb"[:\s](\d{8,19})\s*[,}]")  # ids of eight digits and more, which no tokenizer needs
_FOREIGN_FILES = {"tekken.json": "mistral-common (Tekken)", "qwen.tiktoken": "tiktoken", "tiktoken.model": "tiktoken"}
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
CHAT_TEMPLATES = "additional_chat_templates"
CONFIG_NAME = "tokenizer_config.json"
_CLASS_OF_5, _CLASS_OF_BOTH = "TokenizersBackend", "PreTrainedTokenizerFast"


class HasBackend(Protocol):
    """A tokenizer of transformers, or what stands for one."""

    @property
    def backend_tokenizer(self) -> Any:
        """That of the tokenizers library."""
        ...


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer in a local folder; nothing is downloaded, and no truncation or padding that stands in its tokenizer.json is done.

    Where SentencePiece's file is the only one, its conversion is ours, see `data_prep.tokenizers.sentencepiece_file`.

    Raises:
        ValueError: if the folder is missing, holds no tokenizer, only one without a fast form, or one that gives two tokens one id.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"the tokenizer folder {directory} does not exist")
    require_plain_files(directory)
    if (sentence := foreign_tokenizer(directory)) is not None:
        raise ValueError(sentence)
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(f"{directory} holds no tokenizer; expected one of {', '.join(TOKENIZER_FILES[:2])} or vocab.json with merges.txt")
    if not (directory / "tokenizer.json").is_file() and any((directory / name).is_file() for name in TOKENIZER_FILES[1:3]):
        from data_prep.tokenizers.sentencepiece_file import load_sentencepiece

        return load_sentencepiece(directory)

    if (directory / "tokenizer.json").is_file():
        require_bounded_ids(directory / "tokenizer.json")
    quiet_transformers()
    tokenizer = _load(directory, _in_words_of_both)
    if tokenizer.backend_tokenizer.truncation or tokenizer.backend_tokenizer.padding:
        tokenizer = _load(directory, _without_a_callers_settings)
    require_own_ids(tokenizer.backend_tokenizer, directory)
    if tokenizer.eos_token is None and tokenizer.sep_token is not None:  # BERT's, whose texts end with [SEP]
        tokenizer.eos_token = tokenizer.sep_token
    return tokenizer


def require_bounded_ids(path: Path) -> None:
    """Refuse a tokenizer.json with an id that its size does not explain: the library goes over all numbers up to it.

    Raises:
        ValueError: naming the id.
    """
    content = path.read_bytes()
    if max((int(found) for found in _LONG_NUMBER.findall(content)), default=0) <= len(content):
        return
    try:  # a number may stand in a token's text
        described = json.loads(content)
        vocab = described["model"]["vocab"]
        highest = max(
            *(vocab.values() if isinstance(vocab, dict) else [0]), *(token["id"] for token in described.get("added_tokens") or []), 0
        )
    except (ValueError, RecursionError, KeyError, TypeError):
        return  # the library says what is wrong
    if highest > len(content):
        raise ValueError(f"{path} gives a token the id {highest}, and has {len(content)} bytes; ids are rows of a matrix: repair the file")


def foreign_tokenizer(directory: Path) -> str | None:
    """Whose the only tokenizer of a folder is, in a sentence, where it is one of a library that is not read here."""
    there = {name for name in (*TOKENIZER_FILES, *_FOREIGN_FILES) if (directory / name).is_file()}
    owners = {name: owner for name, owner in _FOREIGN_FILES.items() if name in there}
    owners |= {name: "tiktoken" for name in there & {*TOKENIZER_FILES[1:3]} if _TIKTOKEN_LINE.match(_first_bytes(directory / name))}
    if owners and not there & {*TOKENIZER_FILES[:3], "vocab.json", "vocab.txt"} - owners.keys():
        name, owner = next(iter(owners.items()))
        return f"{directory / name} is a tokenizer of {owner}, which is not read; put the model's tokenizer.json beside it, as its Hugging Face form has it"
    return None


def _first_bytes(path: Path) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(1 << 10)


def _load(directory: Path, translate: Callable[[str, bytes], bytes]) -> Any:
    """What transformers makes of a folder with some files' content as `translate` has it."""
    try:
        with _readable(directory, translate) as readable:
            tokenizer = _library(directory).from_pretrained(str(readable), use_fast=True, local_files_only=True, trust_remote_code=False)
        if tokenizer.is_fast:
            tokenizer.backend_tokenizer.encode("a")  # some post-processors end in a panic at their first text
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises anything for a broken tokenizer file, from OSError to a panic of Rust
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"the tokenizer in {directory} is a program of its own (auto_map in its configuration), which is not run; save it as"
                " tokenizer.json where you trust it, and leave auto_map out"
            ) from error
        raise ValueError(f"the tokenizer in {directory} cannot be loaded: {' '.join(str(error).split())}") from error
    if not tokenizer.is_fast:
        raise ValueError(f"the tokenizer in {directory} has no fast form; add its tokenizer.json")
    return tokenizer


def require_own_ids(backend: Tokenizer, directory: Path) -> None:
    """Refuse two tokens with one id: also an added one, as the library numbers those that its model does not name by counting, not by the highest id."""
    for token_id, token in backend.get_added_tokens_decoder().items():
        other = backend.model.id_to_token(token_id)
        if other is not None and other != token.content:
            raise ValueError(
                f"the tokenizer in {directory} gives the id {token_id} to the added token {token.content!r} and to {other!r}, since ids below it"
                " have no token; name the added token in the vocabulary of its tokenizer.json, with an id of its own"
            )
    known = backend.get_vocab(with_added_tokens=True)
    if len({*known.values()}) < len(known):
        names: dict[int, list[str]] = {}
        for token, token_id in sorted(known.items()):
            names.setdefault(token_id, []).append(token)
        token_id, both = next((token_id, tokens) for token_id, tokens in sorted(names.items()) if len(tokens) > 1)
        raise ValueError(
            f"the tokenizer in {directory} gives the id {token_id} to {both[0]!r} and to {both[1]!r}; give each token an id of its own"
        )


def _library(directory: Path) -> Any:
    """The class that reads a folder's tokenizer.json as it stands.

    From transformers 5 on the classes of single models take its vocabulary alone and cut words by a rule of their own: SmolLM2's, which is
    called GPT-2's, would no longer cut numbers into digits.
    """
    import transformers

    if transformers.__version__.startswith("4.") or not (directory / "tokenizer.json").is_file():
        return transformers.AutoTokenizer
    if (directory / CONFIG_NAME).is_file() and b'"auto_map"' in (directory / CONFIG_NAME).read_bytes():
        return transformers.AutoTokenizer  # which says that it would run a program
    return transformers.PreTrainedTokenizerFast


def start_without_torch() -> None:
    """Keep transformers from importing torch, which takes longer than most work of a command that only tokenizes.

    Holds for the whole process: to be called only where a process begins, never by an importable function.
    """
    os.environ["USE_TORCH"] = "0"
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"


def start_with_torch() -> None:
    """Take `start_without_torch` back, before transformers has been imported: the command is to run a model after all."""
    os.environ.pop("USE_TORCH", None)


def tokenizer_digest(tokenizer: HasBackend) -> str:
    """Digest of what decides the ids: vocabulary, merges, normalizer, pre- and post-processing, special tokens.

    Independent of the files it came from (`tokenizer.json` or `vocab.json` with `merges.txt`) and of padding or truncation settings.
    """
    return backend_digest(tokenizer.backend_tokenizer)


def backend_digest(backend: Tokenizer) -> str:
    """The same of a tokenizer of the tokenizers library."""
    return digest_pieces(canonical_pieces(backend.to_str(), _deciding))


def rows_needed(tokenizer: HasBackend) -> int:
    """Rows that a matrix needs for a tokenizer: its highest id + 1, added tokens included.

    More than it has tokens (`len(tokenizer)`) wherever an id below the highest one has none.
    """
    return backend_rows(tokenizer.backend_tokenizer)


def backend_rows(backend: Tokenizer) -> int:
    """The same of a tokenizer of the tokenizers library."""
    return max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def _deciding(backend: Mapping[str, Any]) -> dict[str, Any]:
    deciding = {key: value for key, value in backend.items() if key not in ("padding", "truncation")}
    if not _adds_tokens(deciding.get("post_processor")):
        deciding["post_processor"] = None  # transformers 5 has a template that adds nothing there
    deciding["decoder"] = without_respellings(deciding.get("decoder"))
    return deciding


def _adds_tokens(post_processor: Any) -> bool:
    """Whether a step after the cutting may change a text's ids."""
    if not isinstance(post_processor, dict) or post_processor.get("type") != "TemplateProcessing":
        return post_processor is not None
    plain = [{"Sequence": {"id": "A", "type_id": 0}}]
    return post_processor.get("single") != plain or bool(post_processor.get("special_tokens"))


def tokenizer_files(directory: Path) -> list[Path]:
    """The tokenizer's files in a folder, to be copied byte for byte; chat templates besides the first are in a folder of their own.

    Raises:
        ValueError: if one is a link that leads out of the folder.
    """
    named = [directory / name for name in TOKENIZER_FILES if (directory / name).is_file()]
    folder = require_own(directory / CHAT_TEMPLATES)
    templates = sorted(path for path in folder.glob("*.jinja") if path.is_file())
    return [require_own(path) for path in (*named, *templates)]


def read_tokenizer_files(directory: Path) -> dict[str, bytes]:
    """Content of the tokenizer's files by their name in the folder, tokenizer_config.json in words that transformers 4 and 5 both read."""
    files = {path.relative_to(directory).as_posix(): path.read_bytes() for path in tokenizer_files(directory)}
    return {name: _in_words_of_both(name, content) for name, content in files.items()}


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write a tokenizer's files, for transformers 4 and 5 whichever of them is here."""
    tokenizer.save_pretrained(str(directory))
    write_tokenizer_files(directory, read_tokenizer_files(directory))


def _in_words_of_both(name: str, content: bytes) -> bytes:
    """The bytes of a file; of a tokenizer_config.json that transformers 5 wrote, with the class and the list of tokens by their older names.

    5 knows the older names; 4 ends at the newer ones, each in its own way.
    """
    if name != CONFIG_NAME:
        return content
    try:
        config = json.loads(content)
    except ValueError:  # told when it is loaded
        return content
    if not isinstance(config, dict):
        return content
    translated = dict(config)
    if translated.get("tokenizer_class") == _CLASS_OF_5:
        translated["tokenizer_class"] = _CLASS_OF_BOTH
    if isinstance(translated.get("extra_special_tokens"), list):
        translated.setdefault("additional_special_tokens", translated.pop("extra_special_tokens"))
    return content if translated == config else (json.dumps(translated, indent=2, ensure_ascii=False) + "\n").encode()


def _without_a_callers_settings(name: str, content: bytes) -> bytes:
    """The bytes of a file; of tokenizer.json without truncation and padding, which a caller had set before it was saved and no model has learned."""
    if name != "tokenizer.json":
        return _in_words_of_both(name, content)
    return json.dumps(without_a_callers_settings(json.loads(content)), ensure_ascii=False).encode()


def without_a_callers_settings(description: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a tokenizer.json without truncation and padding."""
    return {**description, "truncation": None, "padding": None}


@contextlib.contextmanager
def _readable(directory: Path, translate: Callable[[str, bytes], bytes]) -> Iterator[Path]:
    """The folder, or a copy of the tokenizer in it where `translate` changes a file's content."""
    path = directory / CONFIG_NAME
    if translate is _in_words_of_both and (not path.is_file() or path.read_bytes() == translate(CONFIG_NAME, path.read_bytes())):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="scion-tokenizer-") as folder:
        copy = Path(folder) / directory.name
        copy.mkdir()
        write_tokenizer_files(copy, {name: translate(name, content) for name, content in read_tokenizer_files(directory).items()})
        if (directory / "config.json").is_file():  # by which the library takes a class where tokenizer_config.json names none
            shutil.copyfile(directory / "config.json", copy / "config.json")
        yield copy


def write_tokenizer_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their name in a folder, which exists."""
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BLOCK = 8192
_MARK = "\ue000"


def canonical_pieces(text: str, deciding: Callable[[Any], Any]) -> Iterator[bytes]:
    """The pieces of `json.dumps(deciding(json.loads(text)), sort_keys=True, ensure_ascii=False)`.

    Args:
        text: as the tokenizers library writes a tokenizer.
        deciding: what of its content counts; leaves `model` as it is.
    """
    found = _split(text)
    if found is None:
        yield _dumped(deciding(json.loads(text))).encode()
        return
    rest, vocab, merges = found
    whole = _dumped(deciding(json.loads(rest)))
    before, _, behind = whole.partition(f'"{_MARK}merges"')  # sorted, they come before the vocabulary
    between, _, end = behind.partition(f'"{_MARK}vocab"')
    yield before.encode()
    yield from _in_blocks(_pairs(merges), "[]")
    yield between.encode()
    ids: dict[str, int] = json.loads(vocab)
    yield from _in_blocks((f"{encode_basestring(token)}: {ids[token]}" for token in sorted(ids)), "{}")
    yield end.encode()


def _split(text: str) -> tuple[str, str, str] | None:
    """The text with marks in the place of vocabulary and merges, and these; None where the model is another one than BPE with pairs.

    Inside a token quotes are written with a backslash, so that what is searched here is not a part of one.
    """
    start, merges_start = text.find('"vocab":{'), text.rfind('"merges":[')
    first_merge = merges_start + len('"merges":')
    if not 0 <= start < merges_start or _MARK in text or not text.startswith('[["', first_merge) or not text.endswith('"]]}}'):
        return None
    vocab, merges, end = text[start + len('"vocab":') : merges_start - 1], text[first_merge:-2], len(text) - 2
    return f'{text[:start]}"vocab":"{_MARK}vocab","merges":"{_MARK}merges"{text[end:]}', vocab, merges


def _pairs(merges: str) -> Iterator[str]:
    strings = (found[0] for found in _STRING.finditer(merges))
    return (f"[{left}, {right}]" for left, right in zip(strings, strings))


def _in_blocks(items: Iterable[str], brackets: str) -> Iterator[bytes]:
    remaining, is_first = iter(items), True
    while block := list(islice(remaining, _BLOCK)):
        yield ((brackets[0] if is_first else ", ") + ", ".join(block)).encode()
        is_first = False
    yield brackets[1].encode()


def _dumped(content: Any) -> str:
    return json.dumps(content, sort_keys=True, ensure_ascii=False)
