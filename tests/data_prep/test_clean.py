"""Cleaning changes what it says and nothing else, and every document is accounted for, however a run goes."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.artifacts import check_files, read_manifest
from data_prep.clean import clean, main
from data_prep.cleaning.language_filter import LanguageFilter
from data_prep.cleaning.problem_runs import ProblemRuns
from data_prep.cleaning.shard import CleanRules, Lengths
from data_prep.cleaning.text_hygiene import AFTER, BEFORE, control_characters, invisible_characters, line_ends, unicode_form, white_space
from data_prep.reading.corpora import Corpus
from data_prep.sharing.scanning import Reading
from tests.data_prep.packed import outputs, refusal, rows
from tests.processes import ROOT

Write = Callable[[str, str | bytes], Path]


def jsonl(texts: list[str], prefix: str = "d") -> str:
    return "".join(json.dumps({"id": f"{prefix}{i}", "text": text}, ensure_ascii=False) + "\n" for i, text in enumerate(texts))


@pytest.mark.parametrize(
    "step, before, after",
    [
        (line_ends, "a\r\nb\rc\x0cd\u2028e\u2029f\x85g\nh", "a\nb\nc\nd\ne\nf\ng\nh"),
        (control_characters, "a\x00b\x07\x7f\x9f\ufffe\tc\n", "ab\tc\n"),
        (invisible_characters, "\ufeffbe\u00adse\u200bda \u202eabc\u202c na\u200cme 👩\u200d🌾", "beseda abc na\u200cme 👩\u200d🌾"),
        (unicode_form, "c\u030ces\u030ca", "češa".replace("s", "š", 1).replace("češ", "češ")),
        (white_space, "  a\u00a0 b\t\tc \n\n\n\n d\u2003e \n", "a b c\n\nd e"),
    ],
)
def test_steps_by_hand(step: Callable[[str], str], before: str, after: str) -> None:
    assert step(before) == after
    assert step(after) == after


@pytest.mark.parametrize(
    "before, after",
    [
        ("def f(x):\n\n    if x:  # y\n\t\treturn 1   \n\n\n\ng()\n", "def f(x):\n\n    if x:  # y\n\t\treturn 1\n\n\n\ng()"),
        ("\n\n    prvi verz\n        drugi verz\n\n", "    prvi verz\n        drugi verz"),
        ("a\u00a0  b\n--   ---\n", "a   b\n--   ---"),
        (" \t\n \n", ""),
    ],
)
def test_layout_can_be_kept(before: str, after: str) -> None:
    steps = CleanRules(layout="keep").steps()
    for step in steps.values():
        before = step(before)
    assert before == after and steps["white space"](after) == after
    assert CleanRules().steps()["white space"]("def f(x):\n    return  1") == "def f(x):\nreturn 1"


@given(st.text(st.sampled_from("aš \n\r\t\x00\x85\u00a0\u200b\u2028\u0301\u00ad."), max_size=30))
def test_hygiene_is_done_once_and_loses_no_visible_character(text: str) -> None:
    clean_text = text
    for step in (*BEFORE.values(), *AFTER.values()):
        clean_text = step(clean_text)
    again = clean_text
    for step in (*BEFORE.values(), *AFTER.values()):
        again = step(again)
    assert again == clean_text
    visible = [c for c in unicodedata.normalize("NFD", text) if c in "asš."]
    assert [c for c in unicodedata.normalize("NFD", clean_text) if c in "asš."] == visible


class TestProblemRuns:
    """The rule of the paper, and each choice that it leaves open."""

    @pytest.mark.parametrize(
        "text, expected",
        [
            ("Slovenska beseda češnja ŽABA šČŽ", "Slovenska beseda češnja ŽABA šČŽ"),
            ("Naslov …………… 12", "Naslov  12"),
            ("Naslov …………  12", "Naslov …………  12"),  # four
            ("formula α + β = γ", "formula α + β = γ"),  # ASCII signs end a run
            ("tu Привет мир konec", "tu  konec"),
            ("tu прив konec", "tu прив konec"),
            ("tu αβ γδ ε konec", "tu  konec"),  # together five, white space not counted
            ("tu αβ γδ konec", "tu αβ γδ konec"),
            ("beαβγδεta", "beαβγδεta"),  # a word in part of ASCII letters
            ("beαβγ δεζη konec", "beαβγ δεζη konec"),  # only four of them in whole tokens
            ("beαβγ δεζηθ konec", "beαβγ  konec"),
            ("αβγδε", ""),
            ("αβγ\nδε\nx", "αβγ\nδε\nx"),  # a run ends with its line
            ("αβγδε\n\nζηθικ\nx", "\n\n\nx"),
            ("Ćirić, naïve, Đorđe, Müller", "Ćirić, naïve, Đorđe, Müller"),  # names hold ASCII letters
            ("„“”«»", "„“”«»"),
            ("je „Привет“ rekel", "je  rekel"),  # the marks of what goes go with it
            ("je „Привет svet“ rekel", "je „ svet“ rekel"),
            ("je rekel: „svet Привет“ in", "je rekel: „svet “ in"),
            ("rekel „svet Привет“ „мир svet“", "rekel „svet “ „ svet“"),
            ("“Привет” ‘мирмир’ »мирмир« x", " x"),
            ("„…“ »—« „…“", "„…“ »—« „…“"),  # five marks of quotation count as none
            ("konec ………“\n„……… začetek", "konec ………“\n„……… začetek"),
            ("漢字漢字漢字。", ""),
        ],
    )
    def test_slovene(self, text: str, expected: str) -> None:
        assert ProblemRuns("sl").remover()(text) == ProblemRuns("slv").remover()(text) == expected

    def test_options(self) -> None:
        assert ProblemRuns("sl", min_characters=2).remover()("x αβ y α") == "x  y α"
        assert ProblemRuns("sl", counted="token").remover()("x αβγ δεζηθ y") == "x αβγ  y"
        assert ProblemRuns("sl", other_alphabets="keep").remover()("Привет ………… …") == "Привет "
        assert ProblemRuns("sl", other_alphabets="keep").remover()("àéîõü") == ""  # Latin, but not Slovene
        assert ProblemRuns("sl", typography="keep").remover()("………… … „Привет“") == "………… … „“"
        assert ProblemRuns("sl", allowed="αβ").remover()("αβαβαβ ΑΒΑΒΑΒ γδγδγδ") == "αβαβαβ ΑΒΑΒΑΒ "
        assert ProblemRuns("sr").remover()("Ово је ћирилица") == "Ово је ћирилица"
        assert ProblemRuns("hr").remover()("ćđćđćđ") == "ćđćđćđ" and ProblemRuns("sl").remover()("ćđćđćđ") == ""

    def test_unknown_language(self) -> None:
        with pytest.raises(
            ValueError, match=r"^--problem-runs knows no language 'xx', only bs, cs, .*; take en and name the language's letters"
        ):
            ProblemRuns("xx")

    @given(st.text(st.sampled_from("aš1.α…я -\n"), max_size=25), st.integers(1, 6))
    def test_against_tokens_one_by_one(self, text: str, limit: int) -> None:
        """The same rule written over a list of tokens."""
        tokens, position = [], 0
        while position < len(text):
            end = position + 1
            if text[position].isalnum():
                while end < len(text) and text[end].isalnum():
                    end += 1
            tokens.append(text[position:end])
            position = end
        kept, run = "", ""
        for token in [*tokens, "."]:
            if all(character in "α…я" for character in token):
                run += token
            elif token == "\n" or not token.isspace():
                kept += ("" if len(run) >= limit else run) + token
                run = ""
        # Spaces stay where they are; here only what is not white space is compared.
        assert "".join(ProblemRuns("sl", min_characters=limit).remover()(text).split()) == "".join(kept[:-1].split())


TEXTS = [
    "Prvo besedilo.\r\nDruga vrstica.",
    "c\u030cebela \u00a0 leti",
    "uvod ………………… 7",
    "",
    "da",
    "x" * 300,
    "čisto besedilo brez napak",
    "skrito\u200b in \x01 nadzorno",
]
RULES = CleanRules(problem_runs=ProblemRuns("sl"), lengths=Lengths(min_characters=3, max_characters=200, min_words=2))


def test_every_document_is_accounted_for(tmp_path: Path, write: Write) -> None:
    path = write("a.jsonl", jsonl(TEXTS))
    arguments = ["--input", f"c={path}", "--problem-runs", "sl", "--min-characters", "3", "--max-characters", "200", "--min-words", "2"]
    assert main([*arguments, "--output", str(tmp_path / "o"), "--workers", "1"]) == 0
    kept, removed = rows(tmp_path / "o/text"), rows(tmp_path / "o/removed")
    assert {row["id"]: row["text"] for row in kept} == {
        "d0": "Prvo besedilo.\nDruga vrstica.",
        "d1": "čebela leti",
        "d2": "uvod 7",
        "d6": "čisto besedilo brez napak",
        "d7": "skrito in nadzorno",
    }
    assert [(row["id"], row["line"], row["reason"], row["detail"]) for row in removed] == [
        ("d3", 4, "empty", "0 characters"),
        ("d4", 5, "too short", "2 characters"),
        ("d5", 6, "too long", "300 characters"),
    ]
    manifest = read_manifest(tmp_path / "o")
    assert manifest is not None
    check_files(tmp_path / "o", manifest)
    counts = manifest.facts["counts"]["c"]
    assert (counts["num_read"], counts["num_kept"], counts["num_changed"]) == (8, 5, 4)
    assert counts["characters_read"] == counts["characters_kept"] + counts["characters_lost"] + sum(
        change["characters"] for change in counts["removed"].values()
    )
    assert {reason: (change["documents"], change["characters"]) for reason, change in counts["changed"].items()} == {
        "line ends": (1, 1),
        "unicode form": (1, 1),
        "problem runs": (1, 7),
        "invisible characters": (1, 1),
        "control characters": (1, 1),
        "white space": (3, 4),
    }
    assert counts["changed"]["problem runs"]["samples"] == [{"place": "a.jsonl:3", "before": "uvod ………………… 7", "after": "uvod  7"}]
    report = (tmp_path / "o/report.md").read_text()
    assert "| c      | removed   | too long             |      1 |             300 |" in report
    assert "- a.jsonl:3: 'uvod ………………… 7' -> 'uvod  7'\n" in report


def corpus(directory: Path) -> list[Corpus]:
    directory.mkdir()
    paths = []
    for part in range(5):
        paths.append(directory / f"part{part}.jsonl.gz")
        paths[-1].write_bytes(gzip.compress(jsonl(TEXTS * 20, f"p{part}_").encode()))
    (directory / "b.txt").write_text("ena vrstica\ndruga vrstica\n")
    return [Corpus("many", tuple(paths)), Corpus("plain", (directory / "b.txt",))]


def test_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    corpora = corpus(tmp_path / "in")
    for workers in (1, 2, 4):
        clean(corpora, tmp_path / f"o{workers}", rules=RULES, workers=workers)
    assert outputs(tmp_path / "o1") == outputs(tmp_path / "o2") == outputs(tmp_path / "o4")
    assert rows(tmp_path / "o1/text/plain") == [{"id": "b.txt:1", "text": "ena vrstica"}, {"id": "b.txt:2", "text": "druga vrstica"}]


def test_a_repaired_shard_is_done_and_the_others_are_not_done_again(tmp_path: Path) -> None:
    corpora = corpus(tmp_path / "in")
    clean(corpora, tmp_path / "expected", rules=RULES)
    broken = corpora[0].paths[3]
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-30])
    with pytest.raises(ValueError, match=r"part3\.jsonl\.gz is not a complete gzip file after line \d+: "):
        clean(corpora, tmp_path / "o", rules=RULES)
    unfinished = tmp_path / ".o.unfinished"
    first = unfinished / "output/text/many/00000_part0.jsonl.gz"
    inode = first.stat().st_ino
    assert not (tmp_path / "o").exists() and not list(unfinished.rglob("*part3*"))
    assert refusal(clean, corpora, tmp_path / "o") == (
        f"{unfinished} was left by a run with other options or inputs; run the same command to finish it, remove it, or choose another --output"
    )
    broken.write_bytes(whole)
    clean(corpora, tmp_path / "o", rules=RULES, workers=2)
    assert (tmp_path / "o/text/many/00000_part0.jsonl.gz").stat().st_ino == inode
    strip = lambda files: {name: data for name, data in files.items() if "part3.jsonl.gz.json" not in name}  # noqa: E731 has the file's time
    assert strip(outputs(tmp_path / "o")) == strip(outputs(tmp_path / "expected"))
    assert not unfinished.exists()


def test_two_runs_do_not_write_one_output(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / ".o.unfinished").mkdir()
    lock = os.open(tmp_path / ".o.unfinished", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with pytest.raises(ValueError, match=r"^another run is writing .*/o \("):
            clean(corpus(tmp_path / "in"), tmp_path / "o")
    finally:
        os.close(lock)


def test_a_full_disk_keeps_finished_shards(tmp_path: Path, write: Write) -> None:
    """The kernel refuses files over a limit with the same kind of error as a full disk."""
    small, big = write("small.jsonl", jsonl(["kratko besedilo"])), write("big.jsonl", jsonl(["dolgo besedilo " * 50_000], "big"))
    command = [
        sys.executable,
        "-m",
        "data_prep.clean",
        "--input",
        f"c={small}",
        str(big),
        "--workers",
        "1",
        "--filters",
        "none",
        "--output",
        str(tmp_path / "o"),
    ]
    limited = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    assert limited.returncode == 2
    assert limited.stderr.startswith(f"error: the disk is full while writing {tmp_path / 'o'}: [Errno 27] File too large")
    assert limited.stderr.endswith(f"finished shards are kept in {tmp_path / '.o.unfinished'}\n")
    assert not (tmp_path / "o").exists() and not list((tmp_path / ".o.unfinished").rglob("*big*"))
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
    assert len(rows(tmp_path / "o/text")) == 2


def test_ids_used_twice(tmp_path: Path, write: Write) -> None:
    a, b = write("a.jsonl", jsonl(["ena", "dva"])), write("b.jsonl", jsonl(["tri", "štiri"], "e") + jsonl(["pet"]))
    corpora = [Corpus("c", (a,)), Corpus("d", (b,))]
    assert refusal(clean, corpora, tmp_path / "o") == (
        f"{b}, line 3 has the same id as {a}, line 1 (1 in all); give each document its own id, or keep them with --skip-bad"
    )
    assert not (tmp_path / "o").exists()
    manifest = clean(corpora, tmp_path / "p", reading=Reading(skip_bad=True))
    assert manifest.facts["num_duplicate_ids"] == 1 and len(rows(tmp_path / "p/text")) == 5


def test_bad_lines_are_passed_over_and_named(tmp_path: Path, write: Write) -> None:
    path = write("a.jsonl", b'{"text": "ena"}\n{"text": "\xe8"}\n{"text"\n{"text": "dva"}\r\n{"text": "\\u0000tri"}\n')
    manifest = clean([Corpus("c", (path,))], tmp_path / "o", reading=Reading(skip_bad=True))
    assert [(row["id"], row["text"]) for row in rows(tmp_path / "o/text")] == [
        ("a.jsonl:1", "ena"),
        ("a.jsonl:4", "dva"),
        ("a.jsonl:5", "tri"),
    ]
    bad = manifest.facts["counts"]["c"]["bad_input"]
    assert {reason: change["documents"] for reason, change in bad.items()} == {"no UTF-8": 1, "no JSON": 1}
    assert (
        bad["no JSON"]["samples"][0]["detail"]
        == f"{path}, line 3 is not valid JSON: Expecting ':' delimiter at column 8; expected one object per line"
    )


def test_an_empty_file_gives_an_empty_shard(tmp_path: Path, write: Write) -> None:
    manifest = clean([Corpus("c", (write("a.jsonl", ""), write("b.jsonl", jsonl(["ena"]))))], tmp_path / "o")
    assert manifest.facts["counts"]["c"]["num_read"] == 1
    assert sorted(p.name for p in (tmp_path / "o/text/c").iterdir()) == ["00000_a.jsonl", "00001_b.jsonl"]


def test_language_filter(tmp_path: Path, write: Write) -> None:
    texts = [
        "Danes je lep dan in otroci se igrajo na vrtu pred hišo, kjer rastejo jabolka.",
        "The weather is nice today and the children are playing in the garden behind the house.",
        "Oggi è una bella giornata e i bambini giocano nel giardino dietro la casa.",
    ]
    path = write("a.jsonl", jsonl(texts))
    clean([Corpus("c", (path,))], tmp_path / "o", rules=CleanRules(languages=("sl", "it")), workers=2)
    assert [row["id"] for row in rows(tmp_path / "o/text")] == ["d0", "d2"]
    assert rows(tmp_path / "o/removed")[0] | {"detail": ""} == {
        "id": "d1",
        "file": "a.jsonl",
        "line": 2,
        "reason": "language",
        "detail": "",
    }
    with pytest.raises(ValueError, match=r"^--language xx is unknown; the known ones are af, am, "):
        clean([Corpus("c", (path,))], tmp_path / "p", rules=CleanRules(languages=("sl", "xx")))
    assert not (tmp_path / ".p.unfinished").exists()


LATIN = "Predsednik je juče u Beogradu izjavio da će vlada tokom naredne nedelje razmotriti predlog zakona o javnim preduzećima."
CYRILLIC = "Председник је јуче у Београду изјавио да ће влада током наредне недеље размотрити предлог закона о јавним предузећима."


@pytest.mark.parametrize(
    "language, close_languages, passes",
    [
        ("sr", "together", [True, True, False]),
        ("sr-Latn", "together", [True, False, False]),
        ("sr-Cyrl", "together", [False, True, False]),
        ("hr", "together", [True, False, False]),  # is written in Latin script only
        ("cnr", "together", [True, True, False]),  # which the model does not know by itself
        ("sr", "apart", [False, True, False]),
        ("sr-Cyrl", "apart", [False, True, False]),
        ("sl", "together", [False, False, True]),
        ("sl-Cyrl", "together", [False, False, False]),
    ],
)
def test_language_and_script_are_two_questions(language: str, close_languages: str, passes: list[bool]) -> None:
    slovene = "Predsednik je včeraj v Ljubljani izjavil, da bo vlada prihodnji teden obravnavala predlog zakona o javnih podjetjih."
    found = [LanguageFilter([language], close_languages=close_languages).refuses(text) for text in (LATIN, CYRILLIC, slovene)]
    assert [reason is None for reason in found] == passes
    if language == "sr-Latn":
        assert found[1] is not None and found[1].endswith(" in Cyrillic script")


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: LanguageFilter(["sl"], float("nan")), "--min-language-score is nan; expected a probability from 0 to 1"),
        (lambda: LanguageFilter(["sl"], 1.5), "--min-language-score is 1.5; expected a probability from 0 to 1"),
        (lambda: Lengths(min_characters=-5), "--min-characters is -5; expected at least 0"),
        (lambda: Lengths(min_words=-1), "--min-words is -1; expected at least 0"),
        (lambda: Lengths(9, 5), "--max-characters is 5, less than --min-characters 9: no document would pass"),
    ],
)
def test_limits_that_mean_nothing_are_refused(make: Callable[[], object], sentence: str) -> None:
    assert refusal(make) == sentence


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--samples", "-1"], "--samples is -1; expected at least 0"),
        (
            ["--allow-characters", "x", "--typography", "keep"],
            "--allow-characters and --typography need --problem-runs; name the language whose letters are not a problem",
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(options: list[str], sentence: str, tmp_path: Path, write: Write) -> None:
    path = write("a.jsonl", json.dumps({"text": "besedilo"}) + "\n")
    assert refusal(main, ["--input", f"c={path}", *options, "--output", str(tmp_path / "o")]) == sentence and not (tmp_path / "o").exists()


def test_a_name_that_is_no_utf8_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with open(os.fsencode(tmp_path / "in") + b"/\xff.txt", "w") as file:
        file.write("ena\n")
    done = subprocess.run(
        [sys.executable, "-m", "data_prep.clean", "--input", f"c={tmp_path / 'in'}", "--output", str(tmp_path / "o")],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and [path.name for path in tmp_path.iterdir()] == ["in"]
    assert (
        done.stderr == f"error: the name of the input file {tmp_path}/in/\\udcff.txt is not UTF-8, which no output could hold; rename it\n"
    )


def test_unknown_languages_and_scripts_are_refused(tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"^--language sr-Latin names an unknown script; the known ones are Arab, Armn, "):
        LanguageFilter(["sr-Latin"])
    with pytest.raises(ValueError, match=r"^--language cnr is unknown; the known ones are af, am, "):
        LanguageFilter(["cnr"], close_languages="apart")
    path = write("a.jsonl", jsonl([LATIN, CYRILLIC + "\n    zamik"]))
    assert main(["--input", f"c={path}", "--language", "sr", "--layout", "keep", "--workers", "1", "--output", str(tmp_path / "o")]) == 0
    assert [row["text"] for row in rows(tmp_path / "o/text")] == [LATIN, CYRILLIC + "\n    zamik"]


def test_real_text_keeps_its_words(shared_data: Path, tmp_path: Path) -> None:
    """The rule is for noise: Slovene news and help pages lose no word, and Serbian pages among them lose their Cyrillic ones."""
    folder = shared_data / "text"
    slovene = (folder / "sl/ud_ssj.jsonl.gz", folder / "sl/gnome_help.jsonl.gz")
    manifest = clean(
        [Corpus("sl", slovene), Corpus("sr", (folder / "sr/gnome_help.jsonl.gz",))],
        tmp_path / "o",
        rules=CleanRules(ProblemRuns("sl")),
        workers=2,
    )
    changed = {name: count["changed"] for name, count in manifest.facts["counts"].items()}
    assert changed["sl"].get("problem runs", {"documents": 0})["documents"] <= 5
    counts = manifest.facts["counts"]["sr"]
    assert changed["sr"]["problem runs"]["documents"] == counts["num_read"] == 298
    assert counts["characters_kept"] < 0.35 * counts["characters_read"]
    original = [json.loads(line)["text"].split() for path in slovene for line in gzip.decompress(path.read_bytes()).splitlines()]
    kept = [row["text"].split() for row in rows(tmp_path / "o/text/sl")]
    assert len(kept) == len(original)
    assert sum(map(len, kept)) > 0.9995 * sum(map(len, original))
