"""Damaged and hostile inputs, other conversions beside, and kills: one clear error or a whole output, never anything between."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from common.artifacts import MANIFEST_NAME, check_files, write_manifest
from conversion import hf_to_nemo, nemo_to_hf
from conversion.checkpoints.vocabulary_edit import untie
from conversion.edit_vocabulary import edit
from conversion.inspection import describe
from conversion.layouts.moving import change
from eval.scoring.learned_scores import COMET, score_folders
from tests.conversion.conftest import OPTMaker
from tests.conversion.embedding_fixtures import demo_text
from tests.conversion.folders import edit_json, manifest_of
from tests.conversion.gguf_files import write_gguf
from tests.conversion.test_from_gguf import tiny_tokenizer as gguf_tokenizer
from tests.conversion.tiny_families import save_tiny_model, tiny_model
from tests.eval.encoder_rows import tiny_encoder, write_rows
from tests.eval.made_results import make_results
from tests.eval.made_translations import SENTENCES as TRANSLATIONS
from tests.eval.made_translations import make_translations
from tests.eval.published_forms import si_nli_rows, write_si_nli
from tests.eval.tiny_models import tiny_llama, tiny_tokenizer
from tests.every_step import end_without_reads_behind_the_rename, kill_before, run_to_the_end
from tests.processes import Group, call_command

Convert = Callable[[Path, Path], object]

# Hundreds of conversions, each flushed to disk, would mostly wait for it.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

FORMS = {
    "safetensors": {},
    "sharded": {"max_shard_size": "20KB"},
    "bin": {"safe_serialization": False},
    "sharded bin": {"safe_serialization": False, "max_shard_size": "20KB"},
}


# -- what can be done to a file -------------------------------------------------------------------------------------------

DAMAGES = ("cut", "bit", "bit", "bytes", "longer", "empty", "gone", "a folder", "a value", "a value")
ODD_VALUES = (None, "", -1, 0, 1.5, [], {}, True, "nan", 10**30, [1], "../../etc/passwd", float("nan"), "x\0y")


def damage(path: Path, kind: str, chance: random.Random) -> None:
    """Do one of `DAMAGES`; bits and bytes in the first kilobyte, where headers are, or anywhere."""
    content = bytearray(path.read_bytes())
    place = chance.randrange(min(len(content), 1024) if chance.random() < 0.6 else len(content))
    if kind in ("gone", "a folder"):
        path.unlink()
        return path.mkdir() if kind == "a folder" else None
    if kind == "a value" and path.suffix == ".json":
        content = bytearray(json.dumps(_with_odd_value(json.loads(content), chance)).encode())
    elif kind == "cut":
        del content[chance.randrange(len(content)) :]
    elif kind == "empty":
        content.clear()
    elif kind == "longer":
        content += chance.randbytes(chance.randrange(1, 40))
    elif kind == "bytes":
        content[place : place + 16] = chance.randbytes(len(content[place : place + 16]))
    else:
        content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return None


def _with_odd_value(content: Any, chance: random.Random) -> Any:
    """The same with one key of a type or size that nobody expects."""
    if not isinstance(content, dict) or not content:
        return chance.choice(ODD_VALUES)
    key = chance.choice(sorted(content))
    is_deeper = isinstance(content[key], dict) and chance.random() < 0.8
    return {**content, key: _with_odd_value(content[key], chance) if is_deeper else chance.choice(ODD_VALUES)}


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
            name, kind = chance.choice(names), chance.choice(DAMAGES)
            refused += try_damage(original, Path(work_dir), convert, name, kind, chance, always_refused=always_refused)
    return refused


def try_damage(
    original: Path, work_dir: Path, convert: Convert, name: Path, kind: str, chance: random.Random, *, always_refused: bool
) -> bool:
    """One trial: whether the damage was refused, with a sentence and without any output."""
    damaged, output = work_dir / "damaged", work_dir / "output"
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(original, damaged)
    before = (damaged / name).read_bytes()
    damage(damaged / name, kind, chance)
    unchanged = (damaged / name).is_file() and (damaged / name).read_bytes() == before
    try:
        convert(damaged, output)
    except ValueError as error:
        text = str(error)
        assert type(error) is ValueError and 20 < len(text) < 2000 and "\n" not in text and "Traceback" not in text, (
            f"{kind} {name}: {text}"
        )
        assert not output.exists() and not list(work_dir.glob(".*")), f"{kind} {name}"
        return True
    except Exception as error:
        raise AssertionError(f"{kind} {name}") from error
    assert unchanged or not always_refused or name.name == MANIFEST_NAME, f"{kind} {name} was not found"
    assert not list(work_dir.glob(".*")), f"{kind} {name}"
    shutil.rmtree(output)
    return False


# -- damaged files --------------------------------------------------------------------------------------------------------


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


# -- whole files that lie -------------------------------------------------------------------------------------------------


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


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("direction", ["hf_to_nemo", "nemo_to_hf"])
def test_killed_before_any_step(make_opt: OPTMaker, tmp_path: Path, direction: str) -> None:
    """What has the final name is whole; else the same command goes on, and nothing else stays."""
    source, convert = make_opt(tokenizer=None), hf_to_nemo.convert
    if direction == "nemo_to_hf":
        hf_to_nemo.convert(source, tmp_path / "nemo")
        source, convert = tmp_path / "nemo", nemo_to_hf.export
    steps = run_to_the_end(lambda: convert(source, tmp_path / "expected/out"), tmp_path / "expected")
    assert len(steps) > 8 and any("os.rename" in step for step in steps)
    for step, what in enumerate(steps):
        output = tmp_path / str(step) / "out"
        output.parent.mkdir()
        kill_before(lambda: convert(source, output), output.parent, step)  # noqa: B023 used at once
        if not output.exists():
            convert(source, output)
        manifest = manifest_of(output)
        check_files(output, manifest)
        assert manifest.files.keys() == manifest_of(tmp_path / "expected/out").files.keys(), what
        assert [path.name for path in output.parent.iterdir()] == ["out"], what


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


def _seeing(path: Path) -> None:
    save_tiny_model("mistral", path)
    edit_json(path / "config.json", model_type="mistral3", text_config=json.loads((path / "config.json").read_text()))
    tensors = load_file(path / "model.safetensors")
    save_file({f"language_model.{name}": tensor for name, tensor in tensors.items()}, path / "model.safetensors", {"format": "pt"})


def _llama(path: Path) -> None:
    tiny_llama(num_positions=1024).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)


def _rows(path: Path) -> None:
    splits = ("train", "dev", "test")
    rows = [{"id": f"{split}:{n}", "split": split, "text": f"{n}", "label": f"{n % 2}"} for split in splits for n in range(4)]
    write_rows(path, "taxi1500", "eng", rows)


def _published(path: Path) -> None:
    path.mkdir()
    write_si_nli(path, si_nli_rows(test_labels=False))


def filled(words: str, tmp_path: Path, make_opt: OPTMaker) -> list[str]:
    """The words of a command with paths for names, what each stands for being made when it is first named."""

    def run(name: str) -> Callable[[Path], object]:
        return lambda output: call_command(*filled(BEHIND_THE_RENAME[name], tmp_path, make_opt), "--output", output)

    def copy(name: str) -> Callable[[Path], object]:
        return lambda path: shutil.copytree(place(name), path)

    make: dict[str, Callable[[Path], object]] = {
        "hf": lambda path: make_opt(path.name),
        "nemo": lambda path: hf_to_nemo.convert(place("hf"), path),
        "model": lambda path: write_gguf(path, tiny_model("llama2"), tokenizer=gguf_tokenizer()),
        "seeing": _seeing,
        "llama": _llama,
        "encoder": lambda path: tiny_encoder(path.with_name("made_encoder"), demo_text("en")).rename(path),
        "other": copy("encoder"),
        "text": lambda path: path.write_text("\n".join(SENTENCES)),
        "pairs": lambda path: path.write_text(json.dumps({"question": "Kdo?", "answer": "Jaz."}) + "\n"),
        "prompts": lambda path: path.write_text(json.dumps({"prompt": SENTENCES[0][:12]}) + "\n"),
        "rows": _rows,
        "results": lambda path: make_results(path, steps=(0, 100), methods=("focus",), items=12),
        "answers": run("harness, tasks"),
        "published": _published,
        "prepared": run("prepare"),
        "data": run("to_megatron"),
        "again": copy("data"),
        "cleaned": run("clean"),
    }

    def place(name: str) -> Path:
        path = tmp_path / name
        if not path.exists():
            make[path.stem](path)
        return path

    return re.sub(r"\b[A-Z]{2,}\b(\.\w+)?", lambda name: str(place(name[0].lower())), words).split()


@pytest.mark.parametrize("name", BEHIND_THE_RENAME)
def test_nothing_that_can_fail_comes_behind_the_rename(name: str, make_opt: OPTMaker, tmp_path: Path) -> None:
    """A command that fails must not leave a complete output: once it has its name, only words are printed."""
    module, *words = filled(BEHIND_THE_RENAME[name], tmp_path, make_opt)
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
