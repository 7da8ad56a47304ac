"""Options are of the type of their default, say it once, and go into the settings that have them."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass
from pathlib import Path

import pytest

from common.options import add_option, add_options, given, option, require_values, values_of


@dataclass(frozen=True)
class Settings:
    size: int = option("--block-size N", "tokens of a block", 8, least=1)
    place: Path | None = option("--place DIR", "where")
    kind: str = option("--kind", "of what kind (default: as it comes)", "plain", choices=("plain", "odd"))
    is_strict: bool = option("--strict", "refuse more", False)
    is_shared: bool = option("--shared", "share blocks", True)
    least_kept: int = option("--least-kept N", "keep at least", 0, of_command=9)
    inner: int = 3

    def __post_init__(self) -> None:
        require_values(self)


def parsed(*words: str, has_defaults: bool = True) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser, Settings, has_defaults=has_defaults)
    return parser.parse_args(words)


def test_the_command_gives_the_fields() -> None:
    assert Settings(**values_of(parsed(), Settings)) == Settings(least_kept=9)
    words = ("--block-size", "2", "--place", "x", "--kind", "odd", "--strict", "--no-shared", "--least-kept", "1")
    assert Settings(**values_of(parsed(*words), Settings)) == Settings(2, Path("x"), "odd", True, False, 1)
    assert given(parsed("--block-size", "8", has_defaults=False), Settings) == {"size": 8}
    assert given(parsed("--strict", "--shared", has_defaults=False), Settings) == {"is_strict": True, "is_shared": True}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"size": 0}, "--block-size is 0; expected at least 1"),
        ({"kind": "new"}, "unknown --kind 'new'; the known ones are plain, odd"),
    ],
)
def test_values_are_refused_by_the_name_of_their_option(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Settings(**wrong)  # type: ignore[arg-type]


def test_help_says_each_default_once() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, Settings)
    add_option(parser, "--rate X", "of learning", 0.5)
    shown = " ".join(parser.format_help().split())
    for words in ("tokens of a block (default: 8)", "--place DIR where --kind", "of what kind (default: as it comes) --strict refuse more"):
        assert words in shown
    assert "share blocks (default: yes)" in shown and "keep at least (default: 9)" in shown and "of learning (default: 0.5)" in shown
    assert parser.parse_args(["--rate", "2"]).rate == 2.0 and MISSING not in vars(parser.parse_args([])).values()
