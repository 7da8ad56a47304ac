"""What is looked at for nothing is looked at no more: never another decision than by all steps on each text alone, on ordinary and on hostile text."""

from __future__ import annotations

import gzip
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.clean import main
from data_prep.cleaning import mojibake
from data_prep.cleaning.code_points import ADDRESS, NUMBER
from data_prep.cleaning.document_filter import DocumentFilter
from data_prep.cleaning.document_rules import MEASURES, Texts, Threshold, ngrams_of, refusals
from data_prep.cleaning.filter_settings import read_filters, settings_for
from data_prep.cleaning.line_rules import line_hashes
from data_prep.cleaning.personal_data import Kind, masked
from data_prep.cleaning.samples import Samples
from data_prep.cleaning.shard import CleanRules
from data_prep.cleaning.text_measures import Measurer
from data_prep.reading import blocks

NEWS = "Predsednik je včeraj v Ljubljani izjavil, da bo vlada prihodnji teden obravnavala predlog zakona o javnih podjetjih."
# Upper and lower, letters whose small ones are none, longer or by their place; numbers of all kinds; white space and ends of lines of all kinds; marks.
PIECES = [
    "Domov", "O nas", "KONTAKT", "preberi več", "Članek 7", "12", "3. člen", "ſ", "İ", "ΟΔΟΣ", "ΣΑ", "x²", "٣", "Ⱥ", "Ω", "漢字", "𝔘𐐀", "e\u0301", "\0", "\ud7ff",
    " ", "  ", "\t", "\u00a0", "\u3000", "\n", "\n\n", "\r\n", "\r", "\x0b", "\x1c", "\x85", "\u2028", " | ", "|", " » ", "»tako«", " • ", " · ", "<", "</div>", "<b", "<a href=",
    "<br />", "<file>", "&amp;", "&& b", "&#3;", "cookie", "piškotke", "privacy policy", "we use cookies", "javascript", "please enable", "lorem ipsum dolor",
    "a@b.si", "+386 1 123 45 67", "Ã©", "ÄŤ", "Ð¿Ñ€Ð¸", "è…", "rojenÃ", "\ufffd", "{", "...", NEWS, NEWS.lower(), "word " * 12, "dolga" * 900,
]  # fmt: skip
FILTERS = {name: read_filters(name) for name in ("none", "standard", "web")}
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
SIGNS = "".join(sorted(mojibake.LEADS | mojibake.LONG_LEADS | mojibake.FOLLOWERS)) + "aA .бžğ漢é😀\n"
EVERYTHING = (1 << 32) - 1


@given(st.one_of(TEXTS, st.text(SIGNS, max_size=12)), st.sampled_from(sorted(FILTERS)))
@example("a" + "Ñ" * 1500, "standard")
@example("Ð¿Ñ€Ð¸Ð²ÐµÑ‚ слова", "standard")
@example("Domov | O nas\u00a0| KONTAKT\n3. člen", "web")
@example("EMŠO 010\u200b10065\u200b00006", "standard")  # no number before it is repaired
@settings(max_examples=300, deadline=None)
def test_steps_that_are_left_out_would_change_nothing(text: str, name: str) -> None:
    rules = DocumentFilter(FILTERS[name], frozenset(line_hashes(["o nas", "3. člen", "domov"])))
    done = lambda noise: rules.repair(text, noise, CleanRules().steps(), lambda *_: None, lambda *_: None)  # noqa: E731
    assert done(rules.noise(text.encode())[0]) == done(EVERYTHING)


LIMIT = st.sampled_from([None, 0.0, 0.1, 0.3, 0.6, 1.0, 5.0])
UNLESS = st.builds(Threshold, st.just("unless"), st.sampled_from(list(MEASURES)), LIMIT, LIMIT)
RULES = st.builds(
    Threshold,
    st.sampled_from("abcd"),
    st.sampled_from(list(MEASURES)),
    LIMIT,
    LIMIT,
    st.sampled_from([0, 12]),
    st.sampled_from([0, 3]),
    st.none() | UNLESS,
)
WORDS = st.lists(
    st.sampled_from(["a ", "b ", "c ", "d ", "je ", "Ena. ", "dva\n", "• ", "\n\n", "… ", "Konec! ", "# ", "{ ", "koÄer "]), max_size=100
)


def refused_alone(text: str, rules: list[Threshold]) -> tuple[str, str] | None:
    """The first rule that refuses a text, by the numbers of that text alone and all n-grams."""
    found = Measurer(["je"]).measure(text.encode())
    values = {**found._asdict(), "ended_lines": found.terminal_lines - found.ellipsis_lines}
    values["wrong_places"] = mojibake.leftovers(text) / max(found.words, 1)

    def beyond(rule: Threshold) -> bool:
        value = values[rule.measure]
        return (rule.max is not None and value > rule.max) or (rule.min is not None and value < rule.min)

    for rule in rules:
        if beyond(rule) and found.words >= rule.from_words and found.lines >= rule.from_lines and (not rule.unless or beyond(rule.unless)):
            return rule.name, f"{rule.measure} {values[rule.measure]:.4g}"
    return None


