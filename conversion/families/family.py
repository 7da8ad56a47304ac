"""The definition of a model family: the mapping of tensors, and the translation of one configuration into the other."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from conversion.checkpoints.hf_files import in_words_of_both
from conversion.families.mapping import Mark, Rule, below, names_in, with_names


@dataclass(frozen=True)
class Require:
    """A value that the configuration must have, because the engine has nothing else.

    Attributes:
        key: of config.json.
        value: the only one that is supported, and the library's default where the key is absent.
        otherwise: what a model with another value is, ending the sentence of the refusal.
        also: other words for the same.
    """

    key: str
    value: Any
    otherwise: str
    also: tuple[Any, ...] = ()


class NeMoClasses(NamedTuple):
    """The classes by which NeMo's own collection knows a family: a module, in it a Lightning module and its configuration.

    Attributes:
        fields: what that configuration is given in place of Megatron's, where its words are others.
    """

    module: str
    model: str
    config: str
    fields: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Family:
    """One model family.

    Attributes:
        model_type: of config.json.
        table: the rules, for both directions.
        to_megatron: config.json -> sizes and other numbers of a model, in Megatron's words.
        engine: `module:function` that makes the engine's configuration from Megatron's; imported only where NeMo runs.
        architecture: what all models of the family have in common, in Megatron's words, where it is not Megatron's default.
        defaults: what the pinned transformers means by a config.json without the key, for every key that `to_megatron` reads.
        requirements: what makes a variant one that the table covers.
        masked: whether a token sees those on both sides, so that masked ones are predicted; else it sees those before it.
        nemo: the classes of NeMo that load the model without this project; None where NeMo does not know the family, or a variant.
        other_tables: the same rules for files that name the tensors otherwise.
        language_part: config.json -> what in it is of the language model, where that is a part of it.
        quantized: values of `quant_method` whose weights are read as the whole numbers that they are.
    """

    model_type: str
    table: Sequence[Rule]
    to_megatron: Callable[[Mapping[str, Any]], dict[str, Any]]
    engine: str = "nemo_patches.engine_model:engine_config"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    architecture: Mapping[str, Any] = field(default_factory=dict)
    requirements: Sequence[Require] = ()
    masked: bool = False
    nemo: Callable[[Mapping[str, Any]], NeMoClasses | None] | None = None
    other_tables: Sequence[Sequence[Rule]] = ()
    language_part: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    quantized: Collection[str] = ()

    def reads_quantized(self, config: Mapping[str, Any]) -> bool:
        """Whether a config.json names a quantization whose numbers are read; see `HFCheckpoint.whole`."""
        quantized = config.get("quantization_config")
        return isinstance(quantized, Mapping) and quantized.get("quant_method") in self.quantized

    def language_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What a config.json says of the language model; a key that it leaves out has the value that transformers gives it."""
        return {**self.defaults, **(self.language_part(config) if self.language_part else config)}

    def table_of(self, names: Collection[str]) -> Sequence[Rule]:
        """The table that knows the most of a checkpoint's tensors, by their names on either side; it names what is beside the language model."""
        tables = [with_names(table, names) for table in (self.table, *self.other_tables, _of_the_body(self.table))]
        return max(tables, key=lambda table: len(names_in(table) & set(names)))

    def megatron_config(self, config: Mapping[str, Any], *, tied: bool, source: str) -> dict[str, Any]:
        """Megatron's configuration for a config.json: sizes and switches, nothing of a training run.

        Args:
            tied: whether input embedding and output layer are one matrix.
            source: what errors call the checkpoint.

        Raises:
            ValueError: naming the key that makes it a variant that is not supported, or the one that is missing.
        """
        quantized = config.get("quantization_config")
        if quantized and not self.reads_quantized(config):
            method = quantized.get("quant_method") if isinstance(quantized, Mapping) else quantized
            raise ValueError(
                f"{source} has a quantization_config of {method} in its config.json: quantised weights are not converted; convert the model that was"
                " quantised, or remove the key if the weights are whole again"
            )
        config = self.language_part(config) if self.language_part else config
        if not isinstance(config, Mapping):
            raise ValueError(f"{source} has a text_config in its config.json that is not an object; copy or download it again")
        config = in_words_of_both(config, source=source)
        for rule in self.requirements:
            found = config.get(rule.key, rule.value)
            if found not in (rule.value, *rule.also):
                raise ValueError(f"{source} has {rule.key} {found!r} in its config.json (expected {rule.value!r}): {rule.otherwise}")
        num_layers = config.get("num_hidden_layers")
        if isinstance(num_layers, int) and num_layers > _MOST_LAYERS:  # what is told layer by layer would take as much memory
            raise ValueError(f"{source} has num_hidden_layers {num_layers} in its config.json; expected at most {_MOST_LAYERS}")
        try:
            megatron = self.to_megatron({**self.defaults, **config})
        except KeyError as error:
            raise ValueError(f"{source} has no {error.args[0]} in its config.json") from error
        except (TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"{source} has a value of another type than expected in its config.json ({error})") from error
        if wrong := [f"{key} {repr(value)[:60]}" for key, value in megatron.items() if not _is_sane(key, value)]:
            raise ValueError(f"{source} has a config.json that gives Megatron {', '.join(wrong)}; expected numbers above 0")
        head_dim_is_free = "kv_channels" in megatron
        heads, groups = megatron["num_attention_heads"], megatron["num_query_groups"]
        if heads % groups or (megatron["hidden_size"] % heads and not head_dim_is_free):
            raise ValueError(
                f"{source} has a hidden size of {megatron['hidden_size']} and {heads} attention heads in {groups} groups,"
                " which do not divide"
            )
        return {**self.architecture, **megatron, "share_embeddings_and_output_weights": tied}

    def engine_config(self, model: Mapping[str, Any], **arguments: Any) -> Any:
        """NeMo's configuration of a model; see `nemo_patches.engine_model.engine_config` for the arguments.

        Args:
            model: Megatron's configuration, the `config` of `context/model.json`.
        """
        module, _, function = self.engine.partition(":")
        return getattr(importlib.import_module(module), function)(model, **arguments)


