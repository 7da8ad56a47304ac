"""The report: figures against plain recomputation, rows that stand out, and a page that holds all it shows."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conversion.embeddings import METHODS
from conversion.embeddings.methods.method import TransferInputs
from conversion.embeddings.methods.row_plan import RowPlan
from conversion.embeddings.report.figures import LayerRows, display, transfer_figures, warnings_of
from conversion.embeddings.vocabularies.vocabulary import Vocabulary
from conversion.formats.lazy_tensor import LazyTensor
from conversion.transfer import main
from data_prep.cleaning.language_filter import script_of
from data_prep.tokenizers.files import load_tokenizer
from tests.conversion.embedding_fixtures import (
    SOURCE_SPECIALS,
    byte_level,
    demo_text,
    opt_config,
    opt_tensors,
    save_checkpoint,
    transfer_arguments,
    transfer_folders,
    transfer_inputs,
)
from tests.refusals import refused

INPUT, OUTPUT = "model.decoder.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize(
    ("text", "script"),
    [
        (" čas", "Latin"), ("λόγος", "Greek"), (" време", "Cyrillic"), ("漢字", "Han"), ("ひ", "Hiragana"), ("नमस्ते", "Devanagari"),
        ("한", "Hangul"), ("مرحبا", "Arabic"), (" 1848", "digits"), ("...", "punctuation and symbols"), ("  ", "white space"),
        ("\n", "white space"), ("ª", "other letters"), ("1a", "Latin"), ("😀", "punctuation and symbols"), ("𝔊", "other letters"),
    ],
)  # fmt: skip
def test_script_of_a_token(text: str, script: str) -> None:
    assert script_of(text.encode()) == script


def test_stray_bytes_have_no_script() -> None:
    assert script_of(b"\xc4") == "parts of characters" == script_of(b" \xc4")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("report")
    for language in ("sl", "en"):
        (root / f"{language}.txt").write_text(demo_text(language)[-8000:], encoding="utf-8")
    return transfer_folders(root / "transfer") | {"sl": root / "sl.txt", "en": root / "en.txt"}


@pytest.fixture(scope="module")
def written(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("written") / "out"
    main(transfer_arguments(folders, output, "--report-text", f"sl={folders['sl']}", f"en={folders['en']}", source="untied"))
    return output


def test_figures_of_text(folders: dict[str, Path], written: Path) -> None:
    report = json.loads((written / "transfer.json").read_text())
    source, target = load_tokenizer(folders["untied"]), load_tokenizer(written)
    origins = {entry["id"]: entry["origin"] for entry in report["tokens"]}
    for language in ("sl", "en"):
        found = report["figures"]["texts"][language]
        documents = [text.strip("\n") for text in re.split(r"\n\n+", folders[language].read_text()) if text.strip()]
        before = sum(len(source(text, add_special_tokens=False)["input_ids"]) for text in documents)
        ids = [i for text in documents for i in target(text, add_special_tokens=False)["input_ids"]]
        words = sum(len(text.split()) for text in documents)
        assert (found["num_documents"], found["num_words"]) == (len(documents), words)
        assert (found["num_tokens_before"], found["num_tokens_after"]) == (before, len(ids))
        assert found["tokens_per_word"] == pytest.approx([before / words, len(ids) / words], rel=1e-3)
        assert found["num_distinct"] == len(set(ids))
        assert found["num_distinct_copied"] == sum(origins[i] in ("copied", "special") for i in set(ids))
        assert found["occurrences_by_origin"]["copied"] == sum(origins[i] == "copied" for i in ids)
    assert report["figures"]["texts"]["sl"]["num_tokens_after"] < report["figures"]["texts"]["sl"]["num_tokens_before"]


def test_figures_of_rows(folders: dict[str, Path], written: Path) -> None:
    report = json.loads((written / "transfer.json").read_text())
    before, after = (load_file(folder / "model.safetensors") for folder in (folders["untied"], written))
    new = [entry["id"] for entry in report["tokens"] if entry["origin"] not in ("copied", "special")]
    for layer, name in (("input embeddings", INPUT), ("output layer", OUTPUT)):
        norms = report["figures"]["norms"][layer]
        assert norms["num_new"] == len(new) == sum(norms["new_counts"])
        assert norms["source"]["median"] == pytest.approx(float(before[name][:-7].norm(dim=1).quantile(0.5)), rel=1e-3)
        assert norms["new"]["max"] == pytest.approx(float(after[name][new].norm(dim=1).max()), rel=1e-3)
        assert sum(norms["source_counts"]) == len(before[name]) - 7  # padding rows are no tokens
    for sample in report["figures"]["neighbours"]:
        cosines = torch.nn.functional.cosine_similarity(after[INPUT][sample["id"]][None], before[INPUT][:-7])
        assert sample["neighbours"][0][2] == pytest.approx(float(cosines.max()), abs=2e-3)
    assert len(report["figures"]["neighbours"]) > 5
    tokens = sum(row["tokens"] for row in report["figures"]["scripts"])
    assert tokens == Vocabulary.of(load_tokenizer(written)).is_text.sum()


class _Page(HTMLParser):
    """What a page refers to, and whether its elements close."""

    VOID = ("meta", "img", "br", "line", "polygon")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        if tag not in self.VOID:
            self.open.append(tag)
        values = dict(attributes)
        self.addresses += [values[name] or "" for name in ("href", "src", "srcset") if name in values]
        self.ids.add(values.get("id") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_page_holds_all_it_shows(written: Path) -> None:
    text = (written / "transfer.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert not page.open and len(text) < 300_000
    assert page.addresses and all(address.startswith("#") and address[1:] in page.ids for address in page.addresses)
    assert "://" not in text and "prefers-color-scheme: dark" in text and "focus-visible" in text
    titles = ["Where the rows come from", "Special tokens", "Overlap by script", "Text before and after", "Row norms", "Single tokens"]
    assert set(titles) <= set(re.findall("<h2>(.*?)</h2>", text))
    assert '<span class="token">&lt;pad&gt;</span>' in text and '<span class="token"><pad>' not in text


@pytest.fixture(scope="module")
def case() -> tuple[TransferInputs, RowPlan, torch.Tensor, torch.Tensor]:
    inputs = transfer_inputs(byte_level(demo_text("en"), num_tokens=500), byte_level(demo_text("sl"), num_tokens=600))
    generator = torch.Generator().manual_seed(0)
    matrices = (torch.randn(size, 16, generator=generator) for size in (len(inputs.source), len(inputs.target)))
    return inputs, METHODS["mean"].plan(inputs), *matrices


def _layer(source: torch.Tensor, target: torch.Tensor) -> LayerRows:
    return LayerRows("input", LazyTensor.of("source", source), LazyTensor.of("target", target))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_that_stand_out_are_found(case: tuple[TransferInputs, RowPlan, torch.Tensor, torch.Tensor], dtype: torch.dtype) -> None:
    inputs, plan, source, target = case
    source, target = source.to(dtype), target.clone().to(dtype)
    new = inputs.new_ids.tolist()
    assert warnings_of(transfer_figures(inputs, plan, [_layer(source, target)], {})) == []
    target[new[0]] = 0
    target[new[1]] *= 50
    target[new[2], 3] = float("nan")
    target[new[3]] = target[new[4]]
    target[inputs.shared_ids[0]] = target[inputs.shared_ids[1]]  # copies are not accidents of the method
    target[new[5]] = target[new[6]] * 2  # no duplicate by its bits, but near
    figures = transfer_figures(inputs, plan, [_layer(source, target)], {})
    norms, duplicates = figures["norms"]["input"], figures["duplicates"]["input"]
    assert [norms[key]["count"] for key in ("near_zero", "exploding", "not_finite")] == [1, 1, 1]
    assert [norms[key]["examples"][0][0] for key in ("near_zero", "exploding", "not_finite")] == new[:3]
    assert duplicates["num_rows"] == 2 and {i for i, _ in duplicates["examples"][0]} == {new[3], new[4]}
    assert duplicates["near"]["count"] == 2
    names = [display(inputs.target, i) for i in new]
    median = norms["source"]["median"]
    assert warnings_of(figures) == [
        f"1 of {len(new)} new rows of input hold NaN or infinite values, for example {names[2]!r} (None); the median of the source is {median}",
        f"1 of {len(new)} new rows of input are near zero, for example {names[0]!r} (0.0); the median of the source is {median}",
        f"1 of {len(new)} new rows of input are far too long, for example {names[1]!r} ({norms['exploding']['examples'][0][2]});"
        f" the median of the source is {median}",
        f"2 new rows of input are identical to the row of another token, for example {names[3]!r} = {names[4]!r}",
    ]
    json.dumps(figures, allow_nan=False)


def test_warnings_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tokens of the same letters have the same mean of letters."""
    source = byte_level("", num_tokens=262, specials=SOURCE_SPECIALS)
    config = opt_config(len(source))
    save_checkpoint(tmp_path / "source", config, opt_tensors(config), source)
    byte_level("rokaroka koraroka kora roka kora", num_tokens=276, specials=SOURCE_SPECIALS).save_pretrained(str(tmp_path / "target"))
    main(transfer_arguments({"tied": tmp_path / "source", "target": tmp_path / "target"}, tmp_path / "out"))
    report = json.loads((tmp_path / "out" / "transfer.json").read_text())
    assert len(report["warnings"]) == 1 and "are identical to the row of another token" in report["warnings"][0]
    captured = capsys.readouterr()
    assert captured.err.splitlines()[1:] == [f"warning: {report['warnings'][0]}"], "behind the line that says what is read"
    assert f"  report: {tmp_path / 'out' / 'transfer.html'}\n" in captured.out
    assert "Check these rows" in (tmp_path / "out" / "transfer.html").read_text()


def test_report_text_must_have_a_name(folders: dict[str, Path], tmp_path: Path) -> None:
    with refused(f"--report-text {folders['sl']} is not of the form NAME=FILE, for example sl=heldout.sl.txt"):
        main(transfer_arguments(folders, tmp_path / "out", "--report-text", str(folders["sl"])))


def test_tokens_are_shown_for_people() -> None:
    vocabulary = Vocabulary.of(byte_level("abc abc", num_tokens=262))
    shown = [display(vocabulary, i) for i in range(len(vocabulary))]
    assert {"a", "\\n", "\\t", "▁", "\\xc4", "<|endoftext|>"} <= set(shown)
    assert all(text.isprintable() for text in shown) and np.mean([len(text) > 0 for text in shown]) == 1
