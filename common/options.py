"""Options of commands: each says its default, type and help once, as a field of a dataclass where a function takes it too."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any

# Of a value, by the type that is written at the field; text is taken as it is.
_READERS: dict[str, type] = {"int": int, "float": float, "Path": Path}


def add_option(parser: argparse._ActionsContainer, flag: str, words: str, default: Any = None, **how: Any) -> None:
    """Add an option, of the type of its default; False makes a switch, True one that has an opposite.

    Args:
        flag: with its metavar, as `--threshold SHARE`.
        words: for `--help`, which adds the default unless they say it themselves.
        how: more of `add_argument`.
    """
    name, _, metavar = flag.partition(" ")
    how |= ({"metavar": metavar} if metavar else {}) | ({"default": default} if default is not None else {})
    if isinstance(default, bool):
        how.setdefault("action", argparse.BooleanOptionalAction if default else "store_true")
    elif isinstance(default, int | float):
        how.setdefault("type", type(default))
    parser.add_argument(name, help=with_default(words, default), **how)


def with_default(words: str, default: Any) -> str:
    """What `--help` says of an option."""
    is_told = isinstance(default, str | int | float | Path) and default is not False and default != "" and "(default" not in words
    return f"{words} (default: {'yes' if default is True else default})" if is_told else words


def option(
    flag: str,
    words: str,
    default: Any = None,
    *,
    factory: Any = MISSING,
    of_command: Any = MISSING,
    least: float | None = None,
    more: Mapping[str, Any] | None = None,
    **how: Any,
) -> Any:
    """A field with its option.

    Args:
        flag, words: as of `add_option`.
        default: MISSING where the field must be given.
        of_command: the default of the option, where it is not that of the field.
        least: the smallest value, for `require_values`.
        more: what else the field's metadata holds.
        how: as of `add_argument`; the type follows from that of the field.
    """
    of_command = default if of_command is MISSING else of_command
    metadata = {"flag": flag, "words": words, "default": of_command, "least": least, "how": how, **(more or {})}
    return field(default_factory=factory, metadata=metadata) if factory is not MISSING else field(default=default, metadata=metadata)


def add_options(parser: argparse._ActionsContainer, settings: type, *names: str, has_defaults: bool = True) -> None:
    """Add the options of some fields of a dataclass, or of all that have one.

    Args:
        has_defaults: otherwise what is not given is None, see `given`.
    """
    for found in fields(settings):
        if "how" in found.metadata and (not names or found.name in names):
            add_option_of(parser, found, has_default=has_defaults)


def add_option_of(parser: argparse._ActionsContainer, found: Field[Any], *, words: str | None = None, has_default: bool = True) -> None:
    """Add the option of a field, with other words than its own where they are given."""
    how, default = dict(found.metadata["how"]), found.metadata["default"]
    default = None if default is MISSING else default
    if found.type == "bool" and not has_default:
        how |= {"action": "store_const", "const": True}
    elif reader := _READERS.get(str(found.type).removesuffix(" | None")):
        how.setdefault("type", reader)
    words = with_default(found.metadata["words"], default) if words is None else words
    add_option(parser, found.metadata["flag"], words, default if has_default else None, **how)


def flag_of(settings: type, name: str) -> str:
    """The option of a field."""
    return next(_name(found) for found in fields(settings) if found.name == name)


def _name(found: Field[Any]) -> str:
    return str(found.metadata["flag"]).partition(" ")[0]


def values_of(arguments: argparse.Namespace, settings: type) -> dict[str, Any]:
    """What the options of a dataclass's fields are, by field."""
    of_flag = {found.name: _name(found)[2:].replace("-", "_") for found in fields(settings) if "how" in found.metadata}
    return {name: getattr(arguments, flag) for name, flag in of_flag.items() if flag in arguments}


def given(arguments: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Those of `values_of` that are not None."""
    return {name: value for name, value in values_of(arguments, settings).items() if value is not None}


def require_values(settings: Any) -> None:
    """Refuse what is less than the least of its option, or none of its choices; None is always one.

    Raises:
        ValueError: naming the option.
    """
    for found in fields(settings):
        value, least = getattr(settings, found.name), found.metadata.get("least")
        if value is not None and least is not None and value < least:
            raise ValueError(f"{_name(found)} is {value}; expected at least {least}")
        known = found.metadata.get("how", {}).get("choices")
        if value is not None and known is not None and value not in known:
            raise ValueError(f"unknown {_name(found)} {value!r}; the known ones are {', '.join(known)}")
