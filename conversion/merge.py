"""Merge models of one architecture, also with different vocabularies: linear, task arithmetic and chat vectors, SLERP, TIES, DARE.

  --method linear            weighted mean of --models
  --method slerp             spherical interpolation between two --models, at --place
  --method task-arithmetic   --to (default: --base) plus, for each of --models, its weight times its difference from --base
  --method ties, dare-linear, dare-ties    the same, with a share of each difference kept (--density)
  --add CHAT:1.0             short for task arithmetic with chat vectors: `--base B --add CHAT:1.0 --to MINE`

Tensors are streamed and merged in float32.  The result has the vocabulary of --to, or else of --base, or of the first model.  Rows are matched by the
bytes of their tokens.  For a token that a model lacks, the difference is 0 (--missing-rows keep), the mean difference of the tokens that spell it
(pieces), or what the transfer that made the vocabulary recorded (--record).  Special tokens and chat template come from --chat-from.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import command
from common.artifacts import Manifest, check_files, read_manifest, staged_directory, write_manifest
from common.options import add_option, add_options, given, option
from common.plain_files import read_yaml
from common.progress import Progress, show
from conversion.checkpoints.summary import summary

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from conversion.merging.arithmetic import Rows
    from conversion.merging.models import Mapped, Model

STAGE = "conversion.merge"
VALUES, DELTAS = ("linear", "slerp"), ("task-arithmetic", "ties", "dare-linear", "dare-ties")
DTYPES = ("float32", "float16", "bfloat16")
_ONLY_OF = {"density": DELTAS[1:], "place": ("slerp",), "seed": DELTAS[2:]}  # options and the methods that they are of


@dataclass(frozen=True)
class Method:
    """How tensors are put together.

    Attributes:
        weights: of each model, in the order of the models.
        patterns: name of a model -> pattern of tensor names -> weight, in place of the model's; the first that fits.
    """

    name: str
    weights: tuple[float, ...]
    patterns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    density: float = option("--density SHARE", "share of each difference to keep (default: 0.5)", 1.0)
    place: float = option("--place T", "interpolation factor of slerp: 0 is the first model, 1 the second", 0.5)
    seed: int = option("--seed N", "random seed of dare", 0)

    def weights_of(self, tensor: str, models: Sequence[Model]) -> list[float]:
        """Of each model for one tensor."""
        found = []
        for model, weight in zip(models, self.weights, strict=True):
            of_model = self.patterns.get(model.name, {})
            found.append(next((value for pattern, value in of_model.items() if fnmatch.fnmatchcase(tensor, pattern)), weight))
        return found

    def require_sense(self, models: Sequence[Model], tensors: Sequence[str]) -> None:
        """Refuse numbers that mean nothing, and patterns that fit nothing.

        Raises:
            ValueError: naming what is wrong.
        """
        if self.name == "slerp" and len(models) != 2:
            raise ValueError(f"--method slerp interpolates between two models; there are {len(models)} in --models")
        if self.name == "slerp" and (self.patterns or set(self.weights) != {1.0}):
            raise ValueError("--method slerp interpolates by --place, and weights have no effect; leave them out")
        if not 0 <= self.place <= 1:
            raise ValueError(f"--place is {self.place:g}; expected 0, the first model, to 1, the second")
        if not 0 < self.density <= 1:
            raise ValueError(f"--density is {self.density:g}; expected a share above 0, at most 1")
        if unknown := [name for name in self.patterns if name not in {model.name for model in models}]:
            raise ValueError(
                f"--weights names {unknown[0]}, which is not a model of this merge: {', '.join(model.name for model in models)}"
            )
        for name, patterns in self.patterns.items():
            if nothing := [pattern for pattern in patterns if not fnmatch.filter(tensors, pattern)]:
                raise ValueError(f"--weights: {nothing[0]} of {name} fits no tensor; the first is {tensors[0]}")
        for tensor in tensors:
            weights = self.weights_of(tensor, models)
            if self.name == "linear" and abs(sum(weights)) < 1e-9:
                raise ValueError(f"the weights of {tensor} are 0 together, so the mean is undefined; give other weights")


@dataclass(frozen=True)
class Merge:
    """What is merged.

    Attributes:
        target: whose vocabulary, config and tokenizer the result has.
        base: what differences are to; None where none are taken.
        missing: see `conversion.merging.models.mapped_to`.
        record: output of the transfer that made the target's vocabulary from the base's.
        chat_from: whose special tokens and chat template the result has; None for the target's.
    """

    method: Method
    target: Model
    base: Model | None
    models: tuple[Model, ...]
    missing: str = "keep"
    record: Path | None = None
    chat_from: Model | None = None

    @property
    def others(self) -> list[Model]:
        """All models but the target, once each."""
        named = [*self.models, *([self.base] if self.base else []), *([self.chat_from] if self.chat_from else [])]
        return [model for model in dict.fromkeys(named) if model is not self.target]


def merge(work: Merge, output_dir: Path, *, dtype: str | None = None, arguments: Mapping[str, Any] | None = None) -> Manifest:
    """Write the merged checkpoint.

    Args:
        dtype: of all tensors, one of DTYPES; by default each has that of the target's.

    Raises:
        ValueError: if the models do not fit each other, an option makes no sense, or the output exists.
    """
    from common.allocation import return_freed_memory
    from conversion.checkpoints.hf_checkpoint import copy_companions, copy_config, write_hf_weights
    from conversion.formats.lazy_tensor import counted
    from conversion.merging.chat import chat_files
    from conversion.merging.models import require_alike
    from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest

    return_freed_memory()
    target = work.target
    require_alike(target, work.others)
    work.method.require_sense(work.models, list(target.tables.tensors))
    files = {} if work.chat_from is None else chat_files(work.chat_from, target)
    for model in (target, *work.others):
        if (manifest := read_manifest(model.hf.directory)) is not None:
            check_files(model.hf.directory, manifest, contents=False)
    tensors = list(merged_tensors(work, dtype=dtype))
    total = sum(tensor.nbytes for tensor in tensors)
    facts = {
        **{key: value for key, value in (_facts(target)).items() if key not in ("step", "run")},
        "model_type": target.hf.model_type,
        "vocab_size": target.tables.rows,
        "tie_word_embeddings": target.tables.is_tied,
        "merge": _settings(work),
    }
    with staged_directory(output_dir, required_bytes=total) as staging:
        with Progress("merging", total=total, unit="B", is_bytes=True) as progress:
            digests = write_hf_weights(staging, counted(tensors, progress.advance))
        copy_companions(target.hf.directory, staging)
        copy_config(target.hf.directory, staging)
        for name, content in files.items():
            (staging / name).write_bytes(content)
        if files and "tokenizer_digest" in facts:
            facts["tokenizer_digest"] = tokenizer_digest(load_tokenizer(staging))
        if dtype is not None:
            _set_dtype(staging / "config.json", dtype)
        (staging / "README.md").write_text(_card(work, output_dir.name), encoding="utf-8")
        inputs = {model.name: model.hf.digest() for model in (target, *work.others)}
        return write_manifest(staging, stage=STAGE, facts=facts, arguments=arguments, inputs=inputs, known_digests=digests)


def merged_tensors(work: Merge, *, dtype: str | None = None) -> Iterator[Any]:
    """The tensors of the result, each made when it is read, a block of rows at a time."""
    import torch

    from conversion.formats.lazy_tensor import LazyTensor
    from conversion.merging.models import Record, mapped_to

    record = Record.read(work.record) if work.record is not None else None
    mapped = {model: mapped_to(work.target, model, missing=work.missing, record=record) for model in (work.target, *work.others)}
    of_tokens = {tensor.name for tensor in work.target.tables.row_tensors}
    for name, tensor in work.target.tables.tensors.items():
        if not tensor.dtype.is_floating_point:  # positions or a mask, the same in all models
            yield tensor
            continue
        kind = tensor.dtype if dtype is None else getattr(torch, dtype)
        made = partial(_blocks, work, mapped, name, name in of_tokens, kind)
        yield LazyTensor.of_blocks(name, tensor.shape, kind, made)


def _blocks(work: Merge, mapped: Mapping[Model, Mapped], name: str, of_tokens: bool, dtype: torch.dtype) -> Iterator[Tensor]:
    from conversion.merging import arithmetic
    from conversion.merging.models import plain_rows

    method, shape = work.method, work.target.tables.tensors[name].shape
    weights = method.weights_of(name, work.models)

    def rows_of(model: Model) -> Rows:
        return mapped[model].rows(model.tensor(name, work.target), of_tokens=of_tokens)

    start = plain_rows(work.target.tables.tensors[name])
    if method.name in VALUES:
        values = [_filled(rows_of(model), start, mapped[model], of_tokens) for model in work.models]
        if method.name == "slerp":
            found = arithmetic.slerp(values[0], values[1], method.place, shape)
        else:
            found = arithmetic.linear(values, weights, shape)
    else:
        assert work.base is not None  # the command refuses it
        deltas = [_difference(rows_of(model), rows_of(work.base), mapped[model], mapped[work.base], of_tokens) for model in work.models]
        if method.name == "task-arithmetic":
            found = arithmetic.task_arithmetic(start, deltas, weights, shape)
        elif method.name == "ties":
            found = arithmetic.ties(start, deltas, weights, shape, density=method.density)
        else:
            elects = method.name == "dare-ties"
            found = arithmetic.dare(start, deltas, weights, shape, density=method.density, seed=method.seed, name=name, elects=elects)
    chat = None if work.chat_from is None or not of_tokens else (_special_rows(work, mapped), rows_of(work.chat_from))
    for (first, last), block in zip(arithmetic.blocks(shape), found, strict=True):
        if chat is not None:
            is_taken = chat[0][first:last]
            if is_taken.any():
                block[is_taken] = chat[1](first, last)[is_taken]
        block = block.to(dtype)
        if not block.isfinite().all():
            raise ValueError(
                f"{name} of the merge would hold values that are NaN or infinite in {str(dtype).removeprefix('torch.')}; look for such in the models"
                " with `python -m conversion.inspect --deep`, or give smaller weights or another --dtype"
            )
        yield block


def _filled(rows: Rows, start: Rows, mapped: Mapped, of_tokens: bool) -> Rows:
    """A model's rows, with the target's where it has none."""
    if not of_tokens or mapped.weights is None:
        return rows

    def filled(first: int, last: int) -> Tensor:
        found, known = rows(first, last), mapped.known_rows(first, last)
        assert known is not None
        found[~known] = start(first, last)[~known]
        return found

    return filled


def _difference(rows: Rows, base_rows: Rows, mapped: Mapped, base: Mapped, of_tokens: bool) -> Rows:
    """What a model has more than the base; 0 in rows that one of both does not have."""

    def difference(first: int, last: int) -> Tensor:
        found = rows(first, last) - base_rows(first, last)
        for side in (mapped, base) if of_tokens else ():
            if (known := side.known_rows(first, last)) is not None:
                found[~known] = 0
        return found

    return difference


def _special_rows(work: Merge, mapped: Mapping[Model, Mapped]) -> Tensor:
    """(rows,) bool: rows of special tokens that the model of the chat has too."""
    import numpy as np
    import torch

    from conversion.embeddings.vocabularies.vocabulary import Kind

    assert work.chat_from is not None
    vocabulary = work.target.vocabulary
    is_special = np.zeros(work.target.tables.rows, bool)
    if vocabulary is not None:
        is_special[: len(vocabulary)] = vocabulary.kinds == Kind.SPECIAL
    side = mapped[work.chat_from]
    return torch.from_numpy(is_special if side.weights is None else is_special & side.known)


def _facts(model: Model) -> dict[str, Any]:
    manifest = read_manifest(model.hf.directory)
    return dict(manifest.facts) if manifest is not None else {}


def _settings(work: Merge) -> dict[str, Any]:
    """What the manifest and the model card say of a merge."""
    settings: dict[str, Any] = {"method": work.method.name, "to": work.target.name}
    if work.base is not None:
        settings["base"] = work.base.name
    if work.method.name == "slerp":
        settings |= {"models": [model.name for model in work.models], "place": work.method.place}
    else:
        settings["weights"] = {model.name: weight for model, weight in zip(work.models, work.method.weights, strict=True)}
    if work.method.patterns:
        settings["patterns"] = {name: dict(patterns) for name, patterns in work.method.patterns.items()}
    if work.method.name in DELTAS[1:]:
        settings["density"] = work.method.density
    if work.method.name.startswith("dare"):
        settings["seed"] = work.method.seed
    if work.chat_from is not None:
        settings["chat_from"] = work.chat_from.name
    return settings


def _card(work: Merge, name: str) -> str:
    """README.md for a hub."""
    sources = [f"- {model.name}" for model in (work.target, *work.others)]
    front = ["---", "library_name: transformers", "tags:", "- merge", "---"]
    lines = [f"- {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in _settings(work).items()]
    parts = ["\n".join(front), f"# {name}", "A merge of", "\n".join(sources), "## How", "\n".join(lines)]
    return "\n\n".join([*parts, "Licence: not stated; those of the merged models bind it."]) + "\n"


def _set_dtype(path: Path, dtype: str) -> None:
    content = _with_dtype(json.loads(path.read_text(encoding="utf-8")), dtype)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """A config with another dtype, also of each of a multimodal model's parts."""
    parts = {key: _with_dtype(value, dtype) for key, value in config.items() if isinstance(value, dict)}
    return {**config, **parts, **{key: dtype for key in ("torch_dtype", "dtype") if key in config}}


