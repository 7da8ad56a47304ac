"""Rehearse several recipes in one process, as importing NeMo takes longer than most of them: `python rehearsals.py CASES.json OUTPUT.json`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from common.artifacts import digest_bytes
from common.plain_files import write_text

if TYPE_CHECKING:
    from recipes.rules.inputs import RunInputs


@dataclass(frozen=True)
class Case:
    """A recipe and how it is rehearsed.

    Attributes:
        num_layers: of the model, in place of the published number: each costs time and shows nothing new.
        hf: another model, as its config.json has it, for families that no published run has.
        has_answers: whether the data are questions with answers, in place of text.
        keep, resume: as `rehearse_rank`.
        times_longer: the documents of a sample than they are in a rehearsal: each has kernels of its own, which costs time.
    """

    recipe: str
    ranks: str = "0"
    overrides: tuple[str, ...] = ()
    num_layers: int | None = None
    hf: Mapping[str, Any] | None = None
    has_answers: bool = False
    keep: str | None = None
    resume: str | None = None
    times_longer: int = 1


def main(cases_path: str, output_path: str, stand_ins: str = "") -> None:
    """Write the reports of all cases; in place of those of a case that fails, its traceback.

    Where SCION_REHEARSALS names a folder, what a run that was interrupted had finished is taken from there: at real depth all take an hour.
    """
    if stand_ins:
        from nemo_patches.stand_ins import install

        install(stand_ins)
    found: dict[str, Any] = {}
    cases = json.loads(Path(cases_path).read_text())
    for number, (title, case) in enumerate(cases.items(), start=1):
        start, kept = time.monotonic(), _kept_path(case, stand_ins)
        if kept is not None and kept.is_file():
            found[title] = json.loads(kept.read_text())
            continue
        try:
            found[title] = list(reports(Case(**case)))
        except Exception:
            found[title] = traceback.format_exc()
        if kept is not None and isinstance(found[title], list):
            write_text(kept, json.dumps(found[title]))
        print(f"{number} of {len(cases)}: {title}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    Path(output_path).write_text(json.dumps(found, indent=1))


def _kept_path(case: Mapping[str, Any], stand_ins: str) -> Path | None:
    if (folder := os.environ.get("SCION_REHEARSALS")) is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / f"{digest_bytes(json.dumps([case, stand_ins]).encode()).rpartition(':')[2]}.json"


def as_json(cases: Mapping[str, Case]) -> str:
    """What `main` reads."""
    return json.dumps({title: asdict(case) for title, case in cases.items()})


def reports(case: Case) -> Iterator[dict[str, Any]]:
    """As `recipes.rehearsal.run.rehearse`, with the case's own model and data."""
    from recipes.planner.hardware import GPUS
    from recipes.rehearsal.inputs import complete_recipe
    from recipes.rehearsal.run import rehearse, requested_ranks
    from recipes.rules.checks import check_run
    from recipes.rules.compose import compose_recipe

    recipe = compose_recipe(case.recipe, list(case.overrides))
    if case.num_layers is None and case.hf is None and not case.has_answers:
        assert not case.keep and not case.resume
        yield from rehearse(recipe, case.ranks)
        return
    with tempfile.TemporaryDirectory() as directory:
        recipe, inputs = complete_recipe(recipe, Path(directory))
        # The model is no longer the published one.
        recipe = replace(recipe, model=replace(recipe.model, base=None, vocab_size=None))
        inputs = _changed(inputs, case)
        recipe = check_run(recipe, inputs)
        from recipes.rehearsal import rank as one_rank
        from recipes.rehearsal.report import rank_report

        ways = {name: Path(path) for name, path in (("keep", case.keep), ("resume", case.resume)) if path is not None}
        for rank in requested_ranks(recipe, case.ranks):
            with patch.object(one_rank, "_DOCUMENTS", tuple(case.times_longer * length for length in one_rank._DOCUMENTS)):
                found = one_rank.rehearse_rank(recipe, inputs, rank, GPUS["a100-64gb"], Path(directory) / "rank", **ways)
            yield rank_report(recipe, inputs, found)


def _changed(inputs: RunInputs, case: Case) -> RunInputs:
    from common.artifacts import Manifest
    from conversion.checkpoints.hf_files import tied_by_config
    from conversion.families import family_of
    from data_prep.megatron.index import QA_STAGE

    if case.hf is not None:
        family = family_of(case.hf["model_type"], source="the case")
        model = family.megatron_config(case.hf, tied=tied_by_config(case.hf), source="the case")
        data = tuple(replace(manifest, facts={**manifest.facts, "vocab_size": model["vocab_size"]}) for manifest in inputs.train)
        inputs = replace(inputs, family=family.model_type, model=model, train=data)
    if case.num_layers is not None:
        inputs = replace(inputs, model={**inputs.model, "num_layers": case.num_layers})
    if case.has_answers:
        pairs = [{**manifest.facts, "num_pairs": 10_000, "longest_pair": 300} for manifest in inputs.train]
        inputs = replace(inputs, train=tuple(Manifest(stage=QA_STAGE, facts=facts) for facts in pairs))
    return inputs


if __name__ == "__main__":
    main(*sys.argv[1:])
