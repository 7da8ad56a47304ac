"""Texts that stay as they are are told by compiled loops: never another decision than by the steps themselves, on ordinary and on hostile text."""

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

from common.artifacts import digest_bytes
from data_prep.clean import main
from data_prep.cleaning import mojibake, personal_data, repeated_lines
from data_prep.cleaning.code_points import ADDRESS, NUMBER
from data_prep.cleaning.document_filter import DocumentFilter
from data_prep.cleaning.filter_settings import MEASURES, WRONG_PLACES, Rule, limits, read_filters, settings_for
from data_prep.cleaning.line_rules import WHOLE, without_lines
from data_prep.cleaning.line_search import LineSearch, line_hashes
from data_prep.cleaning.markup import without_markup
from data_prep.cleaning.samples import Samples
from data_prep.cleaning.shard import CleanRules
from data_prep.cleaning.text_measures import LIMITS, NO_RULE, NOTHING, Measurer
from data_prep.reading.blocks import Block
from data_prep.reading.documents import Document

NEWS = "Predsednik je včeraj v Ljubljani izjavil, da bo vlada prihodnji teden obravnavala predlog zakona o javnih podjetjih."
# Upper and lower, letters whose small ones are none, longer or by their place; numbers of all kinds; white space and ends of lines of all kinds; marks.
PIECES = [
    "Domov", "O nas", "KONTAKT", "preberi več", "Članek 7", "12", "3. člen", "ſ", "İ", "ΟΔΟΣ", "ΣΑ", "x²", "٣", "Ⱥ", "Ω", "漢字", "𝔘𐐀", "e\u0301", "\0", "\ud7ff",
    " ", "  ", "\t", "\u00a0", "\u3000", "\n", "\n\n", "\r\n", "\r", "\x0b", "\x1c", "\x85", "\u2028", " | ", "|", " » ", "»tako«", " • ", " · ", "<", "</div>", "<b", "<a href=",
    "<br />", "<file>", "&amp;", "&& b", "&#3;", "cookie", "piškotke", "privacy policy", "we use cookies", "javascript", "please enable", "lorem ipsum dolor",
    "a@b.si", "+386 1 123 45 67", "Ã©", "\ufffd", "{", "...", NEWS, NEWS.lower(), "word " * 12, "dolga" * 900,
]  # fmt: skip
FILTERS = {name: read_filters(name) for name in ("none", "standard", "web")}
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def block_of(texts: list[str]) -> Block:
    return Block.of([Document(text, line, {"id": f"d{line}"}) for line, text in enumerate(texts, start=1)], "text")


def by_the_steps(filters: DocumentFilter, text: str, language: str | None) -> tuple[str, tuple[str, str] | None]:
    """The text and why it goes, as `clean` decided before it asked for whole blocks, with all that a compiled loop may know of lines left out."""
    dirt = filters._dirt.dirt(text.encode()) | filters._of_lines
    found, reason = filters.repair(text, dirt, CleanRules().steps(), lambda *_: None, lambda *_: None)
    return found, (reason, "") if reason else filters.refuses(found.encode(), language)


@given(st.lists(TEXTS, min_size=1, max_size=8), st.sampled_from(sorted(FILTERS)), st.sampled_from([None, "sl"]))
@example(["Domovlorem ipsum dolor"], "standard", None)
@example(["Domovpiškotke"], "web", None)
@example(["Domovprivacy policy"], "web", None)
@example(["Domovprivacy policy, privacy policy"], "web", None)
@settings(max_examples=150, deadline=None)
def test_what_stays_would_stay_step_by_step(texts: list[str], name: str, language: str | None) -> None:
    repeated = frozenset(line_hashes(["o nas", "3. člen", "domov"]))
    fast, slow = DocumentFilter(FILTERS[name], repeated), DocumentFilter(FILTERS[name], repeated)
    slow._search.found = lambda data, bits: bits  # type: ignore[method-assign] # the rules themselves look
    for text, need in zip(texts, fast.needs(block_of(texts), language, CleanRules().steps())):
        found = by_the_steps(slow, text, language)  # which remembers it
        assert isinstance(need, int) or found == (text, need), repr(text)
        fast._seen |= slow._seen


