"""lm-eval tasks by name: what identifies one, and what a model makes of it, with intervals and every item's scores."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.artifacts import combined_digest, digest_bytes
from eval.running.results import failure_reason, highest_score
from eval.running.task_code import task_code_digest
from eval.scoring.statistics import majority_baseline

if TYPE_CHECKING:
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks import TaskManager

    from eval.running.answers import RememberingModel
    from eval.running.chat import Chat

_FEWSHOT_SEED = 1234  # as the stock command's
_EVAL_DIR = Path(__file__).resolve().parent.parent
TASKS_DIR = _EVAL_DIR / "tasks"
_PASSAGES = ("flores_passage", "passage")  # in rows of Belebele and BoolQ, where several questions are about one text
Sample = dict[str, Any]
# What a task's YAML calls itself, its group or its tags, on that line or as items below it; items of other lists do no harm.
_NAMING = re.compile(r"""^(?:["']?(?:task|group|tag)["']?\s*:|\s*-\s)(.*)$""", re.MULTILINE)
_SUFFIXES = (".yaml", "")  # without one: what other files include
_NAME = re.compile(r"""[^\s,\[\]"']+""")


@dataclass(frozen=True)
class FoundTask:
    """A loaded task and its identity.

    Attributes:
        digest: of its settings and code and of every request, target and row: equal digests ask and score alike.
        prompts_digest: of the requests, targets and rows alone.
        limit: only the first so many rows are asked.
    """

    name: str
    task: ConfigurableTask
    digest: str
    prompts_digest: str
    limit: int | None = None

    def build(self, chat: Chat | None) -> Chat | None:
        """Build the requests as one model is asked; returns how, with what is known of this task's examples."""
        if chat is not None and chat.multiturn:
            from eval.running.chat import documents_with_turns

            chat = replace(chat, documents=documents_with_turns([instance.doc for instance in self.task.instances]))
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
            self.task.build_all_requests(limit=self.limit, rank=0, world_size=1, **_chat_arguments(chat), **_renderer(chat))
        return chat


def _chat_arguments(chat: Chat | None) -> dict[str, Any]:
    return {} if chat is None else chat.request_arguments()


def _renderer(chat: Chat | None) -> dict[str, Any]:
    return {} if chat is None or chat.template is None else {"chat_template": chat.apply_chat_template}


def find_tasks(names: Sequence[str], **where: Any) -> dict[str, FoundTask]:
    """Tasks by name, as `find_usable_tasks`.

    Raises:
        ValueError: also if a task's rows cannot be asked.
    """
    found, unusable = find_usable_tasks(names, **where)
    if unusable:
        raise ValueError(next(iter(unusable.values())))
    return found


def find_usable_tasks(
    names: Sequence[str],
    *,
    task_dirs: Sequence[Path] = (TASKS_DIR,),
    metadata: Mapping[str, Any] | None = None,
    hub: Path | None = None,
    limit: int | None = None,
) -> tuple[dict[str, FoundTask], dict[str, str]]:
    """Tasks by name, and why each of the others cannot be asked; groups and tags stand for their tasks.

    lm-eval's bundled tasks are looked at only for a name that is not found otherwise: indexing them takes longer than evaluating a small
    model.  Their data sets are read from `hub`.

    Args:
        metadata: what the tasks' loaders get: `data` (folder of evaluation data), `shots`, `seed`, `split`, `items`; and `beams` of the tasks
            that sample.
        hub: folder with data sets of the hub, see `eval.running.bundled_tasks`.
        limit: ask the first so many rows of each task.

    Returns:
        (tasks, name of a task whose rows are missing or wrong -> the reason)

    Raises:
        ValueError: if a task folder is missing, or a name is unknown; the known ones are listed.
    """
    from eval.running.bundled_tasks import LocalTasks

    for directory in task_dirs:
        if not directory.is_dir():
            raise ValueError(f"the task folder {directory} does not exist")
    paths: list[str | Path] = [str(directory) for directory in task_dirs]
    manager = LocalTasks(paths, metadata=metadata or {}, hub=hub, bundled=False)
    own = sorted(manager.all_tasks)
    if any(name not in manager.task_index for name in names):
        manager = LocalTasks(paths, metadata=metadata or {}, hub=hub, bundled=True)
    found: dict[str, FoundTask] = {}
    unusable: dict[str, str] = {}
    for name in names:
        if name not in manager.task_index:
            raise ValueError(f"unknown task {name}; known tasks are {', '.join(own)}, and those of lm-eval (`lm_eval ls tasks`)")
        # A tag's tasks one by one, so that rows missing of one do not stand in the way of the others.
        for member in sorted(manager.task_index[name].tags) if name in manager.all_tags else [name]:
            try:
                found |= _load(manager, member, beams=int((metadata or {}).get("beams", 1)), limit=limit)
            except Exception as error:  # a task's files and functions are its owner's, and raise anything
                unusable[member] = failure_reason(error)
    return found, unusable


def _load(manager: TaskManager, name: str, *, beams: int, limit: int | None) -> dict[str, FoundTask]:
    return {task_name: _found(task_name, task, beams=beams, limit=limit) for task_name, task in manager.load([name])["tasks"].items()}


def _found(name: str, task: Any, *, beams: int, limit: int | None) -> FoundTask:
    settings = task.get_config("generation_kwargs") or {}
    if beams > 1 and settings.get("do_sample"):  # the low-resource paper's decoding; greedy protocols have none
        task.set_config(key="generation_kwargs", value={**settings, "num_beams": beams, "early_stopping": True})
    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=_FEWSHOT_SEED)
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        task.build_all_requests(limit=limit, rank=0, world_size=1)
    _require_labels(task)
    asked = [[instance.request_type, list(instance.args), str(task.doc_to_target(instance.doc))] for instance in task.instances]
    rows = {instance.doc_id: instance.doc for instance in task.instances}  # with references and labels, which requests do not hold
    prompts = digest_bytes(json.dumps([asked, list(rows.values())], ensure_ascii=False, default=str).encode())
    code = task_code_digest(task.config.to_dict(keep_callable=True))
    return FoundTask(name, task, combined_digest({"code": code, "prompts": prompts}), prompts, limit)


def _require_labels(task: Any) -> None:
    """Refuse right answers that are none of the choices, which lm-eval would count as wrong for every model."""
    if task.OUTPUT_TYPE != "multiple_choice" or task.multiple_input:
        return
    for number, document in enumerate({instance.doc_id: instance.doc for instance in task.instances}.values(), start=1):
        targets, choices = task.doc_to_target(document), task.doc_to_choice(document)
        for target in targets if isinstance(targets, list) else [targets]:
            if isinstance(target, int) and not 0 <= target < len(choices):
                raise ValueError(f"row {number} has the label {target}; expected the number of one of its {len(choices)} choices, from 0")


def run_task(lm: Any, found: FoundTask, chat: Chat | None = None) -> tuple[dict[str, Any], list[Sample]]:
    """One task on any lm-eval model: its metrics with intervals, and its samples.

    Args:
        chat: of `FoundTask.build`, for a model that is asked in conversations; `lm` has its template too.

    Raises:
        ValueError: if a log-likelihood is not finite, or a prompt does not fit.
    """
    import lm_eval

    # Not simple_evaluate: it describes the machine after every task, for which it lists all installed packages and takes half a second.
    # bootstrap_iters = 0 would also switch off the standard error of a mean, which needs no bootstrap.
    # For some metrics (acc_valid's mean among them) it would fork a process per core, whatever threads hold locks: a run stood still for ever.
    os.environ["DISABLE_MULTIPROC"] = "1"
    # Three progress bars per task and a line on stdout; logging has its own handle and is still heard.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        output = lm_eval.evaluate(
            lm=lm,
            task_dict={"tasks": {found.name: found.task}},
            limit=found.limit,
            bootstrap_iters=2,
            log_samples=True,
            **_chat_arguments(chat),
        )
    assert output is not None, "lm-eval returns results on rank 0, and there is one rank"
    samples = sorted(output["samples"][found.name], key=lambda sample: sample["doc_id"])
    metrics = _metrics(output["results"][found.name], found.task, samples)
    _mark_cuts(lm, samples, found.task)
    metadata = found.task.get_config("metadata") or {}
    summary = {
        "metrics": metrics,
        "num_items": len({sample["doc_id"] for sample in samples}),
        "num_groups": len(set(_groups(samples))),
        "num_fewshot": metadata.get("shots", output["n-shot"].get(found.name)),
        "version": output["versions"].get(found.name),
        # Two results may be compared item by item only where these agree.
        "task_hash": digest_bytes(json.dumps([[s["doc_hash"], s["prompt_hash"], s["target_hash"]] for s in samples]).encode()),
        "digest": found.digest,
        "prompts_digest": found.prompts_digest if chat is None else _chat_digest(found, chat),
        "higher_is_better": output["higher_is_better"].get(found.name),
        "majority": _majority(samples),
        **{
            f"{what}_cut": _share([sample[f"{what}_cut"] for sample in samples if f"{what}_cut" in sample]) for what in ("prompt", "answer")
        },
    }
    return summary, samples


