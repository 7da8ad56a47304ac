"""Documents come out as they are in the files, whatever the line ends; what is wrong is named with its line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pyarrow
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from common.artifacts import read_manifest
from data_prep.reading import documents
from data_prep.reading.corpora import text_files
from data_prep.reading.documents import SUFFIXES_IN_WORDS, BadInput, Document, Documents, batches, read_documents
from data_prep.reading.named_texts import read_texts
from tests.data_prep.packed import refusal
from tests.processes import ROOT
from tests.refusals import refused

Write = Callable[[str, str | bytes], Path]


@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=8),
    st.booleans(),
    st.sampled_from([None, 3, 7]),
    st.integers(1, 9),
)
def test_lines_are_read_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ended: bool, most: int | None, piece: int
) -> None:
    """Wherever a piece ends, in a line, at its end, in one that is too long."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n" * (ended and bool(lines)))
    expected = [line if most is None or len(line) <= most else "too long" for line in lines]
    if lines and not ended and not lines[-1]:
        expected.pop()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(documents, "_LINES_BYTES", piece)
        found = list(documents.raw_lines(path, None, most))
    assert found == [(n, line) if isinstance(line, bytes) else (n, found[n - 1][1]) for n, line in enumerate(expected, start=1)]
    assert [line[0] for _, line in found if isinstance(line, tuple)] == [line for line in expected if isinstance(line, str)]


@pytest.mark.parametrize(
    "separator, expected",
    [
        ("line", ["ena", "dva", "tri", "štiri"]),
        ("blank-line", ["ena\ndva", "tri\nštiri"]),
        ("file", ["ena\ndva\n\n \ntri\nštiri"]),
    ],
)
def test_separator_of_plain_text(write: Write, separator: str, expected: list[str]) -> None:
    path = write("a.txt", "ena\ndva\n\n \ntri\nštiri\n")
    assert list(Documents([path], separator=separator)) == expected


def test_a_line_is_a_document_where_no_empty_line_says_otherwise(write: Write) -> None:
    assert list(Documents([write("a.txt", "\n\nena\ndva\n\n\n")])) == ["ena", "dva"]
    path = write("b.txt", "ena\n\ndva\n")
    with refused(
        f"{path}, line 2 is empty, so a document may be longer than a line;"
        " say with --document-separator what ends one (line, blank-line, file)"
    ):
        list(Documents([path]))


def test_only_a_line_feed_ends_a_line(write: Write) -> None:
    text = "a\u2028b\u0085c\x0bd\x0ce\x1cf\rg"
    assert list(Documents([write("a.txt", f"\ufeff{text}\r\nend")])) == [text, "end"]
    assert list(Documents([write("a.jsonl", json.dumps({"text": text}, ensure_ascii=False) + "\r\n")])) == [text]


def test_inner_space_is_kept(write: Write) -> None:
    assert list(Documents([write("a.txt", "  a \tb \n")])) == ["  a \tb "]
    assert list(Documents([write("a.jsonl", '{"text": "\\n a\\n\\n"}')])) == ["\n a\n\n"]


def test_counts_of_the_last_reading(write: Write) -> None:
    documents = Documents(
        [write("a.jsonl", '{"body": "čš"}\n{"body": ""}\n{"body": " \\n\\u3000"}\n'), write("b.txt", "a\nb\n")], text_key="body"
    )
    for _ in range(2):
        assert list(documents) == ["čš", "a", "b"]
        assert (documents.num_documents, documents.num_empty, documents.text_bytes) == (3, 2, 6)


BAD = {
    "line 2 is not UTF-8: byte 0xe8 at position 3; convert the file, for example with iconv": ("a.txt", b"ok\nab\xe8\n"),
    "line 2 is not valid JSON: Expecting ',' delimiter at column 14; expected one object per line": ("a.jsonl", b'{"text": "a"}\n{"text": "a" "b"}\n'),
    "line 1 is not valid JSON: Unterminated string starting at at column 10; expected one object per line": ("a.jsonl", b'{"text": "cut'),
    "line 3 holds a JSON list; expected one object per line": ("a.jsonl", b'{"text": "a"}\n\n["a"]\n'),
    "line 1 has no key 'text', only 'id', 'body'; name the key of the text with --text-key": ("a.jsonl", b'{"id": 1, "body": "a"}\n'),
    "line 1 has no key 'text', only nothing; name the key of the text with --text-key": ("a.jsonl", b"{}"),
    "line 1 holds a NoneType under 'text'; expected a string": ("a.jsonl", b'{"text": null}\n'),
    "line 1 holds half a surrogate pair, which is not valid Unicode; repair or remove the line": ("a.jsonl", b'{"text": "a\\ud83d"}\n'),
}  # fmt: skip


