"""Activation checkpointing: what a recipe may ask the backward pass to recompute, and what it then means."""

from __future__ import annotations

from dataclasses import replace

from recipes.numbers.arithmetic import divisors
from recipes.rules.schema import GRANULARITIES, METHODS, MODULES, RecomputationRecipe

CORE_ATTENTION, FEED_FORWARD = MODULES


def resolved(asked: RecomputationRecipe | None, layers: int) -> RecomputationRecipe | None:
    """The same with every default filled in.

    Args:
        layers: of a pipeline stage.
    """
    if asked is None:
        return None
    if asked.granularity == "selective":
        return replace(asked, modules=asked.modules or (CORE_ATTENTION,))
    method = asked.method or "uniform"
    return replace(asked, method=method, num_layers=asked.num_layers or (1 if method == "uniform" else layers))


def in_words(asked: RecomputationRecipe | None) -> str:
    """For the end of a layout's name."""
    if asked is None:
        return ""
    if asked.granularity == "selective":
        return f", {' and '.join(asked.modules or (CORE_ATTENTION,))} recomputed"
    if asked.method == "block" and asked.num_layers is not None:
        return f", {asked.num_layers} layers of a stage recomputed"
    each = "all" if asked.method == "block" or asked.num_layers in (None, 1) else f"every {asked.num_layers}"
    return f", {each} layers recomputed"


def recomputation_problems(recomputation: RecomputationRecipe, layers: int) -> list[str]:
    """Contradictions in the settings of activation checkpointing.

    Args:
        layers: of a pipeline stage.
    """
    granularity, method, number, modules = (getattr(recomputation, key) for key in ("granularity", "method", "num_layers", "modules"))
    if granularity not in GRANULARITIES:
        return [f"recomputation.granularity is {granularity!r}; expected one of {', '.join(GRANULARITIES)}"]
    if granularity == "selective":
        given = [f"recomputation.{key}" for key, value in (("method", method), ("num_layers", number)) if value is not None]
        problems = (
            [f"{' and '.join(given)} select whole layers, but the granularity is selective; leave them out, or set granularity=full"]
            if given
            else []
        )
        if unknown := [module for module in modules if module not in MODULES]:
            problems.append(f"recomputation.modules names {', '.join(unknown)}; known are {', '.join(MODULES)}")
        return problems
    problems = []
    if modules:
        problems.append(
            "recomputation.modules names parts of layers, but the granularity is full; leave it out, or set granularity=selective"
        )
    if method not in (None, *METHODS):
        problems.append(f"recomputation.method is {method!r}; expected one of {', '.join(METHODS)}")
    elif number is not None and number > layers:
        problems.append(
            f"recomputation.num_layers ({number}) is more than the {layers} layers of a pipeline stage; at most {layers} are possible"
        )
    elif number is not None and method != "block" and layers % number:
        problems.append(
            f"recomputation.num_layers ({number}) does not divide the {layers} layers of a pipeline stage, as the method uniform needs;"
            f" possible are {', '.join(map(str, divisors(layers)))}, or set method=block"
        )
    return problems
