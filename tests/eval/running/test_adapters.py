"""LoRA adapters as PEFT saves them, evaluated on their base without a merged copy on disk."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from conversion.checkpoints.hf_model import inspect_checkpoint, load_model, whole_folder
from eval.harness import main
from tests.eval.tiny_models import SENTENCES, tiny_llama, tiny_tokenizer


@pytest.fixture
def base(save_checkpoint) -> Path:
    return save_checkpoint("base", tiny_llama(num_positions=128), tiny_tokenizer())


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    """Rank 4 on attention and feed-forward, with factors that are not zero; the config names the base's folder."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"]))
    torch.manual_seed(3)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def figures(folder: Path) -> tuple[dict, dict]:
    result = json.loads((folder / "result.json").read_text())
    metrics = {task: summary["metrics"] for task, summary in result["tasks"].items()}
    return result, {"texts": {name: text["bits_per_byte"] for name, text in result["texts"].items()}, "tasks": metrics}


def test_an_adapter_is_its_base_with_the_products_added(base, adapter, tmp_path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    by_hand = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).merge_and_unload()
    by_hand.save_pretrained(tmp_path / "merged")
    tiny_tokenizer().save_pretrained(tmp_path / "merged")
    (tmp_path / "sl.txt").write_text("\n".join(SENTENCES))
    models = [str(base), str(adapter), str(tmp_path / "merged")]
    words = ["--text", f"sl={tmp_path}/sl.txt", "--tasks", "completion_sl", "--limit", "12"]
    assert main(["--model", *models, *words, "--output", str(tmp_path / "results")]) == 0
    plain, adapted, merged = (figures(tmp_path / "results" / name) for name in ("base", "adapter", "merged"))
    assert adapted[1] == merged[1] and adapted[1]["texts"] != plain[1]["texts"]
    digests = {result["model"]["digest"] for result, _ in (plain, adapted, merged)}
    assert len(digests) == 3 and adapted[0]["model"]["adapter"] == "adapter"
    checkpoint = inspect_checkpoint(adapter, name="x")
    with whole_folder(checkpoint, "float32") as folder:  # what vLLM gets
        whole = load_model(inspect_checkpoint(folder, name="y"), device="cpu", dtype="float32").state_dict()
        assert all(torch.equal(tensor, whole[name]) for name, tensor in by_hand.state_dict().items())
    assert not folder.exists()


def test_in_half_precision_the_sum_is_rounded_once(base, adapter) -> None:
    exact = load_model(inspect_checkpoint(adapter, name="x"), device="cpu", dtype="float32").state_dict()
    rounded = load_model(inspect_checkpoint(adapter, name="x"), device="cpu", dtype="bfloat16").state_dict()
    assert all(torch.equal(tensor.to(torch.bfloat16), rounded[name]) for name, tensor in exact.items())


def refused(sentence: str, adapter: Path, *more: str) -> None:
    words = ["--model", f"x={adapter}", "--tasks", "completion_sl", "--output", str(adapter.parent / "results"), *more]
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        main(words)


def test_refusals(base, adapter, save_checkpoint, tmp_path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())

    def changed(name: str, **values) -> Path:
        folder = tmp_path / name
        shutil.copytree(adapter, folder)
        (folder / "adapter_config.json").write_text(json.dumps(config | values))
        return folder

    hub = changed("hub", base_model_name_or_path="facebook/opt-1.3b")
    sentence = (
        f"the adapter in {hub} belongs to facebook/opt-1.3b, which is not a folder here; give the folder of its base model with --base"
    )
    refused(sentence, hub)
    assert inspect_checkpoint(hub, name="x", base=base).directory == base
    other = changed("other", peft_type="IA3")
    refused(f"the adapter in {other} is of the kind IA3; expected LORA, which can be added to a model's weights", other)
    less = changed("less", target_modules=["q_proj", "v_proj", "down_proj", "o_proj"])
    told = "does not fit its base model: the adapter lacks 4 tensors, first base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight"
    refused(f"1 of 1 models could not be evaluated: x: the adapter in {less} {told}", less)
    more = changed("more", target_modules=["q_proj", "v_proj"])
    refused(f"1 of 1 models could not be evaluated: x: the adapter in {more} does not fit its base model: the adapter has 4 tensors", more)
    wide = save_checkpoint("wide", tiny_llama(num_positions=128, hidden_size=64), tiny_tokenizer())
    refused(
        f"1 of 1 models could not be evaluated: x: the adapter in {adapter} does not fit its base model: ", adapter, "--base", str(wide)
    )
    (adapter / "adapter_model.safetensors").unlink()
    refused(f"{adapter}/adapter_model.safetensors is missing; save the adapter again, as safetensors", adapter)
    assert not (tmp_path / "results").exists()