@pytest.mark.parametrize("sentence", BAD)
def test_bad_lines_are_named(write: Write, sentence: str) -> None:
    path = write(*BAD[sentence])
    with refused(f"{path}, {sentence}"):
        list(Documents([path]))


@pytest.mark.parametrize(
    "suffix, content, sentence",
    [
        (
            ".gz",
            gzip.compress(b"a\n" * 99, mtime=0)[:-9],
            "gzip file after line 99: Compressed file ended before the end-of-stream marker was reached",
        ),
        (".gz", b"a\nb\n", "gzip file: Not a gzipped file (b'a\\n') (about 2 of its 4 bytes were not read)"),
        (".xz", b"a\nb\n" * 9, "xz file: Input format not supported by decoder"),
    ],
    ids=["truncated", "plain", "plain xz"],  # processes that share the tests must name them alike, whatever second they start in
)
def test_broken_files(write: Write, suffix: str, content: bytes, sentence: str) -> None:
    path = write(f"a.txt{suffix}", content)
    with refused(f"{path} is not a complete {sentence}; copy or compress it again"):
        list(Documents([path]))


def test_no_text_at_all(write: Write) -> None:
    empty, blank = write("a.txt", ""), write("b.jsonl", '{"text": " "}\n')
    with refused(f"there is no text in {empty}, {blank} (1 empty documents); give files with text"):
        list(Documents([empty, blank]))


def test_files_are_checked_before_reading(tmp_path: Path, write: Write) -> None:
    unknown = write("a.csv", "a")
    for path, sentence in {
        tmp_path / "none.txt": f"the input file {tmp_path / 'none.txt'} does not exist",
        tmp_path: f"the input {tmp_path} is not a file; name the files in it one by one",
        unknown: f"the input file {unknown} is of an unknown kind; expected a name ending in {SUFFIXES_IN_WORDS}",
    }.items():
        assert refusal(Documents, [path]) == sentence
    with pytest.raises(ValueError, match=r"^unknown document separator 'word'; the known ones are line, blank-line, file$"):
        Documents([], separator="word")


def test_a_folder_stands_for_its_text_files(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "more/c.txt", ".hidden.txt"):
        (folder / name).write_text(f"{name}\n", encoding="utf-8")
    named = [folder / name for name in ("a.txt", "b.txt", "more/c.txt")]
    assert text_files([folder]) == text_files(named) == named
    assert read_texts([f"sl={folder}"])[0].documents == ["a.txt", "b.txt", "more/c.txt"]
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"the folder .*none has no text file; expected names ending in"):
        text_files([tmp_path / "none"])


@pytest.mark.long
def test_memory_does_not_grow_with_the_file(write: Write) -> None:
    path = write("a.jsonl.gz", gzip.compress((json.dumps({"text": "beseda " * 100}) + "\n").encode() * 20_000, compresslevel=1))
    tracemalloc.start()
    try:
        assert sum(1 for _ in Documents([path])) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 4e6  # of 14 MB of text
    finally:
        tracemalloc.stop()


@given(st.lists(st.text(max_size=9)), st.integers(1, 30))
def test_batches_keep_order_and_end_when_full(texts: list[str], num_characters: int) -> None:
    groups = list(batches(texts, num_characters))
    assert [text for group in groups for text in group] == texts
    for group in groups:
        assert sum(map(len, group[:-1])) < num_characters
    assert all(sum(map(len, group)) >= num_characters for group in groups[:-1])


