"""The tiny size of a project: a tiny model, the demo's text and a few steps in place of all, in which every stage has its work in a minute."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.cli import ROOT
from recipes.projects.project import MATERIAL, TINY, LoadedProject
from recipes.projects.schema import Evaluation, Language, Vocabulary

TINY_VOCABULARY = 1500
ENCODERS = ("bert", "roberta", "xlm-roberta")
HELPER = "{helper}"  # reference to a helper model that is made for it
_TEXT = ROOT / "recipes" / "demo_text"
_NEW_TOKENS = 100


def tiny_project(loaded: LoadedProject) -> LoadedProject:
    """The same project with a tiny model and the demo's text, in which every stage has its work in a minute."""
    project = loaded.project
    new = next(code for code in project.languages if code != project.source_language)
    texts = {new: "sl", project.source_language: "en"}
    return replace(
        loaded,
        project=replace(
            project,
            source=TINY,
            transfer=replace(project.transfer, options=_tiny_options(project.transfer.words)),
            languages={
                code: Language((str(_TEXT / f"{name}.train.txt"),), heldout=(str(_TEXT / f"{name}.heldout.txt"),))
                for code, name in texts.items()
            },
            vocabulary={name: _tiny_vocabulary(given) for name, given in project.vocabulary.items()},
            training=replace(
                project.training,
                replay=project.training.replay if project.source_language in project.languages else 0.0,
                tokens=None,
                steps=None,
                batch=None,
                sequence_length=None,
                overrides=(*project.training.overrides, "+size=tiny"),
            ),
            evaluation=Evaluation(**_tiny_tasks(project.tiny_family), verify=project.evaluation.verify),
            machine=replace(project.machine, device="cpu", processes=None),
        ),
    )


def _tiny_tasks(family: str) -> dict[str, Any]:
    """Some that need no data of others; encoders choose no endings."""
    return {} if family in ENCODERS else {"tasks": ("completion_sl",), "options": "--limit 8"}


def _tiny_options(words: Sequence[str]) -> str:
    """A helper that is made here; of other material what is there."""
    pairs = [(flag, value) for flag, value in zip(words, words[1:]) if flag in MATERIAL.values()]
    return " ".join(
        f"{flag} {HELPER if flag == '--helper' else shlex.quote(value)}"
        for flag, value in pairs
        if flag == "--helper" or Path(value).exists()
    )


def _tiny_vocabulary(given: Vocabulary) -> Vocabulary:
    size = TINY_VOCABULARY if given.replace or given.tokenizer else None
    return replace(
        given, replace=size, tokenizer=None, expand=_NEW_TOKENS if given.expand else None, swap=_NEW_TOKENS if given.swap else None
    )
