"""What is shown is what is on disk, and the samples shown are those that NeMo's data module gives to training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data_prep.inspect import main
from data_prep.megatron.index import TokenFile, open_dataset
from data_prep.megatron.windows import TrainingWindows, one_process_group
from data_prep.to_megatron import to_megatron
from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest
from tests.data_prep.packed import refusal
from tests.processes import run_command

Write = Callable[[str, str | bytes], Path]
LENGTH, SAMPLES, SEED = 24, 64, 7


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path, slovene_text: Path) -> list[Path]:
    base = tmp_path_factory.mktemp("data")
    lines = slovene_text.read_text(encoding="utf-8").splitlines()
    for name, part in (("a", lines[:40]), ("b", lines[40:60]), ("c", lines[60:90])):
        (base / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ["", *part]), encoding="utf-8")
    tokenizer = load_tokenizer(tokenizer_dir)
    to_megatron([base / "a.jsonl", base / "b.jsonl"], tokenizer, base / "ab")
    to_megatron([base / "c.jsonl"], tokenizer, base / "c")
    return [base / "ab", base / "c"]


def nemo_samples(datasets: list[Path], weights: list[float], index_dir: Path) -> list[list[int]]:
    """As `recipes.training.engine` builds the data of a run."""
    from nemo.collections.llm.gpt.data.pre_training import PreTrainingDataModule

    from nemo_patches.tokenizer import EndOfDocument

    train = [word for weight, path in zip(weights, datasets) for word in (str(weight), str(path / "text"))]
    train = train if len(datasets) > 1 else train[1:]
    module = PreTrainingDataModule(
        paths={"train": train, "validation": train, "test": train},
        seq_length=LENGTH,
        tokenizer=EndOfDocument(vocab_size=2000, eos_id=2, identity="x"),
        micro_batch_size=4,
        global_batch_size=8,
        seed=SEED,
        index_mapping_dir=str(index_dir),
        num_train_samples=SAMPLES,
    )
    module.create_attention_mask = False
    with one_process_group():
        module.build(
            trainer_max_steps=SAMPLES // 8, trainer_val_check_interval=4, trainer_limit_val_batches=1, trainer_limit_test_batches=1
        )
    samples = [module._train_ds[i] for i in range(SAMPLES)]
    return [[*sample["tokens"].tolist(), int(sample["labels"][-1])] for sample in samples]


@pytest.mark.some(1)
@pytest.mark.parametrize("weights", [pytest.param(None, marks=pytest.mark.slow), pytest.param([1.0], marks=pytest.mark.slow), [3.0, 1.0]])
def test_windows_are_those_of_nemos_data_module(datasets: list[Path], tmp_path: Path, weights: list[float] | None) -> None:
    used = datasets[: len(weights or [1])]
    windows = TrainingWindows([path / "text" for path in used], weights, sequence_length=LENGTH, num_samples=SAMPLES, seed=SEED)
    expected = nemo_samples(used, weights or [1.0], tmp_path)
    assert [windows.tokens(i).tolist() for i in range(SAMPLES)] == expected
    assert len({tuple(window) for window in expected}) > SAMPLES // 2
    assert not list(used[0].glob("**/cache"))  # Megatron would write its indices beside the data


def test_pieces_cover_the_documents_once_in_an_epoch(datasets: list[Path]) -> None:
    data = TokenFile(datasets[0] / "text")
    whole = (data.num_tokens - 1) // LENGTH
    windows = TrainingWindows([datasets[0] / "text"], None, sequence_length=LENGTH, num_samples=whole, seed=SEED)
    seen = [np.zeros(len(data[i]), dtype=int) for i in range(len(data))]
    for number in range(whole):
        pieces = windows.pieces(number)
        assert sum(piece.end - piece.start for piece in pieces) == LENGTH + 1
        for piece in pieces:
            seen[piece.document][piece.start : piece.end] += 1
    counts = np.bincount(np.concatenate(seen), minlength=3)
    # Windows share their border tokens; what is left over at the end is less than a window.
    assert counts[2] == whole - 1 and counts[0] < LENGTH


def test_documents_are_shown_with_their_source(datasets: list[Path], tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(datasets[0]), "--document", "0", "59", "--tokenizer", str(tokenizer_dir), "--max-tokens", "3"]) == 0
    output = capsys.readouterr().out.splitlines()
    tokenizer, data = load_tokenizer(tokenizer_dir), TokenFile(datasets[0] / "text")
    base = datasets[0].parent
    for number, source, shown in ((0, base / "a.jsonl", output[:3]), (59, base / "b.jsonl", output[3:])):
        line = 2 if number == 0 else 21  # behind an empty document
        text = json.loads(source.read_text(encoding="utf-8").splitlines()[line - 1])["text"]
        ids = data[number].tolist()
        assert shown[0] == f"document {number}: {source}, line {line}, {len(ids)} tokens"
        assert shown[1] == "text: " + repr(text + "</s>")
        names = tokenizer.convert_ids_to_tokens(ids[:3])
        listed = " ".join(f"{i}:{name}" for i, name in zip(ids, names))
        assert shown[2] == f"tokens: {listed} ... {len(ids) - 3} more (--max-tokens)"


@pytest.mark.long
def test_summary_and_windows_on_the_command_line(datasets: list[Path], tmp_path: Path) -> None:
    options = ("--window", "3", "--sequence-length", LENGTH, "--num-samples", SAMPLES, "--seed", SEED, "--weights", "3", "1")
    done = run_command("data_prep.inspect", *datasets, *map(str, options), log_dir=tmp_path / "log")
    assert done.code == 0, done.stderr
    windows = TrainingWindows([path / "text" for path in datasets], [3, 1], sequence_length=LENGTH, num_samples=SAMPLES, seed=SEED)
    first, *places, tokens = done.stdout.splitlines()
    assert first == "sample 3" and len(places) == len(windows.pieces(3))
    assert tokens == "tokens: " + " ".join(map(str, windows.tokens(3).tolist()))
    piece = windows.pieces(3)[0]
    assert places[0].startswith(f"  {datasets[piece.dataset]}, document {piece.document}, tokens {piece.start} to {piece.end - 1} of ")


def test_summary(datasets: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(datasets[0])]) == 0
    output = capsys.readouterr().out
    facts = open_dataset(datasets[0])[1].facts
    assert output.startswith(f"{datasets[0]}: 60 documents, {facts['num_tokens']:,} tokens of 2 bytes; tokens a document")
    a, b = facts["shards"]
    assert f"| {a['source']} |        40 |     1 |       0 | {a['text_bytes']:>5,} |" in output and b["source"] in output
    assert main([str(datasets[0] / "text.bin")]) == 0  # as if another tool had written it
    assert capsys.readouterr().out == output.splitlines()[0].replace(str(datasets[0]), f"{datasets[0]}/text.bin") + "\n"


def test_damage_is_found(datasets: list[Path], tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to_megatron([datasets[0].parent / "c.jsonl"], load_tokenizer(tokenizer_dir), tmp_path / "data")
    assert main([str(tmp_path / "data"), "--check"]) == 0
    tokens = tmp_path / "data/text.bin"
    tokens.write_bytes(tokens.read_bytes()[::-1])
    capsys.readouterr()
    assert main([str(tmp_path / "data"), "--check"]) == 1
    assert capsys.readouterr().out.startswith(f"wrong: {tokens} was edited after data_prep.to_megatron wrote it")


def test_refusals(datasets: list[Path], tmp_path: Path, write: Write, tokenizer_dir: Path) -> None:
    first, second = map(str, datasets)
    other = tmp_path / "other"
    tokenizer = load_tokenizer(tokenizer_dir)
    digest = tokenizer_digest(tokenizer)
    tokenizer.add_tokens(["novo"])
    tokenizer.save_pretrained(other)
    window = ["--window", "0", "--sequence-length", "9", "--num-samples", "5"]
    num_tokens = TokenFile(datasets[0] / "text").num_tokens
    for arguments, sentence in (
        ([str(tmp_path)], f"{tmp_path} has no scion.json; name a dataset of another tool by its file, {tmp_path}/NAME.bin"),
        (
            [str(datasets[0].parent)],
            f"{datasets[0].parent} is not a dataset, but has 2: {datasets[0].name}, {datasets[1].name}; name them, as in {first}",
        ),
        ([f"{tmp_path}/no"], f"{tmp_path}/no.idx does not exist; expected an indexed dataset of {tmp_path}/no.bin and {tmp_path}/no.idx"),
        ([first, "--document", "60"], f"{first} has documents 0 to 59, but no 60"),
        ([first, second, "--document", "0"], "--document needs exactly one dataset; name only that"),
        ([first, *window], "--window needs --seed: they decide the order of the samples"),
        ([first, *window, "--seed", "1", "--window", "5"], "--window 5: the run has samples 0 to 4"),
        ([first, second, *window, "--seed", "1", "--weights", "1"], "--weights has 1 numbers; expected 2 above 0, one for each dataset"),
        (
            [first, *window, "--seed", "1", "--sequence-length", "99999"],
            f"{first}/text has {num_tokens} tokens; one window needs 100000",
        ),
        (
            [first, "--tokenizer", str(other)],
            f"{first} was made with tokenizer {digest}, but {other} is {tokenizer_digest(load_tokenizer(other))}; its text would be wrong",
        ),
    ):
        assert refusal(main, arguments) == sentence
