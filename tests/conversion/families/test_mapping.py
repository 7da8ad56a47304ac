from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from conversion.families.mapping import Drop, FuseGateUp, FuseQKV, Rename, SplitRows, StackExperts, expand, map_to_hf, map_to_megatron
from conversion.formats import lazy_tensor
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.safetensors_file import read_safetensors, write_safetensors
from tests.refusals import refused

CONFIG = {
    "num_layers": 2,
    "hidden_size": 4,
    "ffn_hidden_size": 3,
    "num_attention_heads": 2,
    "num_query_groups": 1,
    "vocab_size": 5,
    "positions": 3,
    "tied": False,
}

TABLE = (
    Rename("emb", "embedding", ("vocab_size", "hidden_size")),
    SplitRows("pos", "{kept.rows,positions}", ("positions", "hidden_size"), num_kept_rows=2),
    FuseQKV("l.*.{q,k,v}", "layers.*.qkv", ("qkv_size", "hidden_size")),
    FuseGateUp("l.*.{gate,up}", "layers.*.fc1", ("gate_up_size", "hidden_size")),
    Rename("l.*.norm.{weight,bias}", "layers.*.norm.{weight,bias}", ("hidden_size",)),
    Rename("head", "output", ("vocab_size", "hidden_size"), when="not tied"),
    Drop("l.*.cache", because="computed"),
)

HF_SHAPES = {
    "emb": (5, 4),
    "pos": (5, 4),
    **{f"l.{layer}.{name}": shape for layer in range(2) for name, shape in {"q": (4, 4), "k": (2, 4), "v": (2, 4)}.items()},
    **{f"l.{layer}.{name}": (3, 4) for layer in range(2) for name in ("gate", "up")},
    **{f"l.{layer}.norm.{name}": (4,) for layer in range(2) for name in ("weight", "bias")},
    "head": (5, 4),
}


