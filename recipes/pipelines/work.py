"""What of a pipeline has to run: what is not complete, what is not as its settings say any more, and what is read by either."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from recipes.pipelines.file import Pipeline, Task, dependencies_of, output_of, tasks_of
from recipes.pipelines.state import forget, is_there, save_space, standing
from recipes.rules.schema import raise_all


@dataclass(frozen=True)
class Choice:
    """Which stages are wanted, by default all.

    Attributes:
        until: this one, and what it needs.
        start: this one, and what depends on it.
        only: this one alone.
        rerun: also what is not made again unasked: trainings, and what this pipeline did not make.
    """

    until: str | None = None
    start: str | None = None
    only: str | None = None
    rerun: bool = False


@dataclass(frozen=True)
class Work:
    """What is to be done.

    Attributes:
        choice: by which it was found.
        tasks: to run, in an order in which each comes behind what it needs.
        again: what is there and has to go first, each with why.
    """

    pipeline: Pipeline
    choice: Choice
    tasks: tuple[Task, ...]
    again: Mapping[Task, str]

    def sentences(self) -> list[str]:
        """Why what is there runs again: a line for each stage that has changed, with the stages that follow."""
        followers = [task.name for task, why in self.again.items() if not why]
        lines = [f"{task.name}: {why}" for task, why in self.again.items() if why]
        return [*lines, f"so these run again too: {', '.join(followers)}"] if followers else lines

    def prepare(self) -> None:
        """Remove what has to go, the last first, so that what is left never seems to be made from what has changed."""
        for task in reversed(list(self.again)):
            forget(self.pipeline, task)


def find_work(pipeline: Pipeline, choice: Choice = Choice()) -> Work:
    """What has to run; removes nothing.

    Raises:
        ValueError: if a name is that of no stage, an output is damaged, a stage reads what is neither there nor chosen, or something
            would be made again that is not without being told to.
    """
    everything = _in_order(pipeline)
    chosen = _chosen(pipeline, choice)
    found = {task: standing(pipeline, task) for task in everything}
    stale: dict[Task, str] = {}
    for task in everything:
        if (change := found[task].change) is not None:
            stale[task] = change
        elif any(need in stale for need in dependencies_of(pipeline, task)):
            stale[task] = ""
    goes: dict[Task, str] = {}
    for task, why in stale.items():
        if task.stage in chosen or any(need in goes for need in dependencies_of(pipeline, task)):
            goes[task] = why
    goes = {task: why for task, why in goes.items() if why or is_there(pipeline, task)}
    complete = {task for task in everything if found[task].is_complete} - stale.keys()
    tasks = tasks_to_run(pipeline, complete, chosen)
    unmet = [(task, need) for task in tasks for need in dependencies_of(pipeline, task) if need not in complete and need not in tasks]
    problems = [f"stage {task.name} reads the output of {need.name}, which is not complete and not selected" for task, need in unmet[:1]]
    kept = [task for task in goes if is_there(pipeline, task) and (_trains(pipeline, task) or not found[task].is_own)]
    if kept and not choice.rerun:
        whys = "; ".join(f"{task.name}: {why}" for task, why in goes.items() if why)
        made = "a training" if _trains(pipeline, kept[0]) else "not made by this pipeline"
        problems.append(
            f"{whys}; so {kept[0].name} would run again, and {output_of(pipeline, kept[0])} ({made}) be removed, with"
            f" {len(goes) - 1} other outputs; give --rerun to do that, take the change back, or choose another work_dir"
        )
    raise_all(problems, subject=f"the pipeline {pipeline.name}")
    return Work(pipeline, choice, tuple(tasks), goes)


def tasks_to_run(pipeline: Pipeline, complete: Collection[Task], stages: Collection[str] | None = None) -> list[Task]:
    """What has to run: what is not complete and is wanted for itself or by something that has to run.

    An output that was removed to save space is not made again as long as everything made from it is there.

    Args:
        stages: that are wanted, by default all.
    """
    everything = [task for task in _in_order(pipeline) if stages is None or task.stage in stages]
    wanted_by: dict[Task, list[Task]] = {task: [] for task in everything}
    runs: set[Task] = set()
    for task in everything:
        for need in dependencies_of(pipeline, task):
            wanted_by.setdefault(need, []).append(task)
    for task in reversed(everything):
        if task not in complete and (not wanted_by[task] or any(other in runs for other in wanted_by[task])):
            runs.add(task)
    return [task for task in everything if task in runs]


def remove_unneeded(pipeline: Pipeline, *, among: Iterable[Task]) -> None:
    """Remove what is not to be kept and was made for tasks that are all complete.

    Args:
        among: of which some may have become unneeded just now.
    """
    for task in among:
        if not pipeline.stages[task.stage].keep:
            users = [user for user in _in_order(pipeline) if task in dependencies_of(pipeline, user)]
            if users and all(standing(pipeline, user).is_complete for user in users):
                save_space(pipeline, task)


def _trains(pipeline: Pipeline, task: Task) -> bool:
    return pipeline.stages[task.stage].train is not None


def _chosen(pipeline: Pipeline, choice: Choice) -> set[str]:
    known = list(pipeline.stages)
    for name in (choice.until, choice.start, choice.only):
        if name is not None and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ValueError(f"there is no stage {name}; {f'did you mean {near[0]}? ' if near else ''}there are {', '.join(known)}")
    dependencies = {name: {need.stage for task in tasks_of(pipeline, name) for need in dependencies_of(pipeline, task)} for name in known}
    users = {name: {other for other in known if name in dependencies[other]} for name in known}
    chosen = {choice.only} if choice.only else set(known)
    if choice.until:
        chosen &= _reached(choice.until, dependencies)
    if choice.start:
        chosen &= _reached(choice.start, users)
    if not chosen:
        raise ValueError(f"there is no stage between {choice.start or choice.only} and {choice.until or choice.only}")
    return chosen


def _reached(start: str, steps: Mapping[str, Iterable[str]]) -> set[str]:
    reached, left = {start}, [start]
    while left:
        new = set(steps[left.pop()]) - reached
        reached |= new
        left += new
    return reached


def _in_order(pipeline: Pipeline) -> list[Task]:
    """All tasks, each stage behind those that it needs, else as the file has them."""
    dependencies = {
        name: {need.stage for task in tasks_of(pipeline, name) for need in dependencies_of(pipeline, task)} for name in pipeline.stages
    }
    order: list[str] = []
    while len(order) < len(dependencies):
        order.append(next(name for name in dependencies if name not in order and dependencies[name] <= set(order)))
    return [task for name in order for task in tasks_of(pipeline, name)]
