"""Whether a run may go on from its newest checkpoint: it must be of the same model, tokenizer and data."""

from __future__ import annotations

from pathlib import Path

from common.artifacts import read_manifest
from common.plain_files import read_json
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe


def check_resume(checkpoint: Path, recipe: Recipe, inputs: RunInputs) -> None:
    """Refuse to go on where the inputs of a run are no longer those that it was started with.

    Args:
        checkpoint: the newest of the run, complete.

    Raises:
        ValueError: listing all that differs.
    """
    manifest = read_manifest(checkpoint)
    assert manifest is not None, "newest_checkpoint has read it"
    problems = []
    description = read_json(checkpoint / "context" / "model.json")
    before = {"family": description["family"], **description["config"]}
    now = {"family": inputs.family, **inputs.model}
    changed = [f"{key} {before.get(key)!r} and now {now.get(key)!r}" for key in {**before, **now} if before.get(key) != now.get(key)]
    if changed:
        problems.append(f"it has another architecture than {recipe.model.checkpoint}: {', '.join(changed)}")
    trained, found = (facts.get("tokenizer_digest") for facts in (manifest.facts, inputs.checkpoint.facts))
    if found != trained:
        problems.append(f"it was trained with tokenizer {trained}, but {recipe.model.checkpoint} has tokenizer {found}")
    if not problems and manifest.inputs.get("checkpoint") != inputs.checkpoint.digest:
        problems.append(f"it was not started from {recipe.model.checkpoint} as that is now: the weights there are others")
    for path, data in zip(recipe.data.train, inputs.train, strict=True):
        if manifest.inputs.get(path) != data.digest:
            problems.append(f"the data set {path} was made again since, so that samples would be lost or repeated")
    if problems:
        raise ValueError(
            f"the run cannot go on from {checkpoint}: {'; '.join(problems)}. Choose another --output or bring back what was there"
        )
