"""What a recipe may say: every key with its type, unit and meaning, and the errors for what it may not."""

from __future__ import annotations

import difflib
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any

from recipes.numbers.batches import Batches, Stretch, growing_batches


@dataclass(frozen=True)
class ModelRecipe:
    """What is trained."""

    checkpoint: str = ""  # output of conversion.hf_to_nemo, or a Hugging Face folder, which is converted; only plans do without
    base: str | None = None  # published model whose shape the checkpoint must have, a name of recipes.rules.base_models
    vocab_size: int | None = None  # rows that the checkpoint must have
    method: str | None = None  # conversion.transfer --method that must have made the checkpoint
    output_layer: str | None = None  # conversion.transfer --output-layer that must have made it
    fallback: str | None = None  # random: no row of the checkpoint may be a mean for want of a vector (--fallback)
    factors: str | None = None  # factors.safetensors of conversion.transfer --factorised-size: the table is trained as these (OFA)
    factorised_size: int | None = None  # dimensions that the factors must have
    hidden_dropout: float = 0.0  # after attention and after the second linear layer; OPT was pretrained with 0.1
    attention_dropout: float = 0.0  # on the attention weights; OPT has none
    expert_balance: float | None = None  # weight of the loss that keeps experts equally busy; 0.001 where there are experts, 0: none
    pad_vocabulary_to_multiple_of: int = 128  # rows of the table in the engine; padding rows change no loss


@dataclass(frozen=True)
class ParallelRecipe:
    """How the model is spread over processes; the data-parallel size is what is left."""

    num_nodes: int = 1  # machines
    devices_per_node: int = 1  # GPUs of a node, or processes where there is no GPU
    tensor_parallel_size: int = 1  # ranks over which every layer's matrices are split
    sequence_parallel: bool = False  # split norms and dropout along the sequence over the tensor-parallel ranks
    pipeline_parallel_size: int = 1  # stages over which the layers are split
    context_parallel_size: int = 1  # ranks over which the tokens of every sample are split, two chunks to each
    distributed_optimizer: bool = True  # optimizer state spread over the data-parallel ranks
    gpu: str | None = None  # GPU of the run, a name of recipes.planner.hardware; a layout that exceeds its memory is refused
    node_memory_gib: float | None = None  # of a node's host; a run whose checkpoints need more while they are saved or loaded is refused
    check_memory: bool = True  # False: run even if the estimate exceeds the memory
    overlap_communication: bool = True  # reduce gradients and gather parameters during computation

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.num_nodes * self.devices_per_node

    @property
    def model_parallel_size(self) -> int:
        """Processes of one replica of the model, which work on the same samples."""
        return self.tensor_parallel_size * self.context_parallel_size * self.pipeline_parallel_size

    @property
    def data_parallel_size(self) -> int:
        """Number of replicas of the model."""
        return self.world_size // self.model_parallel_size


@dataclass(frozen=True)
class RecomputationRecipe:
    """Activation checkpointing: what the backward pass recomputes instead of keeping it from the forward pass."""

    granularity: str = "full"  # whole layers, or "selective": the parts of each layer that `modules` names
    method: str | None = None  # of full: "uniform" (default) keeps one input of num_layers layers, "block" recomputes num_layers of a stage
    num_layers: int | None = None  # layers of a pipeline stage; by default 1 with uniform, all of a stage with block
    modules: tuple[str, ...] = ()  # of selective: core_attn (without its projections), mlp; by default core_attn


@dataclass(frozen=True)
class DataRecipe:
    """What it is trained on."""

    sequence_length: int  # tokens of one sample
    train: tuple[str, ...] = ()  # outputs of data_prep.to_megatron, or one mixture with all of its; only plans do without
    table: str | None = None  # or a YAML file of languages and their data sets, in place of train, languages and validation
    languages: tuple[str, ...] = ()  # language of each data set; needed for `shares` and `sampling_exponent`
    shares: dict[str, float] = field(default_factory=dict)  # language: its share of all samples; its data sets share by their tokens
    sampling_exponent: float | None = None  # or sample languages by their tokens to this power: 1 in proportion to size, 0 all equally
    weights: tuple[float, ...] = ()  # or the share of each data set; by default in proportion to tokens x epochs
    blend: dict[str, float] | None = None  # or name of a data set, the last folder of its path: its share, in proportion to the others'
    epochs: tuple[float, ...] = ()  # how often one epoch sees each data set; one number for all; by default once
    published_tokens: int | None = None  # tokens of the published run, used by plans without data
    validation: dict[str, str] = field(default_factory=dict)  # language: held-out data set; one path alone is called "all"
    document_mask: bool = False  # intra-document masking of attention, positions and loss; answers are packed; False as in the papers
    bos: bool | None = None  # whether each document starts with a BOS token; by default as the tokenizer adds it
    pad_documents: bool = False  # one padded sample per document (several for a long one); for the objective masked, with document_mask
    num_workers: int = 0  # loader processes per rank


