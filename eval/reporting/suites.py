"""Which suite a task belongs to, and what suite and task are called in a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from eval.reporting.runs import Evaluated, Report
from eval.reporting.scores import LANGUAGES, Line, Test

_LANGUAGES = LANGUAGES | {
    "ar": "Arabic", "de": "German", "el": "Greek", "hi": "Hindi", "ja": "Japanese", "my": "Burmese", "si": "Sinhala", "sw": "Swahili",
    "te": "Telugu", "th": "Thai",
}  # fmt: skip
# Of the code that a suite itself uses: ISO 639-3, before the script in codes as FLORES has them.
_CODES = {
    "slv": "sl", "eng": "en", "ita": "it", "hrv": "hr", "srp": "sr", "arb": "ar", "deu": "de", "ell": "el", "hin": "hi", "jpn": "ja",
    "mya": "my", "sin": "si", "swh": "sw", "tel": "te", "tha": "th",
}  # fmt: skip
_TASKS = {
    "boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC", "rte": "RTE", "si_nli": "SI-NLI", "wsc": "WSC",
    "arc_easy": "ARC-easy", "hellaswag": "HellaSwag", "mmlu": "MMLU", "piqa": "PIQA", "sciq": "SciQ",
}  # fmt: skip


@dataclass(frozen=True)
class Suite:
    """Tasks that a paper prints in one table.

    Attributes:
        pattern: of the whole name of a task; its groups are what tells the tasks apart, one called `language` its language.
        has_average: whether the paper prints the mean over its tasks.
        same_items: whether the tasks of a language ask the same items, in other words.
        language: of all its tasks, where their names do not say.
    """

    title: str
    pattern: str
    has_average: bool = False
    same_items: bool = False
    language: str | None = None


_EVALITA = {
    "te": "textual entailment", "sa": "sentiment", "wic": "word in context", "hs": "hate speech", "at": "admission tests", "faq": "FAQ",
}  # fmt: skip
_INCLUDE_DOMAINS = "|".join(
    (
        "applied_science", "arts_humanities", "business_commerce", "driving_license", "general_knowledge", "health_oriented_education", "marine_license",
        "medical_license", "professional_certification", "social_science", "stem",
    )
)  # fmt: skip
GENERATED_SLOVENE = Suite("Slovene SuperGLUE and SI-NLI, generated answers", r"sl_(\w+)_gen")
SENTA = Suite("SENTA, Slovene simplification", r"sl_senta_(\d+)shot")
ITA_BENCH = {
    Suite("ITA-Bench, Italian", r"itabench_(\w+)_it", has_average=True): "it",
    Suite("ITA-Bench, English", r"itabench_(\w+)_en", has_average=True): "en",
}
ACROSS_LANGUAGES = (
    Suite("Sentence retrieval, Bible", r"bible_(?P<language>\w+)", has_average=True),
    Suite("Sentence retrieval, Tatoeba", r"tatoeba_(?P<language>\w+)", has_average=True),
    Suite("Sentence retrieval", r"retrieval_(?P<language>\w+)", has_average=True),
    Suite("Taxi1500, zero-shot", r"taxi1500_(?P<language>\w+)", has_average=True),
    Suite("Names (WikiAnn), zero-shot", r"ner_(?P<language>\w+)", has_average=True),
    Suite("Parts of speech (UD), zero-shot", r"pos_(?P<language>\w+)", has_average=True),
)
_SUITES = (
    GENERATED_SLOVENE,
    Suite("Slovene SuperGLUE and SI-NLI, likeliest label", r"sl_(\w+)_mc"),
    SENTA,
    *ITA_BENCH,
    Suite("SQuAD-it", r"(squad)_it"),
    Suite("FLORES, few-shot", r"flores_(\w\w)_(\w\w)"),
    Suite("Translation from English, sampled", r"mt_en_(?P<language>\w\w)", has_average=True),
    Suite("Translation into English, sampled", r"mt_(?P<language>\w\w)_en", has_average=True),
    Suite("Summaries, sampled", r"sum_(?P<language>\w\w)", has_average=True),
    Suite("Belebele", r"belebele_(?P<language>\w+)", has_average=True),
    Suite("SIB-200", r"sib200_(?P<language>\w+)", has_average=True),
    Suite("Global-MMLU Lite", r"global_mmlu_(?P<language>[a-z]{2,3})_(\w+)", has_average=True),
    Suite("Global-MMLU", r"global_mmlu_full_(?P<language>[a-z]{2,3})_(\w+)", has_average=True),
    Suite("INCLUDE", rf"include_base_44_(?P<language>[a-z_]+?)(?:_(few_shot_en|few_shot_og))?_({_INCLUDE_DOMAINS})", has_average=True),
    Suite("MultiBLiMP", r"multiblimp_(?P<language>\w+)", has_average=True),
    Suite("Global-PIQA, parallel, likeliest ending", r"global_piqa_parallel_cloze_(?P<language>\w+)", has_average=True),
    Suite("Global-PIQA, likeliest ending", r"global_piqa_nonparallel_cloze_(?P<language>\w+)", has_average=True),
    Suite("Global-PIQA, parallel, generated", r"global_piqa_parallel_generation_(?P<language>\w+)", has_average=True),
    Suite("Global-PIQA, generated", r"global_piqa_nonparallel_generation_(?P<language>\w+)", has_average=True),
    Suite("ARC in translation", r"arc_(?P<language>[a-z]{2})", has_average=True),
    Suite("HellaSwag in translation", r"hellaswag_(?P<language>[a-z]{2})", has_average=True),
    Suite("MMLU in translation", r"m_mmlu_(?P<language>[a-z]{2})", has_average=True),
    Suite("TruthfulQA in translation", r"truthfulqa_(?P<language>[a-z]{2})_(mc\d)"),
    Suite("Slovenian-LLM-Eval", r"slovenian_llm_eval_(\w+)", has_average=True, language="sl"),
    Suite(
        "Evalita-LLM, likeliest answer", r"evalita-mp_(te|sa|wic|hs|at|faq)_(prompt-\d)", has_average=True, same_items=True, language="it"
    ),
    Suite("Everyday completions, Slovene", r"completion_(sl)"),
    Suite("Everyday completions, English", r"completion_(en)"),
    Suite("Instructions with answers that a program checks", r"instructions_(?P<language>\w+)"),
    *ACROSS_LANGUAGES,
)
TEXTS = Suite("Held-out text", "")
OTHERS = Suite("Other tasks", "")


def place(line: Line) -> tuple[Suite, str]:
    """The suite of a line's task or text, and the task's name inside it."""
    if line.is_text:
        return TEXTS, LANGUAGES.get(line.source, line.source)
    for suite in _SUITES:
        if match := re.fullmatch(suite.pattern, line.source):
            description = [_EVALITA.get(part, part) if suite.same_items else _title(part) for part in match.groups() if part]
            return suite, (", " if suite.language or "language" in match.groupdict() else " to ").join(description)
    return OTHERS, line.source


def _title(part: str) -> str:
    if part.isdigit():
        return f"{part} examples"
    return _TASKS.get(part) or {"squad": "SQuAD-it"}.get(part) or language_name(part)


def language_name(code: str) -> str:
    """A language as people call it, with the script or region of its code where there is one; an unknown code as it is."""
    language, _, rest = code.partition("_")
    short = _CODES.get(language, language)
    if short not in _LANGUAGES:
        return code.title() if code.title() in _LANGUAGES.values() else code
    return f"{_LANGUAGES[short]} ({rest})" if rest else _LANGUAGES[short]


def language_of(line: Line) -> tuple[Suite, str] | None:
    """Suite and language of a task; None where its suite is not by language."""
    if line.is_text:
        return None
    suite = place(line)[0]
    match = re.fullmatch(suite.pattern, line.source)
    code = suite.language or (match.groupdict().get("language") if match else None)
    return None if code is None else (suite, language_name(code))


def by_suite(lines: Sequence[Line]) -> dict[Suite, list[Line]]:
    """Lines of each suite, in their order: texts, the papers' suites, others."""
    found: dict[Suite, list[Line]] = {suite: [] for suite in (TEXTS, *_SUITES, OTHERS)}
    for line in lines:
        found[place(line)[0]].append(line)
    return {suite: sorted(members, key=_number) for suite, members in found.items() if members}


