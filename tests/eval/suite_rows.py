"""Small data sets in the layout in which the field's suites are published: the cache of `slurm.prefetch`, with rows of our own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.artifacts import digest_bytes

Row = dict[str, Any]
FROM_THE_HUB = ("sib200", "slovenian_llm_eval")  # folders of our task files that read these data sets and no rows of eval.prepare
COUNT = 8
_LETTERS = "ABCD"
_OPTIONS = {"option_a": "reka", "option_b": "cesta", "option_c": "gora", "option_d": "hiša"}


def write_suites(cache: Path) -> Path:
    """The cache with every suite of docs/evaluation.md, in one language or two."""
    write_repository(cache, "facebook/belebele", {code: {"test": _belebele(code)} for code in ("slv_Latn", "ita_Latn", "eng_Latn")})
    splits = {split: _hellaswag() for split in ("train", "validation", "test")}
    write_repository(cache, "Rowan/hellaswag", {"default": splits})
    write_repository(cache, "alexandrainst/m_hellaswag", {code: {"val": _hellaswag()} for code in ("hr", "sr")})
    write_repository(cache, "alexandrainst/m_arc", {"it": {split: _arc() for split in ("train", "validation", "test")}})
    write_repository(cache, "CohereForAI/Global-MMLU-Lite", {"it": {split: _global_mmlu() for split in ("dev", "test")}})
    write_repository(cache, "CohereForAI/include-base-44", {"Italian": {"test": _include()}})
    write_repository(cache, "jumelet/multiblimp", {code: {"train": _multiblimp()} for code in ("slv", "ita")})
    write_repository(cache, "mrlbenchmarks/global-piqa-parallel", {"slv_latn": {"test": _global_piqa(4)}})
    write_repository(cache, "mrlbenchmarks/global-piqa-nonparallel", {"slv_latn": {"test": _global_piqa(2)}})
    write_repository(
        cache, "Davlan/sib200", {code: {split: _sib200() for split in ("train", "validation", "test")} for code in ("slv_Latn", "ita_Latn")}
    )
    write_repository(cache, "evalitahf/textual_entailment", {"default": {split: _entailment() for split in ("dev", "test")}})
    write_repository(cache, "cjvt/slovenian-llm-eval", _slovenian_llm_eval())
    return cache


def write_repository(cache: Path, name: str, configs: Mapping[str, Mapping[str, Sequence[Row]]]) -> None:
    """One data set as huggingface_hub keeps it: configurations, splits, rows."""
    repository = cache / "huggingface" / "hub" / f"datasets--{name.replace('/', '--')}"
    revision = digest_bytes(name.encode()).removeprefix("xxh3:")  # each has its own, by which `datasets` tells them apart
    snapshot = repository / "snapshots" / revision
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    card = ["---", "configs:"]
    for config, splits in configs.items():
        card += [f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            path = snapshot / config / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            card += [f"  - split: {split}", f"    path: {config}/{split}.jsonl"]
    (snapshot / "README.md").write_text("\n".join([*card, "---", ""]))


def _belebele(code: str) -> list[Row]:
    """Two questions about each passage, as there."""
    return [
        {
            "link": "x", "question_number": n % 2 + 1, "flores_passage": f"Reka {n // 2} je dolga in teče skozi mesto.",
            "question": f"Kaj teče {n}?", "mc_answer1": "reka", "mc_answer2": "cesta", "mc_answer3": "gora", "mc_answer4": "hiša",
            "correct_answer_num": str(n % 4 + 1), "dialect": code, "ds": "x",
        }
        for n in range(12)
    ]  # fmt: skip


def _hellaswag() -> list[Row]:
    return [
        {
            "ind": n, "activity_label": "Cooking", "ctx_a": f"He takes {n} eggs.", "ctx_b": "he", "ctx": f"He takes {n} eggs. he",
            "endings": ["breaks them.", "flies away.", "sings.", "sleeps."], "source_id": "s", "split": "val", "split_type": "x",
            "label": str(n % 4),
        }
        for n in range(12)
    ]  # fmt: skip


def _arc() -> list[Row]:
    return [{"id": f"q{n}", "instruction": f"Che cosa {n}?", **_OPTIONS, "option_e": None, "answer": _LETTERS[n % 4]} for n in range(COUNT)]


def _global_mmlu() -> list[Row]:
    """Two questions of each category."""
    categories = ("Business", "Humanities", "Medical", "Other", "STEM", "Social Sciences")
    return [
        {
            "sample_id": f"{category}/{n}", "subject": "s", "subject_category": category, "question": f"Che cosa {n}?", **_OPTIONS,
            "answer": _LETTERS[n], "cultural_sensitivity_label": "CA",
        }
        for category in categories
        for n in range(2)
    ]  # fmt: skip


def _include() -> list[Row]:
    domains = ("STEM", "Arts & Humanities", "Social Science", "Applied Science", "Health oriented education", "Professional certification")
    return [
        {
            "language": "Italian", "country": "Italy", "domain": domain, "subject": "s", "regional_feature": "agnostic", "level": "Academic",
            "question": f"Che cosa {n}?", **_OPTIONS, "answer": n,
        }
        for domain in domains
        for n in range(2)
    ]  # fmt: skip


def _multiblimp() -> list[Row]:
    return [{"sen": f"Psi {n} lajajo.", "wrong_sen": f"Psi {n} laja.", "phenomenon": "SV-#"} for n in range(COUNT)]


def _global_piqa(solutions: int) -> list[Row]:
    return [
        {"prompt": f"Kako ogreješ {n} hiš?", **{f"solution{s}": f" S pečjo {s}." for s in range(solutions)}, "label": n % solutions}
        for n in range(COUNT)
    ]


def _sib200() -> list[Row]:
    topics = ("science/technology", "travel", "politics", "sports", "health", "entertainment", "geography")
    return [{"index_id": n, "category": topics[n % 7], "text": f"Reka {n} teče skozi mesto."} for n in range(COUNT)]


def _entailment() -> list[Row]:
    return [{"id": n, "text1": f"Il sole {n} splende.", "text2": "È giorno.", "entailment": ("SI", "NO")[n % 2]} for n in range(COUNT)]


def _slovenian_llm_eval() -> dict[str, dict[str, list[Row]]]:
    chosen = [{"query": f"Kaj je {n}?", "choices": ["reka", "cesta"], "gold": n % 2} for n in range(COUNT)]
    blanks = [
        {
            "sentence": f"Ana je dala Petri {n} knjig, ker jih _ ni potrebovala več.",
            "option1": "Ana",
            "option2": "Petra",
            "answer": str(n % 2 + 1),
        }
        for n in range(COUNT)
    ]
    return {
        **{name: {"test": chosen} for name in ("arc_easy", "arc_challenge", "openbookqa", "hellaswag")},
        "piqa": {"test": [{"goal": row["query"], "choices": row["choices"], "gold": row["gold"]} for row in chosen]},
        "boolq": {"test": [{"passage": f"Reka {n // 2} teče.", "question": "ali teče", "label": n % 2} for n in range(COUNT)]},
        "winogrande": {"test": blanks},
        "nq_open": {split: [{"question": f"kdo {n}", "answer": ["reka"]} for n in range(COUNT)] for split in ("train", "test")},
        "triviaqa": {
            split: [{"question": f"kdo {n}", "answer": {"value": "reka", "aliases": ["reka", "Reka"]}} for n in range(COUNT)]
            for split in ("train", "test")
        },
    }
