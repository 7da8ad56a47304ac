from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from common.plain_files import read_json
from conversion import hf_to_nemo, nemo_to_hf, verify
from conversion.checkpoints.factors import COORDINATES, PRIMITIVES, TABLE
from conversion.checkpoints.lora import write_lora
from conversion.checkpoints.nemo_checkpoint import COMMON, extra_states
from conversion.formats.dist_checkpoint import read_dist_checkpoint, write_dist_checkpoint
from conversion.formats.lazy_tensor import LazyTensor
from conversion.measuring.observation import Distance, run_group
from tests.conversion.conftest import OPTMaker
from tests.conversion.embedding_fixtures import byte_level, demo_text
from tests.conversion.folders import edit_json, edited_tensors
from tests.conversion.tiny_families import save_real_sized_model, save_tiny_model
from tests.refusals import refused


def edit_weights(directory: Path, **changes: object) -> None:
    with edited_tensors(directory) as state:
        state |= {name: change(state[name]) for name, change in changes.items()}  # type: ignore[operator]


def report(a: Path, b: Path, *flags: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    code = verify.main([str(a), str(b), *flags])
    lines = capsys.readouterr().out.splitlines()
    return code, {line[11:].split(":")[0]: line for line in lines}


@pytest.fixture
def pair(make_opt: OPTMaker) -> Iterator[tuple[Path, Path]]:
    yield make_opt("a"), make_opt("b")


def test_the_same_checkpoint(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = report(*pair, capsys=capsys)
    assert code == 0
    assert all(line.startswith("same") for line in lines.values())
    assert "largest difference 0.0e+00 (allowed" in lines["logits, Hugging Face against Hugging Face"]
    assert lines["values"].endswith("52 of 52 tensors equal bit for bit")


@pytest.mark.parametrize(
    ("name", "change", "place"),
    [
        ("model.decoder.layers.1.self_attn.q_proj.weight", lambda weight: weight.flip(0), "layer 1"),
        (
            "model.decoder.embed_positions.weight",
            lambda table: table.roll(2, dims=0),
            "embedding",
        ),  # off by two, the classic error with OPT
        ("lm_head.weight", lambda weight: weight.roll(1, dims=0), "logits"),
    ],
)
def test_the_first_place_that_differs_is_named(
    make_opt: OPTMaker, name: str, change: Callable[[torch.Tensor], torch.Tensor], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = make_opt("a", tie_word_embeddings=False), make_opt("b", tie_word_embeddings=False)
    edit_weights(b, **{name: change})
    code, lines = report(a, b, capsys=capsys)
    assert code == 1
    assert re.match(
        rf"DIFFERENT  logits, .*: largest difference \S+ \(allowed \S+e-0[56]\), root mean square \S+ \(allowed \S+\); it begins at {place} with \S+$",
        lines["logits, Hugging Face against Hugging Face"],
    )
    assert lines["values"].endswith(f"52 of 53 tensors equal bit for bit; the first that is not: {name}")


@pytest.fixture(scope="module")
def real_sized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_real_sized_model(tmp_path_factory.mktemp("real_sized") / "hf")


def _swapped_heads(weight: torch.Tensor) -> torch.Tensor:
    return weight.unflatten(0, (8, 4))[[1, 0, *range(2, 8)]].flatten(0, 1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("self_attn.q_proj.weight", _swapped_heads),
        ("self_attn.o_proj.weight", lambda weight: weight * 1.001),
        ("input_layernorm.weight", torch.ones_like),
        ("post_attention_layernorm.weight", lambda weight: weight + 1e-3),
        ("mlp.down_proj.weight", lambda weight: weight.to(torch.bfloat16).float()),
    ],
)
def test_one_wrong_tensor_is_found_among_large_logits(
    real_sized: Path, tmp_path: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    """Though rounding alone is more than 1e-4 there."""
    other = shutil.copytree(real_sized, tmp_path / "b")
    edit_weights(other, **{f"model.layers.7.{name}": change})
    code, lines = report(real_sized, other, capsys=capsys)
    assert code == 1
    assert "it begins at layer 7 with" in lines["logits, Hugging Face against Hugging Face"]


@pytest.mark.parametrize(("key", "value", "shown"), [("rope_theta", 10001.0, "rotary_base"), ("rms_norm_eps", 1e-5, "layernorm_epsilon")])
def test_a_number_of_the_configuration_that_logits_hardly_show(
    real_sized: Path, tmp_path: Path, key: str, value: float, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(real_sized, tmp_path / "b")
    config = edit_json(other / "config.json", **{key: value})
    code, lines = report(real_sized, other, capsys=capsys)
    assert code == 1
    assert lines["configuration"] == f"DIFFERENT  configuration: {shown} {config[key]} and {value}"


def test_the_tolerance_is_that_of_the_rounding_and_of_the_size() -> None:
    values = {"logits": torch.tensor([[30.0, -36.0]])}

    def same(difference: float, rounding: float) -> bool:
        other = {"logits": values["logits"] + difference}
        return verify.compare_outputs("logits", values, other, {"logits": Distance(rounding, rounding)}).same

    assert same(4e-4, 1.3e-4) and not same(6e-4, 1.3e-4)
    assert same(1e-5, 0.0) and not same(1e-4, 0.0)  # some units in the last place
    assert not same(0.05, 1.0)  # no rounding of a sound model is so large
    assert not same(float("nan"), 1e-3) and not same(0.0, float("nan"))


def test_key_value_heads_are_called_so(tmp_path: Path) -> None:
    save_tiny_model("llama2", tmp_path / "hf", num_attention_heads=9, num_key_value_heads=3, hidden_size=36)
    hf_to_nemo.convert(tmp_path / "hf", tmp_path / "nemo")
    message = f"--tensor-parallel-size 2 does not divide the 3 key-value heads (of 9 attention heads) of {tmp_path / 'nemo'}"
    with refused(message):
        verify.main([str(tmp_path / "hf"), str(tmp_path / "nemo"), "--tensor-parallel-size", "2"])


def test_other_names_and_shapes(make_opt: OPTMaker, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = make_opt("a"), make_opt("b", num_hidden_layers=2, ffn_dim=44)
    code, lines = report(a, b, capsys=capsys)
    assert code == 1
    assert lines["names"].startswith(
        "DIFFERENT  names: only on one side: model.decoder.layers.2.fc1.bias, model.decoder.layers.2.fc1.weight"
    )
    assert "model.decoder.layers.0.fc1.bias (48,) and (44,)" in lines["shapes"]
    assert lines["logits"] == "DIFFERENT  logits: not compared: the models do not have the same tensors"


def test_other_tokenizer(make_opt: OPTMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    byte_level(demo_text("sl")[:5000], num_tokens=280, specials={"bos": "</s>", "eos": "</s>", "pad": "<pad>"}).save_pretrained(
        tmp_path / "t"
    )
    code, lines = report(make_opt("a"), make_opt("b", tokenizer=tmp_path / "t"), capsys=capsys)
    assert code == 1
    assert lines["token ids"].startswith("DIFFERENT  token ids: \"The miller's daughter")


def test_one_side_without_tokenizer(make_opt: OPTMaker, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = make_opt("a"), make_opt("b", tokenizer=None)
    code, lines = report(a, b, capsys=capsys)
    assert code == 1
    assert lines["token ids"] == f"DIFFERENT  token ids: {b} has no tokenizer"


@pytest.mark.long
def test_given_lines_are_tokenized(pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lines").write_text("eden\ndva\n" * 600, encoding="utf-8")
    code, lines = report(*pair, "--lines", str(tmp_path / "lines"), capsys=capsys)
    assert code == 0
    assert lines["token ids"].startswith("same       token ids: 1000 lines,")


def test_misuse(pair: tuple[Path, Path], tmp_path: Path) -> None:
    hf_to_nemo.convert(pair[0], tmp_path / "nemo")
    with pytest.raises(
        ValueError, match=re.escape(f"--tensor-parallel-size 3 does not divide the 4 attention heads of {tmp_path / 'nemo'}")
    ):
        verify.main([str(pair[0]), str(tmp_path / "nemo"), "--tensor-parallel-size", "2", "3"])
    (tmp_path / "empty").write_text("")
    with pytest.raises(ValueError, match=re.escape(f"--lines {tmp_path / 'empty'} is empty; expected one sentence per line")):
        verify.main([*map(str, pair), "--lines", str(tmp_path / "empty")])
    with pytest.raises(ValueError, match=r"^--tensor-parallel-size and --sequence-length must be at least 1$"):
        verify.main([*map(str, pair), "--tensor-parallel-size", "0"])
    with pytest.raises(ValueError, match=re.escape(f"the checkpoint folder {tmp_path / 'none'} does not exist")):
        verify.main([str(pair[0]), str(tmp_path / "none")])


def test_batch_covers_the_whole_vocabulary() -> None:
    batch = verify.token_batch([[1, 2, 3], [4, 999]], vocab_size=50, length=200)
    ids, real = batch.ids, batch.real
    assert ids.shape == real.shape == (2, 200)
    assert [row.nonzero().flatten()[[0, -1]].tolist() for row in real] == [[50, 199], [0, 149]]
    assert ids[0, :4].tolist() == [1, 2, 3, 4]
    assert ids.min() >= 0 and ids.max() < 50 and len(torch.unique(ids)) > 45


def test_an_engine_that_is_late_is_killed() -> None:
    message = "the engine gave no logits within 1 s; raise --timeout-seconds"
    with refused(message):
        run_group(["-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"], timeout_seconds=1)


@pytest.mark.parametrize("procedure", ["lora", pytest.param("factors", marks=pytest.mark.slow)])
def test_what_a_procedure_adds_is_part_of_the_checkpoint(procedure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In bfloat16, where the sum of a weight and its adapters is rounded once more; a wrong scale is found."""
    hf = save_tiny_model("llama2", tmp_path / "hf", **({"tie_word_embeddings": True} if procedure == "factors" else {}))
    edit_weights(hf, **dict.fromkeys(load_file(hf / "model.safetensors"), torch.Tensor.bfloat16))
    nemo, export = tmp_path / "nemo", tmp_path / "export"
    hf_to_nemo.convert(hf, nemo)
    saved = read_dist_checkpoint(nemo / "weights", prefix="module.")
    tensors = {name: tensor.read() for name, tensor in saved.items()}
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return (0.1 * torch.randn(shape, generator=generator)).bfloat16()

    if procedure == "lora":
        num_heads, num_groups = (
            read_json(nemo / "context/model.json")["config"][f"num_{key}"] for key in ("attention_heads", "query_groups")
        )
        for name in [name for name in tensors if ".linear_" in name and tensors[name].dim() == 2]:
            linear, (rows, columns) = name.removesuffix(".weight"), tensors[name].shape
            key = rows // (num_heads // num_groups + 2)
            sizes = {"linear_qkv": {"q": rows - 2 * key, "k": key, "v": key}, "linear_fc1": {"gate": rows // 2, "up": rows // 2}}
            for part, size in sizes.get(linear.rpartition(".")[2], {"all": rows}).items():
                tensors |= {f"{linear}.lora.{part}.a": draw(3, columns), f"{linear}.lora.{part}.b": draw(size, 3)}
        write_lora(nemo / "context", rank=3, alpha=7.0)
    else:
        rows, width = tensors.pop(TABLE).shape
        tensors |= {COORDINATES: draw(rows, 5), PRIMITIVES: draw(5, width)}
    shutil.rmtree(nemo / "weights")
    (nemo / "weights").mkdir()
    (nemo / "scion.json").unlink()
    lazy = [LazyTensor.computed(name, tuple(tensor.shape), tensor.dtype, lambda tensor=tensor: tensor) for name, tensor in tensors.items()]
    objects = extra_states([name for name in tensors if ".lora." not in name])
    write_dist_checkpoint(nemo / "weights", lazy, prefix="module.", common=COMMON, empty_objects=objects)
    nemo_to_hf.export(nemo, export)
    code, lines = report(export, nemo, "--tensor-parallel-size", "1", "2", capsys=capsys)
    assert code == 0, lines
    if procedure == "lora":
        write_lora(nemo / "context", rank=3, alpha=7.7)
        assert report(export, nemo, capsys=capsys)[0] == 1
