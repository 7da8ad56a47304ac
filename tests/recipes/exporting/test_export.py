from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from common.artifacts import read_manifest
from conversion.families import FAMILIES
from recipes.exporting.bridge_config import bridge_config
from recipes.exporting.common import decay_of, training_data
from recipes.exporting.limits import export_differences, refusals
from recipes.exporting.lm_arguments import lm_arguments, lm_script
from recipes.numbers import arithmetic
from recipes.rules.checks import check_run
from recipes.rules.compose import compose_recipe, recipe_names
from recipes.rules.inputs import RunInputs, read_inputs
from recipes.rules.published import published_inputs
from recipes.rules.schema import Recipe
from tests.conftest import Inputs
from tests.conversion.new_families import save_plain
from tests.conversion.tiny_families import PUBLISHED as BASE_FAMILIES
from tests.processes import call_command

TARGETS = ("megatron-bridge", "megatron-lm")
PUBLISHED_RUNS = [name for name in recipe_names() if "/" in name]
PLACES = {"checkpoint": Path("/out/checkpoint"), "run_dir": Path("/out/run"), "tokenizer": Path("/out/tokenizer")}
# Which published runs the other programs cannot train as they are, by what their refusals begin with.
REFUSED = {
    "megatron-bridge": {
        "data.document_mask": {"gams3/base_cpt", "gams3/long_cpt", "gams3/parallel_alignment"},
        "lora": {"gams/inz", "low_resource/gemma2_lapt", "low_resource/llama2_lapt", "low_resource/llama3_lapt"},
    }
}


@functools.cache
def published(name: str) -> tuple[Recipe, RunInputs]:
    recipe, inputs = published_inputs(compose_recipe(name))
    return check_run(recipe, inputs), inputs


@pytest.mark.some(14)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PUBLISHED_RUNS)
def test_every_published_run_is_exported_or_refused_with_reasons(name: str, target: str) -> None:
    recipe, inputs = published(name)
    found = refusals(recipe, inputs, target=target)
    for sentence in (*found, *export_differences(recipe, target=target, num_padding_rows=1)):
        assert "\n" not in sentence and 30 < len(sentence) < 300 and not sentence.endswith(".")
    for beginning, names in REFUSED.get(target, {}).items():
        assert any(sentence.startswith(beginning) for sentence in found) == (name in names), (beginning, found)
    if found:
        return
    if target == "megatron-bridge":
        config = bridge_config(recipe, inputs, **PLACES)
        assert yaml.safe_load(yaml.safe_dump(config)) == config
        assert config["train"]["train_iters"] == recipe.total_steps
        assert config["model"]["num_layers"] == inputs.model["num_layers"]
    else:
        arguments = dict(lm_arguments(recipe, inputs, **PLACES))
        assert arguments["--train-iters"] == (str(recipe.total_steps),)
        assert arguments["--num-layers"] == (str(inputs.model["num_layers"]),)


def test_some_published_runs_go_to_each_program() -> None:
    """Megatron-LM's arguments have neither OPT's activation nor Mistral's windows, so few of the published models."""
    exported = {target: [name for name in PUBLISHED_RUNS if not refusals(*published(name), target=target)] for target in TARGETS}
    assert len(exported["megatron-bridge"]) >= 7 and "sava/llama" in exported["megatron-lm"], exported
    second_head = refusals(*published("low_resource/llama2"), target="megatron-bridge")
    assert second_head == [
        "objective is two_tokens, but Megatron-Bridge trains only with the next-token loss; only objective=next_token can be exported"
    ]


STYLES: dict[str, dict[str, Any]] = {
    "cosine": {"constant_steps": 5},
    "linear": {"constant_steps": 0},
    "inverse_square_root": {"constant_steps": 0, "min_learning_rate": 4e-4},
    **{
        f"wsd {shape}": {"decay_style": "wsd", "decay_steps": 12, "wsd_decay_style": shape, "constant_steps": 3}
        for shape in ("linear", "cosine", "exponential", "minus_sqrt")
    },
    "warmup_hold": {"hold_steps": 9, "constant_steps": 4},
    "fixed": {"min_learning_rate": 0.0},
}


