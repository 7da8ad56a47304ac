"""Compare two checkpoints, of Hugging Face, NeMo, Megatron-LM or Megatron-Bridge: names, shapes, token ids and logits.

Logits are computed in float32 on the CPU, by transformers for a Hugging Face checkpoint and by Megatron, at every tensor
parallel size asked for and with a padded vocabulary, for the others: for whole sequences, and for sequences padded on the left
and on the right.  They may differ by 1e-4 at most; where they differ by more, the first layer that does is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conversion.dist_metadata import BACKEND_NAME
from conversion.inspection.places import BRIDGE_TRACKER, ITERATION_TRACKER
from conversion.observation import Batch, Observation, observe_engine, observe_hf, token_batch
from data_prep import command

if TYPE_CHECKING:
    from torch import Tensor

    from conversion.lazy_tensor import LazyTensor
    from conversion.nemo_checkpoint import NeMoCheckpoint

STAGE = "conversion.verify"

# Largest difference of float32 logits that rounding explains: sums of a few thousand products, reordered by another kernel.
TOLERANCE = 1e-4
_MEGATRON_FILES = (BACKEND_NAME, ITERATION_TRACKER, BRIDGE_TRACKER)
DEFAULT_LINES = (
    "The miller's daughter counted seventeen sacks of flour before sunrise.",
    "Mlinarjeva hči je pred zoro naštela sedemnajst vreč moke; žito je bilo še vlažno.",
    "  two  spaces,\ta tab, and a trailing blank ",
    "naïve façade — 価格は1,234円です 🙂 e\u0301",
    "x = [i**2 for i in range(10)]  # 0..81",
)


@dataclass(frozen=True)
class Result:
    """One comparison: what was compared, whether it was the same, and a line that says more."""

    subject: str
    same: bool
    detail: str


@dataclass(frozen=True)
class Side:
    """One of the two checkpoints.

    Attributes:
        directory: of the one checkpoint; of a run of Megatron-LM or Megatron-Bridge, that of the newest iteration.
        format: which program keeps its checkpoints so.
        heads: attention heads of a checkpoint for the engine, which tensor parallelism divides; None for a Hugging Face folder.
        tensors: with Hugging Face names, each matrix once, without padding.
        tokenizer_dir: where its tokenizer would be.
        max_positions: longest sequence.
        vocab_size: real rows.
    """

    directory: Path
    format: str
    heads: int | None
    tensors: Mapping[str, LazyTensor]
    tokenizer_dir: Path
    max_positions: int
    vocab_size: int

    @classmethod
    def open(cls, directory: Path) -> Side:
        """Look at a checkpoint folder of any kind.

        Raises:
            ValueError: if it is none, or not complete.
        """
        from conversion.hf_checkpoint import HFCheckpoint
        from conversion.layouts.source import open_source
        from conversion.nemo_checkpoint import WEIGHTS, NeMoCheckpoint

        if (directory / WEIGHTS).is_dir():
            return cls._of_engine(NeMoCheckpoint.open(directory), "NeMo")
        if any((directory / name).exists() for name in _MEGATRON_FILES):
            source = open_source(directory, None)
            return cls._of_engine(source.checkpoint(), source.place.format)
        hf = HFCheckpoint.open(directory)
        if missing := [key for key in ("max_position_embeddings", "vocab_size") if not isinstance(hf.config.get(key), int)]:
            raise ValueError(f"{directory} has no {' and no '.join(missing)} in its config.json")
        positions, rows = hf.config["max_position_embeddings"], hf.config["vocab_size"]
        return cls(directory, "Hugging Face", None, hf.untied_tensors(), directory, positions, rows)

    @classmethod
    def _of_engine(cls, checkpoint: NeMoCheckpoint, kind: str) -> Side:
        from conversion.families import family_of
        from conversion.mapping import map_to_hf

        source, config = str(checkpoint.directory), checkpoint.config
        mapped = map_to_hf(family_of(checkpoint.family, source=source).table, checkpoint.tensors, config, source=source)
        tensors = {tensor.name: tensor for tensor in mapped}
        heads, positions, rows = (config[key] for key in ("num_query_groups", "max_position_embeddings", "vocab_size"))
        return cls(checkpoint.directory, kind, heads, tensors, checkpoint.hf_dir, positions, rows)


def verify(
    a_dir: Path,
    b_dir: Path,
    *,
    lines: Sequence[str] = DEFAULT_LINES,
    tensor_parallel_sizes: Sequence[int] = (1,),
    sequence_length: int = 128,
    timeout_seconds: float = 600,
) -> Iterator[Result]:
    """Compare two checkpoints; the results come one by one, cheapest first.

    Raises:
        ValueError: if one of them is no checkpoint or cannot be read, or if a size does not divide its attention heads.
    """
    a, b = Side.open(a_dir), Side.open(b_dir)
    for side in (a, b):
        if unfit := [size for size in tensor_parallel_sizes if side.heads is not None and side.heads % size]:
            raise ValueError(f"--tensor-parallel-size {unfit[0]} does not divide the {side.heads} attention heads of {side.directory}")
    yield from compare_tensors(a.tensors, b.tensors)
    token_ids = compare_token_ids(a, b, lines)
    yield token_ids.result
    if a.tensors.keys() != b.tensors.keys() or a.vocab_size != b.vocab_size:
        yield Result("logits", False, "not compared: the models do not have the same tensors")
        return
    batch = token_batch(token_ids.ids, vocab_size=a.vocab_size, length=min(sequence_length, a.max_positions, b.max_positions))
    seen_of_a, seen_of_b = observe((a, b), batch, tensor_parallel_sizes, timeout_seconds=timeout_seconds)
    reference_label, reference = next(iter(seen_of_a.items()))
    for label, other in [*list(seen_of_a.items())[1:], *seen_of_b.items()]:
        yield compare_outputs(f"logits, {reference_label} against {label}", reference.whole, other.whole)
        yield compare_outputs(f"logits of padded sequences, {reference_label} against {label}", reference.padded, other.padded)


def compare_tensors(a: Mapping[str, LazyTensor], b: Mapping[str, LazyTensor]) -> Iterator[Result]:
    """Names, shapes, and how many tensors are equal bit for bit (which is told, not demanded)."""
    import torch

    difference = sorted(a.keys() ^ b.keys())
    yield Result("names", not difference, f"only on one side: {', '.join(difference)}" if difference else f"{len(a)} tensors")
    shared = [name for name in a if name in b]
    unequal = [f"{name} {a[name].shape} and {b[name].shape}" for name in shared if a[name].shape != b[name].shape]
    yield Result("shapes", not unequal, "; ".join(unequal) or "all equal")
    changed = [name for name in shared if a[name].dtype != b[name].dtype or not torch.equal(a[name].read(), b[name].read())]
    detail = f"{len(shared) - len(changed)} of {len(shared)} tensors equal bit for bit"
    yield Result("values", True, f"{detail}; the first that is not: {changed[0]}" if changed else detail)


@dataclass(frozen=True)
class TokenIds:
    """The comparison of two tokenizers, and the ids of the first where there is one."""

    result: Result
    ids: list[list[int]]


def compare_token_ids(a: Side, b: Side, lines: Sequence[str]) -> TokenIds:
    """Ids of the same lines in both tokenizers."""
    from data_prep.tokenizers.files import load_tokenizer, tokenizer_files

    present = [bool(tokenizer_files(side.tokenizer_dir)) for side in (a, b)]
    if not any(present):
        return TokenIds(Result("token ids", True, "not compared: neither side has a tokenizer"), [])
    if not all(present):
        missing = (a, b)[present.index(False)].directory
        return TokenIds(Result("token ids", False, f"{missing} has no tokenizer"), [])
    ids_a, ids_b = ([load_tokenizer(side.tokenizer_dir)(line).input_ids for line in lines] for side in (a, b))
    for line, of_a, of_b in zip(lines, ids_a, ids_b, strict=True):
        if of_a != of_b:
            return TokenIds(Result("token ids", False, f"{line!r} is {of_a} and {of_b}"), ids_a)
    return TokenIds(Result("token ids", True, f"{len(lines)} lines, {sum(map(len, ids_a))} tokens"), ids_a)


def observe(sides: Sequence[Side], batch: Batch, sizes: Sequence[int], *, timeout_seconds: float) -> list[dict[str, Observation]]:
    """Both sides' models run on a batch: label of a run -> what its layers gave; all but those of Hugging Face in one start of the engine."""
    in_engine = [side.directory for side in sides if side.heads is not None]
    from_engine = iter(observe_engine(in_engine, batch, tensor_parallel_sizes=sizes, timeout_seconds=timeout_seconds) if in_engine else [])
    return [
        {"Hugging Face": observe_hf(side.directory, batch)}
        if side.heads is None
        else {f"{side.format} at tensor parallel {size}": seen for size, seen in next(from_engine).items()}
        for side in sides
    ]


