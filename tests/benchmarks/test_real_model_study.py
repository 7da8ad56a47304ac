"""The study on a real model, whole, on a tiny one: every vocabulary and way, what was measured once is not measured again, and the tables."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import real_model_study
from benchmarks.real_model import cells, material
from benchmarks.real_model.material import Sizes
from benchmarks.real_model.training import WAYS
from tests.conversion.embedding_fixtures import byte_level, demo_text, opt_config, opt_tensors, save_checkpoint

SIZES = Sizes(methods=20_000, tokenizer=40_000, training=60_000, heldout=1_500)
VOCABULARIES = ("replace-700", "expand-40")


def write_data(folder: Path) -> Path:
    """Novels of both languages, news, help pages and a dictionary, all of the demo's text."""
    for language in ("sl", "en"):
        paragraphs = [line for line in demo_text(language).splitlines() if len(line) > 40]
        novels = [{"group": f"novel {i // 20}", "text": "\n\n".join(paragraphs[i : i + 10])} for i in range(0, len(paragraphs), 10)]
        (folder / "text" / language).mkdir(parents=True)
        with gzip.open(folder / "text" / language / "eltec_novels.jsonl.gz", "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps(novel) + "\n" for novel in novels)
    pairs = list(zip(demo_text("en").split("\n"), demo_text("sl").split("\n")))[:120]
    (folder / "parallel").mkdir()
    with gzip.open(folder / "parallel" / "ntrex128.tsv.gz", "wt", encoding="utf-8") as lines:
        lines.write("doc\tline\ten\tsl\n" + "".join(f"{i // 4}\t{i}\t{en}\t{sl}\n" for i, (en, sl) in enumerate(pairs)))
    with gzip.open(folder / "parallel" / "gnome_help.en-sl.tsv.gz", "wt", encoding="utf-8") as lines:
        lines.write("page\ten\tsl\n" + "".join(f"p\t{en}\t{sl}\n" for en, sl in pairs if en and sl))
    (folder / "dictionaries").mkdir()
    words = zip(demo_text("en").split()[:400], demo_text("sl").split()[:400])
    with gzip.open(folder / "dictionaries" / material.DICTIONARIES["sl"], "wt", encoding="utf-8") as lines:
        lines.writelines(f"{one}\t{other}\n" for one, other in words)
    return folder


@pytest.mark.long  # it trains tokenizers, a helper and a dozen tiny models
def test_a_study_from_its_data_to_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(material, "_HELPER_TRAINING", replace(material._HELPER_TRAINING, num_steps=2))
    monkeypatch.setattr(material, "_HELPER_OF_EXPANDED", 700)
    monkeypatch.setattr(cells, "_SPOKEN", 4)
    data = write_data(tmp_path / "data")
    tokenizer = byte_level(demo_text("en"), num_tokens=500, specials={"bos": "</s>", "eos": "</s>", "pad": "<pad>"})
    config = opt_config(len(tokenizer), max_position_embeddings=600)
    source, output = save_checkpoint(tmp_path / "source", config, opt_tensors(config), tokenizer), tmp_path / "study"

    def study(*options: str, precision: str = "float32") -> str:  # which every processor multiplies fast
        words = [
            "--source",
            source,
            "--data",
            data,
            "--output",
            output,
            "--vocabularies",
            *VOCABULARIES,
            "--precision",
            precision,
            *options,
        ]
        real_model_study.main([str(word) for word in words], SIZES)
        return capsys.readouterr().out

    methods = ("lapt", "random-all", "random", "mean", "sava-plain", "trans-tokenization")
    study("--methods", *methods, "--seeds", "1", "2")
    held = {text.name: text.documents for text in material.Study(source, data, output, SIZES).heldout("sl")}
    assert set(held) == {"sl", "en", "novels"}
    files = {path.stem: path.read_bytes() for path in (output / "cells").glob("*.json")}
    of_replaced = {f"sl.replace-700.{name}.plain.1" for name in methods[1:]}
    assert {"sl.own.lapt.plain.1", "sl.replace-700.random.plain.2", "sl.expand-40.random.plain.2", *of_replaced} <= set(files)
    assert "sl.expand-40.random-all.plain.1" not in files and "sl.replace-700.mean.plain.2" not in files
    study("--methods", "mean", "merge", "--rows-only")
    assert {path.name for path in (output / "rows").iterdir()} == {
        f"sl.{vocabulary}.{method}.plain.1.safetensors" for vocabulary in VOCABULARIES for method in ("mean", "merge")
    }
    assert {path.stem for path in (output / "cells").glob("*.json")} == set(files)
    study("--methods", "merge")  # of rows that are made ahead
    ahead = (output / "cells" / "sl.expand-40.merge.plain.1.json").read_text()
    for folder in ("rows", "cells"):
        for path in (output / folder).glob("*.merge.*"):
            path.unlink()
    study("--methods", "merge")
    anew = json.loads((output / "cells" / "sl.expand-40.merge.plain.1.json").read_text())
    assert anew["0"]["documents"] == json.loads(ahead)["0"]["documents"]
    study("--methods", "mean", "sava-plain", "--helper-steps", "201", "--vocabularies", "replace-700")
    helped = {path.stem for path in (output / "cells").glob("*+helper-*")}
    assert helped == {"sl.replace-700.sava-plain+helper-201.plain.1"} and (output / "helper_sl_700_201").is_dir()
    usual, other = (json.loads((output / "cells" / f"{name}.json").read_text()) for name in ("sl.replace-700.sava-plain.plain.1", *helped))
    assert usual["0"]["documents"] != other["0"]["documents"]
    with pytest.raises(SystemExit, match=r"--helper-steps 1: expected at least 200"):
        study("--helper-steps", "1", "201")
    trained = study("--methods", "lapt", "mean", "--tokens", "1024", "2048", "--ways", *WAYS)
    assert "sl, replace-700: bits per byte after 2,048 tokens" in trained
    assert "sl, expand-40 | sl, replace-700 | below / tied with / above `mean`" in trained
    learned = (output / "text" / f"sl.{SIZES.training}.jsonl").read_text(encoding="utf-8")
    assert not any(json.dumps(piece[:60], ensure_ascii=False)[1:-1] in learned for piece in held["novels"])
    figures = {path.stem: json.loads(path.read_text()) for path in (output / "cells").glob("*.json")}
    starts = [figures[f"sl.replace-700.mean.{way}.1"] for way in WAYS]
    assert all(start["0"] == starts[0]["0"] for start in starts)
    after = {way: figures[f"sl.replace-700.mean.{way}.1"]["2048"]["bits_per_byte"]["sl"] for way in WAYS}
    # Of so few tokens all are embeddings first, which is embeddings only.
    assert after["embeddings-first-10k"] == after["embeddings-first-50k"] == after["embeddings-only"]
    assert len(set(after.values())) == len(WAYS) - 2
    assert all(path.read_bytes() == files[path.stem] for path in (output / "cells").glob("*.sava-plain.*"))
    known = {path: path.stat().st_mtime_ns for path in (output / "cells").glob("*")}
    assert "sl: generation" in study("--speed")
    study("--methods", "lapt", "mean", "--tokens", "1024", "2048")
    assert {path: path.stat().st_mtime_ns for path in (output / "cells").glob("*")} == known
    with pytest.raises(
        SystemExit, match=r"holds a study with learning_rate 0\.0003, now 0\.001; choose another --output or the same settings"
    ):
        study("--learning-rate", "0.001")
    with pytest.raises(SystemExit, match=r"holds a study with mixed_precision False, now True"):
        study(precision="bfloat16")
    other = tmp_path / "bfloat16"
    shutil.copytree(output, other, ignore=shutil.ignore_patterns("cells", "settings.json"))
    study("--methods", "mean", "--tokens", "1024", "--output", str(other), precision="bfloat16")
    half = json.loads((other / "cells" / "sl.replace-700.mean.plain.1.json").read_text())["1024"]["bits_per_byte"]["sl"]
    whole = figures["sl.replace-700.mean.plain.1"]["1024"]["bits_per_byte"]["sl"]
    assert half != whole and half == pytest.approx(whole, rel=0.02)
    with pytest.raises(SystemExit, match=r"--threads 2: expected 1, of which --speed tells"):
        study("--speed", "--threads", "2")
    with pytest.raises(SystemExit, match=r"--together 2: expected 1 to 32, and more than 1 only with --device cuda"):
        study("--together", "2")
