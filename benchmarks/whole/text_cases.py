"""Stages of text: from files to files, one process each."""

from __future__ import annotations

import sys

from benchmarks.whole.case import CONTENDERS, Case, Contender, empty_python, ours, script
from benchmarks.whole.material import VOCAB_SIZE, Material
from common.cli import commands

UNIT = "MB of text"


def help_case(material: Material, peers: str) -> Case:
    """All commands, each asked for its help."""
    modules = [command.module for command in commands()]
    asked = Contender("Scion", "ours", lambda output: [sys.executable, CONTENDERS / "help.py", *modules])
    return Case("--help of all", len(modules), "commands", (asked, empty_python(len(modules))))


def collect_case(material: Material, peers: str) -> Case:
    """From .jsonl.gz, as corpora come, to zstd."""
    source = material.gzipped
    whole = ours("data_prep.collect", "--input", f"text={source}", "--workers", "1")
    gunzip = Contender("gunzip alone", "limit", lambda output: ["gzip", "--test", source])
    return Case("collect", material.text_megabytes, UNIT, (whole, gunzip, _through(material, source, "gunzip and writing zstd")))


def clean_cases(material: Material, peers: str) -> list[Case]:
    """Each set of filters; the rules of a crawl beside the same kinds of rules."""
    theirs = script(
        "datatrove", "peer", "datatrove_filters.py", material.documents, material.language, python=peers, needs="datatrove",
        remark="Gopher's, C4's and FineWeb's rules alone: no mojibake, markup, lines, personal data",
    )  # fmt: skip
    return [
        Case(
            f"clean --filters {filters}",
            material.text_megabytes,
            UNIT,
            (
                ours("data_prep.clean", "--input", f"text={material.documents}", "--filters", filters, "--workers", "1"),
                *others,
                _through(material),
            ),
        )
        for filters, others in {"none": (), "standard": (), "web": (theirs,)}.items()
    ]


def dedup_cases(material: Material, peers: str) -> list[Case]:
    """Repeated paragraphs, and near-duplicate documents besides, beside MinHash of documents."""
    cases = []
    for option, remark in {"": "MinHash of documents; ours compares every n-gram of every paragraph", "--similar-documents": ""}.items():
        words = ("data_prep.dedup", "--input", f"text={material.documents}", "--workers", "1", *option.split())
        theirs = script("datatrove", "peer", "datatrove_minhash.py", material.documents, python=peers, needs="datatrove", remark=remark)
        cases.append(Case(f"dedup {option}".strip(), material.text_megabytes, UNIT, (ours(*words), theirs, _through(material))))
    return cases


def train_tokenizer_cases(material: Material, peers: str) -> list[Case]:
    """BPE, beside the libraries whose users train with them alone."""
    words = ("--input", material.documents, "--vocab-size", str(VOCAB_SIZE), "--workers", "1")
    others = {
        "bpe": ("SentencePiece", "sentencepiece_training.py", "no Hugging Face tokenizer, no check"),
        "byte-level": ("tokenizers", "tokenizers_training.py", "no check; its own threads"),
    }
    return [
        Case(
            f"train_tokenizer --model {kind}",
            material.text_megabytes,
            UNIT,
            (
                ours("data_prep.train_tokenizer", *words, "--model", kind),
                script(name, "peer", file, material.documents, str(VOCAB_SIZE), remark=remark),
            ),
        )
        for kind, (name, file, remark) in others.items()
    ]


def mixture_case(material: Material, peers: str) -> Case:
    """Every document counted in tokens, some held out, the rest drawn and written."""
    words = ("--input", f"text={material.documents}", "--tokenizer", f"new={material.tokenizer}", "--workers", "1")
    return Case("mixture", material.text_megabytes, UNIT, (ours("data_prep.mixture", *words), _encoding(material), _through(material)))


def to_megatron_case(material: Material, peers: str) -> Case:
    """To .bin and .idx, beside Megatron's way and the tokenizer's library alone."""
    whole = ours("data_prep.to_megatron", "--input", material.documents, "--tokenizer", material.tokenizer, "--workers", "1")
    theirs = script("Megatron's way", "peer", "megatron_preprocess.py", material.documents, material.tokenizer)
    return Case("to_megatron", material.text_megabytes, UNIT, (whole, theirs, _encoding(material)))


def _encoding(material: Material) -> Contender:
    return script("tokenizers, ids thrown away", "limit", "encode_alone.py", material.documents, material.tokenizer)


def _through(material: Material, source: object = None, name: str = "reading and writing zstd") -> Contender:
    return script(name, "limit", "through_zstd.py", str(source or material.documents))
