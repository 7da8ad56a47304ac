"""All stages of a project as a pipeline file of its own, with what each is for, for who outgrows the project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recipes.projects.expand import SOURCE, expand_project

_COMMENTS = {
    "model_file": "The model as it is published.",
    "source": "The model to start from, as a Hugging Face folder.",
    "collect": "Published corpora in one format.",
    "read": "Texts under the usual key.",
    "clean": "Documents that are not text are removed, with the reasons counted.",
    "split": "Whole documents are set aside as held-out text.",
    "text": "Duplicates are removed, and documents that also occur in held-out text.",
    "tokenizer": "The tokenizer of the new languages and the source language.",
    "compare": "Which method starts best, by bits per byte of held-out text?",
    "start": "The model with its new tokens, untrained.",
    "nemo": "The same model in the training engine's format.",
    "data": "Text as token ids.",
    "heldout": "Held-out text as token ids, for validation during training.",
    "helper": "A model of the new language.",
    "train": "Continued pretraining.",
    "export": "A checkpoint as a Hugging Face folder.",
    "verify": "Check that both formats hold the same model.",
    "evaluate": "All models on the same held-out text.",
    "continuations": "The same prompts continued.",
    "vocabularies": "Pieces per word and bytes per token.",
    "report": "Curves, tables and texts on a page.",
    "intervals": "Differences from the baseline with the source's own vocabulary (LAPT), with intervals and tests.",
}


def eject_text(path: Path, *, overrides: Sequence[str] = ()) -> str:
    """The pipeline of a project as a file of its own, for who outgrows the project."""
    import yaml

    pipeline = expand_project(path, overrides=overrides)
    stages = pipeline.pop("stages")
    lines = [
        f"# All stages of {path.name}, written out; `scion run` takes this file like the project, but later changes of the project do not reach it.",
        "# {name} stands for the output of the stage NAME, {work_dir} for the folder of all outputs (docs/slurm.md, pipelines).",
        yaml.safe_dump(pipeline, sort_keys=False, allow_unicode=True, width=160),
        "stages:",
    ]
    for name, stage in stages.items():
        if comment := _COMMENTS.get(name) or _COMMENTS.get(name.partition("_")[0].replace(SOURCE, "")):
            lines.append(f"  # {comment}")
        lines += [f"  {line}" for line in yaml.safe_dump({name: stage}, sort_keys=False, allow_unicode=True, width=1 << 20).splitlines()]
    return "\n".join(lines) + "\n"