@pytest.mark.parametrize("style", STYLES)
def test_megatron_s_own_scheduler_gives_the_rates_of_the_recipe(style: str) -> None:
    """At every step of a run, counted in samples as Megatron does."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    recipe = compose_recipe(
        "demo_adapt", ["model.checkpoint=none", "data.train=[none]", "schedule.max_steps=40", "schedule.warmup_steps=7"]
    )
    recipe = replace(recipe, schedule=replace(recipe.schedule, **{"decay_style": style, **STYLES[style]}))
    schedule, decay, batch = recipe.schedule, decay_of(recipe), recipe.schedule.global_batch_size

    class Optimizer:
        param_groups: list[dict[str, Any]] = [{}]  # noqa: RUF012

    scheduler = OptimizerParamScheduler(
        Optimizer(),  # type: ignore[arg-type]
        init_lr=0.0,
        max_lr=schedule.learning_rate,
        min_lr=schedule.min_learning_rate,
        lr_warmup_steps=schedule.warmup_steps * batch,
        lr_decay_steps=decay.end * batch,
        lr_decay_style=decay.style,
        start_wd=schedule.weight_decay,
        end_wd=schedule.weight_decay,
        wd_incr_steps=40 * batch,
        wd_incr_style="constant",
        wsd_decay_steps=None if decay.anneal_steps is None else decay.anneal_steps * batch,
        lr_wsd_decay_style=decay.anneal_style,
    )
    for step in range(40):
        expected = arithmetic.learning_rate(step, schedule, steps=40)
        assert Optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-9, abs=1e-15), step
        scheduler.step(batch)


REFUSALS = {
    "lora": (["+procedure=lora"], "lora trains this project's adapters"),
    "mask": (["data.document_mask=true"], "data.document_mask (intra-document masking) needs"),
    "until": (["freeze=[{frozen: [layers], until_step: 5}]"], "freeze[0] ends at step 5, but Megatron-Bridge freezes for the whole run"),
    "ramp": (
        ["schedule.ramp_up={start_batch_size: 4, batch_size_increment: 4, samples: 32}", "schedule.micro_batch_size=4"],
        "schedule.ramp_up changes the batch size",
    ),
    "decay": (["schedule.embedding_weight_decay=0.1"], "schedule.embedding_weight_decay gives the embeddings a separate weight decay"),
    "square root": (["schedule.decay_style=inverse_square_root", "schedule.warmup_steps=0"], "is inverse_square_root without warmup"),
    "no decay": (["schedule.warmup_steps=20", "schedule.constant_steps=80"], "no decay steps between warmup and tail"),
    "positions": (["data.sequence_length=32"], "data.sequence_length is 32, but the model's position table has 64 rows"),
}


def options(inputs: Inputs) -> list[str]:
    return ["--recipe", "demo_adapt", f"model.checkpoint={inputs.checkpoint}", f"data.train=[{inputs.data}]", "data.sequence_length=64"]


@pytest.mark.parametrize("feature", REFUSALS)
def test_what_would_be_another_run_is_refused_before_anything_is_written(feature: str, inputs: Inputs, tmp_path: Path) -> None:
    overrides, sentence = REFUSALS[feature]
    with pytest.raises(ValueError) as error:
        call_command("recipes.export", *options(inputs), *overrides, "--to", "megatron-bridge", "--output", tmp_path / "out")
    assert str(error.value).startswith("recipe demo_adapt for Megatron-Bridge cannot run: ") and sentence in str(error.value)
    assert not list(tmp_path.iterdir())


def test_megatron_lm_has_no_words_for_relu_and_frozen_parts(inputs: Inputs, tmp_path: Path) -> None:
    recipe = compose_recipe("demo_adapt", [*options(inputs)[2:], "freeze=[{frozen: [embeddings]}]"])
    read = read_inputs(recipe)
    assert refusals(check_run(recipe, read), read, target="megatron-lm") == [
        "freeze[0] has no argument in Megatron-LM, which trains all parameters; export to megatron-bridge, or set freeze=[]",
        "the model needs activation relu, which this export cannot express for Megatron-LM; export to megatron-bridge instead",
    ]


@pytest.mark.parametrize(
    ("name", "lacking", "arguments"),
    [
        ("olmo-2-7b", "norms over all heads of queries and keys", "post_norms, norms_of_all_heads"),
        ("apertus-8b", "the activation xIELU", "activation xielu"),
        (
            "granite-3.3-2b",
            "multipliers of embeddings, scores, branches and logits",
            "embedding_multiplier, attention_multiplier, residual_multiplier, logits_scaling",
        ),
    ],
)
def test_families_that_neither_program_computes_are_refused_by_both(name: str, lacking: str, arguments: str) -> None:
    """Neither sends to the other, and both say it beside all else that they refuse."""
    recipe, inputs = published("sava/llama")
    kind = BASE_FAMILIES[name]["model_type"]
    of_family = replace(inputs, model=FAMILIES[kind].megatron_config(BASE_FAMILIES[name], tied=False, source=name))
    known = {target: refusals(recipe, inputs, target=target) for target in TARGETS}
    assert refusals(recipe, of_family, target="megatron-bridge") == [
        *known["megatron-bridge"],
        f"this model has {lacking}, which Megatron-Bridge's has not; it would compute something else: export it with"
        " `python -m conversion.nemo_to_hf`",
    ]
    assert refusals(recipe, of_family, target="megatron-lm") == [
        *known["megatron-lm"],
        f"the model needs {arguments}, which this export cannot express for Megatron-LM; train it here",
    ]


@pytest.fixture(scope="module")
def exported(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For Megatron-Bridge, with frozen parts and held-out text of two languages."""
    base = tmp_path_factory.mktemp("export")
    more = ["freeze=[{trained: [embeddings, output]}]", f"data.validation={{sl: {inputs.held_out}, en: {inputs.held_out}}}"]
    more += ["schedule.max_steps=20", "schedule.embedding_learning_rate=2e-3", "run.keep_checkpoints=2"]
    call_command("recipes.export", *options(inputs), *more, "--to", "megatron-bridge", "--output", base / "out")
    return base / "out"


