"""Onion decides as a plain reference does, on random text, on real text and on cases made by hand."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.deduplication import onion
from data_prep.deduplication.onion_types import STUB, Decisions, OnionSettings
from tests.data_prep.plain_onion import plain_onion

ENGINES = [onion.engine()]


def decide(engine: onion.Engine, texts: list[str], rules: OnionSettings, *, batch: int = 1000) -> list[Decisions]:
    """Decisions over batches of so many documents."""
    scans = [engine.scan([text.encode() for text in texts[i : i + batch]], rules) for i in range(0, len(texts), batch)]
    table, ordinal, result = engine.table(), 0, []
    for scan in scans:
        result.append(Decisions.empty(scan.num_paragraphs))
        table.decide(scan, rules, ordinal, result[-1])
        ordinal += scan.num_paragraphs
    return result


def removed(engine: onion.Engine, texts: list[str], rules: OnionSettings, **options: object) -> list[bool]:
    return [bool(v) for part in decide(engine, texts, rules, **options) for v in part.verdict]  # type: ignore[arg-type]


def flat(rows: list[list[bool]]) -> list[bool]:
    return [value for row in rows for value in row]


# Few words, so that n-grams repeat; white space of all kinds, so that tokens and paragraphs are cut in odd places.
TEXT = st.lists(st.sampled_from(["a", "b", "č", "привет", "beseda-dolga"]), max_size=14).flatmap(
    lambda words: st.lists(
        st.sampled_from([" ", "\n", "\n\n", " \n \n", "\u00a0", "\u2003", "\x1c", "\r\n", "\t"]), min_size=15, max_size=15
    ).map(lambda spaces: "".join(word + space for word, space in zip(words, spaces)))
)
RULES = st.builds(
    OnionSettings,
    n=st.integers(1, 4),
    threshold=st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
    boundary=st.sampled_from(["above", "reaches"]),
    score=st.sampled_from(["covered-tokens", "ngrams"]),
    paragraphs=st.sampled_from(["line", "blank-line", "document"]),
    within_document=st.booleans(),
    smoothing=st.sampled_from(["none", "between", "onion"]),
    max_stub_tokens=st.integers(0, 5),
    min_kept_tokens=st.integers(0, 6),
)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXT, max_size=8), rules=RULES, batch=st.integers(1, 4))
def test_decisions_are_those_of_the_reference(engine: onion.Engine, texts: list[str], rules: OnionSettings, batch: int) -> None:
    assert removed(engine, texts, rules, batch=batch) == flat(plain_onion(texts, rules))


def words(start: int, count: int) -> str:
    return " ".join(f"w{i}" for i in range(start, start + count))


@pytest.mark.parametrize("engine", ENGINES)
class TestByHand:
    def test_tokens_of_the_paragraph_before_do_not_count(self, engine: onion.Engine) -> None:
        first = words(0, 12)
        second = f"x y {words(0, 8)}\n{words(8, 4)}"  # its 9-grams with words of both paragraphs are known, and end in the second
        decisions = decide(engine, [first, second], OnionSettings())[0]
        assert decisions.covered.tolist() == [0, 0, 4]

    def test_smoothing(self, engine: onion.Engine) -> None:
        seen = [words(0, 30), words(100, 30)]
        text = f"start here\n{words(0, 30)}\nbetween both\n{words(100, 30)}\nthe end"
        short = "nothing repeats here"
        for smoothing, expected in {
            "none": [False, True, False, True, False, False],
            "between": [False, True, True, True, False, False],
            "onion": [True, True, True, True, True, True],
        }.items():
            rules = OnionSettings(smoothing=smoothing, threshold=0.7)
            assert removed(engine, [*seen, text, short], rules)[2:] == expected, smoothing
        rules = OnionSettings(smoothing="between", threshold=0.7, max_stub_tokens=1)
        assert removed(engine, [*seen, text], rules)[2:] == [False, True, False, True, False]
        decisions = decide(engine, [*seen, text], OnionSettings(smoothing="between", threshold=0.7))[0]
        assert decisions.verdict.tolist()[4] == STUB

    def test_the_source_is_the_paragraph_that_brought_most(self, engine: onion.Engine) -> None:
        texts = [words(0, 12), words(100, 20), f"{words(0, 12)} {words(100, 20)}"]
        decisions = decide(engine, texts, OnionSettings(threshold=0.5))[0]
        assert (decisions.source[2], decisions.source_ngrams[2], decisions.repeated[2], decisions.possible[2]) == (1, 12, 16, 24)

    def test_many_entries_survive_growth(self, engine: onion.Engine) -> None:
        texts = [words(i * 50, 50) for i in range(400)]
        rules = OnionSettings(n=3)
        assert removed(engine, texts + texts, rules) == [False] * 400 + [True] * 400
        table = engine.table()
        scan = engine.scan([text.encode() for text in texts], rules)
        table.decide(scan, rules, 0, Decisions.empty(scan.num_paragraphs))
        assert len(table) == 400 * 48


def test_at_most_24_bytes_an_ngram() -> None:
    engine = onion.engine()
    table = engine.table()
    generator = np.random.default_rng(0)
    page = os.sysconf("SC_PAGE_SIZE")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    start, step = resident(), 200_000
    hashes = generator.integers(1, 1 << 63, 5_000_000, dtype=np.uint64) * np.uint64(2)
    values = np.zeros(len(hashes), np.uint32)
    start = resident()
    for at in range(0, len(hashes), step):
        table.first(hashes[at : at + step], values[at : at + step], 7)
        if at + step >= 1_000_000:
            assert resident() - start < 24 * len(table) + 6e6, at
    assert len(table) == len(hashes)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_labelled_near_duplicates(shared_data: Path, engine: onion.Engine) -> None:
    with gzip.open(shared_data / "dedup/near_dup_sl.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    texts = [row["text"] for row in rows]
    rules = OnionSettings(paragraphs="document", score="ngrams", boundary="reaches", within_document=False)
    decisions = decide(engine, texts, rules, batch=100)
    repeated = np.concatenate([part.repeated for part in decisions])
    possible = np.concatenate([part.possible for part in decisions])
    for row, bad, all_of_it in zip(rows, repeated.tolist(), possible.tolist()):
        if row["kept_frac"] is None:
            assert all_of_it == 0
        else:
            assert bad / all_of_it == pytest.approx(row["kept_frac"], abs=6e-5)  # the labels have four digits
    assert sum(bool(v) for part in decisions for v in part.verdict) == 190
    by_line = decide(engine, texts, OnionSettings(min_kept_tokens=9), batch=100)
    left = iter(np.concatenate([part.verdict for part in by_line]).tolist())
    kept = ["".join(line for line in text.splitlines() if line.strip() and not next(left)) for text in texts]
    assert not any(text for text, row in zip(kept, rows) if row["kind"] == "exact")
    for rules in (OnionSettings(), OnionSettings(paragraphs="blank-line", smoothing="onion")):
        assert removed(engine, texts, rules, batch=100) == flat(plain_onion(texts, rules))
