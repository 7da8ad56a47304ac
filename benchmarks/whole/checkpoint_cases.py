"""Stages of checkpoints: transfer, comparison of transfers, conversion both ways, GGUF, verification."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.whole.case import Case, Contender, copy_of, ours, passes, script
from benchmarks.whole.material import PEERS_OF_CONVERSION, Material

COMPARED = ("random", "mean", "align", "focus")
# As deepfocus trains its vectors by default; both are told the same.
VECTORS = ("--vector-size", "100", "--vector-epochs", "3", "--vector-min-count", "10")
_ONE_LAYER = "makes one matrix in memory, writes no checkpoint"


def transfer_cases(material: Material, peers: str) -> list[Case]:
    """A real model's embeddings for the text's tokenizer, with all that the method trains; writing included."""
    model, tokenizer = material.real_model, material.tokenizer
    text = ("--text", material.learned)
    focus = script(
        "deepfocus", "peer", "deepfocus_whole.py", model, tokenizer, material.learned, python=peers, needs="deepfocus", remark=_ONE_LAYER
    )
    mergekit = Contender(
        "mergekit-tokensurgeon",
        "peer",
        lambda output: [
            peers, "-m", "mergekit.scripts.tokensurgeon", model, material.helper, output, "--approximation-method", "omp", "--k", "64",
            "--batch-size", "512",
        ],
        needs="mergekit",
    )  # fmt: skip
    methods: dict[str, tuple[tuple[str | Path, ...], tuple[Contender, ...]]] = {
        "mean": ((), ()),
        "align": (text, ()),
        "focus": ((*text, *VECTORS), (focus,)),
        "omp": (("--helper", material.helper, "--as-published"), (mergekit,)),
    }
    if material.source_text is not None and material.dictionary is not None:
        words = ("--source-text", material.learned_source, "--dictionary", material.dictionary)
        wechsel = script(
            "wechsel", "peer", "wechsel_whole.py", model, tokenizer, material.learned, material.learned_source, material.plain_dictionary,
            python=peers, needs="wechsel", remark=_ONE_LAYER,
        )  # fmt: skip
        methods["wechsel"] = ((*text, *words, *VECTORS), (wechsel,))
    common = ("--source", model, "--tokenizer", tokenizer)
    return [
        Case(
            f"transfer --method {method}",
            1,
            "model",
            (ours("conversion.transfer", *common, "--method", method, *options), *others, copy_of(model)),
        )
        for method, (options, others) in methods.items()
    ]


def compare_case(material: Material, peers: str) -> Case:
    """Several methods, scored on all of a held-out text."""
    words = ("--source", material.real_model, "--tokenizer", material.tokenizer, "--text", material.learned, *VECTORS)
    scored = ("--methods", *COMPARED, "--heldout", f"text={material.held_out}", "--every-document")
    limit = passes(
        "as many of the source's own passes", material.real_model, material.held_out, times=len(COMPARED) + 1,
        remark="with the source's tokenizer, which makes more tokens of the text",
    )  # fmt: skip
    return Case("transfer_compare", len(COMPARED), "methods", (ours("conversion.transfer_compare", *words, *scored), limit), most_rounds=2)


def conversion_cases(material: Material, peers: str) -> list[Case]:
    """Both ways and dtypes, beside a plain copy, direct writes, and NeMo's own converters of Llamas, which are given the CPU as their device."""
    cases = []
    for dtype in material.dtypes:
        folders = {"hf_to_nemo": material.checkpoint(dtype), "nemo_to_hf": material.nemo_checkpoint(dtype)}
        for module, source in folders.items():
            contenders = [ours(f"conversion.{module}", "--input", source)]
            if material.is_llama and dtype == "bfloat16":
                contenders.append(_nemo_converter(module, material))
            contenders += [copy_of(source), script("copy by direct writes", "limit", "copy_directly.py", material.checkpoint(dtype))]
            cases.append(
                Case(f"{module}, {material.shape} {dtype}", material.checkpoint_gigabytes(dtype), "GB", tuple(contenders), most_rounds=3)
            )
    return cases


def _nemo_converter(module: str, material: Material) -> Contender:
    direction = "import" if module == "hf_to_nemo" else "export"
    source = material.checkpoint("bfloat16") if direction == "import" else material.checkpoint_by_nemo
    return Contender(f"NeMo's {direction}er", "peer", lambda output: [sys.executable, PEERS_OF_CONVERSION, direction, source, output])


def merge_cases(material: Material, peers: str) -> list[Case]:
    """Two models and their base of one shape and dtype, beside mergekit's own command and a copy of what is written."""
    cases = []
    for dtype in material.dtypes:
        base, *models = (material.checkpoint(dtype, seed) for seed in (0, 1, 2))
        for method, theirs, density in (("linear", "linear", None), ("task-arithmetic", "task_arithmetic", None), ("ties", "ties", 0.4)):
            words = ["--method", method, "--models", *(f"{model}:0.5" for model in models)]
            words += [] if method == "linear" else ["--base", str(base)]
            words += [] if density is None else ["--density", str(density)]
            whole = ours("conversion.merge", *words)
            mergekit = _mergekit(material, peers, theirs, dtype, base=None if method == "linear" else base, models=models, density=density)
            gigabytes = 3 * material.checkpoint_gigabytes(dtype) if method != "linear" else 2 * material.checkpoint_gigabytes(dtype)
            cases.append(Case(f"merge --method {method}, {material.shape} {dtype}", gigabytes, "GB", (whole, mergekit, copy_of(base)), 3))
    return cases


def _mergekit(
    material: Material, peers: str, method: str, dtype: str, *, base: Path | None, models: Sequence[Path], density: float | None
) -> Contender:
    parameters = {"weight": 0.5, **({} if density is None else {"density": density})}
    config: dict[str, Any] = {"merge_method": method, "models": [{"model": str(model), "parameters": parameters} for model in models]}
    config |= {"dtype": dtype, **({} if base is None else {"base_model": str(base)})}
    path = material.work / f"{method}.{dtype}.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return Contender("mergekit", "peer", lambda output: [peers, "-m", "mergekit.scripts.run_yaml", path, output], needs="mergekit")


def from_gguf_case(material: Material, peers: str) -> Case:
    """A published file, beside transformers' own reading of it."""
    source = material.gguf
    theirs = script("transformers", "peer", "transformers_gguf.py", source, remark="weights alone: no tokenizer, nothing compared")
    whole = ours("conversion.from_gguf", "--input", source, "--dtype", "float32")
    return Case("from_gguf", source.stat().st_size / 1e9, "GB", (whole, theirs, copy_of(material.real_model)))


def verify_case(material: Material, peers: str) -> Case:
    """The model and its NeMo checkpoint: names, shapes, token ids, logits of both engines."""
    model, nemo = material.real_model, material.nemo_model
    whole = Contender("Scion", "ours", lambda output: [sys.executable, "-m", "conversion.verify", model, nemo])
    both = script("reading both", "limit", "read_folders.py", model, nemo)
    stock = script("import of NeMo's llm collection", "limit", "import_nemo.py", remark="which the logits of a NeMo checkpoint need")
    return Case("verify", 1, "model", (whole, both, stock))