@dataclass(frozen=True)
class RampUpRecipe:
    """Smaller batches at the beginning, which grow to `global_batch_size` in equal steps."""

    start_batch_size: int  # samples of the first steps over all ranks
    batch_size_increment: int  # samples added in each increment, at equal intervals of `samples`
    samples: int  # samples of the ramp-up, before batches have their full size


@dataclass(frozen=True)
class ScheduleRecipe:
    """How long and how fast: linear warmup from 0, decay, constant tail."""

    global_batch_size: int  # samples of one step over all ranks
    micro_batch_size: int  # samples of one rank in one forward and backward pass
    learning_rate: float  # peak learning rate
    min_learning_rate: float = 0.0  # learning rate at the end of the decay and in the tail
    max_steps: int | None = None  # optimizer steps; give this, train_tokens or epochs; beside epochs it shortens the run
    train_tokens: int | None = None  # tokens to train on, from which the number of steps follows
    epochs: float | None = None  # epochs, from which the number of steps follows; each epoch ends before the next begins
    published_steps: int | None = None  # as the paper rounds them; the plan shows them beside the computed ones
    warmup_steps: int = 0  # steps of the linear warmup at the beginning
    decay_style: str = "cosine"  # of the rate after the warmup: cosine, linear, inverse_square_root, wsd, warmup_hold or fixed
    hold_steps: int | None = None  # of warmup_hold: at learning_rate after the warmup, before the linear decay
    decay_steps: int | None = None  # of wsd (warmup, stable, decay): steps of the decay, before the tail
    wsd_decay_style: str | None = None  # of wsd: linear, cosine, exponential or minus_sqrt
    constant_steps: int = 0  # steps at the end (tail) at min_learning_rate
    embedding_learning_rate: float | None = None  # peak learning rate of token table and output layer; by default learning_rate
    embedding_min_learning_rate: float | None = None  # at the end of their decay; by default min_learning_rate
    embedding_weight_decay: float | None = None  # of token table and output layer; by default that of the others
    ramp_up: RampUpRecipe | None = None  # batch size ramp-up; by default all batches have global_batch_size

    @cached_property
    def batches(self) -> Batches:
        """The batches of a schedule, whose ramp-up divides (`recipes.rules.schedule_checks`)."""
        if (ramp := self.ramp_up) is None:
            return Batches((Stretch(0, 0, self.global_batch_size),))
        return growing_batches(ramp.start_batch_size, ramp.batch_size_increment, ramp.samples, self.global_batch_size)

    @property
    def embedding_rates(self) -> tuple[float, float]:
        """The highest and the lowest learning rate of token table and output layer."""
        highest, lowest = self.embedding_learning_rate, self.embedding_min_learning_rate
        return self.learning_rate if highest is None else highest, self.min_learning_rate if lowest is None else lowest

    weight_decay: float = 0.01  # decoupled (AdamW): times the learning rate of the step
    adam_beta1: float = 0.9  # decay of the first moment
    adam_beta2: float = 0.95  # decay of the second moment
    adam_epsilon: float = 1e-8  # added to the root of the second moment
    clip_gradient_norm: float = 1.0  # maximum gradient norm over all trained parameters; 0: no clipping


@dataclass(frozen=True)
class FreezeRule:
    """Parameters that stay as they are: `frozen` names them, or `trained` names all the others (see `recipes.rules.freezing`)."""

    frozen: tuple[str, ...] = ()  # names, patterns with *, or ready-made sets such as top_2_layers
    trained: tuple[str, ...] = ()  # the same, for all that is not frozen
    until_step: int | None = None  # train them after this many steps; None: never
    until_epoch: float | None = None  # the same in epochs, with schedule.epochs


@dataclass(frozen=True)
class LoRARecipe:
    """Low-rank adapters on all linear layers of every block; what else is trained, `freeze` says (its set `adapters` names them)."""

    rank: int = 8  # rank of the two factors
    alpha: float = 32.0  # the product of the factors is scaled by alpha / rank
    dropout: float = 0.05  # of the adapters' input


