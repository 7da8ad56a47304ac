"""Files that one process reads again come from memory where there is room, with the same blocks and the same bad lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.reading.blocks import Block
from data_prep.reading.documents import BadInput
from data_prep.sharing.scanning import Reading, ReadingAgain

Write = Callable[[str, str | bytes], Path]


def read(reading: Reading, path: Path) -> tuple[list[tuple[bytes, bytes, list[int]]], list[BadInput]]:
    bad: list[BadInput] = []
    blocks: list[Block] = list(reading.blocks(path, bad))
    return [(block.text, block.rest, block.lines.tolist()) for block in blocks], bad


def test_a_file_is_read_once_where_there_is_room(write: Write) -> None:
    first = write("a.jsonl", '{"id": 1, "text": "ena"}\nkaj\n{"text": "dve"}\n')
    second = write("b.jsonl", '{"text": "' + "tri " * 100 + '"}\n')
    plain = Reading(skip_bad=True)
    again = ReadingAgain(**vars(plain), room_bytes=300)
    expected = {path: read(plain, path) for path in (first, second)}
    assert {path: read(again, path) for path in (first, second)} == expected
    first.unlink()
    assert read(again, first) == expected[first]
    second.unlink()  # for which there was no room
    with pytest.raises(FileNotFoundError):
        read(again, second)


def test_it_is_held_by_one_worker_alone() -> None:
    assert isinstance(ReadingAgain.of_one_worker(Reading(), 1), ReadingAgain)
    assert not isinstance(ReadingAgain.of_one_worker(Reading(), 2), ReadingAgain)
