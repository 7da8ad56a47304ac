"""Deduplication of corpora: who keeps what, every removal accounted for, and the same bytes however the work is cut."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

from common.artifacts import check_files, read_manifest
from data_prep.dedup import dedup, main
from data_prep.deduplication import onion
from data_prep.deduplication.decisions import DocumentMethods, text_size
from data_prep.deduplication.onion_types import OnionSettings
from data_prep.deduplication.similar_documents import SimilarSettings
from data_prep.reading.comparison import Comparison
from data_prep.reading.corpora import Corpus
from data_prep.sharing.scanning import Protected, Reading
from data_prep.sharing.shards import ordered_map
from tests.data_prep.packed import outputs, refusal, rows
from tests.data_prep.plain_onion import plain_onion

Write = Callable[[str, str | bytes], Path]
LONG = " ".join(f"w{i}" for i in range(30))


def jsonl(texts: list[str], prefix: str = "d") -> str:
    return "".join(json.dumps({"id": f"{prefix}{i}", "text": text, "kind": "k"}) + "\n" for i, text in enumerate(texts))


def random_texts(number: int, seed: int = 0) -> list[str]:
    """Documents of paragraphs from a small stock, so that many are repeated, whole and in part."""
    generator = random.Random(seed)
    stock = [[f"s{generator.randrange(400)}" for _ in range(generator.randrange(1, 40))] for _ in range(60)]
    texts = []
    for _ in range(number):
        paragraphs = []
        for _ in range(generator.randrange(1, 5)):
            words = list(generator.choice(stock))
            if generator.random() < 0.5:
                words[generator.randrange(len(words))] = f"x{generator.randrange(10**6)}"
            paragraphs.append(" ".join(words))
        texts.append("\n".join(paragraphs))
    return texts


def test_the_first_corpus_keeps_what_both_have(tmp_path: Path, write: Write) -> None:
    a = write("a.jsonl", jsonl([f"{LONG}\n\nonly in a"], "a"))
    b = write("b.txt", f"only in b\n{LONG}\n")
    for names, order in (("ab", [("a", a), ("b", b)]), ("ba", [("b", b), ("a", a)])):
        inputs = [argument for name, path in order for argument in ("--input", f"{name}={path}")]
        assert main([*inputs, "--min-kept-tokens", "0", "--output", str(tmp_path / names), "--workers", "1"]) == 0
    assert rows(tmp_path / "ab/text") == [
        {"id": "a0", "kind": "k", "text": f"{LONG}\n\nonly in a"},
        {"id": "b.txt:1", "text": "only in b"},
    ]
    assert rows(tmp_path / "ba/text/b") == [{"id": "b.txt:1", "text": "only in b"}, {"id": "b.txt:2", "text": LONG}]
    assert rows(tmp_path / "ba/text/a") == [{"id": "a0", "kind": "k", "text": "only in a"}]
    assert rows(tmp_path / "ba/removed") == [
        {
            "corpus": "a", "file": "a.jsonl", "line": 1, "id": "a0", "paragraph": 1, "reason": "near-duplicate", "tokens": 30, "share": 1.0,
            "repeats": {"corpus": "b", "file": "b.txt", "line": 2, "paragraph": 1, "share_of_ngrams": 1.0},
        }
    ]  # fmt: skip
    report = (tmp_path / "ba/report.md").read_text()
    assert "| a    | b       | near-duplicate |          1 |     30 | 0.00 |" in report
    manifest = read_manifest(tmp_path / "ba")
    assert manifest is not None and not (tmp_path / "ba/scratch").exists()
    check_files(tmp_path / "ba", manifest)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One corpus of 300 documents in one file, and its output."""
    directory = tmp_path_factory.mktemp("whole")
    (directory / "all.jsonl").write_text(jsonl(random_texts(300)))
    dedup([Corpus("c", (directory / "all.jsonl",))], directory / "output", settings=OnionSettings(n=5))
    return directory


