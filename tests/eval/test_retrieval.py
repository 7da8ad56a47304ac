"""Sentence retrieval on a tiny encoder, beside plain code."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from conversion.checkpoints.hf_model import inspect_checkpoint
from data_prep.tokenizers.files import load_tokenizer
from eval import report, retrieval
from eval.protocols.sentence_retrieval import ranks
from eval.scoring.sentence_vectors import SentenceEncoder
from tests.conversion.embedding_fixtures import byte_level, demo_text
from tests.processes import ROOT, call_command

SPECIALS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
SHAPE = ("--num-layers", 3, "--hidden-size", 32, "--num-attention-heads", 4, "--ffn-size", 64, "--max-positions", 40)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("encoder")
    byte_level(demo_text("en"), num_tokens=500, specials=SPECIALS).save_pretrained(str(base / "tokenizer"))
    arguments = (*SHAPE, "--model-type", "xlm-roberta", "--tokenizer", base / "tokenizer", "--output", base / "hf")
    call_command("conversion.new_model", *arguments)
    return base / "hf"


def sentences(language: str, count: int) -> list[str]:
    lines = (ROOT / "recipes" / "demo_text" / f"{language}.train.txt").read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(line[:60] for line in lines if line.strip()))[:count]


def test_ranks_are_those_of_a_plain_sort() -> None:
    generator = np.random.default_rng(0)
    english, other = (generator.normal(size=(700, 16)).astype(np.float32) for _ in range(2))
    other = (other + 0.4 * english).astype(np.float32)
    found = ranks(english, other)
    for row in range(0, 700, 37):
        cosines = [float(np.dot(english[row], b) / np.linalg.norm(english[row]) / np.linalg.norm(b)) for b in other.astype(np.float64)]
        assert found[row] == sorted(cosines, reverse=True).index(cosines[row]) + 1
    assert 1 < np.median(found) < 350


def test_a_tie_counts_against_the_translation() -> None:
    same = np.ones((30, 4), dtype=np.float32)
    assert ranks(same, same).tolist() == [30] * 30
    with pytest.raises(ValueError, match="zero or not finite"):
        ranks(same, np.zeros((30, 4), dtype=np.float32))


def test_vectors_are_the_mean_of_the_layer_without_padding(encoder: Path) -> None:
    """Those of each sentence alone, and cut at the model's positions."""
    texts = [*sentences("en", 5), "word " * 60]
    found = SentenceEncoder(inspect_checkpoint(encoder, name="x"), layer=2, device="cpu", dtype="float32").vectors(texts, batch_size=4)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(encoder).eval(), load_tokenizer(encoder)
    for text, vector in zip(texts, found, strict=True):
        ids = torch.tensor([tokenizer(text).input_ids[:40]])
        with torch.no_grad():
            hidden = model(ids, output_hidden_states=True).hidden_states
        assert len(hidden) == 4
        assert np.abs(hidden[2][0].mean(0).numpy() - vector).max() < 1e-5


