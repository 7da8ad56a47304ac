"""Every published run in its tiny form, trained on two processes and exported."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from recipes.rules.base_models import BASE_MODELS
from recipes.rules.compose import compose_recipe
from recipes.runs.run_dir import METRICS_NAME
from recipes.sources import published_recipes
from tests.conftest import Inputs
from tests.processes import call_command
from tests.recipes.tiny_runs import export, train_tiny

SHAPE = ["--num-layers", "6", "--hidden-size", "32", "--num-attention-heads", "4", "--ffn-size", "64", "--max-positions", "64"]
UNGROUPED = ("opt", "bert", "roberta", "xlm-roberta")
LOW_RESOURCE = [name for name in published_recipes() if name.startswith("low_resource/") and not name.endswith("_lapt")]
RUNS = [
    *((name, ()) for name in published_recipes()),
    *((name, (f"procedure={procedure}",)) for name in LOW_RESOURCE for procedure in ("lora", "2_stage")),
    *((name, ("objective=clm",)) for name in LOW_RESOURCE),
]


@dataclass(frozen=True)
class Checkpoints:
    """Tiny checkpoints, each made when it is first asked for."""

    tokenizer: Path
    base: Path

    def hf(self, family: str, *, tied: bool) -> Path:
        """On the Hugging Face side."""
        made = self.base / f"{family}_{tied}_hf"
        if not made.exists():
            grouped = [] if family in UNGROUPED else ["--num-key-value-heads", "2"]
            options = ["--model-type", family, *SHAPE, *grouped, *([] if tied else ["--untied"])]
            call_command("conversion.new_model", *options, "--tokenizer", self.tokenizer, "--output", made)
        return made

    def nemo(self, family: str, *, tied: bool) -> Path:
        made = self.base / f"{family}_{tied}"
        if not made.exists():
            call_command("conversion.hf_to_nemo", "--input", self.hf(family, tied=tied), "--output", made)
        return made


@pytest.fixture(scope="session")
def checkpoints(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(inputs.tokenizer, tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="session")
def trained() -> dict[str, Path]:
    """Directories of runs by what they are runs of."""
    return {}


@pytest.mark.long
@pytest.mark.parametrize(("name", "choices"), RUNS, ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_it_trains_and_is_exported(
    name: str,
    choices: tuple[str, ...],
    inputs: Inputs,
    small_data: Path,
    one_pass_data: Path,
    data_with_bos: Path,
    pairs: Path,
    factorised: Path,
    checkpoints: Checkpoints,
    encoder: Inputs,
    trained: dict[str, Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Recipes that come to the same run, of the same checkpoint and data, are trained once."""
    recipe = compose_recipe(name, choices)
    if recipe.objective == "masked":  # its tokenizer needs a mask
        inputs, small_data, one_pass_data, checkpoints = encoder, encoder.data, encoder.data, Checkpoints(encoder.tokenizer, tmp_path)
    published = BASE_MODELS[recipe.model.base or ""]
    tied = recipe.model.output_layer == "tied" or (recipe.model.output_layer is None and bool(published.get("tie_word_embeddings")))
    overrides = [f"model.checkpoint={checkpoints.nemo(published['model_type'], tied=tied)}", *choices]
    if recipe.data.shares:
        overrides += [f"data.train=[{small_data},{inputs.data}]", "data.languages=[it,en]"]
    if recipe.model.factorised_size is not None:
        overrides.append(f"model.factors={factorised}/hf/factors.safetensors")
    data = pairs if name == "gams/inz" else one_pass_data if recipe.schedule.epochs == 1 else small_data
    if recipe.data.bos:
        data, inputs = data_with_bos, replace(inputs, held_out=data_with_bos)
    tiny = compose_recipe(name, ["+size=tiny", f"data.train=[{data}]", *overrides])
    same = repr(replace(tiny, name="", model=replace(tiny.model, method=None)))
    if same not in trained:
        run = tmp_path_factory.mktemp("run") / "run"  # `tmp_path` goes with its test
        train_tiny(name, run, inputs, data, *overrides)
        trained[same] = run
    run = trained[same]
    losses = [record["loss"] for record in map(json.loads, (run / METRICS_NAME).read_text().splitlines()) if "loss" in record]
    recorded = json.loads((run / "recipe.json").read_text())
    assert len(losses) == recorded["schedule"]["max_steps"]
    assert all(map(math.isfinite, losses))
    [*_, last] = sorted((run / "checkpoints").glob("step_*"))
    assert all(tensor.isfinite().all() for tensor in export(last, tmp_path / "hf").values())


@pytest.mark.long
@pytest.mark.parametrize("what", ["adapters and two heads", "factors"])
def test_what_a_run_adds_goes_on_at_another_layout(
    what: str, inputs: Inputs, small_data: Path, factorised: Path, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """Saved at tensor parallel 2, resumed at 1: the losses of a run without a break, to float32's last digits."""
    if what == "factors":
        name = "ofa/latent_100"
        overrides = [f"model.checkpoint={checkpoints.nemo('opt', tied=True)}", f"model.factors={factorised}/hf/factors.safetensors"]
    else:
        name = "low_resource/llama2"
        overrides = [f"model.checkpoint={checkpoints.nemo('llama', tied=False)}", "procedure=lora", "lora.dropout=0", "schedule.epochs=4"]
    overrides += ["schedule.max_steps=4", "run.checkpoint_every_steps=2", "schedule.warmup_steps=1", "schedule.learning_rate=1e-2"]
    whole = train_tiny(name, tmp_path / "whole", inputs, small_data, *overrides)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed/checkpoints/step_0000004")
    resumed = train_tiny(name, tmp_path / "resumed", inputs, small_data, *overrides, "parallel.tensor_parallel_size=1")
    losses = [[record["loss"] for record in records if "loss" in record] for records in (whole, resumed)]
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sava/llama", "gams/inz"])
def test_shares_and_answers_are_the_same_over_a_pipeline(
    name: str, inputs: Inputs, small_data: Path, pairs: Path, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """As `test_tiny_runs.py` shows of passes, adapters and two heads."""
    family = "llama" if name == "sava/llama" else "opt"
    overrides = [f"model.checkpoint={checkpoints.nemo(family, tied=False)}", "model.hidden_dropout=0", "schedule.max_steps=4"]
    if name == "sava/llama":
        overrides += [f"data.train=[{small_data},{inputs.data}]", "data.languages=[it,en]"]
    else:
        overrides.append("lora.dropout=0")
    pipeline = ("parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=2")
    data = small_data if name == "sava/llama" else pairs
    found = [train_tiny(name, tmp_path / str(len(layout)), inputs, data, *overrides, *layout) for layout in ((), pipeline)]
    losses = [[record["loss"] for record in records if "loss" in record] for records in found]
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
