"""The bytes are Megatron's own for any number of workers, every document ends with one end-of-text token, and a stopped run goes on."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from common.artifacts import MANIFEST_NAME, digest_file, read_manifest, write_manifest
from data_prep.join_megatron import main as join_main
from data_prep.megatron.index import TokenFile, index_parts, open_dataset, token_dtype
from data_prep.megatron.shard import ShardRecord, check
from data_prep.megatron.word_encoder import LibraryEncoder
from data_prep.reading.documents import Documents
from data_prep.to_megatron import main, to_megatron
from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest
from tests.data_prep.packed import refusal
from tests.processes import ROOT, Group, run_command

Write = Callable[[str, str | bytes], Path]
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
def test_bytes_are_those_of_megatrons_builder(
    write: Write, tmp_path: Path, num_words: int, dtype: type, capsys: pytest.CaptureFixture[str]
) -> None:
    from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

    rows = [[5, 99, 7], [0], [num_words - 1] * 300, [1, 2]]
    path = write("a.txt", "\n".join(" ".join(f"w{i}" for i in row) for row in rows))
    manifest = to_megatron([path], word_tokenizer(num_words), tmp_path / "out")
    assert manifest.facts["not_by_words_because"] == "its pre-tokenizer is unknown"
    assert capsys.readouterr().err.endswith("several times slower than by words and with the same ids: its pre-tokenizer is unknown\n")
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
    index = b"".join(index_parts(np.full(3, 2**31 - 1, dtype=np.int32), np.dtype(np.int32)))
    offsets = np.frombuffer(index, dtype=np.int64, count=3, offset=34 + 3 * 4)
    assert offsets.tolist() == [0, 4 * (2**31 - 1), 8 * (2**31 - 1)]


def test_documents_end_with_one_end_of_text_and_hold_none(texts_file: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    manifest = to_megatron([texts_file], tokenizer, tmp_path / "out")
    tokens = np.fromfile(tmp_path / "out/text.bin", dtype=np.uint16).tolist()
    assert tokens.count(2) == len(TEXTS) and not {0, 1, 3} & set(tokens)
    assert tokens == [token for text in TEXTS for token in [*tokenizer.encode(text), 2]]
    ends = [i for i, token in enumerate(tokens) if token == 2]
    assert [tokenizer.decode(tokens[start + 1 : end]) for start, end in zip([-1, *ends], ends)] == TEXTS
    counts = {
        "num_documents": 5,
        "num_empty_documents": 0,
        "num_tokens": len(tokens),
        "text_bytes": sum(len(text.encode()) for text in TEXTS),
    }
    [shard] = manifest.facts["shards"]
    assert shard == counts | {
        "source": str(texts_file),
        "source_digest": digest_file(texts_file),
        "bad_input": {},
        "bad_samples": [],
        "digest": digest_file(tmp_path / "out/text.bin"),
    }
    assert manifest.facts == counts | {
        "tokenizer_digest": tokenizer_digest(tokenizer),
        "vocab_size": 2000,
        "eos_token_id": 2,
        "document_front": [],
        "tokenizer_front": [],
        "num_samples": 3,  # documents 0, 1 and 3
        "num_samples_decoded_to_their_text": 3,
        "shards": [shard],
    }
    assert sorted(manifest.files) == ["lines.npy", "text.bin", "text.idx"] and manifest.inputs == {str(texts_file): shard["source_digest"]}
    assert np.load(tmp_path / "out/lines.npy").tolist() == [1, 2, 3, 4, 5]
    assert read_manifest(tmp_path / "out") == manifest


def test_special_tokens_are_not_added_and_ids_of_added_tokens_count(write: Write, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(65_498)
    assert tokenizer("w1")["input_ids"] == [65_498, 1]
    tokenizer.add_tokens(["w65499"])  # tokenizer.vocab_size leaves it out; with it, ids no longer count as small
    manifest = to_megatron([write("a.txt", "w1 w65499")], tokenizer, tmp_path / "out")
    assert manifest.facts["vocab_size"] == 65_500
    assert np.fromfile(tmp_path / "out/text.bin", dtype=np.int32).tolist() == [1, 65_499, 65_498]


def test_end_of_text_inside_a_document_is_refused(write: Write, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(10)
    tokenizer.eos_token = "w7"  # an ordinary word
    tokenizer.backend_tokenizer.add_tokens(["w7"])
    path = write("a.txt", "w1\nw2 w7 w3")
    assert refusal(to_megatron, [path], tokenizer, tmp_path / "out") == (
        f"{path}, line 2: the tokenizer gives its end-of-text token 7 inside the document that begins 'w2 w7 w3';"
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
        f" {3 / facts['num_tokens']:.2f} bytes per token; 2 empty documents left out;"
        " nothing stands in front of each document\n"
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
        (
            [text, text, "--tokenizer", str(tokenizer_dir)],
            f"the input file {Path(text).resolve()} is given twice, so that its text would count twice; name each file once",
        ),
    ):
        assert refusal(main, ["--output", str(tmp_path / "out"), "--input", *arguments]) == sentence
        assert not (tmp_path / "out").exists() and not hidden_leftovers()


def test_the_next_stage_refuses_a_damaged_folder(texts_file: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert refusal(open_dataset, out) == f"{out} is not a directory; make it with `python -m data_prep.to_megatron`"

    to_megatron([texts_file], load_tokenizer(tokenizer_dir), out)
    assert open_dataset(out, contents=True)[0] == out / "text"
    tokens, index = out / "text.bin", (out / "text.idx").read_bytes()
    size = tokens.stat().st_size

    tokens.write_bytes(b"\0" * size)
    open_dataset(out)  # a glance does not see it
    assert refusal(open_dataset, out, contents=True) == (
        f"{tokens} was edited after data_prep.to_megatron wrote it: its digest is not that of its manifest; make {out} again"
    )
    os.truncate(tokens, size - 2)
    assert (
        refusal(open_dataset, out) == f"{tokens} has {size - 2} bytes, but its manifest says {size}: truncated or edited; make {out} again"
    )
    (out / "text.idx").unlink()
    os.truncate(tokens, size)
    assert refusal(open_dataset, out) == f"{out / 'text.idx'} is missing; its manifest lists it with {len(index)} bytes; make {out} again"
    (out / MANIFEST_NAME).unlink()
    assert refusal(open_dataset, out) == f"{out} has no scion.json; make it with `python -m data_prep.to_megatron`"
    write_manifest(out, stage="conversion.transfer", facts={})
    assert (
        refusal(open_dataset, out) == f"{out} was written by conversion.transfer; expected the output of `python -m data_prep.to_megatron`"
    )


@pytest.fixture
def files(tmp_path: Path, slovene_text: Path) -> list[Path]:
    """Three of different sizes, one of them compressed, one with an empty document."""
    lines = slovene_text.read_bytes().splitlines(keepends=True)
    paths = [tmp_path / "a.txt", tmp_path / "b.jsonl.gz", tmp_path / "c.txt"]
    paths[0].write_bytes(b"".join(lines[:150]))
    records = [{"text": line.decode().strip()} for line in lines[150:200]]
    paths[1].write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in [{"text": " "}, *records]).encode()))
    paths[2].write_bytes(b"".join(lines[200:]))
    return paths


def outputs(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in ("text.bin", "text.idx", "lines.npy")}


@pytest.mark.slow
def test_same_bytes_for_any_number_of_workers_and_without_a_compiler(
    files: list[Path], tokenizer_dir: Path, tmp_path: Path, slovene_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.append(tmp_path / "d.txt.gz")
    files[-1].write_bytes(gzip.compress(slovene_text.read_bytes() * 30))  # more than one batch
    tokenizer = load_tokenizer(tokenizer_dir)

    def digest(name: str, inputs: list[Path], workers: int) -> str:
        return to_megatron(inputs, tokenizer, tmp_path / name, workers=workers).digest

    all_files, one_file = digest("all", files, 1), digest("one", files[-1:], 1)
    assert digest("two processes", files, 2) == all_files
    assert digest("three threads", files[-1:], 3) == one_file != all_files
    arguments = ("--input", *files, "--tokenizer", tokenizer_dir, "--output", tmp_path / "command", "--workers", "2")
    done = run_command("data_prep.to_megatron", *arguments, log_dir=tmp_path / "log")
    assert (done.code, done.stderr) == (0, "") and open_dataset(tmp_path / "command", contents=True)[1].digest == all_files
    monkeypatch.setattr("data_prep.to_megatron.word_encoder", LibraryEncoder)
    assert digest("library", files, 1) == all_files


def test_counts_add_up_from_lines_to_the_index(files: list[Path], tokenizer_dir: Path, tmp_path: Path) -> None:
    manifest = to_megatron(files, load_tokenizer(tokenizer_dir), tmp_path / "out", workers=2)
    data, lines = TokenFile(tmp_path / "out/text"), np.load(tmp_path / "out/lines.npy")
    tokenizer = load_tokenizer(tokenizer_dir)
    number = 0
    for path, shard in zip(files, manifest.facts["shards"]):
        texts = list(Documents([path]))
        assert (shard["num_documents"], shard["num_empty_documents"]) == (len(texts), 1 if path.suffix == ".gz" else 0)
        assert shard["text_bytes"] == sum(len(text.encode()) for text in texts)
        assert shard["num_tokens"] == sum(len(data[number + i]) for i in range(len(texts)))
        content = path.read_bytes()
        source = (gzip.decompress(content) if path.suffix == ".gz" else content).decode().split("\n")
        for text in texts:
            assert tokenizer.decode(data[number][:-1]) == text and data[number][-1] == 2
            line = source[lines[number] - 1]
            assert text == (json.loads(line)["text"] if path.suffix == ".gz" else line)
            number += 1
    assert number == len(data) == len(lines)


def test_a_shard_that_is_done_is_not_done_again(files: list[Path], tokenizer_dir: Path, tmp_path: Path) -> None:
    """Unless its file changed meanwhile."""
    tokenizer, whole = load_tokenizer(tokenizer_dir), files[2].read_bytes()
    expected = to_megatron(files, tokenizer, tmp_path / "expected")
    files[2].write_bytes(whole + b"\xff\n")
    with pytest.raises(
        ValueError, match=rf"^{files[2]}, line {whole.count(10) + 1} is not UTF-8: byte 0xff at position 1; convert the file"
    ):
        to_megatron(files, tokenizer, tmp_path / "out")
    unfinished = tmp_path / ".out.unfinished"
    assert not (tmp_path / "out").exists()
    done = {path.name: path.stat().st_mtime_ns for path in (unfinished / "scratch").iterdir() if "partial" not in path.name}
    assert sorted(done) == [f"0000{i}.{suffix}" for i in (0, 1) for suffix in ("bin", "json", "npz")]

    with pytest.raises(ValueError, match="was left by a run with other options or inputs"):
        to_megatron(files[:2], tokenizer, tmp_path / "out")
    files[2].write_bytes(whole)
    # Were it done again, the damage would be gone.
    (unfinished / "scratch/00000.bin").write_bytes(b"\0" * (unfinished / "scratch/00000.bin").stat().st_size)
    assert refusal(to_megatron, files, tokenizer, tmp_path / "out") == (
        f"{unfinished / 'scratch/00000.bin'} is not as it was written: damaged or edited; tokenize its text again"
    )
    os.utime(files[0])
    to_megatron(files, tokenizer, tmp_path / "out")
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected") and not unfinished.exists()
    assert open_dataset(tmp_path / "out")[1].digest == expected.digest


def test_bad_input_is_passed_over_and_counted_where_that_was_asked(
    write: Write, tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compressed = gzip.compress(b"".join(json.dumps({"text": f"{i} {os.urandom(50).hex()}"}).encode() + b"\n" for i in range(4000)))
    cut = write("cut.jsonl.gz", compressed[: len(compressed) // 2])
    bad = write(
        "bad.jsonl",
        b'{"text": "ena"}\r\n{"text": "d\xff"}\n{"no": 1}\n\n{"text": "\\u0000 tri"}\n{"text": "' + b"x" * (2 << 20) + b'"}\n{"te',
    )
    empty = write("empty.jsonl", b"")
    arguments = ["--tokenizer", str(tokenizer_dir), "--workers", "2", "--max-document-mib", "1", "--input", *map(str, (bad, cut, empty))]
    with pytest.raises(ValueError, match=f"^{bad}, line 2 is not UTF-8: byte 0xff at position 12"):
        main([*arguments, "--output", str(tmp_path / "strict")])
    assert main([*arguments, "--output", str(tmp_path / "out"), "--skip-bad"]) == 0
    facts = open_dataset(tmp_path / "out", contents=True)[1].facts
    found = {Path(shard["source"]).name: (shard["num_documents"], shard["bad_input"]) for shard in facts["shards"]}
    assert found["bad.jsonl"] == (2, {"no UTF-8": 1, "no text": 1, "too long": 1, "no JSON": 1})
    assert found["empty.jsonl"] == (0, {})
    num_whole, reasons = found["cut.jsonl.gz"]
    assert 1000 < num_whole < 3000 and reasons == {"broken gzip": 1}
    tokenizer, data = load_tokenizer(tokenizer_dir), TokenFile(tmp_path / "out/text")
    assert [tokenizer.decode(data[i][:-1]) for i in (0, 1)] == ["ena", "\0 tri"]
    assert len(data) == 2 + num_whole
    output = capsys.readouterr().out
    assert f"skipped in {bad}: 1 x too long" in output and f"{cut} is not a complete gzip file after line {num_whole}" in output


def test_what_was_written_is_checked_against_the_library(files: list[Path], tokenizer_dir: Path, tmp_path: Path) -> None:
    """An encoder that is wrong in one word is found."""
    tokenizer = load_tokenizer(tokenizer_dir)
    manifest = to_megatron(files, tokenizer, tmp_path / "out")
    records = [
        ShardRecord(shard["source"], num_documents=shard["num_documents"], num_tokens=shard["num_tokens"])
        for shard in manifest.facts["shards"]
    ]
    first = next(iter(Documents([files[2]])))
    number = records[0].num_documents + records[1].num_documents
    records[2].samples = [(0, first)]
    assert check(tmp_path / "out", records, tokenizer.backend_tokenizer, 2) == {"num_samples": 1, "num_samples_decoded_to_their_text": 1}
    records[2].samples = [(1, first)]
    with pytest.raises(
        ValueError, match=f"^document {number + 1} of {tmp_path / 'out'} has other tokens than the tokenizer gives for its text"
    ):
        check(tmp_path / "out", records, tokenizer.backend_tokenizer, 2)
    records[2].num_tokens += 1
    with pytest.raises(
        ValueError, match=f"holds {manifest.facts['num_tokens']} tokens, but {manifest.facts['num_tokens'] + 1} were written"
    ):
        check(tmp_path / "out", records, tokenizer.backend_tokenizer, 2)


def test_parts_are_joined_to_what_one_run_gives(
    files: list[Path], tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    whole = to_megatron(files, tokenizer, tmp_path / "whole")
    for name, part in (("0", files[:2]), ("1", files[2:])):
        to_megatron(part, tokenizer, tmp_path / name)
    parts = [str(tmp_path / "0"), str(tmp_path / "1")]
    assert join_main(["--input", *parts, "--output", str(tmp_path / "joined")]) == 0
    assert outputs(tmp_path / "joined") == outputs(tmp_path / "whole")
    joined = open_dataset(tmp_path / "joined", contents=True)[1]
    assert joined.digest == whole.digest and joined.facts["shards"] == whole.facts["shards"]
    assert {name: joined.facts[name] for name in whole.facts if not name.startswith("num_samples")} == {
        name: value for name, value in whole.facts.items() if not name.startswith("num_samples")
    }
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'joined'}: 451 documents, ")

    other = word_tokenizer(50)
    to_megatron([files[0]], other, tmp_path / "other")
    flipped = bytearray((tmp_path / "1/text.bin").read_bytes())
    flipped[100] ^= 1
    (tmp_path / "1/text.bin").write_bytes(flipped)
    for inputs, sentence in (
        (["0", "0"], f"{tmp_path / '0'} is given twice; its documents would be in the data twice"),
        (
            ["0", "other"],
            f"{tmp_path / 'other'} has tokenizer_digest {tokenizer_digest(other)}, but {tmp_path / '0'} has {tokenizer_digest(tokenizer)};"
            " make both with the same tokenizer and --bos",
        ),
        (["0", "1"], f"{tmp_path / '1/text.bin'} is not as it was written: damaged or edited; tokenize its text again"),
    ):
        assert refusal(join_main, ["--input", *(str(tmp_path / name) for name in inputs), "--output", str(tmp_path / "bad")]) == sentence
        assert not (tmp_path / "bad").exists()


def test_datasets_of_other_writers_are_read_and_damaged_ones_refused(tmp_path: Path) -> None:
    """Several sequences a document, and another type."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix = tmp_path / "theirs"
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int64)
    for ids, lengths in (([1, 2, 3], [2, 1]), ([], [0]), ([4], [1])):
        builder.add_document(ids, lengths)
    builder.finalize(f"{prefix}.idx")
    data = TokenFile(prefix)
    assert [data[i].tolist() for i in range(len(data))] == [[1, 2, 3], [], [4]] and data.dtype == np.int64

    index = Path(f"{prefix}.idx").read_bytes()
    for content, sentence in (
        (
            index[:-1],
            f"{prefix}.idx has {len(index) - 1} bytes, but its header says {len(index)}: truncated or edited; make the dataset again",
        ),
        (b"x" * 50, f"{prefix}.idx is not a Megatron index; make the dataset again"),
        (b"", f"{prefix}.idx is not a Megatron index; make the dataset again"),
    ):
        Path(f"{prefix}.idx").write_bytes(content)
        assert refusal(TokenFile, prefix) == sentence
    Path(f"{prefix}.idx").write_bytes(index)
    os.truncate(f"{prefix}.bin", 31)
    assert refusal(TokenFile, prefix) == (
        f"{prefix}.bin has 31 bytes, but {prefix}.idx speaks of 4 tokens of 8 bytes; make the dataset again"
    )


