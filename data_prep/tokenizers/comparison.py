"""Any number of tokenizers measured on any number of corpora, written as a directory with the report."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from common.artifacts import Manifest, digest_file, read_manifest, staged_directory, write_manifest
from data_prep.megatron.word_encoder import plain
from data_prep.reading.corpora import Corpus
from data_prep.reading.documents import Documents
from data_prep.tokenizers.files import load_tokenizer, rows_needed, tokenizer_digest
from data_prep.tokenizers.metrics import advise_size, lexicon_share, sentence_tokens, text_figures
from data_prep.tokenizers.report_page import Measurement, Report, Sample, write_report

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SAMPLE_CHARACTERS = 160


@dataclass(frozen=True)
class Candidate:
    """A tokenizer to measure.

    Attributes:
        family: the same for tokenizers that differ in size only, as `data_prep.train_tokenizer` recorded; None where nothing is known.
    """

    name: str
    directory: Path
    family: str | None


def candidates(arguments: Sequence[str]) -> list[Candidate]:
    """Tokenizers of `NAME=DIR` or `DIR` arguments, those with several in it expanded.

    Raises:
        ValueError: if a folder is missing, or a name is none or comes twice.
    """
    found: dict[str, Candidate] = {}
    for argument in arguments:
        head, equals, tail = argument.partition("=")
        directory = Path(tail if equals else argument)
        name = head if equals else Path(argument).resolve().name
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"--tokenizer {argument}: {name!r} is not a valid name; expected NAME=DIR with letters, digits, '.', '_' and '-'"
            )
        if not directory.is_dir():
            raise ValueError(f"the tokenizer folder {directory} does not exist")
        manifest = read_manifest(directory)
        made = manifest.facts.get("tokenizers", {}) if manifest is not None else {}
        inner = sorted(made, key=lambda part: (made[part]["model"], made[part]["vocab_size"]))
        folders = {f"{name}-{part}" if equals else part: directory / part for part in inner} or {name: directory}
        for each, folder in folders.items():
            if each in found:
                raise ValueError(f"--tokenizer names {each} twice; give each its own with NAME=DIR")
            found[each] = Candidate(each, folder, _family(folder))
    return list(found.values())


def _family(directory: Path) -> str | None:
    manifest = read_manifest(directory)
    if manifest is None or "model" not in manifest.facts:
        return None
    trained = {key: manifest.facts.get(key) for key in ("model", "byte_fallback")} | {"inputs": manifest.inputs}
    return json.dumps(trained, sort_keys=True)


def tokenizer_report(
    tokenizers: Sequence[Candidate],
    corpora: Sequence[Corpus],
    output_dir: Path,
    *,
    text_key: str = "text",
    separator: str | None = None,
    every: int = 1,
    words: str = "whitespace",
    parallel: Mapping[str, Sequence[str]] | None = None,
    lexicon: frozenset[str] | None = None,
    arguments: argparse.Namespace | None = None,
) -> Manifest:
    """Measure all tokenizers on all corpora, write the report into a new directory and return its manifest.

    One document is in memory at a time, and the distinct words of a corpus.

    Args:
        every: measure each N-th document only.
        parallel: language -> sentences, as `read_parallel` gives.
        lexicon: as `read_lexicon` gives.

    Raises:
        ValueError: if a tokenizer or file cannot be read.
    """
    parallel = parallel or {}
    texts = {corpus.name: Documents(corpus.paths, text_key=text_key, separator=separator) for corpus in corpora}
    samples = {name: _first_words(next(_every(documents, every))) for name, documents in texts.items()}
    samples |= {language: sentences[0] for language, sentences in parallel.items()}
    with staged_directory(output_dir) as staging:
        measurements = []
        shown: dict[str, dict[str, list[str]]] = {name: {} for name in samples}
        digests = {}
        for candidate in tokenizers:
            tokenizer = load_tokenizer(candidate.directory)
            digests[candidate.name] = tokenizer_digest(tokenizer)
            measurements.append(
                Measurement(
                    candidate.name,
                    candidate.family,
                    rows_needed(tokenizer),
                    {
                        name: text_figures(tokenizer, _every(documents, every), words=words, lexicon=lexicon)
                        for name, documents in texts.items()
                    },
                    sentence_tokens(tokenizer, parallel),
                    lexicon_share(tokenizer, lexicon) if lexicon is not None else None,
                )
            )
            for name, sample in samples.items():
                shown[name][candidate.name] = pieces(tokenizer, sample)
        first = corpora[0].name
        advice = {}
        for family in dict.fromkeys(m.family for m in measurements if m.family is not None):
            members = [m for m in measurements if m.family == family]
            found = advise_size({m.vocab_size: m.texts[first].fertility for m in members})
            if found is not None:
                advice[members[0].kind] = found
        languages_of = {corpus.name: corpus.language for corpus in corpora}
        parts = tuple(Sample(name, samples[name], shown[name]) for name in samples)
        report = Report(tuple(measurements), advice, parts, words, every, languages_of)
        write_report(report, staging)
        inputs = {str(path): digest_file(path) for documents in texts.values() for path in documents.paths} | digests
        return write_manifest(
            staging,
            stage="data_prep.tokenizer_report",
            facts={"recommended_sizes": {kind: found.recommended for kind, found in advice.items()}, "tokenizer_digests": digests},
            arguments=vars(arguments) if arguments else None,
            inputs=inputs,
        )


def _every(documents: Documents, every: int) -> Iterator[str]:
    return islice(documents.read("measuring"), 0, None, every)


def _first_words(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SAMPLE_CHARACTERS else line[:_SAMPLE_CHARACTERS].rpartition(" ")[0] or line[:_SAMPLE_CHARACTERS]


def pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    """The parts of a text that its tokens stand for; a part of a character is shown with the token that ends it."""
    parts: list[str] = []
    shown_to = 0
    for _, end in plain(tokenizer.backend_tokenizer).encode(text, add_special_tokens=False).offsets:
        parts.append(text[shown_to:end] if end > shown_to else "")
        shown_to = max(shown_to, end)
    return parts