def _parser() -> argparse.ArgumentParser:
    example = f"python -m {STAGE} --base llama-3.2-1b --add llama-3.2-1b-instruct:1.0 --to work/trained --output work/chat"
    parser = command.parser(__doc__, example=example)
    what = parser.add_mutually_exclusive_group(required=True)
    add_option(what, "--models [NAME=]DIR[:WEIGHT]", "Hugging Face checkpoints to merge, each with a weight (default: 1)", nargs="+")
    add_option(what, "--add [NAME=]DIR[:WEIGHT]", "chat vectors: checkpoints whose difference from --base is added to --to", nargs="+")
    add_option(parser, "--method", "merging method (default with --add: task-arithmetic)", choices=(*VALUES, *DELTAS))
    add_option(parser, "--base DIR", "model from which differences are computed", type=Path)
    add_option(parser, "--to DIR", "model to which differences are added (default: --base; required with --add)", type=Path)
    add_option(parser, "--weights FILE", "weights per tensor, YAML: name of a model -> pattern of tensor names -> weight", type=Path)
    add_options(parser, Method, has_defaults=False)
    add_option(parser, "--missing-rows", "rows of tokens that a model lacks", "keep", choices=("keep", "pieces"))
    add_option(parser, "--record DIR", "output of conversion.transfer that made the vocabulary of --to", type=Path)
    add_option(parser, "--chat-from NAME", "model from which to take special tokens and chat template")
    add_option(parser, "--dtype", "dtype of all tensors (default: as in the model that gives the vocabulary)", choices=DTYPES)
    add_option(parser, "--output DIR", "folder to write", type=Path, required=True)
    return parser


