"""What both programs are told of a recipe, before it is put into the words of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.artifacts import Manifest
from data_prep.megatron.index import PREFIX
from recipes.numbers.schedules import decay_span
from recipes.numbers.steps import blend_of, weights_of
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe

_STYLES = {"cosine": "cosine", "linear": "linear", "inverse_square_root": "inverse-square-root", "fixed": "constant"}


@dataclass(frozen=True)
class Decay:
    """A learning rate's way in Megatron's words; its warmup is the recipe's.

    Attributes:
        style: of the whole.
        end: step from which the lowest rate holds.
        anneal_steps, anneal_style: of the style WSD: how long the last part is, and its shape.
    """

    style: str
    end: int
    anneal_steps: int | None = None
    anneal_style: str | None = None


def decay_of(recipe: Recipe) -> Decay:
    """The decay of a recipe; warmup, hold and linear decay is what Megatron calls WSD with a linear end."""
    schedule, steps = recipe.schedule, recipe.total_steps
    if schedule.decay_style in ("fixed", "inverse_square_root"):
        return Decay(_STYLES[schedule.decay_style], steps)
    start, length = decay_span(schedule, steps=steps)
    if schedule.decay_style in ("wsd", "warmup_hold"):
        return Decay("WSD", start + length, length, schedule.wsd_decay_style or "linear")
    return Decay(_STYLES[schedule.decay_style], start + length)


@dataclass(frozen=True)
class DataBlend:
    """Data sets by the path that Megatron calls a prefix, and their shares; one alone has none."""

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] | None

    def words(self) -> list[str]:
        """Share and prefix of each in turn, as Megatron's arguments take them."""
        if self.weights is None:
            return list(self.prefixes)
        return [word for weight, prefix in zip(self.weights, self.prefixes, strict=True) for word in (f"{weight!r}", prefix)]


def training_data(recipe: Recipe, inputs: RunInputs) -> DataBlend:
    """The data sets of a run with the shares that they have here."""
    if recipe.schedule.epochs is not None:
        weights = tuple(float(number) for number in blend_of(recipe, inputs.train).drawn)
    else:
        weights = tuple(float(weight) for weight in weights_of(recipe.data, inputs.train))
    return _blend([Path(path) for path in recipe.data.train], weights)


def held_out_data(recipe: Recipe, inputs: RunInputs) -> DataBlend | None:
    """The held-out text of all languages, by tokens; None without any."""
    if not recipe.data.validation:
        return None
    weights = tuple(float(inputs.validation[language].facts["num_tokens"]) for language in recipe.data.validation)
    return _blend([Path(path) for path in recipe.data.validation.values()], weights)


def _blend(directories: list[Path], weights: tuple[float, ...]) -> DataBlend:
    prefixes = tuple(str(directory.absolute() / PREFIX) for directory in directories)
    return DataBlend(prefixes, weights if len(prefixes) > 1 else None)


def manifests_by_path(recipe: Recipe, inputs: RunInputs) -> dict[str, Manifest]:
    """Manifest of each input of a run, by the path that the recipe gives."""
    held_out = {path: inputs.validation[language] for language, path in recipe.data.validation.items()}
    return {recipe.model.checkpoint: inputs.checkpoint, **dict(zip(recipe.data.train, inputs.train, strict=True)), **held_out}
