"""What is measured: each case is a command of the project as a user types it, with whoever does the same, and with what no way can do without."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.whole.material import PEERS_OF_CONVERSION, Material
from benchmarks.whole.results import Role
from common.door import commands
from common.meter import ROOT

Command = Callable[[Path], list[str | Path]]
"""Words of a command that writes the folder or file that it is given."""


@dataclass(frozen=True)
class Contender:
    """Who does it.

    Attributes:
        needs: package that the interpreter of the command must have.
        remark: what is not the same thing.
    """

    name: str
    role: Role
    command: Command
    needs: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Case:
    """A question of time.

    Attributes:
        amount: of work, in `unit`.
        contenders: ours first.
    """

    name: str
    amount: float
    unit: str
    contenders: tuple[Contender, ...]


def _ours(module: str, *arguments: str | Path) -> Contender:
    return Contender("Scion", "ours", lambda output: [sys.executable, "-m", module, *arguments, "--output", output])


def _script(
    name: str, role: Role, file: str, *arguments: str | Path, python: str = sys.executable, needs: str = "", remark: str = ""
) -> Contender:
    return Contender(
        name, role, lambda output: [python, ROOT / "benchmarks" / "whole" / "contenders" / file, *arguments, output], needs, remark
    )


def help_case(material: Material, peers: str) -> Case:
    """All commands, each asked for its help."""
    modules = [command.module for command in commands()]
    ours = Contender("Scion", "ours", lambda output: [sys.executable, ROOT / "benchmarks/whole/contenders/help.py", *modules])
    empty = Contender(
        "an empty Python", "limit", lambda output: [sys.executable, ROOT / "benchmarks/whole/contenders/help.py", *["-"] * len(modules)]
    )
    return Case("--help", len(modules), "commands", (ours, empty))


def collect_case(material: Material, peers: str) -> Case:
    """From files to files, in zstd."""
    return _text_case("collect", material, _ours("data_prep.collect", "--input", f"text={material.documents}", "--workers", "1"))


def clean_case(material: Material, peers: str) -> Case:
    """With the rules of a crawl, beside the same kinds of rules."""
    ours = _ours("data_prep.clean", "--input", f"text={material.documents}", "--filters", "web", "--workers", "1")
    theirs = _script(
        "datatrove", "peer", "datatrove_filters.py", material.documents, material.language, python=peers, needs="datatrove",
        remark="Gopher's, C4's and FineWeb's rules alone: no mojibake, markup, lines, personal data",
    )  # fmt: skip
    return _text_case("clean --filters web", material, ours, theirs)


def dedup_case(material: Material, peers: str) -> Case:
    """Near duplicates of documents, beside MinHash."""
    ours = _ours("data_prep.dedup", "--input", f"text={material.documents}", "--workers", "1")
    theirs = _script(
        "datatrove", "peer", "datatrove_minhash.py", material.documents, python=peers, needs="datatrove",
        remark="MinHash of documents; ours compares every n-gram of every paragraph",
    )  # fmt: skip
    return _text_case("dedup", material, ours, theirs)


def train_tokenizer_case(material: Material, peers: str) -> Case:
    """BPE, beside the library that both call."""
    ours = _ours("data_prep.train_tokenizer", "--input", material.documents, "--vocab-size", "16000", "--workers", "1")
    library = _script(
        "SentencePiece", "peer", "sentencepiece_training.py", material.documents, "16000", remark="no Hugging Face tokenizer, no check"
    )
    return Case("train_tokenizer", material.text_megabytes, "MB of text", (ours, library))


def to_megatron_case(material: Material, peers: str) -> Case:
    """To .bin and .idx, beside Megatron's way and the tokenizer's library alone."""
    ours = _ours("data_prep.to_megatron", "--input", material.documents, "--tokenizer", material.tokenizer, "--workers", "1")
    theirs = _script("Megatron's way", "peer", "megatron_preprocess.py", material.documents, material.tokenizer)
    library = _script("tokenizers, ids thrown away", "limit", "encode_alone.py", material.documents, material.tokenizer)
    return Case("to_megatron", material.text_megabytes, "MB of text", (ours, theirs, library))


def conversion_cases(material: Material, peers: str) -> list[Case]:
    """Both ways, beside a plain copy, and NeMo's own importer and exporter of Llamas, which are given the CPU as their device."""
    folders = {"hf_to_nemo": material.checkpoint, "nemo_to_hf": material.nemo_checkpoint}
    cases = []
    for module, source in folders.items():
        contenders = [_ours(f"conversion.{module}", "--input", source), _script("copy and flush", "limit", "copy_folder.py", source)]
        if material.is_llama:
            contenders.insert(1, _nemo_converter(module, material))
        cases.append(Case(f"{module}, {material.shape}", material.checkpoint_gigabytes, "GB", tuple(contenders)))
    return cases