def test_decisions_and_counts_are_those_of_the_reference(whole: Path) -> None:
    texts = random_texts(300)
    expected = plain_onion(texts, OnionSettings(n=5))
    assert 50 < sum(map(sum, expected)) < sum(map(len, expected)) - 50
    kept = {
        f"d{i}": "\n".join(p for p, gone in zip(text.split("\n"), row) if not gone) for i, (text, row) in enumerate(zip(texts, expected))
    }
    assert {row["id"]: row["text"] for row in rows(whole / "output/text")} == {key: text for key, text in kept.items() if text}
    removed = rows(whole / "output/removed")
    assert [(row["id"], row["paragraph"]) for row in removed] == [
        (f"d{i}", p + 1) for i, row in enumerate(expected) for p, gone in enumerate(row) if gone
    ]
    manifest = read_manifest(whole / "output")
    assert manifest is not None
    counts = manifest.facts["counts"]["c"]
    assert sum(counts["documents"].values()) == 300
    assert counts["read"]["paragraphs"] == sum(map(len, expected)) == counts["kept"]["paragraphs"] + len(removed)
    for key in ("paragraphs", "tokens"):
        assert counts["read"][key] == counts["kept"][key] + sum(row[key] for row in counts["removed"])


@pytest.mark.some(3)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("passes", [1, 2])
def test_the_same_for_any_number_of_processes_and_passes(whole: Path, tmp_path: Path, workers: int, passes: int) -> None:
    # In five files, so that there is something to share out.
    lines = (whole / "all.jsonl").read_text().splitlines(keepends=True)
    paths = []
    for part in range(5):
        paths.append(tmp_path / f"part{part}.jsonl")
        paths[-1].write_text("".join(lines[part * 60 : part * 60 + 60]))
    dedup([Corpus("c", tuple(paths))], tmp_path / "output", settings=OnionSettings(n=5), workers=workers, passes=passes)
    assert rows(tmp_path / "output/text") == rows(whole / "output/text")
    place = ("id", "paragraph", "reason", "share", "tokens")
    removed, expected = (
        [(*(row[key] for key in place), row["repeats"]["share_of_ngrams"]) for row in rows(directory / "output/removed")]
        for directory in (tmp_path, whole)
    )
    assert removed == expected


@pytest.mark.slow
def test_workers_change_no_byte(whole: Path, tmp_path: Path) -> None:
    corpora = [Corpus("c", (whole / "all.jsonl",)), Corpus("d", (tmp_path / "d.jsonl.gz", tmp_path / "empty.jsonl"))]
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(jsonl(random_texts(50, seed=1)).encode()))
    (tmp_path / "empty.jsonl").write_text("")
    dedup(corpora, tmp_path / "one", methods=DocumentMethods(same=True))
    dedup(corpora, tmp_path / "three", methods=DocumentMethods(same=True), workers=3, passes=2)
    assert outputs(tmp_path / "one") == outputs(tmp_path / "three")


def test_one_pass_holds_each_ngram_of_kept_text_once(tmp_path: Path, write: Write) -> None:
    path = write("a.jsonl", jsonl([LONG, *(" ".join(f"u{i}x{j}" for j in range(40)) for i in range(50)), LONG]))
    assert dedup([Corpus("c", (path,))], tmp_path / "output").facts["num_ngrams_in_memory"] == 22 + 50 * 32


def test_evaluation_texts_are_kept_out(tmp_path: Path, write: Write) -> None:
    evaluation = write("eval.jsonl", json.dumps({"id": 7, "question": LONG, "choices": ["ena dve tri štiri pet", "da"]}) + "\n")
    texts = [
        "before " + " ".join(f"w{i}" for i in range(5, 18)) + " after\nkept",  # 13 tokens in a row
        "before " + " ".join(f"w{i}" for i in range(5, 17)) + " after",  # 12
        "ena dve tri štiri pet",  # the same short paragraph
        "zdaj ena dve tri štiri pet",
        "da",  # too short to be protected
        "x " + " ".join(f"w{i}" for i in range(7)) + "\n" + " ".join(f"w{i}" for i in range(7, 14)),  # across two paragraphs
    ]
    path = write("train.jsonl", jsonl(texts))
    arguments = [
        "--input",
        f"web={path}",
        "--against",
        str(evaluation),
        "--min-kept-tokens",
        "0",
        "--workers",
        "1",
        "--output",
        str(tmp_path / "o"),
    ]
    assert main(arguments) == 0
    assert [row["text"] for row in rows(tmp_path / "o/text")] == ["kept", texts[1], texts[3], texts[4]]
    removed = rows(tmp_path / "o/removed")
    assert [(row["id"], row["paragraph"], row["reason"]) for row in removed] == [
        ("d0", 1, "contaminated"), ("d2", 1, "contaminated"), ("d5", 1, "contaminated"), ("d5", 2, "contaminated")
    ]  # fmt: skip
    assert removed[0]["repeats"] == {"corpus": "(protected)", "file": str(evaluation), "line": 1}


