"""The rules between the numbers of a schedule: batches that grow, the length of the run, the learning rates and the shape of their way down."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.numbers.schedules import DECAYS, STYLES
from recipes.planner.ranking import divisors
from recipes.rules.schema import Recipe, ScheduleRecipe

# Styles that have a key; with the others it would mean nothing.
_STYLES_WITH = {
    "hold_steps": ("warmup_hold",),
    "decay_steps": ("wsd",),
    "wsd_decay_style": ("wsd",),
    "constant_steps": ("cosine", "linear", "wsd", "warmup_hold"),
}


def batch_problems(recipe: Recipe) -> list[str]:
    """What is wrong with how long a run is and how its batches grow; the steps of the run are not needed for it."""
    schedule = recipe.schedule
    if schedule.max_steps is not None and schedule.train_tokens is not None:
        return ["schedule.max_steps and schedule.train_tokens both set the length of the run; give one of them"]
    if schedule.max_steps is None and schedule.train_tokens is None and schedule.epochs is None:
        return ["the length of the run is not set; give schedule.max_steps, schedule.train_tokens or schedule.epochs"]
    return list(_ramp_problems(recipe))


def _ramp_problems(recipe: Recipe) -> Iterator[str]:
    ramp, full = recipe.schedule.ramp_up, recipe.schedule.global_batch_size
    if ramp is None:
        return
    way = full - ramp.start_batch_size
    if way <= 0:
        yield (
            f"schedule.ramp_up.start_batch_size ({ramp.start_batch_size}) is not below global_batch_size ({full});"
            " start with fewer samples, or leave schedule.ramp_up out"
        )
        return
    if way % ramp.batch_size_increment:
        yield (
            f"schedule.ramp_up goes from {ramp.start_batch_size} to {full} samples, which steps of batch_size_increment"
            f" ({ramp.batch_size_increment}) do not reach; set it to a divisor of {way}, for example {_nearest_divisor(way, ramp.batch_size_increment)}"
        )
        return
    unit = recipe.schedule.micro_batch_size * recipe.parallel.data_parallel_size
    uneven = [size for size in (ramp.start_batch_size, ramp.batch_size_increment) if unit and size % unit]
    if uneven and full % unit == 0:  # of a full batch that does not divide, the layout's rules speak
        yield (
            f"schedule.ramp_up has batches of {ramp.start_batch_size}, {ramp.start_batch_size + ramp.batch_size_increment} ... samples, but"
            f" each must be a multiple of micro_batch_size x data-parallel size ({recipe.schedule.micro_batch_size} x"
            f" {recipe.parallel.data_parallel_size} = {unit}); set start_batch_size and batch_size_increment to multiples of {unit},"
            " or take a smaller micro_batch_size or fewer replicas"
        )


def _nearest_divisor(number: int, expected: int) -> int:
    return min(divisors(number), key=lambda divisor: abs(divisor - expected))


def schedule_problems(recipe: Recipe) -> list[str]:
    """What is wrong with the learning rates and the steps that their way takes, in a run that has steps."""
    steps = recipe.total_steps
    schedule = recipe.schedule
    if steps < 1:
        size = schedule.batches.size(0)
        return [f"the data has fewer than the {size} samples of one step; give more data, or a smaller global_batch_size"]
    problems = list(_shape_problems(schedule))
    if not problems:
        problems += _span_problems(schedule, steps)
    return problems + list(_rate_problems(schedule)) + list(_ramp_length_problems(schedule, steps))


def _shape_problems(schedule: ScheduleRecipe) -> Iterator[str]:
    style = schedule.decay_style
    if style not in STYLES:
        yield f"schedule.decay_style is {style!r}; expected one of {', '.join(STYLES)}"
        return
    for key, styles in _STYLES_WITH.items():
        if getattr(schedule, key) and style not in styles:
            yield (
                f"schedule.{key} is {getattr(schedule, key)}, but schedule.decay_style is {style}, which does not use it;"
                f" leave it out, or set decay_style to {' or '.join(styles)}"
            )
    if style == "wsd":
        if schedule.decay_steps is None:
            yield "schedule.decay_style is wsd, but schedule.decay_steps is not set; give the number of decay steps"
        if schedule.wsd_decay_style not in DECAYS:
            found = "is not given" if schedule.wsd_decay_style is None else f"is {schedule.wsd_decay_style!r}"
            yield f"schedule.wsd_decay_style {found}; schedule.decay_style wsd needs one of {', '.join(DECAYS)}"
    if style == "warmup_hold" and schedule.hold_steps is None:
        yield "schedule.decay_style is warmup_hold, but schedule.hold_steps is not set; give the number of steps at the peak rate"


def _span_problems(schedule: ScheduleRecipe, steps: int) -> list[str]:
    """Warmup, hold, decay and tail have to find room in the run."""
    keys = ("warmup_steps", "hold_steps", "decay_steps", "constant_steps")
    given = {key: getattr(schedule, key) or 0 for key in keys if getattr(schedule, key) or key in ("warmup_steps", "constant_steps")}
    if sum(given.values()) <= steps:
        return []
    if schedule.decay_style in ("fixed", "inverse_square_root"):
        given.pop("constant_steps")
    room = steps - sum(given.values())
    fits = " or ".join(f"{key}={value + room}" for key, value in given.items() if value + room >= 0 and value)
    parts = " + ".join(f"{key} ({value})" for key, value in given.items())
    others = {1: "fits", 2: "fits the other"}.get(len(given), "fits the others")
    advice = f"at most {fits} {others}" if fits else "make them shorter, or the run longer"
    return [f"schedule.{parts} exceed{'s' if len(given) == 1 else ''} the {steps} steps of the run; {advice}"]


def _rate_problems(schedule: ScheduleRecipe) -> Iterator[str]:
    if schedule.min_learning_rate > schedule.learning_rate:
        yield (
            f"schedule.min_learning_rate ({schedule.min_learning_rate:g}) is above learning_rate ({schedule.learning_rate:g});"
            " are they swapped?"
        )
    elif schedule.decay_style == "fixed" and schedule.min_learning_rate not in (0.0, schedule.learning_rate):
        yield (
            f"schedule.min_learning_rate is {schedule.min_learning_rate:g}, but with schedule.decay_style fixed every step has the rate"
            f" learning_rate ({schedule.learning_rate:g}); leave it out, or set another decay_style"
        )
    highest, lowest = schedule.embedding_rates
    if schedule.embedding_learning_rate is None and schedule.embedding_min_learning_rate is not None:
        yield "schedule.embedding_min_learning_rate is given without embedding_learning_rate; give both"
    elif lowest > highest and schedule.embedding_min_learning_rate is not None:
        yield (f"schedule.embedding_min_learning_rate ({lowest:g}) is above embedding_learning_rate ({highest:g}); are they swapped?")
    elif lowest > highest and schedule.embedding_learning_rate is not None:
        yield (
            f"schedule.embedding_learning_rate ({highest:g}) is below min_learning_rate ({lowest:g}), at which the embeddings' decay ends"
            " too; give embedding_min_learning_rate"
        )


def _ramp_length_problems(schedule: ScheduleRecipe, steps: int) -> Iterator[str]:
    if schedule.ramp_up is None:
        return
    batches = schedule.batches
    if steps <= batches.ramp_steps:
        yield (
            f"schedule.ramp_up.samples ({schedule.ramp_up.samples:,}) are all that the run's {steps:,} steps see ({batches.samples(steps):,}),"
            f" so that no step has the {schedule.global_batch_size} of global_batch_size; set fewer, or give the run more than"
            f" {batches.ramp_steps:,} steps"
        )
