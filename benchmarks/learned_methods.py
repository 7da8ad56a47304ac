"""Learned rows beside closed methods and beside plain training, on a real model: seconds, and bits per byte of held-out text.

    python -m benchmarks.learned_methods --source smollm2/ --data DATA --steps 60

DATA holds `text/{en,sl}/eltec_novels.jsonl.gz` and `text/en/ud_ewt.jsonl.gz`.  The source's vocabulary is expanded once; then each method makes its rows on one
thread, and the model with them is scored.  Beside them the rows of `mean` are trained on the same text by plain steps, of the token table alone and of all weights,
and scored after as many seconds as each learned method took: of the processor, or with --device cuda by the clock.  Products of what is scored are in bfloat16, all
else in float32 but a learned method's frozen weights on a GPU, which have its default.  Nothing is kept.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from conversion.checkpoints.hf_model import be_quiet_and_offline

be_quiet_and_offline()

import torch  # noqa: E402 (after the environment is set)

from benchmarks.real_model.training import chosen_device, seconds_now  # noqa: E402
from conversion.checkpoints.hf_model import inspect_checkpoint, load_model  # noqa: E402
from conversion.comparing.comparison import TextScorer, TrainingOptions, adamw, pack, put_rows, take_step  # noqa: E402
from conversion.embeddings import METHODS  # noqa: E402
from conversion.embeddings.case import read_case  # noqa: E402
from conversion.embeddings.checkpoint import Transfer  # noqa: E402
from conversion.embeddings.methods.learning_options import LearningOptions  # noqa: E402
from conversion.embeddings.request import TransferRequest  # noqa: E402
from conversion.embeddings.settings import VocabularyOptions  # noqa: E402
from data_prep.reading.documents import Documents  # noqa: E402
from data_prep.reading.named_texts import Text  # noqa: E402
from data_prep.tokenizers.plain_tokenizer import by_transformers  # noqa: E402

CLOSED = ("mean", "merge", "align", "focus")
LEARNED = tuple(name for name, method in METHODS.items() if method.learns)
TRAINING_RATE, WARMUP_STEPS = 5e-4, 5


def novels(data: Path, language: str) -> list[str]:
    """Chapters of novels."""
    with gzip.open(data / "text" / language / "eltec_novels.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def heldout(chapters: Sequence[str], name: str, num_bytes: int) -> Text:
    """Paragraphs of the last chapters."""
    kept: list[str] = []
    for paragraph in (p for chapter in chapters[-20:] for p in chapter.split("\n\n") if len(p) > 200):
        if sum(len(text.encode()) for text in kept) >= num_bytes:
            break
        kept.append(paragraph)
    return Text(name, Path(name), kept, "")


def main() -> None:
    """Make the rows by each method, score the models and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="model folder")
    parser.add_argument("--data", type=Path, required=True, help="folder of real text")
    parser.add_argument("--new-tokens", type=int, default=2000)
    parser.add_argument("--text-bytes", type=int, default=3_000_000)
    parser.add_argument("--heldout-bytes", type=int, default=12_000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=LearningOptions().batch_size)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=LearningOptions().learning_rate)
    parser.add_argument("--output-rows", default="mean", help="token-distillation")
    parser.add_argument("--methods", nargs="+", default=[*CLOSED, *LEARNED], help="default: closed ones and all that learn")
    arguments = parser.parse_args()
    device = chosen_device(arguments.device)
    torch.set_num_threads(1)
    chapters = {language: novels(arguments.data, language) for language in ("sl", "en")}
    texts = [heldout(chapters[language], language, arguments.heldout_bytes) for language in ("sl", "en")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sl.jsonl"
        path.write_text(training_lines(chapters["sl"][:-20], arguments.text_bytes), encoding="utf-8")
        request = TransferRequest(
            arguments.source, None, "mean", VocabularyOptions("expand", arguments.new_tokens), text=Documents([path], text_key="text")
        )
        case = read_case(request)
        checkpoint = inspect_checkpoint(arguments.source, name="source")
        model = load_model(checkpoint, device=arguments.device, dtype="float32")
        show("source", 0.0, score(model, checkpoint.tokenizer, texts))
        options = LearningOptions(
            num_steps=arguments.steps, learning_rate=arguments.learning_rate, device=arguments.device, batch_size=arguments.batch_size
        )
        seconds: dict[str, float] = {}
        for method in arguments.methods:
            told = replace(options, output_rows=arguments.output_rows) if method == "token-distillation" else options
            inputs = replace(case.inputs, teacher=replace(case.inputs.teacher, options=told))  # type: ignore[type-var]
            start = seconds_now(device)
            transfer = Transfer.of(replace(case, inputs=inputs), replace(request, method=method))
            grafted = put_rows(model, transfer)
            seconds[method] = seconds_now(device) - start
            show(
                method,
                seconds[method],
                score(grafted, by_transformers(case.target.tokenizer), texts),
                str(transfer.plan.facts.get("losses", "")),
            )
        marks = sorted(seconds[method] for method in LEARNED if method in seconds)
        how = TrainingOptions(0, TRAINING_RATE, options.batch_size, options.window_tokens)
        rows = pack(by_transformers(case.target.tokenizer), list(Documents([path], text_key="text")), how)
        for name, all_weights in (("mean + training of the table", False), ("mean + training of all weights", True)):
            trained = copy.deepcopy(put_rows(model, Transfer.of(case, request)))
            for steps, spent in trained_until(trained, rows, how, marks, all_weights=all_weights):
                show(name, spent, score(trained, by_transformers(case.target.tokenizer), texts), f"{steps} steps")


def trained_until(
    model, rows: torch.Tensor, how: TrainingOptions, marks: Sequence[float], *, all_weights: bool
) -> Iterator[tuple[int, float]]:  # type: ignore[no-untyped-def]
    """Train by plain steps; yields steps and seconds whenever the next mark is reached."""
    table = model.get_input_embeddings().weight
    for parameter in model.parameters():
        parameter.requires_grad_(all_weights or parameter is table)
    optimizer = adamw(model, how)
    batches = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))].split(how.batch_size)
    device = table.device
    left, spent = list(marks), 0.0
    for step, batch in enumerate(itertools.cycle(batches), start=1):
        if not left:
            return
        start = seconds_now(device)
        take_step(model, optimizer, batch, how, warmup_steps=WARMUP_STEPS, step=step)  # it looks at the loss, so a GPU is done
        spent += seconds_now(device) - start
        if spent >= left[0]:
            left.pop(0)
            yield step, spent


def training_lines(chapters: Sequence[str], num_bytes: int) -> str:
    """So many bytes of chapters at even distances, as JSON lines."""
    wanted = max(1, round(num_bytes / (sum(len(chapter.encode()) for chapter in chapters) / len(chapters))))
    chosen = chapters[:: max(1, len(chapters) // wanted)]
    return "".join(json.dumps({"text": chapter}, ensure_ascii=False) + "\n" for chapter in chosen)


def score(model, tokenizer, texts: Sequence[Text]) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """Text -> bits per byte."""
    rounded = copy.deepcopy(model).bfloat16()
    return {name: found.bits_per_byte for name, found in TextScorer(tokenizer)(rounded, texts).items()}


def show(name: str, seconds: float, scores: dict[str, float], note: str = "") -> None:
    """One line of the table."""
    print(f"| {name} | {seconds:.0f} | " + " | ".join(f"{value:.3f}" for value in scores.values()) + f" | {note[:60]}", flush=True)


if __name__ == "__main__":
    main()
