"""A corpus without text is an error before anything is written; a file without text among others is counted, and what a stage took is not an error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep import clean, collect, dedup, mixture, train_tokenizer

EMPTY = "{path} has any; give files with text, or leave it out$"


@pytest.fixture
def empty(tmp_path: Path) -> list[Path]:
    """Files in which there is no text, of each kind."""
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "empty.txt.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "blank.jsonl").write_text('{"id": "a", "text": "  "}\n{"id": "b", "text": ""}\n')
    return [tmp_path / name for name in ("empty.jsonl", "empty.txt.gz", "blank.jsonl")]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"id": str(number), "text": f"Beseda {number} in še katera."}) + "\n" for number in range(5)))
    return path


@pytest.mark.parametrize("command", [collect.main, clean.main, dedup.main])
def test_a_corpus_without_text_is_refused(command: Callable[[list[str]], int], empty: list[Path], text: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    for path in empty:
        with pytest.raises(ValueError, match=f"the corpus web has no text: no document of {EMPTY.format(path=path)}"):
            command(["--input", f"web={path}", "--output", str(tmp_path / "out")])
        with pytest.raises(ValueError, match="the corpus web has no text"):
            command(["--input", f"books={text}", "--input", f"web={path}", "--output", str(tmp_path / "out")])
    with pytest.raises(ValueError, match=r"empty.jsonl, .*empty.txt.gz, .*blank.jsonl has any"):
        command(["--input", f"web={empty[0]}", *map(str, empty[1:]), "--output", str(tmp_path / "out")])
    assert sorted(tmp_path.iterdir()) == before, "nothing is written, hidden or not"


@pytest.mark.parametrize("command", [collect.main, clean.main, dedup.main])
def test_a_file_without_text_among_others_is_fine(
    command: Callable[[list[str]], int], empty: list[Path], text: Path, tmp_path: Path
) -> None:
    assert command(["--input", f"web={empty[0]}", str(text), str(empty[2]), "--output", str(tmp_path / "out")]) == 0
    assert sum(1 for path in (tmp_path / "out/text").rglob("*.jsonl*") for line in path.open("rb")) >= 5


def test_so_is_it_with_what_has_tokens_or_scores(empty: list[Path], text: Path, tmp_path: Path, tokenizer_dir: Path) -> None:
    table = tmp_path / "corpora.yaml"
    table.write_text(f"- {{name: books, files: [{text}]}}\n- {{name: web, files: [{empty[0]}]}}\n")
    output = ["--output", str(tmp_path / "out")]
    before = sorted(tmp_path.iterdir())
    for command, words in (
        (mixture.main, ["--corpora", str(table), "--tokenizer", f"t={tokenizer_dir}"]),
        (train_tokenizer.main, ["--corpora", str(table), "--vocab-size", "300"]),
    ):
        with pytest.raises(ValueError, match=f"the corpus web has no text: no document of {EMPTY.format(path=empty[0])}"):
            command([*words, *output])
    assert sorted(tmp_path.iterdir()) == before


def test_what_protects_must_have_text(empty: list[Path], text: Path, tmp_path: Path) -> None:
    words = ["--input", f"books={text}", "--output", str(tmp_path / "out"), "--against"]
    with pytest.raises(
        ValueError, match=r"there is no text in .*empty.jsonl, so there is nothing to decontaminate against; check --against"
    ):
        dedup.main([*words, str(empty[0])])
    assert dedup.main([*words, str(empty[0]), str(text)]) == 0


def test_a_corpus_of_which_an_earlier_stage_left_nothing_may_stand_beside_others(text: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_text(text.read_text().replace('"id": "', '"id": "copy '))
    words = ["--input", f"books={text}", "--input", f"web={copy}", "--same-documents", "--output", str(tmp_path / "unique")]
    assert dedup.main(words) == 0
    assert clean.main(["--corpora", str(tmp_path / "unique/corpora.yaml"), "--output", str(tmp_path / "cleaned")]) == 0
    assert json.loads((tmp_path / "cleaned/scion.json").read_text())["facts"]["counts"]["web"]["num_read"] == 0
    [shard] = (tmp_path / "unique/text/web").iterdir()
    with pytest.raises(ValueError, match="the corpus web has no text"):
        clean.main(["--input", f"web={shard}", "--output", str(tmp_path / "other")])
