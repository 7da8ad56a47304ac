"""What `pip install '.[data,transfer,eval]'` gives on a Python that has no NeMo: text, transfer, conversion, evaluation; run by `make test-install`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import HELD_OUT, TEXT

PYTHON = os.environ.get("SCION_INSTALLED")  # of an environment that has the project installed, and no NeMo
if PYTHON is None:
    pytest.skip("no environment without NeMo is named; run `make test-install`", allow_module_level=True)
SHAPE = "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --ffn-size 64 --max-positions 64"
COMMANDS = (
    f"data_prep.train_tokenizer --input {TEXT} --vocab-size 600 --output source",
    f"data_prep.train_tokenizer --input {TEXT} --vocab-size 500 --model byte-level --output target",
    f"data_prep.to_megatron --input {TEXT} --tokenizer target --output data",
    f"conversion.new_model {SHAPE} --tokenizer source --seed 1 --output model",
    "conversion.transfer --source model --tokenizer target --method mean --output grafted",
    "conversion.hf_to_nemo --input grafted --output nemo",
    "conversion.nemo_to_hf --input nemo --output back",
    "conversion.verify grafted back",
    f"eval.harness --model model=back --text sl={HELD_OUT} --device cpu --output results",
)


def _run(words: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """In a folder of its own, so that the project is the one that is installed."""
    assert PYTHON is not None
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([PYTHON, "-m", *words], cwd=place, env=environment, capture_output=True, text=True, timeout=1800, check=False)


@pytest.mark.long
def test_from_text_to_a_figure_without_nemo(tmp_path: Path) -> None:
    for line in COMMANDS:
        done = _run(line.split(), tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    needing = _run(["nemo_patches.catalogue"], tmp_path)
    assert needing.returncode == 2 and needing.stderr.splitlines()[-1].startswith("error: this needs NeMo, on Python 3.11 or 3.12: "), (
        needing.stderr
    )
    needing = _run(["recipes.train", "--recipe", "demo_adapt", "--output", "run", "model.checkpoint=nemo", "data.train=[data]"], tmp_path)
    assert needing.returncode == 2 and needing.stderr.splitlines()[-1].startswith("error: this needs NeMo"), needing.stderr
    assert not (tmp_path / "run").exists()
