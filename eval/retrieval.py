"""Sentence retrieval: how often the translation of an English sentence is among the nearest sentences of another language.

Vectors are means over a layer of the model, 8 as in OFA, compared by cosine similarity.  Encoders and
causal models can both be measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common import command
from common.artifacts import digest_bytes, staged_directory, write_manifest
from common.options import add_option
from common.progress import Progress, show
from common.tables import markdown_table
from conversion.checkpoints.hf_model import DTYPES, Checkpoint, be_quiet_and_offline, default_device, inspect_checkpoint
from conversion.measuring.intervals import Estimate, wilson_interval
from eval.protocols.sentence_retrieval import LAYER, MOST_SENTENCES, TOP, Pairs, line_pairs, ranks, tatoeba_pairs, verse_pairs
from eval.running.model_names import named_checkpoints

STAGE = "eval.retrieval"
_TASKS = {"tatoeba": "tatoeba", "verses": "bible", "lines": "retrieval"}  # how results call each form
Places = NDArray[np.int64]  # of the translation of each English sentence, from 1 on
RESULTS_NAME = "retrieval.json"


def read_pairs(arguments: argparse.Namespace) -> dict[str, Pairs]:
    """Pairs by language, from the one form that was given.

    Raises:
        ValueError: if none or several were, or a file is not what it should be.
    """
    given = [name for name in MOST_SENTENCES if getattr(arguments, name)]
    if len(given) != 1:
        raise ValueError(f"{' and '.join(f'--{name}' for name in given) or 'no text'} was given; give one of --lines, --tatoeba, --verses")
    most = arguments.max_sentences or MOST_SENTENCES[given[0]]
    if given[0] == "tatoeba":
        return tatoeba_pairs(arguments.tatoeba, most=most)
    if arguments.english is None:
        raise ValueError(f"--{given[0]} needs the English text beside it; give --english FILE")
    files = dict(_language_file(word, given[0]) for word in getattr(arguments, given[0]))
    if given[0] == "verses":
        return verse_pairs(arguments.english, files, most=most)
    return {language: line_pairs(arguments.english, path, most=most) for language, path in files.items()}


def _language_file(word: str, option: str) -> tuple[str, Path]:
    language, equals, path = word.partition("=")
    if not equals or not path:
        raise ValueError(f"--{option} {word} names no language; expected LANGUAGE=FILE, such as sl=sl.txt")
    return language, Path(path)


def measure(checkpoint: Checkpoint, pairs: dict[str, Pairs], arguments: argparse.Namespace) -> dict[str, Places]:
    """(num_pairs,) which place each translation has, from 1 on, by language."""
    from eval.scoring.sentence_vectors import SentenceEncoder

    encoder = SentenceEncoder(checkpoint, layer=arguments.layer, device=arguments.device, dtype=arguments.dtype)
    # Languages share their English sentences.
    english = list(dict.fromkeys(sentence for found in pairs.values() for sentence in found.english))
    place = {sentence: row for row, sentence in enumerate(english)}
    of_english = encoder.vectors(english, batch_size=arguments.batch_size)
    results = {}
    with Progress(f"retrieving with {checkpoint.name}", total=len(pairs), unit="languages") as progress:
        for language, found in pairs.items():
            mine = of_english[[place[sentence] for sentence in found.english]]
            results[language] = ranks(mine, encoder.vectors(found.other, batch_size=arguments.batch_size))
            progress.advance(1)
    return results


def accuracy(places: Places, *, top: int) -> Estimate:
    """The share of translations among the nearest; places (num_pairs,) from 1 on."""
    return wilson_interval(int((places <= top).sum()), len(places))


def add_to_results(checkpoint: Checkpoint, pairs: dict[str, Pairs], found: dict[str, Places], arguments: argparse.Namespace) -> None:
    """Put a model's places into its folder of results below --results, as one task for each language, for eval.report.

    Args:
        found: language -> (num_pairs,), see `measure`.
    """
    from eval.running.added_tasks import AddedTask, Item, add_tasks, is_held, task_digest
    from eval.running.earlier import earlier_result

    output, protocol = arguments.results / checkpoint.name, {"layer": arguments.layer, "top": arguments.top}
    earlier, tasks = earlier_result(output, checkpoint), {}
    for language, places in found.items():
        name = f"{_TASKS[_form(arguments)]}_{language}"
        rows = digest_bytes(json.dumps([pairs[language].english, pairs[language].other]).encode())
        if is_held(earlier, name, digest := task_digest(rows, protocol)):
            continue
        sides = zip(pairs[language].english, pairs[language].other, places.tolist(), strict=True)
        items = [
            Item(f"{name}:{number}", english, other, f"place {place}", {"acc": float(place <= arguments.top)})
            for number, (english, other, place) in enumerate(sides, start=1)
        ]
        metrics = {"acc": {**accuracy(places, top=arguments.top).figures(), "stderr": None}}
        tasks[name] = AddedTask(metrics, items, digest, protocol, {"language": language})
    if tasks:
        add_tasks(checkpoint, output, tasks, dtype=arguments.dtype, device=arguments.device)


def _form(arguments: argparse.Namespace) -> str:
    return next(name for name in MOST_SENTENCES if getattr(arguments, name))


def table(results: dict[str, dict[str, Estimate]], head: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: languages with how many sentences each has, then means over head, tail and all, in percent."""
    languages = list(next(iter(results.values())))
    rows = [
        [
            language,
            str(next(iter(results.values()))[language].n),
            *(f"{100 * of[language].value:.1f} [{100 * of[language].low:.1f}, {100 * of[language].high:.1f}]" for of in results.values()),
        ]
        for language in languages
    ]
    groups = {"head": [name for name in languages if name in head], "tail": [name for name in languages if name not in head]}
    if not (groups["head"] and groups["tail"]):
        groups = {}
    for group, names in {**groups, "all": languages}.items():
        rows.append(
            [f"mean of {group}", "", *(f"{100 * sum(of[name].value for name in names) / len(names):.1f}" for of in results.values())]
        )
    return ["language", "sentences", *results], rows


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__, example=f"python -m {STAGE} --model before=xlm-r/ after=hf/ --tatoeba xtreme/tatoeba --head slv hrv --output retrieval/"
    )
    add_option(parser, "--model [NAME=]FOLDER", "Hugging Face folders", nargs="+", required=True)
    add_option(parser, "--tatoeba DIR", "folder with XTREME's files: tatoeba.slv-eng.slv, tatoeba.slv-eng.eng ...", type=Path)
    add_option(parser, "--verses LANGUAGE=FILE", "verses of each language: one per line, as number, tab, text", nargs="+")
    add_option(parser, "--lines LANGUAGE=FILE", "text of each language, aligned line by line with --english", nargs="+")
    add_option(parser, "--english FILE", "English side of --verses or --lines", type=Path)
    add_option(parser, "--head LANGUAGE", "languages of the base model, averaged separately from the others", [], nargs="+")
    add_option(parser, "--layer", "layer whose hidden states are averaged, counted from 1; 0: embeddings", LAYER)
    add_option(parser, "--top", "number of nearest sentences among which the translation counts", TOP)
    add_option(
        parser, "--max-sentences", "maximum number of sentences per language, the first ones (default: 1000; of verses 500)", type=int
    )
    add_option(parser, "--batch-size", "sentences per forward pass", 32)
    add_option(parser, "--device", "device: cpu, cuda or cuda:1 ... (default: cuda where there is one)")
    add_option(parser, "--dtype", "data type of the weights in memory", "float32", choices=DTYPES)
    add_option(
        parser, "--results DIR", "also add the scores to the models' results in this folder, for eval.report and eval.figures", type=Path
    )
    add_option(parser, "--output DIR", f"folder to write: {RESULTS_NAME} and retrieval.md", type=Path, required=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    arguments = _parser().parse_args(argv)
    command.require_at_least(0, arguments, "layer")
    command.require_at_least(1, arguments, "top", "batch_size", "max_sentences")
    show("loading the model")
    be_quiet_and_offline()
    arguments.device = arguments.device or default_device()
    pairs = read_pairs(arguments)
    if unknown := sorted(set(arguments.head) - set(pairs)):
        raise ValueError(f"--head names {', '.join(unknown)}, which are not measured; measured are {', '.join(pairs)}")
    checkpoints = [inspect_checkpoint(folder, name=name) for name, folder in named_checkpoints(arguments.model).items()]
    results = {}
    for checkpoint in checkpoints:
        places = measure(checkpoint, pairs, arguments)
        results[checkpoint.name] = {language: accuracy(found, top=arguments.top) for language, found in places.items()}
        if arguments.results is not None:
            add_to_results(checkpoint, pairs, places, arguments)
    text = markdown_table(*table(results, arguments.head))
    facts = {
        "layer": arguments.layer,
        "top": arguments.top,
        "sentences": {language: len(found.english) for language, found in pairs.items()},
    }
    with staged_directory(arguments.output) as staging:
        figures = {name: {language: score.figures() for language, score in of.items()} for name, of in results.items()}
        (staging / RESULTS_NAME).write_text(json.dumps({**facts, "accuracy": figures}, indent=2) + "\n", encoding="utf-8")
        (staging / "retrieval.md").write_text(text + "\n", encoding="utf-8")
        write_manifest(staging, stage=STAGE, facts=facts, arguments={"model": arguments.model, "dtype": arguments.dtype})
    print(text)
    return command.DONE


if __name__ == "__main__":
    command.run(main)
