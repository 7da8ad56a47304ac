"""Merged checkpoints against plain formulas over whole tensors, against mergekit, and row by row across vocabularies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from conversion.merge import main
from conversion.merging import arithmetic
from conversion.transfer import main as transfer
from tests.conversion.embedding_fixtures import byte_level, demo_text
from tests.conversion.folders import edit_json, edited_tensors

SPECIALS = {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
Tensors = dict[str, Tensor]


def make(
    folder: Path, *, shift: float, language: str = "en", num_tokens: int = 300, tied: bool = False, dtype: torch.dtype = torch.float32
) -> Path:
    """A tiny Llama, whose tensors are those of all others and a shift of its own."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=num_tokens, tie_word_embeddings=tied, **sizes))
    drawn = torch.Generator().manual_seed(int(1000 * shift))
    for parameter in model.parameters():
        parameter.data += shift * torch.randn(parameter.shape, generator=drawn)
    model.to(dtype).save_pretrained(folder)
    byte_level(demo_text(language)[:20_000], num_tokens=num_tokens, specials=SPECIALS).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {name: make(place / name, shift=shift) for name, shift in (("base", 0.0), ("chat", 0.05), ("mathematics", 0.03))}


def tensors(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


def edited(folder: Path, output: Path, *, changed: Mapping[str, Tensor] | None = None, **config: Any) -> Path:
    """A copy with other tensors, and other keys in config.json; `...` takes a key away."""
    shutil.copytree(folder, output)
    with edited_tensors(output) as state:
        state.update(changed or {})
    edit_json(output / "config.json", **config)
    return output


def merged(output: Path, *words: str | Path) -> Tensors:
    assert main([*map(str, words), "--output", str(output)]) == 0
    return tensors(output)


def _slerp(a: Tensor, b: Tensor, place: float) -> Tensor:
    cosine = torch.dot(a.flatten() / a.norm(), b.flatten() / b.norm())
    if abs(cosine) > 0.9995:
        return (1 - place) * a + place * b
    angle = torch.acos(cosine)
    return (torch.sin((1 - place) * angle) * a + torch.sin(place * angle) * b) / torch.sin(angle)


def _ties(base: Tensor, others: list[Tensor], weights: list[float], density: float) -> Tensor:
    kept = []
    for other in others:
        delta = (other - base).flatten()
        best = delta.abs().topk(int(density * delta.numel())).indices
        kept.append(torch.zeros_like(delta).index_copy(0, best, delta[best]).view(base.shape))
    weighted = torch.stack([w * delta for w, delta in zip(weights, kept)])
    sign = torch.where(weighted.sum(0) >= 0, 1.0, -1.0)
    agrees = weighted.sign() == sign
    divisor = (torch.tensor(weights).view(-1, *[1] * base.dim()) * agrees).sum(0)
    return base + (weighted * agrees).sum(0) / divisor.where(divisor != 0, torch.ones(()))


def test_every_method_is_its_formula(models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "_BLOCK_ELEMENTS", 100)  # many blocks of each tensor
    base, chat, maths = (tensors(models[name]) for name in ("base", "chat", "mathematics"))
    two = ["--models", f"{models['chat']}:0.7", f"{models['mathematics']}:0.5"]
    expected = {
        "linear": lambda n: (0.7 * chat[n] + 0.5 * maths[n]) / 1.2,
        "slerp": lambda n: _slerp(chat[n], maths[n], 0.3),
        "task-arithmetic": lambda n: base[n] + 0.7 * (chat[n] - base[n]) + 0.5 * (maths[n] - base[n]),
        "ties": lambda n: _ties(base[n], [chat[n], maths[n]], [0.7, 0.5], 0.4),
        "dare-linear": lambda n: base[n] + 0.7 * (chat[n] - base[n]) + 0.5 * (maths[n] - base[n]),
        "dare-ties": lambda n: _ties(base[n], [chat[n], maths[n]], [0.7, 0.5], 1.0),
    }
    for method, formula in expected.items():
        more = [] if method in ("linear", "slerp") else ["--base", models["base"]]
        more += ["--density", "1" if "dare" in method else "0.4"] if method.startswith(("ties", "dare")) else []
        named = ["--models", models["chat"], models["mathematics"], "--place", "0.3"] if method == "slerp" else two
        found = merged(tmp_path / method, "--method", method, *named, *more)
        for name in base:
            if method != "dare-ties":  # which adds what agrees, and takes no mean
                torch.testing.assert_close(found[name], formula(name), atol=1e-6, rtol=1e-5, msg=f"{method} {name}")
    words = ["--method", "dare-linear", *two, "--base", models["base"], "--density", "0.25"]
    drawn = [merged(tmp_path / f"drawn_{number}", *words, "--seed", seed) for number, seed in enumerate("112")]
    weight = drawn[0]["model.layers.0.mlp.up_proj.weight"] - base["model.layers.0.mlp.up_proj.weight"]
    assert 0.4 < float((weight != 0).float().mean()) < 0.48, "1 - 0.75 ** 2 of the elements have a difference"
    assert all(torch.equal(drawn[0][n], drawn[1][n]) for n in base) and not torch.equal(drawn[0][TABLES[0]], drawn[2][TABLES[0]])


@pytest.mark.parametrize("method", ["linear", "slerp", "task-arithmetic", "ties", "dare-linear", "dare-ties"])
def test_tensors_that_are_no_matrices(models: dict[str, Path], tmp_path: Path, method: str) -> None:
    """Scalars are merged, of each difference something is kept, and positions stay whole numbers."""
    odd = {"model.scale": torch.tensor(2.0), "model.none": torch.zeros(0, 4), "model.position_ids": torch.arange(40)[None]}
    folders = [
        edited(models[name], tmp_path / name, changed={**odd, "model.scale": torch.tensor(s)}) for name, s in zip(models, (1.0, 2.0, 4.0))
    ]
    words: list[str | Path] = ["--method", method, "--models", *folders[1:], "--dtype", "bfloat16"]
    words += [] if method in ("linear", "slerp") else ["--base", folders[0]]
    words += ["--density", "0.001" if method == "ties" else "1"] if method.startswith(("ties", "dare")) else []
    found = merged(tmp_path / "out", *words)
    assert torch.equal(found["model.position_ids"], odd["model.position_ids"]) and found["model.none"].shape == (0, 4)
    expected = {"linear": 3.0, "slerp": 3.0, "task-arithmetic": 5.0, "ties": 3.0, "dare-linear": 5.0, "dare-ties": 5.0}
    assert found["model.scale"].shape == () and found["model.scale"] == expected[method]


def test_what_older_and_other_programs_write_is_no_difference(models: dict[str, Path], tmp_path: Path) -> None:
    """Defaults that an older config.json leaves out, notes of other programs, and positions that are computed; all parts get the dtype."""
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    parts = {"vision_config": {"torch_dtype": "float32", "transformers_version": "4.40"}}
    old = edited(models["chat"], tmp_path / "old", changed=frequencies, head_dim=..., rope_theta=..., unsloth_fixed=True, **parts)
    new = edited(models["mathematics"], tmp_path / "new", vision_config={"torch_dtype": "float32"})
    found = merged(tmp_path / "out", "--method", "linear", "--models", old, new, "--dtype", "bfloat16")
    assert found.keys() == tensors(new).keys()
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["vision_config"]["torch_dtype"] == config.get("dtype", config.get("torch_dtype")) == "bfloat16"


def test_folders_of_one_name_are_told_apart(models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = edited(models["chat"], tmp_path / "base")
    monkeypatch.chdir(models["mathematics"])
    merged(tmp_path / "out", "--base", models["base"], "--add", ".", "--to", other)
    manifest = json.loads((tmp_path / "out/scion.json").read_text())
    assert manifest["inputs"].keys() == {"base", "mathematics", str(other)} and manifest["facts"]["merge"]["to"] == str(other)


def test_a_chat_vector_goes_to_another_vocabulary(models: dict[str, Path], tmp_path: Path) -> None:
    """Rows of the same bytes get the difference, of others none or that of their pieces; patterns have weights of their own."""
    mine = make(tmp_path / "mine", shift=0.02, language="sl", num_tokens=340)
    base, chat, own = tensors(models["base"]), tensors(models["chat"]), tensors(mine)
    words = ["--base", models["base"], "--add", f"{models['chat']}-{models['base']}:0.5", "--to", mine]
    found = merged(tmp_path / "kept", *words)
    weights = tmp_path / "weights.yaml"
    weights.write_text("chat:\n  '*.layers.1.*': 0\n  '*.mlp.*': 2\n")
    pieces = merged(tmp_path / "pieces", *words, "--missing-rows", "pieces", "--weights", weights)
    ours, theirs = AutoTokenizer.from_pretrained(mine), AutoTokenizer.from_pretrained(models["base"])
    known, counts = theirs.get_vocab(), {"same": 0, "new": 0}
    for token, row in ours.get_vocab().items():
        for name in TABLES:
            if token in known:
                delta = chat[name][known[token]] - base[name][known[token]]
                assert torch.allclose(found[name][row], own[name][row] + 0.5 * delta, atol=1e-6)
            else:
                cut = [known[piece.value] for piece in theirs.backend_tokenizer.model.tokenize(token)]
                delta = (chat[name][cut] - base[name][cut]).mean(dim=0)
                assert torch.equal(found[name][row], own[name][row])
                assert torch.allclose(pieces[name][row], own[name][row] + 0.5 * delta, atol=1e-6)
        counts["same" if token in known else "new"] += 1
    assert min(counts.values()) > 40
    for name, weight in (("model.layers.1.mlp.up_proj.weight", 0), ("model.layers.0.mlp.up_proj.weight", 2), ("model.norm.weight", 0.5)):
        assert torch.allclose(pieces[name], own[name] + weight * (chat[name] - base[name]), atol=1e-6)
    assert (tmp_path / "kept/tokenizer.json").read_bytes() == (mine / "tokenizer.json").read_bytes()
    assert json.loads((tmp_path / "kept/scion.json").read_text())["facts"]["merge"] == {
        "method": "task-arithmetic", "to": "mine", "base": "base", "weights": {"chat": 0.5},
    }  # fmt: skip
    assert "- merge" in (tmp_path / "kept/README.md").read_text()


def test_rows_follow_what_a_transfer_made_them_of(models: dict[str, Path], tmp_path: Path) -> None:
    """With the record of the transfer a new token gets the difference of its sources by their weights."""
    byte_level(demo_text("sl")[:20_000], num_tokens=340, specials=SPECIALS).save_pretrained(tmp_path / "sl")
    words = ["--source", models["base"], "--tokenizer", tmp_path / "sl", "--method", "mean", "--output", tmp_path / "mine"]
    assert transfer([str(word) for word in words]) == 0
    own, base, chat = (tensors(folder) for folder in (tmp_path / "mine", models["base"], models["chat"]))
    words = ["--base", models["base"], "--add", models["chat"], "--to", tmp_path / "mine", "--record", tmp_path / "mine"]
    found, made = merged(tmp_path / "out", *words), 0
    for entry in json.loads((tmp_path / "mine/transfer.json").read_text(encoding="utf-8"))["tokens"]:
        listed = entry.get("sources", [])
        if len(listed) > 1 and entry["num_sources"] == len(listed):
            delta = sum(weight * (chat[TABLES[0]][i] - base[TABLES[0]][i]) for i, _, weight in listed)
            torch.testing.assert_close(found[TABLES[0]][entry["id"]], own[TABLES[0]][entry["id"]] + delta, atol=1e-5, rtol=0)
            made += 1
    assert made > 40


def test_mixed_dtypes_ties_and_a_chat_template(models: dict[str, Path], tmp_path: Path) -> None:
    chat = tmp_path / "talks"
    shutil.copytree(models["chat"], chat)
    (chat / "chat_template.jinja").write_text("{{ bos_token }}{% for m in messages %}{{ m.content }}</s>{% endfor %}")
    tied = make(tmp_path / "tied", shift=0.0, tied=True, dtype=torch.bfloat16)
    out = tmp_path / "out"
    found = merged(
        out, "--base", tied, "--add", f"talks={chat}", "--to", models["mathematics"], "--chat-from", "talks", "--dtype", "bfloat16"
    )
    assert all(tensor.dtype == torch.bfloat16 for tensor in found.values())
    theirs, ours, base = tensors(chat), tensors(models["mathematics"]), tensors(tied)
    special = AutoTokenizer.from_pretrained(out).all_special_ids
    for name in TABLES:
        expected = ours[name] + theirs[name] - base[TABLES[0]].float()
        expected[special] = theirs[name][special]
        assert torch.equal(found[name], expected.bfloat16())
    assert AutoTokenizer.from_pretrained(out).apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) == "<s>a</s>"
    assert LlamaForCausalLM.from_pretrained(out, dtype="auto").dtype == torch.bfloat16


def test_the_chat_ends_where_it_did(models: dict[str, Path], tmp_path: Path) -> None:
    """The end of text that the template names by its role is that of the chat's tokenizer, and generation stops there too."""
    chat = edited(models["chat"], tmp_path / "talks")
    (chat / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content + eos_token }}{% endfor %}")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        edit_json(chat / name, eos_token="<pad>")
    (chat / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    out, mine = tmp_path / "out", edited(models["mathematics"], tmp_path / "mine", eos_token_id=1)
    (mine / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "do_sample": True}))
    merged(out, "--base", models["base"], "--add", chat, "--to", mine, "--chat-from", "talks")
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) == "a<pad>"
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": [2, 0, 1], "do_sample": True}
    assert json.loads((out / "config.json").read_text())["eos_token_id"] == [2, 0, 1]


