"""The bytes are Megatron's own, every document ends with exactly one end-of-text token, and a run that fails leaves nothing."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from data_prep.artifacts import MANIFEST_NAME, read_manifest, write_manifest
from data_prep.documents import Documents
from data_prep.megatron_index import IndexedDatasetWriter, index_bytes, open_dataset, token_dtype
from data_prep.to_megatron import main, to_megatron
from data_prep.tokenizer_files import load_tokenizer, tokenizer_digest
from tests.processes import ROOT, Group, run_command

Write = Callable[[str, str | bytes], Path]
SHARED_DATA = os.environ.get("SCION_SHARED_DATA")
TEXTS = ["Dež je padal.", "a", "Prvi odstavek.\n\nDrugi </s> odstavek <s>.", "😀 漢字", "  dva  presledka "]


def word_tokenizer(num_words: int) -> PreTrainedTokenizerFast:
    """Words w0, w1, ... with ids of the same number, then </s>; puts </s> in front where special tokens are asked for, as OPT."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(num_words)} | {"</s>": num_words}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", num_words)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


@pytest.fixture
def texts_file(write: Write) -> Path:
    return write("texts.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS))


@pytest.mark.parametrize("num_words, dtype", [(100, np.uint16), (70_000, np.int32)])
def test_bytes_are_those_of_megatrons_builder(write: Write, tmp_path: Path, num_words: int, dtype: type) -> None:
    from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

    rows = [[5, 99, 7], [0], [num_words - 1] * 300, [1, 2]]
    path = write("a.txt", "\n".join(" ".join(f"w{i}" for i in row) for row in rows))
    to_megatron(Documents([path]), word_tokenizer(num_words), tmp_path / "out")
    assert DType.optimal_dtype(num_words + 1) is dtype

    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    for row in rows:
        builder.add_document([*row, num_words], [len(row) + 1])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"out/text.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()

    dataset = IndexedDataset(str(open_dataset(tmp_path / "out")[0]))
    assert [dataset[i].tolist() for i in range(len(dataset))] == [[*row, num_words] for row in rows]
    assert dataset.document_indices.tolist() == [0, 1, 2, 3, 4] and dataset.index.dtype is dtype


@pytest.mark.parametrize("vocab_size", [1, 65_499, 65_500, 65_536, 70_000])
def test_dtype_is_megatrons_choice(vocab_size: int) -> None:
    from megatron.core.datasets.indexed_dataset import DType

    assert token_dtype(vocab_size) == np.dtype(DType.optimal_dtype(vocab_size))


def test_offsets_beyond_two_gigabytes() -> None:
    """Megatron's own index once overflowed there (Megatron-LM issue 1672)."""
    index = index_bytes(np.full(3, 2**31 - 1, dtype=np.int32), np.dtype(np.int32))
    offsets = np.frombuffer(index, dtype=np.int64, count=3, offset=34 + 3 * 4)
    assert offsets.tolist() == [0, 4 * (2**31 - 1), 8 * (2**31 - 1)]


def test_documents_end_with_one_end_of_text_and_hold_none(texts_file: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    manifest = to_megatron(Documents([texts_file]), tokenizer, tmp_path / "out")
    tokens = np.fromfile(tmp_path / "out/text.bin", dtype=np.uint16).tolist()
    assert tokens.count(2) == len(TEXTS) and not {0, 1, 3} & set(tokens)
    assert tokens == [token for text in TEXTS for token in [*tokenizer.encode(text), 2]]
    ends = [i for i, token in enumerate(tokens) if token == 2]
    assert [tokenizer.decode(tokens[start + 1 : end]) for start, end in zip([-1, *ends], ends)] == TEXTS
    assert manifest.facts == {
        "tokenizer_digest": tokenizer_digest(tokenizer),
        "vocab_size": 2000,
        "eos_token_id": 2,
        "num_documents": 5,
        "num_empty_documents": 0,
        "num_tokens": len(tokens),
        "text_bytes": sum(len(text.encode()) for text in TEXTS),
    }
    assert read_manifest(tmp_path / "out") == manifest


def test_special_tokens_are_not_added_and_ids_of_added_tokens_count(write: Write, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(65_498)
    assert tokenizer("w1")["input_ids"] == [65_498, 1]
    tokenizer.add_tokens(["w65499"])  # tokenizer.vocab_size leaves it out; with it, ids no longer count as small
    manifest = to_megatron(Documents([write("a.txt", "w1 w65499")]), tokenizer, tmp_path / "out")
    assert manifest.facts["vocab_size"] == 65_500
    assert np.fromfile(tmp_path / "out/text.bin", dtype=np.int32).tolist() == [1, 65_499, 65_498]


def test_end_of_text_inside_a_document_is_refused(write: Write, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(10)
    tokenizer.eos_token = "w7"  # an ordinary word
    tokenizer.backend_tokenizer.add_tokens(["w7"])
    with pytest.raises(ValueError) as error:
        to_megatron(Documents([write("a.txt", "w1\nw2 w7 w3")]), tokenizer, tmp_path / "out")
    assert str(error.value) == (
        "the tokenizer gives its end-of-text token 7 inside the document that begins 'w2 w7 w3';"
        " mark that token as special in its tokenizer.json"
    )
    assert not (tmp_path / "out").exists()


def test_empty_documents_are_counted_and_left_out(
    write: Write, tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("a.jsonl", '{"text": ""}\n{"text": "ena"}\n{"text": " \\n"}\n')
    assert main(["--input", str(path), "--tokenizer", str(tokenizer_dir), "--output", str(tmp_path / "out"), "--workers", "1"]) == 0
    _, manifest = open_dataset(tmp_path / "out", contents=True)
    facts = manifest.facts
    assert (facts["num_documents"], facts["num_empty_documents"], facts["text_bytes"]) == (1, 2, 3)
    assert capsys.readouterr().out == (
        f"{tmp_path / 'out'}: 1 documents, {facts['num_tokens']} tokens (end-of-text included),"
        f" {3 / facts['num_tokens']:.2f} bytes per token; 2 empty documents left out\n"
    )


def test_refusals(write: Write, tokenizer_dir: Path, tmp_path: Path, hidden_leftovers: Callable[[], list[str]]) -> None:
    text, bad, empty = str(write("a.txt", "a")), str(write("b.txt", b"a\n\xff")), str(write("c.txt", "\n"))
    no_eos = tmp_path / "no_eos"
    tokenizer = load_tokenizer(tokenizer_dir)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(no_eos)
    (tmp_path / "nothing").mkdir()
    for arguments, sentence in (
        ([text, "--tokenizer", str(tmp_path / "none")], f"the tokenizer folder {tmp_path / 'none'} does not exist"),
        (
            [text, "--tokenizer", str(tmp_path / "nothing")],
            f"{tmp_path / 'nothing'} holds no tokenizer; expected one of tokenizer.json, tokenizer.model or vocab.json with merges.txt",
        ),
        (
            [text, "--tokenizer", str(no_eos)],
            f"the tokenizer in {no_eos} has no end-of-text token, which must end each document; set eos_token in its tokenizer_config.json",
        ),
        (["none.txt", "--tokenizer", str(tokenizer_dir)], "the input file none.txt does not exist"),
        ([empty, "--tokenizer", str(tokenizer_dir)], f"there is no text in {empty} (0 empty documents); give files with text"),
        (
            [bad, "--tokenizer", str(tokenizer_dir)],
            f"{bad}, line 2 is not UTF-8: byte 0xff at position 1; convert the file, for example with iconv",
        ),
        ([text, "--tokenizer", str(tokenizer_dir), "--workers", "0"], "--workers is 0; expected at least 1"),
    ):
        with pytest.raises(ValueError) as error:
            main(["--output", str(tmp_path / "out"), "--input", *arguments])
        assert str(error.value) == sentence
        assert not (tmp_path / "out").exists() and not hidden_leftovers()


def test_the_next_stage_refuses_a_damaged_folder(texts_file: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError) as error:
        open_dataset(out)
    assert str(error.value) == f"{out} is no directory; make it with `python -m data_prep.to_megatron`"

    to_megatron(Documents([texts_file]), load_tokenizer(tokenizer_dir), out)
    assert open_dataset(out, contents=True)[0] == out / "text"
    tokens, index = out / "text.bin", (out / "text.idx").read_bytes()
    size = tokens.stat().st_size

    tokens.write_bytes(b"\0" * size)
    open_dataset(out)  # a glance does not see it
    with pytest.raises(ValueError) as error:
        open_dataset(out, contents=True)
    assert str(error.value) == (
        f"{tokens} was edited after data_prep.to_megatron wrote it: its digest is not that of its manifest; make {out} again"
    )
    os.truncate(tokens, size - 2)
    with pytest.raises(ValueError) as error:
        open_dataset(out)
    assert str(error.value) == f"{tokens} has {size - 2} bytes, but its manifest says {size}: truncated or edited; make {out} again"
    (out / "text.idx").unlink()
    os.truncate(tokens, size)
    with pytest.raises(ValueError) as error:
        open_dataset(out)
    assert str(error.value) == f"{out / 'text.idx'} is missing; its manifest lists it with {len(index)} bytes; make {out} again"
    (out / MANIFEST_NAME).unlink()
    with pytest.raises(ValueError) as error:
        open_dataset(out)
    assert str(error.value) == f"{out} has no scion.json; make it with `python -m data_prep.to_megatron`"
    write_manifest(out, stage="conversion.transfer", facts={})
    with pytest.raises(ValueError) as error:
        open_dataset(out)
    assert str(error.value) == f"{out} was written by conversion.transfer; expected the output of `python -m data_prep.to_megatron`"


def test_an_error_while_writing_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), IndexedDatasetWriter(tmp_path, np.dtype(np.uint16)) as writer:
        writer.add_documents(np.array([1, 2]), [2])
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["text.bin"]


def test_number_of_workers_does_not_change_the_files(write: Write, tokenizer_dir: Path, slovene_text: Path, tmp_path: Path) -> None:
    path = write("a.txt.gz", gzip.compress(slovene_text.read_bytes() * 30))  # more than one batch
    for workers in ("1", "2"):
        arguments = ("--input", path, "--tokenizer", tokenizer_dir, "--output", tmp_path / workers, "--workers", workers)
        done = run_command("data_prep.to_megatron", *arguments, log_dir=tmp_path / "log")
        assert (done.code, done.stderr) == (0, "")
    one, two = (read_manifest(tmp_path / workers) for workers in ("1", "2"))
    assert one is not None and two is not None and one.files == two.files


@pytest.fixture
def much_text(tmp_path: Path, slovene_text: Path) -> Path:
    path = tmp_path / "much.txt"
    path.write_bytes(slovene_text.read_bytes() * 600)  # 54 MB, 10 s
    return path


@pytest.mark.parametrize("signum, code", [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_run_that_is_ended_midway_leaves_no_output(
    much_text: Path, tokenizer_dir: Path, tmp_path: Path, hidden_leftovers: Callable[[], list[str]], signum: signal.Signals, code: int
) -> None:
    arguments = ["-m", "data_prep.to_megatron", "--input", much_text, "--tokenizer", tokenizer_dir, "--output", tmp_path / "out"]
    group = Group(list(map(str, arguments)), log_dir=tmp_path / "log")
    group.wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob(".out.partial-*/text.bin")), timeout_seconds=60)
    group.process.send_signal(signum)
    assert group.wait(timeout_seconds=60).code == code
    assert not (tmp_path / "out").exists()
    assert bool(hidden_leftovers()) == (signum == signal.SIGKILL)


def _can_mount() -> bool:
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.mark.parametrize("stage", ["data_prep.to_megatron", "data_prep.train_tokenizer"])
def test_full_disk(much_text: Path, slovene_text: Path, tokenizer_dir: Path, tmp_path: Path, stage: str) -> None:
    """On a file system of its own of 256 KiB."""
    if not _can_mount():
        pytest.skip("this system lets no user mount a small file system (unshare --user --mount)")
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = {
        "data_prep.to_megatron": f"--input {much_text} --tokenizer {tokenizer_dir}",
        "data_prep.train_tokenizer": f"--input {slovene_text} --vocab-size 9000",
    }[stage]
    script = (
        f"mount -t tmpfs -o size=256k tmpfs {disk}; {sys.executable} -m {stage} {arguments} --output {disk}/out; code=$?;"
        f" echo left: $(ls -A {disk}); exit $code"
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "left:\n"
    assert done.stderr == (
        f"error: the disk is full while writing {disk}/out: [Errno 28] No space left on device; nothing was kept;"
        " free some space or choose another --output\n"
    )
    assert done.returncode == 2


def test_a_write_that_fails_leaves_nothing(
    slovene_text: Path, tokenizer_dir: Path, tmp_path: Path, hidden_leftovers: Callable[[], list[str]]
) -> None:
    """A limit on the size of files: fails as a full disk does, and can be tried everywhere."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            to_megatron(Documents([slovene_text]), load_tokenizer(tokenizer_dir), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "out").exists() and not hidden_leftovers()


@pytest.mark.skipif(SHARED_DATA is None, reason="SCION_SHARED_DATA does not name the folder of real text")
def test_opts_own_tokenizer_on_real_text(tmp_path: Path) -> None:
    """The true tokenizer of OPT, which puts </s> in front of a text when asked for special tokens."""
    from transformers import AutoTokenizer

    shared = Path(str(SHARED_DATA))
    directory = tmp_path / "opt"
    directory.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (directory / name).write_bytes((shared / "tokenizers/opt_gpt2_bpe" / name).read_bytes())
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "add_bos_token": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    documents = Documents([shared / "text/sl/gnome_help.jsonl.gz"])
    manifest = to_megatron(documents, load_tokenizer(directory), tmp_path / "out")
    reference = AutoTokenizer.from_pretrained(str(directory))
    expected = [token for text in documents for token in [*reference(text, add_special_tokens=False)["input_ids"], 2]]
    assert np.fromfile(tmp_path / "out/text.bin", dtype=np.uint16).tolist() == expected
    assert manifest.facts["vocab_size"] == 50_265
