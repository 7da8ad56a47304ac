"""Collect corpora of any supported format as JSON Lines with id and text, and a table of language, licence, domain and source.

Reads plain text, JSON Lines, Parquet and vertical files, compressed or not, and streams Hugging Face datasets: from folders (--input), from a
table of corpora (--corpora), or the papers' corpora by name (--known; --list shows the names).  The output has one shard per file; an interrupted
run resumes with the missing shards when the same command is given again.  Later commands read `corpora.yaml` of the output with --corpora.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from common import command
from common.artifacts import Manifest, digest_file, write_manifest
from common.options import add_option
from common.progress import SharedProgress
from common.tables import markdown_table
from data_prep.reading.collect_shard import CollectCounts, CollectJob, collect_shard, report, show_progress
from data_prep.reading.corpora import Corpus, add_named_input_argument, corpora_from_input, require_text, write_corpus_table
from data_prep.reading.document_ids import duplicate_ids
from data_prep.reading.documents import add_format_arguments
from data_prep.reading.languages import is_language
from data_prep.reading.sources import KNOWN_TABLE, Source, read_sources, table_rows
from data_prep.sharing import on_ray
from data_prep.sharing.scanning import Reading
from data_prep.sharing.shards import ordered_map, resumable_directory, shard_names

_FACTS = ("language", "domain", "licence")  # of corpora of --input


def collect(
    sources: Sequence[Source],
    output_dir: Path,
    *,
    reading: Reading | None = None,
    new_ids: bool = False,
    workers: int = 1,
    arguments: argparse.Namespace | None = None,
) -> Manifest:
    """Write all sources into a new directory and return its manifest.

    Memory: one document in each worker, or 256 rows of Parquet.

    Args:
        reading: limits and whether bad input is skipped; keys and separators are the sources' own.
        new_ids: every document gets the id CORPUS/FILE:LINE; the one it had becomes its `original_id`.

    Raises:
        ValueError: if something cannot be read, an id is used twice or the disk is full; finished shards wait for the same call.
    """
    reading = reading or Reading()
    for source in sources:
        if source.huggingface is None:
            require_text([source.corpus], source.reading(reading).documents)
    plan = {
        "stage": "data_prep.collect",
        "reading": asdict(reading),
        "new_ids": new_ids,
        "sources": [
            [source.corpus.name, source.corpus.facts, *map(str, source.corpus.paths), str(replace(source, corpus=Corpus("", ())))]
            for source in sources
        ],
    }
    parts = {source.corpus.name: _parts(source) for source in sources}
    with resumable_directory(output_dir, plan) as (directory, scratch):
        jobs = [
            CollectJob(
                source, paths, num_shards, index, f"{source.corpus.name}/{name}", directory, scratch, source.reading(reading), new_ids
            )
            for source in sources
            for paths, num_shards, index, name in parts[source.corpus.name]
        ]
        counts = {source.corpus.name: CollectCounts() for source in sources}
        size = sum(path.stat().st_size for job in jobs for path in job.paths)
        with SharedProgress("collecting", total=size or None, unit="B", is_bytes=True) as progress:
            done = ordered_map(
                collect_shard, jobs, workers=workers, name=lambda job: job.name, initializer=show_progress, initargs=(progress,)
            )
            for job, found in zip(jobs, done):
                counts[job.source.corpus.name].add(found)
        if unread := [name for name, count in counts.items() if not count.num_kept and not count.bad_input]:
            raise ValueError(f"the dataset of {unread[0]} has no text; check its configuration and split, or leave it out")
        places = [job.paths[0] if job.paths else Path(job.name) for job in jobs]
        twice = duplicate_ids([(scratch / f"{job.name}.npy", place) for job, place in zip(jobs, places)])
        if twice and not reading.skip_bad:
            raise ValueError(f"{twice[0]}, or give all of them new ones with --new-ids")
        files = {source.corpus.name: [f"text/{job.name}" for job in jobs if job.source is source] for source in sources}
        write_corpus_table(directory, [source.corpus for source in sources], files)
        (directory / "report.md").write_text(report(sources, counts, twice), encoding="utf-8")
        return write_manifest(
            directory,
            stage="data_prep.collect",
            facts={"counts": {name: asdict(count) for name, count in counts.items()}, "num_duplicate_ids": len(twice)},
            arguments=vars(arguments) if arguments else None,
            inputs={str(path): digest_file(path) for source in sources for path in source.corpus.paths},
        )


def _parts(source: Source) -> list[tuple[tuple[Path, ...], int, int, str]]:
    """Files, number of parts, which part and name of each shard: one per file, or one in all where only some documents are wanted."""
    paths = source.corpus.paths
    is_whole = source.max_documents is None and source.sample_documents is None
    if source.huggingface is not None:
        num_shards = source.huggingface.open().num_shards if is_whole else 1
        return [((), num_shards, index, f"{index:05d}.jsonl.gz") for index in range(num_shards)]
    if not is_whole:
        return [(paths, 1, 0, "00000.jsonl.gz")]
    return [((path,), 1, 0, name) for path, name in zip(paths, shard_names(paths))]


def _from_input(arguments: argparse.Namespace) -> list[Source]:
    facts: dict[str, dict[str, str]] = {}
    for option in _FACTS:
        for pair in getattr(arguments, option):
            name, equals, value = pair.partition("=")
            if not (name and equals and value):
                raise ValueError(f"--{option} {pair} is not of the form NAME=VALUE")
            if option == "language" and not is_language(value):
                raise ValueError(f"--language {pair} names no language; expected an ISO 639 code, such as {name}=sl")
            facts.setdefault(name, {})[option] = value
    corpora = corpora_from_input(arguments.input, arguments.document_separator, ignore_other_files=arguments.ignore_other_files)
    if unknown := sorted(set(facts) - {corpus.name for corpus in corpora}):
        raise ValueError(f"--language, --domain or --licence names {', '.join(unknown)}, which no --input does")
    return [
        Source(
            Corpus(corpus.name, corpus.paths, other_files=corpus.other_files, **facts.get(corpus.name, {})),
            None,
            arguments.text_key,
            arguments.document_separator,
            arguments.max_documents,
        )
        for corpus in corpora
    ]


def known_table() -> str:
    """The corpora that are known by name, in Markdown."""
    rows = []
    for name, row in table_rows(KNOWN_TABLE).items():
        where = row.get("huggingface", "files")
        where = " ".join(str(value) for key, value in where.items() if key in ("path", "config")) if isinstance(where, dict) else where
        rows.append(
            [
                name,
                row.get("language", f"one each of {row['languages']}" if "languages" in row else "as in :CODE"),
                row.get("domain", ""),
                row.get("licence", ""),
                row.get("size", ""),
                row.get("columns", ""),
                str(where),
                row.get("how", row.get("source", "")),
            ]
        )
    header = ("name", "language", "domain", "licence", "size", "columns", "read from", "get it")
    return markdown_table(header, rows, text_columns=len(header))


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        example="python -m data_prep.collect --input books=books/ news=news.parquet --language books=sl news=sl --output collected/",
    )
    add_named_input_argument(parser)
    add_option(parser, "--corpora YAML", "table of corpora: files or huggingface, language, licence, domain, source", type=Path)
    add_option(
        parser,
        "--known NAME[:CODE][=DIR]",
        "corpora of --list, such as cc100_sl or fineweb2:slv_Latn; =DIR names a local copy in the published form, otherwise files are"
        " expected in --folder/NAME/",
        nargs="+",
    )
    add_option(parser, "--folder DIR", "folder of the downloaded corpora, for --known", type=Path)
    add_option(parser, "--list", "list the corpora that --known accepts and exit", False)
    add_option(parser, "--output DIR", "new directory", type=Path)
    add_format_arguments(parser)
    for option, example in (("language", "books=sl"), ("domain", "books=fiction"), ("licence", "books=CC0")):
        parser.add_argument(
            f"--{option}", nargs="+", default=[], metavar="NAME=VALUE", help=f"{option} of each corpus of --input, for example {example}"
        )
    run = parser.add_argument_group("running")
    add_option(run, "--max-documents N", "read only the first N documents of each corpus (default: all)", type=int)
    add_option(run, "--new-ids", "give every document the id CORPUS/FILE:LINE and keep its own as original_id", False)
    command.add_running_arguments(run)
    on_ray.add_argument(run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Collect corpora into a new directory."""
    arguments = _parser().parse_args(argv)
    if arguments.list:
        print(known_table())
        return command.DONE
    if arguments.output is None:
        raise ValueError("--output is missing; name a new directory")
    if sum(given is not None for given in (arguments.input, arguments.corpora, arguments.known)) != 1:
        raise ValueError("give one of --input NAME=FILE..., --corpora YAML and --known NAME...")
    if arguments.folder is not None and not arguments.known:
        raise ValueError("--folder says where --known looks for its corpora; give --known NAME..., or leave it out")
    if not arguments.input and (given := [f"--{name}" for name in _FACTS if getattr(arguments, name)]):
        raise ValueError(f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for corpora of --input; the tables of others have it")
    command.require_positive(arguments, "max_documents")
    if arguments.input:
        sources = _from_input(arguments)
    elif arguments.corpora:
        sources = read_sources(arguments.corpora)
    else:
        sources = read_sources(KNOWN_TABLE, only=arguments.known, folder=arguments.folder or Path())
    if arguments.max_documents is not None:
        sources = [
            replace(
                source,
                max_documents=min(filter(None, (arguments.max_documents, source.max_documents, source.sample_documents))),
                sample_documents=None,
            )
            for source in sources
        ]
    work = partial(
        collect,
        sources,
        arguments.output,
        reading=Reading(max_document_bytes=arguments.max_document_mib << 20, skip_bad=arguments.skip_bad),
        new_ids=arguments.new_ids,
        workers=arguments.workers,
        arguments=arguments,
    )
    on_ray.share(arguments, "data_prep.collect", work)
    command.print_report(arguments.output)
    return command.DONE


if __name__ == "__main__":
    command.run(main)
