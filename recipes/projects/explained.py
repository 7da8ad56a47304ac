"""What each key of a project file is: its meaning, type, default and an example, all from the schema."""

from __future__ import annotations

import difflib
import types
import typing
from dataclasses import MISSING, dataclass, fields, is_dataclass

from recipes.projects import schema
from recipes.rules.settings import comments_of

SECTIONS: dict[str, type] = {
    "": schema.Project,
    "languages.CODE.": schema.Language,
    "text.": schema.Text,
    "vocabulary.NAME.": schema.Vocabulary,
    "transfer.": schema.Transfer,
    "training.": schema.Training,
    "evaluation.": schema.Evaluation,
    "machine.": schema.Machine,
}
_NAMED = ("CODE", "NAME")
_EXAMPLES = {
    "source": "HuggingFaceTB/SmolLM2-135M",
    "languages": "{sl: texts/, en: english.jsonl.gz}",
    "name": "slovene",
    "vocabulary": "{replaced: {replace: 32000}, expanded: {expand: 2000}}",
    "title": "Slovene for Llama",
    "size": "tiny",
    "languages.CODE.texts": "[novels/, news.jsonl.gz]",
    "languages.CODE.corpora": "[cc100_sl]",
    "languages.CODE.heldout": "heldout.sl.txt",
    "languages.CODE.sentences": "30000",
    "text.separator": "blank-line",
    "text.key": "content",
    "text.corpora_dir": "/data/corpora",
    "vocabulary.NAME.replace": "32000",
    "vocabulary.NAME.expand": "2000",
    "vocabulary.NAME.swap": "8000",
    "vocabulary.NAME.swap_scripts": "[Han, Hangul]",
    "vocabulary.NAME.tokenizer": "my_tokenizer/",
    "vocabulary.NAME.languages": "[sl]",
    "vocabulary.NAME.output_layer": "copied",
    "vocabulary.NAME.methods": "[mean, focus]",
    "transfer.options": "--helper slovene_model/",
    "training.lapt_recipe": "low_resource/llama2_lapt",
    "training.tokens": "50000000",
    "training.steps": "200",
    "training.replay": "0.1",
    "training.procedure": "lora",
    "training.learning_rate": "0.0001",
    "training.sequence_length": "2048",
    "training.batch": "64",
    "training.overrides": "[schedule.decay_style=linear]",
    "evaluation.texts": "{news: news.sl.txt}",
    "evaluation.tasks": "[completion_sl]",
    "evaluation.data": "eval_data/",
    "evaluation.options": "--limit 100",
    "evaluation.prompts": "prompts.jsonl",
    "machine.work_dir": "/scratch/slovene",
    "machine.processes": "2",
    "machine.memory_gib": "32",
}


@dataclass(frozen=True)
class Key:
    """One key of the file.

    Attributes:
        default: as the file would have it; None where the key must be given or the default is said in the meaning.
    """

    name: str
    meaning: str
    kind: str
    default: str | None
    example: str

    @property
    def text(self) -> str:
        """For people, a few lines."""
        if self.kind == "section":
            inside = [name for name in keys() if name.startswith(f"{self.name}.")]
            return f"{self.name}\n  {self.meaning}\n  keys: {', '.join(inside)}"
        default = "must be given" if self.default is None else self.default
        return f"{self.name}\n  {self.meaning}\n  type:    {self.kind}\n  default: {default}\n  example: {self.name.rpartition('.')[2]}: {self.example}"


def keys() -> dict[str, Key]:
    """All keys, section by section."""
    found = {}
    for prefix, kind in SECTIONS.items():
        comments, hints = comments_of(kind), typing.get_type_hints(kind)
        for known in fields(kind):
            name = prefix + known.name
            default = None if known.default is MISSING and known.default_factory is MISSING else _written(known.default)
            if is_dataclass(hints[known.name]):
                default = "see its keys"
            example = _EXAMPLES.get(name, default or "")
            meaning = comments.get(known.name) or f"{hints[known.name].__doc__}"
            found[name] = Key(name, meaning, _kind(hints[known.name]), default, example)
    return found


def find(word: str) -> Key:
    """The key that a word names, with a language's code or a vocabulary's name or without: languages.sl.texts, languages.texts, texts.

    Raises:
        ValueError: if there is none, naming the nearest, or several.
    """
    known = keys()
    parts = word.split(".")
    meant = [key for name, key in known.items() if parts in _spellings(name) or _fits(name.split("."), parts)]
    if not meant:
        meant = [key for name, key in known.items() if name.rpartition(".")[2] == word]
    if len(meant) > 1:
        raise ValueError(f"several sections have a key {word}: {', '.join(key.name for key in meant)}; name one of these")
    if not meant:
        near = difflib.get_close_matches(word, [*known, *(name.rpartition(".")[2] for name in known)], n=1, cutoff=0.0)[0]
        raise ValueError(f"there is no key {word}; the nearest is {near}; `scion explain` lists all")
    return meant[0]


def _spellings(name: str) -> list[list[str]]:
    parts = name.split(".")
    return [parts, [part for part in parts if part not in _NAMED]]


def _fits(known: list[str], parts: list[str]) -> bool:
    return len(known) == len(parts) and all(part == other or part in _NAMED for part, other in zip(known, parts))


def _written(value: object) -> str:
    if value is MISSING or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "none" if value is None or value == "" else str(value)


def _kind(hint: object) -> str:
    if isinstance(hint, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    origin = typing.get_origin(hint)
    if origin is tuple:
        return f"list of {_kind(typing.get_args(hint)[0])}s, or one"
    if origin is dict:
        return f"names, each with a {_kind(typing.get_args(hint)[1])}"
    if is_dataclass(hint):
        return "section"
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}[typing.cast(type, hint)]