def test_the_folder_has_all_that_the_program_needs(exported: Path, inputs: Inputs) -> None:
    assert {path.name for path in exported.iterdir()} == {
        "checkpoint",
        "config.yaml",
        "train.py",
        "parameters.json",
        "not_exported.md",
        "scion.json",
    }
    config = yaml.safe_load((exported / "config.yaml").read_text())
    assert config["checkpoint"]["pretrained_checkpoint"] == str(exported / "checkpoint")
    assert Path(config["tokenizer"]["tokenizer_model"], "tokenizer.json").is_file()
    train, held_out, test = config["dataset"]["blend_per_split"]
    assert (train, test) == ([[str(inputs.data / "text")], None], None)
    assert held_out[0] == [str(inputs.held_out / "text")] * 2 and held_out[1][0] == held_out[1][1]
    assert (config["model"]["vocab_size"], config["model"]["should_pad_vocab"], config["model"]["tensor_model_parallel_size"]) == (
        640,
        False,
        2,
    )
    assert (config["optimizer"]["decoupled_lr"], config["optimizer"]["decoupled_min_lr"]) == (2e-3, 1e-4)
    assert (config["scheduler"]["lr_decay_iters"], config["validation"]["eval_interval"]) == (20, 25)
    known = json.loads((exported / "parameters.json").read_text())
    assert known["vocab_size"] == 601
    assert "decoder.layers.1.mlp.linear_fc1.weight" in known["frozen"] and "embedding.word_embeddings.weight" not in known["frozen"]


def test_what_is_not_exported_is_a_file_and_in_the_manifest(exported: Path) -> None:
    manifest = read_manifest(exported)
    assert manifest is not None and len(manifest.inputs) == 3
    sentences = manifest.facts["not_exported"]
    assert [sentence.partition(":")[0].partition("=")[0] for sentence in sentences] == [
        "schedule.embedding_learning_rate",
        "data.validation",
        "run.validation_batches",
        "run.keep_checkpoints",
        "run.stop_signals",
        "run.hang_factor",
    ]
    assert all(f"- {sentence}\n" in (exported / "not_exported.md").read_text() for sentence in sentences)