def hf_side(**changes: tuple[int, ...] | None) -> dict[str, LazyTensor]:
    shapes = {name: shape for name, shape in {**HF_SHAPES, **changes}.items() if shape is not None}
    generator = torch.Generator().manual_seed(0)
    return {name: LazyTensor.of(name, torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def by_name(tensors: list[LazyTensor]) -> dict[str, LazyTensor]:
    return {tensor.name: tensor for tensor in tensors}


def assert_equal(a: Mapping[str, LazyTensor], b: Mapping[str, LazyTensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].shape == b[name].shape == tuple(a[name].read().shape)
        assert torch.equal(a[name].read(), b[name].read()), name


def test_experts_are_stacked_gate_above_up() -> None:
    """Two experts of two layers: whose row comes to lie where."""
    table = (
        StackExperts("l.*.#.{gate,up}", "layers.*.fc1", ("num_moe_experts", "expert_gate_up_size", "hidden_size")),
        StackExperts("l.*.#.down", "layers.*.fc2", ("num_moe_experts", "hidden_size", "moe_ffn_hidden_size")),
    )
    config = {**CONFIG, "num_moe_experts": 2, "moe_ffn_hidden_size": 1}
    rows = {
        f"l.{layer}.{expert}.{part}": 100 * layer + 10 * expert + n
        for layer in (0, 1)
        for expert in (0, 1)
        for n, part in enumerate(("gate", "up"))
    }
    hf = {name: LazyTensor.of(name, torch.full((1, 4), float(value))) for name, value in rows.items()}
    hf |= {
        name: LazyTensor.of(name, torch.arange(4.0)[:, None] + n)
        for n, name in enumerate(sorted({f"{row.rpartition('.')[0]}.down" for row in rows}))
    }
    found = by_name(map_to_megatron(table, hf, config, source="x"))
    assert found["layers.1.fc1"].read()[:, :, 0].tolist() == [[100.0, 101.0], [110.0, 111.0]]
    assert found["layers.1.fc2"].read()[..., 0].tolist() == [[2.0, 3.0, 4.0, 5.0], [3.0, 4.0, 5.0, 6.0]]
    assert_equal(by_name(map_to_hf(table, found, config, source="x")), hf)
    with pytest.raises(ValueError, match=r"^x lacks 2 tensors that its configuration asks for: l\.0\.1\.gate, l\.0\.1\.up$"):
        map_to_megatron(
            table, {name: tensor for name, tensor in hf.items() if not name.startswith(("l.0.1.g", "l.0.1.u"))}, config, source="x"
        )
    with pytest.raises(ValueError, match=r"^x has a configuration with 10001 experts; expected at most 10000$"):
        map_to_megatron(table, hf, {**config, "num_moe_experts": 10_001}, source="x")


def test_fused_projections_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three groups of two queries, from files and back, in blocks that end within a group: no row is elsewhere than in the whole."""
    config = {**CONFIG, "num_layers": 1, "num_attention_heads": 6, "num_query_groups": 3, "kv_channels": 2}
    table = (FuseQKV("l.*.{q,k,v}", "layers.*.qkv", ("qkv_size", "hidden_size")),)
    values = {
        "l.0.q": torch.arange(48.0).view(12, 4),
        "l.0.k": torch.arange(24.0).view(6, 4) + 100,
        "l.0.v": torch.arange(24.0).view(6, 4) + 200,
    }
    write_safetensors(tmp_path / "hf", [LazyTensor.of(name, tensor) for name, tensor in values.items()])
    (fused,) = map_to_megatron(table, by_name(read_safetensors(tmp_path / "hf")), config, source="x")
    monkeypatch.setattr(lazy_tensor, "_BLOCK_BYTES", 5 * 16)
    blocks = list(fused.checked_blocks())
    assert [len(block) for block in blocks] == [5, 5, 5, 5, 4]
    assert np.array_equal(np.concatenate(blocks), fused.bits())
    write_safetensors(tmp_path / "megatron", [fused])
    for tensor in map_to_hf(table, by_name(read_safetensors(tmp_path / "megatron")), config, source="x"):
        blocks = list(tensor.checked_blocks())
        assert len(blocks) > 1 and torch.equal(torch.from_numpy(np.concatenate(blocks)).view(torch.float32), values[tensor.name])
        assert torch.equal(tensor.read(), values[tensor.name])


def test_patterns() -> None:
    assert expand("a.*.{q,k}.{x,y}", 3) == ["a.3.q.x", "a.3.q.y", "a.3.k.x", "a.3.k.y"]
    assert expand("plain") == ["plain"]
    assert expand("") == []


def test_there_and_back() -> None:
    hf = hf_side()
    megatron = by_name(map_to_megatron(TABLE, hf, CONFIG, source="x"))
    assert set(megatron) == {
        "embedding",
        "kept.rows",
        "positions",
        "output",
        *(f"layers.{layer}.{name}" for layer in range(2) for name in ("qkv", "fc1", "norm.weight", "norm.bias")),
    }
    assert torch.equal(megatron["kept.rows"].read(), hf["pos"].read()[:2])
    assert torch.equal(megatron["positions"].read(), hf["pos"].read()[2:])
    assert torch.equal(megatron["layers.1.norm.bias"].read(), hf["l.1.norm.bias"].read())
    assert megatron["layers.0.qkv"].shape == (8, 4)
    assert_equal(by_name(map_to_hf(TABLE, megatron, CONFIG, source="x")), hf)


def test_padding_rows_are_cut_off() -> None:
    hf = hf_side()
    megatron = by_name(map_to_megatron(TABLE, hf, CONFIG, source="x"))
    for name in ("embedding", "output"):
        megatron[name] = LazyTensor.of(name, torch.cat([megatron[name].read(), torch.full((3, 4), 9.0)]))
    assert_equal(by_name(map_to_hf(TABLE, megatron, CONFIG, source="x")), hf)


def test_kept_rows_take_the_dtype_of_the_rest() -> None:
    megatron = by_name(map_to_megatron(TABLE, hf_side(), CONFIG, source="x"))
    megatron["positions"] = LazyTensor.of("positions", megatron["positions"].read().half())
    (positions,) = [tensor for tensor in map_to_hf(TABLE, megatron, CONFIG, source="x") if tensor.name == "pos"]
    assert positions.dtype == positions.read().dtype == torch.float16


def test_a_rule_is_void_without_its_switch() -> None:
    tied = {**CONFIG, "tied": True}
    megatron = by_name(map_to_megatron(TABLE, hf_side(head=None), tied, source="x"))
    assert "output" not in megatron
    with pytest.raises(ValueError, match=r"^x has 1 tensor that its model family does not know: head$"):
        map_to_megatron(TABLE, hf_side(), tied, source="x")
    with pytest.raises(ValueError, match=r"^x lacks 1 tensor that its configuration asks for: output$"):
        map_to_hf(TABLE, megatron, CONFIG, source="x")


def test_dropped_tensors_may_be_there_or_not() -> None:
    megatron = by_name(map_to_megatron(TABLE, hf_side(**{"l.1.cache": (7,)}), CONFIG, source="x"))
    assert not any("cache" in name for name in megatron)


def test_all_missing_names_are_listed() -> None:
    with pytest.raises(ValueError, match=re.escape("x lacks 2 tensors that its configuration asks for: l.0.k, l.1.norm.bias")):
        map_to_megatron(TABLE, hf_side(**{"l.0.k": None, "l.1.norm.bias": None}), CONFIG, source="x")


def test_all_unknown_names_are_listed() -> None:
    with pytest.raises(ValueError, match=re.escape("x has 2 tensors that its model family does not know: l.2.q, surprise")):
        map_to_megatron(TABLE, hf_side(**{"l.2.q": (4, 4), "surprise": (1,)}), CONFIG, source="x")
    megatron = by_name(map_to_megatron(TABLE, hf_side(), CONFIG, source="x"))
    with pytest.raises(ValueError, match=re.escape("x has 1 tensor that its model family does not know: layers.0.adapter")):
        map_to_hf(TABLE, {**megatron, "layers.0.adapter": megatron["embedding"]}, CONFIG, source="x")


def test_all_wrong_shapes_are_listed() -> None:
    message = (
        "x has 3 tensors of another shape than its configuration asks for:"
        " pos is 4 x 4, expected 5 x 4; l.0.k is 2 x 3, expected 2 x 4; l.1.norm.bias is a single number, expected 4"
    )
    with refused(message):
        map_to_megatron(TABLE, hf_side(**{"pos": (4, 4), "l.0.k": (2, 3), "l.1.norm.bias": ()}), CONFIG, source="x")


def test_too_few_rows_are_not_padding() -> None:
    megatron = by_name(map_to_megatron(TABLE, hf_side(), CONFIG, source="x"))
    megatron["output"] = LazyTensor.of("output", torch.zeros(4, 4))
    with pytest.raises(ValueError, match=re.escape("output is 4 x 4, expected 5 x 4")):
        map_to_hf(TABLE, megatron, CONFIG, source="x")


def test_fused_tensors_of_different_dtypes() -> None:
    hf = hf_side()
    hf["l.0.k"] = LazyTensor.of("l.0.k", hf["l.0.k"].read().half())
    message = (
        "tensors that are to be fused have different dtypes (l.0.q is torch.float32, l.0.k is torch.float16, l.0.v is torch.float32);"
        " convert the checkpoint to one dtype first"
    )
    with refused(message):
        map_to_megatron(TABLE, hf, CONFIG, source="x")
