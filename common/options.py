"""Options of a command as fields of a dataclass, so that type, default, limits and help of each stand in one place."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any

# Of a value, by the type that is written at the field; text is taken as it is.
_READERS: dict[str, type] = {"int": int, "float": float, "Path": Path}


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
        flag: with its metavar, as `--threshold SHARE`.
        default: MISSING where the field must be given.
        words: for `--help`, which adds the default unless they say it themselves.
        of_command: the default of the option, where it is not that of the field.
        least: the smallest value, for `require_values`.
        more: what else the field's metadata holds.
        how: as of `add_argument`; the type follows from that of the field, and a bool that is False by default is a switch.
    """
    name, _, metavar = flag.partition(" ")
    how |= {"metavar": metavar} if metavar else {}
    of_command = default if of_command is MISSING else of_command
    metadata = {"flag": name, "words": words, "default": of_command, "least": least, "how": how, **(more or {})}
    return field(default_factory=factory, metadata=metadata) if factory is not MISSING else field(default=default, metadata=metadata)


def add_options(parser: argparse._ActionsContainer, settings: type, *names: str, has_defaults: bool = True) -> None:
    """Add the options of some fields of a dataclass, or of all that have one.

    Args:
        has_defaults: otherwise what is not given is None, see `given`.
    """
    for found in fields(settings):
        if "flag" in found.metadata and (not names or found.name in names):
            add_option(parser, found, has_default=has_defaults)


def add_option(parser: argparse._ActionsContainer, found: Field[Any], *, words: str | None = None, has_default: bool = True) -> None:
    """Add the option of a field, with other words than `with_default` where they are given."""
    how = dict(found.metadata["how"])
    if found.type == "bool" and "choices" not in how:
        how.setdefault("action", "store_true" if found.default is False else argparse.BooleanOptionalAction)
    elif reader := _READERS.get(str(found.type).removesuffix(" | None")):
        how.setdefault("type", reader)
    default = found.metadata["default"] if has_default else MISSING
    parser.add_argument(
        found.metadata["flag"], default=None if default is MISSING else default, help=with_default(found) if words is None else words, **how
    )


def with_default(found: Field[Any]) -> str:
    """What `--help` says of an option, with its default."""
    words, default = found.metadata["words"], found.metadata["default"]
    if default in (None, MISSING, "", ()) or default is False or "(default" in words:
        return words
    return f"{words} (default: {'yes' if default is True else f'{default:,}' if isinstance(default, int) else default})"


def flag_of(settings: type, name: str) -> str:
    """The option of a field."""
    return next(str(found.metadata["flag"]) for found in fields(settings) if found.name == name)


def values_of(arguments: argparse.Namespace, settings: type) -> dict[str, Any]:
    """What the options of a dataclass's fields are, by field."""
    of_flag = {found.name: found.metadata["flag"][2:].replace("-", "_") for found in fields(settings) if "flag" in found.metadata}
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
            raise ValueError(f"{found.metadata['flag']} is {value}; expected at least {least}")
        known = found.metadata.get("how", {}).get("choices")
        if value is not None and known is not None and value not in known:
            raise ValueError(f"unknown {found.metadata['flag']} {value!r}; the known ones are {', '.join(known)}")