def test_an_output_that_is_there_is_not_written_over(exported: Path, inputs: Inputs) -> None:
    before = (exported / "config.yaml").stat().st_mtime_ns
    with pytest.raises(ValueError, match="exists"):
        call_command("recipes.export", *options(inputs), "--to", "megatron-bridge", "--output", exported)
    assert (exported / "config.yaml").stat().st_mtime_ns == before


def test_the_script_of_megatron_lm_gives_torchrun_its_arguments(tmp_path: Path) -> None:
    """Run by bash, with a torchrun that prints what it is given."""
    recipe, inputs = published("sava/llama")
    arguments = lm_arguments(recipe, inputs, **PLACES)
    (tmp_path / "train.sh").write_text(lm_script(recipe, arguments))
    (tmp_path / "torchrun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MEGATRON_LM": "/some where"}
    done = subprocess.run(
        ["bash", tmp_path / "train.sh", "--log-interval", "7"], env=environment, capture_output=True, text=True, timeout=20, check=True
    )
    parallel = recipe.parallel
    expected = [f"--nnodes={parallel.num_nodes}", f"--nproc-per-node={parallel.devices_per_node}", "/some where/pretrain_gpt.py"]
    expected += [word for name, values in arguments for word in (name, *values)]
    assert done.stdout.splitlines() == [*expected, "--log-interval", "7"]
    assert shlex.split(" ".join(expected[3:5])) == expected[3:5]
    without = subprocess.run(
        ["bash", tmp_path / "train.sh"], env={"PATH": environment["PATH"]}, capture_output=True, text=True, timeout=20, check=False
    )
    assert without.returncode != 0 and "names a checkout of Megatron-LM" in without.stderr


def test_shares_are_those_of_the_run(inputs: Inputs) -> None:
    paths = f"data.train=[{inputs.data},{inputs.held_out}]"
    recipe = compose_recipe("demo_adapt", [f"model.checkpoint={inputs.checkpoint}", paths, "data.blend={data: 3, held_out: 1}"])
    read = read_inputs(recipe)
    assert training_data(recipe, read).words() == ["3.0", str(inputs.data / "text"), "1.0", str(inputs.held_out / "text")]
    epochs = ["data.sequence_length=64", "schedule.max_steps=null", "schedule.epochs=2"]
    passes = compose_recipe("demo_adapt", [f"model.checkpoint={inputs.checkpoint}", paths, *epochs])
    passes = check_run(passes, read)
    weights = training_data(passes, read).weights
    assert weights is not None and weights[0] > weights[1] > 0 and all(weight == int(weight) for weight in weights)
    assert any(
        sentence.startswith("schedule.epochs=2:") for sentence in export_differences(passes, target="megatron-lm", num_padding_rows=0)
    )


def options_of_automodel(inputs: Inputs) -> list[str]:
    return ["--recipe", "demo_adapt", f"model.checkpoint={inputs.hf}", f"data.train=[{inputs.data}]", "data.sequence_length=64"]


REFUSED_BY_AUTOMODEL = {
    "dropout": (["model.hidden_dropout=0.1"], "takes dropout from the model's config.json"),
    "devices": (["parallel.devices_per_node=3", "parallel.tensor_parallel_size=3"], "global_batch_size is 8, of which NeMo AutoModel"),
    "ramp": (
        ["schedule.ramp_up={start_batch_size: 4, batch_size_increment: 4, samples: 32}", "schedule.micro_batch_size=4"],
        "but NeMo AutoModel's batches have one size",
    ),
    "rates": (["schedule.embedding_learning_rate=2e-3"], "set schedule.embedding_min_learning_rate=0.0002"),
    "names": (["freeze=[{frozen: [decoder.layers.0.mlp.*]}]"], "freeze names decoder.layers.0.mlp.*, but of a model of any family"),
    "until": (["freeze=[{frozen: [layers], until_step: 5}]"], "but NeMo AutoModel freezes for the whole run"),
    "adapters": (["+procedure=lora"], "which NeMo AutoModel does not support"),
}


