"""Convert published evaluation sets, as their publishers ship them, into the rows that the papers' tasks read.

--source is a folder with the published files (also the cache that `slurm.prefetch --evaluation` fills): Parquet, JSON Lines, CSV and TSV as they
are, zip and tar files unopened.  Row counts are compared with those of papers and publishers: differences are reported, and a file with less
than half or more than twice as many rows is refused.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import digest_file, free_output, staged_directory, write_manifest
from common.options import add_option
from common.tables import markdown_table
from data_prep.reading.evaluation_sets import EvaluationSet, RowFile, read_sets
from eval.published.by_language import of_each_language
from eval.published.rows import COUNTED, Row, has_answer, split_rows


@dataclass
class Prepared:
    """One file of rows, with what is to be said of it.

    Attributes:
        counts: split -> rows (or questions).
        sources: published files that it was made from.
        notes: deviations, a sentence each.
    """

    of: EvaluationSet
    rows_of: RowFile
    rows: list[Row] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def prepare(evaluation_set: EvaluationSet, source: Path, *, sample: bool = False) -> list[Prepared]:
    """The rows of one set.

    Args:
        sample: any number of rows will do.

    Raises:
        ValueError: if files, columns or labels are missing, ids are not unique, or the counts are those of another file.
    """
    prepared = [
        one
        for rows_of in evaluation_set.rows
        for of_language, archives in of_each_language(rows_of, evaluation_set, source)
        for one in _prepare_file(evaluation_set, of_language, source, archives, sample=sample)
    ]
    found = [one for one in prepared if one.rows]
    if not found and (notes := [f"{one.rows_of.file}, {note}" for one in prepared for note in one.notes]):
        raise ValueError(f"{evaluation_set.name} has no rows that can be scored: {'; '.join(notes)}")
    if not found:
        expected = sorted({pattern for rows_of in evaluation_set.rows for patterns in rows_of.patterns.values() for pattern in patterns})
        fetch = " ".join(evaluation_set.fetch) or f"see {evaluation_set.home}"
        raise ValueError(f"{source} has no file of {evaluation_set.name}; expected names such as {expected[0]} (published: {fetch})")
    return found


def _prepare_file(
    evaluation_set: EvaluationSet, rows_of: RowFile, source: Path, archives: Sequence[str], *, sample: bool
) -> list[Prepared]:
    """The file of rows that can be scored, and where the table names one, that of those which their publisher alone can score."""
    prepared = Prepared(evaluation_set, rows_of)
    apart = [] if rows_of.unlabelled is None else [Prepared(evaluation_set, replace(rows_of, file=rows_of.unlabelled))]
    for split in rows_of.patterns:
        read = split_rows(rows_of, split, source, archives)
        if read is None:
            continue
        rows, files = read
        kept = [row for row in rows if has_answer(row, rows_of.answer)]
        if len(kept) < len(rows):
            prepared.notes.append(_without_answers(split, rows_of, len(rows), len(rows) - len(kept)))
            for other in apart:
                _add(other, split, [row for row in rows if not has_answer(row, rows_of.answer)], files, sample=sample)
        if kept:
            _add(prepared, split, kept, files, sample=sample)
    found = [prepared, *(other for other in apart if other.rows)]
    for one in found:
        _tell_apart(one)
    return found


def _add(prepared: Prepared, split: str, rows: Sequence[Row], files: Sequence[str], *, sample: bool) -> None:
    prepared.counts[split] = COUNTED[prepared.rows_of.unit](rows)
    prepared.notes += _count_notes(prepared.rows_of, split, prepared.counts[split], files, sample=sample)
    prepared.rows += rows
    prepared.sources += files


def _without_answers(split: str, rows_of: RowFile, total: int, missing: int) -> str:
    if missing == total:
        what = "label" if rows_of.answer == "passage" else rows_of.answer  # MultiRC keeps its labels in the passage
        kept = "left out" if rows_of.unlabelled is None else f"stored separately in {rows_of.unlabelled}, for eval.slobench"
        return f"{split}: its {total} rows have no {what}, which their publisher keeps private; {kept}"
    return f"{split}: {missing} of {total} rows have no {rows_of.answer}; left out"


def _count_notes(rows_of: RowFile, split: str, found: int, files: Sequence[str], *, sample: bool) -> list[str]:
    expected = rows_of.counts.get(split)
    if expected is None or found == expected:
        return []
    description = f"{split}: {found} {rows_of.unit}, but {rows_of.paper or 'its publisher'} has {expected}"
    if not sample and not expected / 2 <= found <= 2 * expected:
        raise ValueError(
            f"{', '.join(files)}: {description}; it is not the expected file: download the set again, or give --sample to prepare a sample of it"
        )
    return [description]


def _tell_apart(prepared: Prepared) -> None:
    """Give rows that share an id one each: those who published COPA in Slovene used a number twice."""
    seen: dict[str, int] = {}
    for row in prepared.rows:
        name = row["id"]
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            row["id"] = f"{name}#{seen[name]}"
    if doubled := [name for name, count in seen.items() if count > 1]:
        if 2 * len(doubled) > len(seen):
            files = ", ".join(prepared.sources)
            raise ValueError(
                f"{files} have the rows of {prepared.rows_of.file} more than once, such as {doubled[0]}; keep one copy in the source folder"
            )
        prepared.notes.append(f"{len(doubled)} ids belong to several rows, such as {doubled[0]}; a number was appended to the later ones")


def _write(directory: Path, prepared: Sequence[Prepared]) -> None:
    for one in prepared:
        path = directory / f"{one.rows_of.file}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without name and time in its head, so that equal rows are equal files.
        with open(path, "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            for row in one.rows:
                packed.write(f"{json.dumps(row, ensure_ascii=False)}\n".encode())


def _facts(prepared: Sequence[Prepared]) -> dict[str, Any]:
    sets = {one.of.name: {"home": one.of.home, "licence": one.of.licence, "unseen": one.of.unseen} for one in prepared}
    files = {one.rows_of.file: {"set": one.of.name, "counts": one.counts, "from": one.sources, "notes": one.notes} for one in prepared}
    return {"sets": sets, "files": files}


def _table(prepared: Sequence[Prepared]) -> str:
    rows = []
    for one in prepared:
        counts = ", ".join(f"{split} {count}" for split, count in one.counts.items())
        rows.append([one.rows_of.file, counts, "; ".join(one.notes) or "as published"])
    return markdown_table(["file", "rows", "counts"], rows, text_columns=3)


def listing() -> str:
    """The table of known sets."""
    rows = []
    for one in read_sets():
        total = sum(count for rows_of in one.rows for count in rows_of.counts.values())
        where = f"{one.home}{' (form from descriptions)' if one.unseen else ''}"
        rows.append([one.name, one.about, one.licence, where, str(len(one.rows)), f"{total:,}" if total else "–"])
    return markdown_table(["set", "what", "licence", "published at", "files", "rows"], rows, text_columns=4)


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__, example="python -m eval.prepare si_nli superglue_sl --source downloads/ --output eval_data/")
    parser.add_argument("names", nargs="*", metavar="NAME", help="evaluation sets to prepare, by their names in --list")
    add_option(parser, "--source DIR", "folder with the published files", type=Path)
    add_option(parser, "--output DIR", "folder of evaluation data, for --data of eval.harness", type=Path)
    add_option(parser, "--sample", "the source is only a sample of the set: report row counts without checking them", False)
    add_option(parser, "--list", "list the known sets with their row counts, licences and addresses", False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare the sets named, all or none."""
    arguments = _parser().parse_args(argv)
    if arguments.list:
        print(listing())
        return command.DONE
    if not arguments.names or arguments.source is None or arguments.output is None:
        raise ValueError("nothing to prepare: give names of sets (--list shows them), --source and --output")
    if not arguments.source.is_dir():
        raise ValueError(f"the folder of published files {arguments.source} does not exist")
    sets = read_sets(arguments.names)
    free_output(arguments.output)
    prepared = [one for evaluation_set in sets for one in prepare(evaluation_set, arguments.source, sample=arguments.sample)]
    with staged_directory(arguments.output) as staging:
        _write(staging, prepared)
        write_manifest(
            staging,
            stage="eval.prepare",
            facts=_facts(prepared),
            arguments={"names": arguments.names, "source": arguments.source, "sample": arguments.sample},
            inputs=_inputs(arguments.source, prepared),
        )
    print(_table(prepared))
    return command.DONE


def _inputs(source: Path, prepared: Sequence[Prepared]) -> dict[str, str]:
    """Digests of the published files, and of the archives that hold them."""
    paths = {_loose(source, name) for one in prepared for name in one.sources}
    return {path.relative_to(source).as_posix(): digest_file(path) for path in sorted(paths)}


def _loose(source: Path, name: str) -> Path:
    """The file, or the archive that holds it."""
    return next(path for path in (source / name, *(source / name).parents) if path.is_file())


if __name__ == "__main__":
    command.run(main)
