"""`transfer.html`: the report of a transfer as one page without scripts; samples and sums, not all tokens (these are in transfer.json)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.pages import rendered
from conversion.embeddings.report.figures import EXPLODING_FACTOR, NEAR_ZERO_SHARE, TEXT_BYTES

_WIDTH, _HEIGHT = 720, 190  # of a histogram, as the template draws it
_ODD = {"near zero": "near_zero", "far too long": "exploding", "not finite": "not_finite"}
_NAMES = {
    "copied": "copied: the source has the same token",
    "copied: case": "copied: same except for case",
    "copied: space": "copied: same except for the leading space",
    "copied: both": "copied: same except for case and leading space",
    "special": "special tokens of the source",
    "combined": "combined by the method from source tokens",
    "mapped": "mapped by the method",
    "learned": "learned from the text",
    "random": "random, by the method",
    "fallback: mean": "fallback: mean of the source tokens that spell it",
    "fallback: random": "fallback: random",
}


def report_page(facts: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]], warnings: Sequence[str]) -> str:
    """The page.

    Args:
        facts: the head of transfer.json.
        samples: origin -> entries of single tokens.
        warnings: sentences about rows that need a look.
    """
    from conversion.embeddings.vocabularies.strategies import describe

    figures, counts = facts["figures"], facts["num_rows_by_origin"]
    told = describe(facts["vocabulary"])
    if facts.get("num_unreached_source_tokens"):
        told.append(f"{facts['num_unreached_source_tokens']:,} source tokens are unreachable from text; their rows are not used")
    total = max(sum(counts.values()), 1)
    return rendered(
        "transfer.html",
        title=f"Transfer by {facts['method']}: {facts['vocab_size']:,} tokens",
        names=_NAMES,
        tiles={
            "method": facts["method"],
            "vocabulary": facts["vocabulary"]["strategy"],
            "tokens": f"{facts['vocab_size']:,}",
            "copied": _percent(_copied(counts), total),
            "output layer": facts["head"],
            "model": facts["model_type"],
            "seed": facts["seed"],
            "matching": facts["matching"],
        },
        warnings=_sentences(warnings),
        told=_sentences(told),
        origin_rows=[(_NAMES.get(origin, origin), count, 100 * count / total) for origin, count in counts.items()],
        special_tokens=facts["special_tokens"],
        scripts=_scripts(figures["scripts"]),
        texts=_texts(figures["texts"]),
        text_megabytes=f"{TEXT_BYTES / 1e6:.0f}",
        norms=[_norms(layer, found) for layer, found in figures["norms"].items() if found["num_new"]],
        norm_rule=(
            f"Near zero is less than {NEAR_ZERO_SHARE:g} of the source's median length and less than its shortest row; far too long is more than"
            f" {EXPLODING_FACTOR:g} times the median and more than its longest."
        ),
        duplicates=figures["duplicates"],
        neighbours=figures["neighbours"],
        samples=samples,
    )


def _sentences(words: Sequence[str]) -> list[str]:
    return [f"{line[0].upper()}{line[1:]}." for line in words]


def _copied(counts: Mapping[str, int]) -> int:
    return sum(count for origin, count in counts.items() if origin.startswith("copied") or origin == "special")


def _scripts(scripts: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    return ("script of the first letter", "tokens", "copied", "share", "nothing known"), [
        (row["script"], f"{row['tokens']:,}", f"{row['copied']:,}", _percent(row["copied"], row["tokens"]), f"{row['fallback']:,}")
        for row in scripts
    ]


def _texts(texts: Mapping[str, Mapping[str, Any]]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    header = (
        "text",
        "words",
        "tokens before",
        "after",
        "tokens per word",
        "tokens per byte",
        "distinct tokens",
        "of these copied",
        "occurrences copied",
    )
    return header, [
        (
            name,
            f"{text['num_words']:,}",
            f"{text['num_tokens_before']:,}",
            f"{text['num_tokens_after']:,}",
            " → ".join(map(str, text["tokens_per_word"])),
            " → ".join(map(str, text["tokens_per_byte"])),
            f"{text['num_distinct']:,}",
            _percent(text["num_distinct_copied"], text["num_distinct"]),
            _percent(_copied(text["occurrences_by_origin"]), text["num_tokens_after"]),
        )
        for name, text in texts.items()
    ]


def _norms(layer: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Shares of rows by length, the source's and the new ones over each other, and the rows that are odd."""
    names = ("min", "1 %", "median", "99 %", "max")
    rows = [(which, *(str(figures[key].get(name, "")) for name in names)) for which, key in (("source", "source"), ("new rows", "new"))]
    both = figures["source_counts"], figures["new_counts"]
    highest = max(max(counts) / max(sum(counts), 1) for counts in both) or 1
    edges = figures["edges"]
    return {
        "name": layer,
        "label": f"Lengths of rows of {layer}: source median {figures['source'].get('median')}, new median {figures['new'].get('median')}",
        "source": _area(both[0], highest),
        "new": _area(both[1], highest),
        "ticks": [f"{edges[int(place / 4 * (len(edges) - 1))]:.3g}" for place in range(5)],
        "table": (("rows", *names), rows),
        "odd": {what: figures[key] for what, key in _ODD.items()},
    }


def _area(counts: Sequence[int], highest: float) -> str:
    """Corners of a polygon."""
    total, width = max(sum(counts), 1), _WIDTH / len(counts)
    steps = []
    for place, count in enumerate(counts):
        y = _HEIGHT - count / total / highest * (_HEIGHT - 8)
        steps += [f"{place * width:.1f},{y:.1f}", f"{(place + 1) * width:.1f},{y:.1f}"]
    return " ".join([f"0,{_HEIGHT}", *steps, f"{_WIDTH},{_HEIGHT}"])


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"
