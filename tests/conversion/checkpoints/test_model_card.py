from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from common.artifacts import write_manifest
from conversion import hf_to_nemo, nemo_to_hf
from conversion.checkpoints.model_card import CardOptions
from tests.conversion.conftest import VOCAB_SIZE, OPTMaker
from tests.conversion.folders import edit_json, manifest_of, there_and_back

RECIPE = {
    "name": "sl_1b",
    "precision": "bf16",
    "schedule": {"global_batch_size": 16, "learning_rate": 0.001},
    "data": {"sequence_length": 128},
}


def trained(make_opt: OPTMaker, tmp_path: Path, **facts: Any) -> Path:
    """A NeMo checkpoint with the manifest that training writes."""
    hf_to_nemo.convert(make_opt(), tmp_path / "nemo")
    before = manifest_of(tmp_path / "nemo")
    inputs = {"/data/sl": "xxh3:da7a", "checkpoint": before.digest}
    write_manifest(tmp_path / "nemo", stage="recipes.train", facts={**before.facts, **facts}, arguments=RECIPE, inputs=inputs)
    return tmp_path / "nemo"


def card_of(directory: Path) -> tuple[dict[str, Any], str]:
    text = (directory / "README.md").read_text()
    _, front_matter, body = text.split("---\n", 2)
    return yaml.safe_load(front_matter), body


def test_card_of_a_trained_model(make_opt: OPTMaker, tmp_path: Path) -> None:
    nemo_dir = trained(make_opt, tmp_path, step=500, method="focus", head="copied", seed=3)
    manifest = nemo_to_hf.export(nemo_dir, tmp_path / "opt-sl")
    front_matter, body = card_of(tmp_path / "opt-sl")
    assert front_matter == {
        "license": "unknown",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["opt", "nemo", "megatron", "vocabulary-transfer", "focus"],
    }
    source = manifest_of(nemo_dir)
    num_parameters = sum(tensor.numel() for tensor in load_file(tmp_path / "opt-sl/model.safetensors").values())
    for line in (
        "# opt-sl",
        f"OPTForCausalLM with {num_parameters:,} parameters and {VOCAB_SIZE} tokens, one matrix for input and output.",
        "- method: focus",
        "- output layer: copied",
        "- optimizer steps: 500",
        "- tokens seen: 1,024,000",
        "- precision: bf16",
        "- recipe: sl_1b",
        f"- tokenizer: {manifest.facts['tokenizer_digest']}",
        f"- exported from: output of `recipes.train`, {source.digest}",
        "- its input, sl: xxh3:da7a",
        "Not stated. Fill in `license` above before publishing; the licence of the base model binds it too.",
    ):
        assert f"\n{line}\n" in body, line
    assert "Evaluation" not in body and "base_model" not in body
    assert manifest.facts["consumed_tokens"] == 16 * 128 * 500
    assert "README.md" in manifest.files


def test_what_only_the_exporter_knows(make_opt: OPTMaker, tmp_path: Path) -> None:
    result = {
        "format": 1,
        "name": "opt-sl",
        "texts": {"sl": {"bits_per_byte": 1.23456}},
        "tasks": {"completion_sl": {"metrics": {"acc": {"value": 0.3, "stderr": 0.07338}, "acc_norm": {"value": 0.5, "stderr": None}}}},
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results/result.json").write_text(json.dumps(result))
    nemo_dir = trained(make_opt, tmp_path)
    arguments = ["--language", "sl", "en", "--license", "apache-2.0", "--base-model", "facebook/opt-1.3b", "--results"]
    assert nemo_to_hf.main(["--input", str(nemo_dir), "--output", str(tmp_path / "out"), *arguments, str(tmp_path / "results")]) == 0
    front_matter, body = card_of(tmp_path / "out")
    assert front_matter["language"] == ["sl", "en"]
    assert (front_matter["license"], front_matter["base_model"]) == ("apache-2.0", "facebook/opt-1.3b")
    rows = re.findall(r"^\| opt-sl +\| (\S+) +\| (.+?) +\| +(.+?) \|$", body, re.MULTILINE)
    assert rows == [
        ("sl", "bits per byte", "1.2346"),
        ("completion_sl", "acc", "0.3000 ± 0.0734"),
        ("completion_sl", "acc_norm", "0.5000"),
    ]
    assert "Licence" not in body and body.count("Made from facebook/opt-1.3b.") == 1


def test_the_data_and_its_licences(make_opt: OPTMaker, tmp_path: Path) -> None:
    """From the tables that `data_prep.collect` leaves; the files of the corpora are long gone, and a licence that nobody stated is said to be missing."""
    (tmp_path / "sl.yaml").write_text(
        "- {name: gigafida, files: [a.jsonl.zst], language: sl, licence: CC BY-NC-SA 4.0, domain: news, source: clarin.si}\n"
        "- {name: web, files: [b.jsonl.zst], language: hr-bs}\n"
    )
    (tmp_path / "en.yaml").write_text("- {name: wiki, files: [c.jsonl.zst], language: 'no', licence: CC BY-SA 4.0}\n")
    nemo_dir = trained(make_opt, tmp_path)
    arguments = ["--input", str(nemo_dir), "--corpora", str(tmp_path / "sl.yaml"), str(tmp_path / "en.yaml")]
    assert nemo_to_hf.main([*arguments, "--output", str(tmp_path / "out")]) == 0
    front_matter, body = card_of(tmp_path / "out")
    assert front_matter["language"] == ["sl", "hr", "bs", "no"]
    [_, data, *_] = re.split(r"^## ", body.partition("## Data")[1] + body.partition("## Data")[2], flags=re.MULTILINE)
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in data.splitlines() if line.startswith("|")][2:] == [
        ["gigafida", "sl", "news", "CC BY-NC-SA 4.0", "clarin.si"],
        ["web", "hr-bs", "not stated", "not stated", "not stated"],
        ["wiki", "no", "not stated", "CC BY-SA 4.0", "not stated"],
    ]
    assert "No licence is stated for web: look for it before publishing." in data
    assert nemo_to_hf.main([*arguments, "--language", "sl", "--output", str(tmp_path / "chosen")]) == 0
    assert card_of(tmp_path / "chosen")[0]["language"] == ["sl"]
    for table, sentence in (
        (tmp_path / "out/README.md", "no list of corpora|YAML"),
        (tmp_path / "sl.yaml", "--corpora names gigafida, web twice"),
    ):
        with pytest.raises(ValueError, match=sentence):
            nemo_to_hf.main([*arguments, str(table), "--output", str(tmp_path / "no")])
    assert not (tmp_path / "no").exists()


