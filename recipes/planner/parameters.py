"""Every parameter of a model by name: how many numbers, whether tensor parallelism splits it, and which pipeline stage holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from conversion.checkpoints.factors import COORDINATES, PRIMITIVES
from nemo_patches.lora_parts import FIRST, OUTPUT, QKV, SECOND, adapter_names
from nemo_patches.whole_experts import has_biased_experts
from recipes.numbers.arithmetic import LayerShape, flops_per_token, sees_both_sides

SECOND_HEAD = "second_head.weight"
TOKEN_TABLE = "embedding.word_embeddings.weight"
_TABLES = (TOKEN_TABLE, COORDINATES, PRIMITIVES, "output_layer.weight")
BEFORE, AFTER = -1, -2  # places outside the layers: before the first and after the last layer


@dataclass(frozen=True)
class Parameter:
    """One tensor of a model.

    Attributes:
        numel: numbers in it, over all ranks.
        is_split: whether each tensor-parallel rank holds a part; otherwise each holds all of it.
        place: number of its layer, counted from 0, or `BEFORE` or `AFTER`.
    """

    numel: int
    is_split: bool
    place: int


def parameters(model: Mapping[str, Any], *, vocab_rows: int) -> dict[str, Parameter]:
    """The parameters of a model by their name in the checkpoint.

    Args:
        model: the `config` of `context/model.json`; what it does not say has Megatron's default.
        vocab_rows: rows of the vocabulary tables, with padding.
    """
    shape = LayerShape.of(model)
    table = Parameter(vocab_rows * shape.hidden, is_split=True, place=BEFORE)
    found = {TOKEN_TABLE: table}
    if model.get("position_embedding_type", "learned_absolute") == "learned_absolute":
        found["embedding.position_embeddings.weight"] = Parameter(model["max_position_embeddings"] * shape.hidden, False, BEFORE)
    layer = _layer(model, shape)
    for index in range(model["num_layers"]):
        for name, (numel, is_split) in layer.items():
            found[f"decoder.layers.{index}.{name}"] = Parameter(numel, is_split, index)
    found |= _ends_of_encoder(model, shape, vocab_rows) if sees_both_sides(model) else _final_norm(model, shape)
    if not model["share_embeddings_and_output_weights"]:
        found["output_layer.weight"] = Parameter(table.numel, is_split=True, place=AFTER)
    return found


def _final_norm(model: Mapping[str, Any], shape: LayerShape) -> dict[str, Parameter]:
    return {name: Parameter(numel, False, AFTER) for name, numel in _norm(model, "decoder.final_layernorm.", shape.hidden).items()}


def _ends_of_encoder(model: Mapping[str, Any], shape: LayerShape, vocab_rows: int) -> dict[str, Parameter]:
    """What follows the sum of the embeddings, and the head before the table of tokens, which has a bias for each."""
    before = {"embedding.end.token_types": model["num_token_types"] * shape.hidden} | _norm(
        model, "embedding.end.layer_norm.", shape.hidden
    )
    head = "decoder.final_layernorm."
    after = {f"{head}dense.weight": shape.hidden**2, f"{head}dense.bias": shape.hidden} | _norm(model, f"{head}layer_norm.", shape.hidden)
    found = {name: Parameter(numel, False, place) for place, names in ((BEFORE, before), (AFTER, after)) for name, numel in names.items()}
    return found | {"output_layer.bias": Parameter(vocab_rows, is_split=True, place=AFTER)}


class ParameterCount(NamedTuple):
    """Numbers in a model: all of them, and those outside the vocabulary tables."""

    total: int
    outside_tables: int


def count_parameters(model: Mapping[str, Any], *, vocab_size: int, factorised_size: int = 0) -> ParameterCount:
    """Parameters of a model with `vocab_size` rows; see `parameters` and `PlannedModel` for the arguments."""
    found = with_factors(parameters(model, vocab_rows=vocab_size), factorised_size, vocab_rows=vocab_size, hidden_size=model["hidden_size"])
    tables = sum(found[name].numel for name in _TABLES if name in found)
    total = sum(parameter.numel for parameter in found.values())
    return ParameterCount(total, total - tables)


def with_factors(found: Mapping[str, Parameter], factorised_size: int, *, vocab_rows: int, hidden_size: int) -> dict[str, Parameter]:
    """The same parameters with coordinates times primitives for the token table (OFA: Liu et al. 2024, section 3); size 0 changes none."""
    if not factorised_size:
        return dict(found)
    coordinates = Parameter(vocab_rows * factorised_size, is_split=True, place=BEFORE)
    primitives = Parameter(factorised_size * hidden_size, is_split=False, place=BEFORE)
    others = {name: parameter for name, parameter in found.items() if name != TOKEN_TABLE}
    return {COORDINATES: coordinates, PRIMITIVES: primitives} | others


def _layer(model: Mapping[str, Any], shape: LayerShape) -> dict[str, tuple[int, bool]]:
    """Numbers and split of each parameter of one layer."""
    qkv, proj, fc1, fc2 = "self_attention.linear_qkv.", "self_attention.linear_proj.", "mlp.linear_fc1.", "mlp.linear_fc2."
    layer = {
        f"{qkv}weight": (shape.qkv * shape.hidden, True),
        f"{proj}weight": (shape.hidden * shape.attention, True),
        f"{fc1}weight": (shape.ffn_input * shape.hidden, True),
        f"{fc2}weight": (shape.hidden * shape.ffn, True),
    }
    has_biases = model.get("add_bias_linear", True)
    if has_biases or model.get("add_qkv_bias", False):
        layer[f"{qkv}bias"] = (shape.qkv, True)
    # The output of a row-parallel layer is whole on every rank, and so is its bias.
    if has_biases or model.get("add_proj_bias", False):
        layer[f"{proj}bias"] = (shape.hidden, False)
    if has_biases:
        layer |= {f"{fc1}bias": (shape.ffn_input, True), f"{fc2}bias": (shape.hidden, False)}
    names = ("post_attention_layernorm.", "post_mlp_layernorm.") if sees_both_sides(model) else (f"{qkv}layer_norm_", f"{fc1}layer_norm_")
    if experts := model.get("num_moe_experts"):
        wide, narrow = experts * model["moe_ffn_hidden_size"] * shape.hidden, experts * shape.hidden
        layer = {name: found for name, found in layer.items() if not name.startswith((fc1, fc2))}
        layer |= {"mlp.router.weight": (narrow, False)}
        first, second = "mlp.experts.experts.linear_fc1.", "mlp.experts.experts.linear_fc2."
        is_whole = has_biased_experts(model)
        layer |= {f"{first}weight": (2 * wide, not is_whole), f"{second}weight": (wide, not is_whole)}
        if is_whole:
            layer |= {"mlp.router.bias": (experts, False), f"{second}bias": (narrow, False)}
            layer |= {f"{first}bias": (2 * experts * model["moe_ffn_hidden_size"], False)}
        names = (names[0], "pre_mlp_layernorm.")
    norms = _norm(model, names[0], shape.hidden) | _norm(model, names[1], shape.hidden) if model.get("pre_norms", True) else {}
    if model.get("post_norms", False):
        norms |= _norm(model, f"{proj}post_layernorm.", shape.hidden) | _norm(model, f"{fc2}post_layernorm.", shape.hidden)
    if model.get("qk_layernorm", False):
        head_dim = shape.attention // model["num_attention_heads"]
        norms |= _norm(model, "self_attention.q_layernorm.", head_dim) | _norm(model, "self_attention.k_layernorm.", head_dim)
    if model.get("norms_of_all_heads", False):
        keys = (shape.qkv - shape.attention) // 2
        layer |= {"self_attention.q_layernorm.weight": (shape.attention, True), "self_attention.k_layernorm.weight": (keys, True)}
    if model.get("softmax_type", "vanilla") == "learnable":
        layer |= {"self_attention.core_attention.softmax_offset": (model["num_attention_heads"], True)}
    if model.get("activation_func") == "xielu":
        norms |= {"mlp.activation_func.alpha_p": 1, "mlp.activation_func.alpha_n": 1}
    return layer | {name: (numel, False) for name, numel in norms.items()}


def _norm(model: Mapping[str, Any], prefix: str, width: int) -> dict[str, int]:
    has_bias = model.get("normalization", "LayerNorm") == "LayerNorm"
    return {f"{prefix}weight": width} | ({f"{prefix}bias": width} if has_bias else {})


def adapters(model: Mapping[str, Any], *, rank: int) -> dict[str, Parameter]:
    """The parameters of low-rank adapters by name; none for rank 0.

    Of a layer whose outputs are split, the second factor is; of one whose inputs are, the first.
    """
    if not rank:
        return {}
    shape = LayerShape.of(model)
    keys = (shape.qkv - shape.attention) // 2
    inputs = {QKV: shape.hidden, OUTPUT: shape.attention, FIRST: shape.hidden, SECOND: shape.ffn}
    outputs = {"q": shape.attention, "k": keys, "v": keys, "gate": shape.ffn, "up": shape.ffn}
    found = {}
    for name in adapter_names(num_layers=model["num_layers"], is_gated=shape.is_gated):
        layer, rest = name.removeprefix("decoder.layers.").split(".", 1)
        linear, _, part, factor = rest.rsplit(".", 3)
        split = "b" if linear in (QKV, FIRST) else "a"
        width = inputs[linear] if factor == "a" else outputs.get(part, shape.ffn if linear == FIRST else shape.hidden)
        found[name] = Parameter(rank * width, factor == split, int(layer))
    return found


@dataclass(frozen=True)
class RankParameters:
    """Parameters of one rank: all of them, and those that some step changes.

    Attributes:
        copied: of `trained`, experts that every tensor-parallel rank has as a whole: these ranks share the optimizer's state of them.
    """

    held: int
    trained: int
    copied: int


@dataclass(frozen=True)
class PlannedModel:
    """A model as the planner sees it.

    Attributes:
        config: the `config` of `context/model.json`, in Megatron's words.
        vocab_rows: rows of the vocabulary tables, with padding.
        frozen: names of parameters that no step changes; they have neither gradient nor optimizer state.
        adapter_rank: of low-rank adapters on all linear layers; 0 where there are none.
        num_heads: output layers, two where a second one predicts the token after the next.
        factorised_size: dimensions of the coordinates that the token table is trained as, times primitives; 0 where it is one matrix.
        predicted_share: of the tokens that the head computes.
    """

    config: Mapping[str, Any]
    vocab_rows: int
    frozen: frozenset[str] = frozenset()
    adapter_rank: int = 0
    num_heads: int = 1
    factorised_size: int = 0
    predicted_share: float = 1.0

    @cached_property
    def shape(self) -> LayerShape:
        """Widths of a layer."""
        return LayerShape.of(self.config)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """All parameters by name."""
        found = parameters(self.config, vocab_rows=self.vocab_rows)
        found = with_factors(found, self.factorised_size, vocab_rows=self.vocab_rows, hidden_size=self.shape.hidden)
        found |= adapters(self.config, rank=self.adapter_rank)
        if self.num_heads == 2:
            found[SECOND_HEAD] = Parameter(self.vocab_rows * self.shape.hidden, is_split=True, place=AFTER)
        return found

    @property
    def is_tied(self) -> bool:
        """Whether the token table is the output layer's matrix too."""
        return self.config["share_embeddings_and_output_weights"]

    def flops_per_token(self, sequence_length: int) -> float:
        """Operations of forward and backward, as `recipes.numbers.arithmetic.flops_per_token`."""
        return flops_per_token(
            self.config,
            vocab_size=self.vocab_rows,
            sequence_length=sequence_length,
            factorised_size=self.factorised_size,
            predicted_share=self.predicted_share,
        )

    def rank(self, *, tensor_parallel_size: int, pipeline_parallel_size: int, stage: int) -> RankParameters:
        """What a rank of a pipeline stage, counted from 0, holds."""
        layers_per_stage = self.config["num_layers"] // pipeline_parallel_size
        places = list(range(stage * layers_per_stage, (stage + 1) * layers_per_stage))
        places += [BEFORE] * (stage == 0) + [AFTER] * (stage == pipeline_parallel_size - 1)
        counts = [self._counts[place] for place in places]
        if self.is_tied and stage == pipeline_parallel_size - 1 > 0:  # a copy of the token table, as the output layer
            counts.append(self._token_table)
        held = sum(count.split_held // tensor_parallel_size + count.whole_held for count in counts)
        trained = sum(count.split_trained // tensor_parallel_size + count.whole_trained for count in counts)
        return RankParameters(held, trained, sum(count.copied for count in counts))

    @cached_property
    def _counts(self) -> dict[int, _Counts]:
        """Numbers of each place."""
        totals: dict[int, list[int]] = {}
        for name, parameter in self.parameters.items():
            total = totals.setdefault(parameter.place, [0, 0, 0, 0, 0])
            for index, count in enumerate(_counts_of(parameter, is_trained=name not in self.frozen, is_expert=".mlp.experts." in name)):
                total[index] += count
        return {place: _Counts(*total) for place, total in totals.items()}

    @cached_property
    def _token_table(self) -> _Counts:
        return _counts_of(self.parameters[TOKEN_TABLE], is_trained=TOKEN_TABLE not in self.frozen)


class _Counts(NamedTuple):
    """Numbers of parameters: split over ranks or whole on each, held or trained; and trained experts that are whole on each."""

    split_held: int
    whole_held: int
    split_trained: int
    whole_trained: int
    copied: int


def _counts_of(parameter: Parameter, *, is_trained: bool, is_expert: bool = False) -> _Counts:
    split, whole = (parameter.numel, 0) if parameter.is_split else (0, parameter.numel)
    return _Counts(split, whole, split * is_trained, whole * is_trained, whole * is_trained * is_expert)