@pytest.fixture
def much_text(tmp_path: Path, slovene_text: Path) -> list[Path]:
    """A small file, and one of 120 MB that takes some seconds."""
    paths = [tmp_path / "little.txt", tmp_path / "much.txt"]
    paths[0].write_bytes(slovene_text.read_bytes())
    paths[1].write_bytes(slovene_text.read_bytes() * 1_300)
    return paths


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("signum, code", [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_run_that_is_ended_midway_goes_on(
    slovene_text: Path, tokenizer_dir: Path, tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    texts = [tmp_path / "little.txt", tmp_path / "more.txt"]
    for path, times in zip(texts, (1, 20)):
        path.write_bytes(slovene_text.read_bytes() * times)
    words = ["data_prep.to_megatron", "--input", *map(str, texts), "--tokenizer", str(tokenizer_dir), "--output", str(tmp_path / "out")]
    shards = tmp_path / ".out.unfinished/scratch"
    group = Group(["-m", "tests.held_command", ".00001.bin.partial", *words, "--workers", "2"], log_dir=tmp_path / "log")
    group.wait_until(
        lambda: (shards / "00000.json").exists() and any(path.stat().st_size for path in shards.glob(".00001.bin.partial")),
        timeout_seconds=60,
    )
    workers = group.descendants()
    group.process.send_signal(signum)
    group.process.wait(30)
    assert group.process.returncode == code
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert len(workers) >= 2 and not alive
    assert not (tmp_path / "out").exists()
    made = (shards / "00000.bin").stat().st_mtime_ns
    assert not (shards / "00001.json").exists() and made

    texts[1].write_bytes(texts[0].read_bytes())  # repaired meanwhile
    done = run_command(*words, "--workers", "1", log_dir=tmp_path / "log")
    assert (done.code, done.stderr) == (0, "")
    manifest = open_dataset(tmp_path / "out", contents=True)[1]
    first, second = manifest.facts["shards"]
    assert first["digest"] == second["digest"] and not shards.exists()


def _can_mount() -> bool:
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


FULL = "[Errno 28] No space left on device"


@pytest.mark.parametrize("stage", ["data_prep.to_megatron", "data_prep.train_tokenizer"])
def test_full_disk(much_text: list[Path], slovene_text: Path, tokenizer_dir: Path, tmp_path: Path, stage: str) -> None:
    """On a file system of its own of 256 KiB."""
    if not _can_mount():
        pytest.skip("this system lets no user mount a small file system (unshare --user --mount)")
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments, left, advice = {
        "data_prep.to_megatron": (
            f"--input {much_text[0]} {much_text[1]} --tokenizer {tokenizer_dir} --workers 1",
            "left: .out.unfinished",
            f"free some space and run the same command again: finished shards are kept in {disk}/.out.unfinished",
        ),
        "data_prep.train_tokenizer": (
            f"--input {slovene_text} --vocab-size 9000",
            "left:",
            "nothing was kept; free some space or choose another --output",
        ),
    }[stage]
    script = (
        f"mount -t tmpfs -o size=256k tmpfs {disk}; {sys.executable} -m {stage} {arguments} --output {disk}/out; code=$?;"
        f" echo left: $(ls -A {disk}); exit $code"
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{left}\n"
    assert done.stderr == f"error: the disk is full while writing {disk}/out: {FULL}; {advice}\n"
    assert done.returncode == 2


def test_opts_own_tokenizer_on_real_text(shared_data: Path, tmp_path: Path) -> None:
    """The true tokenizer of OPT, which puts </s> in front of a text when asked for special tokens."""
    from transformers import AutoTokenizer

    directory = tmp_path / "opt"
    directory.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (directory / name).write_bytes((shared_data / "tokenizers/opt_gpt2_bpe" / name).read_bytes())
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "add_bos_token": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    path = shared_data / "text/sl/gnome_help.jsonl.gz"
    documents = Documents([path])
    manifest = to_megatron([path], load_tokenizer(directory), tmp_path / "out")
    reference = AutoTokenizer.from_pretrained(str(directory))
    expected = [token for text in documents for token in [*reference(text, add_special_tokens=False)["input_ids"], 2]]
    assert np.fromfile(tmp_path / "out/text.bin", dtype=np.uint16).tolist() == expected
    assert manifest.facts["vocab_size"] == 50_265
