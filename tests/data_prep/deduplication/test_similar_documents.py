"""Near-duplicate documents: in C as in plain Python, true similarities, who stays, and what is found of a labelled set."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import progress
from common.artifacts import read_manifest
from data_prep.dedup import main
from data_prep.deduplication import similar_documents
from data_prep.deduplication.similar_documents import (
    Similar,
    SimilarSettings,
    Sketcher,
    bands_and_rows,
    find_similar,
    probability,
    sketch_shard,
)
from tests.data_prep.deduplication import similar_plain
from tests.data_prep.packed import outputs, rows
from tests.data_prep.test_dedup import jsonl


def similar(tmp_path: Path, texts: list[str], rules: SimilarSettings) -> Similar:
    """In two shards, so that numbers run over both."""
    tmp_path.mkdir(exist_ok=True)
    half = len(texts) // 2
    for shard, part in enumerate((texts[:half], texts[half:])):
        sketch_shard([[text.encode() for text in part]], rules, tmp_path, shard)
    return find_similar(tmp_path, 2, rules)


def ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def edited_texts(number: int, seed: int = 0) -> list[str]:
    """Texts of 60 to 200 words, each with copies of which more and more words are other ones."""
    generator = random.Random(seed)
    texts = []
    for _ in range(number):
        words = [f"w{generator.randrange(5000)}" for _ in range(generator.randrange(60, 200))]
        for edits in (0, 1, 4, 12, 40):
            copy = list(words)
            for _ in range(edits):
                copy[generator.randrange(len(copy))] = f"x{generator.randrange(10**6)}"
            texts.append(" ".join(copy))
    generator.shuffle(texts)
    return texts


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.one_of(st.text(max_size=60), st.text(alphabet="aA čČ.,-\n中ภ\u030c\u00adß½'", max_size=60)), min_size=1, max_size=5),
    n=st.integers(1, 4),
)
def test_c_and_python_make_the_same_sketches(texts: list[str], n: int) -> None:
    data = [text.encode("utf-8", "ignore") for text in texts]
    rules = SimilarSettings(n=n, bands=4, rows=3)
    sketcher = Sketcher(rules)
    found = sketcher.sketch(data)
    grams, words = similar_plain.scan([text.decode() for text in data], similar_documents._FOLD, n)
    keys = sketcher._keys(similar_plain.minima(grams, sketcher._a, sketcher._b))
    sizes = np.array([len(own) for own in grams], np.int64)
    for one, other in zip(found, (np.concatenate([np.zeros(0, np.uint32), *grams]), sizes, np.array(words, np.int64), keys)):
        assert one.dtype == other.dtype and np.array_equal(one, other)


@pytest.mark.parametrize(
    "rules", [SimilarSettings(), SimilarSettings(0.5, measure="containment", keep="first"), SimilarSettings(unchecked=True)]
)
def test_c_and_python_decide_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: SimilarSettings) -> None:
    texts = edited_texts(40)
    found = similar(tmp_path / "c", texts, rules)
    monkeypatch.setattr(similar_documents, "_decide", similar_plain.decide_candidates)
    plain = similar(tmp_path / "python", texts, rules)
    assert 60 < len(found.documents) < 160
    for name in ("documents", "like", "shares", "num_compared"):
        assert np.array_equal(getattr(found, name), getattr(plain, name)), name


def test_shares_are_true_and_every_other_pair_that_stays_is_below_the_target(tmp_path: Path) -> None:
    texts = edited_texts(40)
    found = similar(tmp_path, texts, SimilarSettings(0.6, n=3))
    sets = [ngrams(text, 3) for text in texts]

    def jaccard(a: int, b: int) -> float:
        return len(sets[a] & sets[b]) / len(sets[a] | sets[b])

    for document, like, share in zip(found.documents, found.like, found.shares):
        assert share == pytest.approx(jaccard(document, like), abs=1e-12) and share >= 0.6
        assert len(texts[like].split()) >= len(texts[document].split()) and like not in found.documents
    stay = sorted(set(range(len(texts))) - set(found.documents.tolist()))
    missed = [(a, b) for i, a in enumerate(stay) for b in stay[:i] if jaccard(a, b) >= 0.6]
    assert len(missed) <= 4  # of some 120 pairs each is found with a probability of 0.98 or more


def test_the_curve_is_what_is_found(tmp_path: Path) -> None:
    # Pairs of one similarity, with rows and bands where a third of them agree in a band.
    generator = random.Random(0)
    pairs = []
    for number in range(400):
        common = [f"{number}c{i}" for i in range(120)]
        own = [[f"{number}{side}{i}" for i in range(40)] for side in "ab"]
        pairs += [" ".join(common + own[0]), " ".join(common + own[1])]
    generator.shuffle(pairs)
    rules = SimilarSettings(0.5, n=1, bands=4, rows=4)
    expected = probability(120 / 200, 4, 4)
    assert 0.3 < expected < 0.5
    assert len(similar(tmp_path, pairs, rules).documents) / 400 == pytest.approx(expected, abs=3 * (expected * (1 - expected) / 400) ** 0.5)
    for share in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        bands, number_rows = bands_and_rows(share)
        assert bands * number_rows <= 256 and probability(share, bands, number_rows) >= 0.98
    assert bands_and_rows(0.6) == (51, 5)


def test_recall_chooses_bands_and_rows() -> None:
    for recall in (0.5, 0.9, 0.98, 0.999):
        bands, number_rows = SimilarSettings(0.7, recall=recall).curve
        assert probability(0.7, bands, number_rows) >= recall > probability(0.7, 256 // (number_rows + 1), number_rows + 1)
    assert SimilarSettings(0.7, recall=0.5).curve[1] > SimilarSettings(0.7, recall=0.999).curve[1]
    for recall in (0, 1):
        with pytest.raises(ValueError, match=f"^--similar-recall is {recall}; expected a share above 0 and below 1, such as 0.98$"):
            SimilarSettings(recall=recall)


@pytest.mark.parametrize("edits", [0, 1, 5, 10, 20, 60])
@pytest.mark.parametrize("rules", [SimilarSettings(0.4), SimilarSettings(0.2, n=3), SimilarSettings(0.6, measure="containment", n=5)])
def test_what_is_expected_of_copies_with_edits(edits: int, rules: SimilarSettings) -> None:
    words = [f"w{i}" for i in range(200)]
    copy = [f"x{i}" if i % 9 == 8 and i < 9 * edits else word for i, word in enumerate(words)]
    if edits > 20:  # more than fit in beside each other
        assert rules.finds(200, edits) == 0
        return
    a, b = ngrams(" ".join(words), rules.n), ngrams(" ".join(copy), rules.n)
    similarity = len(a & b) / len(a | b)
    asked = len(a & b) / len(a) if rules.measure == "containment" else similarity
    assert rules.finds(200, edits) == pytest.approx(probability(similarity, *rules.curve) if asked >= rules.share else 0)


def test_case_accents_and_punctuation_do_not_count(tmp_path: Path) -> None:
    text = "Čez goro, čez gozd in čez reko gre pot do doma na kraju vasi."
    forms = [
        text,
        text.upper(),
        text.replace("č", "c\u030c").replace("Č", "C\u030c"),
        "\u2026 ".join(text.split(" ")),
        text.replace(",", ""),
    ]
    assert similar(tmp_path, forms, SimilarSettings(1.0)).documents.tolist() == [1, 2, 3, 4]


def test_letters_without_spaces_between_words_are_words(tmp_path: Path) -> None:
    text = "今天天气很好我们一起去公园散步吧然后回家吃饭"
    assert similar(tmp_path, [text, text[:-1] + "菜", "完全不同的一句话没有相同的地方"], SimilarSettings(0.8)).documents.tolist() == [1]


def test_short_texts_have_nothing_to_compare(tmp_path: Path) -> None:
    assert similar(tmp_path, ["dve besedi", "dve besedi", "", "druga stvar"], SimilarSettings()).documents.tolist() == []
    assert similar(tmp_path / "none", [], SimilarSettings()).documents.tolist() == []


def test_the_longest_stays_and_likeness_is_not_handed_on(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(200)]
    short, middle, long = (" ".join(words[:length]) for length in (100, 140, 200))  # 0.71 and 0.70 next to each other, 0.49 at the ends
    found = similar(tmp_path / "longest", [short, middle, long, short], SimilarSettings(0.65))
    # The middle goes for the long one; the short ones are like each other and like the middle, which does not stay.
    assert (found.documents.tolist(), found.like.tolist()) == ([1, 3], [2, 0])
    found = similar(tmp_path / "first", [short, middle, long, short], SimilarSettings(0.65, keep="first"))
    assert (found.documents.tolist(), found.like.tolist()) == ([1, 3], [0, 0])


def cut_copies(words: list[str], other: list[str]) -> dict[str, list[str]]:
    """Shorter copies of a text, by kind."""
    return {
        "the beginning": words[: int(0.8 * len(words))],
        "the end": words[int(0.2 * len(words)) :],
        "words left out": [word for number, word in enumerate(words) if number % 40 != 39],
        "cut and edited": [other[0] if number % 30 == 29 else word for number, word in enumerate(words[: int(0.9 * len(words))])],
        "cut, in capitals": [word.upper() for word in words[: int(0.7 * len(words))]],
    }


@pytest.mark.parametrize("kind", list(cut_copies(["a"], ["b"])))
def test_no_short_copy_wins_over_its_original(tmp_path: Path, kind: str) -> None:
    generator = random.Random(3)
    originals = [[f"w{generator.randrange(10**6)}" for _ in range(generator.randrange(100, 300))] for _ in range(30)]
    copies = [cut_copies(words, originals[number - 1])[kind] for number, words in enumerate(originals)]
    texts = [" ".join(words) for words in [*copies, *originals]]  # the copies come first
    found = similar(tmp_path / "longest", texts, SimilarSettings(keep="longest"))
    assert (found.documents.tolist(), found.like.tolist()) == (list(range(30)), list(range(30, 60)))
    assert similar(tmp_path / "first", texts, SimilarSettings(keep="first")).documents.tolist() == list(range(30, 60))


def test_containment(tmp_path: Path) -> None:
    long = [f"w{i}" for i in range(100)]
    texts = [" ".join(long), " ".join(long[:60])]
    assert similar(tmp_path / "jaccard", texts, SimilarSettings(0.9, bands=64, rows=4)).documents.tolist() == []
    found = similar(tmp_path / "containment", texts, SimilarSettings(0.9, bands=64, rows=4, measure="containment"))
    assert (found.documents.tolist(), found.shares.tolist()) == ([1], [1.0])


@pytest.fixture
def texts_in_files(tmp_path: Path) -> list[str]:
    texts = edited_texts(30)
    paths = []
    for part in range(3):
        paths.append(tmp_path / f"{part}.jsonl")
        paths[-1].write_text(jsonl(texts[part * 50 : part * 50 + 50], f"p{part}_"))
    return [f"a={paths[0]}", f"b={paths[1]}", f"c={paths[2]}"]


def test_the_same_for_any_number_of_processes_and_passes(tmp_path: Path, texts_in_files: list[str]) -> None:
    made = []
    for workers, passes in ((1, 1), (3, 1), (2, 2)):
        made.append(tmp_path / f"{workers}_{passes}")
        options = ["--similar-documents", "--workers", str(workers), "--passes", str(passes)]
        assert main(["--input", *texts_in_files, *options, "--output", str(made[-1])]) == 0
    assert outputs(made[0]) == outputs(made[1]) == outputs(made[2])
    manifest = read_manifest(made[0])
    assert manifest is not None and not (made[0] / "scratch").exists()
    facts = manifest.facts["similar_documents"]
    assert (facts["share"], facts["n"], facts["bands"], facts["rows"], facts["keep"]) == (0.5, 4, 64, 4, "longest")
    assert facts["probability_to_be_compared"]["0.6"] == round(probability(0.6, 64, 4), 4)
    assert facts["expected_of_200_words_with_edits"]["10"] == round(probability(157 / 237, 64, 4), 4)
    removed = [row for row in rows(made[0] / "removed") if row["reason"] == "similar-document"]
    assert facts["num_compared"] >= len(removed) > 60
    kept = {row["id"] for row in rows(made[0] / "text")}
    assert all(f"p{'abc'.index(row['repeats']['corpus'])}_{row['repeats']['line'] - 1}" in kept for row in removed)


@pytest.fixture
def labelled(shared_data: Path) -> tuple[Path, list[dict[str, Any]]]:
    path = shared_data / "dedup/near_dup_sl.jsonl.gz"
    return path, [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_what_is_found_of_the_labelled_set(labelled: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    _, documents = labelled
    found = similar(tmp_path, [row["text"] for row in documents], SimilarSettings(keep="first"))
    by_edits = Counter(documents[i]["words_replaced"] for i in found.documents if documents[i]["kind"] == "edited")
    kinds = Counter(documents[i]["kind"] for i in found.documents)
    assert [by_edits[edits] for edits in (1, 2, 3, 5)] == [20, 20, 20, 20] and by_edits[10] >= 18
    assert (kinds["exact"], kinds["form"], kinds["original"], kinds["boilerplate"]) == (120, 60, 0, 0)


def test_no_stub_of_an_exact_copy_is_left(labelled: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """Line by line a copy leaves the lines that are too short to be compared; as a document of their own they would be in the corpus."""
    path, rows_of_set = labelled
    documents = {row["id"]: row for row in rows_of_set}
    assert main(["--input", f"c={path}", "--workers", "1", "--output", str(tmp_path / "o")]) == 0
    assert [row["id"] for row in rows(tmp_path / "o/text") if documents[row["id"]]["kind"] == "exact"] == []


def test_a_log_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_POLL_SECONDS", 0.0001)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": str(number), "text": text}) + "\n" for number, text in enumerate(edited_texts(200))))
    arguments = ["--input", f"a={path}", "--similar-documents", "--workers", "1", "--output", str(tmp_path / "out")]
    assert main(arguments) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("near-duplicate documents")]
    stages = {
        stage: [line for line in lines if line.startswith(f"near-duplicate documents, {stage}: ")]
        for stage in ("reading", "by band", "clustering")
    }
    assert all(stages.values()), lines
    assert re.search(r"(\d+) of \1 bands \(100 %\)", stages["by band"][-1]) and "(100 %)" in stages["clustering"][-1]