def test_a_phrase_of_one_word_counts_where_it_begins_one(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: standard\nphrases: {filler: [vzorec]}\n")
    settings = read_filters(tmp_path / "mine.yaml")
    fast, slow = DocumentFilter(settings), DocumentFilter(settings)
    texts = [f"{NEWS} {word}" for word in ("Vzorec.", "Vzorecni.", "Predvzorec.")]
    for text, need, goes in zip(texts, fast.needs(block_of(texts), None, CleanRules().steps()), (True, True, False)):
        assert (by_the_steps(slow, text, None)[1] is not None) is goes
        assert isinstance(need, int) is goes


def test_texts_that_need_nothing_stay() -> None:
    """Otherwise the test above would hold of a loop that knows nothing."""
    paragraphs = [f"{NEWS} {number}" for number in ("Ena.", "Dva.", "Tri.")]
    quoted = "\n".join(f"»{line}« Kontakt pa je »tak« ali »tak«." for line in paragraphs)
    texts = [
        "\n".join(paragraphs),
        quoted,
        "ukaz <ime> in a && b, novice\n\nKontakt je tukaj.",
        "V kuhinji so kuhali cookies, policija je molčala.",
        "\n".join(paragraphs),
    ]
    for name in ("none", "standard"):
        needs = list(DocumentFilter(FILTERS[name]).needs(block_of(texts), None, CleanRules().steps()))
        assert needs[:4] == [None] * 4 and (needs[4] is None) is (name == "none")  # the last one was there before


def test_short_texts_go_by_the_compiled_rules_and_repeated_lines_stay_where_one_is_no_row() -> None:
    """Otherwise all of them would reach Python."""
    lines = [f"{NEWS} {number}." for number in ("Ena", "Dva", "Tri", "Štiri", "Pet", "Šest")]
    texts = [
        "Kratko besedilo.",
        "\n".join([*lines, "O nas", NEWS]),
        "\n".join([*lines, "O nas"]),
        "\n".join([*lines[:2], *["O nas"] * 3, *lines[2:]]),
    ]
    filters = DocumentFilter(FILTERS["web"], frozenset(line_hashes(["o nas"])))
    needs = list(filters.needs(block_of(texts), "sl", CleanRules().steps()))
    assert needs[0] == ("gopher too short", "words 2") and not isinstance(needs[1], int)
    assert all(isinstance(need, int) and need & filters._search.always for need in needs[2:])


LIMIT = st.sampled_from([None, 0.0, 0.1, 0.3, 0.6, 1.0, 5.0])
MEASURE = st.sampled_from(MEASURES[:-1])
UNLESS = st.builds(Rule, st.just("unless"), MEASURE, LIMIT, LIMIT)
RULES = st.builds(
    Rule, st.just("rule"), st.sampled_from(MEASURES), LIMIT, LIMIT, st.sampled_from([0, 12]), st.sampled_from([0, 3]), st.none() | UNLESS
)
WORDS = st.lists(
    st.sampled_from(["a ", "b ", "c ", "d ", "je ", "Ena. ", "dva\n", "• ", "\n\n", "… ", "Konec! ", "# ", "{ "]), max_size=100
)


@given(WORDS.map("".join), st.lists(RULES, max_size=4))
@settings(max_examples=200, deadline=None)
def test_rules_in_the_compiled_loop_are_the_rules(text: str, rules: list[Rule]) -> None:
    measurer = Measurer(["je"])
    judged = measurer.judge(text.encode(), np.array([0, len(text.encode())]), 0, limits(rules, None), measures=True)
    assert judged is not None
    measures = measurer.measure(text.encode())
    values = [0 if rule.measure == WRONG_PLACES else getattr(measures, rule.measure) for rule in rules]
    refusing = ((number, value) for number, (rule, value) in enumerate(zip(rules, values)) if rule.asks(measures) and rule.refuses(value))
    assert (judged[1][0], judged[2][0]) == next(refusing, (NO_RULE, measures.words))


def test_a_threshold_is_not_beyond_itself() -> None:
    """N-grams are counted no further than a rule could ask: to the last digit."""
    text = ("ena dva tri štiri pet šest " * 30 + NEWS).encode()
    first = (MEASURES.index("duplicate_5_gram"), NOTHING, 1, -np.inf, np.inf, -np.inf, 0, 0)  # from which the search might stop
    for name in ("top_2_gram", "top_4_gram", "duplicate_5_gram", "duplicate_10_gram"):
        place, value = Measurer().measure(text)._fields.index(name), getattr(Measurer().measure(text), name)
        for limit, stays in ((value, True), (np.nextafter(value, 0), False), (np.nextafter(value, 1), True)):
            rule = np.array([first, (place, NOTHING, limit, -np.inf, np.inf, -np.inf, 0, 0)], LIMITS)
            judged = Measurer().judge(text, np.array([0, len(text)]), 0, rule, measures=False)
            assert judged is not None and bool(judged[1][0] == NO_RULE) is stays, (name, limit)


@given(TEXTS)
@example("Domov | O nas | KONTAKT")
@example(f"{NEWS}\n domov » o nas\u00a0» kontakt » nič » drugega\n")
@example("preberi več\tnič\tna vrh strani")
@example("\n".join(["Domov", "O NAS", "Kontakt"]))
@settings(max_examples=300, deadline=None)
def test_no_line_and_no_phrase_is_missed(text: str) -> None:
    filters = DocumentFilter(FILTERS["web"], repeated := frozenset(line_hashes(["o nas", "3. člen", "kontakt", "0"])))
    bits = filters._dirt.group_bits
    found = filters._search.found(text.encode(), filters._of_lines)
    for rule in filters.settings.lines:
        assert found & bits[rule.name] or not (rule.may_take(text.lower()) and without_lines(text, [rule])[1]), (
            rule.name,
            rule.match == WHOLE,
        )
    assert found & filters._search.always or not without_lines(text, [], repeated=repeated, max_words=10)[1]
    dirt = np.array([1 << 8], np.uint32)
    LineSearch({}, {}).found_of_all(text.encode(), np.array([0, len(text.encode())]), 0, dirt)
    assert dirt[0] or without_markup(text) == text


def test_headings_and_words_of_menus_that_surely_stay_are_told() -> None:
    filters = DocumentFilter(FILTERS["web"], frozenset(line_hashes(["i.", "3. člen", "poglavje iv", "o nas", "glava"])))
    menus, always = filters._dirt.group_bits["menus"], filters._search.always
    for text, may_go in {
        f"I.\n\n{NEWS}": False, f"7. člen\n{NEWS}": False, f"Poglavje IV\n{NEWS}": False, f"{NEWS}\nGlava\n{NEWS}": False, "I.": False,
        f"Glava\n{NEWS}": True, f"I.\nGlava\n{NEWS}": True, f"{NEWS}\n7. člen": True, f"{NEWS}\nI.\nGlava\n7. člen\n{NEWS}": True,
    }.items():  # fmt: skip
        assert bool(filters._search.found(text.encode(), 0) & always) is may_go, text
    for text, may_go in {
        f"Domov\n{NEWS}": False, f"Domov\nKontakt\n\n{NEWS}\nDomov": False, f"a | b | c\n{NEWS}": False, f"{NEWS}\nena • dve • tri · štiri": False,
        "Domov\nKontakt\nO nas": True, f"{NEWS}\nDomov\n\nKONTAKT\nO  nas\n{NEWS}": True, "a | Domov. | c": True, "a » b »\u00a0kontakt": True,
    }.items():  # fmt: skip
        assert bool(filters._search.found(text.encode(), menus) & menus) is may_go, text


SIGNS = "".join(sorted(mojibake.LEADS | mojibake.LONG_LEADS | mojibake.FOLLOWERS)) + "aA .бžğ漢é😀\n"


@given(
    st.lists(
        st.one_of(st.text(SIGNS, max_size=4), st.sampled_from(["слова", "É…", "Ã©", "ÄŤ", "Å¡", "Ð¿Ñ€", "рџ", "â€œ", "Ð“"])), max_size=6
    ).map("".join)
)
@example("a" + "Ñ" * 1500)
@example("Ð¿Ñ€Ð¸Ð²ÐµÑ‚ слова")
@settings(max_examples=500, deadline=None)
@pytest.mark.long
def test_no_text_that_is_repaired_is_passed_over(text: str) -> None:
    assert mojibake.may_repair(text.encode()) or mojibake.repair(text) == text


def test_most_signs_of_wrong_decoding_are_told_to_mean_nothing() -> None:
    for text in ("É… „JÄ“ Đ“ è…", "Ој, Ње, Љубав, Рјечник и Рјеч. Сјај, Ђурђевдан је био леп.", "Öğrenci, İstanbul “Çağ”", ""):
        assert not mojibake.may_repair(text.encode()), text
    assert mojibake.may_repair("SluÅ¾ba".encode())


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
@settings(max_examples=1000, deadline=None)
@pytest.mark.long
def test_no_text_with_personal_data_is_passed_over(text: str) -> None:
    if personal_data.masked(text, PERSONAL, "[{kind}]")[1]:
        assert personal_data.may_hold(text.encode(), PERSONAL)
        assert DocumentFilter(FILTERS["standard"]).dirt(text.encode()) & (ADDRESS | NUMBER)


def test_most_numbers_are_told_to_be_no_personal_data() -> None:
    law = "Uradni list RS, št. 33/91-I, 42/97, 66/2000; 1.234.567,89 EUR; 1999–2004; ISBN 978-961-01-0123-4; dne 01. 02. 2003; OIB 33392005962; uporabnik@ in @ime"
    assert not personal_data.may_hold(law.encode(), PERSONAL)
    assert {digest_bytes(kind.pattern.pattern.encode()) for kind in PERSONAL} == personal_data.BITS.keys()
    of_a_user = settings_for({**FILTERS["standard"], "personal_data": {"replacement": "", "mine": {"pattern": "a"}}}, None).personal_data
    assert personal_data.may_hold(b"b", of_a_user)


@given(st.lists(TEXTS, min_size=1, max_size=5), st.sampled_from([1, 2, 10]))
@example(["\n".join("beseda " * number for number in range(9, 12))], 10)
@settings(max_examples=200, deadline=None)
def test_short_lines_are_those_of_python(texts: list[str], max_words: int) -> None:
    block = block_of(texts)
    hashes, odd = LineSearch({}, {}).short_lines(block.text, block.offsets, max_words)
    expected = [repeated_lines._short_lines(text, max_words) for text in texts]
    assert sorted(hashes.tolist()) == sorted(key for place, keys in enumerate(expected) if place not in odd for key in keys.tolist())
    certain = [
        place for place, text in enumerate(texts) if text.isascii() and not set(text) & set("\r\x0b\x0c") and "dolga" * 800 not in text
    ]
    assert not set(certain) & set(odd)


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
    paths = hostile(tmp_path)
    for output in ("fast", "slow"):
        assert (
            main(
                [
                    "--input",
                    f"c={paths[0]}",
                    str(paths[1]),
                    "--filters",
                    name,
                    "--workers",
                    "1",
                    "--skip-bad",
                    "--output",
                    str(tmp_path / output),
                ]
            )
            == 0
        )
        monkeypatch.setattr(DocumentFilter, "needs", lambda self, block, *_: map(self.dirt, block.texts()))
        monkeypatch.setattr(LineSearch, "found", lambda self, data, bits: bits | self.always)
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
