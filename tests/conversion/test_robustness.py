"""Damaged and hostile inputs, other conversions beside, and kills: one clear error or a whole output, never anything between."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.artifacts import MANIFEST_NAME, write_manifest
from conversion import hf_to_nemo, nemo_to_hf
from conversion.checkpoints.vocabulary_edit import untie
from conversion.edit_vocabulary import edit
from conversion.inspection import describe
from conversion.layouts.moving import change
from eval.scoring.learned_scores import COMET, score_folders
from tests.conversion.conftest import OPTMaker
from tests.conversion.embedding_fixtures import demo_text
from tests.conversion.gguf_files import write_gguf
from tests.conversion.test_from_gguf import tiny_tokenizer as gguf_tokenizer
from tests.conversion.tiny_families import save_tiny_model, tiny_model
from tests.eval.encoder_rows import tiny_encoder, write_rows
from tests.eval.made_results import make_results
from tests.eval.made_translations import SENTENCES as TRANSLATIONS
from tests.eval.made_translations import make_translations
from tests.eval.published_forms import si_nli_rows, write_si_nli
from tests.eval.tiny_models import tiny_llama, tiny_tokenizer
from tests.every_step import end_without_reads_behind_the_rename
from tests.processes import Group

Convert = Callable[[Path, Path], object]
Damage = Callable[[Path, random.Random], None]

# Hundreds of conversions, each flushed to disk, would mostly wait for it.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

FORMS = {
    "safetensors": {},
    "sharded": {"max_shard_size": "20KB"},
    "bin": {"safe_serialization": False},
    "sharded bin": {"safe_serialization": False, "max_shard_size": "20KB"},
}


# -- what can be done to a file -------------------------------------------------------------------------------------------


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def flip(path: Path, chance: random.Random) -> None:
    """A bit in the first kilobyte, where headers are, or anywhere."""
    content = bytearray(path.read_bytes())
    end = min(len(content), 1024) if chance.random() < 0.6 else len(content)
    content[chance.randrange(end)] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def overwrite(path: Path, chance: random.Random) -> None:
    """A stretch of random bytes."""
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    content[start : start + 16] = chance.randbytes(len(content[start : start + 16]))
    path.write_bytes(content)


def lengthen(path: Path, chance: random.Random) -> None:
    with path.open("ab") as stream:
        stream.write(chance.randbytes(chance.randrange(1, 40)))


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def remove(path: Path, chance: random.Random) -> None:
    path.unlink()


def make_directory(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def edit_json(path: Path, chance: random.Random) -> None:
    """Another value for one key, of a type or size that nobody expects."""
    try:
        content = json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError):
        return flip(path, chance)
    place = content
    while isinstance(place, dict) and place:
        key = chance.choice(sorted(place))
        if not isinstance(place[key], dict) or chance.random() < 0.2:
            values = (None, "", -1, 0, 1.5, [], {}, True, "nan", 10**30, [1], "../../etc/passwd", float("nan"), "x\0y")
            place[key] = chance.choice(values)
            break
        place = place[key]
    path.write_text(json.dumps(content))


DAMAGES: tuple[Damage, ...] = (cut, flip, flip, overwrite, lengthen, empty, remove, make_directory, edit_json, edit_json)


def try_damages(original: Path, convert: Convert, *, num_trials: int, seed: int, always_refused: bool = False) -> int:
    """Convert a copy with one file damaged, many times; returns how often that was refused.

    Args:
        always_refused: there is a manifest, so that every change is found.
    """
    names = sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file())
    names = [name for name in names if always_refused or name.name != MANIFEST_NAME]
    refused = 0
    with tempfile.TemporaryDirectory(dir=MEMORY) as work_dir:
        for trial in range(num_trials):
            chance = random.Random(f"{seed} {trial}")
            name, damage = chance.choice(names), chance.choice(DAMAGES)
            refused += try_damage(original, Path(work_dir), convert, name, partial(damage, chance=chance), always_refused=always_refused)
    return refused


def try_damage(
    original: Path, work_dir: Path, convert: Convert, name: Path, damage: Callable[[Path], None], *, always_refused: bool
) -> bool:
    """One trial: whether the damage was refused, with a sentence and without any output."""
    damaged, output = work_dir / "damaged", work_dir / "output"
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(original, damaged)
    before = (damaged / name).read_bytes()
    damage(damaged / name)
    unchanged = (damaged / name).is_file() and (damaged / name).read_bytes() == before
    try:
        convert(damaged, output)
    except ValueError as error:
        assert_a_sentence(error, f"{damage} {name}")
        assert not output.exists() and not list(work_dir.glob(".*")), f"{damage} {name}"
        return True
    except Exception as error:
        raise AssertionError(f"{damage} {name}") from error
    assert unchanged or not always_refused or name.name == MANIFEST_NAME, f"{damage} {name} was not found"
    assert not list(work_dir.glob(".*")), f"{damage} {name}"
    shutil.rmtree(output)
    return False


def assert_a_sentence(error: ValueError, what: str) -> None:
    text = str(error)
    assert type(error) is ValueError, what
    assert 20 < len(text) < 2000 and "\n" not in text and "Traceback" not in text, f"{what}: {text}"


# -- damaged files --------------------------------------------------------------------------------------------------------


def test_a_file_that_only_a_warning_reads_fails_before_the_output_is_there(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir, output = make_opt(), tmp_path / "nemo"
    words = ["--input", str(hf_dir), "--output", str(output)]
    (hf_dir / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"generation_config\.json"):
        hf_to_nemo.main(words)
    assert not output.exists()


@pytest.mark.some(2)
@pytest.mark.parametrize("form", FORMS)
def test_damaged_hugging_face_folders(make_opt: OPTMaker, tmp_path: Path, form: str) -> None:
    hf_dir = make_opt(saving=FORMS[form], tie_word_embeddings=False)
    assert try_damages(hf_dir, hf_to_nemo.convert, num_trials=50, seed=1) > 20


def test_damaged_nemo_folders(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_to_nemo.convert(make_opt(), tmp_path / "nemo")
    (tmp_path / "nemo" / MANIFEST_NAME).unlink()
    assert try_damages(tmp_path / "nemo", nemo_to_hf.export, num_trials=60, seed=2) > 12


@pytest.mark.parametrize("family", ["llama3", "gemma2", "qwen2"])
def test_damaged_folders_of_other_families(tmp_path: Path, family: str) -> None:
    save_tiny_model(family, tmp_path / "hf")
    assert try_damages(tmp_path / "hf", hf_to_nemo.convert, num_trials=25, seed=3) > 8


def test_with_a_manifest_every_flipped_bit_is_found(make_opt: OPTMaker, tmp_path: Path) -> None:
    """Also in the values of tensors, where nothing else could tell."""
    hf_dir = make_opt()
    write_manifest(hf_dir, stage="conversion.transfer", facts={"tokenizer_digest": "xxh3:known"})
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    assert try_damages(hf_dir, hf_to_nemo.convert, num_trials=40, seed=4, always_refused=True) > 30
    assert try_damages(tmp_path / "nemo", nemo_to_hf.export, num_trials=60, seed=5, always_refused=True) > 45


@pytest.mark.slow
def test_damaged_folders_in_other_commands(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    (tmp_path / "nemo" / MANIFEST_NAME).unlink()

    def to_megatron(source: Path, output: Path) -> None:
        change(source, output, layout="megatron-lm")

    def untied(source: Path, output: Path) -> None:
        edit(source, output, untie, arguments={})

    def describe_into(source: Path, output: Path) -> None:
        if problems := describe(source, deep=True).problems:
            raise ValueError(problems[0])
        output.mkdir()

    assert try_damages(tmp_path / "nemo", to_megatron, num_trials=40, seed=6) > 10
    assert try_damages(hf_dir, untied, num_trials=40, seed=7) > 10
    assert try_damages(tmp_path / "nemo", describe_into, num_trials=60, seed=8) > 10
    assert try_damages(hf_dir, describe_into, num_trials=40, seed=9) > 5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_damaged_folders_at_length(make_opt: OPTMaker, tmp_path: Path, seed: int) -> None:
    hf_dir = make_opt(saving=FORMS[list(FORMS)[seed % 4]], tie_word_embeddings=bool(seed % 2))
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    (tmp_path / "nemo" / MANIFEST_NAME).unlink()
    try_damages(hf_dir, hf_to_nemo.convert, num_trials=400, seed=100 + seed)
    try_damages(tmp_path / "nemo", nemo_to_hf.export, num_trials=400, seed=200 + seed)


# -- whole files that lie -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_tensors_of_another_name_shape_or_dtype(make_opt: OPTMaker, tmp_path: Path, seed: int) -> None:
    hf_dir = make_opt(tie_word_embeddings=False)
    state = load_file(hf_dir / "model.safetensors")
    chance = random.Random(seed)
    for trial in range(20):
        changed = dict(state)
        name = chance.choice(sorted(state))
        tensor = changed.pop(name)
        kind = trial % 5
        if kind == 0:
            changed[name.replace("layers.1", "layers.7") + "_"] = tensor
        elif kind == 1:
            changed[name] = tensor[:-1].contiguous()
        elif kind == 2:
            changed[name] = tensor.flatten()[None]
        elif kind == 3:
            changed[name] = tensor.to(torch.int64)
        save_file(changed, hf_dir / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=r".") as refusal:
            hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
        assert_a_sentence(refusal.value, f"{kind} {name}")
        assert not (tmp_path / "nemo").exists()


class _RunsCode:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.proof}",)


def test_no_pickle_of_a_checkpoint_is_run(make_opt: OPTMaker, tmp_path: Path) -> None:
    """In every place that has one: weights, index, what is not sharded, chunks."""
    bomb = _RunsCode(tmp_path / "proof")
    hf_dir = make_opt(saving={"safe_serialization": False})
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    (tmp_path / "nemo" / MANIFEST_NAME).unlink()
    torch.save({"a": bomb}, hf_dir / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"asks to run posix\.system when it is loaded, which is not safe"):
        hf_to_nemo.convert(hf_dir, tmp_path / "out")
    for name in (".metadata", "common.pt", "__0_0.distcp"):
        folder = tmp_path / f"bombed{name}"
        shutil.copytree(tmp_path / "nemo", folder)
        if name == "__0_0.distcp":
            size = (folder / "weights" / name).stat().st_size
            torch.save(bomb, folder / "weights" / name)
            os.truncate(folder / "weights" / name, size)
        elif name == "common.pt":
            torch.save({"args": bomb}, folder / "weights" / name)
        else:
            (folder / "weights" / name).write_bytes(pickle.dumps(bomb))
        describe(folder)
        try:
            nemo_to_hf.export(folder, tmp_path / "out")
            assert name == "common.pt"  # which the export has no use for
            shutil.rmtree(tmp_path / "out")
        except ValueError as error:
            assert_a_sentence(error, name)
    assert not (tmp_path / "proof").exists() and not (tmp_path / "out").exists()


def test_disk_space_is_checked_first(make_opt: OPTMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf_dir = make_opt()
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    for convert, source in ((hf_to_nemo.convert, hf_dir), (nemo_to_hf.export, tmp_path / "nemo")):
        with pytest.raises(ValueError, match=r"has 0\.00 GiB free, but the output needs about 0\.00 GiB; free some space"):
            convert(source, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "nemo"]


# -- other conversions beside ---------------------------------------------------------------------------------------------


def test_concurrent_conversions_do_not_disturb_each_other(make_opt: OPTMaker, tmp_path: Path) -> None:
    """Six of three models at once in one process, as threads share more than processes do; every output as if it were alone."""
    models = {name: make_opt(f"hf_{name}", seed=seed) for seed, name in enumerate(("a", "b", "c"))}
    alone = {}
    for name, hf_dir in models.items():
        manifest = hf_to_nemo.convert(hf_dir, tmp_path / f"alone_{name}")
        alone[name] = {file: record.digest for file, record in manifest.files.items()}
    failures: list[str] = []

    def there_and_back(name: str, number: int) -> None:
        manifest = hf_to_nemo.convert(models[name], tmp_path / f"nemo_{name}_{number}")
        if {file: record.digest for file, record in manifest.files.items()} != alone[name]:
            failures.append(f"{name} {number}: other bytes")
        nemo_to_hf.export(tmp_path / f"nemo_{name}_{number}", tmp_path / f"back_{name}_{number}")
        if (tmp_path / f"back_{name}_{number}/model.safetensors").read_bytes() != (models[name] / "model.safetensors").read_bytes():
            failures.append(f"{name} {number}: did not come back")

    threads = [threading.Thread(target=there_and_back, args=(name, number)) for name in models for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(list(tmp_path.glob("back_*"))) == 6


IMPORTS_OF_THREADS = """
import runpy, sys, threading
def look(event, arguments):
    if event == "import" and threading.current_thread() is not threading.main_thread():
        found.append(arguments[0])
