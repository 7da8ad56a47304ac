"""Evaluate checkpoints: bits per byte on held-out texts, and lm-eval tasks from local task folders.

Every model gets a folder of its own below --output with `result.json`, the samples of every task, the figures of every document and
its manifest.  A folder that exists with the same model, texts, tasks and settings is not computed again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conversion.bits_per_byte import START_TOKEN_RULES, choose_start_token, choose_window_tokens, score_documents
from conversion.hf_model import DTYPES, Checkpoint, be_quiet_and_offline, default_device, inspect_checkpoint, load_model
from data_prep import command
from data_prep.artifacts import combined_digest, digest_bytes, digest_files, staged_directory, write_manifest
from data_prep.reading.documents import SUFFIXES, add_format_arguments
from data_prep.reading.named_texts import Text, read_texts
from data_prep.tables import markdown_table
from eval.model_names import named_checkpoints
from eval.results import RESULT_FORMAT, find_earlier, write_lines, write_result

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

_FEWSHOT_SEED = 1234  # as the stock command's
TASKS_DIR = Path(__file__).resolve().parent / "tasks"


@dataclass(frozen=True)
class Settings:
    """What changes a figure without being model, text or task.

    Attributes:
        start_token: rule for the token before every document, see `conversion.bits_per_byte.choose_start_token`.
        context_length: positions per pass; None for the smaller of the model's position table and 2048.
        dtype: of the weights in memory.
    """

    start_token: str = "auto"
    context_length: int | None = None
    dtype: str = "float32"


def find_tasks(
    names: Sequence[str], *, task_dirs: Sequence[Path] = (TASKS_DIR,), metadata: Mapping[str, Any] | None = None
) -> tuple[TaskManager, dict[str, str]]:
    """Tasks by name, and the digest of each one's folder; groups and tags stand for their tasks.

    lm-eval's bundled tasks are left out: indexing them takes longer than evaluating a small model, and most want the network.

    Args:
        metadata: what the tasks' loaders get: `data` (folder of evaluation data), `shots`, `seed`, `split`, `items`.

    Raises:
        ValueError: if a task folder is missing, or a name is unknown; the known ones are listed; or a task's rows cannot be asked.
    """
    from lm_eval.tasks import TaskManager

    for directory in task_dirs:
        if not directory.is_dir():
            raise ValueError(f"the task folder {directory} does not exist")
    manager = TaskManager(include_path=[str(directory) for directory in task_dirs], include_defaults=False, metadata=dict(metadata or {}))
    digests: dict[str, str] = {}
    for name in names:
        if name not in manager.task_index:
            raise ValueError(f"unknown task {name}; known tasks are {', '.join(sorted(manager.all_tasks))}")
        for task in manager.load([name])["tasks"]:
            yaml_path = manager.task_index[task].yaml_path
            digests[task] = _folder_digest(Path(yaml_path).parent) if yaml_path is not None else ""
    return manager, digests


def _folder_digest(directory: Path) -> str:
    files = (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return digest_files(directory, [path.relative_to(directory).as_posix() for path in files])


def result_key(checkpoint: Checkpoint, texts: Iterable[Text], tasks: Mapping[str, str], settings: Settings) -> str:
    """Identity of an evaluation: equal for equal weights, tokenizer, texts, task folders, settings and library versions."""
    parts = {f"text {text.name}": text.digest for text in texts} | {f"task {name}": digest for name, digest in tasks.items()}
    return combined_digest({**parts, "model": checkpoint.digest, "rest": json.dumps([RESULT_FORMAT, asdict(settings), _versions()])})


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {package: version(package) for package in ("lm_eval", "torch", "transformers", "tokenizers")}


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    output_dir: Path,
    *,
    texts: Sequence[Text],
    tasks: Mapping[str, str],
    task_manager: TaskManager | None,
    settings: Settings,
    device: str = "cpu",
    batch_size: int = 8,
) -> dict[str, Any]:
    """Evaluate one model and write its folder of results; returns what `result.json` says.

    Raises:
        ValueError: if the model cannot be loaded or its logits are not finite, or if `output_dir` is not empty.
    """
    start = time.monotonic()
    window_tokens = choose_window_tokens(checkpoint.num_positions, settings.context_length)
    start_token = choose_start_token(checkpoint.tokenizer, settings.start_token) if texts else None
    with staged_directory(output_dir) as staging:
        model = load_model(checkpoint, device=device, dtype=settings.dtype)
        result: dict[str, Any] = {
            "format": RESULT_FORMAT,
            "key": result_key(checkpoint, texts, tasks, settings),
            "name": checkpoint.name,
            "model": {
                "digest": checkpoint.digest,
                "tokenizer_digest": checkpoint.tokenizer_digest,
                "model_type": checkpoint.model_type,
                "vocab_size": checkpoint.vocab_size,
                "tie_word_embeddings": checkpoint.tie_word_embeddings,
                "num_parameters": model.num_parameters(),
                "written_by": checkpoint.stage,
            },
            "facts": checkpoint.facts,
            "settings": {**asdict(settings), "window_tokens": window_tokens, "device": device, "batch_size": batch_size},
            "texts": {},
            "tasks": {},
            "versions": _versions(),
        }
        for text in texts:
            assert start_token is not None
            result["settings"]["start_token_used"] = asdict(start_token)
            score = score_documents(
                model,
                checkpoint.tokenizer,
                text.documents,
                start_token=start_token,
                window_tokens=window_tokens,
                text_name=f"{text.path} with model {checkpoint.name}",
            )
            result["texts"][text.name] = {**score.figures(), "digest": text.digest}
            write_lines(staging / "documents" / f"{text.name}.jsonl", (asdict(document) for document in score.documents))
        if tasks:
            from eval.hf_backend import LocalModel

            assert task_manager is not None
            # The tokenizer's own special tokens stay in front of a task's prompt, as with the stock command.
            lm = LocalModel(pretrained=model, tokenizer=checkpoint.tokenizer, max_length=window_tokens, batch_size=batch_size)
            for task, digest in tasks.items():
                result["tasks"][task], samples = run_task(lm, task, task_manager)
                result["tasks"][task]["folder_digest"] = digest
                write_lines(staging / "samples" / f"{task}.jsonl", samples)
        result["seconds"] = round(time.monotonic() - start, 2)
        write_result(staging, result)
        write_manifest(
            staging,
            stage="eval.harness",
            facts=checkpoint.facts,
            arguments={**asdict(settings), "tasks": list(tasks), "texts": [text.name for text in texts]},
            inputs={"model": checkpoint.digest, **{f"text {text.name}": text.digest for text in texts}},
        )
    return result


def run_task(lm: Any, task: str, manager: TaskManager) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One lm-eval task on any lm-eval model: its metrics with standard errors and hashes, and its samples.

    Raises:
        ValueError: if a log-likelihood is not finite.
    """
    import lm_eval

    # Not simple_evaluate: it describes the machine after every task, for which it lists all installed packages and takes half a second.
    loaded = manager.load([task])
    for member in loaded["tasks"].values():
        if member.get_config("num_fewshot") is None:
            member.set_config(key="num_fewshot", value=0)
        member.set_fewshot_seed(seed=_FEWSHOT_SEED)
    # bootstrap_iters = 0 would also switch off the standard error of a mean, which needs no bootstrap.
    with contextlib.redirect_stderr(io.StringIO()):  # three progress bars per task; logging has its own handle and is still heard
        output = lm_eval.evaluate(lm=lm, task_dict=loaded, bootstrap_iters=100, log_samples=True)
    assert output is not None, "lm-eval returns results on rank 0, and there is one rank"
    metrics: dict[str, dict[str, Any]] = {}
    for key, value in output["results"][task].items():
        name, _, filter_name = key.partition(",")
        if filter_name and not name.endswith("_stderr"):
            stderr = output["results"][task].get(f"{name}_stderr,{filter_name}")
            entry = {"value": value, "stderr": stderr if isinstance(stderr, float) else None}
            metrics[name if filter_name == "none" else f"{name} ({filter_name})"] = entry
    samples = sorted(output["samples"][task], key=lambda sample: sample["doc_id"])
    summary = {
        "metrics": metrics,
        "num_items": len({sample["doc_id"] for sample in samples}),
        "num_fewshot": output["n-shot"].get(task),
        "version": output["versions"].get(task),
        # Two results may be compared item by item only where these agree.
        "task_hash": digest_bytes(json.dumps([[s["doc_hash"], s["prompt_hash"], s["target_hash"]] for s in samples]).encode()),
        "higher_is_better": output["higher_is_better"].get(task),
    }
    return summary, samples


