"""Scores of checkpoints beside the curves of their run: read back by the libraries that wrote them."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from eval.harness import main
from eval.running.run_logs import STEP_AXIS, log_results
from recipes.rules.compose import compose_recipe
from recipes.runs.run_dir import sync_command, wandb_id
from tests.eval.made_results import make_result, make_results
from tests.eval.tiny_models import tiny_llama, tiny_tokenizer


def make_run(run_dir: Path, *options: str) -> Path:
    run_dir.mkdir()
    (run_dir / "recipe.json").write_text(json.dumps(asdict(compose_recipe("demo", list(options)))))
    return run_dir


def in_tensorboard(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run_dir / "tensorboard/evaluation"))
    found.Reload()
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in found.Tags()["scalars"]}


def in_wandb(file: Path) -> list[dict[str, float]]:
    """Rows of history of an offline run."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
    return rows


def _records(data: bytes, header: int = 7, block: int = 32768) -> Iterator[bytes]:
    """Records of a LevelDB log: blocks of pieces with checksum (4 bytes), length (2) and kind (1: whole, first, middle, last)."""
    place, parts = header, b""
    while place + header <= len(data):
        if block - place % block < header:  # what is left of a block is too short for a piece
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_checkpoints_of_the_run_and_no_others_by_step(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", "run.wandb_project=tests")
    results = make_results(tmp_path / "results", steps=(100, 200), items=20)  # of two trainings, and their source
    told = log_results(run_dir, results, {"focus-200"})
    assert told == [f"2 checkpoints in {run_dir}/tensorboard/evaluation", f"for Weights & Biases in {run_dir}/wandb, project tests"]
    make_result(results, "focus-400", "focus", 400, skill=0.9, items=20)
    assert log_results(run_dir, results, {"focus-400"})[0].startswith("3 checkpoints")
    expected = [json.loads((results / f"focus-{step}/result.json").read_text()) for step in (100, 200, 400)]
    drawn = in_tensorboard(run_dir)
    for name, of in (
        ("sl_rte_gen/acc", lambda result: result["tasks"]["sl_rte_gen"]["metrics"]["acc"]["value"]),
        ("sl_rte_gen/acc/low", lambda result: result["tasks"]["sl_rte_gen"]["metrics"]["acc"]["low"]),
        ("sl/bits_per_byte", lambda result: result["texts"]["sl"]["bits_per_byte"]),
    ):
        assert drawn[f"evaluation/{name}"] == [(step, pytest.approx(of(result))) for step, result in zip((100, 200, 400), expected)]
    (file,) = (run_dir / "wandb").glob(f"offline-run-*-{wandb_id(run_dir)}-evaluation/*.wandb")
    assert re.fullmatch(sync_command(run_dir).removeprefix("wandb sync ").replace("*", ".*"), str(file.parent)), "sent with the training"
    rows = in_wandb(file)
    assert [row[STEP_AXIS] for row in rows] == [100, 200, 400]
    assert [row["evaluation/sl/bits_per_byte"] for row in rows] == pytest.approx(
        [result["texts"]["sl"]["bits_per_byte"] for result in expected]
    )
    assert not list((run_dir / "tensorboard").glob(".*"))


def test_the_harness_logs_and_a_run_that_may_only_be_read_is_no_failure(save_checkpoint, tmp_path: Path, capsys) -> None:
    run_dir = make_run(tmp_path / "run")
    folder = save_checkpoint("step_0000010", tiny_llama(), tiny_tokenizer(), step=10, method="focus")
    words = [
        "--model",
        str(folder),
        "--tasks",
        "completion_sl",
        "--limit",
        "4",
        "--output",
        str(tmp_path / "results"),
        "--run",
        str(run_dir),
    ]
    assert main(words) == 0
    assert f"logged: 1 checkpoints in {run_dir}/tensorboard/evaluation\n" in capsys.readouterr().err
    assert [step for step, _ in in_tensorboard(run_dir)["evaluation/completion_sl/acc"]] == [10] and not (run_dir / "wandb").exists()
    (run_dir / "tensorboard").rename(run_dir / "kept")
    (run_dir / "tensorboard").write_text("")  # as root, a file in the way stands for a directory without rights
    assert main(words) == 0
    assert f"logged: nothing is logged with {run_dir}: [Errno 17]" in capsys.readouterr().err
    with pytest.raises(ValueError, match=rf"^--run {re.escape(str(tmp_path))} has no recipe.json; expected the output of"):
        main([*words[:-1], str(tmp_path)])
