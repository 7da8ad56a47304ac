"""Lines of JSON by the megabyte: what Python's json alone reads and writes, byte for byte, and the same errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.reading import documents as reading
from data_prep.reading.blocks import Block, read_blocks
from data_prep.reading.documents import BadInput, Document, read_documents

Write = Callable[[str, str | bytes], Path]


def through_blocks(path: Path, **options: Any) -> tuple[list[Document], list[str], list[int]]:
    """Documents, the lines that are written of them, and the characters of each."""
    documents, lines, characters = [], [], []
    for block in read_blocks(path, **options):
        found = [block.document(number) for number in range(len(block))]
        assert [block.data(number) for number in range(len(block))] == block.texts()
        written = bytes(block.json_lines(np.arange(len(block)), path.name))
        assert written == b"".join(block.json_line(number, block.data(number), path.name) for number in range(len(block)))
        documents += found
        lines += written.decode().split("\n")[:-1]
        characters += block.characters.tolist()
    return documents, lines, characters


def plainly(path: Path, **options: Any) -> tuple[list[Document], list[str], list[int]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reading, "_plain_document", lambda *_: None)
        documents = list(read_documents(path, **options))
    key = options.get("text_key", "text")
    lines = [
        json.dumps({"id": d.fields.get("id", f"{path.name}:{d.line}"), **d.fields, key: d.text}, ensure_ascii=False) for d in documents
    ]
    return documents, lines, [len(document.text) for document in documents]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.text(max_size=40) | st.text(alphabet='a"\\/\b\f\n\r\t\x00\x1f\x7f\x85č中😀\u2028', max_size=40)
RECORDS = st.tuples(
    st.dictionaries(st.sampled_from(["id", "a", "url", "č", "", 'q"', "text2"]), VALUES, max_size=4),
    TEXTS,
    st.booleans(),
    st.integers(0, 4),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(RECORDS, max_size=6), compact=st.booleans(), ascii_only=st.booleans())
def test_blocks_are_what_json_reads_and_writes(tmp_path: Path, records: list[Any], compact: bool, ascii_only: bool) -> None:
    path = tmp_path / "a.jsonl"
    with open(path, "wb") as file:
        for fields, text, is_last, empty_lines in records:
            record = {**fields, "text": text} if is_last else {"text": text, **fields}
            separators = (",", ":") if compact else (" ,\t", " :\r ")
            file.write(json.dumps(record, ensure_ascii=ascii_only, separators=separators).encode("utf-8", "surrogatepass") + b"\n")
            file.write(b" \t\n" * (empty_lines == 4))
    assert through_blocks(path) == plainly(path)


NUMBERS = "0 -0 -1 7 12345678901234567890 0.0 -0.0 0.10 1.0 10.50 0.1 0.0001 0.00001 1e5 1E-3 1.5e300 0.30000000000000004 0.1234567890123456 0.12345678901234567 "
NUMBERS += "100.0 1234567890123456.0 12345678901234567.5 123456.78901234567 9007199254740993.0 0.1000000000000000055 2.5 -3.25 5e-324 1.7976931348623157e308"


def test_numbers_are_spelled_as_python_does(write: Write) -> None:
    path = write("n.jsonl", "".join(f'{{"text": "t", "n": [{number}]}}\n' for number in NUMBERS.split()))
    assert through_blocks(path) == plainly(path)


ODD = {
    "twice": '{"text": "a", "text": "b"}',
    "twice within": '{"text": "a", "m": {"k": 1, "k": 2}}',
    "a key with an escape": '{"te\\u0078t": "a", "x\\n": 1}',
    "a pair of surrogates": '{"text": "\\ud83d\\ude00", "t": "\\uD83D\\uDE00"}',
    "deep": '{"text": "a", "m": ' + "[" * 80 + "]" * 80 + "}",
    "many": '{"text": "a", ' + ", ".join(f'"k{i}": {i}' for i in range(300)) + "}",
    "a long id behind": '{"text": "a", "b": 1, "id": "' + "x" * 5000 + '"}',
    "an id behind": '{"text": "a", "b": [1, {"c": null}], "id": {"n": 1}, "d": true}',
    "no id": '{"text":"a"}',
    "white space": ' \t{ "text" : "a" , "b" : [ ] , "c" : { } }\r',
    "escapes": '{"text": "\\u00e9\\/\\u0000\\u001f\\b", "v": "\\u00e9\\/\\u0000\\u001f\\b\\u007f"}',
}


@pytest.mark.parametrize("name", ODD)
def test_odd_lines(write: Write, name: str) -> None:
    path = write("o.jsonl", f'{{"text": "before"}}\n{ODD[name]}\n\n{{"text": "behind"}}')
    assert through_blocks(path) == plainly(path)


BAD = [
    b'{"text": "a\x00"}',
    b'{"text": "\\ud83d"}',
    b'{"text": 5}',
    b'{"a": NaN, "text": ""}',
    b'{"a": 1}',
    b'{"text": "a",}',
    b'{"text": "\xff"}',
]
BAD += [
    b'{"text": "\xed\xa0\x80"}',
    b'{"text": "\\x"}',
    b"[1]",
    b'{"text": "a"} b',
    b'{"text": "a"',
    b'{"text": "\\u12',
    b'{"text": "a", "n": 01}',
    b"\x0b",
]
BAD += [
    b'{"text": "' + b"a" * 3000 + b'"}',
    b'{"text": "a", "b": "\\ude00"}',
    b'{"text": "a", "b": 1e999}',
    b'{"text": "\xc0\x80"}',
    b'{"text": "\xf5"}',
]


def test_errors_are_the_same(write: Write) -> None:
    path = write("b.jsonl", b"\xef\xbb\xbf" + b"\n".join([b'{"text": "' + b"x" * number + b'"}\n' + bad for number, bad in enumerate(BAD)]))
    found: list[BadInput] = []
    expected: list[BadInput] = []
    documents = through_blocks(path, max_document_bytes=2000, on_bad=found.append)
    assert documents == plainly(path, max_document_bytes=2000, on_bad=expected.append)
    assert found == expected and len(found) >= len(BAD) - 1
    for bad in BAD:
        single = write("one.jsonl", b'{"text": "a"}\n' + bad + b"\n")
        sentences = []
        for read in (through_blocks, plainly):
            try:
                sentences.append(str(read(single, max_document_bytes=2000)))
            except ValueError as error:
                sentences.append(str(error))
        assert sentences[0] == sentences[1]


def test_the_first_error_is_told(write: Write) -> None:
    path = write("c.jsonl", b'no\n{"text": "' + b"a" * 3000 + b'"}\n')
    with pytest.raises(ValueError, match="line 1 is not valid JSON"):
        list(read_blocks(path, max_document_bytes=2000))


@pytest.mark.parametrize("text_key", ["body", "id", "č", 'a"b'])
def test_any_key_of_the_text(write: Write, text_key: str) -> None:
    records: list[dict[str, Any]] = [{text_key: "x", "text": "y", "n": 1}, {"id": "i", "b": 2, text_key: "z"}]
    path = write("k.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    assert through_blocks(path, text_key=text_key) == plainly(path, text_key=text_key)


def test_other_files(write: Write) -> None:
    text = write("a.txt", "ena\ndve\n")
    assert through_blocks(text) == plainly(text)


def test_blocks_are_about_a_megabyte(write: Write) -> None:
    path = write("big.jsonl", "".join(json.dumps({"text": "x" * 100_000, "id": i}) + "\n" for i in range(40)))
    sizes = [len(block) for block in read_blocks(path)]
    assert sum(sizes) == 40 and max(sizes) <= 11
    assert isinstance(next(iter(read_blocks(path))), Block)


def test_members_with_a_value_for_each_line_go_with_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 7, "langs": ["sl", "en"], "seen": [1, 2, 3], "text": "Ena.\\nTwo."}\n')
    (block,) = read_blocks(path)
    assert json.loads(block.json_line(0, b"Ena.", path.name)) == {"id": 7, "seen": [1, 2, 3], "text": "Ena."}
    assert json.loads(block.json_line(0, b"Ena.\nDve.", path.name))["langs"] == ["sl", "en"]