def results_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Models in rows; bits per byte of every text and the first metric of every task in columns."""
    texts = list(dict.fromkeys(name for result in results for name in result["texts"]))
    tasks = list(dict.fromkeys(name for result in results for name in result["tasks"]))
    rows = []
    for result in results:
        row = [result["name"]]
        row += [f"{result['texts'][name]['bits_per_byte']:.4f}" if name in result["texts"] else "–" for name in texts]
        row += [_first_metric(result["tasks"][name]) if name in result["tasks"] else "–" for name in tasks]
        rows.append([*row, f"{result['seconds']:.1f}"])
    return markdown_table(["model", *(f"bits per byte, {name}" for name in texts), *tasks, "seconds"], rows)


def _first_metric(task: Mapping[str, Any]) -> str:
    name, entry = next(iter(task["metrics"].items()))
    stderr = f" ± {entry['stderr']:.3f}" if entry["stderr"] is not None else ""
    return f"{name} {entry['value']:.3f}{stderr}"


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        prog="eval.harness",
        example="python -m eval.harness --model hf/ --text sl=heldout.sl.txt en=heldout.en.txt --tasks completion_sl --output results/",
    )
    parser.add_argument("--model", nargs="+", required=True, metavar="[NAME=]FOLDER", help="Hugging Face folders; the name is the result's")
    parser.add_argument("--text", nargs="+", default=[], metavar="NAME=FILE", help=f"held-out texts ({', '.join(SUFFIXES)})")
    add_format_arguments(parser)
    parser.add_argument("--tasks", nargs="+", default=[], metavar="TASK", help="lm-eval tasks of eval/tasks and of --task-dir")
    parser.add_argument("--task-dir", nargs="+", type=Path, default=[], metavar="DIR", help="more folders of lm-eval tasks")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a folder of results per model is written here")
    parser.add_argument(
        "--start-token",
        choices=START_TOKEN_RULES,
        default="auto",
        help="before every document of a text: the token that the tokenizer itself puts there, else EOS (auto); BOS; EOS",
    )
    parser.add_argument("--context-length", type=int, metavar="TOKENS", help="positions per pass; default: the model's, at most 2048")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights in memory (default: %(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ...; default: cuda where there is one")
    parser.add_argument("--batch-size", type=int, default=8, help="requests per pass in tasks (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate all models given; one that fails is reported at the end and does not keep the others from being evaluated."""
    arguments = _parser().parse_args(argv)
    if not arguments.text and not arguments.tasks:
        raise ValueError("nothing to evaluate: give --text, --tasks or both")
    if arguments.batch_size < 1:
        raise ValueError(f"--batch-size is {arguments.batch_size}; it must be at least 1")
    texts = read_texts(arguments.text, text_key=arguments.text_key, separator=arguments.document_separator)
    be_quiet_and_offline()
    import logging

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    checkpoints = [inspect_checkpoint(folder, name=name) for name, folder in named_checkpoints(arguments.model).items()]
    manager, tasks = find_tasks(arguments.tasks, task_dirs=(TASKS_DIR, *arguments.task_dir)) if arguments.tasks else (None, {})
    settings = Settings(arguments.start_token, arguments.context_length, arguments.dtype)
    for checkpoint in checkpoints:  # before any model is loaded
        choose_window_tokens(checkpoint.num_positions, settings.context_length)
        choose_start_token(checkpoint.tokenizer, settings.start_token)
    earlier = {c.name: find_earlier(arguments.output / c.name, result_key(c, texts, tasks, settings)) for c in checkpoints}
    device = arguments.device or default_device()

    results, failures = [], []
    for number, checkpoint in enumerate(checkpoints, start=1):
        found = earlier[checkpoint.name]
        if found is None:
            try:
                found = evaluate_checkpoint(
                    checkpoint,
                    arguments.output / checkpoint.name,
                    texts=texts,
                    tasks=tasks,
                    task_manager=manager,
                    settings=settings,
                    device=device,
                    batch_size=arguments.batch_size,
                )
                print(f"[{number}/{len(checkpoints)}] {checkpoint.name}: {found['seconds']:.1f} s", file=sys.stderr, flush=True)
            except ValueError as error:
                failures.append(f"{checkpoint.name}: {error}")
                continue
        else:
            print(f"[{number}/{len(checkpoints)}] {checkpoint.name}: evaluated before", file=sys.stderr, flush=True)
        results.append(found)
    if results:
        print(results_table(results))
    for result in results:
        for name, figures in result["texts"].items():
            if figures["unknown_bytes"]:
                share = figures["unknown_bytes"] / figures["text_bytes"]
                print(f"note: {share:.1%} of the bytes of {name} are unknown to the tokenizer of {result['name']}; each counts 8 bits")
    if failures:
        raise ValueError(f"{len(failures)} of {len(checkpoints)} models could not be evaluated: {'; '.join(failures)}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