def _chat_digest(found: FoundTask, chat: Chat) -> str:
    """Of what is asked, and whether and how as a conversation; not of the template, which belongs to the model."""
    return combined_digest({"prompts": found.prompts_digest, "chat": json.dumps(chat.request_arguments(), sort_keys=True)})


def _metrics(results: Mapping[str, Any], task: Any, samples: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    from lm_eval.api.metrics import mean

    from eval.scoring.score_intervals import score_interval

    clusters = _groups(samples)
    metrics: dict[str, dict[str, Any]] = {}
    aggregations = list(task.aggregation())  # in the order of the task's file, whose first metric is the headline of tables
    found = [key.partition(",") for key in results if "," in key and not key.partition(",")[0].endswith("_stderr")]
    for name, _, filter_name in sorted(found, key=lambda parts: aggregations.index(parts[0])):
        value = results[f"{name},{filter_name}"]
        # That of others is a bootstrap of two resamples, see run_task.
        stderr = results.get(f"{name}_stderr,{filter_name}") if task.aggregation()[name] is mean else None
        chosen = [sample for sample in samples if sample["filter"] == filter_name and name in sample]
        interval = None
        if chosen and len(chosen) == len(samples):
            out_of = 100 if highest_score(name) == 100 else 1
            interval = score_interval([sample[name] for sample in chosen], task.aggregation()[name], clusters=clusters, out_of=out_of)
        description = interval.figures() if interval else {"low": None, "high": None, "n": len(samples), "units": len(set(clusters))}
        description |= {"value": value, "stderr": stderr if isinstance(stderr, float) else None}
        metrics[name if filter_name in ("none", "runs") else f"{name} ({filter_name})"] = description
    return metrics


def _groups(samples: Sequence[Sample]) -> list[str]:
    """What each item hangs together with: its passage or story, else itself."""
    return [_group(sample) for sample in samples]


def _group(sample: Sample) -> str:
    document = sample["doc"]
    named = next((name for name in ("group", *_PASSAGES) if isinstance(document.get(name), str | int)), None)
    return str(sample["doc_id"] if named is None else document[named])


def request_kind(task: Any) -> str:
    """The type of request that a task makes."""
    output_type = str(task.get_config("output_type"))
    return "loglikelihood" if output_type == "multiple_choice" else output_type


def _mark_cuts(lm: RememberingModel | Any, samples: Sequence[Sample], task: Any) -> None:
    """Say in each sample whether its prompt lost its beginning and its answer its end."""
    if not hasattr(lm, "prompt_was_cut"):
        return
    kind = request_kind(task)
    for sample in samples:
        sample["prompt_cut"] = float(any(lm.prompt_was_cut(kind, arguments) for arguments in sample["arguments"]))
        if kind == "generate_until":
            sample["finished"] = lm.finished(sample["arguments"][0], runs=len(sample["resps"][0]))
            if None not in sample["finished"]:
                sample["answer_cut"] = 1 - sum(sample["finished"]) / len(sample["finished"])


def _share(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _majority(samples: Sequence[Sample]) -> dict[str, Any] | None:
    """The most frequent right answer and its share, where answers are one of a few labels, the same for all items."""
    documents = [sample["doc"] for sample in samples]
    choices = documents[0].get("choices")
    if not isinstance(choices, list) or not all(doc.get("choices") == choices for doc in documents):
        return None
    if not all(isinstance(doc.get("label"), int) and 0 <= doc["label"] < len(choices) for doc in documents):
        return None
    label, share = majority_baseline([document["label"] for document in documents])
    return {"answer": choices[label], "acc": share}


def item_scores(samples: Sequence[Sample]) -> dict[str, Any]:
    """What paired tests need, in little space: ids, prompts' hashes, and the numbers that each item scored."""
    names = [name for name in samples[0]["metrics"] if isinstance(samples[0].get(name), int | float)]
    return {
        "ids": [str(sample["doc"].get("id", sample["doc_id"])) for sample in samples],
        "groups": _groups(samples),
        "prompts": [sample["prompt_hash"][:16] for sample in samples],
        "scores": {name: [None if math.isnan(sample[name]) else sample[name] for sample in samples] for name in names},
    }


def names_in(folders: Iterable[Path]) -> set[str]:
    """Names of tasks, groups and tags in the YAML files of some folders, and a few words that are none."""
    files = (file for folder in folders for file in folder.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    lines = (line for file in files for line in _NAMING.findall(file.read_text(encoding="utf-8", errors="replace")))
    return {name for line in lines for name in _NAME.findall(line)}


def unknown_task_problems(names: Sequence[str], task_dirs: Sequence[Path]) -> list[str]:
    """A sentence for each name that neither the folders nor lm-eval have, with the nearest that they have.

    Without loading lm-eval, whose index of its own takes longer than evaluating a small model.
    """
    own = names_in(task_dirs)
    if not (others := [name for name in names if name not in own]):
        return []
    known = own | names_in(bundled_folders())
    nearest = {name: difflib.get_close_matches(name, known, n=1) for name in others if name not in known}
    return [
        f"there is no task {name}; {f'did you mean {near[0]}? ' if near else ''}the tasks are those of eval/tasks and of lm-eval"
        for name, near in nearest.items()
    ]


def bundled_folders() -> list[Path]:
    """Where lm-eval has its tasks."""
    spec = importlib.util.find_spec("lm_eval")
    return [Path(spec.origin).parent / "tasks"] if spec is not None and spec.origin else []
