"""Steps whose losses or gradients are not finite change nothing, and stop the run beyond its budget, with the documents named."""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from data_prep.megatron.index import PREFIX, TokenFile
from recipes.numbers.blend import num_windows
from tests.processes import call_command
from tests.recipes.watched_runs import BATCH, SEQUENCE_LENGTH, Runs


@pytest.mark.some(1)
@pytest.mark.parametrize("tensor_parallel_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_not_finite_changes_nothing_within_the_budget(runs: Runs, tensor_parallel_size: int) -> None:
    name = f"passed_over_{tensor_parallel_size}"
    seen = runs.train(name, "run.skip_nonfinite_steps=2", at_step=["nonfinite", [2, 4]], tensor_parallel_size=tensor_parallel_size)
    moments = seen["moments"]
    assert [later == earlier for earlier, later in zip(moments, moments[1:])] == [False, True, False, True, False]
    assert all(math.isfinite(loss) for loss in seen["losses"])
    records = runs.records(name)
    assert [(r["step"], r["passed_over"], r["samples"]) for r in records if "passed_over" in r] == [
        (3, "gradient", [16, 23]),
        (5, "gradient", [32, 39]),
    ]
    assert all(list(r["documents"]) == [str(runs.inputs.data)] for r in records if "passed_over" in r)
    norms = [record["new_row_norm"] for record in records if "new_row_norm" in record]
    assert (norms[1] == norms[2], norms[2] == norms[3]) == (True, False)


@pytest.fixture(scope="module")
def broken(small_data: Path, untied_hf: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A checkpoint in which the row of one token is so large that float32 overflows, and the one document that has the token."""
    base, tokens = tmp_path_factory.mktemp("broken"), TokenFile(small_data / PREFIX)
    counts = Counter(int(token) for document in range(len(tokens)) for token in tokens[document][:-1])
    document = len(tokens) // 2
    token = next(int(token) for token in tokens[document] if counts[int(token)] == 1)
    shutil.copytree(untied_hf, base / "hf")
    weights = load_file(base / "hf/model.safetensors")
    weights["model.decoder.embed_tokens.weight"][token] = 3e38
    save_file(weights, base / "hf/model.safetensors", metadata={"format": "pt"})
    (base / "hf/scion.json").unlink()
    call_command("conversion.hf_to_nemo", "--input", base / "hf", "--output", base / "nemo")
    return base / "nemo", document


@pytest.mark.slow
def test_a_batch_that_is_not_finite_stops_the_run_beyond_the_budget_and_is_named(
    runs: Runs, broken: tuple[Path, int], small_data: Path
) -> None:
    """Passes over text of which one document breaks the model: the first time is allowed, the second is not."""
    checkpoint, document = broken
    options = (
        *(f"model.checkpoint={checkpoint}", f"data.train=[{small_data}]", "schedule.epochs=4", "schedule.max_steps=null"),
        *("run.skip_nonfinite_steps=1", "run.checkpoint_every_steps=1", "run.validate_every_steps=1000"),
    )
    sentence = re.compile(
        r"step (\d+) has a non-finite loss, in samples? ([\d, to]+) of the order of the data \(documents? ([\d, to]+) of (\S+)\);"
        r" 1 such steps were skipped and run.skip_nonfinite_steps allows 1\. The last good checkpoint is (\S+); look at the documents with"
        r" `python -m data_prep\.inspect`, lower schedule\.learning_rate, or allow more skipped steps"
    )
    found = sentence.fullmatch(runs.train("stopped", *options, tensor_parallel_size=1)["error"])
    assert found is not None
    [passed_over] = [record for record in runs.records("stopped") if "passed_over" in record]
    samples = [*passed_over["samples"], *map(int, re.findall(r"\d+", found[2]))]
    windows = num_windows(TokenFile(small_data / PREFIX).num_tokens, SEQUENCE_LENGTH)
    assert [sample // windows for sample in samples] == [0, 1, 2, 3], "the document is in one sample of each pass"
    assert {sample // BATCH for sample in samples} == {passed_over["step"] - 1, int(found[1]) - 1}, "steps count from 1 everywhere"
    for documents in (passed_over["documents"][str(small_data)], list(map(int, re.findall(r"\d+", found[3])))):
        assert document in documents and len(documents) <= 4
    assert (found[4], found[5]) == (str(small_data), f"{runs.directory}/stopped/checkpoints/step_{int(found[1]) - 1:07d}")
    # At another layout, and the budget is the run's, not the attempt's.
    again = sentence.fullmatch(runs.train("stopped_again", *options, after="stopped")["error"])
    assert again is not None and again.groups()[:4] == found.groups()[:4]