def test_what_cannot_be_merged_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    base, chat, maths = models["base"], models["chat"], models["mathematics"]
    tied = make(tmp_path / "tied", shift=0.1, tied=True)
    other, shape = edited(chat, tmp_path / "other", model_type="mistral"), edited(chat, tmp_path / "shape", num_attention_heads=2)
    (tmp_path / "w.yaml").write_text("chat: {'nothing.*': 1}\n")
    narrow = edited(chat, tmp_path / "narrow", changed={"model.norm.weight": torch.ones(16)})
    broken = edited(chat, tmp_path / "broken", changed={"model.norm.weight": torch.full((32,), float("nan"))})
    moved = edited(chat, tmp_path / "moved", changed={"model.position_ids": torch.arange(1, 5)})
    still = edited(maths, tmp_path / "still", changed={"model.position_ids": torch.arange(4)})
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text("{}")
    rows = {
        "name it with --base": ["--method", "ties", "--models", chat],
        "--method task-arithmetic adds differences to a base model; name it with --base": ["--add", chat, "--to", maths],
        "nothing does not exist": ["--base", tmp_path / "nothing", "--add", chat, "--to", maths],
        "model.norm.weight is .* only models of one shape": ["--method", "linear", "--models", chat, narrow],
        "name it with --to": ["--base", base, "--add", chat],
        "give --method": ["--models", chat, maths],
        "leave them out": ["--method", "linear", "--models", chat, maths, "--base", base],
        "interpolates between two models; there are 1": ["--method", "slerp", "--models", chat],
        "--place is 2": ["--method", "slerp", "--models", chat, maths, "--place", "2"],
        "--density is 0": ["--method", "ties", "--base", base, "--models", chat, "--density", "0"],
        "--density is of --method ties and .*, and has no effect with linear": ["--method", "linear", "--models", chat, "--density", "0.2"],
        "interpolates by --place, and weights have no effect": ["--method", "slerp", "--models", f"{chat}:0.3", maths],
        "one, two are one folder": ["--method", "linear", "--models", f"one={chat}:0.3", f"two={chat}:0.7"],
        "model.norm.weight of the merge would hold values that are NaN": ["--method", "linear", "--models", broken, maths],
        "NaN or infinite in float16": ["--method", "linear", "--models", f"{chat}:1e9", f"{maths}:-0.999999e9", "--dtype", "float16"],
        "model.position_ids is not the same in moved and still": ["--method", "linear", "--models", still, moved],
        "is a LoRA adapter": ["--method", "linear", "--models", chat, tmp_path / "adapter"],
        "so the mean is undefined": ["--method", "linear", "--models", f"{chat}:1", f"{maths}:-1"],
        "fits no tensor": ["--method", "linear", "--models", chat, maths, "--weights", tmp_path / "w.yaml"],
        "have one name": ["--method", "linear", "--models", chat, chat],
        "is of the type mistral": ["--method", "linear", "--models", chat, other],
        "has num_attention_heads 2": ["--method", "linear", "--models", chat, shape],
        "--untie": ["--base", tied, "--add", chat, "--to", tied],
        "has no chat template": ["--method", "linear", "--models", chat, maths, "--chat-from", "chat"],
        "there is no such model": ["--method", "linear", "--models", chat, maths, "--chat-from", "none"],
        "has no transfer.json": ["--base", base, "--add", chat, "--to", maths, "--record", chat],
        "does not exist": ["--method", "linear", "--models", chat, tmp_path / "nothing"],
        "the weight of .* is nan": ["--method", "linear", "--models", f"{chat}:nan", maths],
    }
    for sentence, words in rows.items():
        with pytest.raises(ValueError, match=sentence):
            main([*map(str, words), "--output", str(tmp_path / "out")])
        assert not (tmp_path / "out").exists()