@dataclass(frozen=True)
class MaskingRecipe:
    """Of the objective "masked": which tokens the model has to predict, and what it sees in their place."""

    share: float = 0.15  # share of the tokens, or words, to predict, redrawn for every sample; never special tokens
    hidden: float = 0.8  # share of these replaced by the mask token
    replaced: float = 0.1  # share of these replaced by a random token; the rest stays unchanged
    whole_words: bool = False  # mask all tokens of a word or none
    validation_parts: int = 7  # number of validation passes, each with another part of the tokens masked


@dataclass(frozen=True)
class RunRecipe:
    """What is written down and when."""

    checkpoint_every_steps: int  # optimizer steps; the last step is saved too
    checkpoint_every_minutes: float | None = None  # also save after the first step that ends so many minutes after the last save
    validate_every_steps: int | None = None  # optimizer steps between validations, with data.validation; by default checkpoint_every_steps
    validation_batches: int = 1  # global batches of one validation
    log_every_steps: int = 10  # optimizer steps between two lines of metrics
    keep_optimizer_in_last_checkpoint: bool = True  # False saves space if the run will not be extended
    keep_checkpoints: int | None = None  # number of newest checkpoints to keep; None: all
    keep_held_checkpoints: int = 8  # number of older checkpoints to keep as well while eval.watch waits for them
    export: str | None = None  # "hf": a finished run leaves its last checkpoint as a Hugging Face folder, hf/
    asynchronous_save: bool = False  # write checkpoints during the next steps, from a copy in host memory
    stop_signals: tuple[str, ...] = ("SIGTERM", "SIGUSR1", "SIGUSR2")  # signals that save the run and end it with exit code 0
    hang_factor: float | None = 20.0  # a step that takes this many times the usual time ends the run with all stacks; None: never
    hang_seconds: float = 300.0  # seconds that any step may take
    hang_other_seconds: float = 3600.0  # seconds that the start, the first steps, a validation, a save and the end may take
    skip_nonfinite_steps: int = 0  # steps of the whole run that may be skipped because of a non-finite loss or gradient
    wandb_project: str | None = None  # also log to Weights & Biases: offline, to upload later

    def steps_between_saves(self, *, step_seconds: float) -> int:
        """Steps from one checkpoint to the next at a speed, by number or by time, whichever comes first."""
        if self.checkpoint_every_minutes is None:
            return self.checkpoint_every_steps
        return min(self.checkpoint_every_steps, math.ceil(self.checkpoint_every_minutes * 60 / step_seconds))


@dataclass(frozen=True)
class Recipe:
    """One training run, with the numbers that follow from it, which checks, plan, rehearsal and engine read here."""

    name: str  # for people
    model: ModelRecipe
    data: DataRecipe
    schedule: ScheduleRecipe
    run: RunRecipe
    parallel: ParallelRecipe = field(default_factory=ParallelRecipe)
    freeze: tuple[FreezeRule, ...] = ()
    lora: LoRARecipe | None = None
    recomputation: RecomputationRecipe | None = None  # activation checkpointing; by default all activations are kept
    masking: MaskingRecipe | None = None  # masking of the objective "masked"; by default as BERT
    objective: str = "next_token"  # or "two_tokens": a second head for the token after the next, left out of exports; "masked": encoders
    second_head: str = "copied"  # initialisation of that head: "copied" from the first, or "random"
    precision: str = "bf16"  # "bf16" (mixed: float32 gradients and optimizer) or "32"
    seed: int = 42  # seed of the data order, dropout and sampling

    @property
    def accumulation_steps(self) -> int:
        """Passes of one rank in one optimizer step, of a full batch."""
        return self.schedule.global_batch_size // (self.schedule.micro_batch_size * self.parallel.data_parallel_size)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks, of a full batch."""
        return self.schedule.global_batch_size * self.data.sequence_length

    @cached_property
    def total_steps(self) -> int:
        """Optimizer steps of the run: as many whole ones as its tokens fill.

        Raises:
            ValueError: if the recipe gives epochs: then the data decides, and `recipes.rules.checks.check_run` gives the recipe with its steps.
        """
        if self.schedule.max_steps is not None:
            return self.schedule.max_steps
        if self.schedule.train_tokens is None:
            raise ValueError(f"the steps of recipe {self.name} follow from its data; take the recipe that check_run gives")
        return self.schedule.batches.whole_steps(self.schedule.train_tokens // self.data.sequence_length)

    @property
    def run_samples(self) -> int:
        """Samples of the whole run over all ranks."""
        return self.schedule.batches.samples(self.total_steps)

    @property
    def run_tokens(self) -> int:
        """Tokens of the whole run over all ranks."""
        return self.run_samples * self.data.sequence_length

    @property
    def validation_steps(self) -> int | None:
        """After how many steps held-out text is measured: as the recipe says, else as often as a checkpoint is saved; None without text."""
        return (self.run.validate_every_steps or self.run.checkpoint_every_steps) if self.data.validation else None

    def steps_of_full_batches(self, first_step: int, last_step: int) -> float:
        """How many steps of a full batch see as many samples as those from one step to another."""
        batches = self.schedule.batches
        return (batches.samples(last_step) - batches.samples(first_step)) / self.schedule.global_batch_size


MASKED = "masked"
OBJECTIVES = ("next_token", "two_tokens", MASKED)
SECOND_HEADS = ("copied", "random")
PRECISIONS = ("bf16", "32")
GRANULARITIES = ("full", "selective")
METHODS = ("uniform", "block")  # of recomputation
# Parts of a layer, in Megatron's words. Its "layernorm" fails without TransformerEngine, and with it there is none apart from linear layers.
MODULES = ("core_attn", "mlp")
Built = typing.TypeVar("Built")
_NUMBER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*(\.[0-9]*)?(e[-+]?[0-9]+)?", re.ASCII | re.IGNORECASE)


def recipe_from_mapping(content: Mapping[str, Any]) -> Recipe:
    """A typed recipe.

    Raises:
        ValueError: listing every unknown key (with the nearest known one), every missing key and every value of a wrong type.
    """
    data = content.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("validation"), str):  # one set, perhaps of several languages
        content = {**content, "data": {**data, "validation": {"all": data["validation"]}}}
    return build_from_mapping(Recipe, content, subject="the recipe")


