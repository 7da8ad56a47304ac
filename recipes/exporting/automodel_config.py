"""A recipe as the configuration of NeMo AutoModel's training loop, which takes Hugging Face folders of any family as they are.

Written without AutoModel; that it trains with the same losses is tested in an environment that has it (`make test-automodel`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.embeddings.layers import find_token_layers
from recipes.exporting.common import decay_of, held_out_data, training_data
from recipes.numbers.arithmetic import divisors
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import FreezeRule, Recipe

SETS = ("embeddings", "output", "final_norm", "layers", "body", "top_N_layers", "bottom_N_layers")
_DATA = "nemo_automodel.components.datasets.llm.megatron_dataset.MegatronPretraining"
_LAYER = re.compile(r"((?:.*\.)?(?:layers|h|blocks))\.(\d+)\.")
_FINAL_NORM = re.compile(r"norm|norm_f|ln_f|final_layernorm|final_layer_norm")
_ENDS = re.compile(r"(top|bottom)_(\d+)_layers")
_REST = "*"  # all modules that no set names, such as a vision tower


def automodel_config(recipe: Recipe, inputs: RunInputs, *, run_dir: Path) -> dict[str, Any]:
    """The configuration of a run.

    Args:
        recipe: with its steps, as `recipes.rules.checks.check_run_elsewhere` gives it, and nothing that `recipes.exporting.limits` refuses.
        run_dir: where checkpoints, losses and the index of the samples are saved, and a run looks when it goes on.
    """
    modules = find_modules(Path(recipe.model.checkpoint))
    is_half = recipe.precision == "bf16"
    compute = "bfloat16" if is_half else "float32"
    content: dict[str, Any] = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "seed": recipe.seed,
        "dist_env": {"backend": "nccl", "timeout_minutes": 30},
        "step_scheduler": _steps(recipe),
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": str(Path(recipe.model.checkpoint).absolute()),
            "dtype": "float32",  # of the weights that the optimizer changes; layers compute in param_dtype
        },
        "distributed": {
            "strategy": "fsdp2",
            "mp_policy": {
                "_target_": "torch.distributed.fsdp.MixedPrecisionPolicy",
                "param_dtype": compute,
                "reduce_dtype": "float32",
                "output_dtype": compute,
            },
            "activation_checkpointing": recipe.recomputation is not None,
        },
        "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
        "dataset": _data(recipe, inputs, run_dir, split="train"),
        "dataloader": {"num_workers": recipe.data.num_workers, "dataloader_type": "single"},
        "optimizer": _optimizer(recipe, modules),
        "lr_scheduler": _rates(recipe),
        "clip_grad_norm": {"max_norm": recipe.schedule.clip_gradient_norm},
        "checkpoint": {
            "enabled": True,
            "checkpoint_dir": str(run_dir),
            "model_save_format": "safetensors",
            "save_consolidated": "final",
            "is_async": recipe.run.asynchronous_save,
            "max_recent_checkpoints": recipe.run.keep_checkpoints,
        },
    }
    if recipe.data.validation:
        content["validation_dataset"] = _data(recipe, inputs, run_dir, split="validation")
        content["validation_dataloader"] = {"num_workers": 0}
    if recipe.freeze:
        content["freeze_config"] = frozen_modules(recipe.freeze, modules)
    if recipe.run.wandb_project is not None:
        content["wandb"] = {"project": recipe.run.wandb_project, "name": recipe.name}
    return content


def samples_in_one_pass(recipe: Recipe) -> int | None:
    """Samples of a device in one forward pass, at most the recipe's; None where the devices do not share a batch evenly."""
    share, rest = divmod(recipe.schedule.global_batch_size, recipe.parallel.num_nodes * recipe.parallel.devices_per_node)
    if rest:
        return None
    return max(number for number in divisors(share) if number <= recipe.schedule.micro_batch_size)


def _steps(recipe: Recipe) -> dict[str, Any]:
    return {
        "global_batch_size": recipe.schedule.global_batch_size,
        "local_batch_size": samples_in_one_pass(recipe),
        "max_steps": recipe.total_steps,
        "num_epochs": 1,  # of the samples that the data set draws for these steps
        "ckpt_every_steps": recipe.run.checkpoint_every_steps,
        "save_checkpoint_every_epoch": False,
        "val_every_steps": recipe.validation_steps,
        "log_remote_every_steps": recipe.run.log_every_steps,
        "validate_on_checkpoint": False,
    }


def _data(recipe: Recipe, inputs: RunInputs, run_dir: Path, *, split: str) -> dict[str, Any]:
    """Of training and held-out text alike, as its builder takes both and makes one of them."""
    held_out = held_out_data(recipe, inputs)
    fields = {
        "_target_": _DATA,
        "paths": {"train": training_data(recipe, inputs).words()} | ({"validation": held_out.words()} if held_out else {}),
        "seq_length": recipe.data.sequence_length,
        "seed": recipe.seed,
        "splits_to_build": split,
        "index_mapping_dir": str(run_dir / "index"),
    }
    if split == "validation":
        fields["num_val_samples"] = recipe.run.validation_batches * recipe.schedule.global_batch_size
    return fields