def compare_outputs(subject: str, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Result:
    """Whether the logits agree, and if not, where the difference begins."""
    differences = {name: (a[name] - b[name]).abs().max().item() for name in a}
    largest = differences["logits"]
    if largest <= TOLERANCE:
        return Result(subject, True, f"largest difference {largest:.1e}")
    # Activations can be in the hundreds, so here the tolerance goes with their size.
    first = next((name for name in a if not differences[name] <= TOLERANCE * max(1.0, a[name].abs().max().item())), "logits")
    return Result(
        subject, False, f"largest difference {largest:.1e} (allowed {TOLERANCE:.0e}); it begins at {first} with {differences[first]:.1e}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments, print the results, and exit with 1 if anything differs."""
    example = f"python -m {STAGE} models/opt-125m work/nemo/opt-125m --tensor-parallel-size 1 2"
    parser = command.parser(__doc__, prog=STAGE, example=example)
    parser.add_argument("a", type=Path, help="checkpoint folder of Hugging Face, NeMo, Megatron-LM or Megatron-Bridge")
    parser.add_argument("b", type=Path, help="the other one")
    parser.add_argument("--tensor-parallel-size", type=int, nargs="+", default=[1], help="sizes to run the engine at (default: 1)")
    parser.add_argument("--lines", type=Path, help="text file whose first 1,000 lines are tokenized by both (default: five lines)")
    parser.add_argument("--sequence-length", type=int, default=128, help="tokens per sequence for the logits (default: 128)")
    parser.add_argument("--timeout-seconds", type=float, default=600, help="limit for the engine (default: 600)")
    arguments = parser.parse_args(argv)
    if any(size < 1 for size in arguments.tensor_parallel_size) or arguments.sequence_length < 1:
        raise ValueError("--tensor-parallel-size and --sequence-length must be at least 1")
    lines = DEFAULT_LINES if arguments.lines is None else _read_lines(arguments.lines)
    results = verify(
        arguments.a,
        arguments.b,
        lines=lines,
        tensor_parallel_sizes=arguments.tensor_parallel_size,
        sequence_length=arguments.sequence_length,
        timeout_seconds=arguments.timeout_seconds,
    )
    code = command.DONE
    for result in results:
        print(f"{'same' if result.same else 'DIFFERENT':9}  {result.subject}: {result.detail}", flush=True)
        if not result.same:
            code = command.WRONG
    return code


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[:1000]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--lines {path} cannot be read: {error}") from error
    if not lines:
        raise ValueError(f"--lines {path} is empty; expected one sentence per line")
    return lines


if __name__ == "__main__":
    command.run(main)
