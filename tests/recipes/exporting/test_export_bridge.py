"""Exported recipes in Megatron-Bridge's own loop and before Megatron-LM's own parser; needs the environment of `make test-bridge`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Inputs
from tests.processes import ROOT, call_command, free_port
from tests.recipes.tiny_runs import export, train_on_ranks

if "SCION_BRIDGE" not in os.environ:
    pytest.skip("Megatron-Bridge is not installed here; run `make test-bridge`", allow_module_level=True)

BRIDGE = Path(os.environ["SCION_BRIDGE"])  # its Python
SHAPE = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--num-key-value-heads", "2", "--max-positions", "64"]
FAMILIES = ("opt", "llama", "mistral", "qwen2", "qwen3", "gemma2")
STEPS, TIMEOUT_SECONDS = 10, 400
_LOSS = re.compile(r"iteration +(\d+)/.*learning rate: (\S+) .*lm loss: (\S+) .*grad norm: (\S+)")
# What differs between the two: version of Megatron-core, order of some sums.  The printed losses have seven digits.
TOLERANCE = 2e-6

RUNS = {
    # Two ranks that share every layer, an odd vocabulary with padding rows, two data sets with shares.
    "tensor": ("parallel.devices_per_node=2", "parallel.tensor_parallel_size=2", "data.blend={data: 3, held_out: 1}"),
    # Two ranks that share the batch and the optimizer's state, frozen parts, tables with a rate of their own, a rate that is held.
    "frozen": (
        "parallel.devices_per_node=2",
        "parallel.tensor_parallel_size=1",
        "schedule.micro_batch_size=2",
        "freeze=[{frozen: [bottom_1_layers, final_norm]}]",
        "schedule.embedding_learning_rate=2e-3",
        "schedule.embedding_min_learning_rate=1e-3",
        "schedule.decay_style=warmup_hold",
        "schedule.hold_steps=3",
        "schedule.constant_steps=1",
    ),
    # Two stages of the pipeline.
    "pipeline": (
        "parallel.devices_per_node=2",
        "parallel.tensor_parallel_size=1",
        "parallel.pipeline_parallel_size=2",
        "schedule.micro_batch_size=4",
    ),
}


@dataclass(frozen=True)
class Step:
    """What a step of either engine was."""

    loss: float
    gradient_norm: float


@dataclass(frozen=True)
class Trained:
    """The same run in both engines."""

    base: Path
    nemo: Mapping[int, Step]
    bridge: Mapping[int, Step]


@pytest.fixture(scope="module")
def llama(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in NeMo's layout, the Hugging Face side beside it."""
    base = tmp_path_factory.mktemp("llama")
    call_command(
        "conversion.new_model", "--model-type", "llama", *SHAPE, "--tokenizer", inputs.tokenizer, "--seed", 3, "--output", base / "hf"
    )
    call_command("conversion.hf_to_nemo", "--input", base / "hf", "--output", base / "nemo")
    return base / "nemo"


