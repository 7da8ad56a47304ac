"""Fixtures that several stages share: a tiny model and data set, made by the commands that users run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nemo_patches.no_allocator import compile_no_allocator
from tests.processes import ROOT, call_command

TEXT = ROOT / "recipes" / "demo_text" / "sl.train.txt"
HELD_OUT = ROOT / "recipes" / "demo_text" / "sl.heldout.txt"
VOCAB_SIZE = 601  # odd, and no multiple of the padding
SLURM = "tests/slurm"
WORKING = tuple(f"{SLURM}/test_{name}.py" for name in ("pipeline", "submit", "training_chain", "watch", "shared_data"))
# Seconds that a test and what it starts from may take, so that one that hangs is named: that of the slow is twice what the longest took on two slow cores.
SECONDS = {"slow": 1200, "long": 3600}
SECONDS_OF_USUAL = 600
LONGEST_FIRST = (SLURM, "tests/recipes", "tests/nemo_patches", "tests/conversion", "tests/eval")

compile_no_allocator()  # tests import Megatron-core as it comes, which fails with a CUDA build of torch and nvcc where no GPU is

# Ignored in the background of a script or under nohup, and so in all that tests start: as a handler of ours it is ignored here alone.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda number, frame: None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text, dictionaries, tokenizers and rows, which are not shipped."""
    named = os.environ.get("SCION_SHARED_DATA")
    if not named:
        pytest.skip("SCION_SHARED_DATA does not name a folder with real text and rows")
    return Path(named)


@dataclass(frozen=True)
class Inputs:
    """Directories of what a run starts from."""

    tokenizer: Path
    hf: Path
    checkpoint: Path
    data: Path
    held_out: Path


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Folders of long tests go first, so that no process is left with one when the others have nothing more to do; none may hang."""
    _leave_some(items)
    # Environments of their own may lack the plugin, and who gives --timeout means another limit or, with 0, none.
    if config.pluginmanager.hasplugin("timeout") and config.getoption("timeout") is None:
        for item in items:
            kinds = [kind for kind in reversed(SECONDS) if item.get_closest_marker(kind)]
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SECONDS[kinds[0]] if kinds else SECONDS_OF_USUAL))
    of_folder = {folder: place for place, folder in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: of_folder.get("/".join(item.nodeid.split("/")[:2]), len(of_folder)))


def _leave_some(items: list[pytest.Item]) -> None:
    """Of a test marked `some(n)` n of its cases, from the first to the last at equal distances, are as the test is marked; the others are long."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("some"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for all_of_it in cases.values():
        number = min(next(mark.args[0] for mark in all_of_it[0].iter_markers("some")), len(all_of_it))
        kept = {round(place * (len(all_of_it) - 1) / max(number - 1, 1)) for place in range(number)}
        for place, item in enumerate(all_of_it):
            if place not in kept:
                item.add_marker(pytest.mark.long)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, the tests of a file stay in one process, and those that need Slurm in two: there they share one."""
    from xdist.scheduler import LoadFileScheduling

    class FewSlurms(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return f"{SLURM}, {'with real work' if file in WORKING else 'light'}" if file.startswith(f"{SLURM}/") else file

    config.option.loadscopereorder = False
    return FewSlurms(config, log)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny products are slower on several threads, far slower where other tests use the cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    base = tmp_path_factory.mktemp("inputs")
    made = Inputs(base / "tokenizer", base / "hf", base / "nemo", base / "data", base / "held_out")
    shape = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--ffn-size", "64", "--max-positions", "64"]
    for command in (
        ("data_prep.train_tokenizer", "--input", TEXT, "--vocab-size", VOCAB_SIZE, "--output", made.tokenizer),
        ("data_prep.to_megatron", "--input", TEXT, "--tokenizer", made.tokenizer, "--output", made.data),
        ("data_prep.to_megatron", "--input", HELD_OUT, "--tokenizer", made.tokenizer, "--output", made.held_out),
        ("conversion.new_model", *shape, "--tokenizer", made.tokenizer, "--seed", 1, "--output", made.hf),
        ("conversion.hf_to_nemo", "--input", made.hf, "--output", made.checkpoint),
    ):
        call_command(*command)
    return made