def test_evaluation_sets_are_protected_by_name(tmp_path: Path, write: Write) -> None:
    """SI-NLI as eval.prepare writes it, and what a set with a file for each language has; nothing of the sets that were not named."""
    data = tmp_path / "eval_data"
    for name, text in (
        ("sl/si_nli_nc_dev", LONG),
        ("sl/superglue_human/RTE", "ena dve tri štiri pet"),
        ("encoders/taxi1500/slv", "to je stih o milosti"),
    ):
        path = data / f"{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps({"id": 1, "premise": text}).encode() + b"\n"))
    path = write("train.jsonl", jsonl([LONG, "ena dve tri štiri pet", "to je stih o milosti", "kept"]))
    common = ["--input", f"c={path}", "--workers", "1", "--evaluation-data", str(data)]
    for names, kept in ((["si_nli"], 3), (["si_nli", "taxi1500"], 2), (["all"], 1)):
        output = tmp_path / f"o{kept}"
        assert main([*common, "--against-sets", *names, "--output", str(output)]) == 0
        assert [row["text"] for row in rows(output / "text")][-1] == "kept" and len(rows(output / "text")) == kept
        assert str(data / "sl/si_nli_nc_dev.jsonl.gz") in read_manifest(output).inputs
    for names, sentence in (
        (
            ["xlsum"],
            rf"^{data} has no file of the evaluation set xlsum \(summarisation/ar\.jsonl\.gz \.\.\.\); make it with python -m eval\.prepare xlsum",
        ),
        (["nothing"], r"has no set nothing; it has superglue_sl, si_nli, "),
    ):
        with pytest.raises(ValueError, match=sentence):
            main([*common, "--against-sets", *names, "--output", str(tmp_path / "p")])
    with pytest.raises(ValueError, match=r"^--against-sets and --evaluation-data need each other"):
        main([*common, "--output", str(tmp_path / "p")])
    assert not (tmp_path / "p").exists()


def test_a_hole_in_the_protected_texts_is_an_error(tmp_path: Path, write: Write) -> None:
    path, lines = write("train.jsonl", jsonl([f"{LONG} end", "kept"])), write("eval.txt", f"x\n\n{LONG}\n")
    bad = write("eval.jsonl", '{"q": "a"}\nno\n')
    with pytest.raises(ValueError, match=r"eval\.jsonl, line 2 is not valid JSON"):
        dedup([Corpus("c", (path,))], tmp_path / "o", against=[bad], reading=Reading(skip_bad=True))
    dedup([Corpus("c", (path,))], tmp_path / "o", against=[lines], reading=Reading(skip_bad=True))
    assert [row["text"] for row in rows(tmp_path / "o/text")] == ["kept"]
    assert rows(tmp_path / "o/removed")[0]["repeats"]["line"] == 3


def test_same_documents_however_short(tmp_path: Path, write: Write) -> None:
    path = write("a.jsonl", jsonl(["kratko besedilo", "kratko  besedilo", "kratko\nbesedilo", "", " "]))
    dedup([Corpus("c", (path,))], tmp_path / "with", methods=DocumentMethods(same=True))
    dedup([Corpus("c", (path,))], tmp_path / "without")
    assert [row["id"] for row in rows(tmp_path / "with/text")] == ["d0", "d2"]
    assert [row["id"] for row in rows(tmp_path / "without/text")] == ["d0", "d1", "d2"]
    manifest = read_manifest(tmp_path / "with")
    assert manifest is not None and manifest.facts["counts"]["c"]["documents"] == {"whole": 2, "removed": 1, "empty": 2}
    assert rows(tmp_path / "with/removed")[0]["repeats"] == {"corpus": "c", "file": "a.jsonl", "line": 1}