def test_base_model_of_the_config(make_opt: OPTMaker, tmp_path: Path) -> None:
    for number, (name, expected) in enumerate((("facebook/opt-125m", "facebook/opt-125m"), ("/scratch/opt", None), ("", None))):
        hf_dir = make_opt(f"hf{number}")
        edit_json(hf_dir / "config.json", _name_or_path=name)
        hf_to_nemo.convert(hf_dir, tmp_path / f"nemo{number}")
        nemo_to_hf.export(tmp_path / f"nemo{number}", tmp_path / f"out{number}")
        assert card_of(tmp_path / f"out{number}")[0].get("base_model") == expected


def test_without_a_manifest_nothing_is_claimed(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_to_nemo.convert(make_opt(), tmp_path / "nemo")
    (tmp_path / "nemo/scion.json").unlink()
    nemo_to_hf.export(tmp_path / "nemo", tmp_path / "out", card=CardOptions(name="A model"))
    _, body = card_of(tmp_path / "out")
    assert body.startswith("\n# A model\n") and "Training" not in body and "Vocabulary" not in body
    assert "- exported from: a checkpoint without a manifest\n" in body


def test_results_that_are_none(make_opt: OPTMaker, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    for path, error in ((tmp_path, "KeyError('texts')"), (tmp_path / "none", "FileNotFoundError")):
        with pytest.raises(
            ValueError, match=rf"is not a result of `python -m eval.harness` \({re.escape(error)}.*; name the folder of one"
        ):
            nemo_to_hf.main(["--input", "x", "--output", str(tmp_path / "out"), "--results", str(path)])


# -- what else an export holds ---------------------------------------------------------------------------------------------


def test_chat_template_generation_config_and_declared_changes(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt(saving={"max_shard_size": "20KB"})
    (hf_dir / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}\n")
    (hf_dir / "generation_config.json").write_text('{"do_sample": true, "eos_token_id": [2, 3]}')
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    manifest = nemo_to_hf.export(tmp_path / "nemo", tmp_path / "out", max_shard_bytes=20_000)
    for path in hf_dir.iterdir():
        if not path.name.startswith("model"):
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name
    assert manifest.facts["changed_config_keys"] == []
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(json.loads((hf_dir / "model.safetensors.index.json").read_text())["weight_map"])
    changed = nemo_to_hf.export(tmp_path / "nemo", tmp_path / "half", dtype="bfloat16")
    assert changed.facts["changed_config_keys"] == ["dtype"]


@pytest.mark.parametrize("tied", [True, False])
def test_tied_only_when_the_matrices_are_one(make_opt: OPTMaker, tmp_path: Path, tied: bool) -> None:
    back = there_and_back(make_opt(tie_word_embeddings=tied), tmp_path)
    assert json.loads((back / "config.json").read_text()).get("tie_word_embeddings", True) is tied
    assert ("lm_head.weight" in load_file(back / "model.safetensors")) is not tied
