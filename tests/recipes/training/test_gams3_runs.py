"""The stages of GaMS3 in tiny form: at 4,096 tokens with every feature on together, killed, and gone on with at another layout."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TEXT, Inputs
from tests.gloo import run_on_gloo
from tests.processes import call_command

LENGTH, STEPS = 4096, 5
SHAPE = ["--num-layers", "6", "--hidden-size", "32", "--num-attention-heads", "4", "--num-key-value-heads", "2", "--ffn-size", "64"]
NARROW = {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 256}
ALL_AT_ONCE = ["parallel.devices_per_node=4", "parallel.tensor_parallel_size=2", "parallel.context_parallel_size=2"]
TWO_REPLICAS = [
    *("parallel.devices_per_node=2", "parallel.tensor_parallel_size=1", "parallel.context_parallel_size=1"),
    "parallel.sequence_parallel=false",
]


@pytest.fixture(scope="module")
def arguments(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """gams3/base_cpt with all that it has, the ramp-up that its parser did not know, and two of its corpora by name."""
    base = tmp_path_factory.mktemp("gams3")
    (base / "config.json").write_text(json.dumps(NARROW))
    options = ["--hf-config", base / "config.json", *SHAPE, "--max-positions", LENGTH, "--tokenizer", inputs.tokenizer]
    call_command("conversion.new_model", *options, "--output", base / "hf")
    call_command("conversion.hf_to_nemo", "--input", base / "hf", "--output", base / "nemo")
    for name in ("kas", "metafida"):
        call_command("data_prep.to_megatron", "--input", TEXT, "--tokenizer", inputs.tokenizer, "--bos", "yes", "--output", base / name)
    return [
        *("--recipe", "gams3/base_cpt", "+size=tiny", "+batch=gams3_ramp_up", f"model.checkpoint={base / 'nemo'}"),
        *(f"data.train=[{base / 'metafida'},{base / 'kas'}]", "data.blend={kas: 0.3, metafida: 0.7}", f"data.validation={base / 'kas'}"),
        *(
            f"data.sequence_length={LENGTH}",
            f"schedule.max_steps={STEPS}",
            "schedule.learning_rate=1e-2",
            "schedule.min_learning_rate=1e-3",
        ),
        *("schedule.global_batch_size=4", "schedule.micro_batch_size=1", "schedule.ramp_up.start_batch_size=2"),
        *("schedule.ramp_up.batch_size_increment=2", "schedule.ramp_up.samples=4", "recomputation.num_layers=4"),
        *("run.checkpoint_every_steps=1000", "run.checkpoint_every_minutes=0.0001", "run.validate_every_steps=5"),
    ]


def run(arguments: list[str], run_dir: Path, layout: list[str], *, killed_after: int | None = None) -> list[dict[str, Any]]:
    """Train on as many ranks as the layout has; the records of its metrics."""
    function, more = ("command", {}) if killed_after is None else ("killed_command", {"run_dir": str(run_dir), "step": killed_after})
    run_on_gloo(
        f"tests.recipes.training_ranks:{function}",
        world_size=int(layout[0].partition("=")[2]),
        directory=run_dir.with_suffix(f".logs{len(layout)}"),
        timeout_seconds=900,
        initialize=False,
        arguments=[*arguments, *layout, "--output", str(run_dir)],
        **more,
    )
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_everything_at_once_killed_and_resumed_at_another_layout(arguments: list[str], tmp_path: Path) -> None:
    """Tensor x context parallel 2 x 2, sequence parallel, documents apart, growing batches, layers computed again: as on two plain replicas."""
    whole = run(arguments, tmp_path / "whole", ALL_AT_ONCE)
    losses = [record["loss"] for record in whole if "loss" in record]
    assert len(losses) == STEPS and all(map(math.isfinite, losses)) and len({round(loss, 3) for loss in losses}) == STEPS
    recorded = json.loads((tmp_path / "whole/recipe.json").read_text())
    assert (
        recorded["data"]["document_mask"] and recorded["parallel"]["sequence_parallel"] and recorded["recomputation"]["method"] == "block"
    )
    tokens = [record["tokens"] for record in whole if "loss" in record]
    assert [after - before for before, after in zip(tokens, tokens[1:])] == [2 * LENGTH, *[4 * LENGTH] * (STEPS - 2)], (
        "two batches of 2, then 4"
    )
    kept = sorted(path.name for path in (tmp_path / "whole/checkpoints").glob("step_*"))
    assert kept == [f"step_000000{step}" for step in range(STEPS - 2, STEPS + 1)], "saved by the clock behind every step, three kept"
    with pytest.raises(AssertionError):  # of the ranks, which end with the one that is killed
        run(arguments, tmp_path / "killed", ALL_AT_ONCE, killed_after=2)
    before = [json.loads(line)["step"] for line in (tmp_path / "killed/metrics.jsonl").read_text().splitlines()]
    assert max(before) < STEPS, "it was killed on its way"
    resumed = run(arguments, tmp_path / "killed", TWO_REPLICAS)
    assert [record["loss"] for record in resumed if "loss" in record] == pytest.approx(losses, abs=1e-5)
    ours, theirs = (
        [record["validation_bits_per_byte"] for record in records if "validation_bits_per_byte" in record] for records in (whole, resumed)
    )
    assert len(ours) == 2 and ours == pytest.approx(theirs, abs=1e-5), (
        "held-out text at the same length, before the first step and at the end"
    )
