"""Machine translation of FLORES rows: few-shot as SAVA, and zero-shot and sampled as the low-resource paper.

A row holds one sentence in all languages, each under its code.  The prompts are the papers' own words (SAVA, Table 8, which asks in
the language of the translation; the published task file of lowres-cve, MIT): one functional phrase each, a fact of the protocol that scores
depend on.  Those for Slovene are ours, in the form of SAVA's.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from eval.protocols.protocol import Protocol, dataset_of
from eval.protocols.rows import Rows, field

if TYPE_CHECKING:
    from datasets import DatasetDict

_FEW_SHOT = {
    "en-it": "Traduci dall'Inglese all'Italiano",
    "it-en": "Translate from Italian to English",
    "en-sl": "Prevedi iz angleščine v slovenščino",
    "sl-en": "Translate from Slovene to English",
}
_ZERO_SHOT = {
    "en-ar": "ترجم الإنجليزية إلى العربية:",
    "en-de": "Übersetzen Sie Englisch ins Deutsche:",
    "en-el": "Μεταφράστε τα αγγλικά στα ελληνικά:",
    "en-hi": "अंग्रेजी से हिंदी में अनुवाद करें:",
    "en-ja": "英語から日本語へ翻訳しなさい:",
    "en-my": "အင်္ဂလိပ်မှ မြန်မာသို့ ဘာသာပြန်ပါ။:",
    "en-si": "ඉංග්රීසි සිංහලයට පරිවර්තනය කරන්න:",
    "en-sw": "Tafsiri Kiingereza hadi Kiswahili:",
    "en-te": "ఆంగ్లం నుండి తెలుగుకు అనువదించండి:",
    "en-th": "แปลภาษาอังกฤษเป็นไทย:",
    "ar-en": "ترجم العربية إلى الإنجليزية:",
    "de-en": "Übersetzen Sie Deutsch ins Englische:",
    "el-en": "Μεταφράστε τα ελληνικά στα αγγλικά:",
    "hi-en": "हिंदी से अंग्रेजी में अनुवाद करें:",
    "ja-en": "日本語から英語へ翻訳しなさい:",
    "sw-en": "Tafsiri Kiswahili hadi Kiingereza:",
    "th-en": "แปลภาษาไทยเป็นอังกฤษ:",
}


def _few_shot(direction: str) -> Protocol:
    source, target = direction.split("-")
    return Protocol(
        evaluated=Rows("mt/flores_devtest"),
        examples=Rows("mt/flores_dev"),
        # Every example repeats the instruction.
        question=lambda row: f"{_FEW_SHOT[direction]}\nText: {field(row, source)}\nTranslation:",
        answer=lambda row: str(field(row, target)),
        scored=lambda row: {"source": field(row, source), "references": [field(row, target)]},
    )


def _zero_shot(direction: str) -> Protocol:
    source, target = direction.split("-")
    return Protocol(
        evaluated=Rows("mt/flores_devtest"),
        question=lambda row: f"{_ZERO_SHOT[direction]}\n{field(row, source)} =",
        answer=lambda row: str(field(row, target)),
        scored=lambda row: {"source": field(row, source), "references": [field(row, target)]},
    )


def load_few_shot(*, direction: str, **metadata: Any) -> DatasetDict:
    """Documents of one direction, examples from `dev`."""
    return dataset_of(_few_shot(direction), **metadata)


def load_zero_shot(*, direction: str, **metadata: Any) -> DatasetDict:
    """Documents of one direction; `items` of them are drawn by the seed (which 500 the paper took is not published)."""
    return dataset_of(_zero_shot(direction), **metadata)


def score(document: dict[str, Any], answers: Sequence[str]) -> dict[str, Any]:
    """Corpus chrF and BLEU, and chrF of the sentence, of the answer and of the copied source."""
    output, reference = answers[0].strip(), document["references"][0]
    return {
        "chrf": (reference, output),
        "bleu": (reference, output),
        "chrf_sentence": _chrf(output, reference),
        "chrf_sentence_copy": _chrf(document["source"], reference),
        "empty": float(not output),
    }


def score_runs(document: dict[str, Any], answers: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Mean chrF of the sentence over sampled runs (as the low-resource paper), each run's for their spread, and the source's."""
    runs = [_chrf(output.strip(), document["references"][0]) for output in answers[0]]
    return {
        "chrf_sentence": fmean(runs),
        "chrf_sentence_sd": tuple(runs),
        "chrf_sentence_copy": _chrf(document["source"], document["references"][0]),
        "empty": fmean(float(not output.strip()) for output in answers[0]),
    }


def sd_over_runs(items: Sequence[Sequence[float]]) -> float:
    """Standard deviation between the runs of a score, each run's being its mean over items."""
    return stdev(fmean(run) for run in zip(*items, strict=True))


def _chrf(output: str, reference: str) -> float:
    from sacrebleu import sentence_chrf

    return float(sentence_chrf(output, [reference]).score)
