"""What to transfer and how, and whether a method has all that it needs; nothing is read yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conversion.embeddings import METHODS, RENAMED_METHODS
from conversion.embeddings.methods.learning_options import LearningOptions
from conversion.embeddings.parallel_text import ParallelText
from conversion.embeddings.settings import COPYING_STRATEGIES, GROWING_STRATEGIES, VectorOptions, VocabularyOptions
from conversion.embeddings.vocabularies.strategies import read_by, require_vocabulary_options
from data_prep.reading.documents import Documents

# What methods learn from or are told: field of the request -> its option and what it is.
MATERIAL = {
    "text": ("--text FILE", "text in the target language"),
    "source_text": ("--source-text FILE", "text in the source language"),
    "helper": ("--helper DIR", "a model in the target language with the target tokenizer"),
    "encoder": ("--encoder DIR", "an encoder of both languages"),
    "word_vectors": ("--vectors FILE", "vectors of words in the target language"),
    "source_word_vectors": ("--source-vectors FILE", "vectors of words in the source language"),
    "dictionary": ("--dictionary FILE", "a dictionary from the source to the target language"),
    "parallel": ("--parallel FILE", "sentences with their translations"),
    "as_published": ("--as-published", "another way in the published code"),
    "num_atoms": ("--num-atoms N", "how many shared tokens make a new one"),
    "num_pairs": ("--num-pairs N", "on how many shared tokens a map is fitted"),
    "learning": ("--steps N and the other options of learning", "how to learn rows"),
}


@dataclass(frozen=True)
class TransferRequest:
    """What to transfer and how.

    Attributes:
        source: folder of the model with its tokenizer.
        tokenizer: folder of the target tokenizer; None where the vocabulary is made from the source's alone.
        method: a name in `METHODS`; None where all rows are copies.
        vocabulary: what the target's vocabulary is.
        output_layer: one of `OUTPUT_LAYERS`; None keeps the source's way.
        text, source_text, helper, encoder, word_vectors, source_word_vectors, dictionary, parallel: what some methods learn from, see `TransferInputs`.
        num_atoms, num_pairs, as_published: what some methods are told, see `TransferInputs`.
        fallback: `mean` or `random`, for tokens that the method has nothing for.
        factorised_size: dimensions of the coordinates that are transferred in place of rows, `full`, or None to transfer rows.
        random_statistics: drawn rows follow the mean and variance per `dimension` or over the `matrix`.
        special_tokens: target token -> source token, over the rules of `map_vocabulary`.
        matching: one of `MATCHINGS`, which tokens of text count as shared.
        learning: what a learned method is told; None where nothing is, which is the defaults.
    """

    source: Path
    tokenizer: Path | None
    method: str | None
    vocabulary: VocabularyOptions = field(default_factory=VocabularyOptions)
    output_layer: str | None = None
    seed: int = 42
    text: Documents | None = None
    source_text: Documents | None = None
    vectors: VectorOptions = field(default_factory=VectorOptions)
    helper: Path | None = None
    encoder: Path | None = None
    word_vectors: Path | None = None
    source_word_vectors: Path | None = None
    dictionary: Path | None = None
    parallel: ParallelText | None = None
    num_atoms: int | None = None
    num_pairs: int | None = None
    as_published: bool | None = None
    fallback: str = "mean"
    factorised_size: int | str | None = None
    random_statistics: str = "dimension"
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    matching: str = "exact"
    learning: LearningOptions | None = None


def require_options(request: TransferRequest) -> None:
    """Refuse a request whose method is unknown, lacks material, or would ignore some.

    Raises:
        ValueError: naming the option.
    """
    require_vocabulary_options(request.vocabulary, tokenizer=request.tokenizer, text=request.text)
    strategy, method = request.vocabulary.strategy, request.method
    if strategy in COPYING_STRATEGIES:
        if method is not None:
            raise ValueError(f"--vocabulary {strategy} copies every row; leave out --method {method}")
    elif method in RENAMED_METHODS:
        raise ValueError(f"--method {RENAMED_METHODS[method]}")
    elif method not in METHODS:
        found = "no --method is given" if method is None else f"unknown method {method!r}"
        raise ValueError(f"{found}; the known ones are {', '.join(METHODS)}")
    if strategy == "keep" and request.factorised_size is not None:
        raise ValueError("--vocabulary keep leaves the matrices as they are; leave out --factorised-size")
    if request.special_tokens and (strategy == "keep" or (method is not None and not METHODS[method].copies)):
        asked = f"--method {method} draws every row" if method else f"--vocabulary {strategy} leaves the matrices as they are"
        raise ValueError(f"{asked}, so that --special-token changes nothing; leave it out")
    if method is not None and METHODS[method].learns:
        _require_learnable(request, method)
    if not 0 <= request.seed < 2**32:
        raise ValueError(f"--seed is {request.seed}; expected 0 to {2**32 - 1}")
    if method is not None and (refusal := refusal_of(request, method)):
        raise ValueError(refusal)
    given = {name for name in MATERIAL if getattr(request, name) is not None} - read_by(request.vocabulary, request.tokenizer)
    for name in (name for name in MATERIAL if name in given - (METHODS[method].uses if method is not None else frozenset())):
        flag, users = MATERIAL[name][0], ", ".join(method for method, other in METHODS.items() if name in other.uses)
        asked = f"--vocabulary {strategy}" if method is None else f"--method {method}"
        raise ValueError(f"{asked} makes no use of {flag}; leave it out (it serves {users})")
    for first, second in METHODS[method].either if method is not None else ():
        if {first, second} <= given:
            raise ValueError(f"--method {method} reads {MATERIAL[first][0]} or {MATERIAL[second][0]}; leave one of them out")


def _require_learnable(request: TransferRequest, method: str) -> None:
    """Refuse what learned rows cannot be."""
    if request.factorised_size is not None:
        raise ValueError(f"--method {method} learns rows, not their coordinates; leave out --factorised-size")
    learns_output = method != "token-distillation" or (request.learning or LearningOptions()).output_rows == "learned"
    if learns_output and request.output_layer == "random":
        raise ValueError(f"--method {method} learns rows of the output layer, which --output-layer random draws; choose another of the two")
    if method != "token-distillation" and request.learning is not None:
        for flag, is_given in (
            ("--output-rows", request.learning.output_rows != "mean"),
            ("--distilled-layer", request.learning.layer is not None),
        ):
            if is_given:
                raise ValueError(f"--method {method} makes no use of {flag}; leave it out (it serves token-distillation)")


def refusal_of(request: TransferRequest, method: str) -> str:
    """A sentence about why a method cannot serve the request, for lack of material or of a use; empty where it can."""
    strategy = request.vocabulary.strategy
    if strategy in GROWING_STRATEGIES and not METHODS[method].copies:
        return f"--vocabulary {strategy} keeps the source's rows, and --method {method} draws every row; take --method random"
    needs = [*((name,) for name in METHODS[method].needs), *METHODS[method].either]
    for names in sorted(needs, key=lambda names: list(MATERIAL).index(names[0])):
        if all(getattr(request, name) is None for name in names):
            flags, kinds = zip(*(MATERIAL[name] for name in names))
            return f"--method {method} needs {' or '.join(kinds)}; give it with {' or '.join(flags)}"
    return ""