@pytest.mark.parametrize("feature", REFUSED_BY_AUTOMODEL)
def test_what_would_be_another_run_in_automodel_is_refused(feature: str, inputs: Inputs, tmp_path: Path) -> None:
    overrides, sentence = REFUSED_BY_AUTOMODEL[feature]
    with pytest.raises(ValueError) as error:
        call_command("recipes.export", *options_of_automodel(inputs), *overrides, "--to", "automodel", "--output", tmp_path / "out")
    assert sentence in str(error.value) and not list(tmp_path.iterdir())


def test_automodel_takes_no_folder_of_nemo(inputs: Inputs, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json; this program trains Hugging Face folders"):
        call_command("recipes.export", *options(inputs), "--to", "automodel", "--output", tmp_path / "out")


def test_automodel_is_told_of_shares_groups_and_frozen_parts(inputs: Inputs, tmp_path: Path) -> None:
    more = [f"data.train=[{inputs.data},{inputs.held_out}]", "data.blend={data: 3, held_out: 1}", f"data.validation={inputs.held_out}"]
    more += ["freeze=[{trained: [embeddings, output]}]", "schedule.embedding_learning_rate=2e-3"]
    more += ["schedule.embedding_min_learning_rate=2e-4", "precision=bf16", "schedule.max_steps=20"]
    more += ["schedule.weight_decay=0", "schedule.embedding_weight_decay=0"]
    call_command("recipes.export", *options_of_automodel(inputs), *more, "--to", "automodel", "--output", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.yaml", "not_exported.md", "scion.json"}
    config = yaml.safe_load((tmp_path / "out/config.yaml").read_text())
    assert config["model"]["pretrained_model_name_or_path"] == str(inputs.hf)
    assert config["dataset"]["paths"]["train"] == ["3.0", str(inputs.data / "text"), "1.0", str(inputs.held_out / "text")]
    assert config["distributed"]["mp_policy"]["param_dtype"] == "bfloat16"
    assert (config["lr_scheduler"]["lr_decay_steps"], config["step_scheduler"]["local_batch_size"]) == (20, 4)
    table = "model.decoder.embed_tokens"  # which is the output layer, too
    assert config["freeze_config"] == {"freeze_modules": [{"glob": "*"}], "unfreeze_modules": [{"path": table}]}
    tables, vectors = config["optimizer"]["param_group_overrides"]
    assert re.search(tables["pattern"], f"{table}.weight") and (tables["lr_mult"], tables["wd_mult"]) == (2.0, 0.0)
    names = ("model.decoder.layers.0.self_attn.q_proj.bias", "model.decoder.final_layer_norm.weight", "lm_head.weight")
    assert [bool(re.search(vectors["pattern"], name)) for name in names] == [True, True, False]


@pytest.mark.parametrize("name", ["qwen3_5", "granite4", "llava"])
def test_automodel_is_given_families_that_the_engine_does_not_have(name: str, inputs: Inputs, tmp_path: Path) -> None:
    """And what is not frozen of them is found by its place beside the embeddings; a vision tower stays as it is where all but some sets do."""
    source = save_plain(name, tmp_path / "source", AutoTokenizer.from_pretrained(inputs.tokenizer))
    words = [*options_of_automodel(inputs), f"model.checkpoint={source}", "freeze=[{trained: [layers]}]"]
    with_experts = name == "granite4"
    if with_experts:
        with pytest.raises(ValueError, match=r"has experts \(num_local_experts in .*set model\.expert_balance=0"):
            call_command("recipes.export", *words, "--to", "automodel", "--output", tmp_path / "out")
        words.append("model.expert_balance=0")
    call_command("recipes.export", *words, "--to", "automodel", "--output", tmp_path / "out")
    frozen = yaml.safe_load((tmp_path / "out/config.yaml").read_text())["freeze_config"]
    layers = {"qwen3_5": "model.language_model.layers.0", "granite4": "model.layers.0", "llava": "language_model.model.layers.0"}
    assert frozen["freeze_modules"] == [{"glob": "*"}] and {"path": layers[name]} in frozen["unfreeze_modules"]