def _rates(recipe: Recipe) -> dict[str, Any]:
    decay, schedule = decay_of(recipe), recipe.schedule
    fields: dict[str, Any] = {
        "lr_decay_style": decay.style,
        "lr_decay_steps": decay.end,
        "lr_warmup_steps": schedule.warmup_steps,
        "init_lr": 0.0,
        "min_lr": schedule.min_learning_rate,
    }
    if decay.anneal_steps is not None:
        fields |= {"wsd_decay_steps": decay.anneal_steps, "lr_wsd_decay_style": decay.anneal_style}
    return fields


def _optimizer(recipe: Recipe, modules: Modules) -> dict[str, Any]:
    """AdamW; biases and vectors, such as those of norms, have no weight decay, as in Megatron."""
    schedule = recipe.schedule
    groups = []
    if schedule.embedding_learning_rate is not None or schedule.embedding_weight_decay is not None:
        tables = "|".join(re.escape(name) for name in dict.fromkeys((modules.embeddings, modules.output)))
        rate, decay = schedule.embedding_rates[0], schedule.embedding_weight_decay
        wd_mult = 1.0 if decay is None else decay / (schedule.weight_decay or 1.0)  # of 0 only 0 is let through
        groups.append({"pattern": rf"^({tables})\.weight$", "lr_mult": rate / schedule.learning_rate, "wd_mult": wd_mult})
    groups.append({"pattern": rf"(^|\.)(bias|{'|'.join(map(re.escape, modules.vectors))})$", "wd_mult": 0.0})
    return {
        "_target_": "torch.optim.AdamW",
        "lr": schedule.learning_rate,
        "weight_decay": schedule.weight_decay,
        "betas": [schedule.adam_beta1, schedule.adam_beta2],
        "eps": schedule.adam_epsilon,
        "param_group_overrides": groups,
    }


@dataclass(frozen=True)
class Modules:
    """Parts of a model by the names that its tensors have.

    Attributes:
        output: the embeddings' name where both are one matrix.
        layers: of each layer, from the first.
        final_norm: None where no tensor is called like one.
        vectors: ends of the names of tensors of one dimension.
    """

    embeddings: str
    output: str
    layers: tuple[str, ...]
    final_norm: str | None
    vectors: tuple[str, ...]

    def named(self, entry: str) -> set[str] | None:
        """The modules of a ready-made set; None if it is none that a model of any family has."""
        norm = {self.final_norm} if self.final_norm else set()
        sets = {"embeddings": {self.embeddings}, "output": {self.output}, "layers": set(self.layers)}
        sets |= {"body": {*self.layers, *norm}} | ({"final_norm": norm} if norm else {})
        if (end := _ENDS.fullmatch(entry)) and 1 <= int(end[2]) <= len(self.layers):
            return set(self.layers[: int(end[2])] if end[1] == "bottom" else self.layers[-int(end[2]) :])
        return sets.get(entry)


def find_modules(directory: Path) -> Modules:
    """The parts of a Hugging Face folder's model; its layers are those that stand beside the input embeddings."""
    hf = HFCheckpoint.open(directory)
    tables = find_token_layers(hf)
    embeddings = tables.input.removesuffix(".weight")
    output = (tables.output or tables.input).removesuffix(".weight")
    parent = embeddings.rpartition(".")[0]
    layers: dict[int, str] = {}
    for name in hf.names():
        if (found := _LAYER.match(name)) and found[1].rpartition(".")[0] == parent:
            layers[int(found[2])] = f"{found[1]}.{found[2]}"
    beside = (name.removesuffix(".weight") for name in hf.names() if name.endswith(".weight"))
    norm = next((name for name in beside if name.rpartition(".")[0] == parent and _FINAL_NORM.fullmatch(name.rpartition(".")[2])), None)
    vectors = dict.fromkeys(_end(name) for name in hf.names() if len(hf.shape(name)) == 1)
    return Modules(embeddings, output, tuple(layers[number] for number in sorted(layers)), norm, tuple(vectors))


def _end(name: str) -> str:
    """What tells a tensor's name from another's whatever the layer: `input_layernorm.weight`, `A_log`."""
    return ".".join(name.split(".")[-2:]) if name.endswith((".weight", ".bias")) else name.rpartition(".")[2]


def frozen_modules(rules: tuple[FreezeRule, ...], modules: Modules) -> dict[str, Any]:
    """What stays as it is for the whole run; where all but some sets do, all is frozen and these are not."""
    everything = {modules.embeddings, modules.output, *modules.layers, *(filter(None, [modules.final_norm])), _REST}
    frozen: set[str] = set()
    for rule in rules:
        listed = set().union(*(modules.named(entry) or set() for entry in rule.frozen or rule.trained))
        frozen |= listed if rule.frozen else everything - listed
    if _REST not in frozen:
        return {"freeze_modules": [{"path": name} for name in _in_order(frozen, modules)]}
    return {"freeze_modules": [{"glob": _REST}], "unfreeze_modules": [{"path": name} for name in _in_order(everything - frozen, modules)]}


def _in_order(names: set[str], modules: Modules) -> Iterator[str]:
    for name in dict.fromkeys((modules.embeddings, *modules.layers, modules.final_norm, modules.output)):
        if name in names and name is not None:
            yield name


def unknown_sets(rules: tuple[FreezeRule, ...], modules: Modules) -> list[str]:
    """Entries of rules that name no part which a model of any family has."""
    return [entry for rule in rules for entry in rule.frozen or rule.trained if modules.named(entry) is None]
