"""What the filters take of texts, to be read: a sample of the removals of each language, and the share that a reader would have kept, by rule.

Without --kept it prints the sample: a number, the file, the rules that take the text (the first is the one that `clean` counts), and its beginning.
Read it, write the numbers that should have stayed into a file, give it as --kept, and it prints the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import xxhash

from common import command
from common.tables import markdown_table
from data_prep.cleaning.document_filter import DocumentFilter
from data_prep.cleaning.filter_settings import read_filters
from data_prep.cleaning.repeated_lines import count_lines, repeated_lines
from data_prep.cleaning.text_hygiene import AFTER, BEFORE
from data_prep.reading.documents import Documents
from data_prep.sharing.scanning import Reading


@dataclass(frozen=True)
class Removal:
    """A text that goes, and why."""

    source: str
    text: str
    rules: tuple[tuple[str, str], ...]

    @property
    def rule(self) -> str:
        """That `clean` counts."""
        return self.rules[0][0]


def removals(paths: Sequence[Path], filters: str, language: str, seed: int) -> Iterator[tuple[int, Removal | None]]:
    """Of each text a number that is its own and the seed's, and the removal of the text or of lines of it if there is one; each file is a corpus."""
    settings = read_filters(filters)
    settings["same_text"] = False  # what is there twice is not what is read
    hygiene = {**BEFORE, **AFTER}
    for path in paths:
        filtering = DocumentFilter(settings, _repeated(path, settings))
        for number, text in enumerate(Documents([path])):
            lines: list[tuple[str, str]] = []
            taken = lambda reason, gone: lines.append((reason, " / ".join(gone[:5])))  # noqa: B023, E731 used at once
            text, refused = filtering.repair(text, filtering.dirt(text.encode()), hygiene, lambda *_: None, taken)
            found = [(refused, "")] if refused else []
            found += filtering.reasons(text.encode(), language)
            place = xxhash.xxh3_64_intdigest(f"{path.name}:{number}".encode(), seed)
            yield place, Removal(path.name.partition(".")[0], text, tuple(found or lines)) if found or lines else None


def _repeated(path: Path, settings: Mapping[str, Any]) -> frozenset[int]:
    if not settings["repeated_lines"]:
        return frozenset()
    with TemporaryDirectory() as folder:
        counts = Path(folder) / "lines.npy"
        count_lines(path, counts, int(settings["repeated_lines"]["max_words"]), Reading())
        return frozenset(repeated_lines([counts], settings["repeated_lines"]).tolist())


def drawn(found: Iterable[tuple[int, Removal | None]], number: int) -> tuple[list[Removal], Counter[str], int]:
    """So many removals at random, of each rule alike as far as it has them, in the order of the rules; how many each takes in all; of how many texts."""
    texts = 0
    by_rule: dict[str, list[tuple[int, Removal]]] = {}
    for place, removal in found:
        texts += 1
        if removal is not None:
            by_rule.setdefault(removal.rule, []).append((place, removal))
    for rows in by_rule.values():
        rows.sort(key=lambda row: row[0])
    turns = zip_longest(*by_rule.values())
    first = [row[1] for turn in turns for row in turn if row is not None][:number]
    return sorted(first, key=lambda removal: removal.rule), Counter({rule: len(rows) for rule, rows in by_rule.items()}), texts


def table(sample: Sequence[Removal], taken: Counter[str], kept: set[int]) -> str:
    """By rule: how many texts it takes, how many of them were read, and how many of these a reader would have kept."""
    read = Counter(removal.rule for removal in sample)
    good = Counter(removal.rule for number, removal in enumerate(sample, start=1) if number in kept)
    rows = [(rule, f"{count:,}", f"{read[rule]}", f"{good[rule]}") for rule, count in taken.most_common()]
    rows.append(("all", f"{taken.total():,}", f"{len(sample)}", f"{good.total()}"))
    return markdown_table(("rule", "takes", "read", "a reader would have kept"), rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the sample, or the table of what was read."""
    parser = command.parser(
        __doc__,
        prog="benchmarks.filter_removals",
        example="python -m benchmarks.filter_removals --input it/*.jsonl.gz --language it --filters web --characters 300",
    )
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help="text files, all of one language")
    parser.add_argument("--language", required=True, metavar="LANG", help="whose rules are asked")
    parser.add_argument("--filters", default="web", metavar="NAME", help="as of data_prep.clean (default: web)")
    parser.add_argument("--number", type=int, default=200, metavar="N", help="of removals (default: 200)")
    parser.add_argument("--characters", type=int, default=300, metavar="N", help="of each text that are printed (default: 300)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another one draws other removals (default: 0)")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="numbers that a reader would have kept, between white space")
    arguments = parser.parse_args(argv)
    found = removals(arguments.input, arguments.filters, arguments.language, arguments.seed)
    sample, taken, texts = drawn(found, arguments.number)
    if arguments.kept is not None:
        print(table(sample, taken, set(map(int, arguments.kept.read_text(encoding="utf-8").split()))))
    else:
        for number, removal in enumerate(sample, start=1):
            rules = "; ".join(f"{rule} ({detail})" for rule, detail in removal.rules)
            text = removal.text.replace("\n", " / ")
            print(f"{number}\t{removal.source}\t{rules}\t{len(removal.text):,}\t{text[: arguments.characters]}")
    print(f"{taken.total():,} of {texts:,} texts go, or lines of them")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
