"""The page about cleaned corpora says what the runs did."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from common.artifacts import read_manifest
from data_prep import corpus_report
from data_prep.clean import clean
from data_prep.cleaning.corpus_figures import figures_of, kept_by_one
from data_prep.cleaning.filter_settings import read_filters
from data_prep.cleaning.shard import CleanRules
from data_prep.dedup import dedup
from data_prep.deduplication.onion_types import OnionSettings
from data_prep.reading.corpora import Corpus, corpora_from_table
from tests.refusals import refused

Write = Callable[[str, str | bytes], Path]
NEWS = "Predsednik je včeraj v Ljubljani izjavil, da bo vlada prihodnji teden obravnavala predlog zakona o javnih podjetjih."
ENGLISH = "The weather is nice today and the children are playing in the garden behind the house, where apples grow."
LINKS = "\n".join(f"https://www.example.si/{i}" for i in range(40))


@pytest.fixture
def runs(tmp_path: Path, write: Write) -> Path:
    """Two corpora cleaned with and without filters, and deduplicated."""
    texts = [
        ("https://www.rtvslo.si/a", f"{NEWS} <script>alert(1)</script>Ena."),
        ("https://rtvslo.si/b", f"{NEWS}\nSpletna stran uporablja piškotke. Z nadaljnjo uporabo se strinjate."),
        ("https://delo.si/c", ENGLISH),
        ("https://spam.si/d", LINKS),
    ]
    news = write("n.jsonl", "".join(json.dumps({"id": f"n{i}", "url": url, "text": text}) + "\n" for i, (url, text) in enumerate(texts)))
    book = write("b.jsonl", json.dumps({"id": "b0", "text": f"{NEWS[::-1]}\n{NEWS}"}) + "\n")
    corpora = [Corpus("news", (news,), language="sl"), Corpus("book", (book,), language="sl")]
    clean(corpora, tmp_path / "filtered", rules=CleanRules(languages=("sl",), filters=read_filters("standard")))
    clean(corpora, tmp_path / "plain")
    dedup(corpora_from_table(tmp_path / "filtered/corpora.yaml"), tmp_path / "unique", settings=OnionSettings(n=3))
    return tmp_path


def test_the_page(runs: Path) -> None:
    arguments = ["--clean", str(runs / "filtered"), "--dedup", str(runs / "unique"), "--compare", str(runs / "plain")]
    assert corpus_report.main([*arguments, "--output", str(runs / "page")]) == 0
    page = (runs / "page/report.html").read_text()
    text = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert "news sl 4 2 2 2 " in text and "book sl 1 1 0 0 " in text
    assert "Compared with plain corpus both keep only this run only plain news 2 0 2 book 1 0 0" in text
    assert "news: removed, language 2 0 +2 news: changed, lines: cookie notices 1 0 +1" in text
    assert "lines: cookie notices 1" in text and "Sites, 1 of 1 texts rtvslo.si 2" in text and "up to 30 words 2" in text
    assert "Languages of removed texts texts en" in text
    assert "book news near-duplicate 1 17" in text and "words of a text 17.5 34" in text
    assert "Spletna stran uporablja piškotke. Z nadaljnjo uporabo se strinjate." in text  # a sample
    assert "http-equiv" not in page and "<script" not in page and not re.search(r'(src|href)="http', page)
    manifest = read_manifest(runs / "page")
    assert manifest is not None and len(manifest.inputs) == 3
    again = [*arguments, "--output", str(runs / "again")]
    assert corpus_report.main(again) == 0 and (runs / "again/report.html").read_text() == page


def test_figures(runs: Path) -> None:
    news, book = figures_of(runs / "filtered")
    assert news.sites == {"rtvslo.si": 2} and news.lengths == {1: 2} and book.lengths == {2: 1}
    assert news.quality["words"] == 17.5 and set(news.other_languages) >= {"en"}
    assert kept_by_one(runs / "filtered", runs / "plain") == {"news": (2, 0, 2), "book": (1, 0, 0)}


def test_a_text_without_a_paragraph_is_not_called_norwegian(runs: Path, write: Write) -> None:
    path = write("e.jsonl", json.dumps({"id": "e0", "text": ENGLISH}) + "\n")
    clean([Corpus("english", (path,))], runs / "paragraphs", rules=CleanRules(languages=("sl",), language_unit="paragraph"))
    (english,) = figures_of(runs / "paragraphs")
    assert english.other_languages == {"no paragraph": 1}


def test_a_run_over_other_texts_is_not_compared(runs: Path, write: Write) -> None:
    path = write("o.jsonl", json.dumps({"id": "o0", "text": ENGLISH}) + "\n")
    clean([Corpus("news", (path,))], runs / "other")
    with pytest.raises(ValueError) as error:
        corpus_report.main(["--clean", str(runs / "filtered"), "--compare", str(runs / "other"), "--output", str(runs / "page")])
    assert str(error.value).startswith(f"--compare {runs / 'other'} is a run over other texts, no file and no id of which this run has;")
    assert not (runs / "page").exists()


def test_duplicates_of_other_corpora_are_refused(runs: Path, write: Write) -> None:
    dedup([Corpus("web", (write("w.jsonl", json.dumps({"id": "w0", "text": ENGLISH}) + "\n"),))], runs / "other")
    with refused(f"--dedup {runs / 'other'} is of the corpora web, none of which --clean has (book, news); give one of the same"):
        corpus_report.main(["--clean", str(runs / "filtered"), "--dedup", str(runs / "other"), "--output", str(runs / "page")])
    assert not (runs / "page").exists()


def test_what_is_no_output_of_clean_is_refused(runs: Path) -> None:
    for directory, found in ((runs / "unique", "an output of data_prep.dedup"), (runs / "nowhere", "no output of a command")):
        with pytest.raises(ValueError) as error:
            corpus_report.main(["--clean", str(directory), "--output", str(runs / "page")])
        assert str(error.value) == f"{directory} is {found}; expected one of data_prep.clean" and not (runs / "page").exists()


@pytest.mark.parametrize("change", ["a corpus of another name", "no removed texts", "no samples", "samples that are not valid JSON"])
def test_an_output_that_was_changed_by_hand_is_told_from_a_defect(runs: Path, change: str) -> None:
    cleaned = runs / "filtered"
    if change == "a corpus of another name":
        table = cleaned / "corpora.yaml"
        table.write_text(table.read_text().replace("name: news", "name: press"))
    elif change == "no removed texts":
        shutil.rmtree(cleaned / "removed")
    elif change == "no samples":
        shutil.rmtree(cleaned / "samples")
    else:
        (cleaned / "samples" / "news.jsonl").write_text("{nothing\n")
    with pytest.raises(
        ValueError, match=rf"^{cleaned} was changed after data_prep.clean wrote it: .*; undo the changes there, or run it again$"
    ):
        corpus_report.main(["--clean", str(cleaned), "--output", str(runs / "page")])
    assert not (runs / "page").exists()