found = []
sys.addaudithook(look)
sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code
assert not found, found
"""


@pytest.mark.slow
def test_threads_of_a_conversion_import_nothing(make_opt: OPTMaker, tmp_path: Path) -> None:
    """Two threads that import at once may wait for each other for ever, once in some hundred conversions on a busy machine."""
    for module, source, output in (("hf_to_nemo", make_opt(), tmp_path / "nemo"), ("nemo_to_hf", tmp_path / "nemo", tmp_path / "back")):
        words = ["-c", IMPORTS_OF_THREADS, f"conversion.{module}", "--input", str(source), "--output", str(output)]
        done = Group(words, log_dir=tmp_path / f"log_{module}").wait(timeout_seconds=120)
        assert done.code == 0, done.stderr


# -- kills ----------------------------------------------------------------------------------------------------------------

# One start of Python, which forks a conversion per moment: so fifty kills take seconds.  A moment is counted in reads, which a
# conversion tells by a byte each, and not in seconds, which a busy machine stretches as it likes.  Two kills of three come a little
# behind its read, so that it meets writing as well; those behind the last read meet the end of the conversion.
FORKS = """
import os, signal, sys, time
from pathlib import Path
import conversion.formats.lazy_tensor as lazy_tensor
import conversion.families, conversion.checkpoints.hf_checkpoint, conversion.families.mapping, conversion.checkpoints.nemo_checkpoint
from conversion import {module} as command
from data_prep.tokenizers.files import load_tokenizer
source, output_dir, num_kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
read = lazy_tensor._read_and_report
convert = getattr(command, {function!r})

