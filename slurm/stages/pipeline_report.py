"""How every stage of a pipeline is doing: complete, failed and why, running, waiting, or not started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from common.tables import markdown_table
from recipes.pipelines.file import Task, output_of, tasks_of
from recipes.pipelines.state import is_complete, read_record
from slurm.chains.run_report import OUT_OF_LINKS, STOPPED, report_run, why_it_waits
from slurm.jobs.queue import queued_jobs
from slurm.stages.pipeline_submission import SentPipeline

COMPLETE, FAILED, RUNNING, WAITING, NOT_STARTED = "complete", "failed", "running", "waiting", "not started"


@dataclass(frozen=True)
class TaskReport:
    """One task at one moment."""

    name: str
    state: str
    message: str


def report_tasks(sent: SentPipeline) -> list[TaskReport]:
    """The state of every task of a pipeline."""
    queue = queued_jobs([sent.tag])
    reports = []
    for stage in sent.pipeline.stages:
        of_stage = [job for job in queue if sent.stage_tag(stage).is_of(job.job_id, job.comment)]
        for task in tasks_of(sent.pipeline, stage):
            jobs = [job for job in of_stage if _is_of(job.job_id, task)]
            in_queue = RUNNING if any(not job.is_waiting for job in jobs) else WAITING if jobs else None
            reasons = [why_it_waits(job) for job in jobs if job.is_waiting and job.reason not in ("Dependency", "None")]
            reports.append(_report(sent, task, in_queue, reasons[0] if in_queue == WAITING and reasons else ""))
    return reports


def render_tasks(root: Path, reports: list[TaskReport]) -> str:
    """The reports as a table, with what to do about failures."""
    counts = Counter(report.state for report in reports)
    summary = ", ".join(f"{counts[state]} {state}" for state in (COMPLETE, RUNNING, WAITING, FAILED, NOT_STARTED) if counts[state])
    lines = [
        f"{root}: {summary}",
        "",
        markdown_table(["task", "state", ""], [[r.name, r.state, r.message] for r in reports], text_columns=3),
    ]
    if counts[FAILED]:
        lines += ["", "Fix the cause and submit the pipeline again; complete stages are skipped."]
    return "\n".join(lines)


def _report(sent: SentPipeline, task: Task, in_queue: str | None, waits: str) -> TaskReport:
    try:
        if is_complete(sent.pipeline, task):
            return TaskReport(task.name, COMPLETE, "")
    except ValueError as error:
        return TaskReport(task.name, FAILED, str(error))
    if sent.pipeline.stages[task.stage].train is not None:
        return _training_report(sent, task, in_queue)
    if in_queue:
        return TaskReport(task.name, in_queue, waits)
    record = read_record(sent.pipeline, task)
    if record is None or record.is_done:
        return TaskReport(task.name, NOT_STARTED, "")
    return TaskReport(task.name, FAILED, f"{record.message} ({record.log})")


def _training_report(sent: SentPipeline, task: Task, in_queue: str | None) -> TaskReport:
    run_dir = output_of(sent.pipeline, task)
    if run_dir is None or not run_dir.is_dir():
        return TaskReport(task.name, in_queue or NOT_STARTED, "")
    report = report_run(run_dir)
    failed = not in_queue and report.state in (STOPPED, OUT_OF_LINKS) and bool(report.attempts)
    steps = f"step {report.step} of {report.total_steps if report.total_steps is not None else '?'}"
    return TaskReport(task.name, FAILED if failed else in_queue or NOT_STARTED, f"{steps}; {report.reason}")


def _is_of(job_id: str, task: Task) -> bool:
    """Whether a job of the task's stage is that of the task: of an array the member with its index."""
    _, underscore, index = job_id.partition("_")
    return not underscore or int(index) == task.index
