"""Answer the GaMS paper's test sets, whose labels are private to SloBench, and write the files that SloBench scores.

`eval.prepare` stores these rows separately: 30 of BoolQ, 250 of CB, 500 of COPA, 333 questions of MultiRC, 29 of RTE, 146 of WSC and 998 pairs of SI-NLI.
Prompts are those of the tasks `sl_*_gen`, with the paper's number of few-shot examples from the training rows.  The share of
invalid answers, which needs no label, is printed; an invalid answer is replaced by a random label, as in the paper's framework.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import digest_file, staged_directory, write_manifest
from common.options import add_option
from common.tables import markdown_table
from conversion.checkpoints.hf_model import DTYPES, be_quiet_and_offline, default_device, inspect_checkpoint, load_model
from conversion.measuring.intervals import wilson_interval
from eval.protocols.protocol import DEFAULT_SEED, documents
from eval.protocols.rows import Rows, data_folder
from eval.protocols.scoring import read_label, read_numbers
from eval.protocols.slovene import WORDINGS, unlabelled_questions
from eval.running.generation import Settings, Text, transformers_generator
from eval.running.shortening import shortened

ANSWERS_NAME = "answers.jsonl"


@dataclass(frozen=True)
class TestSet:
    """One set of SloBench.

    Attributes:
        file: what SloBench calls it, with the suffix it wants.
        shots: the paper's Table 3.
        form: of a valid answer, see `eval.protocols.scoring`; None for numbers of right answers (MultiRC).
        labels: SloBench's, in the order of the form's.
    """

    file: str
    protocol: str
    shots: int
    form: str | None
    labels: tuple[Any, ...] = ()
    max_new_tokens: int = 16


TEST_SETS = (
    TestSet("BoolQ.jsonl", "boolq", 3, "yes_no", ("true", "false")),
    TestSet("CB.jsonl", "cb", 5, "holds_or_unknown", ("entailment", "contradiction", "neutral")),
    TestSet("COPA.jsonl", "copa", 5, "one_two", (0, 1)),
    TestSet("MultiRC.jsonl", "multirc", 2, None, max_new_tokens=50),
    TestSet("RTE.jsonl", "rte", 3, "holds", ("entailment", "not_entailment")),
    TestSet("WSC.jsonl", "wsc", 4, "yes_no", ("True", "False")),
    TestSet("NLI.txt", "si_nli", 5, "inference", ("entailment", "neutral", "contradiction")),
)
_READ_FROM = {"si_nli": "slobench/SI-NLI"}
Answer = Any  # a label, or the numbers of MultiRC's right answers; None where it is invalid


def asked_documents(test_set: TestSet, *, data: str | None, wording: str, seed: int) -> list[dict[str, Any]]:
    """Prompts of the test rows, in the order of their file.

    Raises:
        ValueError: if rows or fields are missing.
    """
    known = WORDINGS[wording][test_set.protocol]
    source = Rows(_READ_FROM.get(test_set.protocol, f"slobench/{Path(test_set.file).stem}"), "test")
    scored: Callable[[Any], dict[str, Any]] = lambda row: {"numbers": row.get("numbers")}  # noqa: E731
    if test_set.form is None:
        labelled = known.prepare
        prepare = lambda rows: labelled(rows) if rows[0]["split"] == "train" else unlabelled_questions(rows)  # noqa: E731
        known = replace(known, prepare=prepare)
    return documents(replace(known, evaluated=source, scored=scored), data=data, shots=test_set.shots, seed=seed)


def read_answer(test_set: TestSet, document: Mapping[str, Any], text: str) -> Answer:
    """What a text says, None where it has not the form asked for."""
    if test_set.form is None:
        return read_numbers(text, highest=len(document["numbers"]["answers"]))
    index = read_label(text, test_set.form)
    return None if index is None else test_set.labels[index]


def submission_lines(test_set: TestSet, asked: Sequence[Mapping[str, Any]], answers: Sequence[Answer], *, seed: int) -> list[str]:
    """Lines of the file that SloBench takes; labels of invalid answers are drawn by the seed."""
    rng = random.Random(f"{seed} {test_set.file}")
    if test_set.form is None:
        return _multirc_lines(asked, answers, rng)
    labels = [rng.choice(test_set.labels) if answer is None else answer for answer in answers]
    if test_set.file.endswith(".txt"):
        return labels
    return [json.dumps({"idx": _idx(document), "label": label}) for document, label in zip(asked, labels, strict=True)]


def _multirc_lines(asked: Sequence[Mapping[str, Any]], answers: Sequence[Answer], rng: random.Random) -> list[str]:
    passages: dict[int, list[dict[str, Any]]] = {}
    for document, right in zip(asked, answers, strict=True):
        numbers = document["numbers"]
        chosen = {number for number in range(1, len(numbers["answers"]) + 1) if rng.random() < 0.5} if right is None else right
        # Answers without text were not shown, and are none that could be right.
        labels = [{"idx": idx, "label": int(place + 1 in chosen)} for place, idx in enumerate(numbers["answers"])]
        hidden = [{"idx": idx, "label": 0} for idx in numbers["hidden"]]
        answered = {"idx": numbers["question"], "answers": sorted([*labels, *hidden], key=lambda answer: int(answer["idx"]))}
        passages.setdefault(numbers["passage"], []).append(answered)
    return [json.dumps({"idx": idx, "passage": {"questions": questions}}) for idx, questions in passages.items()]


def _idx(document: Mapping[str, Any]) -> int:
    return int(str(document["id"]).rpartition(":")[2])


def _fitting_prompts(asked: Sequence[Mapping[str, Any]], checkpoint: Any, settings: Settings) -> tuple[list[str], int]:
    """Prompts with as many examples, then as much of the article, as fit; and how many were shortened."""
    room = (checkpoint.num_positions or 1 << 30) - settings.max_new_tokens

    def fits(text: str) -> bool:
        return len(checkpoint.tokenizer(text)["input_ids"]) <= room

    prompts, cut = [], 0
    for document in asked:
        prompt = document["prompt"]
        if not fits(prompt):
            cut += 1
            prompt = shortened(prompt, document["cuts"], fits) or prompt
        prompts.append(prompt)
    return prompts, cut


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__, example="python -m eval.slobench --model hf/ --data eval_data/ --wording 2024-07 --output submission/")
    add_option(parser, "--model DIR", "Hugging Face folder, or a LoRA adapter", type=Path, required=True)
    add_option(parser, "--data DIR", "output of eval.prepare superglue_sl si_nli, with the unlabelled test rows")
    add_option(parser, "--wording", "version of the prompts; 2024-07 is the paper's", "2024-10", choices=tuple(WORDINGS))
    add_option(parser, "--seed", "seed of the examples and of random labels for invalid answers", DEFAULT_SEED)
    add_option(parser, "--dtype", "data type of the weights in memory", "float32", choices=DTYPES)
    add_option(parser, "--device", "device: cpu, cuda or cuda:1 ... (default: cuda where there is one)")
    add_option(parser, "--batch-size", "prompts per batch", 8)
    add_option(parser, "--output DIR", f"folder to write: one file per set, and {ANSWERS_NAME} with the texts", type=Path, required=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Answer every set whose test rows are there, and print rows and invalid answers."""
    arguments = _parser().parse_args(argv)
    command.require_at_least(1, arguments, "batch_size")
    be_quiet_and_offline()
    folder = data_folder(arguments.data)
    asked = {one: asked_documents(one, data=str(folder), wording=arguments.wording, seed=arguments.seed) for one in _found(folder)}
    checkpoint = inspect_checkpoint(arguments.model, name=arguments.model.name)
    model = load_model(checkpoint, device=arguments.device or default_device(), dtype=arguments.dtype)
    table, lines, facts = [], [], {}
    with staged_directory(arguments.output) as staging:
        for test_set, found in asked.items():
            settings = Settings(test_set.max_new_tokens, stop="\n")
            prompts, cut = _fitting_prompts(found, checkpoint, settings)
            texts, _ = transformers_generator(model, checkpoint.tokenizer, settings, batch_size=arguments.batch_size)(prompts, 0)
            answers = [read_answer(test_set, document, text.text) for document, text in zip(found, texts, strict=True)]
            written = submission_lines(test_set, found, answers, seed=arguments.seed)
            (staging / test_set.file).write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
            lines += [_answer_line(test_set, *parts) for parts in zip(found, texts, answers, strict=True)]
            invalid = wilson_interval(sum(answer is None for answer in answers), len(answers))
            facts[test_set.file] = {"rows": len(found), "invalid": invalid.figures(), "shots": test_set.shots, "shortened": cut}
            shown = f"{100 * invalid.value:.2f} [{100 * invalid.low:.1f}, {100 * invalid.high:.1f}]"
            table.append([test_set.file, str(len(found)), str(test_set.shots), shown, str(cut)])
        (staging / ANSWERS_NAME).write_text("".join(lines), encoding="utf-8")
        write_manifest(
            staging,
            stage="eval.slobench",
            facts={"sets": facts},
            arguments={"wording": arguments.wording, "seed": arguments.seed, "dtype": arguments.dtype},
            inputs={"model": checkpoint.digest, **{one.file: _digest(folder, one) for one in asked}},
        )
    print(markdown_table(["file", "rows", "examples", "invalid answers, %", "prompts shortened"], table, text_columns=1))
    return command.DONE


def _source_file(folder: Path, test_set: TestSet) -> Path:
    return folder / f"{_READ_FROM.get(test_set.protocol, f'slobench/{Path(test_set.file).stem}')}.jsonl.gz"


def _found(folder: Path) -> list[TestSet]:
    found = [one for one in TEST_SETS if _source_file(folder, one).is_file()]
    if not found:
        raise ValueError(f"{folder} has no slobench/; expected the test rows that `python -m eval.prepare superglue_sl si_nli` keeps there")
    return found


def _digest(folder: Path, test_set: TestSet) -> str:
    return digest_file(_source_file(folder, test_set))


def _answer_line(test_set: TestSet, document: Mapping[str, Any], text: Text, answer: Answer) -> str:
    listed = sorted(answer) if isinstance(answer, set) else answer
    row = {"file": test_set.file, "id": document["id"], "prompt": document["prompt"], "text": text.text, "answer": listed}
    return f"{json.dumps(row, ensure_ascii=False)}\n"


if __name__ == "__main__":
    command.run(main)
