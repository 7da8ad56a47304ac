"""Run a whole project or pipeline, from text and a model to a report: on this machine, or with --on CLUSTER by Slurm.

FILE is a project or a pipeline (docs/slurm.md).  Complete stages are skipped, so the same command resumes after any
interruption.  Stages that a changed setting affects are listed and run again; training, and outputs made manually, only with --rerun.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from common import command
from common.options import add_option
from common.plain_files import write_text
from recipes.pipelines.checks import task_problems
from recipes.pipelines.file import command_of, dependencies_of, tasks_of
from recipes.pipelines.forecast import forecast_problems, forecasts, render_forecast
from recipes.pipelines.live_page import PAGE_NAME, write_live_page
from recipes.pipelines.load import load_pipeline
from recipes.pipelines.local import LocalRun
from recipes.pipelines.machine import Machine, machine_problems
from recipes.pipelines.work import Choice, Work, find_work
from recipes.planner.hardware import visible_gpu
from recipes.projects.eject import eject_text
from recipes.rules.schema import raise_all


def main(argv: Sequence[str] | None = None) -> int:
    """Plan, check and print; then run."""
    parser = command.parser(__doc__, example="python -m recipes.run recipes/projects/demo_tiny.yaml --until tokenizer")
    parser.add_argument("file", type=Path, help="YAML file of a project or a pipeline")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the project file, such as training.steps=20")
    add_option(parser, "--eject FILE", "write the stages of a project as a pipeline file; run nothing", type=Path)
    add_option(parser, "--show", "print the stages with their commands (with --on: each job script); run nothing", False)
    add_option(parser, "--until STAGE", "run only this stage and what it depends on")
    add_option(parser, "--from STAGE", "run only this stage and what depends on it", dest="start")
    add_option(parser, "--only STAGE", "run only this stage")
    add_option(
        parser, "--rerun", "run every stage that has changed again, including training and stages whose output was made manually", False
    )
    add_option(parser, "--on CLUSTER", "cluster to run on: bundled (slurm/clusters), or a YAML file of your own")
    add_option(parser, "--account", "Slurm account to charge; short for --set account=NAME")
    add_option(parser, "--set key=value", "override of the cluster file", [], action="append")
    add_option(parser, "--submit", "with --on: submit the jobs", False)
    arguments = parser.parse_intermixed_args(argv)
    if arguments.on is None and (arguments.submit or arguments.account or arguments.set):
        raise ValueError("--submit, --account and --set are for a cluster; name one with --on, or leave them out")
    if arguments.only and (arguments.until or arguments.start):
        raise ValueError("--only is for one stage alone; leave --until and --from out")
    pipeline = load_pipeline(arguments.file, arguments.overrides)
    if arguments.eject is not None:
        return _eject(arguments.file, arguments.overrides, arguments.eject)
    choice = Choice(until=arguments.until, start=arguments.start, only=arguments.only, rerun=arguments.rerun)
    work = find_work(pipeline, choice)
    for sentence in work.sentences():
        print(sentence)
    if arguments.show:
        print(_render_stages(work))
    if arguments.on is None:
        return _run_here(work, show=arguments.show)
    settings = [*arguments.set, *([f"account={arguments.account}"] if arguments.account else [])]
    on_cluster = _slurm().run_on(work, cluster_name=arguments.on, settings=settings, submit=arguments.submit, show=arguments.show)
    return int(on_cluster)


def _eject(file: Path, overrides: Sequence[str], target: Path) -> int:
    if target.exists():
        raise ValueError(f"{target} exists; remove it or choose another name for --eject")
    write_text(target, eject_text(file, overrides=overrides))
    print(f"{target}: next, `scion run {shlex.quote(str(target))}`")
    return command.DONE


def _run_here(work: Work, *, show: bool) -> int:
    pipeline, machine = work.pipeline, Machine.here()
    subject = f"the pipeline {pipeline.name}"
    gpu = visible_gpu() if machine.gpus else None
    raise_all([*task_problems(pipeline, work.tasks, gpu=gpu), *machine_problems(pipeline, work.tasks, machine)], subject=subject)
    if not work.tasks:
        page = None if show else write_live_page(pipeline)
        print(f"everything is complete in {pipeline.root}" + (f"; see {page}" if page else ""))
        return command.DONE
    expected = forecasts(work, machine)
    print(render_forecast(expected), flush=True)
    raise_all(forecast_problems(pipeline, expected, machine), subject=subject)
    if show:
        return command.DONE
    if (pipeline.root / "submissions").is_dir():
        _slurm().require_no_jobs(pipeline.root)
    code = LocalRun(work, machine, {task: found.seconds for task, found in expected.items() if found.seconds is not None}).run()
    if code == command.DONE:
        print(f"done: {pipeline.root}; the page to open: {pipeline.root / PAGE_NAME}", file=sys.stderr)
    return code


def _slurm():  # type: ignore[no-untyped-def]
    """What knows of Slurm comes after this stage, and is looked up by name as the commands of all stages are."""
    return importlib.import_module("slurm.stages.pipeline_run")


def _render_stages(work: Work) -> str:
    """Stage by stage, in the order of the file; commands that have to run have a `$` before them, others say why not."""
    pipeline, lines = work.pipeline, []
    for name in pipeline.stages:
        tasks = tasks_of(pipeline, name)
        dependencies = dict.fromkeys(need.stage for task in tasks for need in dependencies_of(pipeline, task))
        lines.append(f"{name}" + (f" <- {', '.join(dependencies)}" if dependencies else ""))
        for task in tasks:
            mark = "$" if task in work.tasks else "#"
            lines.append(f"  {mark} {shlex.join(command_of(pipeline, task))}")
    return "\n".join([*lines, "", "$ will run; # is complete, or not selected"])


if __name__ == "__main__":
    command.run(main)
