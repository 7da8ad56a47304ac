"""The real BLEURT architecture with random weights; needs the environment of `make test-comet`."""

import importlib.metadata
import json
import re
import shutil
from pathlib import Path

import pytest

try:
    importlib.metadata.version("bleurt-pytorch")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("bleurt-pytorch is not installed here; run `make test-comet`", allow_module_level=True)

import torch

from eval.bleurt import find_bleurt, main, open_bleurt
from eval.running.results import load_result
from eval.scoring.learned_scores import Triple
from tests.eval.made_translations import SENTENCES, TRANSLATED, make_summaries, make_translations


@pytest.fixture(scope="module")
def bleurt(tmp_path_factory) -> Path:
    """As the hub has BLEURT-20: config, weights and spm.model; embeddings are narrower than the layers, as there."""
    import sentencepiece
    from bleurt_pytorch import BleurtConfig, BleurtForSequenceClassification
    from bleurt_pytorch.bleurt.tokenization_bleurt_sp import BleurtSPTokenizer

    work, folder = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("bleurt-tiny")
    (work / "text.txt").write_text("\n".join(text for pair in SENTENCES for text in pair), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(work / "text.txt"), model_prefix=str(work / "spm"), vocab_size=60, user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"],
        pad_id=0, pad_piece="[PAD]", unk_id=1, unk_piece="[UNK]", bos_id=-1, eos_id=-1, minloglevel=2,
    )  # fmt: skip
    tokenizer = BleurtSPTokenizer(str(work / "spm.model"))
    torch.manual_seed(0)
    config = BleurtConfig(
        vocab_size=len(tokenizer), embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=48, initializer_range=0.5,
    )  # fmt: skip
    BleurtForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def by_library(folder: Path, pairs: list[tuple[str, str]]) -> list[float]:
    """Reference and answer one by one, as the package's own example asks."""
    from bleurt_pytorch import BleurtForSequenceClassification, BleurtTokenizer

    model, tokenizer = BleurtForSequenceClassification.from_pretrained(folder).eval(), BleurtTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return [
            100 * float(model(**tokenizer([one], [other], truncation=True, max_length=48, return_tensors="pt")).logits)
            for one, other in pairs
        ]


def test_the_command_gives_what_the_library_gives(bleurt, tmp_path, capsys) -> None:
    make_translations(tmp_path / "results/source", TRANSLATED)
    make_summaries(
        tmp_path / "results/adapted", {"sum_my": [["Mlin.", "Reka."], ["Trg.", ""], ["Megla.", "Jutro."], ["Most.", "Nihče."]]}, step=10
    )
    words = ["--results", str(tmp_path / "results"), "--checkpoint", str(bleurt), "--output", str(tmp_path / "scored"), "--device", "cpu"]
    assert main(words) == 0
    printed = capsys.readouterr()
    task = load_result(tmp_path / "scored/source/result.json")["tasks"]["flores_en_sl"]
    expected = by_library(bleurt, [(reference, texts[0]) for (_, reference), texts in zip(SENTENCES, TRANSLATED["flores_en_sl"])])
    (items,) = map(json.loads, (tmp_path / "scored/source/items/flores_en_sl.jsonl").read_text().splitlines())
    assert items["scores"]["bleurt"] == pytest.approx(expected, abs=1e-3), "batches are padded, which moves the last digits"
    assert len({round(score, 2) for score in expected}) == 4, "a scorer that tells sentences apart"
    assert task["metrics"]["bleurt"]["value"] == pytest.approx(sum(expected) / 4, abs=1e-3)
    copies = by_library(bleurt, [(reference, source) for source, reference in SENTENCES])
    assert task["metrics"]["bleurt_copy"]["value"] == pytest.approx(sum(copies) / 4, abs=1e-3)
    assert task["bleurt"]["package"] == f"bleurt-pytorch {importlib.metadata.version('bleurt-pytorch')}"
    # A summary has no source that a copy could be made of; five runs in the paper, two here.
    summaries = load_result(tmp_path / "scored/adapted/result.json")["tasks"]["sum_my"]["metrics"]
    runs = [by_library(bleurt, [(ref, texts[run]) for (_, ref), texts in zip(SENTENCES, (("Mlin.", "Reka."), ("Trg.", ""), ("Megla.", "Jutro."), ("Most.", "Nihče.")))]) for run in (0, 1)]  # fmt: skip
    assert summaries["bleurt"]["value"] == pytest.approx(sum(map(sum, runs)) / 8, abs=1e-3)
    assert "bleurt_copy" not in summaries and summaries["bleurt_sd"]["value"] > 0 and "rougeL" in summaries
    assert "[1/2] adapted: scored\n[2/2] source: scored\n" in printed.err and f"{task['metrics']['bleurt']['value']:.2f}" in printed.out
    assert main(words) == 0
    assert "[2/2] source: scored before" in capsys.readouterr().err


def test_batches_change_nothing_and_long_answers_lose_their_end(bleurt) -> None:
    triples = [Triple("", text, reference) for source, reference in SENTENCES for text in ("", reference, source, "mlin " * 80)]
    one, many = (open_bleurt(bleurt, device="cpu", batch_size=size)(triples) for size in (1, 16))
    assert one == pytest.approx(many, abs=1e-5)


def test_folders_that_are_no_whole_model(bleurt, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    def refused(sentence: str, function, *arguments, **more) -> None:
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            function(*arguments, **more)

    refused(f"{tmp_path} has no config.json; expected BLEURT in its PyTorch form, for example from `hf download", find_bleurt, tmp_path)
    folder = tmp_path / "lacks"
    shutil.copytree(bleurt, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["classifier.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    lacking = f"{folder} lacks 1 tensors of the model, first classifier.weight; download it again"
    refused(lacking, open_bleurt, folder, device="cpu", batch_size=1)
    (folder / "model.safetensors").write_bytes(b"\0" * 40)
    refused(f"BLEURT in {folder} cannot be loaded: ", open_bleurt, folder, device="cpu", batch_size=1)
    (folder / "spm.model").unlink()
    refused(f"{folder} has no spm.model or vocab.txt; download all of it", find_bleurt, folder)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    refused(f"{folder} holds a model of the type bert; expected bleurt", find_bleurt, folder)
