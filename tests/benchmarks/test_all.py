"""The run of all benchmarks: what it measures, keeps by commit, compares and refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import all as all_benchmarks
from benchmarks.whole.page import rows_of
from benchmarks.whole.results import Figure, Results, changes, read_results, write_results
from tests.conversion.embedding_fixtures import demo_text


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in demo_text("sl").splitlines() if line))
    return path


def figure(name: str, *cpu_seconds: float, role: str = "ours", case: str = "dedup", amount: float = 10) -> Figure:
    return Figure(case, amount, "MB of text", name, role, cpu_seconds, cpu_seconds, 1 << 30)  # type: ignore[arg-type]


def results(*figures: Figure) -> Results:
    return Results("a" * 40, "a machine", 2, (0.5,), figures)


@pytest.mark.slow
def test_measured_kept_shown_and_compared(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real commands on a little text, twice; the second time beside results that were made faster by hand."""
    output = tmp_path / "costs"
    words = ["--text", str(text), "--megabytes", "0.05", "--rounds", "2", "--only", "dedup"]
    assert all_benchmarks.main([*words, "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    (path,) = output.glob("*.json")
    found = read_results(path)
    assert path.stem == (found.commit or "unknown") and found.cases == ["dedup"]
    ours, limit = found.of_case("dedup")
    assert (ours.role, limit.role, len(ours.cpu_seconds)) == ("ours", "limit", 2) and 0.05 <= ours.amount < 0.06
    assert min(ours.cpu_seconds) > 0.1 and ours.peak_bytes > 20 << 20
    assert re.search(rf"reading and writing zstd \|.* {limit.median_cpu / ours.median_cpu:.2f} \|\n", printed)
    assert "--peers names no interpreter with datatrove" in printed
    assert re.search(r"<td>Scion</td>.*<td>reading and writing zstd</td>", (output / "index.html").read_text(), re.DOTALL)

    faster = tmp_path / "before.json"
    write_results(replace(found, figures=(replace(ours, cpu_seconds=(0.01, 0.02)), limit)), faster)
    assert all_benchmarks.main([*words, "--output", str(output), "--against", str(faster)]) == 1
    assert re.search(r"\| dedup +\| +0\.01 \|.*\| +slower \|", capsys.readouterr().out)
    assert "Against the commit before" in (output / "index.html").read_text()


def test_slower_is_what_no_round_before_was() -> None:
    before = results(figure("Scion", 1.0, 1.2, 1.1))
    assert [change.is_slower for change in changes(before, results(figure("Scion", 1.19, 1.3, 1.4)))] == [False]  # a round is as fast
    assert [change.is_slower for change in changes(before, results(figure("Scion", 1.21, 1.3, 1.4)))] == [True]
    assert [change.is_slower for change in changes(before, results(figure("Scion", 2.42, 2.2, 2.3, amount=20)))] == [
        False
    ]  # twice the work
    assert changes(before, results(figure("Scion", 9.0, case="clean"))) == []


def test_ratios_are_of_medians() -> None:
    ours, peer = rows_of(results(figure("Scion", 1.0, 2.0, 9.0), figure("datatrove", 10.0, 30.0, 20.0, role="peer")))
    assert ours == ("dedup", "Scion", "2.00", "1.00", "9.00", "2.00", "1,024", "5 MB of text", "")
    assert (peer[0], peer[-1]) == ("", "10.00")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rounds", "0"], "--rounds 0 and --megabytes 0.05: expected at least one round"),
        (["--only", "harness"], "--only harness needs a real model; give its folder by --model"),
        (["--against", "TEXT"], "holds no results of benchmarks.all"),
    ],
)
def test_bad_input_is_told_before_anything_is_written(words: list[str], sentence: str, text: Path, tmp_path: Path) -> None:
    given = [
        "--text",
        str(text),
        "--megabytes",
        "0.05",
        "--output",
        str(tmp_path / "costs"),
        *(word.replace("TEXT", str(text)) for word in words),
    ]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        all_benchmarks.main(given)
    assert not (tmp_path / "costs").exists()


def test_too_little_text_leaves_no_half_file(text: Path, tmp_path: Path) -> None:
    from benchmarks.whole.material import write_text

    with pytest.raises(ValueError, match=r"--text holds 0\.1 MB, expected 900\.0; give more files, or a smaller --megabytes"):
        write_text(tmp_path / "out.jsonl.zst", 900_000_000, [text])
    assert [path.name for path in tmp_path.iterdir()] == ["text.jsonl"]
