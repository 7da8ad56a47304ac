"""From raw files to Megatron's: collect, clean, dedup, train_tokenizer, mixture, to_megatron, and where each document went."""

from __future__ import annotations

import gzip
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import yaml
from pyarrow import parquet

from common.artifacts import read_manifest
from data_prep import clean, collect, dedup, mixture, to_megatron, train_tokenizer
from data_prep.tokenizers.files import load_tokenizer
from recipes.rules.compose import compose_recipe
from tests.data_prep.packed import rows

LETTERS = {"sl": "aeioučšžtnrsl", "it": "aeiouàèòtnrsl", "en": "aeiouwythnrsl", "hr": "aeioućđžtnrsl", "sr": "аеиоучшжтнрсл"}


def keys(directory: Path) -> Counter[tuple[str, Any]]:
    """Corpus (the folder) and id of each document below a folder."""
    return Counter((path.name, row["id"]) for path in directory.iterdir() for row in rows(path))


def documents_of(directory: Path, dtype: str) -> list[np.ndarray]:
    """Token ids of the documents of a data folder, read by the format's description alone."""
    index = (directory / "text.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    _, _, num_sequences, _ = struct.unpack("<QBQQ", index[9:34])
    lengths = np.frombuffer(index, np.int32, num_sequences, 34)
    tokens = np.fromfile(directory / "text.bin", dtype)
    assert len(tokens) == lengths.sum()
    return np.split(tokens, np.cumsum(lengths)[:-1])


def run_chain(table: Path, work: Path, *, vocab_size: int, num_raw: dict[str, int]) -> dict[str, Any]:
    """All commands as a user types them; checks that documents add up from each to the next, and returns the manifests' facts."""

    def facts(name: str) -> dict[str, Any]:
        manifest = read_manifest(work / name)
        assert manifest is not None
        return manifest.facts

    def corpora(name: str) -> list[str]:
        return ["--corpora", str(work / name / "corpora.yaml")]

    def output(name: str) -> list[str]:
        return ["--workers", "2", "--output", str(work / name)]

    assert collect.main(["--corpora", str(table), *output("collected")]) == 0
    collected = keys(work / "collected/text")
    for name, counts in facts("collected")["counts"].items():
        assert counts["num_read"] == num_raw[name] == counts["num_kept"] + counts["num_empty"]
        assert counts["num_kept"] == sum(corpus == name for corpus, _ in collected.elements())
    assert max(collected.values()) == 1, "no id twice"

    assert clean.main([*corpora("collected"), "--min-words", "2", "--filters", "none", *output("cleaned")]) == 0
    cleaned, refused = keys(work / "cleaned/text"), keys(work / "cleaned/removed")
    assert cleaned + refused == collected

    assert dedup.main([*corpora("cleaned"), *output("unique")]) == 0
    unique = keys(work / "unique/text")
    assert unique <= cleaned
    gone = Counter(corpus for corpus, _ in (cleaned - unique).elements())
    for name, counts in facts("unique")["counts"].items():
        assert counts["documents"].get("removed", 0) + counts["documents"].get("empty", 0) == gone[name]
    listed = {(row["corpus"], row["id"]) for row in rows(work / "unique/removed")}
    assert set(cleaned - unique) <= listed, "each document that is gone is among the removals"

    texts = [str(path) for path in sorted((work / "unique/text").rglob("*.jsonl*"))]
    assert train_tokenizer.main(["--input", *texts, "--vocab-size", str(vocab_size), *output("tokenizer")]) == 0
    assert facts("tokenizer")["num_documents"] == len(unique)

    options = ["--tokenizer", f"new={work / 'tokenizer'}", "--validation-share", "0.01"]
    assert mixture.main([*corpora("unique"), *options, *output("mixture")]) == 0
    sides: dict[str, Counter[tuple[str, Any]]] = {side: Counter() for side in ("train", "validation", "left out")}
    tokens = {}
    for folder in (work / "mixture/documents").iterdir():
        for row in rows(folder):
            sides[row["side"]][folder.name, row["id"]] += 1
            tokens[folder.name, row["id"]] = row["tokens"]["new"]
    assert sides["train"] + sides["validation"] == unique and not sides["left out"]
    assert keys(work / "mixture/train") == sides["train"]
    assert Counter((row["corpus"], row["id"]) for row in rows(work / "mixture/validation")) == sides["validation"]

    tokenizer = load_tokenizer(work / "tokenizer")
    dtype = "<u2" if vocab_size < 65_500 else "<i4"
    total = 0
    folders = {name: sorted((work / "mixture/train" / name).iterdir()) for name in facts("mixture")["blend"]["corpora"]}
    folders["validation"] = sorted((work / "mixture/validation").rglob("*.jsonl*"))
    for name, files in folders.items():
        command = ["--input", *map(str, files), "--tokenizer", str(work / "tokenizer")]
        assert to_megatron.main([*command, *output(f"data_{name}")]) == 0
        records = [row for file in files for row in rows(file)]
        found = documents_of(work / f"data_{name}", dtype)
        assert len(found) == len(records) == facts(f"data_{name}")["num_documents"]
        for ids, row in zip(found, records):
            assert len(ids) == tokens[row["corpus"], row["id"]] and ids[-1] == tokenizer.eos_token_id
            assert tokenizer.decode(ids[:-1].tolist()) == row["text"]
        total += sum(map(len, found))
    assert total == sum(tokens.values()), "the tokens of the tables are those of the files"
    return {name: facts(name) for name in ("collected", "cleaned", "unique", "mixture")}


def test_five_languages_from_raw_files_to_megatron(tmp_path: Path) -> None:
    """Made-up text in five forms; some documents are empty, too short, dirty, repeated in another corpus."""
    random = np.random.default_rng(0)
    made: dict[str, list[str]] = {}
    for language, letters in LETTERS.items():
        words = ["".join(random.choice(list(letters), random.integers(2, 9))) for _ in range(150)]

        def paragraph(words: list[str] = words) -> str:
            return " ".join(random.choice(words, 25)) + "."

        texts = ["\n".join(paragraph() for _ in range(n % 4 + 1)) for n in range(40)]
        texts[3], texts[7], texts[11] = "  \n ", "beseda", texts[5]  # empty, too short, a copy
        texts[12] = f"{texts[6]}\n{paragraph()}"  # a copy with something new
        texts[13] = texts[13].replace(" ", "\u00a0 ", 3) + "\x00\u200b"
        made[language] = texts
    made["hr"][20] = made["sl"][20]  # in two corpora
    raw = tmp_path / "raw"
    raw.mkdir()
    lines = {
        language: [json.dumps({"id": f"{language}-{n}", "body": text}) for n, text in enumerate(texts)] for language, texts in made.items()
    }
    (raw / "sl.jsonl").write_text("\n".join(lines["sl"]) + "\n")
    (raw / "it.jsonl.gz").write_bytes(gzip.compress("\r\n".join(lines["it"]).encode()))
    parquet.write_table(pyarrow.table({"id": [f"en-{n}" for n in range(40)], "body": made["en"]}), raw / "en.parquet")
    with open(raw / "hr.jsonl.zst", "wb") as file, pyarrow.CompressedOutputStream(file, "zstd") as stream:
        stream.write("\n".join(lines["hr"]).encode())
    vertical = ""
    for n, text in enumerate(made["sr"]):
        paragraphs = ["<p>\n" + "\n".join(paragraph.split()) + "\n</p>\n" for paragraph in text.split("\n")]
        vertical += f'<text id="sr-{n}">\n{"".join(paragraphs)}</text>\n'
    (raw / "sr.vert").write_text(vertical, encoding="utf-8")
    table = [
        {"name": f"{language}_corpus", "language": language, "files": [file], "text_key": "body"}
        for language, file in (("sl", "sl.jsonl"), ("it", "it.jsonl.gz"), ("en", "en.parquet"), ("hr", "hr.jsonl.zst"), ("sr", "sr.vert"))
    ]
    (raw / "t.yaml").write_text(yaml.safe_dump(table))
    facts = run_chain(raw / "t.yaml", tmp_path, vocab_size=900, num_raw={row["name"]: 40 for row in table})
    for name in ("sl_corpus", "it_corpus", "en_corpus", "sr_corpus"):
        assert facts["collected"]["counts"][name]["num_empty"] == 1
        assert facts["cleaned"]["counts"][name]["num_kept"] == 38, "one word is too short"
        assert facts["unique"]["counts"][name]["documents"] == {"whole": 36, "shortened": 1, "removed": 1}
    assert facts["unique"]["counts"]["hr_corpus"]["documents"] == {"whole": 35, "shortened": 1, "removed": 2}
    assert [count["validation"]["documents"] > 0 for count in facts["mixture"]["corpora"]] == [True] * 5


@pytest.mark.long
def test_three_folders_and_three_commands(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A tokenizer report, a deduplicated mixture with its table, and data that is ready for training."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list(LETTERS["sl"]), random.integers(2, 9))) for _ in range(150)]
    for name in ("books", "news", "web"):
        (tmp_path / name).mkdir()
        lines = [json.dumps({"body": " ".join(random.choice(words, 40))}) for _ in range(30)]
        (tmp_path / name / "a.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "web/b.jsonl").write_bytes((tmp_path / "news/a.jsonl").read_bytes())
    keys_ = ["--text-key", "body", "--workers", "1"]
    unique, tokenizers, report, mixed, data = (tmp_path / name for name in ("unique", "tokenizers", "report", "mixture", "data"))
    table = ["--corpora", str(unique / "corpora.yaml"), *keys_]
    assert (
        dedup.main(["--input", *(f"{name}={tmp_path / name}" for name in ("books", "news", "web")), *keys_, "--output", str(unique)]) == 0
    )
    sizes = ["--vocab-size", "320", "400", "480"]
    assert train_tokenizer.main([*table, *sizes, "--report", str(report), "--output", str(tokenizers)]) == 0
    capfd.readouterr()
    assert mixture.main([*table, "--tokenizer", f"new={tokenizers / 'bpe-400'}", "--megatron", str(data), "--output", str(mixed)]) == 0
    assert capfd.readouterr().out.startswith(
        "# Mixture\n\nTokens per corpus, each text once, with the tokens around each document:\n\n| corpus "
    )
    assert {"report.html", "sizes.png"} <= {path.name for path in report.iterdir()}
    manifest = read_manifest(mixed)
    assert manifest is not None
    trained = {count["name"]: count["train"] for count in manifest.facts["corpora"]}
    assert trained["web"]["documents"] <= 30, "the copies of news are gone"
    for name in ("books", "news", "web"):
        facts = read_manifest(data / name).facts  # type: ignore[union-attr]
        assert (facts["num_documents"], facts["num_tokens"]) == (trained[name]["documents"], trained[name]["tokens"][0])
    taken = compose_recipe("demo_adapt", [f"data.train={data}"]).data
    assert taken.train == tuple(str(data / name) for name in ("books", "news", "web")) and set(taken.validation) == {"all"}
    assert read_manifest(Path(taken.validation["all"])).facts["num_documents"] == 1  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"^the directory .*data exists and is not empty; remove it or choose another --megatron$"):
        mixture.main([*table, "--tokenizer", f"new={tokenizers / 'bpe-400'}", "--megatron", str(data), "--output", str(tmp_path / "again")])