def test_three_forms_give_the_same(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    english, slovene = sentences("en", 40), sentences("sl", 40)
    count = min(len(english), len(slovene))
    for name, lines in (("en.txt", english[:count]), ("sl.txt", slovene[:count]), ("same.txt", english[:count])):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        verses = [f"{40001001 + number}\t{line}" for number, line in enumerate(lines)]
        (tmp_path / f"verses_{name}").write_text("\n".join(["# a comment", *verses]) + "\n", encoding="utf-8")
    (tmp_path / "xtreme").mkdir()
    for language, name in (("slv", "sl.txt"), ("eng2", "same.txt")):
        for side, source in ((language, name), ("eng", "en.txt")):
            (tmp_path / "xtreme" / f"tatoeba.{language}-eng.{side}").write_bytes((tmp_path / source).read_bytes())
    forms = {
        "lines": ("--lines", f"slv={tmp_path / 'sl.txt'}", f"eng2={tmp_path / 'same.txt'}", "--english", tmp_path / "en.txt"),
        "tatoeba": ("--tatoeba", tmp_path / "xtreme"),
        "verses": (
            *("--verses", f"slv={tmp_path / 'verses_sl.txt'}", f"eng2={tmp_path / 'verses_same.txt'}"),
            *("--english", tmp_path / "verses_en.txt"),
        ),
    }
    found = {}
    for form, options in forms.items():
        arguments = ("--model", f"tiny={encoder}", *options, "--layer", "2", "--head", "eng2", "--output", tmp_path / form)
        arguments = (*arguments, "--results", tmp_path / "results")
        assert retrieval.main([str(word) for word in arguments]) == 0
        found[form] = json.loads((tmp_path / form / "retrieval.json").read_text())
        assert found[form]["sentences"] == {"slv": count, "eng2": count}
    scores = found["lines"]["accuracy"]["tiny"]
    assert scores["eng2"]["value"] == 1.0, "a sentence is nearest to itself"
    assert 0 < scores["slv"]["value"] < 1 and scores["slv"]["low"] < scores["slv"]["value"] < scores["slv"]["high"]
    assert all(of["accuracy"]["tiny"][language] == scores[language] for of in found.values() for language in scores)
    assert "| mean of head" in capsys.readouterr().out
    result = json.loads((tmp_path / "results" / "tiny" / "result.json").read_text())
    assert set(result["tasks"]) == {f"{task}_{language}" for task in ("retrieval", "tatoeba", "bible") for language in scores}
    assert {**scores["slv"], "stderr": None} == result["tasks"]["bible_slv"]["metrics"]["acc"]
    (items,) = (json.loads(line) for line in (tmp_path / "results" / "tiny" / "items" / "bible_slv.jsonl").read_text().splitlines())
    assert sum(items["scores"]["acc"]) == round(scores["slv"]["value"] * count), "for paired tests"
    assert retrieval.main([str(word) for word in arguments[:-4]] + ["--output", str(tmp_path / "again"), *map(str, arguments[-2:])]) == 0
    assert json.loads((tmp_path / "results" / "tiny" / "result.json").read_text()) == result, "what is there is not added again"
    assert report.main(["--results", str(tmp_path / "results"), "--output", str(tmp_path / "report")]) == 0
    assert "SR-B, all (2)" in (tmp_path / "report" / "across_languages.md").read_text()


def test_real_lines(shared_data: Path, encoder: Path, tmp_path: Path) -> None:
    """News that people translated: the same places as by plain cosines, better with a neighbour's script than with another."""
    with gzip.open(shared_data / "parallel" / "ntrex128.tsv.gz", "rt", encoding="utf-8", newline="\n") as stream:
        header, *rows = [line.rstrip("\n").split("\t") for line in stream]
    for name in ("en", "sl", "sr_Cyrl"):
        lines = [row[header.index(name)] for row in rows[:60]]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ("--lines", f"slv={tmp_path / 'sl.txt'}", f"srp_Cyrl={tmp_path / 'sr_Cyrl.txt'}", "--english", str(tmp_path / "en.txt"))
    assert retrieval.main(["--model", f"tiny={encoder}", *words, "--layer", "2", "--output", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "retrieval.json").read_text())["accuracy"]["tiny"]
    vectors = SentenceEncoder(inspect_checkpoint(encoder, name="x"), layer=2, device="cpu", dtype="float32")
    sides = [
        vectors.vectors((tmp_path / f"{name}.txt").read_text().splitlines(), batch_size=32).astype(np.float64) for name in ("en", "sl")
    ]
    a, b = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    among = [int(((a @ b.T)[row] >= (a @ b.T)[row, row]).sum()) <= 10 for row in range(60)]
    assert found["slv"]["value"] == pytest.approx(np.mean(among)) and found["slv"]["n"] == 60
    assert found["slv"]["value"] > found["srp_Cyrl"]["value"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "no text was given; give one of --lines, --tatoeba, --verses"),
        (("--lines", "sl=sl.txt"), "--lines needs the English text beside it; give --english FILE"),
        (("--lines", "sl.txt", "--english", "en.txt"), "--lines sl.txt names no language; expected LANGUAGE=FILE, such as sl=sl.txt"),
        (
            ("--lines", "sl=sl.txt", "--english", "en.txt"),
            "en.txt has 2 lines and sl.txt 1; expected a translation of each line, in the same order",
        ),
        (
            ("--verses", "sl=sl.txt", "--english", "en.txt"),
            "line 1 of en.txt is not a verse; expected its number, a tab and its text, such as 40001001<tab>...",
        ),
        (("--tatoeba", "."), ". has no file such as tatoeba.slv-eng.slv; give the folder of XTREME's Tatoeba"),
        (("--lines", "en=en.txt", "--english", "en.txt", "--head", "hr"), "--head names hr, which are not measured; measured are en"),
        (
            ("--lines", "en=en.txt", "--english", "en.txt", "--layer", "8"),
            "--layer is 8, but the model in ENCODER has 3 layers; expected 0 to 3",
        ),
        (("--layer", "-1"), "--layer is -1; expected at least 0"),
    ],
)
def test_misuse(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("en.txt").write_text("one\ntwo\n")
    Path("sl.txt").write_text("ena\n")
    with pytest.raises(ValueError, match=f"^{re.escape(sentence.replace('ENCODER', str(encoder)))}$"):
        retrieval.main(["--model", str(encoder), *options, "--output", "out"])
    assert not Path("out").exists()