@pytest.fixture(scope="module")
def enormous_line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 MB in one line, packed, and a short one after it."""
    path = tmp_path_factory.mktemp("enormous") / "a.jsonl.zst"
    with open(path, "wb") as file, pyarrow.CompressedOutputStream(file, "zstd") as stream:
        stream.write(b'{"text": "')
        for _ in range(500):
            stream.write(b"a" * 1_000_000)
        stream.write(b'"}\n{"id": "b", "text": "kratka"}\n')
    return path


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["collect", "clean", "dedup", "to_megatron"])
def test_one_enormous_line_is_named_and_never_in_memory(name: str, enormous_line: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    inputs = ["--input", str(enormous_line) if name == "to_megatron" else f"web={enormous_line}"]
    arguments = [*inputs, *(["--tokenizer", str(tokenizer_dir)] if name == "to_megatron" else []), "--workers", "1"]
    code = (
        f"import re; from pathlib import Path; from data_prep.{name} import main;"
        f"main({[*arguments, '--output', str(tmp_path / 'out'), '--skip-bad']!r});"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) // 1024)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "USE_TORCH": "0"}
    )
    assert int(result.stdout.split()[-1]) < 400, "MiB"
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert f"{enormous_line}, line 1: the line is longer than 64 MiB" in result.stdout + json.dumps(manifest.facts)
    refused = subprocess.run(
        [sys.executable, "-m", f"data_prep.{name}", *arguments, "--output", str(tmp_path / "none")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert f"error: {enormous_line}, line 1: the line is longer than 64 MiB; split it" in refused.stderr
    assert not (tmp_path / "none").exists()


HALF, LONG = '"\\ud83d"', "9" * 5000
BAD_LINES = {
    '{"text": "a", "k": ' + HALF + "}": (
        "half a surrogate pair",
        "holds half a surrogate pair, which is not valid Unicode; repair or remove",
    ),
    '{"text": "a", "k": {"b": [' + HALF + "]}}": ("half a surrogate pair", "holds half a surrogate pair"),
    '{"text": "a", ' + HALF + ": 1}": ("half a surrogate pair", "holds half a surrogate pair"),
    '{"text": "a", "k": ' + LONG + "}": (
        "a number too long",
        "holds a number of more than 4,300 digits; write it as text or remove the line",
    ),
    '{"text": "a", "k": NaN}': ("no JSON number", "holds NaN, which is not valid JSON; write null, or remove the line"),
    '{"text": "a", "k": [-Infinity]}': ("no JSON number", "holds -Infinity, which is not valid JSON"),
    '{"text": "a", "k": 1e999}': ("no JSON number", "holds a number that is none or too large for JSON; write null, or remove the line"),
    '{"text": "a", "k": ' + "[" * 9999 + "}": ("no JSON", "is JSON nested too deeply"),
    '{"text": NaN}': ("no JSON number", "holds NaN"),
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_line_that_no_output_could_hold_is_named_or_passed_over(line: str, tmp_path: Path) -> None:
    reason, sentence = BAD_LINES[line]
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "prva"}}\n{line}\n{{"text": "zadnja"}}\n')
    with pytest.raises(ValueError) as error:
        list(read_documents(path))
    assert str(error.value).startswith(f"{path}, line 2 {sentence}")
    bad: list[BadInput] = []
    assert [document.text for document in read_documents(path, on_bad=bad.append)] == ["prva", "zadnja"]
    assert [(item.line, item.reason) for item in bad] == [(2, reason)]


def _compressed(kind: str, data: bytes) -> bytes:
    if kind == "gz":
        return gzip.compress(data, 6, mtime=0)  # or a test of damages reads other bytes every second
    if kind == "xz":
        return lzma.compress(data, preset=0)
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def test_a_cut_zstd_file_is_one_sentence(tmp_path: Path) -> None:
    """The library that reads it says nothing of its own beside it."""
    path = tmp_path / "a.jsonl.zst"
    with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
        for number in range(3000):
            file.write(json.dumps({"id": str(number), "text": f"Besedilo številka {number} je tu {number * 7919}"}).encode() + b"\n")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    words = [sys.executable, "-m", "data_prep.collect", "--input", f"a={path}", "--workers", "1", "--output", str(tmp_path / "out")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {path} is not a complete zstd file: Compressed file ended before the end-of-stream marker was reached;"
        " copy or compress it again\n"
    )


@pytest.mark.some(3)
@pytest.mark.parametrize("how", ["cut", "damaged"])
@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_all_lines_before_a_damage_are_kept(kind: str, how: str, tmp_path: Path) -> None:
    """Noise does not compress, so the place of the damage in the text is known up to a block of the compressor."""
    generator = random.Random(1)
    lines = [generator.randbytes(300).hex().encode() for _ in range(3000)]
    data = b"\n".join(lines) + b"\n"
    whole = _compressed(kind, data)
    place = len(whole) * 2 // 3
    path = tmp_path / f"a.txt.{kind}"
    path.write_bytes(whole[:place] if how == "cut" else whole[:place] + whole[: 1 << 18] + whole[place + (1 << 18) :])
    bad: list[BadInput] = []
    # What a damage decompresses to may hold an empty line.
    found = [document.text.encode() for document in read_documents(path, separator="line", on_bad=bad.append)]
    num_sound = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(found, lines)))
    block = {"gz": 1 << 12, "xz": 1 << 12, "zst": 1 << 18}[kind]
    assert num_sound * 601 > len(data) * 2 // 3 - block
    assert [item.reason for item in bad][-1:] == [f"broken { {'gz': 'gzip', 'xz': 'xz', 'zst': 'zstd'}[kind] }"]
    if how == "cut":  # a damage may still decompress, to what is not text
        assert num_sound == len(found) == len(lines[:num_sound])
        with pytest.raises(ValueError, match=rf"^{path} is not a complete \w+ file after line {len(found)}: "):
            list(read_documents(path))


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_files_of_several_members_are_read_up_to_the_damage(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt.{kind}"
    first, second = _compressed(kind, b"prva\n"), _compressed(kind, b"druga\n" * 1000)
    path.write_bytes(first + second)
    assert len(list(read_documents(path))) == 1001
    path.write_bytes(first + second[:-10])
    bad: list[BadInput] = []
    assert [document.text for document in read_documents(path, on_bad=bad.append)][:2] == ["prva", "druga"] and len(bad) == 1


def test_parquet_bytes_are_text_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = {
        "text": pyarrow.array(["prvo č".encode(), b"\xff\xfe", b"tretje", b"x"], pyarrow.binary()),
        "id": pyarrow.array(["ž".encode(), b"b", b"c", b"d"], pyarrow.binary()),
        "hash": pyarrow.array([b"1", b"2", b"3", b"\xff"], pyarrow.binary()),
        "score": pyarrow.array([float("nan"), 1.0, float("inf"), 2.0]),
        "nested": pyarrow.array(
            [[{"a": float("nan"), "b": b"c"}]] + [[]] * 3,
            pyarrow.list_(pyarrow.struct([("a", pyarrow.float64()), ("b", pyarrow.binary())])),
        ),
    }
    parquet.write_table(pyarrow.table(table), path)
    bad: list[BadInput] = []
    first, third = read_documents(path, on_bad=bad.append)
    assert first == Document("prvo č", 1, {"id": "ž", "hash": "1", "score": None, "nested": [{"a": None, "b": "c"}]})
    assert third == Document("tretje", 3, {"id": "c", "hash": "3", "score": "inf", "nested": []})
    assert [item.message for item in bad] == [
        f"{path}, row 2 holds bytes under 'text' that are not UTF-8; write the column as text",
        f"{path}, row 4 holds under 'hash' what is neither text nor a number; leave that column out or write it as text",
    ]
    with pytest.raises(ValueError, match=rf"^{path}, row 2 holds bytes under 'text'"):
        list(read_documents(path))


def test_names_of_published_corpora_are_read(tmp_path: Path) -> None:
    """mC4's, C4's and dolma's `.json.gz`, bzip2, capitals, and zstd with a window that its library refuses unasked."""
    line = b'{"text": "Dober dan."}\n'
    long = zstd.ZstdCompressor(
        options={zstd.CompressionParameter.window_log: 28, zstd.CompressionParameter.enable_long_distance_matching: 1}
    )
    packed = {
        "c4.json.gz": gzip.compress(line),
        "a.jsonl.bz2": bz2.compress(line) + bz2.compress(line),
        "A.JSONL": line,
        "b.ndjson": line,
        "window.jsonl.zst": long.compress(line) + long.flush(),
    }
    for name, data in packed.items():
        (tmp_path / name).write_bytes(data)
        assert [document.text for document in read_documents(tmp_path / name)] == ["Dober dan."] * (2 if "bz2" in name else 1), name
    cut = tmp_path / "cut.jsonl.bz2"
    cut.write_bytes(bz2.compress(line) + bz2.compress(line)[:-5])
    bad: list[BadInput] = []
    assert [document.text for document in read_documents(cut, on_bad=bad.append)][:1] == ["Dober dan."]
    assert bad[0].reason == "broken bzip2"


def test_parquet_that_the_library_does_not_read_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "lzo.parquet"
    parquet.write_table(pyarrow.table({"text": ["Dober dan."]}), path, compression="snappy", use_dictionary=False)
    data = path.read_bytes()
    # The column's codec in the footer: SNAPPY is 1, LZO 3, as zigzag numbers of its compact protocol, behind the list of names.
    place = data.rindex(b"\x18\x04text\x15\x02") + 7
    path.write_bytes(data[:place] + b"\x06" + data[place + 1 :])
    with pytest.raises(ValueError, match=r"in a way that pyarrow .* does not read: .*write it again"):
        list(read_documents(path))
