"""The real COMET library on a tiny random checkpoint; needs the environment of `make test-comet`."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

try:
    importlib.metadata.version("unbabel-comet")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("unbabel-comet is not installed here; run `make test-comet`", allow_module_level=True)

import torch

from eval.comet import find_comet_files, main, open_scorer
from eval.running.results import load_result
from eval.scoring.learned_scores import Triple
from tests.eval.made_translations import SENTENCES, TRANSLATED, make_translations

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """An XLM-R of two layers with the tokenizer it needs, learned from the sentences of the test."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import XLMRobertaConfig, XLMRobertaTokenizerFast

    folder = tmp_path_factory.mktemp("xlm-roberta-tiny")
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=specials, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([text for pair in SENTENCES for text in pair] * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    XLMRobertaTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    XLMRobertaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=66, type_vocab_size=1, pad_token_id=1, initializer_range=0.5,
    ).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def comet_folder(encoder, tmp_path_factory) -> Path:
    """As the hub has wmt22-comet-da: checkpoints/model.ckpt and hparams.yaml, which names the encoder as on the hub."""
    import pytorch_lightning
    import yaml
    from comet.models import RegressionMetric

    torch.manual_seed(0)
    settings = {"encoder_model": "XLM-RoBERTa", "hidden_sizes": [24, 8], "nr_frozen_epochs": 0.3, "layer": "mix", "dropout": 0.1}
    model = RegressionMetric(pretrained_model=str(encoder), load_pretrained_weights=False, local_files_only=True, **settings)
    folder = tmp_path_factory.mktemp("comet-tiny")
    (folder / "checkpoints").mkdir()
    saved = {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams)}
    saved["hyper_parameters"]["pretrained_model"] = "xlm-roberta-large"
    torch.save({**saved, "pytorch-lightning_version": pytorch_lightning.__version__}, folder / "checkpoints/model.ckpt")
    named = {**settings, "pretrained_model": "xlm-roberta-large", "class_identifier": "regression_metric"}
    (folder / "hparams.yaml").write_text(yaml.safe_dump(named))
    return folder


@pytest.fixture
def results(tmp_path) -> Path:
    make_translations(tmp_path / "results/source", TRANSLATED)
    better = {task: [[reference] * len(texts) for (_, reference), texts in zip(SENTENCES, rows)] for task, rows in TRANSLATED.items()}
    make_translations(tmp_path / "results/focus-10", better, step=10)
    return tmp_path / "results"


def arguments(results: Path, comet: Path, encoder: Path, output: Path) -> list[str]:
    return ["--results", str(results), "--checkpoint", str(comet), "--encoder", str(encoder), "--output", str(output), "--device", "cpu"]


def test_the_command_gives_what_the_library_gives(results, comet_folder, encoder, tmp_path, capsys):
    from comet.models import RegressionMetric

    wanted = arguments(results, comet_folder, encoder, tmp_path / "scored")
    assert main(wanted) == 0
    printed = capsys.readouterr()
    torch.manual_seed(0)  # the very model, before it was saved
    model = RegressionMetric(
        encoder_model="XLM-RoBERTa", hidden_sizes=[24, 8], nr_frozen_epochs=0.3, layer="mix", dropout=0.1, pretrained_model=str(encoder),
        load_pretrained_weights=False, local_files_only=True,
    )  # fmt: skip

    def by_library(texts):
        rows = [{"src": source, "mt": text, "ref": reference} for (source, reference), text in zip(SENTENCES, texts)]
        return [100 * score for score in model.predict(rows, batch_size=1, gpus=0, num_workers=0, progress_bar=False).scores]

    task = load_result(tmp_path / "scored/source/result.json")["tasks"]["flores_en_sl"]
    expected = by_library([texts[0] for texts in TRANSLATED["flores_en_sl"]])
    (items,) = map(json.loads, (tmp_path / "scored/source/items/flores_en_sl.jsonl").read_text().splitlines())
    assert items["scores"]["comet"] == pytest.approx(expected, abs=1e-3), "batches are padded, which moves the last digits"
    assert len({round(score, 2) for score in expected}) == 4, "a scorer that tells sentences apart"
    assert task["metrics"]["comet"]["value"] == pytest.approx(sum(expected) / 4, abs=1e-3)
    copies = by_library([source for source, _ in SENTENCES])
    assert task["metrics"]["comet_copy"]["value"] == pytest.approx(sum(copies) / 4, abs=1e-3)
    assert task["comet"]["package"] == f"unbabel-comet {importlib.metadata.version('unbabel-comet')}"
    sampled = load_result(tmp_path / "scored/source/result.json")["tasks"]["mt_en_sl"]["metrics"]
    runs = [sum(by_library([texts[run] for texts in TRANSLATED["mt_en_sl"]])) / 4 for run in range(2)]
    assert sampled["comet"]["value"] == pytest.approx(sum(runs) / 2, abs=1e-3)
    assert "[1/2] focus-10: scored\n[2/2] source: scored\n" in printed.err
    assert f"{task['metrics']['comet']['value']:.2f} [" in printed.out

    assert main(wanted) == 0
    assert "[2/2] source: scored before" in capsys.readouterr().err


def test_nothing_is_looked_for_in_the_network(results, comet_folder, encoder, tmp_path):
    """As a user runs it, in a process whose home has no cache of the hub; stdout is the table alone."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "eval.comet", *arguments(results, comet_folder, encoder, tmp_path / "scored")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 + 4
    assert done.stderr == "[1/2] focus-10: scored\n[2/2] source: scored\n"


def test_the_size_of_batches_changes_nothing(comet_folder, encoder):
    triples = [Triple(source, text, reference) for source, reference in SENTENCES for text in ("", reference, source, "mlin " * 30)]
    files = find_comet_files(comet_folder, encoder)
    one, many = (open_scorer(files, device="cpu", batch_size=size)(triples) for size in (1, 16))
    assert one == pytest.approx(many, abs=1e-5)


def refused(sentence: str, wanted: list[str]) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        main(wanted)


def test_checkpoints_that_are_no_whole_model(results, comet_folder, encoder, tmp_path):
    def broken(name: str) -> tuple[Path, list[str]]:
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "hparams.yaml").write_bytes((comet_folder / "hparams.yaml").read_bytes())
        return folder / "checkpoints/model.ckpt", arguments(results, folder, encoder, tmp_path / "scored")

    whole = comet_folder / "checkpoints/model.ckpt"
    path, wanted = broken("cut")
    path.write_bytes(whole.read_bytes()[:-2000])
    refused(f"{path} is not a readable checkpoint (", wanted)
    path, wanted = broken("lacks")
    content = torch.load(whole, weights_only=False)
    del content["state_dict"]["estimator.ff.0.weight"]
    torch.save(content, path)
    refused(f"{path} lacks 1 tensors of the model, first estimator.ff.0.weight; fetch it again", wanted)
    path, wanted = broken("other")
    content = torch.load(whole, weights_only=False)
    content["state_dict"]["estimator.ff.0.weight"] = torch.zeros(5, 5)
    torch.save(content, path)
    refused(f"COMET cannot load {path}: Error(s) in loading state_dict", wanted)
    path, wanted = broken("nan")
    content = torch.load(whole, weights_only=False)
    content["state_dict"]["estimator.ff.0.weight"][:] = torch.nan
    torch.save(content, path)
    refused("COMET gives nan to the source", wanted)
    assert not [p for p in (tmp_path / "scored").rglob("*") if p.suffix == ".json"] if (tmp_path / "scored").exists() else True
