"""A comparison of tokenizers as tables, charts and one page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.figure_style import MARKERS, Palette, drawn
from common.pages import Drawing, rendered
from common.tables import markdown_table
from data_prep.tokenizers.metrics import MOST_PIECES, SizeAdvice, TextFigures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PIECES = [*(str(n) for n in range(1, MOST_PIECES)), f"{MOST_PIECES}+"]


@dataclass(frozen=True)
class Measurement:
    """All figures of one tokenizer.

    Attributes:
        family: see `Candidate`.
        texts: corpus -> figures.
        sentence_tokens: language -> mean tokens of a parallel sentence.
        lexicon_share: None without a lexicon.
    """

    name: str
    family: str | None
    vocab_size: int
    texts: Mapping[str, TextFigures]
    sentence_tokens: Mapping[str, float]
    lexicon_share: float | None

    @property
    def kind(self) -> str:
        """What the family is called: the kind of model where it is known, the name of the tokenizer otherwise."""
        return str(json.loads(self.family)["model"]) if self.family else self.name


@dataclass(frozen=True)
class Sample:
    """A text and the pieces that each tokenizer cuts it into."""

    name: str
    text: str
    pieces: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Report:
    """Everything that is shown; sizes are chosen on the first corpus.

    Attributes:
        languages_of: corpus -> its language, as its table says; "" where it does not.
    """

    measurements: tuple[Measurement, ...]
    advice: Mapping[str, SizeAdvice]
    samples: tuple[Sample, ...]
    words: str
    every: int
    languages_of: Mapping[str, str] = field(default_factory=dict)

    @property
    def corpora(self) -> list[str]:
        """Names of the corpora."""
        return list(self.measurements[0].texts)

    @property
    def languages(self) -> list[str]:
        """Names of the parallel languages."""
        return list(self.measurements[0].sentence_tokens)

    @property
    def families(self) -> dict[str, list[Measurement]]:
        """Tokenizers that differ in size only, smallest first, by family; those of one size are left out."""
        groups: dict[str, list[Measurement]] = {}
        for m in self.measurements:
            if m.family is not None:
                groups.setdefault(m.family, []).append(m)
        return {family: sorted(group, key=lambda m: m.vocab_size) for family, group in groups.items() if len(group) > 1}

    def sentences(self) -> list[str]:
        """What the figures say about the size, and how they were taken."""
        notes = []
        for kind, advice in self.advice.items():
            gains = ", ".join(
                f"{small:,} to {large:,} saves {100 * (1 - after / before):.1f} %"
                for small, large, before, after in zip(advice.sizes, advice.sizes[1:], advice.fertility, advice.fertility[1:])
            )
            edge = ""
            if advice.recommended in (advice.sizes[-2], advice.sizes[1]) and len(advice.sizes) == 3:
                edge = " With three sizes only one can be the knee: try more sizes."
            notes.append(
                f"{kind}: take {advice.recommended:,} tokens, the knee of tokens per word on {self.corpora[0]} ({gains} of the tokens).{edge}"
            )
        what = "what stands between white space" if self.words == "whitespace" else "runs of letters"
        notes.append(
            f"Words are {what}, each tokenized after a space. Tokens of whole documents include line breaks and marks. "
            "A byte token is not a whole character."
        )
        if self.every > 1:
            notes.append(f"Every {self.every}th document was measured.")
        return notes


def corpus_table(report: Report, corpus: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows: one tokenizer each, on one corpus."""
    header = [
        "tokenizer",
        "vocabulary",
        "tokens/word",
        "in 2+ pieces",
        "characters/token",
        "bytes/token",
        "unknown",
        "byte tokens",
        "tokens",
    ]
    rows = []
    for m in report.measurements:
        t = m.texts[corpus]
        shares = [f"{100 * t.unknown_share:.3f} %", f"{100 * t.byte_share:.3f} %"]
        rows.append(
            [m.name, f"{m.vocab_size:,}", f"{t.fertility:.3f}", f"{100 * t.split_share:.1f} %", f"{t.characters_per_token:.2f}", f"{t.bytes_per_token:.2f}", *shares, f"{t.num_tokens:,}"]
        )  # fmt: skip
    return header, rows


