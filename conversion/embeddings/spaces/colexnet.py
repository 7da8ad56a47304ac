"""The keys of ColexNet+ (Liu et al. 2023), one vector space of words of 1,335 languages, and the text of each key.

`slv:$hiša$` is a run of characters of Slovene, in which `$` marks where a word begins or ends; `$house$`, without a language, is one of the English
concepts.  The vectors are read in word2vec's text form, as gensim's `save_word2vec_format` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

BOUNDARY = "$"
_LANGUAGE = re.compile(r"[a-z]{3}:")
_LEAST_SHARE = 0.5  # of the keys with a language: in a table of one language a few may look so


def has_languages(keys: Sequence[str]) -> bool:
    """Whether the keys of a table of vectors begin with languages."""
    return sum(map(bool, map(_LANGUAGE.match, keys))) >= _LEAST_SHARE * len(keys) > 0


def text_of(key: str) -> str:
    """What a key stands for, with a space where a word begins or ends; empty where it stands for nothing."""
    text = key[4:] if _LANGUAGE.match(key) else key
    return text.replace(BOUNDARY, " ") if text.strip(BOUNDARY) else ""


def spellings(*, as_published: bool) -> list[Callable[[str], str]]:
    """How the text of a key may stand in a text: with and without a space before it, with and without a capital; empty where it cannot.

    A run that does not begin a word has neither a space before it nor a capital.

    Args:
        as_published: as OFA's code spells them, which keeps the space at the end, and writes a second one at the beginning.
    """
    if as_published:
        return [str, lambda text: f" {text}", _published_capital]
    return [
        str.strip,
        _after_space,
        lambda text: _at_word(text.strip().capitalize(), text),
        lambda text: _after_space(text, str.capitalize),
    ]


def _after_space(text: str, change: Callable[[str], str] = str) -> str:
    return _at_word(f" {change(text.strip())}", text)


def _at_word(spelled: str, text: str) -> str:
    return spelled if text.startswith(" ") else ""


def _published_capital(text: str) -> str:
    if text.startswith(" "):
        return f"{text[1:2].upper()}{text[2:]}"
    return f" {text[:1].upper()}{text[1:]}"