def test_similar_documents(tmp_path: Path, write: Write) -> None:
    words = [f"w{i}" for i in range(300)]
    edited = [*words[:150], "x", *words[151:]]  # Jaccard 293 / 301
    half = [*words[:150], *(f"v{i}" for i in range(150))]
    path = write("a.jsonl", jsonl([" ".join(words), " ".join(edited), " ".join(half), "kratko", "drugo"]))
    for passes in (1, 2):
        dedup(
            [Corpus("c", (path,))],
            tmp_path / f"{passes}",
            methods=DocumentMethods(similar=SimilarSettings(0.8)),
            settings=OnionSettings(threshold=1),
            passes=passes,
        )
        assert [row["id"] for row in rows(tmp_path / f"{passes}/text")] == ["d0", "d2", "d3", "d4"]
        removed = rows(tmp_path / f"{passes}/removed")[0]
        assert (removed["reason"], removed["share"]) == ("similar-document", round(293 / 301, 4))
        assert removed["repeats"] == {"corpus": "c", "file": "a.jsonl", "line": 1}


@pytest.mark.parametrize(
    "comparison, kept",
    [
        (Comparison(), 4),
        (Comparison(["case"]), 3),
        (Comparison(["unicode-form"]), 3),
        (Comparison(["case", "unicode-form", "punctuation"]), 1),
    ],
)
def test_differences_that_do_not_count(tmp_path: Path, write: Write, comparison: Comparison, kept: int) -> None:
    text = "Čez goro, čez gozd in čez reko gre pot do doma na kraju vasi"
    texts = [text, text.upper(), text.replace("č", "c\u030c").replace("Č", "C\u030c"), text.replace(" ", "! ") + "\n***"]
    path = write("a.jsonl", jsonl(texts))
    dedup([Corpus("c", (path,))], tmp_path / "o", comparison=comparison, settings=OnionSettings(paragraphs="document"))
    assert len(rows(tmp_path / "o/text")) == kept
    assert rows(tmp_path / "o/text")[0]["text"] == text


def test_marks_apart() -> None:
    assert Comparison(marks_apart=True).prepare("Da, (ne)!").split() == ["Da", ",", "(", "ne", ")", "!"]
    assert Comparison(["punctuation"]).prepare("a, b\n---\n\nc").split("\n") == ["a b", "---", "", "c"]
    with pytest.raises(ValueError, match=r"^--ignore does not know spelling; it knows case, punctuation, unicode-form$"):
        Comparison(["spelling"])
    with pytest.raises(ValueError, match=r"^--marks-apart and --ignore punctuation exclude each other$"):
        Comparison(["punctuation"], marks_apart=True)


GOOD = json.dumps({"text": "dobro"}) + "\n"
BAD = {
    "no UTF-8": (b"ab\xe8\n", "{path}, line 2 is not UTF-8: byte 0xe8 at position 3; convert the file, for example with iconv"),
    "no JSON": (
        b'{"text": "a\x00b"}\n',
        "{path}, line 2 is not valid JSON: Invalid control character at at column 12; expected one object per line",
    ),
    "no text": (b'{"body": "a"}\n', "{path}, line 2 has no key 'text', only 'body'; name the key of the text with --text-key"),
    "too long": (
        b'{"text": "' + b"a" * 2000 + b'"}\n',
        "{path}, line 2: the line is longer than 0.000976562 MiB; split it, or allow more with --max-document-mib",
    ),
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_lines_stop_or_are_passed_over(tmp_path: Path, write: Write, reason: str) -> None:
    line, sentence = BAD[reason]
    path = write("a.jsonl", GOOD.encode() + line + b'{"text": "tudi dobro"}\r\n')
    for passes in (1, 2):
        assert refusal(
            dedup, [Corpus("c", (path,))], tmp_path / "o", reading=Reading(max_document_bytes=1024), passes=passes
        ) == sentence.format(path=path)
        assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]
    manifest = dedup([Corpus("c", (path,))], tmp_path / "o", reading=Reading(max_document_bytes=1024, skip_bad=True), passes=2)
    assert [row["text"] for row in rows(tmp_path / "o/text")] == ["dobro", "tudi dobro"]
    assert manifest.facts["counts"]["c"]["bad_input"] == {reason: 1}
    assert manifest.facts["counts"]["c"]["bad_input_messages"] == [sentence.format(path=path)]