def _weighted(text: str, base: Path | None) -> tuple[str, Path, float]:
    """Name, folder and weight of `NAME=DIR:WEIGHT`; of `DIR-BASE:WEIGHT` too, as papers write chat vectors."""
    place, colon, number = text.rpartition(":")
    weight = 1.0
    try:
        weight = float(number) if colon else 1.0
    except ValueError:
        place, colon = text, ""
    place = place if colon else text
    name, equals, folder = place.partition("=")
    folder = folder if equals else name
    if base is not None and folder.endswith(f"-{base}") and not Path(folder).is_dir():
        folder = folder.removesuffix(f"-{base}")
    if not math.isfinite(weight):
        raise ValueError(f"the weight of {text} is {weight:g}; expected a number")
    return (name if equals else _name(Path(folder))), Path(folder), weight


def _name(folder: Path) -> str:
    """What a folder is called, also where it is given as `.`."""
    return os.path.basename(os.path.abspath(folder))


def _patterns(path: Path | None) -> dict[str, dict[str, float]]:
    content = {} if path is None else read_yaml(path)
    if not isinstance(content, dict) or not all(isinstance(patterns, dict) for patterns in content.values()):
        raise ValueError(f"{path} holds no weights; expected a model's name, and below it lines such as 'model.layers.0.*: 0.5'")
    for name, patterns in content.items():
        for pattern, weight in patterns.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ValueError(f"{path}: the weight of {pattern} of {name} is {weight!r}; expected a number")
    return {str(name): {str(pattern): float(weight) for pattern, weight in patterns.items()} for name, patterns in content.items()}