@pytest.fixture(scope="module", params=RUNS)
def trained(request: pytest.FixtureRequest, llama: Path, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    base = tmp_path_factory.mktemp(request.param)
    data = [inputs.data, inputs.held_out] if request.param == "tensor" else [inputs.data]
    recipe = ["--recipe", "demo_adapt", f"model.checkpoint={llama}", f"data.train=[{','.join(map(str, data))}]", "data.sequence_length=48"]
    recipe += [f"schedule.max_steps={STEPS}", "schedule.warmup_steps=2", f"run.checkpoint_every_steps={STEPS}", "run.log_every_steps=1"]
    recipe += RUNS[request.param]
    records = [record for record in train_on_ranks(base / "nemo_run", *recipe) if "loss" in record]
    call_command("recipes.export", *recipe, "--to", "megatron-bridge", "--output", base / "export")
    return Trained(
        base,
        {record["step"]: Step(record["loss"], record["gradient_norm"]) for record in records},
        train_with_bridge(base / "export", num_processes=2),
    )


def train_with_bridge(folder: Path, *overrides: str, num_processes: int) -> dict[int, Step]:
    """What the `train.py` of an export prints of its steps, on as many ranks."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(num_processes), "--master-port", str(free_port())]
    done = subprocess.run(
        [BRIDGE, *launcher, ROOT / "tests/recipes/bridge_on_cpu.py", folder / "train.py", *overrides],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-4000:]}"
    return {int(found[1]): Step(float(found[3]), float(found[4])) for found in map(_LOSS.search, done.stdout.splitlines()) if found}


def test_losses_are_nemo_s_over_ten_steps(trained: Trained) -> None:
    """The same samples in the same order: both engines draw them with Megatron's own data set, from the same seed and number of samples."""
    assert trained.nemo.keys() == trained.bridge.keys() == set(range(1, STEPS + 1))
    assert len({step.loss for step in trained.nemo.values()}) == STEPS
    for number, step in trained.nemo.items():
        found = trained.bridge[number]
        assert found.loss == pytest.approx(step.loss, abs=TOLERANCE), (number, step, found)
        assert found.gradient_norm == pytest.approx(step.gradient_norm, abs=6e-4), (
            number,
            step,
            found,
        )  # of which three digits are printed


def test_what_bridge_has_trained_comes_back_as_nemo_s(trained: Trained, llama: Path, tmp_path: Path) -> None:
    call_command(
        "conversion.change_layout",
        "--input",
        trained.base / "export/run",
        "--to",
        "nemo",
        "--context",
        llama,
        "--output",
        tmp_path / "back",
    )
    before = load_file(llama.with_name("hf") / "model.safetensors")
    bridge, nemo = (
        export(tmp_path / "back", tmp_path / "hf"),
        export(trained.base / f"nemo_run/checkpoints/step_{STEPS:07d}", tmp_path / "nemo_hf"),
    )
    assert before.keys() == bridge.keys() == nemo.keys()
    frozen = json.loads((trained.base / "export/parameters.json").read_text())["frozen"]
    assert bool(frozen) == (trained.base.name.startswith("frozen"))
    for name, tensor in nemo.items():
        assert (bridge[name] - tensor).abs().max() < 1e-5, (
            name
        )  # Adam's first steps turn the rounding of tiny gradients into parts of the rate
        is_frozen = frozen and (".layers.0." in name or name == "model.norm.weight")
        assert torch.equal(bridge[name], before[name]) == bool(is_frozen), name


def test_megatron_lm_s_own_parser_knows_every_argument(llama: Path, inputs: Inputs, tmp_path: Path) -> None:
    options = [
        f"data.train=[{inputs.data},{inputs.held_out}]",
        f"data.validation={{sl: {inputs.held_out}, en: {inputs.held_out}}}",
        "data.sequence_length=48",
        "parallel.devices_per_node=8",
        "parallel.tensor_parallel_size=2",
        "parallel.sequence_parallel=true",
        "parallel.context_parallel_size=2",
        "schedule.micro_batch_size=4",
        "precision=bf16",
        "recomputation={granularity: full}",
        "schedule.embedding_learning_rate=2e-3",
        "schedule.decay_style=wsd",
        "schedule.decay_steps=20",
        "schedule.wsd_decay_style=minus_sqrt",
        "run.asynchronous_save=true",
    ]
    call_command(
        "recipes.export",
        "--recipe",
        "demo_adapt",
        f"model.checkpoint={llama}",
        *options,
        "--to",
        "megatron-lm",
        "--output",
        tmp_path / "lm",
    )
    arguments = (tmp_path / "lm/train.sh").read_text().partition("arguments=(\n")[2].partition("\n)\n")[0]
    program = (
        "import argparse, json, shlex, sys\n"
        "from megatron.training.arguments import add_megatron_arguments\n"
        "parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False))\n"
        "found = vars(parser.parse_args(shlex.split(sys.stdin.read())))\n"
        "print('FOUND', json.dumps(found, default=str))\n"
    )
    done = subprocess.run([BRIDGE, "-c", program], input=arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.partition("FOUND ")[2])
    expected = {"num_layers": 2, "num_query_groups": 2, "padded_vocab_size": 640, "swiglu": True, "tensor_model_parallel_size": 2}
    expected |= {"context_parallel_size": 2, "sequence_parallel": True, "bf16": True, "recompute_method": "uniform", "lr": 1e-3}
    expected |= {"decoupled_lr": 2e-3, "lr_wsd_decay_iters": 20, "lr_decay_style": "WSD", "eval_iters": 1, "seq_length": 48}
    assert {key: found[key] for key in expected} == expected
    assert len(found["train_data_path"]) == len(found["valid_data_path"]) == 4


def test_bridge_s_own_classes_know_every_key(inputs: Inputs, tmp_path: Path) -> None:
    """Read strictly: a key that no field has is an error there."""
    for family in FAMILIES:
        shape = SHAPE if family != "opt" else [*SHAPE[:6], "--max-positions", "48"]  # of which its position table has as many rows
        call_command(
            "conversion.new_model", "--model-type", family, *shape, "--tokenizer", inputs.tokenizer, "--output", tmp_path / family / "hf"
        )
        call_command("conversion.hf_to_nemo", "--input", tmp_path / family / "hf", "--output", tmp_path / family / "nemo")
        options = [f"model.checkpoint={tmp_path / family / 'nemo'}", f"data.train=[{inputs.data}]", f"data.validation={inputs.held_out}"]
        options += ["data.sequence_length=48", "precision=bf16", "recomputation={granularity: selective}", "run.wandb_project=null"]
        call_command(
            "recipes.export", "--recipe", "demo_adapt", *options, "--to", "megatron-bridge", "--output", tmp_path / family / "export"
        )
    program = (
        "import sys\n"
        "from tests.recipes.bridge_on_cpu import prepare\n"
        "prepare()\n"
        "from megatron.bridge.training.config import ConfigContainer\n"
        "from megatron.training.config.instantiate_utils import InstantiationMode\n"
        "for path in sys.argv[1:]:\n"
        "    config = ConfigContainer.from_yaml(path, mode=InstantiationMode.STRICT)\n"
        "    print('READ', type(config.model).__name__, config.train.global_batch_size, config.mixed_precision)\n"
    )
    paths = [tmp_path / family / "export/config.yaml" for family in FAMILIES]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [BRIDGE, "-c", program, *paths], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read = [line for line in done.stdout.splitlines() if line.startswith("READ")]
    assert len(read) == len(FAMILIES) and all(line.endswith(" 8 bf16_mixed") for line in read)
