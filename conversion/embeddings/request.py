"""Checks that a method has all inputs that it needs, and none that it would ignore, before anything is read."""

from __future__ import annotations

import argparse

from common.plain_files import read_json
from conversion.embeddings import METHODS, RENAMED_METHODS
from conversion.embeddings.options import (
    COPYING_STRATEGIES,
    GROWING_STRATEGIES,
    LASTING_STRATEGIES,
    MATERIAL,
    LearningOptions,
    TransferRequest,
    VocabularyOptions,
)
from conversion.embeddings.vocabularies.strategies import read_by, require_vocabulary_options


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
    if strategy in LASTING_STRATEGIES and request.factorised_size is not None:
        raise ValueError(
            f"--vocabulary {strategy} leaves {'the matrices' if strategy == 'keep' else 'most rows'} as they are; leave out --factorised-size"
        )
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
        raise ValueError(f"{asked} does not use {flag}; leave it out (it is for {users})")
    for first, second in METHODS[method].either if method is not None else ():
        if {first, second} <= given:
            raise ValueError(f"--method {method} reads {MATERIAL[first][0]} or {MATERIAL[second][0]}; leave one of them out")


def _require_learnable(request: TransferRequest, method: str) -> None:
    """Refuse what learned rows cannot be."""
    if request.factorised_size is not None:
        raise ValueError(f"--method {method} learns rows, not their coordinates; leave out --factorised-size")
    learns_output = method != "token-distillation" or (request.learning or LearningOptions()).output_rows == "learned"
    if learns_output and request.output_layer == "random":
        raise ValueError(
            f"--method {method} learns rows of the output layer, which --output-layer random initialises randomly; change one of the two"
        )
    if method != "token-distillation" and request.learning is not None:
        for flag, is_given in (
            ("--output-rows", request.learning.output_rows != "mean"),
            ("--distilled-layer", request.learning.layer is not None),
        ):
            if is_given:
                raise ValueError(f"--method {method} does not use {flag}; leave it out (it is for token-distillation)")


def refusal_of(request: TransferRequest, method: str) -> str:
    """A sentence about why a method cannot serve the request, for lack of material or of a use; empty where it can."""
    strategy = request.vocabulary.strategy
    if strategy in (*GROWING_STRATEGIES, *LASTING_STRATEGIES) and method is not None and not METHODS[method].copies:
        return (
            f"--vocabulary {strategy} keeps the source's rows, and --method {method} initialises every row randomly; take --method random"
        )
    needs = [*((name,) for name in METHODS[method].needs), *METHODS[method].either]
    for names in sorted(needs, key=lambda names: list(MATERIAL).index(names[0])):
        if all(getattr(request, name) is None for name in names):
            flags, kinds = zip(*(MATERIAL[name] for name in names))
            return f"--method {method} needs {' or '.join(kinds)}; give it with {' or '.join(flags)}"
    return ""


def take_recommended(arguments: argparse.Namespace) -> None:
    """Set the method that a comparison recommends, and ignore inputs that only other methods use of it.

    Raises:
        ValueError: if a method is named too, or the folder is not a comparison.
    """
    if arguments.method is not None:
        raise ValueError("--method and --method-from both name a method; give one of them")
    path = arguments.method_from / "comparison.json"
    if not path.is_file():
        raise ValueError(f"--method-from {arguments.method_from} has no {path.name}; expected an output of conversion.transfer_compare")
    method = read_json(path).get("recommendation", {}).get("method")
    if method not in METHODS:
        raise ValueError(f"{path} recommends {method!r}, which is not a method; run the comparison again")
    arguments.method = method
    used = METHODS[method].uses | read_by(VocabularyOptions(arguments.vocabulary, arguments.new_tokens), arguments.tokenizer)
    for name, (flag, _) in MATERIAL.items():
        if name not in used:
            setattr(arguments, flag.split()[0].removeprefix("--").replace("-", "_"), None)
