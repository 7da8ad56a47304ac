"""Deduplication by ranges of hashes decides as one table in the order of the text does, however the work is cut and wherever it was stopped."""

from __future__ import annotations

import gzip
import json
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.dedup import main
from data_prep.deduplication.decisions import DecisionLog, decide_all, text_size
from data_prep.deduplication.onion_types import OnionSettings
from data_prep.deduplication.output import Sources, write_shard
from data_prep.deduplication.range_work import RangeWork, cut_for, grouping, piece_sizes, read_piece, read_pieces, write_grouped
from data_prep.deduplication.ranges import decide_by_ranges
from data_prep.deduplication.requirements import TextSize, choose, file_bytes, sentence
from data_prep.deduplication.similar_documents import Similar
from data_prep.reading import blocks
from data_prep.reading.comparison import Comparison
from data_prep.sharing.scanning import Protected, Reading, Scanner
from tests.data_prep.deduplication.test_onion import RULES, TEXT


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of documents, and so a run, may be a single one."""
    _read_by(monkeypatch, num_bytes=1)


def _read_by(monkeypatch: pytest.MonkeyPatch, *, num_bytes: int) -> None:
    """Blocks of lines of JSON in place of a megabyte each."""
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", num_bytes)


def _write(directory: Path, shards: list[list[str]]) -> list[Path]:
    paths = []
    for number, texts in enumerate(shards):
        paths.append(directory / f"{number}.jsonl")
        paths[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return paths


def _logs(directory: Path, names: tuple[str, ...]) -> list[DecisionLog]:
    for name in names:
        (directory / name).mkdir()
    return [DecisionLog(directory / name) for name in names]


@settings(max_examples=60, deadline=None)
@given(
    shards=st.lists(st.lists(TEXT, max_size=5), min_size=1, max_size=3),
    rules=RULES,
    bits=st.integers(1, 4),
    run=st.integers(1, 20),
    same=st.booleans(),
)
@pytest.mark.usefixtures("small_batches")
@pytest.mark.slow
def test_decisions_are_those_of_one_table(shards: list[list[str]], rules: OnionSettings, bits: int, run: int, same: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        paths = _write(directory, shards)
        scanner = Scanner(Reading(), rules, Comparison())
        protected = scanner.engine.scan([b"a b a b", b"beseda-dolga a"], OnionSettings(n=3))
        scanner.protected = Protected.gather([protected], 3, 2)
        one, many = _logs(directory, ("one", "many"))
        (directory / "work").mkdir()
        similar = Similar(np.array([1, 4]), np.array([0, 2]), np.array([0.7, 0.9]))
        documents, paragraphs, _ = decide_all(scanner, paths, one, directory, same=same, similar=similar, workers=1)
        work = RangeWork(scanner, tuple(paths), directory / "work", many, bits, run, same)
        layout = decide_by_ranges(work, similar, workers=1)
        assert (list(layout.first_documents[:-1]), list(layout.first_paragraphs[:-1])) == (documents, paragraphs)
        for shard in range(len(paths)):
            assert many.places(shard).tolist() == one.places(shard).tolist()
            assert many.removed(shard).tolist() == one.removed(shard).tolist()


def test_pieces_are_found_by_their_number(tmp_path: Path) -> None:
    values, groups = np.arange(100, 110, dtype=np.uint32), np.array([3, 0, 3, 1, 0, 3, 3, 0, 1, 5])
    write_grouped(tmp_path / "a", values, groups, 6)
    pieces = [read_piece(tmp_path / "a", number, np.uint32).tolist() for number in range(6)]
    assert pieces == [[101, 104, 107], [103, 108], [], [100, 102, 105, 106], [], [109]]
    assert piece_sizes(tmp_path / "a").tolist() == [3, 2, 0, 4, 0, 1]
    assert (
        values[grouping(groups)].tolist()
        == [value for piece in pieces for value in piece]
        == read_pieces(tmp_path / "a", 0, 6, np.uint32).tolist()
    )
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[8:])
    with pytest.raises(ValueError, match="is cut or damaged; remove the hidden directory"):
        read_piece(tmp_path / "a", 0, np.uint32)


@pytest.mark.parametrize(("memory", "tokens", "bits"), [(1 << 30, 10**6, 1), (1 << 30, 10**9, 6), (1 << 20, 10**12, 16)])
def test_a_task_is_as_large_as_the_memory_allows(memory: int, tokens: int, bits: int) -> None:
    assert cut_for(memory, tokens)[0] == bits


def test_passes_follow_from_free_memory_and_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = TextSize(num_files=12, disk_bytes=2 * 10**9, text_bytes=6 * 10**9, num_tokens=10**9)
    ample = choose(size, free_bytes=64 << 30, workers=4, passes=None, memory_bytes=None)
    tight = choose(size, free_bytes=16 << 30, workers=4, passes=None, memory_bytes=None)
    assert (ample.passes, tight.passes) == (1, 2) and tight.memory_bytes < (16 << 30) * 0.7 / 4
    assert choose(size, free_bytes=64 << 30, workers=4, passes=None, memory_bytes=1 << 30).passes == 2, (
        "--memory is the limit of one pass too"
    )
    assert sentence(size, tight, free_bytes=16 << 30, workers=4) == (
        "about 6 GB of text, 1,000,000,000 tokens, in 12 files; one pass needs 22.5 GiB of memory, 16 GiB are free: two passes in 32 ranges,"
        " 2.75 GiB for each of 4 workers, 14 GiB of disk"
    )
    assert sentence(size, tight, free_bytes=16 << 30, workers=4, substrings=True).endswith(
        "14 GiB of disk; then up to 22.5 GiB of memory of one process for repeated spans"
    )
    with pytest.raises(
        ValueError, match=r"^--passes 1 needs 22.5 GiB of memory for about 1,000,000,000 tokens, but there are 16 GiB free; leave out"
    ):
        choose(size, free_bytes=16 << 30, workers=4, passes=1, memory_bytes=None)
    many = replace(size, num_documents=10**7)
    alike = choose(many, free_bytes=64 << 30, workers=4, passes=None, memory_bytes=None, similar_bands=64)
    assert alike.disk_bytes == 4 * 10**9 + 8 * 64 * 10**7, "n-grams and keys of bands, before the output is written"
    [path] = _write(tmp_path, [["ena dva tri"] * 3])
    assert main(["--input", f"c={path}", "--workers", "1", "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "kB of text, 19 tokens, in 1 file; one pass needs 200 MiB of memory" in said and "free: one pass" in said
    with pytest.raises(ValueError, match=r"--memory is 0.01 GiB; expected at least 0.0625"):
        main(["--input", f"c={path}", "--memory", "0.01", "--output", str(tmp_path / "other")])


@pytest.mark.long
def test_memory_beside_a_task_is_that_of_the_file_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many short paragraphs, half of which go: what the plan and the sentence at the start say, no less and not much more."""
    _read_by(monkeypatch, num_bytes=1 << 15)  # a run is a block or more
    num_documents, lines = 4_000, 15
    texts = ["\n".join(f"a{number // 2}b{line} c{number // 2}" for line in range(lines)) for number in range(num_documents)]
    [path] = _write(tmp_path, [texts])
    scanner = Scanner(Reading(), OnionSettings(n=2), Comparison())
    [log] = _logs(tmp_path, ("log",))
    (tmp_path / "work").mkdir()
    size = TextSize.estimate(scanner, [path])
    assert num_documents <= size.largest_documents < 1.6 * num_documents, "lines of JSON are taken for text"
    assert size.largest_paragraphs == pytest.approx(lines * size.largest_documents, rel=1e-3)
    work = RangeWork(scanner, (path,), tmp_path / "work", log, 3, 8192)
    tracemalloc.start()
    try:
        layout = decide_by_ranges(work, Similar.none(), workers=1)
        deciding = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        sources = Sources(log, [("c", path.name)], layout.first_documents, layout.first_paragraphs, [])
        counts = write_shard((scanner, path, "c", 0, log, sources, tmp_path / "text.jsonl", tmp_path / "removed.jsonl"))
        writing = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(amount.paragraphs for amount in counts.removed.values()) == lines * num_documents // 2
    expected = file_bytes(lines * num_documents, num_documents)
    at_once = 72 * 8192 + (1 << 20)  # a task, and a block of text with its paragraphs
    assert expected / 2 < max(deciding, writing) < expected + at_once, (deciding, writing, expected)


