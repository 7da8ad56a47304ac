"""Repeated spans: those of a plain search, each cut but where it stands first, and listed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

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


@pytest.mark.parametrize("length", [8, 9, 13])
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
    kept = {row["id"]: row["text"].split() for path in (tmp_path / "0.jsonl", tmp_path / "1.jsonl") for row in rows_of(path)}
    assert kept == {name: tokens for name, tokens in left.items() if tokens or not texts[number_of(name)].split()}
    assert found["tokens_removed"] == sum(map(sum, gone)) > 100
    removed = rows(tmp_path / "removed")
    assert sum(row["tokens"][1] - row["tokens"][0] + 1 for row in removed) == found["tokens_removed"]
    for row in removed:  # each begins with a window that the named document has, or had
        tokens = texts[number_of(row["id"])].split()[row["tokens"][0] - 1 :][:length]
        source = texts[row["repeats"]["document"] - 1 + (25 if row["repeats"]["file"] == "1.jsonl" else 0)]
        assert f" {' '.join(tokens)} " in f" {' '.join(source.split())} "
    assert not (tmp_path / "substrings").exists()


def suffix_array(symbols: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the suffixes of a sequence begin, in their order: ranks by ever longer beginnings."""
    rank, length = np.unique(symbols, return_inverse=True)[1], 1
    while True:
        behind = np.append(rank[length:] + 1, np.zeros(min(length, len(rank)), np.int64))[: len(rank)]
        order = np.lexsort((behind, rank))
        steps = (np.diff(rank[order]) != 0) | (np.diff(behind[order]) != 0)
        rank = np.empty_like(rank)
        rank[order] = np.append(0, np.cumsum(steps))
        if rank.max() == len(rank) - 1:
            return order
        length *= 2


def by_suffix_array(texts: list[str], length: int) -> list[list[bool]]:
    """Which tokens lie in a maximal span of so many tokens or more that begins elsewhere before: Lee et al. (2022, section 4.2), the first one stays."""
    words = {word: number for number, word in enumerate(sorted({word for text in texts for word in text.split()}))}
    symbols: list[int] = []
    for number, text in enumerate(texts):
        symbols += [*map(words.__getitem__, text.split()), len(words) + number]  # what ends a document is nowhere else
    order = suffix_array(np.array(symbols)).tolist()
    longest = [0] * len(symbols)  # of each place what it shares with an earlier one
    for direction in (order, order[::-1]):
        waiting: list[tuple[int, int]] = []  # earlier suffixes and what they share with the one at hand
        for before, place in zip([None, *direction], direction):
            shared = 0
            if before is not None:
                while symbols[before + shared] == symbols[place + shared] and max(before, place) + shared + 1 < len(symbols):
                    shared += 1
            waiting = [(other, min(common, shared)) for other, common in waiting if min(common, shared)]
            if before is not None and shared:
                waiting.append((before, shared))
            longest[place] = max([longest[place], *(common for other, common in waiting if other < place)])
    gone = [False] * len(symbols)
    for place, shared in enumerate(longest):
        if shared >= length:
            gone[place : place + shared] = [True] * shared
    marks, at = [], 0
    for text in texts:
        marks.append(gone[at : at + len(text.split())])
        at += len(text.split()) + 1
    return marks


@pytest.mark.some(4)
@pytest.mark.parametrize("length", [8, 9, 13, 30, 70, 200])
@pytest.mark.parametrize("seed", range(2))
def test_windows_are_the_spans_of_a_suffix_array(tmp_path: Path, length: int, seed: int) -> None:
    generator = random.Random(seed)
    texts = repeating_texts(40, seed + 10)
    texts += [
        f"x{generator.randrange(9)} {texts[3]} {texts[5]} {texts[3]}",
        " ".join(texts[:8]),
        " ".join(texts[2:7]) + " konec",
        "la " * 300,
    ]
    expected = by_suffix_array(texts, length)
    assert expected == plainly(texts, length) and sum(map(sum, expected)) > 0
    path = tmp_path / "0.jsonl"
    path.write_text(jsonl(texts))
    found = cut_substrings([Shard(path, tmp_path / "removed/0.jsonl", "c", "text")], length, 0, tmp_path, workers=1)
    assert found["tokens_removed"] == sum(map(sum, expected))
    kept = [[token for token, mark in zip(text.split(), marks) if not mark] for text, marks in zip(texts, expected)]
    assert [row["text"].split() for row in rows_of(path)] == [tokens for text, tokens in zip(texts, kept) if tokens or not text.split()]


def rows_of(path: Path) -> list[dict[str, str]]:
    import json

    return [json.loads(line) for line in path.read_text().splitlines()]


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
