"""Costs at several sizes: the line through them and what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import growth
from benchmarks.whole.growing import GROWING
from benchmarks.whole.line import growth_row, line_through
from benchmarks.whole.material import GROWN, SHAPES
from benchmarks.whole.results import Figure, Results, write_results


def test_the_line_of_least_squares() -> None:
    """Against values by hand: 2 + 3x met exactly, then one value that is off."""
    line = line_through([1, 2, 10], [5, 8, 32])
    assert (line.start, line.slope, line.worst, line.at(1000)) == pytest.approx((2, 3, 0, 3002))
    bent = line_through([0, 1, 2], [1, 1, 4])
    assert (bent.start, bent.slope) == pytest.approx((0.5, 1.5))
    assert bent.worst == pytest.approx(1.0), "2.0 by the line where 1 was measured"


def test_one_size_is_no_line() -> None:
    with pytest.raises(ValueError, match="a line needs two sizes, there are 1"):
        line_through([4, 4], [1, 2])


def _figure(amount: float, *cpu_seconds: float) -> Figure:
    return Figure("hf_to_nemo", amount, "GB", "Scion", "ours", cpu_seconds, cpu_seconds, int((100 + amount) * 2**20), (0.4,))


def test_what_was_measured_and_what_the_line_says() -> None:
    row = growth_row([_figure(2, 4, 9, 5), _figure(1, 3), _figure(0.5, 2)], [("30 GB", 30), ("1 TB", 1000)])
    assert row[:3] == ("hf_to_nemo", "0.5, 1, 2 GB", "2.0, 3.0, 5.0")
    assert row[3:6] == ("1.0", "2", "0%")
    assert row[6:] == ("100, 101, 102", "30 GB: 61 CPU s, 130 MiB; 1 TB: 0.556 CPU h, 1,100 MiB")


def test_memory_that_is_no_line_is_not_drawn_out() -> None:
    shared = [replace(_figure(ranks, ranks), peak_bytes=mebibytes << 20) for ranks, mebibytes in ((1, 981), (2, 922), (4, 925))]
    assert growth_row(shared, [("512 ranks", 512)])[-1] == "512 ranks: 512 CPU s"


def test_tables_of_a_kept_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "ranks_sentence", lambda: "what ranks read")
    path = tmp_path / "kept.json"
    write_results(Results("a" * 40, "a machine", 2, (_figure(1, 3), _figure(2, 5)), {"mean": "not measured: --model was not given"}), path)
    assert growth.main(["--tables", str(path)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"hf_to_nemo \| +1, 2 GB \|.*1 TB: 0\.556 CPU h", printed)
    assert re.search(r"\| to_megatron +\|", printed), "what data_prep.plan says of text"
    assert "mean: not measured" in printed and printed.endswith("what ranks read\n")


def test_grown_checkpoints_differ_in_layers_alone() -> None:
    one, *others = (SHAPES[name] for name in GROWN)
    assert all({**other, "num_hidden_layers": 1} == one for other in others) and [shape["num_hidden_layers"] for shape in others] == [4, 20]


def test_stages_that_need_a_model_are_refused_without_one(tmp_path: Path) -> None:
    assert [name for name, stage in GROWING.items() if stage.needs_model] == ["mean", "focus", "harness"]
    words = ["--text", str(tmp_path / "text.jsonl"), "--output", str(tmp_path / "costs"), "--only", "focus"]
    with pytest.raises(ValueError, match=r"text\.jsonl does not exist"):
        growth.main(words)
    (tmp_path / "text.jsonl").touch()
    with pytest.raises(ValueError, match="--only focus needs --model"):
        growth.main(words)
    assert not (tmp_path / "costs").exists()
