"""Clean documents: normalise Unicode and white space, repair mojibake, mask personal data, filter by quality, language and length.

Every input document is either in the output (`text/CORPUS/`) or listed with the reason for its removal (`removed/CORPUS/`), under its `id` or
FILE:LINE.  Changes are counted by reason, with samples (`report.md`, `counts/`).  The output has one shard per input file; an interrupted run
resumes with the missing shards when the same command is given again.

The filters are one YAML file (--filters): `standard` removes markup, boilerplate and non-text from any corpus, `web` adds the rules of Gopher, C4
and FineWeb2, `none` only normalises Unicode and white space.  The output has a copy (`filters.yaml`) and samples of removed text (`samples/`).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from common import command
from common.artifacts import Manifest, digest_file, write_manifest, written_aside
from common.options import add_option, add_options, flag_of, values_of
from data_prep.cleaning.filter_settings import read_filters, settings_for
from data_prep.cleaning.problem_runs import ProblemRuns
from data_prep.cleaning.repeated_lines import count_lines, repeated_lines
from data_prep.cleaning.samples import joined as joined_samples
from data_prep.cleaning.shard import CleanCounts, CleanRules, Lengths, Shard, clean_shard, report
from data_prep.reading.corpora import Corpus, add_corpus_arguments, corpora_from_arguments, require_text, write_corpus_table
from data_prep.reading.document_ids import duplicate_ids
from data_prep.reading.documents import add_format_arguments
from data_prep.sharing import on_ray
from data_prep.sharing.scanning import Reading, ReadingAgain
from data_prep.sharing.shards import file_state, ordered_map, resumable_directory, shard_names

_OF_LANGUAGES = ("language_model", "language_unit", "close_languages", "min_language_score")


def clean(
    corpora: Sequence[Corpus],
    output_dir: Path,
    *,
    rules: CleanRules | None = None,
    reading: Reading | None = None,
    workers: int = 1,
    arguments: argparse.Namespace | None = None,
) -> Manifest:
    """Write the cleaned corpora into a new directory and return its manifest.

    Raises:
        ValueError: if a file cannot be read, an id is used twice or the disk is full; finished shards wait for the same call.
    """
    rules, reading = rules or CleanRules(), reading or Reading()
    rules.language_filter()  # refused before anything is written
    settings = settings_for(rules.filters, None)
    if over := [rule.name for rule in settings.scores if rule.written_as == reading.text_key]:
        raise ValueError(f"scores: {over[0]}: as is {reading.text_key!r}, the key of the text; choose another name")
    models = [rule.model for rule in settings.scores if rule.model is not None]
    further = [Path(file) for file in (*(settings.blocked_urls or {}).get("files", ()), *models, rules.language_model) if file is not None]
    paths = [path for corpus in corpora for path in corpus.paths]
    require_text(corpora, reading.documents)
    plan = {
        "stage": "data_prep.clean",
        "rules": asdict(rules),
        "reading": asdict(reading),
        "corpora": [[corpus.name, *map(str, corpus.paths)] for corpus in corpora],
        "files": [[str(path), file_state(path)] for path in further],
    }
    with resumable_directory(output_dir, plan) as (directory, scratch):
        jobs = [
            Shard(path, corpus.name, f"{corpus.name}/{name}", directory, scratch, corpus.language)
            for corpus in corpora
            for path, name in zip(corpus.paths, shard_names(corpus.paths))
        ]
        if settings.repeated_lines is not None:
            reading = ReadingAgain.of_one_worker(reading, workers)
            jobs = _with_repeated_lines(jobs, settings.repeated_lines, reading, workers)
        counts = {corpus.name: CleanCounts() for corpus in corpora}
        run = partial(clean_shard, rules=rules, reading=reading)
        for job, found in zip(jobs, ordered_map(run, jobs, workers=workers, name=lambda job: str(job.path))):
            counts[job.corpus].add(found)
        twice = duplicate_ids([(job.ids_path, job.path) for job in jobs])
        if twice and not reading.skip_bad:
            raise ValueError(twice[0])
        _write_samples(directory, jobs, rules)
        (directory / "filters.yaml").write_text(yaml.safe_dump(dict(rules.filters), allow_unicode=True, sort_keys=False), encoding="utf-8")
        (directory / "report.md").write_text(report(counts, twice), encoding="utf-8")
        write_corpus_table(directory, corpora, {c.name: [f"text/{job.name}" for job in jobs if job.corpus == c.name] for c in corpora})
        facts = {
            "corpora": list(counts),
            "counts": {name: asdict(count) for name, count in counts.items()},
            "num_duplicate_ids": len(twice),
            "rules": asdict(rules),
        }
        return write_manifest(
            directory,
            stage="data_prep.clean",
            facts=facts,
            arguments=vars(arguments) if arguments else None,
            inputs={str(path): digest_file(path) for path in (*paths, *further)},
        )


def _with_repeated_lines(jobs: Sequence[Shard], limits: Mapping[str, float], reading: Reading, workers: int) -> list[Shard]:
    """The jobs, with the lines that the corpus of each repeats counted."""
    paths = [job.scratch / "lines" / f"{job.name}.npy" for job in jobs]
    tasks = list(zip(jobs, paths))
    count = partial(_count_lines, max_words=int(limits["max_words"]), reading=reading)
    for _ in ordered_map(count, tasks, workers=workers, name=lambda task: str(task[0].path)):
        pass
    found = {}
    for corpus in dict.fromkeys(job.corpus for job in jobs):
        found[corpus] = jobs[0].scratch / "lines" / f"{corpus}.repeated.npy"
        with written_aside(found[corpus]) as file:
            np.save(file, repeated_lines([path for job, path in tasks if job.corpus == corpus], limits))
    return [replace(job, repeated=found[job.corpus]) for job in jobs]


def _count_lines(task: tuple[Shard, Path], *, max_words: int, reading: Reading) -> None:
    count_lines(task[0].path, task[1], max_words, reading)


def _write_samples(directory: Path, jobs: Sequence[Shard], rules: CleanRules) -> None:
    for corpus in dict.fromkeys(job.corpus for job in jobs):
        drawn = joined_samples([job.samples_path for job in jobs if job.corpus == corpus], rules.num_samples)
        drawn.write(directory / "samples" / f"{corpus}.jsonl")


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__, example="python -m data_prep.clean --input theses=kas.jsonl.gz --problem-runs sl --min-words 5 --output cleaned/"
    )
    add_corpus_arguments(parser, order="the order is kept")
    add_format_arguments(parser)
    add_option(parser, "--output DIR", "new directory", type=Path, required=True)
    add_options(parser, CleanRules, "layout", "filters", "num_samples")
    add_options(parser.add_argument_group("removal of runs of problematic characters (as GaMS for the KAS corpus)"), ProblemRuns)
    filters = parser.add_argument_group("filtering by language and length")
    add_options(filters, CleanRules, "languages", *_OF_LANGUAGES)
    add_options(filters, Lengths)
    run = parser.add_argument_group("running")
    command.add_running_arguments(run)
    on_ray.add_argument(run)
    return parser


def _require_defaults(arguments: argparse.Namespace, settings: type, names: Sequence[str], needed: str) -> None:
    """Refuse options that nothing would heed."""
    values = values_of(arguments, settings)
    if flags := [flag_of(settings, name) for name in names if values[name] != getattr(settings, name)]:
        raise ValueError(f"{' and '.join(flags)} {'need' if len(flags) > 1 else 'needs'} {needed}")


def main(argv: Sequence[str] | None = None) -> int:
    """Clean corpora into a new directory."""
    arguments = _parser().parse_args(argv)
    command.require_positive(arguments)
    runs, rules = values_of(arguments, ProblemRuns), values_of(arguments, CleanRules)
    if arguments.problem_runs is None:
        _require_defaults(arguments, ProblemRuns, list(runs)[1:], "--problem-runs; name the language whose letters are not a problem")
    if not arguments.language:
        _require_defaults(arguments, CleanRules, _OF_LANGUAGES, "--language; name the languages that may stay")
    work = partial(
        clean,
        corpora_from_arguments(arguments, arguments.document_separator),
        arguments.output,
        rules=CleanRules(
            ProblemRuns(**runs) if arguments.problem_runs is not None else None,
            Lengths(**values_of(arguments, Lengths)),
            **{**rules, "languages": tuple(arguments.language), "filters": read_filters(arguments.filters)},
        ),
        reading=Reading.of(arguments),
        workers=arguments.workers,
        arguments=arguments,
    )
    on_ray.share(arguments, "data_prep.clean", work)
    command.print_report(arguments.output)
    return command.DONE


if __name__ == "__main__":
    command.run(main)
