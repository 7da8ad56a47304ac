"""Zero-shot summaries of the low-resource paper (MLSUM, GreekSUM, XL-Sum), sampled, scored by ROUGE-L on pieces of a tokenizer.

Prompts are the paper's own words (the published task file of lowres-cve, MIT): one functional sentence each, a fact of the protocol that
scores depend on.  Its public script joins the pieces and lets rouge_score cut them again, which deletes all that is not ASCII; here the
pieces are what ROUGE compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from eval.protocols.protocol import Protocol, dataset_of
from eval.protocols.rows import Rows, field
from eval.protocols.text_overlap import hugging_face_tokenizer, rouge_l

if TYPE_CHECKING:
    from datasets import DatasetDict

_PROMPTS = {
    "ar": ("اكتب ملخصًا قصيرًا للنص التالي باللغة العربية. المقالة:", "الملخص:"),
    "de": ("Schreiben Sie eine kurze Zusammenfassung des folgenden Textes auf Deutsch. Artikel:", "Zusammenfassung:"),
    "el": ("Γράψε μια σύντομη περίληψη του παρακάτω κειμένου στα ελληνικά. Άρθρο:", "Περίληψη:"),
    "hi": ("निम्नलिखित का संक्षेप हिंदी में लिखे। लेख:", "संक्षेप:"),
    "ja": ("次の文章の要約を日本語で書きなさい。記事:", "要約:"),
    "my": ("အောက်ပါစာသားကို မြန်မာဘာသာဖြင့် အကျဉ်းချုပ်ရေးပါ။ ဆောင်းပါး:", "အကျဉ်းချုပ်:"),
    "si": ("පහත පාඨයේ සාරාංශය සිංහලෙන් ලියන්න. ලිපිය:", "සාරාංශය:"),
    "sw": ("Andika muhtasari mfupi wa maandishi yafuatayo kwa Kiswahili. Makala:", "Muhtasari:"),
    "te": ("క్రింది వచనం యొక్క సారాంశం తెలుగులో రాయండి. వ్యాసం:", "సారాంశం:"),
    "th": ("เขียนสรุปสั้น ๆ ของข้อความต่อไปนี้เป็นภาษาไทย บทความ:", "สรุป:"),
}


def _protocol(language: str, tokenizer_digest: str) -> Protocol:
    before, after = _PROMPTS[language]
    return Protocol(
        evaluated=Rows(f"summarisation/{language}"),
        question=lambda row: f"{before} {field(row, 'text')} {after}",
        answer=lambda row: str(field(row, "summary")),
        article=lambda row: str(field(row, "text")),
        # The tokenizer is part of what a score means, so it is part of the document's identity.
        scored=lambda row: {"references": [field(row, "summary")], "rouge_tokenizer": tokenizer_digest},
    )


def load(*, language: str, **metadata: Any) -> DatasetDict:
    """Documents of one language, `items` of them drawn by the seed.

    Raises:
        ValueError: also if no tokenizer for ROUGE is named.
    """
    from data_prep.tokenizers.files import tokenizer_digest

    return dataset_of(_protocol(language, tokenizer_digest(hugging_face_tokenizer())), **metadata)


def score_runs(document: dict[str, Any], answers: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Mean ROUGE-L over sampled runs, and each run's for their spread."""
    runs = [rouge_l(output.strip(), document["references"], hugging_face_tokenizer())[0] for output in answers[0]]
    return {"rougeL": fmean(runs), "rougeL_sd": tuple(runs), "empty": fmean(float(not output.strip()) for output in answers[0])}
