"""The plan of a data preparation: arithmetic over measured rates, and rates that are measured for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.meter import Measured
from data_prep.plan import main
from data_prep.planning.prediction import Machines, predict, total_disk
from data_prep.planning.rates import BUNDLED, STAGES, Amount, Rates, StageRate, line, measure_rates

MADE_UP = Rates(
    (
        StageRate("collect", 2.0, 10.0, 2.0**28, 0.3, 0.0, 0.5),
        StageRate("dedup", 3.0, 40.0, 2.0**28, 0.3, 2.0, 0.9),
    ),
    digest_seconds_per_gb=0.5,
    disk_per_byte=0.4,
    documents_per_byte=0.001,
    command="python -m data_prep.plan --measure text.jsonl",
    machine="a machine",
    sample="64 MB",
)


def test_each_stage_reads_what_the_one_before_left() -> None:
    collect, dedup = predict(MADE_UP, 1e12, Machines(nodes=4, workers=10, memory_gib=2.0625))
    assert (collect.text_bytes, dedup.text_bytes) == (1e12, 0.5e12)
    assert collect.cpu_seconds == pytest.approx(2 + 10 * 1000)
    alone = 0.5 * (400 + 300)  # GB of input and output
    assert collect.seconds == pytest.approx(2 + (10_000 - alone) / 40 + alone)
    assert dedup.seconds == pytest.approx(3 + (20_000 - 0.5 * (300 + 150)) / 40 + 0.5 * (300 + 150))
    assert collect.node_bytes == 11 * 2**28 + 48 * 1e9, "a worker each, the process that leads, and what that holds of each document"
    assert dedup.node_bytes == 11 * (2**28 + 2 * 2**30), "does not grow with the text, but with --memory"
    assert (dedup.output_bytes, dedup.scratch_bytes) == (0.15e12, 1e12)
    assert total_disk([collect, dedup]) == pytest.approx(0.3e12 + 0.15e12 + 1e12)


def test_the_rates_of_the_project_are_of_all_stages(capsys: pytest.CaptureFixture[str]) -> None:
    rates = Rates.read(BUNDLED)
    assert tuple(rate.stage for rate in rates.stages) == STAGES
    assert "data_prep.plan --measure" in rates.command
    assert main(["--terabytes", "2", "--nodes", "8", "--workers", "64", "--memory", "4"]) == 0
    table = capsys.readouterr().out
    assert all(f"| {stage}" in table for stage in (*STAGES, "all")) and rates.command in table
    one, many = (predict(rates, 1e12, Machines(nodes=nodes, workers=16)) for nodes in (1, 8))
    assert all(few.seconds > more.seconds > few.seconds / 8 for few, more in zip(one, many)), "what one process does alone stays"


def test_mistakes_are_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text(json.dumps({"format": 7}))
    for words, sentence in (
        ([], "give either --terabytes N to plan, or --measure"),
        (["--terabytes", "-1"], "--terabytes is -1; expected a number above 0"),
        (["--terabytes", "1", "--rates", str(tmp_path / "rates.json")], "holds no rates of data_prep.plan"),
        (["--measure", "a.jsonl"], "--measure needs --tokenizer DIR and --output FILE"),
        (["--measure", "a.jsonl", "--tokenizer", "t", "--output", str(tmp_path / "rates.json")], "exists; remove it"),
    ):
        with pytest.raises(ValueError, match=sentence):
            main(words)


def test_a_sample_that_is_too_small_or_mostly_copies_is_refused(slovene_text: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the files hold 0.1 MB of text, but the sample is to be 100.0 MB"):
        measure_rates([slovene_text], tmp_path, tmp_path, megabytes=100, command="")
    few, many = (Amount(1000, 900, 300, 50, Measured(2.0, seconds, 2**27, "")) for seconds in (1.0, 1.5))
    with pytest.raises(ValueError, match="the whole sample leaves no more text than a quarter of it, so it is mostly copies"):
        line("clean", few, many)
    rate = line("clean", few, replace(many, text_bytes=4000))
    assert (rate.start_seconds, rate.seconds_per_gb, rate.peak_bytes) == (
        pytest.approx(1.5 - 0.5 * 4 / 3),
        pytest.approx(0.5e9 / 3000),
        2**27,
    )
