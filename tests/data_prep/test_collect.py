"""The same documents come out of every format; a table says what they are; bad input is named and nothing half-written is left."""

from __future__ import annotations

import csv
import gzip
import html
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from common.artifacts import check_files, read_manifest
from data_prep.collect import collect, main
from data_prep.reading.collect_shard import random_sample
from data_prep.reading.corpora import Corpus, corpora_from_table
from data_prep.reading.documents import Documents, kind_of, read_documents
from data_prep.reading.languages import is_language
from data_prep.reading.sources import KNOWN_TABLE, HuggingFace, Source, is_template, read_sources, table_rows
from data_prep.sharing.scanning import Reading
from tests.data_prep.packed import refusal, rows
from tests.refusals import refused

Write = Callable[[str, str | bytes], Path]
TEXTS = ["Dan je lep.\nSonce sije.", "Čez goro, čez polje …", "漢字 in 😀"]


def zstd(content: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def json_lines(texts: list[str] = TEXTS) -> bytes:
    return "".join(json.dumps({"id": f"d{n}", "text": text}, ensure_ascii=False) + "\n" for n, text in enumerate(texts)).encode()


def write_parquet(path: Path, **columns: list[Any]) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("suffix, compress", [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstd)])
def test_compressed_files_read_the_same(write: Write, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    assert list(Documents([write(f"a.jsonl{suffix}", compress(json_lines()))])) == TEXTS
    assert list(Documents([write(f"a.txt{suffix}", compress("č\nš".encode()))])) == ["č", "š"]
    assert kind_of(Path(f"a.b.vert{suffix}")) == ".vert"
    # Compressed in several parts, as parallel tools do.
    assert list(Documents([write(f"b.txt{suffix}", compress(b"a\n") + compress(b"b\n"))])) == ["a", "b"]


def test_parquet(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "a.parquet", id=[1, 2, 3], body=TEXTS, when=[None, pyarrow.scalar(0, pyarrow.timestamp("s")).as_py(), None]
    )
    documents = list(read_documents(path, text_key="body"))
    assert [document.text for document in documents] == TEXTS and [document.line for document in documents] == [1, 2, 3]
    assert documents[1].fields == {"id": 2, "when": "1970-01-01 00:00:00"}
    with refused(f"{path}, row 1 has no key 'text', only 'id', 'body', 'when'; name the key of the text with --text-key"):
        list(read_documents(path))
    many = write_parquet(tmp_path / "b.parquet", text=[f"beseda {n}" for n in range(1000)])
    assert list(Documents([many])) == [f"beseda {n}" for n in range(1000)]


def test_bad_parquet(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", text=["a", None, "b" * 100, "c"])
    with refused(f"{path}, row 2 holds a NoneType under 'text'; expected a string"):
        list(read_documents(path))
    found: list[Any] = []
    assert [document.text for document in read_documents(path, max_document_bytes=50, on_bad=found.append)] == ["a", "c"]
    assert [(bad.line, bad.reason) for bad in found] == [(2, "no text"), (3, "too long")]
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=rf"^{cut} is not a complete Parquet file: .* \(after row 0\); copy it again$"):
        list(read_documents(cut))


def test_vertical(write: Write) -> None:
    """As of Metafida and KAS: glue between tokens, entities, columns after the form, tags that only part tokens."""
    content = (
        '<text id="t.1" title="Dan &amp; noč">\n<p id="p1">\n<s>\nDan\tdan\tNcmsn\nje\tbiti\tVa\nlep\tlep\tAgp\n<g/>\n.\t.\tZ\n</s>\n<s>\nR\tR\tX\n'
        '<g/>\n&amp;\t&\tZ\n<g/>\nD\tD\tX\n</s>\n</p>\n<p>\n<name type="per">\nAna\tAna\tNp\n</name>\n<\t<\tZ\n5\t5\tM\n</p>\n</text>\n'
        '<text id="t.2">\n<p>\nKonec\n</p>\n</text>\n'
    )
    for path in (write("a.vert", content), write("a.vert.gz", gzip.compress(content.encode()))):
        documents = list(read_documents(path))
        assert [document.text for document in documents] == ["Dan je lep. R&D\nAna < 5", "Konec"]
        assert [document.fields for document in documents] == [{"id": "t.1", "title": "Dan & noč"}, {"id": "t.2"}]
        assert [document.line for document in documents] == [1, 26]


def test_vertical_documents_are_the_first_of_doc_and_text(write: Write) -> None:
    path = write("a.vert", '<doc id="1">\n<text>\na\n</text>\n<text>\nb\n</text>\n</doc>\n')
    assert [document.text for document in read_documents(path)] == ["a b"]


@pytest.mark.parametrize(
    "content, sentence",
    [
        ("a\n<text>\nb\n</text>\n", "{path}, line 1 is a token outside of any document; expected <doc> or <text> before it"),
        ("<text>\nb\n", "{path}: the document that begins at line 1 has no </text>; the file is cut off or broken, copy it again"),
        (
            "<doc>\nb\n<doc>\nc\n</doc>\n",
            "{path}: the document that begins at line 1 has no </doc>; the file is cut off or broken, copy it again",
        ),
    ],
)
def test_bad_vertical(write: Write, content: str, sentence: str) -> None:
    path = write("a.vert", content)
    with refused(sentence.format(path=path)):
        list(read_documents(path))


def test_long_vertical_document_is_passed_over(write: Write) -> None:
    path = write("a.vert", "<doc>\n" + "beseda\n" * 100 + "</doc>\n<doc>\nkratka\n</doc>\n")
    found: list[Any] = []
    assert [document.text for document in read_documents(path, max_document_bytes=50, on_bad=found.append)] == ["kratka"]
    assert [(bad.line, bad.reason) for bad in found] == [(1, "too long")]


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Three folders of text in different forms."""
    for name in ("books", "news", "theses"):
        (tmp_path / name / "part").mkdir(parents=True)
    (tmp_path / "books/a.txt").write_text("Prva vrsta\ndruga vrsta\n", encoding="utf-8")
    (tmp_path / "books/part/b.txt.zst").write_bytes(zstd("tretja\n\nčetrta\n".encode()))
    write_parquet(tmp_path / "news/a.parquet", text=["novica", " ", "še ena"], url=["x", "y", "z"])
    (tmp_path / "theses/a.vert").write_text('<text id="kas-1">\n<p>\nDiploma\n</p>\n</text>\n')
    (tmp_path / "theses/readme.md").write_text("not text for training")
    return tmp_path


def test_three_folders(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = [f"{name}={folders / name}" for name in ("books", "news", "theses")]
    facts = ["--language", "books=sl", "news=sl", "theses=sl", "--domain", "theses=academic", "--licence", "books=CC0"]
    output = folders / "out"
    assert main(["--input", *inputs, *facts, "--document-separator", "line", "--output", str(output), "--workers", "2"]) == 0
    assert rows(output / "text") == [
        {"id": "books/a.txt:1", "text": "Prva vrsta"},
        {"id": "books/a.txt:2", "text": "druga vrsta"},
        {"id": "books/b.txt.zst:1", "text": "tretja"},
        {"id": "books/b.txt.zst:3", "text": "četrta"},
        {"id": "news/a.parquet:1", "url": "x", "text": "novica"},
        {"id": "news/a.parquet:3", "url": "z", "text": "še ena"},
        {"id": "kas-1", "text": "Diploma"},
    ]
    manifest = read_manifest(output)
    assert manifest is not None
    check_files(output, manifest)
    news = manifest.facts["counts"]["news"]
    assert (news["num_read"], news["num_kept"], news["num_empty"], news["words"]) == (3, 2, 1, 3)
    assert yaml.safe_load((output / "corpora.yaml").read_text()) == [
        {"name": "books", "files": ["text/books/00000_a.jsonl", "text/books/00001_b.jsonl.zst"], "language": "sl", "licence": "CC0"},
        {"name": "news", "files": ["text/news/00000_a.jsonl.gz"], "language": "sl"},
        {"name": "theses", "files": ["text/theses/00000_a.jsonl"], "language": "sl", "domain": "academic"},
    ]
    assert "| theses | sl       | academic |" in capsys.readouterr().out


def test_workers_change_no_byte(folders: Path) -> None:
    corpora = [
        Corpus(name, tuple(sorted(p for p in (folders / name).rglob("*.*") if p.suffix != ".md"))) for name in ("books", "news", "theses")
    ]
    sources = [Source(corpus, separator="line") for corpus in corpora]
    outputs = []
    for workers in (1, 3):
        manifest = collect(sources, folders / f"out{workers}", workers=workers)
        outputs.append(manifest.files)
    assert outputs[0] == outputs[1]


def test_table_with_keys_and_limits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(3):
        lines = [json.dumps({"id": f"{number}-{n}", "body": f"besedilo {n}"}) for n in range(4)]
        (tmp_path / f"data/{number}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "t.yaml").write_text(
        "- {name: web, files: ['data/*.jsonl'], text_key: body, max_documents: 6, language: sl, domain: web, licence: CC0, source: here}\n"
    )
    assert main(["--corpora", str(tmp_path / "t.yaml"), "--output", str(tmp_path / "out"), "--workers", "1"]) == 0
    assert [row["id"] for row in rows(tmp_path / "out/text")] == ["0-0", "0-1", "0-2", "0-3", "1-0", "1-1"]
    assert rows(tmp_path / "out/text")[0] == {"id": "0-0", "text": "besedilo 0"}


def test_a_random_sample_of_a_source(tmp_path: Path) -> None:
    """Of all files alike, in their order, the same one every time; no more than there are."""
    for number in range(4):
        lines = [json.dumps({"id": 250 * number + n, "text": f"besedilo {n}"}) for n in range(250)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    row = "{name: NAME, files: ['*.jsonl'], sample_documents: 200, language: sl, domain: web, licence: CC0, source: here}"
    kept = []
    for name in ("web", "other"):
        (tmp_path / f"{name}.yaml").write_text(f"- {row.replace('NAME', name)}\n")
        assert main(["--corpora", str(tmp_path / f"{name}.yaml"), "--output", str(tmp_path / f"{name}-out"), "--workers", "2"]) == 0
        kept.append([int(found["id"]) for found in rows(tmp_path / f"{name}-out/text")])
    ids = kept[0]
    assert kept[1] == ids == sorted(set(ids)) and len(ids) == 200
    assert all(35 <= sum(250 * number <= i < 250 * (number + 1) for i in ids) <= 65 for number in range(4))  # 50 expected, deviation 5.5
    assert random_sample(range(7), 9) == list(range(7))
    (tmp_path / "both.yaml").write_text(f"- {row.replace('200', '200, max_documents: 5')}\n")
    with pytest.raises(ValueError, match=r"NAME has both max_documents and sample_documents; leave one of them out$"):
        main(["--corpora", str(tmp_path / "both.yaml"), "--output", str(tmp_path / "both")])


@pytest.fixture
def hub_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small dataset in the form that the hub has, with two configurations of two files, and no way to the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    directory = tmp_path / "hub"
    for config in ("sl", "it"):
        (directory / config).mkdir(parents=True)
        for number in range(2):
            texts = [f"{config} besedilo {number}{n}" for n in range(3)]
            write_parquet(directory / config / f"train-{number:05d}.parquet", text=texts, url=[f"u{number}{n}" for n in range(3)])
    card = "---\nconfigs:\n" + "".join(f"- config_name: {config}\n  data_files: {config}/*.parquet\n" for config in ("sl", "it")) + "---\n"
    (directory / "README.md").write_text(card)
    return directory


def test_hugging_face_dataset_is_streamed(hub_copy: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.yaml"
    table.write_text(f"- {{name: web, language: sl, huggingface: {{path: {hub_copy}, config: sl}}}}\n")
    assert main(["--corpora", str(table), "--output", str(tmp_path / "out"), "--workers", "2"]) == 0
    assert rows(tmp_path / "out/text") == [
        {"id": f"web/{number}:{n + 1}", "url": f"u{number}{n}", "text": f"sl besedilo {number}{n}"} for number in range(2) for n in range(3)
    ]
    assert len(list((tmp_path / "out/text/web").iterdir())) == 2, "a shard for each file of the dataset"
    first = tmp_path / "first"
    assert main(["--corpora", str(table), "--output", str(first), "--workers", "1", "--max-documents", "4"]) == 0
    assert [row["text"] for row in rows(first / "text")] == [row["text"] for row in rows(tmp_path / "out/text")][:4]


def test_dataset_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"^the dataset .*/none cannot be opened: .*; check its name, the network, and whether its terms"):
        collect([Source(Corpus("web", ()), HuggingFace(str(tmp_path / "none")))], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_every_corpus_of_the_papers(tmp_path: Path) -> None:
    """The table loads, names what the papers used, and files are found in their folders in the form that it says."""
    table = table_rows(KNOWN_TABLE)
    papers = "metafida kas trendi mc4_sl macocu_sl cc100_sl riznica hrnews macocu_hr macocu_bs macocu_sr wikipedia_en cc_news culturax_it culturax_en"
    assert set(papers.split()) <= set(table) and sum(name.startswith("glot500") for name in table) >= 1
    # Low-resource paper, 6.2: "randomly sampled from their language-specific subcorpus of CC-100".
    assert sum(name.startswith("cc100") and row.get("sample_documents") == 30_000 for name, row in table.items()) == 10
    assert all("max_documents" not in row for row in table.values())
    assert table["wikipedia_en"]["huggingface"]["config"].startswith("2022"), 'GaMS, 3: "English Wikipedia (Wikimedia Foundation, 2022)"'
    gams3 = "fineweb2_sl finepdfs_sl nemotron_high_quality classla_web_sl nuk_doc nuk_combined sl_legal sl_medical dgt hplt2_sl hplt3_sl"
    assert set(gams3.split()) <= set(table) and all(table[name]["columns"].startswith("text") for name in gams3.split()[:5])
    content = {".vert": b"<doc>\na\n</doc>\n", ".xz": lzma.compress(b"ena\ndve\n\ntri\n")}
    for name, row in table.items():
        assert {"domain", "licence", "source"} <= set(row) and ("language" in row or "languages" in row or is_template(row))
        if "languages" in row or is_template(row):
            continue
        if "files" in row:
            assert "how" in row
            folder = tmp_path / "data" / name
            folder.mkdir(parents=True)
            pattern = row["files"][0]
            (folder / pattern.replace("*", "x")).write_bytes(content.get(Path(pattern).suffix, json_lines()))
            for other in row["files"][1:]:
                (folder / other.replace("*", "y")).write_bytes(b"")
        source = read_sources(KNOWN_TABLE, only=[name], folder=tmp_path / "data")[0]
        assert source.corpus.name == name and source.corpus.facts["language"] == row["language"]
        if name.startswith("cc100"):
            assert [document.text for document in source.reading(Reading()).documents(source.corpus.paths[0])] == ["ena\ndve", "tri"]


FAMILIES = {
    # form of a copy: its files with the columns of the publisher, and the code
    "fineweb2": (
        "slv_Latn",
        "data/slv_Latn/train/000_00000.parquet",
        {"id": "<urn:uuid:1>", "url": "https://a.si", "language_score": 0.98},
    ),
    "finepdfs": ("slv_Latn", "data/slv_Latn/train/000_00000.parquet", {"id": "<urn:uuid:1>", "is_truncated": False, "page_ends": [4, 9]}),
    "hplt2": ("slv_Latn", "slv_Latn/train-00000-of-00001.parquet", {"id": "a", "u": "https://a.si", "doc_scores": [7.5, 10.0]}),
    "hplt3": ("srp_Cyrl", "srp_Cyrl/10_1.jsonl.zst", {"id": "a", "u": "https://a.rs", "doc_scores": [9.1, 10.0]}),
    "culturax": ("sl", "sl/sl_part_00000.parquet", {"url": "https://a.si", "source": "mC4", "timestamp": "2020"}),
    "nemotron_cc": ("", "High-Quality/part_000000.parquet", {"id": "a"}),
    "macocu": ("sl", "MaCoCu-sl-2.0.prevert", {"id": "macocu.sl.1", "title": "Naslov & drugo", "url": "https://a.si"}),
    "classla_web": ("sl", "CLASSLA-web.sl.2.0.jsonl", {"id": "a", "title": "Naslov", "domain": "a.si", "crawl_year": 2024}),
    "wikipedia_2022": ("it", "data/20220301.it/train-00000.parquet", {"id": "1", "title": "Titolo"}),
    "wikipedia": ("sl", "20231101.sl/train-00000.parquet", {"id": "1", "title": "Naslov"}),
}


def _write_copy(path: Path, fields: dict[str, Any], text: str) -> None:
    path.parent.mkdir(parents=True)
    if path.suffix == ".parquet":
        write_parquet(path, text=[text], **{key: [value] for key, value in fields.items()})
    elif path.suffix == ".prevert":
        attributes = " ".join(f'{key}="{html.escape(value)}"' for key, value in fields.items())
        paragraphs = "".join(f'<p id="p{n}" quality="good">\n{html.escape(line)}\n</p>\n' for n, line in enumerate(text.split("\n")))
        path.write_text(f'<corpus id="MaCoCu">\n<doc {attributes}>\n{paragraphs}</doc>\n</corpus>\n', encoding="utf-8")
    else:
        data = (json.dumps({"text": text, **fields}) + "\n").encode()
        path.write_bytes(zstd(data) if path.suffix == ".zst" else data)


def test_copies_in_the_published_forms(tmp_path: Path) -> None:
    """Each family by NAME:CODE=FOLDER: columns stay under the publisher's names, language, licence and source are in the table and the manifest's."""
    table = table_rows(KNOWN_TABLE)
    assert {name for name, row in table.items() if is_template(row)} == set(FAMILIES) - {"nemotron_cc"}
    text = 'Prvi odstavek "z narekovaji" & znaki.\nDrugi\todstavek.'
    names = {}
    for name, (code, file, fields) in FAMILIES.items():
        _write_copy(tmp_path / name / file, fields, text)
        names[f"{name}:{code}={tmp_path / name}" if code else f"{name}={tmp_path / name}"] = f"{name}_{code}" if code else name
    assert main(["--known", *names, "--output", str(tmp_path / "out"), "--workers", "1", "--new-ids"]) == 0
    collected = {corpus.name: corpus for corpus in corpora_from_table(tmp_path / "out/corpora.yaml")}
    assert list(collected) == list(names.values())
    for name, (code, _, fields) in FAMILIES.items():
        corpus = collected[f"{name}_{code}" if code else name]
        assert corpus.language == (code or "en") and corpus.licence == table[name]["licence"] and corpus.source == table[name]["source"]
        [row] = rows(tmp_path / "out/text" / corpus.name)
        expected = {("original_id" if key == "id" else key): value for key, value in fields.items()}
        assert {key: row[key] for key in expected} == expected and row["text"] == text


def test_families_say_what_they_are() -> None:
    """Columns, licence and source of every member too; how much there is of the family; where it is to be had."""
    table = table_rows(KNOWN_TABLE)
    assert {"glot500", "nemotron_cc"} | {name for name, row in table.items() if is_template(row)} == set(FAMILIES) | {"glot500"}
    for name, row in table.items():
        family = next((family for family in (*FAMILIES, "glot500") if name == family or name.startswith(f"{family}_")), None)
        if family is not None:
            assert row["licence"] and row["source"] and "text" in row["columns"], name
            assert row["size"] if name == family else table[family]["size"], name
            assert "huggingface" in row or row["how"], name


def test_families_ask_for_a_language(tmp_path: Path) -> None:
    [source] = read_sources(KNOWN_TABLE, only=["fineweb2:hrv_Latn"])
    assert source.huggingface == HuggingFace("HuggingFaceFW/fineweb-2", "hrv_Latn") and source.corpus.facts["language"] == "hrv_Latn"
    [glot500] = read_sources(KNOWN_TABLE, only=["glot500_slv_Latn"])
    assert glot500.huggingface is not None
    [simple] = read_sources(KNOWN_TABLE, only=["wikipedia_2022:simple"])
    assert simple.huggingface == HuggingFace("legacy-datasets/wikipedia", "20220301.simple") and simple.corpus.facts["language"] == "en"
    for given, sentence in (
        ("fineweb2", "fineweb2 is a corpus of each language; name one as its publisher does, such as fineweb2:slv_Latn, not ''"),
        ("fineweb2:Slovene", "such as fineweb2:slv_Latn, not 'Slovene'"),
        ("hplt3:sl", "name one as its publisher does, such as hplt3:slv_Latn, not 'sl'"),
        ("culturax:slv_Latn", "name one as its publisher does, such as culturax:sl, not 'slv_Latn'"),
        ("wikipedia_2022:sl", "is there for de, en, fr, frr, it, simple; name one of them, such as wikipedia_2022:de, not 'sl'"),
        ("kas:sl", "kas:sl asks for a language of kas, which is one corpus; leave out :sl"),
        (
            f"hplt2:slv_Latn={tmp_path}",
            f"{tmp_path} has no files of hplt2_slv_Latn; expected slv_Latn/*.parquet or slv_Latn/*.jsonl.zst or",
        ),
        (f"mc4_sl={tmp_path}", "the form of copies of mc4_sl is not known; give its files with --input"),
    ):
        assert sentence in refusal(main, ["--known", given, "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_every_language_of_glot500() -> None:
    """Scripts are part of the codes, as in the names of its configurations on the hub."""
    sources = read_sources(KNOWN_TABLE, only=["glot500"])
    codes = [source.corpus.facts["language"] for source in sources]
    assert len(set(codes)) == len(codes) == 570 and all(map(is_language, codes))
    assert {"slv_Latn", "srp_Cyrl", "srp_Latn", "hrv_Latn", "zho_Hani", "div_Thaa", "kmr_Cyrl"} <= set(codes)
    assert all(source.huggingface == HuggingFace("cis-lmu/Glot500", code) for source, code in zip(sources, codes, strict=True))
    with open(KNOWN_TABLE.with_name("glot500.tsv"), encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream, delimiter="\t"))
    assert sum(line["kind"] == "head" for line in lines) == 100, "XLM-R's languages (OFA, experiments)"
    assert all(int(line["sentences"]) >= 30_000 for line in lines if line["kind"] == "tail"), "Glot500, section 3: what is in Glot500-c"
    [one] = read_sources(KNOWN_TABLE, only=["glot500_srp_Cyrl"])
    assert (one.corpus.name, one.corpus.facts["language"]) == ("glot500_srp_Cyrl", "srp_Cyrl")
    with pytest.raises(ValueError, match=r"has no corpus glot500_sl; the nearest are glot500, "):
        read_sources(KNOWN_TABLE, only=["glot500_sl"])


@pytest.mark.parametrize("splits", [True, False])
def test_folders_that_datasets_saved(splits: bool, tmp_path: Path) -> None:
    """As Glot500-c is sent: a folder for each language and script."""
    from datasets import Dataset, DatasetDict

    texts = {"slv_Latn": ["ena", "dve", "tri"], "srp_Cyrl": ["један", "два"]}
    rows_of = []
    for code, lines in texts.items():
        dataset = Dataset.from_dict({"text": lines})
        (DatasetDict({"train": dataset}) if splits else dataset).save_to_disk(str(tmp_path / "glot500" / code))
        rows_of.append(f"- {{name: {code}, language: {code}, huggingface: {{path: {tmp_path}/glot500/{code}}}}}\n")
    table = tmp_path / "table.yaml"
    table.write_text("".join(rows_of), encoding="utf-8")
    assert main(["--corpora", str(table), "--output", str(tmp_path / "out"), "--workers", "1"]) == 0
    for code, lines in texts.items():
        assert [row["text"] for row in rows(tmp_path / "out/text" / code)] == lines
    collected = {corpus.name: corpus.facts["language"] for corpus in corpora_from_table(tmp_path / "out/corpora.yaml")}
    assert collected == {code: code for code in texts}


def test_missing_download_says_how_to_get_it(tmp_path: Path) -> None:
    assert refusal(main, ["--known", "cc100_sl", "--folder", str(tmp_path), "--output", str(tmp_path / "out")]).endswith(
        "no file is called sl.txt.xz; get it: data.statmt.org/cc-100/sl.txt.xz"
    )


@pytest.mark.parametrize("name, form", [("kas", "kas.vert.gz"), ("macocu:sl", "MaCoCu-sl-2.0.prevert"), ("macocu:sl", "sl.jsonl")])
def test_a_download_in_one_of_its_forms_is_enough(name: str, form: str, tmp_path: Path) -> None:
    (tmp_path / name.partition(":")[0]).mkdir()
    path = tmp_path / name.partition(":")[0] / form
    path.write_bytes(b"")
    [source] = read_sources(KNOWN_TABLE, only=[name], folder=tmp_path)
    assert source.corpus.paths == (path,)


def test_unknown_names_bring_the_nearest(tmp_path: Path) -> None:
    for given, sentence in (
        ("kass", "has no corpus kass; the nearest are kas"),
        ("nemotron-cc", "has no corpus nemotron-cc; the nearest are nemotron_cc, "),
        ("CulturaX:sl", "has no corpus CulturaX; the nearest are culturax, "),
        ("glot500_srp_Latin", "has no corpus glot500_srp_Latin; the nearest are glot500_srp_Latn, "),
        ("zzzz", "has no corpus zzzz; python -m data_prep.collect --list shows all"),
        ("hplt3:slv_Latn=", "the corpus 'hplt3:slv_Latn=' is not of the form NAME[:CODE][=FOLDER], such as "),
    ):
        with pytest.raises(ValueError) as error:
            main(["--known", given, "--output", str(tmp_path / "out")])
        assert sentence in str(error.value) and len(str(error.value)) < 400


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    assert "| culturax_it " in out and "uonlp/CulturaX it" in out
    assert "4.7 B words" in out and "HuggingFaceFW/fineweb-2 slv_Latn" in out


@pytest.mark.parametrize(
    "table, sentence",
    [
        ("- {name: a, files: [x.txt], language: slovene!}", "{t}: the language of a is 'slovene!'; expected an ISO 639 code such as sl"),
        ("- {name: a, files: [x.txt], language: xx}", "{t}: the language of a is 'xx'; expected an ISO 639 code such as sl"),
        ("- {name: a, files: [x.txt], colour: red}", "{t}: a has the unknown key colour; the known ones are name, files, language, licence, domain, source"),
        ("- {name: a}", "{t}: a needs either files or huggingface"),
        ("- {name: a, files: [x.txt], huggingface: b}", "{t}: a needs either files or huggingface"),
        ("- {name: a, huggingface: {name: b}}", "{t}: huggingface of a is {{'name': 'b'}}; expected the name of a dataset or a table of path, config, split, revision, data_files"),
        ("- {name: a, huggingface: {path: 5}}", "{t}: huggingface of a is {{'path': 5}}; expected the name of a dataset or a table of path, config, split, revision, data_files"),
        ("- {name: a, files: 5}", "{t}: files of a are 5; expected a list, such as [FILE, ...]"),
        ("- {name: a, files: [x.txt], text_key: [1]}", "{t}: text_key of a is [1]; expected a name"),
        ("- {name: a, files: [x.txt], max_documents: 0}", "{t}: max_documents of a is 0; expected a number from 1"),
        ("- {name: a, files: [x.txt], max_documents: true}", "{t}: max_documents of a is True; expected a number from 1"),
        ("- {name: a, files: [none.txt]}", "{t}: no file is called none.txt"),
        ("- {name: a, files: [x.txt]}\n- {name: a, files: [x.txt]}", "{t} uses a name twice; give each corpus its own"),
        ("[]", "{t} holds no list of corpora; expected '- {{name: NAME, files: [FILE, ...]}}' or '- {{name: NAME, huggingface: ...}}'"),
    ],
)  # fmt: skip
def test_bad_tables(write: Write, tmp_path: Path, table: str, sentence: str) -> None:
    write("x.txt", "a\n")
    path = write("t.yaml", table)
    assert refusal(main, ["--corpora", str(path), "--output", str(tmp_path / "out")]) == sentence.format(t=path)
    assert not (tmp_path / "out").exists()


def test_bad_options(write: Write, tmp_path: Path) -> None:
    path = write("x.txt", "a\n")
    for arguments, sentence in {
        ("--output", "o"): "give one of --input NAME=FILE..., --corpora YAML and --known NAME...",
        ("--input", f"a={path}"): "--output is missing; name a new directory",
        ("--input", f"a={path}", "--output", "o", "--language", "b=sl"): "--language, --domain or --licence names b, which no --input does",
        ("--input", f"a={path}", "--output", "o", "--language", "sl"): "--language sl is not of the form NAME=VALUE",
        (
            "--input",
            f"a={path}",
            "--output",
            "o",
            "--language",
            "a=slovene",
        ): "--language a=slovene names no language; expected an ISO 639 code, such as a=sl",
        (
            "--input",
            f"a={path}",
            "--output",
            "o",
            "--folder",
            "d",
        ): "--folder says where --known looks for its corpora; give --known NAME..., or leave it out",
        ("--known", "kas", "--output", "o", "--language", "kas=sl"): "--language is for corpora of --input; the tables of others have it",
        ("--input", f"a={tmp_path / 'e'}", "--output", "o"): f"the input file {tmp_path / 'e'} does not exist",
    }.items():
        assert refusal(main, list(arguments)) == sentence


def test_bad_input_is_named_or_passed_over(write: Write, tmp_path: Path) -> None:
    """Invalid UTF-8, NUL bytes, mixed line ends, an empty file, a truncated gzip and a repeated id, each by file and line."""
    whole = gzip.compress("".join(f'{{"id": {n}, "text": "{os.urandom(40).hex()}"}}\n' for n in range(500)).encode())
    paths = (
        write("a.jsonl", b'{"id": "x", "text": "a"}\r\n{"id": "y", "text": "\xe8"}\n{"id": "z", "text": "n\\u0000l"}\n'),
        write("b.jsonl", b""),
        write("c.jsonl.gz", whole[:-400]),
        write("d.jsonl", b'{"id": "x", "text": "again"}\n'),
    )
    sources = [Source(Corpus("web", paths))]
    assert (
        refusal(collect, sources, tmp_path / "out")
        == f"{paths[0]}, line 2 is not UTF-8: byte 0xe8 at position 22; convert the file, for example with iconv"
    )
    assert not (tmp_path / "out").exists()
    manifest = collect(sources, tmp_path / "other", reading=Reading(skip_bad=True))
    counts = manifest.facts["counts"]["web"]
    assert counts["bad_input"] == {"no UTF-8": 1, "broken gzip": 1} and manifest.facts["num_duplicate_ids"] == 1
    kept = rows(tmp_path / "other/text")
    assert len(kept) == counts["num_kept"] and {"id": "z", "text": "n\0l"} in kept and 400 < len(kept) < 504
    report = (tmp_path / "other/report.md").read_text()
    assert f"{paths[2]} is not a complete gzip file after line" in report
    assert f"Ids used twice: 1, the first: {paths[3]}, line 1 has the same id as {paths[0]}, line 1" in report
    with pytest.raises(ValueError, match=r"d\.jsonl, line 1 has the same id as .*a\.jsonl, line 1 \(1 in all\).* with --new-ids$"):
        collect([Source(Corpus("web", (write("a.jsonl", '{"id": "x", "text": "a"}\n'), paths[3])))], tmp_path / "third")
    collect([Source(Corpus("web", (write("a.jsonl", '{"id": "x", "text": "a"}\n'), paths[3])))], tmp_path / "fourth", new_ids=True)
    assert [(row["id"], row["original_id"]) for row in rows(tmp_path / "fourth/text")] == [("web/a.jsonl:1", "x"), ("web/d.jsonl:1", "x")]


def test_a_repaired_file_is_read_again_and_the_others_are_not(write: Write, tmp_path: Path) -> None:
    good, bad = write("a.jsonl", json_lines()), write("b.jsonl", "broken")
    sources = [Source(Corpus("web", (good, bad)))]
    with pytest.raises(ValueError, match=r"b\.jsonl, line 1 is not valid JSON"):
        collect(sources, tmp_path / "out")
    first = (tmp_path / ".out.unfinished/output/text/web/00000_a.jsonl").stat().st_mtime_ns
    write("b.jsonl", '{"id": "b", "text": "zdaj"}\n')
    collect(sources, tmp_path / "out")
    assert (tmp_path / "out/text/web/00000_a.jsonl").stat().st_mtime_ns == first
    assert [row["text"] for row in rows(tmp_path / "out/text")] == [*TEXTS, "zdaj"]


def test_what_of_a_folder_is_not_read_is_counted_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hidden files and what an unfinished command left are not text of a corpus."""
    line = '{"text": "Dober dan."}\n'
    for name in (
        "a.jsonl",
        "B.JSONL",
        "e.parquet.crc",
        "._a.jsonl",
        ".checkpoints/a.jsonl",
        ".old.unfinished/text/web/a.jsonl",
        "x.partial-1_2/a.jsonl",
    ):
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_text(line)
    words = ["--input", f"w={tmp_path / 'folder'}", "--output", str(tmp_path / "out")]
    assert main(words) == 0
    assert len(list((tmp_path / "out/text/w").iterdir())) == 2
    said = "1 x .crc"
    assert said in capsys.readouterr().err and f"Not read in the folders of w: {said}" in (tmp_path / "out/report.md").read_text()
    for number in range(3):
        (tmp_path / f"folder/{number}.pdf").touch()
    with pytest.raises(
        ValueError, match=r"has 2 text files and 4 others \(3 x \.pdf, 1 x \.crc\), which would not be read; move or convert"
    ):
        main([*words[:-1], str(tmp_path / "other")])
    assert main([*words[:-1], str(tmp_path / "other"), "--ignore-other-files"]) == 0
