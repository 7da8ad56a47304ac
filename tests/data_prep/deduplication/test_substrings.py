"""Repeated spans: those of a plain search, each cut but where it stands first, and listed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from common.artifacts import check_files, read_manifest
from data_prep.dedup import main
from data_prep.deduplication.substrings import Shard, cut_substrings, without_spans
from tests.data_prep.packed import outputs, refusal, rows
from tests.data_prep.test_dedup import jsonl

Write = Callable[[str, str | bytes], Path]


def plainly(texts: list[str], length: int) -> list[list[bool]]:
    """Which tokens go: those in a window of so many tokens that is the same as one that begins earlier."""
    seen: set[tuple[str, ...]] = set()
    gone = []
    for text in texts:
        tokens = text.split()
        marks = [False] * len(tokens)
        for at in range(len(tokens) - length + 1):
            window = tuple(tokens[at : at + length])
            if window in seen:
                marks[at : at + length] = [True] * length
            seen.add(window)
        gone.append(marks)
    return gone


def repeating_texts(number: int, seed: int) -> list[str]:
    """Texts of stretches of a common stock and of words of their own; some of one word again and again."""
    generator = random.Random(seed)
    stock = [f"s{generator.randrange(300)}" for _ in range(400)]
    texts = []
    for _ in range(number):
        words: list[str] = []
        for _ in range(generator.randrange(0, 5)):
            start = generator.randrange(380)
            words += stock[start : start + generator.randrange(4, 40)]
            words += [f"o{generator.randrange(10**6)}" for _ in range(generator.randrange(0, 12))]
            words += ["la"] * generator.choice([0, 0, 0, 25])
        texts.append("".join(word + generator.choice([" ", " ", " ", "\n", "\n\n"]) for word in words))
    return texts


@pytest.mark.parametrize("length", [8, 13, 30])
@pytest.mark.parametrize("seed", range(3))
def test_what_goes_is_what_a_plain_search_finds(tmp_path: Path, length: int, seed: int) -> None:
    texts = repeating_texts(60, seed)
    shards = []
    for number, part in enumerate((texts[:25], texts[25:])):
        (tmp_path / f"{number}.jsonl").write_text(jsonl(part, f"p{number}_"))
        shards.append(Shard(tmp_path / f"{number}.jsonl", tmp_path / f"removed/{number}.jsonl", "c", "text"))
    found = cut_substrings(shards, length, 0, tmp_path, workers=1)
    gone = plainly(texts, length)
    left = {}
    for number, (text, marks) in enumerate(zip(texts, gone)):
        name = f"p0_{number}" if number < 25 else f"p1_{number - 25}"
        left[name] = [token for token, mark in zip(text.split(), marks) if not mark]
    kept = {row["id"]: row["text"].split() for path in (tmp_path / "0.jsonl", tmp_path / "1.jsonl") for row in rows(path)}
    assert kept == {name: tokens for name, tokens in left.items() if tokens or not texts[number_of(name)].split()}
    assert found["tokens_removed"] == sum(map(sum, gone)) > 100
    removed = rows(tmp_path / "removed")
    assert sum(row["tokens"][1] - row["tokens"][0] + 1 for row in removed) == found["tokens_removed"]
    for row in removed:  # each begins with a window that the named document has, or had
        tokens = texts[number_of(row["id"])].split()[row["tokens"][0] - 1 :][:length]
        source = texts[row["repeats"]["document"] - 1 + (25 if row["repeats"]["file"] == "1.jsonl" else 0)]
        assert f" {' '.join(tokens)} " in f" {' '.join(source.split())} "
    assert not (tmp_path / "substrings").exists()


def number_of(name: str) -> int:
    part, number = name[1:].split("_")
    return int(number) + 25 * int(part)


def test_white_space_around_what_is_cut() -> None:
    assert without_spans("a b c d e", [(1, 2)]) == ("a d e", 3)
    assert without_spans("a\nb c\n\nd e\n", [(1, 2)]) == ("a\n\nd e\n", 3)
    assert without_spans("a b\nc d", [(1, 1)]) == ("a\nc d", 3)
    assert without_spans(" a b c", [(0, 1)]) == ("c", 1)
    assert without_spans("a b c\n", [(1, 2)]) == ("a", 1)
    assert without_spans("a b c d e f", [(0, 1), (3, 3)]) == ("c e f", 3)
    assert without_spans("a b", [(0, 1)]) == ("", 0)


COMMON = " ".join(f"w{i}" for i in range(60))


def test_a_span_in_the_middle_of_a_line(tmp_path: Path, write: Write) -> None:
    first, own = write("a.jsonl", jsonl([f"prvo {COMMON} konec"], "a")), " ".join(f"x{i}" for i in range(70))
    second = write("b.jsonl", jsonl([f"{own} {COMMON} {own[:40]}", f"kratko {COMMON}", "drugo"], "b"))
    options = ["--substrings", "50", "--workers", "1", "--output"]
    assert main(["--input", f"a={first}", f"b={second}", *options, str(tmp_path / "o")]) == 0
    assert [row["text"] for row in rows(tmp_path / "o/text")] == [f"prvo {COMMON} konec", f"{own} {own[:40]}", "drugo"]
    (cut,) = rows(tmp_path / "o/removed_spans")
    assert cut["tokens"] == [71, 130] and cut["repeats"] == {"corpus": "a", "file": "00000_a.jsonl", "document": 1}
    manifest = read_manifest(tmp_path / "o")
    assert manifest is not None
    facts = manifest.facts["substrings"]
    assert (facts["num_tokens"], facts["spans"], facts["tokens_removed"], facts["documents_shortened"]) == (50, 1, 60, 1)
    check_files(tmp_path / "o", manifest)
    assert "Repeated spans of 50 tokens" in (tmp_path / "o/report.md").read_text()
    assert (
        main(
            [
                "--input",
                f"a={first}",
                f"b={second}",
                "--substrings",
                "50",
                "--workers",
                "3",
                "--passes",
                "2",
                "--output",
                str(tmp_path / "p"),
            ]
        )
        == 0
    )
    texts = {name: content for name, content in outputs(tmp_path / "o").items() if name.endswith(".jsonl")}
    assert texts == {name: content for name, content in outputs(tmp_path / "p").items() if name.endswith(".jsonl")}


@pytest.mark.parametrize("length", ["7", "10001", "-1"])
def test_a_length_that_cannot_be(tmp_path: Path, write: Write, length: str) -> None:
    path = write("a.jsonl", jsonl([COMMON]))
    assert (
        refusal(main, ["--input", f"a={path}", "--substrings", length, "--output", str(tmp_path / "o")])
        == f"--substrings is {length}; expected 8 to 10,000 tokens, as shorter spans are in any two texts"
    )
    assert not (tmp_path / "o").exists() and not (tmp_path / ".o.unfinished").exists()