def _work(arguments: argparse.Namespace) -> Merge:
    """The merge that is asked for.

    Raises:
        ValueError: if options do not fit each other, or a folder is not a model.
    """
    from conversion.merging.models import Model

    method = arguments.method or ("task-arithmetic" if arguments.add else None)
    if method is None:
        raise ValueError("--models needs a merging method; give --method, such as linear")
    if arguments.add and method in VALUES:
        raise ValueError(f"--add takes differences, but --method {method} does not; give --models in place of --add")
    if method in DELTAS and arguments.base is None:
        raise ValueError(f"--method {method} adds differences to a base model; name it with --base")
    if method in VALUES and (arguments.base or arguments.to):
        raise ValueError(f"--method {method} takes no differences, so --base and --to have no effect; leave them out")
    if arguments.add and arguments.to is None:
        raise ValueError("--add takes a model to which the difference is added; name it with --to")
    for name, methods in _ONLY_OF.items():
        if getattr(arguments, name) is not None and method not in methods:
            raise ValueError(f"--{name} is of --method {' and '.join(methods)}, and has no effect with {method}; leave it out")
    listed = [_weighted(text, arguments.base) for text in arguments.models or arguments.add]
    folders = {name: folder for name, folder, _ in listed}
    if len(folders) < len(listed):
        raise ValueError(f"two of {', '.join(name for name, _, _ in listed)} have one name; give names of your own, NAME=DIR")
    if len({folder.resolve() for folder in folders.values()}) < len(folders):
        raise ValueError(f"two of {', '.join(folders)} are one folder; give it once")
    opened: dict[Path, Model] = {}

    def open_model(name: str, folder: Path) -> Model:
        if (place := folder.resolve()) not in opened:
            is_taken = name in {model.name for model in opened.values()}
            opened[place] = Model.open(str(folder) if is_taken else name, folder)
        return opened[place]

    models = tuple(open_model(name, folder) for name, folder in folders.items())
    base = open_model(_name(arguments.base), arguments.base) if arguments.base else None
    target = open_model(_name(arguments.to), arguments.to) if arguments.to else base or models[0]
    by_name = {model.name: model for model in opened.values()}
    if arguments.chat_from is not None and arguments.chat_from not in by_name:
        raise ValueError(f"--chat-from {arguments.chat_from}: there is no such model; there are {', '.join(by_name)}")
    return Merge(
        Method(
            method, tuple(weight for _, _, weight in listed), _patterns(arguments.weights), **{"density": 0.5, **given(arguments, Method)}
        ),
        target,
        base,
        models,
        missing=arguments.missing_rows,
        record=arguments.record,
        chat_from=by_name.get(arguments.chat_from) if arguments.chat_from else None,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and merge."""
    arguments = _parser().parse_args(argv)
    start = time.monotonic()
    show("merge: reading")
    recorded = {key: value for key, value in vars(arguments).items() if value is not None and key != "output"}
    manifest = merge(_work(arguments), arguments.output, dtype=arguments.dtype, arguments=recorded)
    print(summary(arguments.output, manifest, seconds=time.monotonic() - start))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
