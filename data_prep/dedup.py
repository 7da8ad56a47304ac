"""Deduplicate corpora: remove near-duplicate paragraphs as onion does, across corpora in the given order, and list every removal.

The corpora are read in the order given: text that two of them share is kept in the first.  A paragraph is removed when more than --threshold of
its tokens lie in n-grams seen before, in kept text or earlier in its own document (GaMS: onion -sm -n 9 -t 0.9).  The output
has one shard per input file (`text/CORPUS/`), a list of all removals (`removed/CORPUS/`), tables (`report.md`) and the manifest.
The same input gives the same bytes for any number of --workers, and with one or two --passes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import Manifest, digest_file, require_free_space, write_manifest, written_aside
from common.memory import free_memory
from common.options import add_option, add_options, flag_of, given
from common.plain_files import read_json
from data_prep.deduplication.decisions import DecisionLog, DocumentMethods, decide_all
from data_prep.deduplication.onion_types import OnionSettings
from data_prep.deduplication.output import DedupCounts, Sources, report, write_shard
from data_prep.deduplication.range_work import RangeWork
from data_prep.deduplication.ranges import decide_by_ranges
from data_prep.deduplication.requirements import Cut, TextSize, choose, sentence
from data_prep.deduplication.similar_documents import Similar, SimilarSettings
from data_prep.deduplication.substrings import Shard, cut_substrings, require_length, spans_sentence
from data_prep.reading.comparison import IGNORABLE, Comparison
from data_prep.reading.corpora import Corpus, add_corpus_arguments, corpora_from_arguments, require_text, text_files, write_corpus_table
from data_prep.reading.documents import add_format_arguments, require_text_files, text_key_of
from data_prep.reading.evaluation_sets import files_of_sets
from data_prep.sharing import on_ray
from data_prep.sharing.scanning import Protected, Reading, ReadingAgain, Scanner, similar_documents
from data_prep.sharing.shards import ordered_map, resumable_directory, shard_names

_LEAST_MEMORY_GIB = 0.0625
_AGAINST_NGRAM, _AGAINST_SHORTEST = 13, 5


def dedup(
    corpora: Sequence[Corpus],
    output_dir: Path,
    *,
    settings: OnionSettings | None = None,
    comparison: Comparison | None = None,
    reading: Reading | None = None,
    methods: DocumentMethods | None = None,
    against: Sequence[Path] = (),
    against_n: int = _AGAINST_NGRAM,
    against_shortest: int = _AGAINST_SHORTEST,
    passes: int | None = None,
    memory_bytes: int | None = None,
    substrings: int | None = None,
    workers: int = 1,
    arguments: argparse.Namespace | None = None,
) -> Manifest:
    """Write the deduplicated corpora into a new directory and return its manifest.

    Args:
        corpora: in order of priority.
        against: texts that must not be in the output; a paragraph that shares `against_n` tokens in a row with one of them
            is removed, and one that is the same as a paragraph of theirs of fewer, but at least `against_shortest`, tokens.
        passes: 1 holds all n-grams of kept text in memory (16 to 24 bytes each); 2 cuts the work into tasks that fit `memory_bytes`; None
            chooses by the memory that is free.
        memory_bytes: of a worker; None for a share of what is free.
        substrings: cut out spans of at least so many tokens that stand earlier in what is left by all else.

    Raises:
        ValueError: if a file cannot be read, or there is no room for the output.
    """
    if substrings is not None:
        require_length(substrings)
    reading, comparison, methods = reading or Reading(), comparison or Comparison(), methods or DocumentMethods()
    scanner = Scanner(reading, settings or OnionSettings(), comparison)
    paths = [path for corpus in corpora for path in corpus.paths]
    require_text(corpora, reading.documents)
    if against and not any(len(batch.scan.hashes) for path in against for batch in _protecting(scanner).batches(path, text_key=None)):
        raise ValueError(
            f"there is no text in {', '.join(map(str, against))}, so there is nothing to decontaminate against; check --against"
        )
    shards = [f"{corpus.name}/{name}" for corpus in corpora for name in shard_names(corpus.paths)]
    inputs = {str(path): digest_file(path) for path in (*paths, *against)}
    if passes is None and on_ray.leader() is not None:
        passes = 2
    plan = {
        "stage": "data_prep.dedup",
        "settings": asdict(scanner.settings),
        "comparison": [sorted(comparison.ignore), comparison.marks_apart],
        "reading": asdict(reading),
        "methods": asdict(methods),
        "against": [list(map(str, against)), against_n, against_shortest],
        "corpora": [[corpus.name, *map(str, corpus.paths)] for corpus in corpora],
        "passes": [passes, memory_bytes],
        "substrings": substrings,
    }
    with resumable_directory(output_dir, plan) as (directory, scratch):
        protected_places: list[tuple[str, int]] = []
        if against:
            scanner.protected = _protected(scanner, against, protected_places, against_n, against_shortest)
        cut = _cut(scanner, paths, scratch, passes, memory_bytes, workers, methods.similar, substrings)
        if cut.passes == 1 and memory_bytes is None:
            scanner.reading = ReadingAgain.of_one_worker(reading, workers)
        log = DecisionLog(scratch / "decisions")
        log.directory.mkdir(exist_ok=True)
        similar = (
            similar_documents(scanner.reading, methods.similar, paths, scratch, workers=workers) if methods.similar else Similar.none()
        )
        firsts, facts = _decided(scanner, paths, log, scratch, methods.same, similar, cut, workers)
        sources = Sources(log, [(corpus.name, path.name) for corpus in corpora for path in corpus.paths], *firsts, protected_places)
        counts = [DedupCounts() for _ in corpora]
        owner = [number for number, corpus in enumerate(corpora) for _ in corpus.paths]
        jobs = [
            (scanner, path, corpora[owner[shard]].name, shard, log, sources, directory / "text" / name, directory / "removed" / name)
            for shard, (path, name) in enumerate(zip(paths, shards))
        ]
        for shard, found in enumerate(ordered_map(write_shard, jobs, workers=workers, name=lambda job: str(job[1]))):
            counts[owner[shard]].add(found)
        facts |= {
            "corpora": [corpus.name for corpus in corpora],
            "counts": {corpus.name: count.as_facts() for corpus, count in zip(corpora, counts)},
            "settings": vars(scanner.settings),
        }
        if methods.similar:
            facts["similar_documents"] = {**methods.similar.as_facts(), "num_compared": similar.num_compared}
        text = report([corpus.name for corpus in corpora], counts)
        if substrings is not None:
            spans_from = [
                Shard(
                    directory / "text" / name,
                    directory / "removed_spans" / name,
                    corpora[owner[shard]].name,
                    text_key_of(path, reading.text_key),
                )
                for shard, (path, name) in enumerate(zip(paths, shards))
            ]
            facts["substrings"] = cut_substrings(spans_from, substrings, scanner.settings.min_kept_tokens, scratch, workers=workers)
            text += "\n" + spans_sentence(facts["substrings"]) + "\n"
        files = [[f"text/{name}" for name, number in zip(shards, owner) if number == place] for place in range(len(corpora))]
        write_corpus_table(directory, corpora, dict(zip((corpus.name for corpus in corpora), files)))
        (directory / "report.md").write_text(text, encoding="utf-8")
        return write_manifest(
            directory, stage="data_prep.dedup", facts=facts, arguments=vars(arguments) if arguments else None, inputs=inputs
        )


def _cut(
    scanner: Scanner,
    paths: Sequence[Path],
    scratch: Path,
    passes: int | None,
    memory_bytes: int | None,
    workers: int,
    similar: SimilarSettings | None,
    substrings: int | None,
) -> Cut:
    """How the work is done, as an unfinished run has begun it or else by what is free now, which is said.

    Raises:
        ValueError: if memory or disk are not enough.
    """
    chosen = scratch / "cut.json"
    if chosen.exists():
        return Cut(**read_json(chosen))
    free_bytes, size = free_memory(), TextSize.estimate(scanner, paths)
    bands = similar.curve[0] if similar else 0
    cut = choose(size, free_bytes=free_bytes, workers=workers, passes=passes, memory_bytes=memory_bytes, similar_bands=bands)
    message = sentence(size, cut, free_bytes=free_bytes, workers=workers, substrings=substrings is not None)
    print(f"dedup: {message}", file=sys.stderr)
    require_free_space(scratch, cut.disk_bytes)
    with written_aside(chosen) as file:
        file.write(json.dumps(asdict(cut)).encode())
    return cut


def _decided(
    scanner: Scanner,
    paths: Sequence[Path],
    log: DecisionLog,
    scratch: Path,
    same: bool,
    similar: Similar,
    cut: Cut,
    workers: int,
) -> tuple[tuple[Sequence[int], Sequence[int]], dict[str, Any]]:
    """Decide over all shards; the first document and paragraph of each, and what the manifest says of how."""
    if cut.passes == 1:
        log.clear()
        *firsts, num_ngrams = decide_all(scanner, paths, log, scratch, same=same, similar=similar, workers=workers)
        return (firsts[0], firsts[1]), {"passes": 1, "num_ngrams_in_memory": num_ngrams}
    directory = scratch / "by_ranges"
    directory.mkdir(exist_ok=True)
    work = RangeWork(scanner, tuple(paths), directory, log, cut.bits, cut.run_tokens, same)
    layout = decide_by_ranges(work, similar, workers=workers)
    return (layout.first_documents, layout.first_paragraphs), {"passes": 2, "num_ranges": work.num_ranges}


def _protected(scanner: Scanner, paths: Sequence[Path], places: list[tuple[str, int]], n: int, shortest: int) -> Protected:
    """The texts to keep out; their places, by number from 1, are added to `places`."""
    reader = _protecting(scanner, n)
    scans = []
    for path in paths:
        for batch in reader.batches(path, text_key=None):
            places += [(str(path), line) for line in batch.lines.tolist()]
            scans.append(batch.scan)
    return Protected.gather(scans, n, shortest)


def _protecting(scanner: Scanner, n: int = OnionSettings.n) -> Scanner:
    # A line that is skipped here would be a hole nobody sees; lines are documents, since any string of these files counts.
    reading = replace(scanner.reading, skip_bad=False, separator=scanner.reading.separator or "line")
    return Scanner(reading, OnionSettings(n=n, paragraphs=scanner.settings.paragraphs), scanner.comparison)


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        example="python -m data_prep.dedup --input books=novels.jsonl.gz theses.jsonl.gz --input web=crawl.jsonl.gz"
        " --against heldout.jsonl --output deduplicated/",
    )
    add_corpus_arguments(parser, order="the first keeps what others repeat")
    add_format_arguments(parser)
    add_option(parser, "--output DIR", "new directory", type=Path, required=True)
    what = parser.add_argument_group("near-duplicate paragraphs (the defaults are those of GaMS)")
    add_options(what, OnionSettings)
    add_option(what, "--ignore WHAT", f"differences to ignore in comparisons: {', '.join(IGNORABLE)}", [], nargs="+")
    add_option(what, "--marks-apart", "split punctuation marks from words as separate tokens, as in vertical files", False)
    more = parser.add_argument_group("other duplicates")
    add_option(
        more, "--same-documents", "also remove exact duplicates: documents with the same tokens and paragraphs, of any length", False
    )
    add_option(
        more,
        "--against FILE",
        "decontaminate against these validation and evaluation sets: every string of a JSON line, every cell of a .tsv file",
        [],
        type=Path,
        nargs="+",
    )
    add_option(
        more,
        "--against-sets NAME",
        "decontaminate against published evaluation sets, by name, or `all` of those in --evaluation-data",
        [],
        nargs="+",
    )
    add_option(more, "--evaluation-data DIR", "output of eval.prepare, for --against-sets", type=Path)
    add_option(more, "--against-ngram N", f"tokens in an n-gram for decontamination (default: {_AGAINST_NGRAM})", type=int)
    add_option(
        more,
        "--against-shortest N",
        f"minimum length of an evaluation paragraph to look for, in tokens (default: {_AGAINST_SHORTEST})",
        type=int,
    )
    add_option(
        more,
        "--substrings N",
        "exact substring deduplication, as the last step: remove spans of at least N tokens that occur earlier (usual: 50)",
        type=int,
    )
    similar = parser.add_argument_group("near-duplicate documents (MinHash; case, accents and punctuation are ignored)")
    add_options(similar, SimilarSettings, has_defaults=False)
    run = parser.add_argument_group("running")
    add_option(
        run,
        "--passes",
        "1: one process holds all n-grams in memory; 2: tasks that fit into --memory, on all workers, with 13 bytes of disk per token"
        " (default: by free memory; 2 with --ray)",
        type=int,
        choices=(1, 2),
    )
    add_option(
        run,
        "--memory GIB",
        "memory limit in GiB, of each worker with two passes, of the process with one (default: 70 %% of free memory)",
        type=float,
    )
    command.add_running_arguments(run)
    on_ray.add_argument(run)
    return parser


def _memory_bytes(memory_gib: float | None) -> int | None:
    """What --memory says.

    Raises:
        ValueError: if it is too little for any work.
    """
    if memory_gib is None:
        return None
    if not _LEAST_MEMORY_GIB <= memory_gib < float("inf"):
        raise ValueError(f"--memory is {memory_gib:g} GiB; expected at least {_LEAST_MEMORY_GIB:g} for each worker")
    return int(memory_gib * 2**30)


def _similar_settings(arguments: argparse.Namespace) -> SimilarSettings | None:
    """What the options say.

    Raises:
        ValueError: if they speak of similar documents, which were not asked for, or exclude each other.
    """
    settings = given(arguments, SimilarSettings)
    if "share" not in settings:
        for name in settings:
            raise ValueError(f"{flag_of(SimilarSettings, name)} needs --similar-documents, which sets the similarity to remove at")
        return None
    if {"recall", "bands"} <= set(settings):
        raise ValueError("--similar-recall and --similar-bands exclude each other, as bands and rows follow from the recall; leave one out")
    return SimilarSettings(**settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Deduplicate corpora into a new directory."""
    arguments = _parser().parse_args(argv)
    command.require_positive(arguments, "against_ngram", "against_shortest")
    corpora = corpora_from_arguments(arguments, arguments.document_separator)
    if bool(arguments.against_sets) != (arguments.evaluation_data is not None):
        raise ValueError(
            "--against-sets and --evaluation-data need each other; give the names of sets and the folder that eval.prepare wrote"
        )
    against = [
        *text_files(arguments.against),
        *(files_of_sets(arguments.against_sets, arguments.evaluation_data) if arguments.against_sets else ()),
    ]
    require_text_files(against, tables=True)
    for option in ("against_ngram", "against_shortest"):
        if getattr(arguments, option) is not None and not against:
            raise ValueError(f"--{option.replace('_', '-')} needs --against or --against-sets, which name the evaluation sets")
    if arguments.max_stub_tokens is not None and arguments.smoothing == OnionSettings().smoothing:
        raise ValueError("--max-stub-tokens needs --smoothing, which selects the short text to remove")
    work = partial(
        dedup,
        corpora,
        arguments.output,
        settings=OnionSettings(**given(arguments, OnionSettings)),
        comparison=Comparison(arguments.ignore, marks_apart=arguments.marks_apart),
        reading=Reading.of(arguments),
        methods=DocumentMethods(same=arguments.same_documents, similar=_similar_settings(arguments)),
        against=against,
        against_n=arguments.against_ngram or _AGAINST_NGRAM,
        against_shortest=arguments.against_shortest or _AGAINST_SHORTEST,
        passes=arguments.passes,
        memory_bytes=_memory_bytes(arguments.memory),
        substrings=arguments.substrings,
        workers=arguments.workers,
        arguments=arguments,
    )
    on_ray.share(arguments, "data_prep.dedup", work)
    command.print_report(arguments.output)
    return command.DONE


if __name__ == "__main__":
    command.run(main)
