"""The files that `scion init` writes: a project's, and a recipe's, with what every key means beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recipes.projects.explained import keys
from recipes.rules.page import explanations

_WIDTH = 44
_BATCH = 16  # samples of a step of the recipe `language`


@dataclass(frozen=True)
class Answers:
    """What a project's file needs to be told.

    Attributes:
        texts: code of a language -> files and folders.
        heldout: code -> file; of the others a share is held out.
        vocabulary: `replace`, `expand` or `swap` and the number of tokens, or `keep`.
        processes: of a training.
        device: cpu or gpu.
        heldout_share: where no file is given.
    """

    source: str
    texts: Mapping[str, Sequence[str]]
    heldout: Mapping[str, str]
    source_language: str
    vocabulary: tuple[str, int]
    tokens: int
    processes: int
    device: str
    heldout_share: float


def project_text(answers: Answers) -> str:
    """The project file."""
    known = keys()

    def line(section: str, name: str, value: object, indent: int = 2) -> str:
        written = f"{' ' * indent}{name}: {value}"
        return f"{written:<{_WIDTH}} # {known[section + name].meaning}"

    lines = [
        "# `scion run` runs it, `scion explain KEY` explains all keys.",
        line("", "source", _quoted(answers.source), 0),
        "languages:",
    ]
    for code, texts in answers.texts.items():
        lines += [f"  {code}:", line("languages.CODE.", "texts", f"[{', '.join(map(_quoted, texts))}]", 4)]
        if code in answers.heldout:
            lines.append(line("languages.CODE.", "heldout", _quoted(answers.heldout[code]), 4))
        else:
            lines.append(line("languages.CODE.", "heldout_share", answers.heldout_share, 4))
    if answers.source_language != "en":
        lines.append(line("", "source_language", answers.source_language, 0))
    kind, size = answers.vocabulary
    vocabulary = line("vocabulary.NAME.", kind, "true" if kind == "keep" else size)
    is_cpu = answers.device == "cpu"
    lines += ["text:", line("text.", "clean", "standard"), "vocabulary:", vocabulary]
    if kind != "keep":
        lines += ["transfer:", line("transfer.", "methods", "best")]
    lines += ["training:", line("training.", "tokens", answers.tokens)]
    if is_cpu:  # samples that a core gets through in seconds
        lines += [line("training.", "sequence_length", 128), line("training.", "batch", 8)]
    elif _BATCH % answers.processes:
        lines.append(line("training.", "batch", -(-_BATCH // answers.processes) * answers.processes))
    if answers.source_language in answers.texts:
        lines.append(line("training.", "replay", 0.1))
    lines += ["machine:", line("machine.", "device", answers.device), line("machine.", "processes", answers.processes)]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    plain = text and not set(text) & set(" #,:[]{}&*!|>'\"%@`\\") and text not in ("null", "true", "false", "~", "-")
    return text if plain else json.dumps(text, ensure_ascii=False)  # as YAML quotes


_RECIPE: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("model", (("checkpoint", "???"),)),
    ("data", (("train", "???"), ("sequence_length", "2048"), ("validation", "{}"))),
    ("parallel", (("num_nodes", "1"), ("devices_per_node", "1"), ("tensor_parallel_size", "1"))),
    (
        "schedule",
        (
            ("global_batch_size", "64"),
            ("micro_batch_size", "2"),
            ("learning_rate", "1.0e-4"),
            ("min_learning_rate", "1.0e-5"),
            ("train_tokens", "50_000_000"),
            ("warmup_steps", "20"),
            ("decay_style", "cosine"),
            ("weight_decay", "0.01"),
        ),
    ),
    ("run", (("checkpoint_every_steps", "100"), ("log_every_steps", "10"), ("keep_optimizer_in_last_checkpoint", "false"))),
)


def recipe_text(name: str) -> str:
    """A recipe file: the usual keys with what they mean, others by `scion explain --recipe`."""
    meaning = explanations()
    lines = [
        "# A recipe of your own: `recipes.plan --recipe FILE` shows its cost and refuses what would fail.",
        "# ???: given by the project, or on the command line as model.checkpoint=DIR data.train=[DIR].",
        f"{f'name: {name}':<{_WIDTH}} # {meaning['name']}",
        f"{'seed: 42':<{_WIDTH}} # {meaning['seed']}",
        f"{'precision: bf16':<{_WIDTH}} # {meaning['precision']}",
    ]
    for section, values in _RECIPE:
        lines.append(f"{section}:")
        lines += [f"{f'  {key}: {value}':<{_WIDTH}} # {meaning[f'{section}.{key}']}" for key, value in values]
    return "\n".join(lines) + "\n"