def _killed(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_killed_worker_is_an_error_that_names_its_shards() -> None:
    with pytest.raises(ValueError, match=r"^a worker process died, killed or out of memory, while these were worked on: .*shard 3"):
        list(ordered_map(_killed, range(6), workers=2, name=lambda number: f"shard {number}"))
    assert list(ordered_map(_killed, [0, 1, 2, 4, 5, 6, 7, 8], workers=2)) == [0, 1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--input", "{a}"], "--input {a} has no corpus name; expected NAME=FILE, for example web={a}"),
        (["--input", "x={a}", "--input", "x={b}"], "--input names the corpus x twice; give all its files together"),
        (["--input", "x={a}", "y={a}"], "the input file {a} is given twice; a file belongs to one corpus"),
        ([], "give either --input NAME=FILE... or --corpora YAML"),
        (["--input", "x={a}", "--ngram", "10001"], "--ngram is 10001; expected 1 to 10,000 tokens"),
        (["--input", "x={a}", "--min-kept-tokens", "-1"], "--min-kept-tokens is -1; expected at least 0"),
        (["--input", "x={a}", "--threshold", "90"], "--threshold is 90.0; expected a share from 0 to 1"),
        (["--input", "x={a}", "--workers", "0"], "--workers is 0; expected at least 1"),
        (["--input", "x={a}", "--similar-documents", "2"], "--similar-documents is 2.0; expected a share above 0, at most 1"),
        (["--input", "x={a}", "--similar-documents", "--similar-ngram", "0"], "--similar-ngram is 0; expected 1 to 64 words"),
        (
            ["--input", "x={a}", "--similar-bands", "20"],
            "--similar-bands needs --similar-documents, which sets the similarity to remove at",
        ),
        (
            ["--input", "x={a}", "--similar-documents", "0.7", "--similar-bands", "20"],
            "--similar-bands and --similar-rows belong together; give both, or neither and they follow from --similar-documents",
        ),
        (
            ["--input", "x={a}", "--similar-documents", "0.7", "--similar-bands", "0", "--similar-rows", "5"],
            "--similar-bands and --similar-rows are 0 and 5; expected at least 1",
        ),
        (
            ["--input", "x={a}", "--similar-documents", "0.7", "--similar-bands", "100", "--similar-rows", "11"],
            "--similar-bands 100 of --similar-rows 11 are 1100 hashes a document; expected at most 1024",
        ),
        (
            ["--input", "x={a}", "--similar-documents", "0.01"],
            "--similar-documents 0.01 with --similar-recall 0.98 cannot be reached: of pairs of that similarity 256 hashes compare 0.924 at most;"
            " ask for a similarity of 0.016 or more, for less recall, or give --similar-bands and --similar-rows",
        ),
        (
            ["--input", "x={a}", "--similar-documents", "--similar-recall", "0.9", "--similar-bands", "20", "--similar-rows", "5"],
            "--similar-recall and --similar-bands exclude each other, as bands and rows follow from the recall; leave one out",
        ),
        (
            ["--input", "x={a}", "--similar-documents", "--similar-unchecked", "--similar-measure", "containment"],
            "--similar-unchecked compares nothing, so --similar-measure containment would have no effect; leave out one of them",
        ),
        *(
            (
                ["--input", "x={a}", *words],
                f"{words[0]} needs --similar-documents, which sets the similarity to remove at",
            )
            for words in (
                ["--similar-ngram", "0"],
                ["--similar-recall", "0.9"],
                ["--similar-measure", "containment"],
                ["--similar-keep", "first"],
                ["--similar-unchecked"],
            )
        ),
        (["--input", "x={a}", "--against", "{b}", "--against-ngram", "0"], "--against-ngram is 0; expected at least 1"),
        (["--input", "x={a}", "--against", "{b}", "--against-shortest", "0"], "--against-shortest is 0; expected at least 1"),
        (
            ["--input", "x={a}", "--against-ngram", "8"],
            "--against-ngram needs --against or --against-sets, which name the evaluation sets",
        ),
        (
            ["--input", "x={a}", "--passes", "1", "--memory", "0.0625"],
            "--passes 1 needs 200 MiB of memory for about 3 tokens, but there are 64 MiB in --memory; leave out --passes, or give --passes 2, whose"
            " output is the same",
        ),
        (["--input", "x={a}", "--max-stub-tokens", "5"], "--max-stub-tokens needs --smoothing, which selects the short text to remove"),
        (["--input", "x={a}", "--against", "none.jsonl"], "the input file none.jsonl does not exist"),
    ],
)
def test_misuse(tmp_path: Path, write: Write, arguments: list[str], sentence: str) -> None:
    names = {"a": write("a.jsonl", GOOD), "b": write("b.jsonl", GOOD)}
    assert refusal(main, [argument.format(**names) for argument in arguments] + ["--output", str(tmp_path / "o")]) == sentence.format(
        **names
    )
    assert not (tmp_path / "o").exists() and not (tmp_path / ".o.unfinished").exists()


