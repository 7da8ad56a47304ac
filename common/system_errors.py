"""Errors of the operating system about files and memory as one sentence: which file, what is wrong with it, and what to do."""

from __future__ import annotations

import errno
import json
import os
import sys

TRACEBACK = "SCION_TRACEBACK"  # set in the environment: commands also print where an error came from
_SHOWS_WHERE = f"({TRACEBACK}=1 shows where)"
_MAX_NAME = 160  # characters of a name that are shown: the sentence that calls a name too long must itself be read
_MAX_MESSAGE = 600  # characters of what a library says

# What is the matter, and what to do.
_KNOWN = {
    errno.ENOENT: ("does not exist", "check the spelling, or create it first"),
    errno.ENOTDIR: ("cannot exist: a part of its path is a file, not a directory", "name another place"),
    errno.EISDIR: ("is a directory; expected a file", "name the file"),
    errno.EEXIST: ("exists already", "another process created it; remove it or give another path"),
    errno.ENOTEMPTY: ("is not empty", "another process writes there; wait for it or give another path"),
    errno.EACCES: ("cannot be read or written by this user", "check its permissions and those of its parent directories"),
    errno.EPERM: ("cannot be changed by this user", "check its owner and the mount options of its file system"),
    errno.EROFS: ("is on a read-only file system", "name a place on another"),
    errno.ENAMETOOLONG: ("is too long for the file system, which takes names of 255 bytes and paths of 4,096", "choose a shorter one"),
    errno.ENOSPC: ("cannot be written: the disk is full", "free some space or give a path on another disk"),
    errno.EDQUOT: ("cannot be written: your disk quota is used up", "free some space, or ask for a larger quota"),
    errno.EFBIG: ("would be larger than the file system or the shell's limit (ulimit -f) allows", "raise the limit or give another path"),
    errno.ELOOP: ("is a link that leads back to itself", "put the file itself there"),
    errno.EMFILE: ("cannot be opened: this process has too many open files", "raise the limit with `ulimit -n`"),
    errno.ENFILE: ("cannot be opened: this machine has too many open files", "try again when fewer processes run"),
    errno.EIO: ("cannot be read or written: the disk reports an error", "restore it from an intact copy, or give a path on another disk"),
    errno.ESTALE: ("was replaced on its file server while it was open", "run the same command again"),
    errno.ETIMEDOUT: ("did not answer in time", "run the same command again"),
    errno.EBUSY: ("is in use", "wait for what uses it"),
    errno.ETXTBSY: ("is a program that runs", "wait until it has ended"),
    errno.EXDEV: ("is on another file system", "give a path on the same one"),
    errno.ENOMEM: ("needs more memory than is available", "run it on a machine with more"),
    errno.ENXIO: ("is not a file that can be read or written", "name a plain file"),
    errno.ENODEV: ("is not a file that can be read or written", "name a plain file"),
    errno.ESPIPE: ("is a pipe; expected a file", "write it to a file first"),
    errno.EINVAL: ("does not support this operation", "give a plain file on an ordinary file system"),
}


# What a file system or network that is loaded, or served by a machine that starts anew, says and then says no more.
_PASSING = {
    getattr(errno, name)
    for name in [
        "EAGAIN",
        "EBUSY",
        "ECOMM",
        "ECONNABORTED",
        "ECONNREFUSED",
        "ECONNRESET",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "EINTR",
        "EIO",
        "ENETDOWN",
        "ENETRESET",
        "ENETUNREACH",
        "ENFILE",
        "ENOLCK",
        "ENOTCONN",
        "EREMOTEIO",
        "ESHUTDOWN",
        "ESTALE",
        "ETIMEDOUT",
    ]
}

# Extra of pyproject.toml -> modules that only its packages have.
_EXTRAS = {
    "train": ("nemo", "megatron", "lightning", "hydra", "omegaconf"),
    "transfer": ("gensim",),
    "eval": ("lm_eval", "peft", "tensorboard"),
    "data": ("sentencepiece", "yaml", "regex", "pyarrow", "orjson", "matplotlib", "py3langid", "sklearn"),
    "gguf": ("gguf",),
    "hub": ("datasets",),
}


def may_pass(error: BaseException | None) -> bool:
    """Whether an error, or one that it was made of, is of the system and of a kind that the same command need not meet again."""
    while error is not None:
        if isinstance(error, OSError) and (error.errno in _PASSING or (isinstance(error, TimeoutError) and error.errno is None)):
            return True
        error = error.__cause__
    return False


def sentence(error: BaseException) -> str | None:
    """One sentence for what the system, or Python's own limits, refused; None for everything else.

    Of errors that know no file the sentence cannot name one: `common.plain_files` reads text, JSON and YAML with errors that do.
    """
    if isinstance(error, UnicodeEncodeError):
        found = error.object[error.start : error.end]
        return (
            f"{_short(ascii(error.object))} cannot be written as text: {found!a} is not a character, but a byte of a file name that is not"
            f" UTF-8 or half a surrogate pair; rename the file or repair the text {_SHOWS_WHERE}"
        )
    if isinstance(error, UnicodeDecodeError):
        found = f"byte 0x{error.object[error.start]:02x} at position {error.start + 1} of {_short(ascii(error.object[:200]))}"
        return f"a file that must be text is not UTF-8: {found}; convert it, for example with iconv {_SHOWS_WHERE}"
    if isinstance(error, json.JSONDecodeError):
        found = f"{error.msg} at line {error.lineno}, column {error.colno} of {_short(ascii(error.doc[:200]))}"
        return f"a file that must be JSON is not valid: {found}; make it again {_SHOWS_WHERE}"
    if isinstance(error, RecursionError):
        return f"something in the input is nested too deeply to be read; expected some ten levels at most {_SHOWS_WHERE}"
    if isinstance(error, MemoryError):
        amount = f": {_one_line(error)}" if str(error) else ""
        return f"there is not enough memory{amount}; run it on a machine with more, or on less {_SHOWS_WHERE}"
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return _package_sentence(error.name.partition(".")[0])
    return _file_sentence(error) if isinstance(error, OSError) else None


def _package_sentence(module: str) -> str | None:
    extra = next((extra for extra, modules in _EXTRAS.items() if module in modules), None)
    if extra is None:
        return None
    needs = f"NeMo, on Python 3.11 or 3.12: {module}" if extra == "train" else f"{module}, which"
    return f"this needs {needs} is not installed in {sys.prefix}; `make setup`, or `pip install '.[{extra}]'` in a clone, has it {_SHOWS_WHERE}"


def _file_sentence(error: OSError) -> str:
    names = [shown_name(name) for name in (error.filename, error.filename2) if name is not None]
    known = _KNOWN.get(error.errno) if error.errno is not None else None
    if known is None or not names:
        # Of a library that reads the network or a file of its own, which says more than the number.
        advice = known[1] if known else "run the same command again, and report it if it comes back"
        place = f" ({names[0]})" if names and names[0] not in str(error) else ""
        return f"{_one_line(error)}{place}; {advice} {_SHOWS_WHERE}"
    what, advice = known
    return f"{' -> '.join(names)} {what}; {advice}"


def shown_name(name: object) -> str:
    """A file's name for a sentence: bytes that are not UTF-8 are escaped, and of a very long name the beginning and the end are shown."""
    text = os.fsdecode(name) if isinstance(name, bytes | os.PathLike) else str(name)
    return _short(text.encode("utf-8", "backslashreplace").decode())


def _short(text: str) -> str:
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 43]}...{text[-40:]}"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}..."
