"""Filters take what no reader wants, say why, and leave text alone; the loops in C and in Python give the same numbers."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.artifacts import read_manifest
from common.plain_files import read_yaml
from data_prep import fit_filters
from data_prep.clean import clean, main
from data_prep.cleaning import code_points, mojibake
from data_prep.cleaning.code_points import HOLE, LEAD, SPACING
from data_prep.cleaning.document_filter import blocked_by
from data_prep.cleaning.filter_settings import read_filters, settings_for
from data_prep.cleaning.mojibake import _character, repair_code_page
from data_prep.cleaning.personal_data import CHECKS, kinds_of, masked
from data_prep.cleaning.shard import CleanRules
from data_prep.cleaning.text_hygiene import without_markup
from data_prep.cleaning.text_measures import Measurer
from data_prep.reading.corpora import Corpus
from tests.data_prep.cleaning.text_measures_plain import PlainLoops
from tests.data_prep.packed import refusal

Write = Callable[[str, str | bytes], Path]
FURNITURE, PERSONAL = (read_yaml(Path(__file__).with_name(name)) for name in ("furniture_lines.yaml", "personal_lines.yaml"))
NEWS = (
    "Predsednik je včeraj v Ljubljani izjavil, da bo vlada prihodnji teden obravnavala predlog zakona o javnih podjetjih. Češnje so letos zorele"
    " prej kot običajno, žal pa jih je bilo zaradi pozebe manj."
)
MORE = "V dolini so odprli nov most čez reko. Gradili so ga tri leta, šolarji pa bodo po njem hodili že v ponedeljek."


def wrong(text: str, page: str, times: int = 1) -> str:
    """UTF-8 read in a code page; bytes that it lacks become control characters, as browsers have it."""
    for _ in range(times):
        text = "".join(bytes([byte]).decode(page, "replace").replace("\ufffd", chr(byte)) for byte in text.encode())
    return text


def jsonl(texts: list[str], **fields: Any) -> str:
    return "".join(json.dumps({"id": f"d{i}", "text": text, **fields}, ensure_ascii=False) + "\n" for i, text in enumerate(texts))


def cleaned(tmp_path: Path, texts: list[str], *options: str) -> tuple[dict[str, str], dict[str, tuple[str, str]], Path]:
    """Texts by id, reasons and details by id, and the output of the command."""
    path = tmp_path / "in.jsonl"
    path.write_text(jsonl(texts), encoding="utf-8")
    output = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    assert main(["--input", f"c={path}", "--workers", "1", "--output", str(output), *options]) == 0
    read = lambda part: [json.loads(line) for line in next((output / part).rglob("*.jsonl")).read_bytes().splitlines()]  # noqa: E731
    return {row["id"]: row["text"] for row in read("text")}, {row["id"]: (row["reason"], row["detail"]) for row in read("removed")}, output


def test_what_clean_kept_before_filters(tmp_path: Path) -> None:
    """The noise that passed `clean --language sl`: each kind goes or is mended, with its reason, and the text around it stays."""
    texts = {
        "mojibake": wrong(NEWS, "cp1252"),
        "mojibake that cannot be mended": "".join(c for c in wrong(NEWS, "cp1252") if not "\x80" <= c < "\xa0"),
        "holes": NEWS.replace("č", "\ufffd").replace("ž", "\ufffd"),
        "a raw page": f'<html><head><title>Naslov</title></head><div class="content"><p>{NEWS}</p><script>var a = "<b>";</script></div>',
        "references": NEWS.replace(" ", "&nbsp;", 2) + " Novak &amp; Kos &lt;3",
        "a cookie notice": f"Spletna stran uporablja piškotke. Z nadaljnjo uporabo se strinjate z njimi.\n{NEWS}",
        "only a cookie notice": "To spletno mesto uporablja piškotke. Sprejmi vse.",
        "a menu": f"Domov | O nas | Kontakt | Novice\n{NEWS}\nPreberi več\nDomov\nO nas\nKontakt",
        "fifty times": " ".join([NEWS] * 50),
        "fifty times in lines": "\n".join([NEWS] * 50),
        "links": "Povezave in zanimivosti o naravi\n" + "\n".join(f"https://www.example.si/stran/{i}/clanek.html" for i in range(200)),
        "persons": f"{NEWS} Pišite na janez.novak@posta.si ali pokličite 041 123 456. EMŠO 0101006500006.",
        "filler": f"Lorem ipsum dolor sit amet. {MORE}",
    }
    kept, removed, output = cleaned(tmp_path, list(texts.values()), "--language", "sl", "--problem-runs", "sl")
    name = dict(zip(texts, (f"d{i}" for i in range(len(texts)))))
    assert kept == {
        name["mojibake"]: NEWS,
        name["references"]: f"{NEWS} Novak & Kos <3",
        name["persons"]: f"{NEWS} Pišite na [e-mail] ali pokličite [telephone number]. EMŠO [emso].",
    }
    reasons = {text: removed[name[text]][0] for text in texts if name[text] in removed}
    assert reasons == {
        "mojibake that cannot be mended": "mojibake",
        "holes": "holes",
        "a raw page": "same text",  # what is left of it is the news again
        "a cookie notice": "same text",
        "a menu": "same text",
        "only a cookie notice": "empty",
        "fifty times": "repeats itself, 5-grams",
        "fifty times in lines": "repeats itself, 5-grams",
        "links": "list of links",
        "filler": "filler text",
    }
    manifest = read_manifest(output)
    assert manifest is not None
    changed = manifest.facts["counts"]["c"]["changed"]
    assert {reason for reason in changed if reason.startswith(("lines", "personal", "mojibake", "markup"))} == {
        "mojibake", "markup", "lines: cookie notices", "lines: menus", "lines: menu rows", "lines: buttons",
        "personal data: e-mail", "personal data: telephone number", "personal data: emso",
    }  # fmt: skip
    assert "janez" not in (output / "report.md").read_text() and "0101006500006" not in json.dumps(manifest.facts)
    assert manifest.facts["rules"]["filters"] == read_filters("standard") == read_filters(str(output / "filters.yaml"))
    samples = [json.loads(line) for line in (output / "samples/c.jsonl").read_bytes().splitlines()]
    assert {sample["reason"] for sample in samples} == {
        *reasons.values(), "lines: cookie notices", "lines: menus", "lines: menu rows", "lines: buttons",
    }  # fmt: skip
    assert any(sample["text"].startswith("Spletna stran uporablja piškotke") for sample in samples)
    assert [sample["text"] for sample in samples if sample["reason"] == "empty"] == [texts["only a cookie notice"]]


def test_none_leaves_all_of_it(tmp_path: Path) -> None:
    texts = [wrong(NEWS, "latin-1").replace("\x8d", ""), f"<div>{NEWS}</div>", "\n".join([MORE] * 50), "a@b.si"]
    kept, removed, _ = cleaned(tmp_path, texts, "--filters", "none")
    assert len(kept) == 4 and not removed and kept["d1"] == texts[1] and kept["d3"] == "a@b.si"


@pytest.mark.parametrize("page", ["cp1252", "cp1250", "latin-1", "cp1251"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "text",
    [
        NEWS,
        "Perché la città è così? “Già” disse – costò 5 €…",
        "Привет, мир! Что нового?",
        "Председник је јуче у Београду изјавио да ће влада размотрити предлог.",
        "Zażółć gęślą jaźń – Łódź",
        "Größe, Fußgänger und Übermut",
    ],
)
def test_mojibake_is_undone(text: str, page: str, times: int) -> None:
    assert mojibake.repair(wrong(text, page, times)) == text


SENTENCES = """Človek je prišel že včeraj, a češnje še niso zrele.
Otroci so v šoli pisali nalogo in risali hiše.
Čez cesto je šla žaba.
Računalnik ne dela več, zato ga bomo odnesli v trgovino.
Članek 5 določa, da mora stranka plačati globo.
Mačka spi na peči.
V gozdu je tišina.
Kuća je stara, a đaci uče čitati.
Rekao je da će doći sutra.
Živjeli smo u maloj kući.
Škola počinje u devet sati.
Dečak je pojeo jabuku i otišao kući.""".splitlines()


@pytest.mark.parametrize(
    ("wrong_page", "right_page"),
    [
        ("cp1252", "cp1250"), ("latin-1", "iso8859-2"), ("cp1252", "iso8859-2"), ("iso8859-2", "cp1250"), ("cp1250", "iso8859-2"),
        ("cp1252", "cp852"), ("latin-1", "cp852"), ("cp1250", "cp852"),
    ],
)  # fmt: skip
def test_a_single_byte_code_page_taken_for_another_is_undone(wrong_page: str, right_page: str, tmp_path: Path) -> None:
    read = ["".join(_character(byte, wrong_page) for byte in sentence.encode(right_page)) for sentence in SENTENCES]
    assert [mojibake.repair(text) for text in read] == SENTENCES
    kept, _, _ = cleaned(tmp_path, read, "--filters", "standard")
    assert list(kept.values()) == SENTENCES


def test_no_clean_line_is_of_another_code_page() -> None:
    """French, Italian, Danish, Icelandic, Polish and Slovak lines, quotations, and, where it is at hand, real text of five languages."""
    lines = [
        "Molière je napisal Skopuha; père Noël, très bien, ça va.", "— E tu vai a piedi, babbèo? Prèola è qui, perché dicèa…", "Æblet er på bordet, og være",
        "Það er maður í húsinu; góðan daginn.", "Są tu, gęś źle", "ľúbiť ľad", "§ 5 in §7a, © avtor, 2¾ in beseda¹ je", "Č in è, Čez",
    ]  # fmt: skip
    if "SCION_SHARED_DATA" in os.environ:
        for path in sorted(Path(os.environ["SCION_SHARED_DATA"], "text").rglob("*.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as stream:
                lines += [json.loads(line)["text"] for line in itertools.islice(stream, 200)]
    assert [line[:200] for line in lines if repair_code_page(line) != line] == []


def test_mojibake_twice_over_with_a_low_quotation_mark() -> None:
    text = "Rekel je: Ã¢â‚¬Å¾Ã…Â el bom domov,Ã¢â‚¬Å“ in odÃ…Â¡el.".replace("Â el", "Â\u00a0el")
    assert mojibake.repair(text) == "Rekel je: „Šel bom domov,“ in odšel."


def test_one_long_word_and_a_quoted_declaration_cost_nothing(tmp_path: Path) -> None:
    words = [
        "zakon",
        "organ",
        "stranka",
        "pravica",
        "rok",
        "odločba",
        "pritožba",
        "izvršba",
        "sodišče",
        "predlog",
        "dokaz",
        "vročitev",
        "stroški",
        "postopek",
    ]
    law = " ".join(f"{' '.join(random.Random(number).sample(words, 5))}." for number in range(40))
    manual = f'{NEWS} Datoteka se začne z <?xml version="1.0"?> in <br/> pomeni novo vrstico.'
    kept, _, _ = cleaned(tmp_path, [f"{law} {'obveznost/pravica/' * 30}", manual, "x" * 500], "--filters", "standard")
    assert list(kept) == ["d0", "d1"] and "<?xml" in kept["d1"]


@pytest.mark.parametrize(
    "text",
    [
        "„KAČ“ in É… „JÄ“ MENÜ“ Đ“ ČŠŽ», SÃO PAULO, MAÇÃ, Ŷ”, è…, «È» – città», ÎLE… Å, Ärzte",
        "Ој, Ње, Љубав, Рјечник и Рјеч. Сјај, Њен, Ђурђевдан је био леп.",
        "Ďábel, Ľubľana, Šťastný Ťažký; ĄŻ, Ęż, ŁŻ",
        "Ångström, Þór, Öğrenci, İstanbul “Çağ”",
        "",
    ],
)
def test_real_text_is_no_mojibake(text: str) -> None:
    assert mojibake.repair(text) == text


def test_mojibake_that_lost_a_half() -> None:
    assert mojibake.repair("perchÃ© la cittÃ\u00a0 Ã¨ cosÃ¬") == "perché la città è così"
    assert mojibake.repair("perchÃ© â€œbellaâ€, no") == "perché “bella”, no"
    assert mojibake.leftovers("koÄer in bodoÄa hiÅa") == 3 and mojibake.leftovers(NEWS) == 0 == mojibake.leftovers("KOÄ, Ärzte")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("<p>Ena<br>dve</p><p>tri</p>", "\nEna\ndve\n\ntri\n"),
        ("a < b in b > c, <ime> in #include <stdio.h>", None),
        ("Press <q> or <p>, then type <code>", None),
        ("x<sup>2</sup> <!-- skrito --> <STYLE>p {}</STYLE>konec", "x2    konec"),
        ("AT&T &copy; &#268; &#xD83D; &nič; R&D; &amp;amp;", "AT&T © Č  &nič; R&D; &amp;"),
        ('<a href="x" onclick="f()">povezava</a>', "povezava"),
    ],
)
def test_markup(text: str, expected: str | None) -> None:
    assert without_markup(text) == (text if expected is None else expected)


@pytest.mark.parametrize(
    "check, good, bad",
    [
        ("emso", "0101006500006", "0101006500007"),
        ("emso", "1705978730032", "3213978730032"),
        ("iban", "SI56 1910 0000 0123 438", "SI56 1910 0000 0123 439"),
        ("iban", "IT60X0542811101000000123456", "IT60X0542811101000000123457"),
        ("codice-fiscale", "RSSMRA85T10A562S", "RSSMRA85T10A562T"),
        ("oib", "33392005961", "33392005962"),
        ("luhn", "4111 1111 1111 1111", "4111 1111 1111 1112"),
        ("public-address", "8.8.8.8", "192.168.1.1"),
        ("telephone", "+386 1 234 56 78", "+000 0000 000"),
    ],
)
def test_checksums(check: str, good: str, bad: str) -> None:
    assert CHECKS[check](good) and not CHECKS[check](bad)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Pišite: Ana.K+x@mail.posta.co.uk, hvala", "Pišite: [e-mail], hvala"),
        ("Račun SI56191000000123438 pri banki", "Račun [iban] pri banki"),
        ("CF RSSMRA85T10A562S, OIB: 33392005961", "CF [codice fiscale], OIB: [oib]"),
        ("številka 33392005961 brez besede", None),
        ("+386 1 234 56 78 ali tel. 01/234 56 78", "[telephone] ali tel. [telephone number]"),
        ("Uradni list RS, št. 33/91-I, 42/97, 66/2000; 1.234.567,89 EUR; 1999–2004; ISBN 978-961-01-0123-4", None),
        ("različica 2.7.13.1024, strežnik 192.168.0.1 in 8.8.4.4", "različica 2.7.13.1024, strežnik 192.168.0.1 in [IP address]"),
        ("uporabnik@ in @ime", None),
    ],
)
def test_personal_data_is_masked(text: str, expected: str | None) -> None:
    filters = settings_for(read_filters("standard"), None)
    assert masked(text, filters.personal_data, filters.replacement)[0] == (text if expected is None else expected)


def test_labelled_lines_with_and_without_personal_data() -> None:
    """Dates, versions and sections beside words such as hotel and avtomobil are none."""
    filters = settings_for(read_filters("standard"), None)
    lines = [(text.format(number), kind == "right") for kind, table in PERSONAL.items() for text, all_ in table.items() for number in all_]
    found = [(text, right, bool(masked(text, filters.personal_data, "")[1])) for text, right in lines]
    hits = sum(right and is_found for _, right, is_found in found)
    precision, recall = hits / sum(is_found for *_, is_found in found), hits / sum(right for _, right, _ in found)
    wrong = [text for text, right, is_found in found if right != is_found]
    print(f"precision {precision:.3f}, recall {recall:.3f} of {len(found)} lines")
    assert precision >= 0.98 and recall >= 0.98, wrong


@pytest.mark.parametrize(
    "pattern, found",
    [
        ("a@b", True),
        (r"[\w.]+@(?:\w+\.)+\w", True),
        ("a@?b", False),
        ("(?:a@)?b", False),
        ("[@]a", False),
        ("[]@]x", False),
        ("a@b|c", False),
        (r"a\@", False),
    ],
)
def test_patterns_that_need_an_at_are_told(pattern: str, found: bool) -> None:
    """A text without one is not searched for them: what only may hold one is sought in every text."""
    (kind,) = kinds_of({"own": {"pattern": pattern}})
    assert kind.has_at is found
    assert masked("b c ab", (kind,), "-")[1].get("own", 0) == len(re.findall(pattern, "b c ab"))


def test_patterns_that_need_digits_in_a_row_are_told() -> None:
    told = {"[0-9]{9}": 9, "(?:[0-9]{9})?a": 0, "[0-9]{9}|b": 0, r"\b[0-9]{4}-[0-9]{2}": 4, "[0-9]{2,9}": 0, "[^0-9]{9}": 0}
    assert {pattern: kinds_of({"own": {"pattern": pattern}})[0].num_digits for pattern in told} == told


def test_personal_data_is_in_no_sample(tmp_path: Path, write: Write) -> None:
    """What is taken before the step that masks, or mended around it, is kept to be read, in the manifest too."""
    data = "janez.novak@posta.si, EMŠO 0101006500006."
    rows = [
        {"id": "blocked", "url": "https://spam.si/a", "text": f"{data} {NEWS}"},
        {"id": "score", "score": 1, "text": f"{data} {MORE}"},
        {"id": "notice", "text": f"Ta spletna stran uporablja piškotke, se strinjate? {data}\n{NEWS}"},
        {"id": "markup", "text": f"<p>{data}</p>{MORE} {NEWS}"},
        {"id": "language", "text": f"{data} The weather is nice today and the children are playing in the garden behind the house."},
    ]
    sites = write("sites.txt", "spam.si\n")
    own = write("own.yaml", f"base: standard\nblocked_urls: {{key: url, files: [{sites}]}}\nscores: {{s: {{key: score, min: 3}}}}\n")
    path = write("in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "o"
    assert main(["--input", f"c={path}", "--language", "sl", "--filters", str(own), "--workers", "1", "--output", str(output)]) == 0
    samples = {row["reason"]: row["text"] for row in map(json.loads, (output / "samples/c.jsonl").read_bytes().splitlines())}
    assert samples["blocked address"] == f"[e-mail], EMŠO [emso]. {NEWS}" and set(samples) == {
        "blocked address", "score: s", "lines: cookie notices", "language",
    }  # fmt: skip
    for file in (file for file in output.rglob("*") if file.is_file()):
        assert "novak" not in file.read_text() and "0101006" not in file.read_text(), file


def test_personal_data_may_drop_the_text_or_stay(tmp_path: Path, write: Write) -> None:
    own = write(
        "own.yaml", "base: standard\npersonal_data:\n  replacement: '***'\n  emso: {action: drop}\n  e-mail: {action: keep}\n  oib: false\n"
    )
    kept, removed, _ = cleaned(tmp_path, ["EMŠO 0101006500006 je tu.", "a@b.si 4111 1111 1111 1111"], "--filters", str(own))
    assert removed == {"d0": ("personal data: emso", "")} and kept == {"d1": "a@b.si ***"}
    own = write("names.yaml", "base: none\npersonal_data: {name: {pattern: 'Janez[ ][A-Z][a-z]+'}}\n")  # neither a number nor an address
    assert cleaned(tmp_path, ["Tu je Janez Novak."], "--filters", str(own))[0] == {"d0": "Tu je [name]."}


TEXT = st.lists(
    st.one_of(
        st.text(st.sampled_from('aAčŠ1 .!…?\n\t•-#"»\ufffd漢。ก{\u0301\u00a0'), max_size=30),
        st.sampled_from(["www.", "www,", "ni...", " a" * 200, "a" * 255, "漢a漢 a"]),
    ),
    max_size=4,
).map("".join)


@given(st.lists(TEXT, min_size=1, max_size=3))
@example(
    ["1 11ก1 11", "b bb漢b bb", "2024 leta, 2024漢 in 2024 leta,漢 漢leta,"]
)  # words cut from a script without spaces, and the same alone
@settings(max_examples=150, deadline=None)
def test_both_loops_give_the_same_numbers(texts: list[str]) -> None:
    data, plain = [text.encode() for text in texts], PlainLoops(frozenset({"a", "čš"}))
    found = Measurer(["a", "ČŠ"]).measures(b"".join(data), np.cumsum([0, *map(len, data)]))
    assert found.tolist() == [list(plain.measure(text)) for text in texts]


def plain_noise(text: str) -> int:
    """The bits of a text that hang on more than one character, and that of HOLE."""
    kinds = [int(code_points.noise()[ord(c)]) for c in text]
    lead, follower, long_lead = LEAD, code_points.FOLLOWER, code_points.LONG_LEAD
    found = 0
    for at, kind in enumerate(kinds):
        before, before_that = (kinds[at - 1] if at else 0), (kinds[at - 2] if at > 1 else 0)
        if kind & follower and (before & lead or (before & follower and before_that & long_lead)):
            found |= LEAD
        found |= kind & (SPACING | HOLE)
    for bit, pattern in (
        (SPACING, r"  |\n | \n|\n\n\n|\A[ \n]|[ \n]\Z"),
        (code_points.NUMBER, r"[0-9](?:(?:[ ./()-]{0,2}[A-Z])*[ ./()-]{0,2}[0-9]){6}"),
        (code_points.NUMBER, r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}"),  # an IBAN begins so
        (code_points.ADDRESS, "@"),
        (code_points.MARKUP, "<[A-Za-z/!]|&[A-Za-z#]"),
    ):
        found |= bit if re.search(pattern, text) else 0
    return found


@given(st.lists(st.text(st.sampled_from("aZ17 \n.-(/\u00a0Ã©â€œ”\ufffd@<&!č漢"), max_size=30), min_size=1, max_size=4))
@settings(max_examples=400, deadline=None)
def test_the_search_for_dirt_finds_what_a_plain_one_does(texts: list[str]) -> None:
    bits = SPACING | HOLE | LEAD | code_points.NUMBER | code_points.ADDRESS | code_points.MARKUP
    data = [text.encode() for text in texts]
    found = Measurer().noise(b"".join(data), np.cumsum([0, *map(len, data)]))
    assert (found & bits).tolist() == [plain_noise(text) for text in texts]


def test_measures_by_hand() -> None:
    text = "Je bil. Je bil.\nKonec …\n\n• Je bil. Je bil.\nhttp://a.si"
    found = Measurer(["je"]).measure(text.encode())
    assert (found.words, found.lines, found.sentences, found.stop_words) == (10, 4, 5, 4)
    assert (found.bullet_lines, found.ellipsis_lines, found.terminal_lines, found.duplicate_lines) == (0.25, 0.25, 0.75, 0)
    assert found.link_characters == 11 / 42 and found.top_2_gram == 4 * 6 / 42 and found.duplicate_5_gram == 0
    repeated = Measurer().measure(("ena dva tri štiri pet " * 3).encode())
    assert repeated.duplicate_5_gram == pytest.approx(2 / 3) and repeated.top_2_gram == pytest.approx(3 * 8 / 51)


def test_every_rule_of_the_papers_takes_its_text(tmp_path: Path) -> None:
    """Each text breaks one rule of `web`; all others pass over it."""
    words = [f"beseda{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(200)]
    sentences = [" ".join(["je", *words[i : i + 9], "in"]) + "." for i in range(0, 190, 10)]
    good = "\n".join(sentences)
    own = tmp_path / "own.yaml"
    own.write_text("base: web\nrepeated_lines: false\n")
    cases = {
        "gopher too short": " ".join(sentences[:3]) + " A. B. C.",
        "gopher mean word length, high": "\n".join(
            " ".join(["je", *(word * 3 for word in words[i : i + 9])]) + "." for i in range(0, 90, 10)
        ),
        "gopher hash signs": good.replace(" ", " #", 40),
        "gopher ellipses": good.replace(" ", "… ", 30),
        "gopher bullets": "\n".join(f"• {sentence[:-1]}" for sentence in sentences),
        "gopher lines end in ellipses": "\n".join(s[:-1] + ("…" if i % 2 else "") for i, s in enumerate(sentences)),
        "gopher words without letters": good + "\n" + "\n".join(" ".join(map(str, range(i, i + 10))) + "." for i in range(100, 200, 10)),
        "gopher stop words": good.replace("je ", "xx ").replace(" in.", " yy."),
        "c4 curly brackets": good + " {" * 20,
        "filler text": good + " Lorem ipsum.",
        "fineweb lines without an end": good.replace(".\n", "\n").replace("in.", "in. A. B. C. D. in"),
    }
    texts = [good, *cases.values()]
    kept, removed, _ = cleaned(tmp_path, texts, "--filters", str(own))
    by_name = {name: removed.get(f"d{i}", ("kept", ""))[0] for i, name in enumerate(cases, start=1)}
    stop = by_name.pop("gopher stop words")
    assert stop == "kept"  # the corpus has no language, so no list of stop words
    assert "d0" in kept and by_name == {name: name for name in cases if name != "gopher stop words"}


def _lines(number: int, begin: str = "", *, words: int = 10) -> list[str]:
    return [begin + " ".join(f"beseda{chr(97 + n)}{chr(97 + i)}" for i in range(words)) for n in range(number)]


GOOD_TEXTS = {
    "dialogue": "\n\n".join(f"— {line.capitalize()}." for line in _lines(12)),
    "dialogue of short lines": "\n".join(f"— {' '.join(line.split()[: 3 + n % 2])}." for n, line in enumerate(_lines(24))),
    "dialogue on one line": "— " + ". — ".join(_lines(8)) + ".",
    "cut in a sentence": ". ".join(_lines(9)) + " in potem še",
    "breathless novel": "\n\n".join(line + ("..." if n % 2 else "!") for n, line in enumerate(_lines(14))),
    "manual with a line of code": ".\n".join(_lines(9)) + ".\nif (a) { b(); }",
    "law": "\n".join(
        f"{n}. člen\n{line}.\nKdor ravna v nasprotju s tem členom, se kaznuje z globo {n} evrov."
        for n, line in enumerate(_lines(12, words=20))
    ),
    "penalties": "\n".join(
        f"Z globo {n}00 evrov se kaznuje oseba, ki stori naslednje:\n1. {line.replace('beseda', 'prva')};\n2. {line.replace('beseda', 'druga')}."
        for n, line in enumerate(_lines(12), start=1)
    ),
    "story of four sentences": "Naslov\n" + ".\n".join(_lines(4, words=26)) + ".\nAvtor",
    "short page of help": "Odpri datoteko.\n" + ".\n".join(_lines(3, "Kliknite gumb Vklopi in nato ", words=13)) + ".",
}
# Each of six phrases four times, behind it words of its own.
REPEATING = [" ".join([phrase, *line.split()[9:]]) for phrase, line in zip(_lines(6, words=9) * 4, _lines(24, words=12))]
BAD_TEXTS = {
    "c4 too few sentences": "\n".join(" ".join(pair) for pair in zip(_lines(3, words=20), _lines(6, words=20)[3:])),
    "gopher duplicate 5-grams": "\n".join(REPEATING),
    "sentences repeat, 5-grams": "\n".join(f"{line}." for line in REPEATING),
    "gopher bullets": "\n".join(f"— {line}" for line in _lines(12)),
    "gopher lines end in ellipses": "\n".join(line + ("..." if n % 2 else "") for n, line in enumerate(_lines(14))),
    "c4 curly brackets": ".\n".join(_lines(9)) + "." + "".join(f"\nif (a{n}) {{ b{n}(); }}" for n in range(7)),
    "fineweb lines without an end": "\n".join([". ".join(_lines(20)[:5]) + ".", *_lines(20)[5:]]),
}


def test_rules_about_pages_leave_dialogue_and_manuals(tmp_path: Path) -> None:
    """`web` took these of novels, laws, manuals and news; what the rules are about it still takes."""
    _, removed, _ = cleaned(tmp_path, [*GOOD_TEXTS.values(), *BAD_TEXTS.values()], "--filters", "web")
    reasons = {f"d{len(GOOD_TEXTS) + number}": name for number, name in enumerate(BAD_TEXTS)}
    assert {name: reason for name, (reason, _) in removed.items()} == reasons
    talk = ["Vieni?", "Non subito.", "Perché no?", "Devo ancora finire la lettera che ho cominciato ieri sera per mia zia.", "Quale zia?"]
    talk += ["Quella di Bari, che compie gli anni.", "Ho capito.", "E tu che cosa fai?", "Leggo.", "Che cosa leggi?", "Un romanzo di mare."]
    talk += ["È bello?", "Abbastanza, anche se il capitano parla troppo.", "Allora a dopo.", "A dopo."]
    kept, _, _ = cleaned(tmp_path, ["\n".join(f"– {line}" for line in talk)], "--filters", "web", "--language", "it")
    assert kept, "four words a line"


def test_what_a_text_numbers_is_its_heading(tmp_path: Path, write: Write) -> None:
    """Articles of a law are headings, though all laws have them; a line that has no number, or the same one again, is not."""
    texts = [
        "\n".join(f"{i + n}. člen\nStran 7\n{' '.join(_lines(3, f'odlok {i} {n} '))}." for n in range(3)) + "\nUradni list"
        for i in range(12)
    ]
    own = write("own.yaml", "base: none\nrepeated_lines: {max_words: 10, min_documents: 10, min_share: 0.5}\n")
    kept, removed, _ = cleaned(tmp_path, [text.replace("Stran 7\n", "", 1) for text in texts], "--filters", str(own))
    assert not removed and kept["d3"].split("\n")[0] == "3. člen" and "Uradni list" not in kept["d3"]
    kept, _, _ = cleaned(tmp_path, [f"Stran {i}\n{text}" for i, text in enumerate(texts)], "--filters", str(own))
    assert "Stran 3\n" in kept["d3"] and "4. člen" in kept["d3"], "nor is a number at the beginning, which may be a chapter's"
    kept, _, _ = cleaned(tmp_path, [f"Občina\nStran {i}\n{text}" for i, text in enumerate(texts)], "--filters", str(own))
    assert "Stran 3\n" not in kept["d3"] and "4. člen" in kept["d3"]
    forum = [
        f"{' '.join(_lines(2, f'forum {i} '))}.\n" + "".join(f"Ogledov: {n + i}\nOdgovorov {9 - n}\n" for n in range(4)) for i in range(12)
    ]
    kept, _, _ = cleaned(tmp_path, forum, "--filters", str(own))
    assert "\n" not in kept["d3"], "a word with a colon, and numbers that fall"
    novels = [f"{name}\n{'. '.join(_lines(3, f'roman {i} '))}." for i in range(12) for name in ("XV.", "Poglavje III", "IV")]
    kept, _, _ = cleaned(tmp_path, novels, "--filters", str(own))
    assert [text.split("\n")[0] for text in kept.values()] == ["XV.", "Poglavje III", "IV"] * 12


def test_lines_that_a_corpus_repeats(tmp_path: Path, write: Write) -> None:
    page = "Krajevne novice Kranj\nStran {i}\n{text} To je besedilo številka {i}.\nUvod\n{more}\nVse pravice pridržane"
    texts = [page.replace("\n", "\r\n" if i % 2 else "\n").format(i=i, text=NEWS[i:], more=MORE[i:]) for i in range(12)]
    own = write("own.yaml", "base: standard\nrepeated_lines: {max_words: 10, min_documents: 10, min_share: 0.5}\nsame_text: false\n")
    kept, removed, output = cleaned(tmp_path, texts, "--filters", str(own))
    assert not removed and kept["d3"] == f"{NEWS[3:]} To je besedilo številka 3.\nUvod\n{MORE[3:]}"
    manifest = read_manifest(output)
    assert manifest is not None and manifest.facts["counts"]["c"]["changed"]["lines: repeated lines"]["documents"] == 12
    files = [write(f"part{i}.jsonl", jsonl(texts[i::3]).replace('"d', f'"p{i}_')) for i in range(3)]
    rules = CleanRules(filters=read_filters(str(own)))
    for workers in (1, 3):
        clean([Corpus("c", tuple(files))], tmp_path / f"w{workers}", rules=rules, workers=workers)
    both = [{p.relative_to(d): p.read_bytes() for p in d.rglob("*.jsonl")} for d in (tmp_path / "w1", tmp_path / "w3")]
    assert both[0] == both[1] and b"Kranj" not in b"".join(both[0][Path(f"text/c/0000{i}_part{i}.jsonl")] for i in range(3))


def test_blocked_addresses(tmp_path: Path, write: Write) -> None:
    blocked = write("blocked.txt", "# slabo\nSpam.si\nhttps://www.blog.si/ana/\n")
    own = write("own.yaml", f"base: none\nblocked_urls: {{key: url, files: [{blocked}]}}\n")
    urls = [
        "http://www.spam.si/a",
        "https://x.y.spam.si:8080/?q",
        "https://blog.si/ana/1",
        "https://blog.si/anamarija",
        "https://nespam.si",
        "",
        "http://[x",
    ]
    path = write("a.jsonl", "".join(json.dumps({"text": "besedilo", "url": url}) + "\n" for url in urls))
    manifest = clean([Corpus("c", (path,))], tmp_path / "o", rules=CleanRules(filters=read_filters(str(own))))
    assert manifest.facts["counts"]["c"]["removed"]["blocked address"]["documents"] == 3 and str(blocked) in manifest.inputs
    assert blocked_by("https://a.b.si/c", {"b.si"}) == "b.si" and blocked_by("si", {"si"}) is None


@pytest.mark.parametrize(
    "content, sentence",
    [
        ("base: fine\n", "begins with 'base: fine'; expected one of none, standard, web"),
        ("colour: red\n", "has the unknown key colour; the known ones are base, mojibake, markup,"),
        ("rules: {x: {measure: length, max: 1}}\n", "rules: x asks for 'length'; the known measures are characters, words,"),
        (
            "base: web\nrules: {gopher too shrt: {min: 3}}\n",
            "rules: gopher too shrt has no measure and is not a rule of web; did you mean gopher too short?",
        ),
        (
            "base: web\nlanguages: {sl: {rules: {zzz: {min: 3}}}}\n",
            "languages: sl: rules: zzz has no measure and is not a rule of web; a new rule names its measure",
        ),
        ("rules: {x: {measure: words}}\n", "rules: x has neither max nor min; expected one of them"),
        ("rules: {x: {measure: words, max: many}}\n", "rules: x: max is 'many'; expected a number, or false"),
        ("rules: {x: 3}\n", "rules: x is not of the form {measure: NAME, max or min: NUMBER, from_words: NUMBER,"),
        (
            "rules: {x: {measure: words, max: 1, unless: 3}}\n",
            "rules: x: unless is not of the form {measure: NAME, max or min: NUMBER}, or false",
        ),
        ("rules: {x: {filter: Shortest}}\n", "rules: x asks for the filter 'Shortest'; the known ones are "),
        ("rules: {x: {filter: Phrases, phrases: vreme}}\n", "rules: x: phrases is 'vreme'; expected a list of texts,"),
        ("rules: {x: {measure: words, max: 1, from_lines: few}}\n", "rules: x: from_lines is 'few'; expected a number from 0"),
        ("lines: {x: {phrases: []}}\n", "lines: x has no phrases; expected a list of them, or false to switch it off"),
        ("personal_data: {x: {pattern: '('}}\n", "personal_data: the pattern of x is not a valid regular expression: "),
        ("personal_data: {x: {pattern: a, check: b}}\n", "personal_data: x has the check 'b'; the known ones are iban,"),
        ("personal_data: {x: {pattern: a, action: b}}\n", "personal_data: x has the action 'b'; expected mask, drop, keep"),
        ("languages: {sl: {words: [a]}}\n", "languages: sl has the unknown key words; the known ones are rules, stop_words"),
        (
            "repeated_lines: {max_words: 3}\n",
            "repeated_lines is {'max_words': 3}; expected {max_words, min_documents, min_share}, or false",
        ),
        ("blocked_urls: {key: url, files: [nowhere]}\n", "blocked_urls names the file nowhere, which does not exist"),
        ("blocked_urls: {key: url, files: [/]}\n", "blocked_urls names the file /, which is a folder"),
        ("max_hole_share: 3\n", "max_hole_share is 3; expected a number from 0 to 1, or false"),
        ("- a\n", "holds no filter settings; expected a mapping"),
        ("rules: [a]\n", "rules is ['a']; expected a mapping, as the built-in settings have it"),
        ('mojibake: "no"\n', "mojibake is 'no'; expected true or false"),
        ("max_hole_share: .nan\n", "max_hole_share is '.nan'; expected a number from 0 to 1, or false"),
        ("rules: {x: {measure: words, max: 1.0e999}}\n", "rules: x: max is inf; expected a number, or false"),
        ("rules: {x: {measure: words, min: 9, max: 3}}\n", "rules: x has min 9 above max 3, so no text would pass; change one of them"),
        ("rules: {x: {measure: words, max: 1, needs_stop_words: 'no'}}\n", "rules: x: needs_stop_words is 'no'; expected true or false"),
        ("rules: {5: {measure: words, max: 1}}\n", "rules has the key 5, which is not text; write it in quotes"),
        ("lines: {x: true}\n", "lines: x is True; expected a mapping with match, max_words,"),
        ("lines: {x: {phrases: vreme}}\n", "lines: x: phrases is 'vreme'; expected a list of texts, such as [one, two], or false"),
        ("lines: {x: {phrases: [[vreme], lepo]}}\n", "lines: x: phrases has 'lepo' among lists; expected phrases alone,"),
        ("lines: {x: {phrases: [vreme], max_words: many}}\n", "lines: x: max_words is 'many'; expected a whole number from 0"),
        ("lines: {x: {phrases: [vreme], run: 0}}\n", "lines: x: run is 0; expected a whole number from 1"),
        ("lines: {x: {min_words: two}}\n", "lines: x: min_words is 'two'; expected a whole number from 0"),
        ("lines: {x: {unterminated: 'no'}}\n", "lines: x: unterminated is 'no'; expected true or false"),
        ("phrases: {x: [2.5]}\n", "phrases: x, item 1 is 2.5; expected text"),
        (
            "repeated_lines: {max_words: false, min_documents: 2, min_share: 0.1}\n",
            "repeated_lines: max_words is False; expected a number from 0, or false for all of repeated_lines",
        ),
        ("blocked_urls: {key: 3, files: []}\n", "blocked_urls: key is 3; expected text"),
        (
            "base: standard\npersonal_data: {e-mail: {actoin: drop}}\n",
            "personal_data: e-mail has the unknown key actoin; the known ones are action,",
        ),
        ("base: standard\npersonal_data: {e-mail: drop}\n", "personal_data: e-mail is 'drop'; expected a mapping with action,"),
        ("base: standard\npersonal_data: {oib: {context: OIB}}\n", "personal_data: oib: context is 'OIB'; expected a list of texts,"),
        (
            "personal_data: {x: {pattern: 'a?'}}\n",
            "personal_data: the pattern of x matches the empty text; correct it",
        ),
        ("personal_data: {replacement: 3}\n", "personal_data: replacement is 3; expected text, in which {kind} becomes the name"),
        ("languages: {slovene: {stop_words: [a]}}\n", "languages has 'slovene', which is not a language code; expected ISO 639,"),
        ("languages: {sl: {}, slv: {}}\n", "languages has sl and slv, which are one language; keep one of them"),
        ("languages: {sl: true}\n", "languages: sl is True; expected a mapping with rules, stop_words, or false"),
        ("languages: {sl: {stop_words: je}}\n", "languages: sl: stop_words is 'je'; expected a list of texts,"),
    ],
)
def test_settings_that_mean_nothing_are_refused(content: str, sentence: str, tmp_path: Path, write: Write) -> None:
    path = write("own.yaml", content)
    with pytest.raises(ValueError) as error:
        main(["--input", f"c={write('a.jsonl', jsonl([NEWS]))}", "--filters", str(path), "--output", str(tmp_path / "o")])
    assert sentence in str(error.value) and str(error.value).startswith(str(path)) and not (tmp_path / "o").exists()


def test_a_list_of_addresses_that_is_no_text_is_named(tmp_path: Path, write: Write) -> None:
    sites = write("sites.txt", b"spam.example\n\xff\n")
    own = write("own.yaml", f"base: none\nblocked_urls: {{key: url, files: [{sites}]}}\n")
    path = write("a.jsonl", jsonl([NEWS], url="https://posta.si"))
    assert (
        refusal(main, ["--input", f"c={path}", "--filters", str(own), "--workers", "1", "--output", str(tmp_path / "o")])
        == f"blocked_urls: {sites} is not UTF-8: byte 0xff at position 14; expected one site or address a line"
    )
    assert not (tmp_path / "o").exists()


def test_a_language_is_the_same_by_each_of_its_codes(tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """slv is sl, and Norwegian is `no`, which YAML 1.1 takes for false; stop words `no` and `on` stay words."""
    path = write(
        "own.yaml",
        "base: web\nlanguages: {slv: {rules: {gopher too short: {min: 7}}}, no: {stop_words: [og, no, on]}, srp_Cyrl: {stop_words: [је]}}\n",
    )
    whole = read_filters(str(path))
    for code in ("sl", "slv", "sl-Latn", "slv_Latn"):
        found = settings_for(whole, code)
        assert {rule.name: rule.min for rule in found.rules}["gopher too short"] == 7 and "je" in found.stop_words
    assert settings_for(whole, "no").stop_words == settings_for(whole, "nor_Latn").stop_words == ("og", "no", "on")
    assert settings_for(whole, "sr-Cyrl").stop_words == ("је",) and "je" in settings_for(whole, "sr").stop_words
    reference = write("reference.jsonl", jsonl([f"{NEWS} {number}" for number in range(200)]))
    assert fit_filters.main(["--input", str(reference), "--language", "slv", "--output", str(tmp_path / "sl.yaml")]) == 0
    assert list(yaml.safe_load((tmp_path / "sl.yaml").read_text())["languages"]) == ["sl"]
    assert "looks like" not in capsys.readouterr().err
    assert fit_filters.main(["--input", str(reference), "--language", "fi", "--output", str(tmp_path / "fi.yaml")]) == 0
    assert "note: the reference looks like sl and not like fi (py3langid)" in capsys.readouterr().err


def test_a_check_believes_nothing_of_another_form() -> None:
    for text in ("vreme", "", "abcdefghijklmnop", "2" * 13, "²" * 13, "š" * 16, "SI56-0201-0001-1603-397"):
        assert not any(check(text) for check in CHECKS.values()), text


def test_a_name_that_is_no_filter(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--filters strict is neither a file nor one of none, standard, web$"):
        read_filters("strict")


def test_thresholds_are_fitted(tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a reference in which each document ends one line of ten as sentences end, the fitted rule takes none."""
    texts = ["\n".join([f"to je vrstica brez konca {i} {j} in še besede" for j in range(9)] + [f"Konec je tu {i}."]) for i in range(200)]
    reference = write("reference.jsonl", jsonl(texts))
    output = tmp_path / "sl.yaml"
    arguments = ["--input", str(reference), "--language", "sl", "--base", "web", "--output", str(output)]
    assert fit_filters.main(arguments) == 0
    assert "fineweb lines without an end | min" in " ".join(capsys.readouterr().out.split())
    fitted = yaml.safe_load(output.read_text())
    assert fitted["base"] == "web" and "je" in fitted["languages"]["sl"]["stop_words"]
    before, after = settings_for(read_filters("web"), "hr"), settings_for(read_filters(str(output)), "sl")
    limit = {rule.name: rule.min for rule in after.rules}["fineweb lines without an end"]
    assert {rule.name: rule.min for rule in before.rules}["fineweb lines without an end"] == 0.12 and limit is not None and limit <= 0.1
    with pytest.raises(ValueError, match=r"exists; choose another --output, or remove it$"):
        fit_filters.main(arguments)
    few = ["--input", str(write("few.jsonl", jsonl(texts[:5]))), "--language", "sl", "--output", str(tmp_path / "b.yaml")]
    with pytest.raises(ValueError, match=r"^--lost 0.01 of 5 documents is less than one; give more reference text, or a larger share$"):
        fit_filters.main(few)
    for share in ("0", "1", "nan"):
        with pytest.raises(ValueError, match=rf"^--lost is {share}; expected a share above 0 and below 1$"):
            fit_filters.main([*few, "--lost", share])


