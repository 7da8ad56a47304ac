"""Learned rows beside closed methods and beside plain training, on a real model: CPU seconds, and bits per byte of held-out text.

    python -m benchmarks.learned_methods --source smollm2/ --data DATA --steps 60

DATA holds `text/{en,sl}/eltec_novels.jsonl.gz` and `text/en/ud_ewt.jsonl.gz`.  The source's vocabulary is expanded once; then each method makes its rows on one
thread, and the model with them is scored.  `mean + training` trains all weights from the rows of `mean` on the same text, for as many steps as `--training-steps`
says: about as many seconds.  Nothing is kept.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conversion.hf_model import be_quiet_and_offline

be_quiet_and_offline()

import torch  # noqa: E402 (after the environment is set)

from conversion.comparison import TextScorer, TrainingOptions, pack, put_rows, train  # noqa: E402
from conversion.embeddings import METHODS  # noqa: E402
from conversion.embeddings.case import read_case  # noqa: E402
from conversion.embeddings.checkpoint import Transfer  # noqa: E402
from conversion.embeddings.learning_options import LearningOptions  # noqa: E402
from conversion.embeddings.request import TransferRequest  # noqa: E402
from conversion.embeddings.settings import VocabularyOptions  # noqa: E402
from conversion.hf_model import inspect_checkpoint, load_model  # noqa: E402
from data_prep.reading.documents import Documents  # noqa: E402
from data_prep.reading.named_texts import Text  # noqa: E402

CLOSED = ("mean", "merge", "align", "focus")
LEARNED = tuple(name for name, method in METHODS.items() if method.learns)
TRAINING_RATE = 5e-4


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
    parser.add_argument("--training-steps", type=int, default=0, help="of all weights, beside the methods (default: none)")
    parser.add_argument("--learning-rate", type=float, default=LearningOptions().learning_rate)
    parser.add_argument("--output-rows", default="mean", help="token-distillation")
    parser.add_argument("--methods", nargs="+", default=[*CLOSED, *LEARNED], help="default: closed ones and all that learn")
    arguments = parser.parse_args()
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
        model = load_model(checkpoint, device="cpu", dtype="float32")
        show("source", 0.0, score(model, checkpoint.tokenizer, texts))
        options = LearningOptions(num_steps=arguments.steps, learning_rate=arguments.learning_rate)
        for method in arguments.methods:
            told = replace(options, output_rows=arguments.output_rows) if method == "token-distillation" else options
            inputs = replace(case.inputs, teacher=replace(case.inputs.teacher, options=told))  # type: ignore[type-var]
            start = time.process_time()
            transfer = Transfer.of(replace(case, inputs=inputs), replace(request, method=method))
            grafted = put_rows(model, transfer)
            show(
                method,
                time.process_time() - start,
                score(grafted, case.target.tokenizer, texts),
                str(transfer.plan.facts.get("losses", "")),
            )
        if arguments.training_steps:
            how = TrainingOptions(arguments.training_steps, TRAINING_RATE, options.batch_size, options.window_tokens)
            rows = pack(case.target.tokenizer, list(Documents([path], text_key="text")), how)
            start = time.process_time()
            trained = train(copy.deepcopy(put_rows(model, Transfer.of(case, request))), rows, how, seed=request.seed)
            show("mean + training", time.process_time() - start, score(trained, case.target.tokenizer, texts))


def training_lines(chapters: Sequence[str], num_bytes: int) -> str:
    """So many bytes of chapters at even distances, as JSON lines."""
    wanted = max(1, round(num_bytes / (sum(len(chapter.encode()) for chapter in chapters) / len(chapters))))
    chosen = chapters[:: max(1, len(chapters) // wanted)]
    return "".join(json.dumps({"text": chapter}, ensure_ascii=False) + "\n" for chapter in chosen)


def score(model, tokenizer, texts: Sequence[Text]) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """Text -> bits per byte."""
    return {name: found.bits_per_byte for name, found in TextScorer(tokenizer)(model, texts).items()}


def show(name: str, seconds: float, scores: dict[str, float], note: str = "") -> None:
    """One line of the table."""
    print(f"| {name} | {seconds:.0f} | " + " | ".join(f"{value:.3f}" for value in scores.values()) + f" | {note[:60]}", flush=True)


if __name__ == "__main__":
    main()