def _nemo_converter(module: str, material: Material) -> Contender:
    direction, source = ("import", material.checkpoint) if module == "hf_to_nemo" else ("export", material.checkpoint_by_nemo)
    return Contender(
        f"NeMo's {direction}er", "peer", lambda output: [sys.executable, PEERS_OF_CONVERSION, "NeMo", direction, source, output]
    )


def transfer_case(material: Material, method: str) -> Case:
    """A real model's embeddings for the text's tokenizer, with all that the method trains; writing included."""
    assert material.model is not None
    text = ("--text", material.documents) if method in ("focus", "align") else ()
    words = ("--source", material.model, "--tokenizer", material.tokenizer, "--method", method, *text)
    copy = _script("copy and flush", "limit", "copy_folder.py", material.model)
    return Case(f"transfer --method {method}", 1, "model", (_ours("conversion.transfer", *words), copy))


def training_case(material: Material, peers: str) -> Case:
    """What stands before the first step and behind the last: one step of a small model on one process."""
    inputs = material.training
    overrides = (
        f"model.checkpoint={inputs / 'nemo'}", f"data.train=[{inputs / 'data'}]", "parallel.devices_per_node=1",
        "parallel.tensor_parallel_size=1", "schedule.max_steps=1", "schedule.warmup_steps=0", "run.checkpoint_every_steps=1",
    )  # fmt: skip
    ours = Contender(
        "Scion", "ours", lambda output: [sys.executable, "-m", "recipes.train", "--recipe", "demo_adapt", "--output", output, *overrides]
    )
    stock = _script("import of NeMo's llm collection", "peer", "import_nemo.py", remark="nothing else is done")
    return Case("train, one step", 1, "run", (ours, stock))


def harness_case(material: Material, peers: str) -> Case:
    """Bits per byte of a real model, beside its own passes."""
    assert material.model is not None
    ours = _ours("eval.harness", "--model", f"model={material.model}", "--text", f"text={material.held_out}", "--device", "cpu")
    passes = _script("the model's own passes", "limit", "model_passes.py", material.model, material.held_out)
    return Case("harness --text", material.held_out_kilobytes, "kB of text", (ours, passes))


def _text_case(name: str, material: Material, *contenders: Contender) -> Case:
    through = _script("reading and writing zstd", "limit", "through_zstd.py", material.documents)
    return Case(name, material.text_megabytes, "MB of text", (*contenders, through))


_ONE: dict[str, Callable[[Material, str], Case]] = {
    "help": help_case,
    "collect": collect_case,
    "clean": clean_case,
    "dedup": dedup_case,
    "train_tokenizer": train_tokenizer_case,
    "to_megatron": to_megatron_case,
    "train": training_case,
    "harness": harness_case,
}
_TRANSFERS = ("mean", "align", "focus")
STAGES = ("help", "collect", "clean", "dedup", "train_tokenizer", "to_megatron", "transfer", "convert", "train", "harness")
NEED_A_MODEL = ("transfer", "harness")


def cases_of(stage: str, material: Material, peers: str) -> Sequence[Case]:
    """All cases of a stage.

    Args:
        peers: interpreter that has other packages.
    """
    if stage == "convert":
        return conversion_cases(material, peers)
    if stage == "transfer":
        return [transfer_case(material, method) for method in _TRANSFERS]
    return [_ONE[stage](material, peers)]
