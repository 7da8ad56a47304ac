"""The plan of a data preparation: arithmetic over measured rates, and rates that are measured for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.meter import Measured
from data_prep.plan import main
from data_prep.planning.prediction import Machines, in_a_row, predict, total_disk
from data_prep.planning.rates import BUNDLED, INSTEAD, STAGES, Amount, Rates, StageRate, line, measure_rates
from data_prep.tokenizers.word_counts import MAX_DISTINCT_WORDS

MADE_UP = Rates(
    (
        StageRate("collect", 2.0, 10.0, 2.0**28, 0.3, 0.0, 0.5),
        StageRate("clean", 2.0, 10.0, 2.0**28, 0.3, 0.0, 1.0),
        StageRate("clean --filters web", 2.0, 90.0, 2.0**28, 0.2, 9.0, 0.7),
        StageRate("dedup", 3.0, 40.0, 2.0**28, 0.3, 2.0, 0.9),
        StageRate("dedup --similar-documents", 3.0, 80.0, 2.0**28, 0.3, 4.0, 0.8),
        StageRate("train_tokenizer", 3.0, 40.0, 2.0**28, 2.0, 0.0, 1.0),
    ),
    digest_seconds_per_gb=0.5,
    disk_per_byte=0.4,
    documents_per_byte=0.001,
    lines_per_byte=0.01,
    short_lines_per_byte=0.002,
    sample_bytes=10**6,
    distinct_words=(10_000, 0.5),
    bytes_a_word=300.0,
    command="python -m data_prep.plan --measure text.jsonl",
    machine="a machine",
    sample="64 MB",
)


def test_each_stage_reads_what_the_one_before_left() -> None:
    made = {one.stage: one for one in predict(MADE_UP, 1e12, Machines(nodes=4, workers=10, memory_gib=2.0625))}
    collect, dedup = made["collect"], made["dedup"]
    assert (collect.text_bytes, dedup.text_bytes, made["train_tokenizer"].text_bytes) == (1e12, 0.5e12, 0.45e12)
    assert collect.cpu_seconds == pytest.approx(2 + 10 * 1000)
    alone = 0.5 * (400 + 300)  # GB of input and output
    assert collect.seconds == pytest.approx(2 + (10_000 - alone) / 40 + alone)
    assert dedup.seconds == pytest.approx(3 + (20_000 - 0.5 * (150 + 150)) / 40 + 0.5 * (150 + 150))
    assert (dedup.output_bytes, dedup.scratch_bytes) == (0.15e12, 1e12)
    assert made["dedup --similar-documents"].text_bytes == dedup.text_bytes, "in its place, not behind it"
    assert made["train_tokenizer"].output_bytes == 2e6, "a tokenizer is as large as its vocabulary"
    assert [one.stage for one in in_a_row(list(made.values()))] == ["collect", "clean", "dedup", "train_tokenizer"]
    assert total_disk([collect, dedup, made["clean --filters web"]]) == pytest.approx(0.3e12 + 0.15e12 + 4.5e12)


def test_memory_follows_what_stages_hold() -> None:
    """Of each document and line of a file, by the worker that has it, and of all documents, by the process that leads."""

    def needed(stage: str, text: float = 1e12, *, workers: int = 1, memory: float = 0.0625, file: float = 1e9, kept: float = 0) -> int:
        made = predict(MADE_UP, text, Machines(1, workers, memory, file, kept))
        return round(next(one.node_bytes for one in made if one.stage == stage) - 2.0**28 * (workers + (workers > 1)))

    assert needed("collect", workers=10) == 10 * 18 * 1e6 + 9 * 1e9, "a worker's file has a million documents, the text a thousand million"
    assert needed("collect", text=1e8) == (18 + 9) * 1e5, "a file is no larger than the text"
    assert needed("clean") == (18 + 116) * 1e6 + 9 * 0.5e9
    assert needed("clean --filters web") - needed("clean") == 250 * 2e6
    kept = [needed("clean --filters web", kept=room) - needed("clean --filters web") for room in (0, 5e5, 3e9, 1e12)]
    assert kept == [0, 0, 3e9 - 1e6, 0.5e12 - 1e6], "what one worker reads twice, as far as there is room; of the sample it is in the peak"
    assert needed("clean --filters web", kept=3e9, workers=2) == needed("clean --filters web", workers=2)
    of_file = 33 * 1e7 + 56 * 1e6  # more than the rows of the tenth that goes
    assert needed("dedup") == of_file, "with the least --memory tasks are as large as on the sample, and the file is beside them"
    assert needed("dedup", file=1e8) == of_file / 10, "smaller files, less memory"
    assert needed("dedup", memory=2.0625) == 2 * 2**30, "--memory is what both take, if it is enough"
    assert needed("dedup", memory=2.0625, workers=4) == 4 * 2 * 2**30
    assert needed("dedup --similar-documents") == 52 * 0.5e9, "of all documents, where that is more; one process does one after the other"
    assert needed("train_tokenizer") == pytest.approx(300 * (10_000 * (0.45e12 / 1e6) ** 0.5 - 10_000))
    assert needed("train_tokenizer", text=1e16) == 300 * (MAX_DISTINCT_WORDS - 10_000), "no more words are kept"


def test_the_rates_of_the_project_are_of_all_stages(capsys: pytest.CaptureFixture[str]) -> None:
    rates = Rates.read(BUNDLED)
    assert tuple(rate.stage for rate in rates.stages) == STAGES
    assert "data_prep.plan --measure" in rates.command
    assert main(["--terabytes", "2", "--nodes", "8", "--workers", "64", "--memory", "4"]) == 0
    table = capsys.readouterr().out
    assert (
        all(
            f"| {stage} " in table
            for stage in (*(stage for stage in STAGES if stage not in INSTEAD), "all", *(f"{stage}, instead" for stage in INSTEAD))
        )
        and rates.command in table
    )
    one, many = (predict(rates, 1e12, Machines(nodes=nodes, workers=16)) for nodes in (1, 8))
    assert all(few.seconds > more.seconds > few.seconds / 8 for few, more in zip(one, many)), "what one process does alone stays"


def test_text_of_more_lines_than_dedup_takes_is_to_be_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--terabytes", "0.9"]) == 0 and "parts" not in capsys.readouterr().out
    assert main(["--terabytes", "5"]) == 0
    assert (
        "dedup decides on 4.29 billion lines at most, and these are about 22.2 billion: give it the text in 6 parts"
        in capsys.readouterr().out
    )


def test_mistakes_are_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text(json.dumps({"format": 7}))
    for words, sentence in (
        ([], "give either --terabytes N to plan, or --measure"),
        (["--terabytes", "-1"], "--terabytes is -1; expected a number above 0"),
        (["--terabytes", "1", "--file-gb", "0"], "--file-gb is 0; expected a number above 0"),
        (["--terabytes", "1", "--rates", str(tmp_path / "rates.json")], "holds no rates of data_prep.plan"),
        (["--measure", "a.jsonl"], "--measure needs --tokenizer DIR and --output FILE"),
        (["--measure", "a.jsonl", "--tokenizer", "t", "--output", str(tmp_path / "rates.json")], "exists; remove it"),
        (["--measure", "a.jsonl", "--tokenizer", "t", "--output", str(tmp_path / "no/rates.json")], "/no of --output does not exist"),
        (
            ["--measure", "a.jsonl", "--tokenizer", "t", "--output", str(tmp_path / "r"), "--work", "no"],
            "folder no of --work does not exist",
        ),
        (["--measure", "a.jsonl", "--nodes", "2"], "--measure does not use --nodes; leave it out"),
        (["--terabytes", "1", "--output", "r.json", "--work", "w"], "--terabytes does not use --work, --output; leave it out"),
        (["--terabytes", "1e9"], "--terabytes is 1e.09; expected at most 1,000,000"),
        (["--terabytes", "1", "--workers", "1000000"], "--workers is 1e.06; expected at most 10,000"),
        (["--terabytes", "1", "--memory", "0.01"], "--memory is 0.01 GiB; dedup takes at least 0.0625 for each worker"),
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


@pytest.mark.long
def test_rates_are_measured_for_real(
    tmp_path: Path, tokenizer_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All stages run, and the rates say what became of a sample of which a fifth are copies; the plan takes them."""
    random = np.random.default_rng(0)
    syllables = ["be", "mo", "sta", "se", "ri", "no", "da", "ta", "ja", "vo", "kle", "pu", "zi"]
    words = ["".join(random.choice(syllables, 4)) for _ in range(20_000)]  # of fewer no vocabulary of 2,000 is made
    texts = [" ".join(random.choice(words, 90)).capitalize() + "." for _ in range(4200)]
    texts = [texts[number - 4] if number % 5 == 4 else text for number, text in enumerate(texts)]
    source, output, work = tmp_path / "text.jsonl", tmp_path / "rates.json", tmp_path / "work"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    work.mkdir()
    monkeypatch.chdir(tmp_path)  # the commands are run elsewhere
    arguments = ["--measure", str(source), "--tokenizer", str(tokenizer_dir), "--megabytes", "3", "--work", "work"]
    assert main([*arguments, "--output", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(STAGES) and all(" MB a processor second, " in line for line in lines)
    rates = Rates.read(output)
    by_stage = {rate.stage: rate for rate in rates.stages}
    kept = by_stage["clean"].kept_per_byte * by_stage["dedup"].kept_per_byte
    assert by_stage["collect"].kept_per_byte == 1 and kept == pytest.approx(0.8, abs=0.01), "copies in one file are clean's, others dedup's"
    sampled = np.cumsum([len(text.encode()) for text in texts])
    number = int(np.searchsorted(sampled, 3_000_000)) + 1
    assert rates.documents_per_byte == rates.lines_per_byte == number / sampled[number - 1]
    assert rates.short_lines_per_byte == 0 and rates.sample_bytes == sampled[number - 1]
    assert rates.distinct_words[0] > 10_000 and 0 <= rates.distinct_words[1] < 0.5, "each word soon comes again, but at its end"
    assert all(
        rate.peak_bytes > 2**25 and rate.start_seconds + rate.seconds_per_gb > 0 and rate.output_per_byte > 0 for rate in rates.stages
    )
    assert by_stage["dedup"].scratch_per_byte > 0.2, "two passes leave the hashes of n-grams on disk meanwhile"
    assert rates.command.startswith("python -m data_prep.plan --measure ") and "--megabytes 3 " in rates.command
    assert not list(work.iterdir()), "samples and outputs are removed"
    assert main(["--terabytes", "0.001", "--rates", str(output)]) == 0
    assert f"Rates: {rates.sample}; {rates.machine}" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"exists; remove it or choose another --output$"):
        main([*arguments, "--output", str(output)])
