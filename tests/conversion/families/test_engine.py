"""Conversion against the real engine, for every family: its logits, what it saves at each layout, and a stock NeMo beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from conversion import hf_to_nemo, nemo_to_hf, verify
from conversion.families import FAMILIES
from conversion.formats.dist_checkpoint import read_dist_checkpoint
from conversion.layouts.moving import MEGATRON_BRIDGE, MEGATRON_LM, change
from conversion.measuring.observation import Observation, token_batch
from tests.conversion.folders import edited_tensors
from tests.conversion.tiny_families import (
    CASES,
    EXPERT_BALANCE,
    PADDING,
    SEQUENCE_LENGTH,
    has_experts,
    save_real_sized_model,
    save_tiny_model,
    with_gradients,
)
from tests.gloo import run_on_gloo
from tests.processes import run_command

USUAL = ((2, 1), (1, 2))  # tensor parallel x pipeline parallel, on two ranks, where gradients and logits are looked at, too
LAYOUTS = (*USUAL, (1, 1), (4, 1), (2, 2))
REAL_SIZED = "real_sized"
LARGEST_DIFFERENCE = 1e-4  # of a stock NeMo's logits, whose own rounding is not measured; those of tiny models are below 20
OTHER_PROGRAMS = {MEGATRON_LM: "Megatron-LM", MEGATRON_BRIDGE: "Megatron-Bridge"}


def test_every_family_has_a_tiny_model() -> None:
    assert {case.model_type for case in CASES.values()} == set(FAMILIES)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """Folders hf/NAME and nemo/NAME of each case, and Llama 2 in a folder of each other program."""
    directory = tmp_path_factory.mktemp("families")
    for name in CASES:
        save_tiny_model(name, directory / "hf" / name, tokenizer_dir=tokenizer_dir)
        hf_to_nemo.convert(directory / "hf" / name, directory / "nemo" / name)
    for layout in OTHER_PROGRAMS:
        change(directory / "nemo/llama2", directory / layout, layout=layout)
    save_real_sized_model(directory / "hf" / REAL_SIZED)
    hf_to_nemo.convert(directory / "hf" / REAL_SIZED, directory / "nemo" / REAL_SIZED)
    return directory


@pytest.fixture(scope="module")
def tied_and_untied(converted: Path, tokenizer_dir: Path) -> Path:
    """Those folders, and beside each case `NAME_other` with the other kind of output layer."""
    for name, case in CASES.items():
        tied = bool(case.config.get("text_config", case.config).get("tie_word_embeddings", False))
        _, other = both(name)
        save_tiny_model(name, converted / "hf" / other, tokenizer_dir=tokenizer_dir, tie_word_embeddings=not tied)
        hf_to_nemo.convert(converted / "hf" / other, converted / "nemo" / other)
    return converted


# -- logits ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, pytest.param(1, marks=pytest.mark.long)])
def size(request: pytest.FixtureRequest) -> int:
    """Tensor parallel size."""
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def observed(converted: Path, size: int) -> dict[str, dict[str, Observation]]:
    """What the layers of each case give in both libraries, from one start of the engine."""
    names = (*CASES, REAL_SIZED)
    sides = [verify.Side.open(converted / kind / name) for name in names for kind in ("hf", "nemo")]
    sides += [verify.Side.open(converted / layout) for layout in OTHER_PROGRAMS]
    batch = token_batch([], vocab_size=min(side.vocab_size for side in sides), length=SEQUENCE_LENGTH)
    seen = verify.observe(sides, batch, (size,), timeout_seconds=600)
    of_others = dict(zip(OTHER_PROGRAMS, seen[2 * len(names) :], strict=True))
    return {name: seen[2 * number] | seen[2 * number + 1] for number, name in enumerate(names)} | of_others


@pytest.mark.parametrize("padding", ["whole", "padded"])
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_hugging_face(observed: dict[str, dict[str, Observation]], name: str, size: int, padding: str) -> None:
    """Over more tokens than the window, whole and padded on the left and on the right, with padding rows in the tables."""
    expected, found = (getattr(observed[name][label], padding) for label in ("Hugging Face", f"NeMo at tensor parallel {size}"))
    assert found.keys() == expected.keys() == {"embedding", "layer 0", "layer 1", "layer 2", "layer 3", "logits"}
    assert expected["logits"].std() > 0.1
    rounding = observed[name]["Hugging Face"].rounding
    assert rounding["logits"].largest < 2e-5
    for layer in expected:
        assert verify.compare_outputs(layer, *({"logits": of[layer]} for of in (expected, found, rounding))).same, layer


@pytest.mark.parametrize("padding", ["whole", "padded"])
def test_large_logits_of_a_correct_conversion(observed: dict[str, dict[str, Observation]], size: int, padding: str) -> None:
    """Rounding grows with the logits and the layers, in both libraries alike."""
    of_hf, of_engine = (observed[REAL_SIZED][label] for label in ("Hugging Face", f"NeMo at tensor parallel {size}"))
    expected, found = getattr(of_hf, padding), getattr(of_engine, padding)
    assert 30 < expected["logits"].abs().max() < 42
    assert (found["logits"] - expected["logits"]).abs().max() > 1e-4
    assert verify.compare_outputs("logits", expected, found, of_hf.rounding).same


@pytest.mark.parametrize("layout", OTHER_PROGRAMS)
def test_verify_runs_the_folders_of_other_programs(observed: dict[str, dict[str, Observation]], size: int, layout: str) -> None:
    hf, [(label, found)] = observed["llama2"]["Hugging Face"], observed[layout].items()
    assert label == f"{OTHER_PROGRAMS[layout]} at tensor parallel {size}"
    assert verify.compare_outputs("logits", hf.padded, found.padded, hf.rounding).same


@pytest.mark.slow
def test_two_checkpoints_of_nemo(converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command: they differ from the layer on that was changed."""
    hf_dir = shutil.copytree(converted / "hf/llama3", tmp_path / "hf")
    gate = "model.layers.2.mlp.gate_proj.weight"
    with edited_tensors(hf_dir) as state:
        state[gate] = state[gate].flip(0)
    hf_to_nemo.convert(hf_dir, tmp_path / "nemo")
    code = verify.main([str(converted / "nemo/llama3"), str(tmp_path / "nemo")])
    lines = {line[11:].split(":")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert code == 1
    assert lines["values"].endswith(f"38 of 39 tensors equal bit for bit; the first that is not: {gate}")
    for subject in ("logits", "logits of padded sequences"):
        line = lines[f"{subject}, NeMo at tensor parallel 1 against NeMo at tensor parallel 1"]
        assert line.startswith("DIFFERENT") and "it begins at layer 2 with" in line


# -- checkpoints ----------------------------------------------------------------------------------------------------------


def both(name: str) -> tuple[str, str]:
    """A case with its own kind of output layer, tied or not, and with the other."""
    return name, f"{name}_other"


def one_of_both(number: int, layout: tuple[int, int]) -> str:
    """The one of the two that is saved at a layout: they take turns over families and layouts."""
    return both(list(CASES)[number])[(number + LAYOUTS.index(layout)) % 2]


def save(
    converted: Path, directory: Path, plan: list[tuple[int, int, list[str], list[str]]], *, world_size: int, ids: Path | None = None
) -> Path:
    """Folders TxP/NAME and per_layer/NAME with what the engine saved, from one start; 1x2/NAME.safetensors with logits for ids."""
    run_on_gloo(
        "tests.conversion.engine_functions:save_at_layouts",
        world_size=world_size,
        directory=directory / f"gloo_{world_size}",
        plan=plan,
        checkpoints_dir=str(converted / "nemo"),
        output_dir=str(directory),
        ids_path=None if ids is None else str(ids),
    )
    return directory


def assert_comes_back(converted: Path, saved: Path, tmp_path: Path, *, layout: str, name: str) -> None:
    trained, back = tmp_path / name, tmp_path / f"{name}_back"
    shutil.copytree(saved / layout / name, trained)
    shutil.copytree(converted / "nemo" / name / "context", trained / "context")
    table = read_dist_checkpoint(trained / "weights", prefix="module.")["embedding.word_embeddings.weight"]
    assert table.shape[0] in (384, 512)
    assert table.read()[-1, 0] == PADDING
    nemo_to_hf.export(trained, back)
    expected = ("model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    for file in expected:
        if file == "generation_config.json" and not (converted / "hf" / name / file).exists():  # an encoder generates nothing
            assert not (back / file).exists()
            continue
        assert (back / file).read_bytes() == (converted / "hf" / name / file).read_bytes(), file


@pytest.fixture(scope="module")
def saved(tied_and_untied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cases at the usual layouts, tied or untied in turns."""
    directory = tmp_path_factory.mktemp("saved")
    save_file({"ids": token_batch([], vocab_size=283, length=SEQUENCE_LENGTH).ids}, directory / "ids.safetensors")
    plan = [(*layout, [one_of_both(number, layout) for number in range(len(CASES))], []) for layout in USUAL]
    return save(tied_and_untied, directory, plan, world_size=2, ids=directory / "ids.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)), ids=list(CASES))
def test_logits_over_two_pipeline_stages(tied_and_untied: Path, saved: Path, number: int) -> None:
    name = one_of_both(number, (1, 2))
    ids, logits = load_file(saved / "ids.safetensors")["ids"], load_file(saved / f"1x2/{name}.safetensors")["logits"]
    library = AutoModelForMaskedLM if FAMILIES[list(CASES.values())[number].model_type].masked else AutoModelForCausalLM
    model = library.from_pretrained(tied_and_untied / "hf" / name, dtype=torch.float32, attn_implementation="eager").float()
    with torch.inference_mode():
        assert (logits - model(ids).logits).abs().max() <= LARGEST_DIFFERENCE


@pytest.mark.slow
@pytest.mark.parametrize("number", [number for number, name in enumerate(CASES) if with_gradients(CASES[name].model_type)])
def test_gradients_over_two_ranks_are_those_of_hugging_face(tied_and_untied: Path, saved: Path, tmp_path: Path, number: int) -> None:
    """Of every parameter: what ranks have a part of, and what each has whole but sees a part of the features for."""
    name = one_of_both(number, (2, 1))
    shutil.copytree(saved / "gradients" / name, tmp_path / "nemo")
    shutil.copytree(tied_and_untied / "nemo" / name / "context", tmp_path / "nemo/context")
    nemo_to_hf.export(tmp_path / "nemo", tmp_path / "hf")
    found = load_file(tmp_path / "hf/model.safetensors")
    model = (
        AutoModelForCausalLM.from_pretrained(tied_and_untied / "hf" / name, dtype=torch.float32, attn_implementation="eager").float().eval()
    )
    ids = load_file(saved / "ids.safetensors")["ids"][:, 1:]
    uneven: list[torch.Tensor] = []
    if has_experts(model.config.model_type):
        chosen = model.config.num_experts_per_tok
        for layer in model.model.layers:
            router = getattr(layer.mlp, "router", None) or layer.mlp.gate
            # What transformers gives as gpt-oss's logits are the shares of the chosen experts.
            router.register_forward_pre_hook(
                lambda router, inputs: uneven.append(
                    unevenness(torch.nn.functional.linear(*inputs, router.weight, router.bias).flatten(0, -2), chosen=chosen)
                )
            )
    logits = model(ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) + EXPERT_BALANCE * sum(uneven)
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert len(expected) > 25
    for parameter, gradient in expected.items():
        # Gemma 3's files keep the names of a class that transformers has no more.
        mine = found.get(parameter, found.get("language_model." + parameter.replace("model.language_model.", "model.")))
        if parameter == "model.decoder.embed_positions.weight":  # its first two rows are kept aside as they are
            mine, gradient = mine[2:], gradient[2:]
        assert (mine - gradient).abs().max() <= 1e-5 * gradient.abs().max().clamp(min=1e-2), parameter


def unevenness(router_logits: torch.Tensor, *, chosen: int) -> torch.Tensor:
    """Switch Transformer's equation 4 for logits (tokens, experts): 1 where all experts are equally busy."""
    shares, num_experts = router_logits.softmax(-1), router_logits.shape[1]
    busy = torch.nn.functional.one_hot(shares.topk(chosen).indices, num_experts).sum((0, 1)) / (len(shares) * chosen)
    return num_experts * (busy * shares.mean(0)).sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "layout"),
    [pytest.param(number, layout, id=f"{name}-{layout}") for number, name in enumerate(CASES) for layout in USUAL],
)
def test_what_the_engine_saves_comes_back_bit_for_bit(
    tied_and_untied: Path, saved: Path, tmp_path: Path, number: int, layout: tuple[int, int]
) -> None:
    """Tables padded with other values than zero, optimizer state beside the weights."""
    assert_comes_back(tied_and_untied, saved, tmp_path, layout=f"{layout[0]}x{layout[1]}", name=one_of_both(number, layout))


@pytest.mark.slow
def test_each_family_on_four_ranks_at_a_layout_in_turn(tied_and_untied: Path, tmp_path: Path) -> None:
    """Smaller layouts have replicas, of which two ranks have none; of a few families layers have keys of their own besides."""
    turns = {
        layout: [one_of_both(number, layout) for number in range(LAYOUTS.index(layout), len(CASES), len(LAYOUTS))] for layout in LAYOUTS
    }
    per_layer = turns[LAYOUTS[0]]
    plan = [(*layout, names, per_layer if layout == LAYOUTS[0] else []) for layout, names in turns.items()]
    saved = save(tied_and_untied, tmp_path / "saved", plan, world_size=4)
    for kind, names in {**{f"{tensor}x{pipeline}": names for (tensor, pipeline), names in turns.items()}, "per_layer": per_layer}.items():
        for name in names:
            assert_comes_back(tied_and_untied, saved, tmp_path / kind, layout=kind, name=name)


@pytest.mark.long
@pytest.mark.parametrize("layout", [*LAYOUTS, (4, 2)])
def test_tied_and_untied_on_four_or_eight_ranks(tied_and_untied: Path, tmp_path: Path, layout: tuple[int, int]) -> None:
    """Every family, both kinds of output layer; at one layout, layers have keys of their own besides."""
    names = [name for case in CASES for name in both(case)]
    plain = f"{layout[0]}x{layout[1]}"
    kinds = (plain, "per_layer") if layout == LAYOUTS[0] else (plain,)
    plan = [(*layout, names, names if "per_layer" in kinds else [])]
    saved = save(tied_and_untied, tmp_path / "saved", plan, world_size=8 if layout == (4, 2) else 4)
    for kind in kinds:
        for name in names:
            assert_comes_back(tied_and_untied, saved, tmp_path / kind, layout=kind, name=name)


# -- NeMo without this project --------------------------------------------------------------------------------------------

TRAINED = "trained"
# NeMo does not have them, or gets another configuration from us.
OF_ENGINE = (
    *("yarn", "llama_bias", "llama_biases", "qwen2_windows", "phi3_long", "olmo2", "olmo3", "apertus", "granite", "qwen3_moe", "gpt_oss"),
    *("ministral3", "mistral3", "gemma"),
)
OF_THIS_PROJECT = ("opt", *OF_ENGINE, "bert", "roberta", "xlm_roberta")
NEMO_CLASSES = {
    "opt": ("GPTModel", "OPTConfig"),
    **dict.fromkeys(("bert", "roberta", "xlm_roberta"), ("GPTModel", "EncoderConfig")),
    **dict.fromkeys(OF_ENGINE, ("GPTModel", "EngineConfig")),
    **dict.fromkeys(("llama2", "smollm3"), ("LlamaModel", "LlamaConfig")),
    **dict.fromkeys(("llama3", TRAINED), ("LlamaModel", "Llama31Config")),
    "mistral": ("MistralModel", "MistralConfig7B"),
    "gemma2": ("Gemma2Model", "Gemma2Config"),
    **dict.fromkeys(("gemma3_text", "gemma3"), ("Gemma3Model", "Gemma3Config1B")),
    "qwen2": ("Qwen2Model", "Qwen2Config"),
    "qwen3": ("Qwen3Model", "Qwen3Config"),
    **dict.fromkeys(("phi3", "phi3_part"), ("Phi3Model", "Phi3Config")),
}


@pytest.fixture(scope="module")
def stock(converted: Path, saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a stock NeMo made of each case, and of one that the engine saved at tensor parallel 2 with padded tables."""
    directory = tmp_path_factory.mktemp("stock")
    shutil.copytree(saved / "2x1/llama3", directory / TRAINED)  # untied, like every other case at the first layout
    shutil.copytree(converted / "nemo/llama3/context", directory / TRAINED / "context")
    save_file({"ids": token_batch([], vocab_size=283, length=SEQUENCE_LENGTH).ids}, directory / "ids.safetensors")
    known = [name for name in CASES if name not in OF_THIS_PROJECT]
    ours = [converted / "nemo" / name for name in OF_THIS_PROJECT]
    checkpoints = [*(converted / "nemo" / name for name in known), directory / TRAINED, *ours]
    finished = run_command(
        "tests.conversion.stock_nemo",
        *(directory / "ids.safetensors", directory, *checkpoints),
        log_dir=directory / "logs",
        timeout_seconds=600,
        environment={"TORCHDYNAMO_DISABLE": "1"},  # NeMo compiles its fused functions, which needs a compiler
    )
    assert finished.code == 0, finished.stderr[-4000:]
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("name", NEMO_CLASSES)
def test_a_stock_nemo_loads_it(observed: dict[str, dict[str, Observation]], stock: Path, name: str) -> None:
    """By NeMo's own loading, with its own classes; OPT and encoders, which it does not have, with `nemo_patches`."""
    found = json.loads((stock / f"{name}.json").read_text())
    assert (found["model"], found["config"], found["dtype"], found["tokens"]) == (*NEMO_CLASSES[name], "torch.float32", 280)
    if name not in OF_THIS_PROJECT:
        stand_in = ["nemo_patches", *(f"nemo_patches.{name}" for name in ("core", "cpu_device", "no_allocator", "quiet"))]
        assert found["modules of this project"] == stand_in
        assert found["eos_token_id"] is not None or name.startswith("qwen")
    logits = load_file(stock / f"{name}.safetensors")["logits"]
    expected = observed["llama3" if name == TRAINED else name]["Hugging Face"].whole["logits"][:, : logits.shape[1]]
    assert logits.shape[1] == (8 if name == "gemma2" else SEQUENCE_LENGTH)
    assert (logits - expected).abs().max() <= LARGEST_DIFFERENCE