@pytest.mark.peer
@pytest.mark.slow
def test_as_mergekit(models: dict[str, Path], tmp_path: Path) -> None:
    python = os.environ.get("SCION_PEER_PYTHON")
    if not python or subprocess.run([python, "-c", "import mergekit"], capture_output=True, check=False).returncode:
        pytest.skip("SCION_PEER_PYTHON does not name a Python that has mergekit")
    for method, theirs in (
        ("linear", "linear"),
        ("slerp", "slerp"),
        ("task-arithmetic", "task_arithmetic"),
        ("ties", "ties"),
        ("dare-linear", "dare_linear"),
        ("dare-ties", "dare_ties"),
    ):
        density = 1.0 if "dare" in method else 0.4
        parameters = {"density": density} if method in ("ties", "dare-linear", "dare-ties") else {}
        listed = [
            {"model": str(models[name]), "parameters": {"weight": w, **parameters}} for name, w in (("chat", 0.7), ("mathematics", 0.5))
        ]
        config = {"merge_method": theirs, "models": listed, "dtype": "float32"}
        more: list[str | Path] = ["--base", models["base"], *(["--density", str(density)] if parameters else [])]
        if method == "slerp":
            config |= {"base_model": str(models["chat"]), "models": [{"model": str(models["mathematics"])}], "parameters": {"t": 0.3}}
            more = ["--place", "0.3"]
        elif method == "linear":
            more = []
        else:
            config["base_model"] = str(models["base"])
        (tmp_path / "merge.yaml").write_text(yaml.safe_dump(config))
        words = [python, "-m", "mergekit.scripts.run_yaml", str(tmp_path / "merge.yaml"), str(tmp_path / f"their_{theirs}")]
        subprocess.run(words, check=True, timeout=300)
        weights = ("", "") if method == "slerp" else (":0.7", ":0.5")
        named = [f"{models[name]}{weight}" for name, weight in zip(("chat", "mathematics"), weights)]
        found = merged(tmp_path / method, "--method", method, "--models", *named, *more)
        expected = {
            name: tensor for path in (tmp_path / f"their_{theirs}").glob("*.safetensors") for name, tensor in load_file(path).items()
        }
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0, msg=f"{method} {name}")