def start(output):
    reads, told = os.pipe()
    if (child := os.fork()) == 0:
        lazy_tensor._read_and_report = lambda *arguments: (os.write(told, b"."), time.sleep(0.002), read(*arguments))[2]
        try:
            convert(source, output)
        finally:
            os._exit(0)
    os.close(told)
    return child, reads

child, reads = start(output_dir / "whole")
num_reads = 0
while os.read(reads, 1):
    num_reads += 1
os.waitpid(child, 0)
assert num_reads >= 10, num_reads
for kill in range(num_kills):
    child, reads = start(output_dir / f"killed_{{kill:03d}}")
    moment = round(num_reads * 1.1 * (kill + 0.5) / num_kills)
    seen = 0
    while seen < moment and os.read(reads, 1):
        seen += 1
    time.sleep(0.001 * (kill % 3) + 0.002 * max(moment - num_reads, 0))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reads)
"""


def kill_at_many_moments(hf_dir: Path, tmp_path: Path, module: str, function: str, num_kills: int) -> tuple[int, int]:
    """Kill conversions at evenly spread moments; returns how many left a whole output, and how many nothing but a hidden folder."""
    source = hf_dir
    if module == "nemo_to_hf":
        hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
        source = tmp_path / "nemo"
    output_dir = tmp_path / "out"
    output_dir.mkdir()
    script = FORKS.format(module=module, function=function)
    finished = Group(["-c", script, str(source), str(output_dir), str(num_kills)], log_dir=tmp_path / "logs").wait(timeout_seconds=300)
    assert finished.code == 0, finished.stderr[-2000:]
    whole = sorted(path for path in output_dir.iterdir() if not path.name.startswith("."))
    for folder in whole:
        if module == "hf_to_nemo":
            nemo_to_hf.export(folder, tmp_path / "back" / folder.name)
            folder = tmp_path / "back" / folder.name
        assert (folder / "model.safetensors").read_bytes() == (hf_dir / "model.safetensors").read_bytes()
    return len(whole) - 1, sum(path.name.startswith(".killed_") for path in output_dir.iterdir())


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(("module", "function"), [("hf_to_nemo", "convert"), ("nemo_to_hf", "export")])
def test_killed_at_twenty_five_moments(make_opt: OPTMaker, tmp_path: Path, module: str, function: str) -> None:
    """What has the final name is whole; what is not whole has a hidden name."""
    whole, hidden = kill_at_many_moments(make_opt(tokenizer=None), tmp_path, module, function, 25)
    assert hidden >= 12 and whole + hidden <= 25


@pytest.mark.long
@pytest.mark.parametrize(("module", "function"), [("hf_to_nemo", "convert"), ("nemo_to_hf", "export")])
def test_killed_at_a_hundred_moments(make_opt: OPTMaker, tmp_path: Path, module: str, function: str) -> None:
    whole, hidden = kill_at_many_moments(make_opt(tokenizer=None), tmp_path, module, function, 100)
    assert hidden >= 50 and whole + hidden <= 100


def test_killed_between_file_and_rename(make_opt: OPTMaker, tmp_path: Path) -> None:
    """The moment before the last: everything is written, nothing has its name."""
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom conversion.hf_to_nemo import convert\n"
        "os.replace = lambda source, target: os.kill(os.getpid(), signal.SIGKILL)\nconvert(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    finished = Group(["-c", script, str(make_opt(tokenizer=None)), str(tmp_path / "out/nemo")], log_dir=tmp_path / "logs").wait(
        timeout_seconds=60
    )
    assert finished.code == -signal.SIGKILL
    (left,) = (tmp_path / "out").iterdir()
    assert left.name.startswith(".nemo.partial-")


# -- what fails behind the rename -----------------------------------------------------------------------------------------

BEHIND_THE_RENAME = {
    "hf_to_nemo": "conversion.hf_to_nemo --input HF",
    "nemo_to_hf": "conversion.nemo_to_hf --input NEMO",
    "change_layout": "conversion.change_layout --input NEMO --to megatron-lm",
    "edit_vocabulary": "conversion.edit_vocabulary --input HF --append-rows 3",
    "from_gguf": "conversion.from_gguf --input MODEL.gguf",
    "extract_language_model": "conversion.extract_language_model --input SEEING",
    "new_model": "conversion.new_model --tokenizer HF --num-layers 1 --hidden-size 8 --num-attention-heads 2 --max-positions 16",
    "transfer": "conversion.transfer --source HF --tokenizer HF --method mean",
    "transfer_compare": "conversion.transfer_compare --source HF --tokenizer HF --methods mean random --heldout t=TEXT.txt --heldout-bytes 400",
    "question_answers": "data_prep.question_answers --input PAIRS.jsonl --tokenizer HF",
    "to_megatron": "data_prep.to_megatron --input TEXT.txt --tokenizer HF",
    "clean": "data_prep.clean --input t=TEXT.txt --filters web",
    "dedup": "data_prep.dedup --input t=TEXT.txt",
    "train_tokenizer": "data_prep.train_tokenizer --input TEXT.txt --vocab-size 300",
    "harness": "eval.harness --model m=HF --text t=TEXT.txt --device cpu",
    "harness, tasks": "eval.harness --model m=LLAMA --tasks completion_sl --device cpu",
    "rescore": "eval.rescore --results ANSWERS/m --tasks completion_sl",
    "report": "eval.report --results RESULTS --baseline source --pairs",
    "learning_curves": "eval.learning_curves --results RESULTS",
    "figures": "eval.figures suite --results RESULTS --tasks completion_?? --tokens-per-step 1000",
    "generate": "eval.generate --model m=HF --prompts PROMPTS.jsonl --settings speed --max-new-tokens 2 --repeats 1 --device cpu",
    "embeddings": "eval.embeddings --model a=ENCODER b=OTHER",
    "retrieval": "eval.retrieval --model m=ENCODER --lines slv=TEXT.txt --english TEXT.txt --layer 1 --device cpu",
    "finetune": "eval.finetune --model m=ENCODER --data ROWS --tasks taxi1500 --seeds 1 --epochs 1 --device cpu",
    "prepare": "eval.prepare si_nli --source PUBLISHED --sample",
    "slobench": "eval.slobench --model LLAMA --data PREPARED --device cpu",
    "export": "recipes.export --recipe demo_adapt --to megatron-bridge model.checkpoint=NEMO data.train=[DATA] data.sequence_length=24",
    "tokenizer_report": "data_prep.tokenizer_report --tokenizer a=HF --input t=TEXT.txt",
    "corpus_report": "data_prep.corpus_report --clean CLEANED",
    "fit_filters": "data_prep.fit_filters --input TEXT.txt --language sl --lost 0.3",
    "collect": "data_prep.collect --input t=TEXT.txt --language t=sl",
    "mixture": "data_prep.mixture --input t=TEXT.txt --tokenizer a=HF --validation-share 0",
    "join_megatron": "data_prep.join_megatron --input DATA AGAIN",
}
SENTENCES = [f"To je {word} stavek za poskus." for word in ("prvi", "drugi", "tretji", "četrti", "peti")]


class Places:
    """What the words of a command name, each made when it is first asked for."""

    def __init__(self, tmp_path: Path, make_opt: OPTMaker) -> None:
        self._tmp_path, self._make_opt = tmp_path, make_opt

    def filled(self, words: str) -> list[str]:
        return re.sub(r"\b[A-Z]{2,}\b(\.\w+)?", lambda name: str(self._place(name[0].lower())), words).split()

    def _place(self, name: str) -> Path:
        path = self._tmp_path / name
        if not path.exists():
            getattr(self, f"_make_{path.stem}")(path)
        return path

    def _run(self, words: str, output: Path) -> None:
        module, *rest = self.filled(words)
        assert importlib.import_module(module).main([*rest, "--output", str(output)]) == 0

    def _make_hf(self, path: Path) -> None:
        self._make_opt(path.name)

    def _make_nemo(self, path: Path) -> None:
        hf_to_nemo.convert(self._place("hf"), path)

    def _make_model(self, path: Path) -> None:
        write_gguf(path, tiny_model("llama2"), tokenizer=gguf_tokenizer())

    def _make_seeing(self, path: Path) -> None:
        save_tiny_model("mistral", path)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({"model_type": "mistral3", "text_config": config}))
        tensors = load_file(path / "model.safetensors")
        save_file({f"language_model.{name}": tensor for name, tensor in tensors.items()}, path / "model.safetensors", {"format": "pt"})

    def _make_llama(self, path: Path) -> None:
        tiny_llama(num_positions=1024).save_pretrained(path)
        tiny_tokenizer().save_pretrained(path)

    def _make_encoder(self, path: Path) -> None:
        tiny_encoder(path.with_name("made_encoder"), demo_text("en")).rename(path)

    def _make_other(self, path: Path) -> None:
        shutil.copytree(self._place("encoder"), path)

    def _make_text(self, path: Path) -> None:
        path.write_text("\n".join(SENTENCES))

    def _make_pairs(self, path: Path) -> None:
        path.write_text(json.dumps({"question": "Kdo?", "answer": "Jaz."}) + "\n")

    def _make_prompts(self, path: Path) -> None:
        path.write_text(json.dumps({"prompt": SENTENCES[0][:12]}) + "\n")

    def _make_rows(self, path: Path) -> None:
        rows = [
            {"id": f"{split}:{n}", "split": split, "text": f"{n}", "label": f"{n % 2}"}
            for split in ("train", "dev", "test")
            for n in range(4)
        ]
        write_rows(path, "taxi1500", "eng", rows)

    def _make_results(self, path: Path) -> None:
        make_results(path, steps=(0, 100), methods=("focus",), items=12)

    def _make_answers(self, path: Path) -> None:
        self._run(BEHIND_THE_RENAME["harness, tasks"], path)

    def _make_published(self, path: Path) -> None:
        path.mkdir()
        write_si_nli(path, si_nli_rows(test_labels=False))

    def _make_prepared(self, path: Path) -> None:
        self._run(BEHIND_THE_RENAME["prepare"], path)

    def _make_data(self, path: Path) -> None:
        self._run(BEHIND_THE_RENAME["to_megatron"], path)

    def _make_again(self, path: Path) -> None:
        shutil.copytree(self._place("data"), path)

    def _make_cleaned(self, path: Path) -> None:
        self._run(BEHIND_THE_RENAME["clean"], path)


@pytest.mark.parametrize("name", BEHIND_THE_RENAME)
def test_nothing_that_can_fail_comes_behind_the_rename(name: str, make_opt: OPTMaker, tmp_path: Path) -> None:
    """A command that fails must not leave a complete output: once it has its name, only words are printed."""
    module, *words = Places(tmp_path, make_opt).filled(BEHIND_THE_RENAME[name])
    main = importlib.import_module(module).main
    error = end_without_reads_behind_the_rename(lambda: main([*words, "--output", str(tmp_path / "out")]), tmp_path / "out")
    assert error is None


def test_learned_scores_need_nothing_behind_the_rename(tmp_path: Path) -> None:
    make_translations(tmp_path / "results/m", {"flores_en_sl": [[source] for source, _ in TRANSLATIONS]})
    score = partial(score_folders, [tmp_path / "results"], tmp_path / "out", COMET, tasks=())
    named, scorer = {"name": "c", "digest": "xxh3:1", "package": "p"}, lambda triples: [0.5] * len(triples)
    work = partial(score, find=lambda: named, open_scorer=lambda: scorer)
    assert end_without_reads_behind_the_rename(lambda: len(work()) == 0, tmp_path / "out") is None


@pytest.mark.parametrize(
    "name", ["config.json", "special_tokens_map.json", "weights/.metadata", "weights/metadata.json", "context/hf/tokenizer.json"]
)
def test_what_may_never_end_is_not_opened(name: str, make_opt: OPTMaker, tmp_path: Path) -> None:
    """A pipe or device under any name of a folder, also one that a library reads by itself."""
    folder = make_opt()
    if "/" in name:
        hf_to_nemo.convert(folder, tmp_path / "nemo")
        folder = tmp_path / "nemo"
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=f"{name} is a pipe, socket or device; expected a plain file|no config.json|holds no checkpoint"):
        describe(folder)
    with pytest.raises(ValueError, match=f"{name} is a pipe, socket or device; expected a plain file|no config.json"):
        (nemo_to_hf.export if "/" in name else hf_to_nemo.convert)(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
