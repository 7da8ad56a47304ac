"""Folders of results with translations, made without any model and without lm-eval: for COMET's environment, which has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.artifacts import digest_bytes, write_manifest
from conversion.measuring.intervals import ratio_interval
from eval.protocols.translation import score, score_runs
from eval.running.results import RESULT_FORMAT, write_lines, write_result
from eval.running.task_runs import item_scores

SENTENCES = (
    ("The old mill stands by the river.", "Stari mlin stoji ob reki."),
    ("She bought cherries at the market.", "Na trgu je kupila češnje."),
    ("In the morning fog lay over the valley.", "Zjutraj je nad dolino ležala megla."),
    ("Nobody knows when the bridge was built.", "Nihče ne ve, kdaj so zgradili most."),
)
# Of each sentence one translation, and two sampled ones.
TRANSLATED = {
    "flores_en_sl": [["Stari mlin stoji."], ["Kupila je češnje."], [""], ["Most"]],
    "mt_en_sl": [["mlin", "reka"], ["trg", ""], ["megla", "dolina"], ["most", "nihče"]],
}


def make_translations(folder: Path, tasks: Mapping[str, Sequence[Sequence[str]]], *, step: int | None = None) -> Path:
    """One model's folder with some translation tasks.

    Args:
        tasks: name -> for every sentence its translations, one or one of each sampled run.
    """
    return _make(folder, tasks, _translation, step=step)


def make_summaries(folder: Path, tasks: Mapping[str, Sequence[Sequence[str]]], *, step: int | None = None) -> Path:
    """One model's folder with some tasks of summaries, which have no source, and ROUGE-L in place of chrF."""
    return _make(folder, tasks, _summary, step=step)


def _translation(document: dict[str, Any], answers: list[Any]) -> dict[str, Any]:
    return score(document, answers) if isinstance(answers[0], str) else score_runs(document, answers)


def _summary(document: dict[str, Any], answers: list[Any]) -> dict[str, Any]:
    del document["source"]
    runs = [100 * min(1.0, len(text) / len(document["references"][0])) for text in answers[0]]  # in place of ROUGE-L, which is not here
    return {"rougeL": sum(runs) / len(runs), "rougeL_sd": tuple(runs), "empty": 0.0}


_Score = Callable[[dict[str, Any], list[Any]], dict[str, Any]]


def _make(folder: Path, tasks: Mapping[str, Sequence[Sequence[str]]], score_one: _Score, *, step: int | None) -> Path:
    folder.mkdir(parents=True)
    facts = {} if step is None else {"method": "focus", "head": "tied", "seed": 1, "step": step}
    summaries = {task: _task(folder, task, outputs, score_one) for task, outputs in tasks.items()}
    result = {
        "format": RESULT_FORMAT,
        "key": folder.name,
        "name": folder.name,
        "model": {"digest": digest_bytes(folder.name.encode()), "written_by": "conversion.nemo_to_hf", "model_type": "opt"},
        "facts": facts,
        "settings": {
            "start_token": "auto",
            "context_length": None,
            "dtype": "float32",
            "window_tokens": 512,
            "task_positions": 512,
            "backend": "hf",
        },
        "versions": {"lm_eval": "0.4.13", "transformers": "4.57.6", "torch": "2.13.0"},
        "texts": {},
        "tasks": summaries,
    }
    write_result(folder, result)
    write_manifest(folder, stage="eval.harness", facts=facts)
    return folder


def _task(folder: Path, task: str, outputs: Sequence[Sequence[str]], score_one: _Score) -> dict[str, Any]:
    samples = []
    for number, ((source, reference), texts) in enumerate(zip(SENTENCES, outputs)):
        document = {"id": f"devtest:{number}", "group": f"story {number // 2}", "source": source, "references": [reference]}
        answers = list(texts) if len(texts) == 1 else [list(texts)]
        scores = score_one(document, answers)
        asked = f"Text: {source}\nTranslation:"
        samples.append(
            {
                "doc_id": number, "doc": document, "target": reference, "arguments": [[asked, {"until": ["\n"]}]], "resps": [list(texts)],
                "filtered_resps": answers, "filter": "none", "prompt_hash": digest_bytes(asked.encode()).removeprefix("xxh3:"),
                "metrics": list(scores), **scores,
            }
        )  # fmt: skip
    write_lines(folder / "samples" / f"{task}.jsonl", samples)
    items = item_scores(samples)
    write_lines(folder / "items" / f"{task}.jsonl", [items])
    shown = {}
    for name in items["scores"]:
        shown[name] = {**ratio_interval(items["scores"][name]).figures(), "stderr": None}
    return {
        "metrics": shown, "num_items": len(samples), "num_groups": len(set(items["groups"])), "num_fewshot": 0, "higher_is_better": {"chrf_sentence": True, "rougeL": True, "empty": False},
        "prompts_digest": digest_bytes(task.encode()), "majority": None, "prompt_cut": 0.0, "answer_cut": 0.0,
    }  # fmt: skip