def build_from_mapping(kind: type[Built], content: Mapping[str, Any], *, subject: str) -> Built:
    """A dataclass of sections, lists and plain values from a mapping, for example of a YAML file.

    Args:
        subject: what the errors speak of.

    Raises:
        ValueError: as `recipe_from_mapping`.
    """
    problems: list[str] = []
    built = _build(kind, content, "", problems)
    raise_all(problems, subject=subject)
    return built


def raise_all(problems: list[str], *, subject: str) -> None:
    """Raise one ValueError that lists all problems, if there are any."""
    if len(problems) == 1:
        raise ValueError(f"{subject} cannot run: {problems[0]}")
    if problems:
        raise ValueError(f"{subject} cannot run, {len(problems)} problems:\n" + "\n".join(f"  - {problem}" for problem in problems))


def _build(kind: type, content: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(content, Mapping):
        problems.append(f"{path.rstrip('.')} is {content!r}; expected a section with {', '.join(f.name for f in fields(kind))}")
        return None
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}
    for key in content:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), list(known), n=1, cutoff=0.0)[0]
            problems.append(f"unknown key {path}{key}; the nearest known key is {path}{nearest}")
    values = {}
    for name, known_field in known.items():
        if name in content and content[name] != "???":
            values[name] = _value(hints[name], content[name], f"{path}{name}", problems)
        elif known_field.default is MISSING and known_field.default_factory is MISSING:
            problems.append(f"{path}{name} is missing; give it in the file or as {path}{name}=VALUE")
    if problems:
        return None
    return kind(**values)


def _number(kind: type, value: Any) -> int | float | None:
    """A number also as people write it, which YAML takes for text: 20_000, 1e-4, and 2e6 for a whole one."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value) if value.lstrip("+-").replace("_", "").isdigit() else float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind is float:
        return float(value)
    return int(value) if value == value // 1 else None


def _value(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    if is_dataclass(kind):
        return _build(typing.cast(type, kind), value, f"{path}.", problems)
    if typing.get_origin(kind) is dict:
        if isinstance(value, str):
            value = {"all": value}
        if isinstance(value, Mapping):
            item = typing.get_args(kind)[1]
            return {str(key): _value(item, element, f"{path}.{key}", problems) for key, element in value.items()}
    elif typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        if isinstance(value, str | int | float):
            value = [value]
        if isinstance(value, list):
            return tuple(_value(item, element, f"{path}[{i}]", problems) for i, element in enumerate(value))
    elif kind in (int, float) and (number := _number(kind, value)) is not None:
        return number
    elif kind is str and isinstance(value, int) and not isinstance(value, bool):  # a text that YAML took for true or false is lost
        return str(value)
    elif isinstance(value, kind) and kind not in (int, float):
        return value
    name = {tuple: "list", dict: "section"}.get(typing.get_origin(kind), getattr(kind, "__name__", str(kind)))
    problems.append(f"{path} is {value!r}; expected {name}")
    return None
