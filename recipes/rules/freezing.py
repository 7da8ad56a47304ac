"""Which parameters stay as they are, and until which step: the `freeze` rules of a recipe over the names of a model's parameters.

Names are those of the checkpoint (`decoder.layers.0.mlp.linear_fc1.weight`), with layers counted from 0 over the whole
model, so that they mean the same at every layout and with or without TransformerEngine.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from conversion.families import family_of
from conversion.families.mapping import megatron_names
from recipes.planner.parameters import SECOND_HEAD, TOKEN_TABLE
from recipes.rules.schema import FreezeRule

NEVER = math.inf  # the step from which a parameter is trained that is frozen for the whole run

FACTORS = "embedding.word_embeddings.*"  # what stands for the table where it is factorised
READY_MADE: Mapping[str, tuple[str, ...]] = {
    "embeddings": (TOKEN_TABLE, FACTORS),
    "positions": ("embedding.position_embeddings.weight",),
    "output": ("output_layer.*", SECOND_HEAD),
    "final_norm": ("decoder.final_layernorm.*",),
    "layers": ("decoder.layers.*",),
    "body": ("decoder.*",),
    "adapters": ("*.lora.*",),
}
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.")
_ENDS = re.compile(r"(top|bottom)_(\d+)_layers")


def model_parameter_names(family: str, model: Mapping[str, Any], *, source: str) -> list[str]:
    """Names of all parameters of a model, in the order of its family's table.

    Args:
        family, model: those of `context/model.json`.
        source: what errors call the checkpoint.
    """
    return megatron_names(family_of(family, source=source).table, model)


def first_trained_steps(rules: Sequence[FreezeRule], names: Sequence[str], *, tied: bool) -> dict[str, float]:
    """For each parameter the first optimizer step, counted from 0, that changes it; `NEVER` if none does.

    Where several rules freeze a parameter, the last of their steps counts.

    Args:
        names: of all parameters of the model.
        tied: whether the token table is the output layer's matrix too; both names then mean it.

    Raises:
        ValueError: listing all that is wrong: rules that name both or neither, names that match nothing, nothing left to train.
    """
    problems: list[str] = []
    steps = dict.fromkeys(names, 0.0)
    for index, rule in enumerate(rules):
        if bool(rule.frozen) == bool(rule.trained):
            problems.append(f"freeze[{index}] has to give either frozen or trained, not both")
            continue
        listed: set[str] = set()
        for entry in rule.frozen or rule.trained:
            matched = _matching(entry, names, tied=tied)
            listed |= matched
            if not matched:
                problems.append(f"freeze[{index}] names {entry}, {_nothing_matches(entry, names)}")
        until = NEVER if rule.until_step is None else float(rule.until_step)
        for name in names:
            if (name in listed) == bool(rule.frozen):
                steps[name] = max(steps[name], until)
    if not problems and min(steps.values()) > 0:
        problems.append("freeze leaves no trainable parameters in the first step; name what is trained")
    if problems:
        raise ValueError("; ".join(problems))
    return steps


def table_names(names: Iterable[str]) -> set[str]:
    """Those of the token table or its factors, the output layer and the second head: what a schedule may give a rate of its own."""
    patterns = (*READY_MADE["embeddings"], *READY_MADE["output"])
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}


def pipeline_stages(name: str, *, num_layers: int, num_stages: int, tied: bool) -> set[int]:
    """The pipeline stages that have a parameter; a table that is the output layer's too is on the first and the last."""
    if layer := _LAYER.match(name):
        return {int(layer[1]) * num_stages // num_layers}
    first, last = 0, num_stages - 1
    if name == TOKEN_TABLE and tied:
        return {first, last}
    return {first} if name.startswith("embedding.") else {last}


def _matching(entry: str, names: Iterable[str], *, tied: bool) -> set[str]:
    if end := _ENDS.fullmatch(entry):
        return _layers_at(end[1], int(end[2]), names)
    patterns = READY_MADE.get(entry, (entry,))
    if tied and entry == "output":
        patterns = (TOKEN_TABLE, FACTORS, SECOND_HEAD)
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _layers_at(end: str, count: int, names: Iterable[str]) -> set[str]:
    """Parameters of the first (bottom) or last (top) layers; none if the model has fewer."""
    layer_of = {name: int(found[1]) for name in names if (found := _LAYER.match(name))}
    num_layers = len(set(layer_of.values()))
    if not 1 <= count <= num_layers:
        return set()
    expected = range(count) if end == "bottom" else range(num_layers - count, num_layers)
    return {name for name, layer in layer_of.items() if layer in expected}


def _nothing_matches(entry: str, names: Sequence[str]) -> str:
    known = [*READY_MADE, "top_2_layers", "bottom_2_layers"]
    nearest = difflib.get_close_matches(entry, [*known, *names], n=2, cutoff=0.0)
    return f"which matches no parameter of the model; the nearest are {', '.join(nearest)}, and the ready-made sets are {', '.join(known)}"
