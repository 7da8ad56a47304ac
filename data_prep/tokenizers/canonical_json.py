"""What decides a tokenizer's ids as JSON with sorted keys, piece by piece: vocabulary and merges of 256,000 tokens would take 150 MB as one text and its objects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from json.encoder import encode_basestring
from typing import Any

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

    Inside a token quotes are written with a backslash, so that what is searched here is no part of one.
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
