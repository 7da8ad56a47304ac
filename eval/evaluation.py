"""One model evaluated on texts and tasks: its folder of results, written once complete, and the answers kept until then."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conversion.bits_per_byte import StartToken, TextScore, choose_start_token, choose_window_tokens, score_documents
from conversion.hf_model import Checkpoint, load_model
from data_prep.artifacts import combined_digest, digest_bytes, staged_directory, write_manifest
from data_prep.reading.named_texts import Text
from eval.results import RESULT_FORMAT, write_lines, write_result
from eval.statistics import ratio_interval
from eval.task_runs import FoundTask, item_scores, run_task

BACKENDS = ("hf", "vllm")
_VLLM_PIECE = 256  # requests between two writes; it makes its own batches


@dataclass(frozen=True)
class Settings:
    """What changes a figure without being model, text or task.

    Attributes:
        start_token: rule for the token before every document, see `conversion.bits_per_byte.choose_start_token`.
        context_length: positions per pass; None for the smaller of the model's position table and 2048.
        dtype: of the weights in memory.
        backend: what runs the tasks; texts are always scored by transformers.
        cut_prompts: prompts that do not fit lose their beginning instead of being refused.
        sampling_seed: of the protocols that sample.
    """

    start_token: str = "auto"
    context_length: int | None = None
    dtype: str = "float32"
    backend: str = "hf"
    cut_prompts: bool = False
    sampling_seed: int = 1234


def result_key(checkpoint: Checkpoint, texts: Iterable[Text], tasks: Mapping[str, FoundTask], settings: Settings) -> str:
    """Identity of an evaluation: equal for equal weights, tokenizer, texts, tasks with their prompts, settings and library versions."""
    parts = {f"text {text.name}": text.digest for text in texts} | {f"task {name}": found.digest for name, found in tasks.items()}
    return combined_digest({**parts, "model": checkpoint.digest, "rest": _rest(settings)})


def _rest(settings: Settings) -> str:
    return json.dumps([RESULT_FORMAT, asdict(settings), _versions(settings.backend)])


def _versions(backend: str) -> dict[str, str]:
    from importlib.metadata import version

    packages = ("lm_eval", "torch", "transformers", "tokenizers", *(("vllm",) if backend == "vllm" else ()))
    return {package: version(package) for package in packages}


@dataclass(frozen=True)
class Machine:
    """What a model runs on; it changes no figure beyond rounding."""

    device: str = "cpu"
    batch_size: int = 8


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    output_dir: Path,
    *,
    texts: Sequence[Text],
    tasks: Mapping[str, FoundTask],
    settings: Settings,
    machine: Machine,
) -> dict[str, Any]:
    """Evaluate one model and write its folder of results; returns what `result.json` says.

    Raises:
        ValueError: if the model cannot be loaded or its logits are not finite, if prompts do not fit, or if `output_dir` is not empty.
    """
    start = time.monotonic()
    window_tokens = choose_window_tokens(checkpoint.num_positions, settings.context_length)
    answers_dir = _answers_dir(checkpoint, output_dir, settings)
    with staged_directory(output_dir) as staging:
        model = load_model(checkpoint, device=machine.device, dtype=settings.dtype) if texts or settings.backend == "hf" else None
        result = _description(checkpoint, texts, tasks, settings)
        result["settings"] |= {"window_tokens": window_tokens, **asdict(machine)}
        result["model"]["num_parameters"] = model.num_parameters() if model is not None else None
        if texts:
            start_token = choose_start_token(checkpoint.tokenizer, settings.start_token)
            result["settings"]["start_token_used"] = asdict(start_token)
            for text in texts:
                result["texts"][text.name] = _score_text(model, checkpoint, text, start_token, window_tokens, staging)
        if tasks:
            lm = _open_backend(model, checkpoint, window_tokens, settings, machine)
            for name, found in tasks.items():
                result["tasks"][name] = _answer_task(lm, found, answers_dir, staging, settings, machine)
        result["seconds"] = round(time.monotonic() - start, 2)
        write_result(staging, result)
        write_manifest(
            staging,
            stage="eval.harness",
            facts=checkpoint.facts,
            arguments={**asdict(settings), "tasks": list(tasks), "texts": [text.name for text in texts]},
            inputs={"model": checkpoint.digest, **{f"text {text.name}": text.digest for text in texts}},
        )
    shutil.rmtree(answers_dir, ignore_errors=True)  # the samples hold them now
    if answers_dir.parent.is_dir() and not any(answers_dir.parent.iterdir()):
        answers_dir.parent.rmdir()
    return result


def _answers_dir(checkpoint: Checkpoint, output_dir: Path, settings: Settings) -> Path:
    """Where answers are kept until the folder is complete: of this model, these settings and versions alone."""
    digest = combined_digest({"model": checkpoint.digest, "rest": _rest(settings)})
    return output_dir.parent / ".answers" / digest.removeprefix("xxh3:")[:16]


def _description(checkpoint: Checkpoint, texts: Sequence[Text], tasks: Mapping[str, FoundTask], settings: Settings) -> dict[str, Any]:
    return {
        "format": RESULT_FORMAT,
        "key": result_key(checkpoint, texts, tasks, settings),
        "name": checkpoint.name,
        "model": {
            "digest": checkpoint.digest,
            "tokenizer_digest": checkpoint.tokenizer_digest,
            "model_type": checkpoint.model_type,
            "vocab_size": checkpoint.vocab_size,
            "tie_word_embeddings": checkpoint.tie_word_embeddings,
            "written_by": checkpoint.stage,
        },
        "facts": checkpoint.facts,
        "settings": asdict(settings),
        "texts": {},
        "tasks": {},
        "versions": _versions(settings.backend),
    }


def _score_text(
    model: Any, checkpoint: Checkpoint, text: Text, start_token: StartToken, window_tokens: int, staging: Path
) -> dict[str, Any]:
    start = time.monotonic()
    score = score_documents(
        model,
        checkpoint.tokenizer,
        text.documents,
        start_token=start_token,
        window_tokens=window_tokens,
        text_name=f"{text.path} with model {checkpoint.name}",
    )
    write_lines(staging / "documents" / f"{text.name}.jsonl", (asdict(document) for document in score.documents))
    seconds = time.monotonic() - start
    num_words = sum(len(document.split()) for document in text.documents)
    return {**score.figures(), **_interval(score), "num_words": num_words, "seconds": round(seconds, 4), "digest": text.digest}


def _interval(score: TextScore) -> dict[str, float]:
    """95 % interval of bits per byte, by resampling documents."""
    bits = [document.nats / math.log(2) + 8 * document.unknown_bytes for document in score.documents]
    estimate = ratio_interval(bits, [document.text_bytes for document in score.documents])
    return {"low": estimate.low, "high": estimate.high}


def _open_backend(model: Any, checkpoint: Checkpoint, window_tokens: int, settings: Settings, machine: Machine) -> Any:
    # The tokenizer's own special tokens stay in front of a task's prompt, as with the stock command.
    if settings.backend == "vllm":
        from eval.vllm_backend import VllmModel

        return VllmModel(pretrained=str(checkpoint.directory), dtype=settings.dtype, max_model_len=window_tokens)
    from eval.hf_backend import LocalModel

    return LocalModel(pretrained=model, tokenizer=checkpoint.tokenizer, max_length=window_tokens, batch_size=machine.batch_size)


def _answer_task(backend: Any, found: FoundTask, answers_dir: Path, staging: Path, settings: Settings, machine: Machine) -> dict[str, Any]:
    from eval.answers import RememberingModel
    from eval.journal import Journal

    digest = digest_bytes(found.digest.encode()).removeprefix("xxh3:")[:16]
    lm = RememberingModel(
        backend,
        Journal(answers_dir / f"{found.name}.{digest}.jsonl"),
        requests_per_piece=_VLLM_PIECE if settings.backend == "vllm" else machine.batch_size,
        cut_prompts=settings.cut_prompts,
        sampling_seed=settings.sampling_seed,
    )
    try:
        summary, samples = run_task(lm, found)
    except ValueError as error:
        raise ValueError(f"task {found.name}: {error}") from error
    write_lines(staging / "samples" / f"{found.name}.jsonl", samples)
    write_lines(staging / "items" / f"{found.name}.jsonl", [item_scores(samples)])
    return summary