def _number(line: Line) -> int:
    """How many examples a task of a suite has that tells its tasks apart so; else 0, which leaves them in their order."""
    match = re.fullmatch(place(line)[0].pattern, line.source)
    return int(match[1]) if match and match.groups() and match[1].isdigit() else 0


def mean_score(lines: Sequence[Line], model: Evaluated) -> float | None:
    """Mean over lines; None unless the model has them all."""
    scores = [line.score(model) for line in lines]
    known = [score.value for score in scores if score is not None]
    return fmean(known) if known and len(known) == len(scores) else None


def glance_rows(report: Report, lines: Sequence[Line], tests: Sequence[Test]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: every suite in one line, with the mean of its scores and how many tasks are surely better or worse.

    A suite's scores are of one metric; tasks that belong to none are left out.
    """
    firsts = {line.source: line for line in reversed(lines) if line.headline and not line.is_text}
    suites = by_suite([line for line in lines if firsts.get(line.source) == line])
    sure = {(test.line, test.model.path): "▲" if test.better else "▼" for test in tests if test.sure and test.metric == test.line.metric}
    rows = []
    for suite, members in suites.items():
        if suite is OTHERS:
            continue
        metric = members[0].label.removeprefix(f"{members[0].source}, ")
        cells = []
        for number, model in enumerate(report.models):
            mean = mean_score(members, model)
            marks = [sure.get((line, model.path)) for line in members]
            description = "".join(f" {mark}{marks.count(mark)}" for mark in "▲▼" if mark in marks)
            cells.append("–" if mean is None else f"{mean:.1f}{description if number else ''}")
        rows.append([suite.title, metric, str(len(members)), *cells])
    return ["suite", "mean of", "tasks", *(model.name for model in report.models)], rows