def token_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """GaMS, Table 1: corpora and their total in rows, their tokens by each tokenizer in columns; in billions from a billion on."""
    counts = {corpus: [m.texts[corpus].num_tokens for m in report.measurements] for corpus in report.corpora}
    total = [sum(column) for column in zip(*counts.values())]
    rows = [(corpus, report.languages_of.get(corpus) or "/", numbers) for corpus, numbers in counts.items()]

    def text(number: int) -> str:
        return f"{number / 1e9:.2f} B" if max(total) >= 1e9 else f"{number:,}"

    header = ["Corpus", "Language", *(f"# tokens ({m.name} tokenizer)" for m in report.measurements)]
    return header, [[corpus, language, *map(text, numbers)] for corpus, language, numbers in [*rows, ("Total", "/", total)]]


def fertility_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """SAVA, Table 2: tokens per word, tokenizers in rows and corpora in columns."""
    return ["tokenizer", *report.corpora], [
        [m.name, *(f"{m.texts[corpus].fertility:.2f}" for corpus in report.corpora)] for m in report.measurements
    ]


def histogram_table(report: Report, corpus: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows: share of the words of a corpus by pieces."""
    rows = [
        [m.name, *(f"{100 * n / max(m.texts[corpus].num_words, 1):.1f}" for n in m.texts[corpus].histogram)] for m in report.measurements
    ]
    return ["% of words in pieces", *_PIECES], rows


def language_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and rows: tokens of a parallel sentence in each language, and beside the first language."""
    first, *others = report.languages
    rows = []
    for m in report.measurements:
        means = m.sentence_tokens
        rows.append([m.name, *(f"{means[language]:.1f}" for language in (first, *others)), *(f"{means[language] / means[first]:.2f}" for language in others)])  # fmt: skip
    return ["tokenizer", first, *others, *(f"{language}/{first}" for language in others)], rows


def lexicon_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and rows: share that the lexicon knows of what each corpus uses of the vocabulary, and of the whole vocabulary."""
    rows = [
        [m.name, f"{m.vocab_size:,}", *(_percent(m.texts[corpus].lexicon_share) for corpus in report.corpora), _percent(m.lexicon_share)]
        for m in report.measurements
        if m.lexicon_share is not None
    ]
    return ["tokenizer", "vocabulary", *(f"of the tokens in {corpus}" for corpus in report.corpora), "of the vocabulary"], rows


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _tables(report: Report) -> list[tuple[str, tuple[list[str], list[list[str]]]]]:
    tables = [(f"On {corpus}", corpus_table(report, corpus)) for corpus in report.corpora]
    if len(report.corpora) > 1:
        tables += [("Tokens of each corpus", token_table(report)), ("Tokens per word", fertility_table(report))]
    tables += [(f"Words of {corpus} by pieces", histogram_table(report, corpus)) for corpus in report.corpora]
    if report.languages:
        tables.append(("Tokens of a parallel sentence", language_table(report)))
    if any(m.lexicon_share is not None for m in report.measurements):
        tables.append(("Tokens that are words of the lexicon", lexicon_table(report)))
    return tables


def write_report(report: Report, directory: Path) -> None:
    """Write report.md, report.json, report.html and the drawings."""
    figures = [("words_by_pieces", lambda palette: draw_histograms(report, palette), *_HISTOGRAM_WORDS)]
    figures += [("tokens", lambda palette: draw_tokens(report, palette), *_TOKENS_WORDS)]
    if report.languages:
        figures += [("languages", lambda palette: draw_languages(report, palette), *_LANGUAGES_WORDS)]
    if len({m.vocab_size for m in report.measurements}) > 1:
        figures.insert(0, ("sizes", lambda palette: draw_sizes(report, palette), *_SIZES_WORDS))
    shown = []
    for name, draw, alternative, caption in figures:
        light, dark = drawn(draw, directory / f"{name}.png")
        shown.append(Drawing(light, dark, alternative, caption))
    markdown = "# Tokenizers\n\n" + "\n".join(f"- {sentence}" for sentence in report.sentences()) + "\n"
    for title, table in _tables(report):
        markdown += f"\n## {title}\n\n{markdown_table(*table)}\n"
    (directory / "report.md").write_text(markdown, encoding="utf-8")
    (directory / "report.json").write_text(json.dumps(as_json(report), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (directory / "report.html").write_text(page(report, shown), encoding="utf-8")


def as_json(report: Report) -> dict[str, Any]:
    """Every figure, unrounded."""
    return {
        "tokenizers": {
            m.name: {
                "vocab_size": m.vocab_size,
                "texts": {
                    name: asdict(t)
                    | {key: getattr(t, key) for key in ("num_words", "fertility", "split_share", "characters_per_token", "bytes_per_token", "unknown_share", "byte_share", "lexicon_share")}
                    for name, t in m.texts.items()
                },
                "tokens_per_parallel_sentence": dict(m.sentence_tokens),
                "lexicon_share": m.lexicon_share,
            }
            for m in report.measurements
        },
        "size_advice": {kind: asdict(advice) for kind, advice in report.advice.items()},
        "words": report.words,
        "every": report.every,
    }  # fmt: skip


_SIZES_WORDS = (
    "Share of words in two or more pieces and share of the tokens in the lexicon against vocabulary size, a row for each corpus; the figures are in the tables below.",
    "Effect of the vocabulary size on each corpus. A line joins tokenizers that differ in size alone.",
)
_HISTOGRAM_WORDS = (
    "Share of words by the number of pieces they are cut into, one panel for each corpus; the figures are in the tables below.",
    "Words by the number of their pieces.",
)
_TOKENS_WORDS = (
    "Bars: tokens per word, a group for each tokenizer and a bar for each corpus; the figures are in the tables below.",
    "Fewer tokens for the same text are cheaper to train on and to generate.",
)

_LANGUAGES_WORDS = (
    "Bars: tokens of a parallel sentence, a group for each language and a bar for each tokenizer; the figures are in the tables below.",
    "The same sentences in every language: a longer bar is a language cut into smaller pieces.",
)


def draw_sizes(report: Report, palette: Palette) -> Figure:
    """GaMS, Figure 1: a row for each corpus, its words in 2+ pieces and, with a lexicon, its tokens in it, against vocabulary size."""
    from matplotlib import pyplot as plt

    panels = [
        "words in 2+ pieces (%)",
        *(["tokens in the lexicon (%)"] if any(m.lexicon_share is not None for m in report.measurements) else []),
    ]
    size = 4.6 * len(panels), 3.2 * len(report.corpora)
    figure, axes = plt.subplots(len(report.corpora), len(panels), figsize=size, layout="constrained", squeeze=False)
    grouped = {m.name for group in report.families.values() for m in group}
    series = [*report.families.values(), *([m] for m in report.measurements if m.name not in grouped)]
    for corpus, row in zip(report.corpora, axes):
        for place, (axis, title) in enumerate(zip(row, panels)):
            for number, group in enumerate(series):
                style = {"color": palette.series[number % len(palette.series)], "marker": MARKERS[number % len(MARKERS)]}
                shares = [(m.texts[corpus].split_share, m.texts[corpus].lexicon_share or 0)[place] for m in group]
                label = group[0].name if len(group) == 1 else group[0].kind
                axis.plot([m.vocab_size / 1000 for m in group], [100 * share for share in shares], label=label, **style)
            axis.set_title(f"{corpus}: {title}")
            axis.set_xlabel("vocabulary size (thousands)")
            axis.grid(axis="y")
            axis.margins(y=0.12)
    axes[0][0].legend(fontsize=8)
    return figure


def draw_histograms(report: Report, palette: Palette) -> Figure:
    """Share of words by pieces, a panel for each corpus."""
    from matplotlib import pyplot as plt

    columns = 2 if len(report.corpora) == 4 else min(3, len(report.corpora))
    rows = -(-len(report.corpora) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.1 * columns + 1.6, 3.3 * rows), layout="constrained", squeeze=False, sharey=True)
    flat: list[Axes] = list(axes.flat)
    for axis, corpus in zip(flat, report.corpora):
        for m, (number, strength) in zip(report.measurements, _series(report)):
            figures = m.texts[corpus]
            axis.plot(
                range(MOST_PIECES),
                [100 * n / max(figures.num_words, 1) for n in figures.histogram],
                color=palette.series[number % len(palette.series)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=("-", "--", ":")[number // len(palette.series) % 3],
                alpha=strength,
                markersize=4.5,
                linewidth=1.5,
                label=m.name,
            )
        axis.set_title(corpus)
        axis.set_xticks(range(MOST_PIECES), _PIECES)
        axis.set_xlabel("pieces of a word")
        axis.grid(axis="y")
    for axis in flat[len(report.corpora) :]:
        axis.set_visible(False)
    flat[0].set_ylabel("% of the words")
    handles, labels = flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)
    return figure


def _series(report: Report) -> list[tuple[int, float]]:
    """Number of the colour and its strength for each tokenizer: sizes of one family share a colour, the largest strongest."""
    keys = list(dict.fromkeys(m.family if m.family and m.family in report.families else m.name for m in report.measurements))
    series = []
    for m in report.measurements:
        group = report.families.get(m.family or "", [m])
        rank = [other.name for other in group].index(m.name)
        series.append(
            (
                keys.index(m.family if m.family and len(group) > 1 else m.name),
                1.0 if len(group) == 1 else 0.3 + 0.7 * rank / (len(group) - 1),
            )
        )
    return series


def draw_tokens(report: Report, palette: Palette) -> Figure:
    """SAVA, Figure 1: tokens per word, a group of bars for each tokenizer, a bar for each corpus."""
    values = {corpus: [m.texts[corpus].fertility for m in report.measurements] for corpus in report.corpora}
    colours = [(number, 1.0) for number in range(len(values))]
    return _bars("tokens per word", [m.name for m in report.measurements], values, colours, palette)


def draw_languages(report: Report, palette: Palette) -> Figure:
    """Low-resource paper, Figure 3: mean tokens of a parallel sentence, a group of bars for each language, a bar for each tokenizer."""
    values = {m.name: [m.sentence_tokens[language] for language in report.languages] for m in report.measurements}
    return _bars("tokens of a sentence", report.languages, values, _series(report), palette)


def _bars(
    title: str, groups: Sequence[str], values: Mapping[str, Sequence[float]], colours: Sequence[tuple[int, float]], palette: Palette
) -> Figure:
    """A group of bars for each name of a group.

    Args:
        values: name of a series -> its bar in each group.
        colours: number of each series' colour, and its strength.
    """
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(max(5.2, 1.6 + 0.16 * len(groups) * (len(values) + 1.5)), 3.6), layout="constrained")
    width = 0.84 / len(values)
    for place, ((name, heights), (number, strength)) in enumerate(zip(values.items(), colours)):
        left = [group + (place - (len(values) - 1) / 2) * width for group in range(len(groups))]
        axis.bar(left, heights, width, color=palette.series[number % len(palette.series)], alpha=strength, label=name)
    axis.set_xticks(range(len(groups)), groups)
    axis.set_title(title)
    axis.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=min(5, len(values)), fontsize=8)
    return figure


def page(report: Report, drawings: Sequence[Drawing]) -> str:
    """One HTML page that holds all it shows."""
    sentences = report.sentences()
    num_notes = 1 if report.every == 1 else 2
    return rendered(
        "tokenizers.html",
        title="Tokenizers compared",
        advice=sentences[:-num_notes],
        drawings=drawings,
        tables=_tables(report),
        samples=report.samples,
        notes=" ".join(sentences[-num_notes:]),
    )