def test_corpora_from_a_table(tmp_path: Path, write: Write) -> None:
    write("b2.jsonl", jsonl([LONG], "b2"))
    write("b1.jsonl", jsonl([LONG], "b1"))
    write("a.jsonl", jsonl([LONG], "a"))
    table = write("corpora.yaml", "- {name: b, files: ['b*.jsonl']}\n- {name: a, files: [a.jsonl]}\n")
    assert main(["--corpora", str(table), "--output", str(tmp_path / "o"), "--workers", "2"]) == 0
    assert [row["id"] for row in rows(tmp_path / "o/text")] == ["b10"]
    assert (
        refusal(main, ["--corpora", str(write("bad.yaml", "- {name: b}\n")), "--output", str(tmp_path / "p")])
        == f"{tmp_path / 'bad.yaml'}, corpus 1 is not of the form {{name: NAME, files: [FILE, ...]}}"
    )


def test_protected_ngrams_name_the_first_document() -> None:
    engine = onion.engine()
    rules = OnionSettings(n=3)
    scan = engine.scan([b"a b c d", b"b c d e"], rules)
    protected = Protected.gather([scan], 3, 1)
    assert protected.hits(engine.scan([b"x b c d", b"c d e", b"c d\ne"], rules)).tolist() == [1, 2, 2, 2]


@pytest.mark.some(2)
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_the_size_of_a_compressed_text_is_known_about(tmp_path: Path, suffix: str) -> None:
    text = jsonl(random_texts(20_000)).encode()
    path = tmp_path / f"a.jsonl{suffix}"
    if suffix == ".zst":
        with pyarrow.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(text)
    else:
        path.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](text))
    assert text_size([path]) == pytest.approx(len(text), rel=0.3)


def test_zstd_comes_out_as_zstd(tmp_path: Path) -> None:
    with pyarrow.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as stream:
        stream.write(jsonl([LONG, LONG, "drugo"]).encode())
    dedup([Corpus("c", (tmp_path / "a.jsonl.zst",))], tmp_path / "o")
    dedup([Corpus("c", (tmp_path / "o/text/c/00000_a.jsonl.zst",))], tmp_path / "again")
    assert [document.text for document in Reading().documents(tmp_path / "again/text/c/00000_00000_a.jsonl.zst")] == [LONG, "drugo"]
    assert [path.name for path in (tmp_path / "o/removed/c").iterdir()] == ["00000_a.jsonl.zst"]


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
def test_cells_of_a_table_are_protected(name: str, tmp_path: Path) -> None:
    question, answer = "Kdo je napisal prvi slovenski roman in kdaj?", "Josip Jurčič ga je napisal leta 1866."
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in (question, answer, "Nekaj drugega je to.")))
    with (gzip.open if name.endswith(".gz") else open)(tmp_path / name, "wt", encoding="utf-8") as stream:
        stream.write(f"{question}\t{answer}\n")
    how = ["--against", str(tmp_path / name), "--against-ngram", "5", "--output", str(tmp_path / "out")]
    assert main(["--input", f"c={tmp_path / 'c.jsonl'}", *how]) == 0
    (kept,) = (tmp_path / "out/text/c").iterdir()
    texts = [json.loads(line)["text"] for line in (gzip.open if kept.suffix == ".gz" else open)(kept, "rt", encoding="utf-8")]
    assert [text.strip() for text in texts] == ["Nekaj drugega je to."]