def test_a_worker_has_its_file_and_its_task_in_the_memory_that_is_asked_for() -> None:
    size = TextSize(4, 10**9, 4 * 10**9, 600 * 10**6, largest_documents=10**6, largest_paragraphs=5 * 10**6)
    of_file = file_bytes(5 * 10**6, 10**6)
    cut = choose(size, free_bytes=64 << 30, workers=2, passes=2, memory_bytes=1 << 30)
    assert cut.memory_bytes == (1 << 30) - of_file
    assert "1 GiB for each of 2 workers" in sentence(size, cut, free_bytes=64 << 30, workers=2)
    least = choose(size, free_bytes=64 << 30, workers=2, passes=2, memory_bytes=64 << 20)
    assert least.memory_bytes == 64 << 20
    assert "359 MiB for each of 2 workers" in sentence(size, least, free_bytes=64 << 30, workers=2), (
        "which it says, where that is too little"
    )


def test_text_is_measured_under_its_compression(tmp_path: Path) -> None:
    text = "".join(json.dumps({"text": f"vrstica {i} in še nekaj besed"}) + "\n" for i in range(30_000))
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    pyarrow.parquet.write_table(pyarrow.table({"text": text.splitlines()}), tmp_path / "a.parquet", compression="zstd")
    real = len(text.encode())
    for name in ("a.jsonl", "a.jsonl.gz", "a.parquet"):
        assert text_size([tmp_path / name]) == pytest.approx(real, rel=0.1)