@given(st.lists(WORDS.map("".join), min_size=1, max_size=5), st.lists(RULES, max_size=4))
@settings(max_examples=200, deadline=None)
def test_rules_of_many_texts_are_those_of_each(texts: list[str], rules: list[Threshold]) -> None:
    found = refusals(rules, Texts(texts, Measurer(["je"]), ngrams_of(rules)))
    assert found == [refused_alone(text, rules) for text in texts]


def test_a_threshold_is_not_beyond_itself() -> None:
    text = "ena dva tri štiri pet šest " * 30 + NEWS
    for name in ("words", "top_2_gram", "top_4_gram", "duplicate_5_gram", "duplicate_10_gram"):
        value = float(Texts([text], Measurer())[name][0])
        for limit, stays in ((value, True), (np.nextafter(value, 0), False), (np.nextafter(value, 1e9), True)):
            rule = Threshold("x", name, max=limit)
            assert (refusals([rule], Texts([text], Measurer(), ngrams_of([rule]))) == [None]) is stays, (name, limit)


PERSONAL = settings_for(FILTERS["standard"], None).personal_data
NUMBERS = [
    "MT14AAAABBBBCCCCDDDD", "rssmra85t10a562s", "RSSMRAURTMLARSNL", "(041)- 123-456", "SI56191000000123438", "SI56 1910 0000 0123 438",
    "SI56\u00a01910\u00a00000\u00a00123\u00a0438", "4111 1111 1111 1111", "4111-1111-1111-1112", "0101006500006",
    "RSSMRA85T10A562S", "33392005961", "8.8.4.4", "192.168.0.1", "2.7.13.1024", "+386 1 234 56 78", "00386 41 123-456", "+386 (0)1 234/56", "01/234 56 78", "(01) 234 56 78",
    "01. 02. 2003", "12 34 567", "a.b@c.si", "@ime", "č@š.si", "x@y.z", "OIB: ", "oib", "tel. ", "тел. ", "cell", " ", "\u00a0", "\n", ".", ",", "-", "/", "(", ")", "+", "0", "ž", "_", "٣",
    "x", NEWS[:37],
]  # fmt: skip


@given(st.lists(st.sampled_from(NUMBERS), max_size=8).map("".join))
@example("OIB" + " " * 38 + "33392005961")
@example("x(01) 234 56 78 tel")
@settings(max_examples=300, deadline=None)
def test_no_text_with_personal_data_is_passed_over(text: str) -> None:
    plain = text
    for kind in PERSONAL:  # each pattern on each text

        def replace(match, kind: Kind = kind):  # type: ignore[no-untyped-def]
            return f"[{kind.name}]" if kind.is_meant(match) else match[0]

        plain = kind.pattern.sub(replace, plain)
    assert masked(text, PERSONAL, "[{kind}]")[0] == plain
    assert plain == text or DocumentFilter(FILTERS["standard"]).noise(text.encode())[0] & (ADDRESS | NUMBER)


def hostile(tmp_path: Path) -> list[Path]:
    """Two files of one name, of real text too where it is at hand."""
    generator = np.random.default_rng(3)
    texts = ["".join(generator.choice(PIECES, size=12)) for _ in range(150)] + [
        f"{NEWS}\nKontakt\n{place}. člen\n{NEWS} {place}" for place in range(60)
    ]
    paths = []
    for folder in ("a", "b"):
        lines = [json.dumps({"id": f"{folder}{n}", "text": text}) + "\n" for n, text in enumerate(texts)] + [
            '{"id": 7, "text": "pol \\ud83d"}\n',
            "kaj\n",
        ]
        if root := os.environ.get("SCION_SHARED_DATA"):
            name = {"a": "sl/gnome_help", "b": "sr/gnome_help"}[folder]
            lines += gzip.decompress((Path(root) / f"text/{name}.jsonl.gz").read_bytes()).decode().splitlines(keepends=True)[:150]
        path = tmp_path / folder / "same.jsonl"
        path.parent.mkdir()
        path.write_text("".join(lines), encoding="utf-8")
        paths.append(path)
    return paths


@pytest.mark.parametrize("name", ["standard", "web"])
def test_every_byte_is_that_of_one_text_after_the_other(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--input", f"c={(paths := hostile(tmp_path))[0]}", str(paths[1]), "--filters", name, "--workers", "1", "--skip-bad"]
    for output in ("fast", "slow"):
        assert main([*words, "--output", str(tmp_path / output)]) == 0
        monkeypatch.setattr(blocks, "_BLOCK_BYTES", 1)
        monkeypatch.setattr(DocumentFilter, "noise", lambda self, text, offsets=(0, 0): [EVERYTHING] * (len(offsets) - 1))
    files = [path.relative_to(tmp_path / "fast") for path in (tmp_path / "fast").rglob("*") if path.is_file() and path.name != "scion.json"]
    assert len(files) > 8
    for file in files:
        assert (tmp_path / "fast" / file).read_bytes() == (tmp_path / "slow" / file).read_bytes(), file


def test_samples_of_files_of_one_name() -> None:
    """Whose keys are the same: the first stays, and nothing stops."""
    samples = Samples(1)
    for text in ("first", "second"):
        samples.add("lines", "same.jsonl:1", partial(dict, text=text))
    assert [record["text"] for record in samples.records()] == ["first"]
