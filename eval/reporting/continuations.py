"""What several models make of the same prompts, side by side: from a folder of eval.generate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.plain_files import read_json

PROMPTS_NAME = "prompts.jsonl"
TEXTS_NAME = "texts"


@dataclass(frozen=True)
class Continuations:
    """Prompts by id, and by prompt the first text of each model, in the order in which the models were given."""

    prompts: Mapping[str, str]
    texts: Mapping[str, Mapping[str, str]]


def read_continuations(directory: Path) -> Continuations:
    """The prompts of a folder, and what each model wrote at its first repeat.

    Raises:
        ValueError: if the folder is none of eval.generate.
    """
    if not (directory / PROMPTS_NAME).is_file() or not (directory / TEXTS_NAME).is_dir():
        raise ValueError(f"{directory} has no {PROMPTS_NAME} with {TEXTS_NAME}/; expected the output of eval.generate")
    rows = _read_lines(directory / PROMPTS_NAME)
    prompts = {row["id"]: row["prompt"] for row in rows}
    models = read_json(directory / "efficiency.json")["models"]
    texts: dict[str, dict[str, str]] = {prompt_id: {} for prompt_id in prompts}
    for model in models:
        for row in _read_lines(directory / TEXTS_NAME / f"{model}.jsonl"):
            if row["repeat"] == 0:
                texts[row["id"]][model] = row["text"]
    return Continuations(prompts, texts)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    # Not splitlines: a text may hold U+2028, which ends no line of JSON Lines.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def continuations_markdown(directory: Path, *, most: int = 20) -> str:
    """The first prompts of a folder with each model's first text, and whether it was interrupted at the last token allowed.

    Args:
        most: prompts that are shown.
    """
    found, content = read_continuations(directory), read_json(directory / "efficiency.json")
    allowed = content["conditions"]["settings"]["max_new_tokens"]
    lengths = {
        model: {row["id"]: len(row["token_ids"]) for row in _read_lines(directory / TEXTS_NAME / f"{model}.jsonl") if not row["repeat"]}
        for model in content["models"]
    }
    parts = ["# Prompts and continuations"]
    for prompt_id, prompt in list(found.prompts.items())[:most]:
        parts.append(f"**Prompt**: {_quoted(prompt)}")
        for model, text in found.texts[prompt_id].items():
            end = f" *(interrupted after {allowed} tokens)*" if lengths[model][prompt_id] >= allowed else ""
            parts.append(f"**{model}**: {_quoted(text)}{end}")
    return "\n\n".join(parts) + "\n"


def _quoted(text: str) -> str:
    return text.strip().replace("\n", " ⏎ ") or "(nothing)"