def _of_the_body(table: Sequence[Rule]) -> Sequence[Rule]:
    """The same rules for files of a model without its head, as `AutoModel` saves them, whose names begin behind `model.`."""
    return (*below(table, {"model.": ""}), Mark(megatron="kept.of_the_body"))


_COUNTS = frozenset(
    [
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
        "max_position_embeddings",
        "vocab_size",
        "old_context_len",
        "yarn_old_context_len",
        "longrope_positions",
        "query_temperature_positions",
        "num_token_types",
        "num_moe_experts",
        "moe_ffn_hidden_size",
        "moe_router_topk",
    ]
)
_MOST_LAYERS = 10_000  # models have about a hundred
_LARGEST = 1e30  # below infinity, and within float32
_MOST = 1 << 40  # of anything that is counted; keeps products within 64 bits


def _is_sane(key: str, value: Any) -> bool:
    """Whether a number is finite and above 0, and whole where it counts something; or those of a window (before and after a token) are counts,
    or layers are told by 0 and 1."""
    if key == "no_rope_freq" or (key == "window_attn_skip_freq" and isinstance(value, list)):
        return all(type(number) is int and number in (0, 1) for number in value)
    if key in ("longrope_short_factor", "longrope_long_factor"):
        return isinstance(value, list) and all(type(number) in (int, float) and 0 < number < _LARGEST for number in value)
    if key == "window_size":
        return isinstance(value, list | tuple) and all(type(number) is int and 0 <= number < _MOST for number in value)
    if key in _COUNTS:
        return type(value) is int and 0 < value < _MOST
    return isinstance(value, bool) or (isinstance(value, int | float) and 0 < value < _LARGEST)
