"""The report of a mixture: tokens per corpus in each tokenizer, the blend for training, the next commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.tables import markdown_table

BLEND = "blend.json"
MEGATRON = "megatron"  # folder of a mixture for its data sets
HELD_OUT = "validation"
UNDETERMINED = "und"  # ISO 639, of an unnamed language


@dataclass(frozen=True)
class Side:
    """Documents, bytes of UTF-8, tokens by tokenizer, those around each document included, and the sum of the documents' weights."""

    documents: int
    text_bytes: int
    tokens: tuple[int, ...]
    weight: float

    @classmethod
    def none(cls, num_tokenizers: int) -> Side:
        """Nothing."""
        return cls(0, 0, (0,) * num_tokenizers, 0.0)

    def plus(self, other: Side) -> Side:
        """Both together."""
        tokens = tuple(a + b for a, b in zip(self.tokens, other.tokens))
        return Side(self.documents + other.documents, self.text_bytes + other.text_bytes, tokens, self.weight + other.weight)

    @property
    def mean_weight(self) -> str:
        """Of a document, to be read."""
        return f"{self.weight / self.documents:.4g}" if self.documents else "-"


@dataclass(frozen=True)
class CorpusCounts:
    """A corpus of the mixture; the sides are each text once."""

    name: str
    language: str
    domain: str
    epochs: float
    train: Side
    validation: Side
    left_out: Side

    @property
    def all(self) -> Side:
        """The corpus as it came."""
        return self.train.plus(self.validation).plus(self.left_out)

    @property
    def seen_tokens(self) -> float:
        """Tokens that training sees, of the first tokenizer."""
        return self.train.tokens[0] * self.epochs


def blend(counts: Sequence[CorpusCounts]) -> dict[str, Any]:
    """What a recipe needs: the share of each corpus in the samples, and the tokens of the whole."""
    used = [count for count in counts if count.train.documents]
    total = sum(count.seen_tokens for count in used)
    return {
        "corpora": [count.name for count in used],
        "languages": [count.language for count in used],
        "held_out_languages": sorted({count.language for count in counts if count.validation.documents}),
        "weights": [round(count.seen_tokens / total, 8) for count in used],
        "epochs": [count.epochs for count in used],
        "tokens": round(total),
    }


def report(counts: Sequence[CorpusCounts], tokenizers: Sequence[str], weight_keys: Mapping[str, str]) -> str:
    """The tables in Markdown.

    Args:
        weight_keys: corpus -> key of its documents' weights, where they have some.
    """
    first, *others = tokenizers
    total = sum(count.seen_tokens for count in counts) or 1
    rows = [_whole_row(c.name, c.language, c.domain, c.all) for c in counts]
    rows += _sums(counts)
    ratios = [f"{other} / {first}" for other in others]
    text = "# Mixture\n\nTokens per corpus, each text once, with the tokens around each document:\n\n"
    text += markdown_table(["corpus", "language", "domain", "documents", "MB", *tokenizers, *ratios], rows, text_columns=3) + "\n"
    taken = [
        [
            c.name, c.language, f"{c.train.documents:,}", f"{c.validation.documents:,}", f"{c.left_out.documents:,}", f"{c.train.tokens[0]:,}",
            f"{c.validation.tokens[0]:,}", f"{c.left_out.tokens[0]:,}", f"{c.epochs:g}", f"{c.seen_tokens:,.0f}", f"{100 * c.seen_tokens / total:.2f}",
        ]
        for c in counts
    ]  # fmt: skip
    sides = ("train", "validation", "left out")
    header = ["corpus", "language", *(f"{s}, documents" for s in sides), *(f"{s}, tokens" for s in sides), "epochs", "tokens seen", "%"]
    text += f"\nWhere the text went, in tokens of {first}:\n\n" + markdown_table(header, taken, text_columns=2) + "\n"
    if weight_keys:
        means = [
            [c.name, weight_keys[c.name], *(side.mean_weight for side in (c.all, c.train, c.left_out))]
            for c in counts
            if c.name in weight_keys
        ]
        text += (
            "\nMean weight of the documents:\n\n"
            + markdown_table(["corpus", "key", "all", "train", "left out"], means, text_columns=2)
            + "\n"
        )
    by_language: dict[str, float] = {}
    for count in counts:
        by_language[count.language] = by_language.get(count.language, 0) + count.seen_tokens
    shares = ", ".join(f"{language} {100 * tokens / total:.2f} %" for language, tokens in by_language.items())
    return text + f"\nTraining sees {sum(by_language.values()):,.0f} tokens: {shares}.\n"


def _whole_row(name: str, language: str, domain: str, side: Side) -> list[str]:
    first, *others = side.tokens
    ratios = [f"{other / first:.2f}" if first else "-" for other in others]
    return [name, language, domain, f"{side.documents:,}", f"{side.text_bytes / 1e6:.2f}", *(f"{n:,}" for n in side.tokens), *ratios]


def _sums(counts: Sequence[CorpusCounts]) -> list[list[str]]:
    """A row for each language of several corpora, and one for all."""
    rows = []
    for language in dict.fromkeys(count.language for count in counts):
        mine = [count.all for count in counts if count.language == language]
        if len(mine) > 1:
            rows.append(_whole_row(f"all {language}", language, "", _sum(mine)))
    return [*rows, _whole_row("all", "", "", _sum([count.all for count in counts]))]


def _sum(sides: Sequence[Side]) -> Side:
    total, *others = sides
    for side in others:
        total = total.plus(side)
    return total


def megatron_inputs(mixture_dir: Path, made: Mapping[str, Any]) -> dict[str, list[Path]]:
    """Name of each dataset -> the files that `data_prep.to_megatron` makes it of: one for each corpus, and `validation/LANGUAGE`.

    Args:
        made: what `blend` gives.
    """
    inputs = {name: sorted((mixture_dir / "train" / name).iterdir()) for name in made["corpora"]}
    held_out = {f"{HELD_OUT}/{name}": sorted((mixture_dir / HELD_OUT / name).iterdir()) for name in made["held_out_languages"]}
    return inputs | held_out


def next_steps(mixture_dir: Path, made: Mapping[str, Any], tokenizer: str, data_dir: Path, *, bos: str = "auto") -> str:
    """The commands that make training data of a mixture, and the override of a recipe that trains on it."""
    options = f"--tokenizer {tokenizer}" + ("" if bos == "auto" else f" --bos {bos}")
    places = {name: f"train/{name}" for name in made["corpora"]} | {
        f"{HELD_OUT}/{name}": f"{HELD_OUT}/{name}" for name in made["held_out_languages"]
    }
    lines = [
        f"python -m data_prep.to_megatron --input {mixture_dir}/{place}/* {options} --output {data_dir}/{name}"
        for name, place in places.items()
    ]
    given = mixture_dir if data_dir == mixture_dir / MEGATRON else data_dir
    lines.append(f"# as many steps as see {made['tokens']:,} tokens; a step sees global_batch_size x sequence_length of them")
    lines.append(f"python -m recipes.train --recipe RECIPE --output run/ model.checkpoint=nemo/ data.train={given}")
    return "\n".join(lines) + "\n"
