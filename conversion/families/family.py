"""What a model family has to say: which tensors meet, and how one configuration is told in the other's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conversion.mapping import Rule


@dataclass(frozen=True)
class Require:
    """A value that the configuration must have, because the engine has nothing else.

    Attributes:
        key: of config.json.
        value: the only one that is supported, and the library's default where the key is absent.
        otherwise: what a model with another value is, ending the sentence of the refusal.
    """

    key: str
    value: Any
    otherwise: str


@dataclass(frozen=True)
class Family:
    """One model family.

    Attributes:
        model_type: of config.json.
        table: the rules, for both directions.
        to_megatron: config.json -> Megatron's configuration; `share_embeddings_and_output_weights` is set by the caller.
        engine: `module:function` that makes the engine's configuration from Megatron's; imported only where NeMo runs.
        requirements: what makes a variant one that the table covers.
    """

    model_type: str
    table: Sequence[Rule]
    to_megatron: Callable[[Mapping[str, Any]], dict[str, Any]]
    engine: str
    requirements: Sequence[Require] = ()

    def megatron_config(self, config: Mapping[str, Any], *, tied: bool, source: str) -> dict[str, Any]:
        """Megatron's configuration for a config.json: sizes and switches, nothing of a training run.

        Args:
            tied: whether input embedding and output layer are one matrix.
            source: what errors call the checkpoint.

        Raises:
            ValueError: naming the key that makes it a variant that is not covered, or the one that is missing.
        """
        for rule in self.requirements:
            found = config.get(rule.key, rule.value)
            if found != rule.value:
                raise ValueError(f"{source} has {rule.key} {found!r} in its config.json (expected {rule.value!r}): {rule.otherwise}")
        try:
            megatron = self.to_megatron(config)
        except KeyError as error:
            raise ValueError(f"{source} has no {error.args[0]} in its config.json") from error
        if wrong := [f"{key} {value!r}" for key, value in megatron.items() if not isinstance(value, int | float) or value <= 0]:
            raise ValueError(f"{source} has a config.json that gives Megatron {', '.join(wrong)}; expected numbers above 0")
        if megatron["hidden_size"] % megatron["num_attention_heads"] or megatron["num_attention_heads"] % megatron["num_query_groups"]:
            raise ValueError(
                f"{source} has a hidden size of {megatron['hidden_size']} and {megatron['num_attention_heads']} attention heads in"
                f" {megatron['num_query_groups']} groups, which do not divide"
            )
        return {**megatron, "share_embeddings_and_output_weights": tied}