def test_the_tables_of_code_points_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = code_points._tables.__wrapped__()
    (kept,) = (tmp_path / "scion").iterdir()
    again = code_points._tables.__wrapped__()
    assert all(np.array_equal(made[name], again[name]) and made[name].dtype == again[name].dtype for name in made)
    kept.write_bytes(kept.read_bytes()[:1000])  # cut by a machine that went down
    assert np.array_equal(code_points._tables.__wrapped__()["noise"], made["noise"])
    assert kept.stat().st_size > 1_000_000
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept / "nowhere"))
    assert np.array_equal(code_points._tables.__wrapped__()["kinds"], made["kinds"])


def test_what_is_asked_first_takes_nothing_away() -> None:
    rules = settings_for(read_filters("standard"), None).lines
    assert all(rule.may_take(phrase) for rule in rules if rule.match == "whole" for phrase in rule.phrases)
    for rule in (rule for rule in rules if rule.match == "contains"):
        line = " ".join(group[-1] for group in rule.groups)
        assert rule.takes(line) and rule.may_take(f"prej\n{line}\npotem") and not rule.may_take("nič takega")


def test_furniture_of_pages_goes_and_good_text_stays(tmp_path: Path) -> None:
    """Shares of two hundred cookie and menu lines that `web` takes, and of good texts, real ones of many kinds too where they are at hand."""
    furniture, good = [], list(GOOD_TEXTS.values())
    for kind in FURNITURE.values():
        furniture += [(f"{NEWS} {lines[:9]}.\n{lines}\n{MORE}", lines.splitlines()) for lines in kind.values()]
    kept, _, _ = cleaned(tmp_path, [text for text, _ in furniture], "--filters", "web")
    left = [line for (_, lines), text in zip(furniture, kept.values(), strict=True) for line in lines if line in text.splitlines()]
    if "SCION_SHARED_DATA" in os.environ:
        for path in sorted(Path(os.environ["SCION_SHARED_DATA"], "text").rglob("*.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as stream:
                texts = [json.loads(line)["text"] for line in itertools.islice(stream, 40)]
            good += [text for text in texts if len(text.split()) >= 60]  # Gopher asks for 50 words
    (tmp_path / "good").mkdir()
    _, gone, _ = cleaned(tmp_path / "good", good, "--filters", "web")
    print(f"furniture: {len(left)} of 200 lines left; good text: {len(gone)} of {len(good)} gone")
    assert len(left) <= 40, left
    assert len(gone) <= 0.02 * len(good), gone
