"""Compare two checkpoints, of Hugging Face, NeMo, Megatron-LM or Megatron-Bridge: names, shapes, token ids and logits.

Logits are computed in float32 on the CPU, by transformers for a Hugging Face checkpoint and by Megatron for the others, at every
tensor parallel size of --tensor-parallel-size and with a padded vocabulary: for full sequences, and for sequences padded on the left
and on the right.  The tolerance is four times the rounding error of the first model, which is measured: float32 against float64,
and one attention implementation against another.  If logits differ by more, the first layer that differs is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import command
from common.options import add_option
from common.progress import show
from conversion.formats.dist_metadata import BACKEND_NAME
from conversion.inspection.places import BRIDGE_TRACKER, ITERATION_TRACKER
from conversion.measuring.observation import Batch, Distance, Observation, Seen, observe_engine, observe_hf, token_batch

if TYPE_CHECKING:
    from torch import Tensor

    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.checkpoints.nemo_checkpoint import NeMoCheckpoint
    from conversion.formats.lazy_tensor import LazyTensor

STAGE = "conversion.verify"

# Two results in float32 are at most twice as far apart as each is from the truth, and ranks that share a sum round more than one alone.
ROUNDINGS = 4
# Of the values' own size, whatever was measured: a few units in the last place, and what no rounding of a sound model comes near.
SMALLEST_TOLERANCE, LARGEST_TOLERANCE = 4 * 2.0**-23, 1e-3
NOT_OF_THE_FUNCTION = ("init_method_std", "max_position_embeddings", "vocab_size")  # each has a check of its own or none is needed
_OF_THE_VOCABULARY = (
    "vocab_size", "vocab_size_per_layer_input", "embedding_size", "pad_vocab_size_multiple", "tie_word_embeddings", "transformers_version",
)  # fmt: skip
_UNLIMITED = 1 << 30  # positions, where a model does not count them
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
        config: Megatron's configuration; None for a Hugging Face folder of a family that the engine lacks.
        in_engine: whether the engine runs it; else transformers does.
        tensors: with Hugging Face names, each matrix once, without padding.
        tokenizer_dir: where its tokenizer would be.
        max_positions: longest sequence.
        vocab_size: real rows.
    """

    directory: Path
    format: str
    config: Mapping[str, Any] | None
    in_engine: bool
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
        from conversion.checkpoints.hf_checkpoint import HFCheckpoint
        from conversion.checkpoints.nemo_checkpoint import WEIGHTS, NeMoCheckpoint
        from conversion.families import language_config, reads_quantized
        from conversion.layouts.source import open_source

        if (directory / WEIGHTS).is_dir():
            return cls._of_engine(NeMoCheckpoint.open(directory), "NeMo")
        if any((directory / name).exists() for name in _MEGATRON_FILES):
            source = open_source(directory, None)
            return cls._of_engine(source.checkpoint(), source.place.format)
        hf = HFCheckpoint.open(directory)
        hf = hf.whole(quantized=reads_quantized(hf.config))
        config = language_config(hf.config)
        if not isinstance(rows := config.get("vocab_size"), int):
            raise ValueError(f"{directory} has no vocab_size in its config.json")
        megatron = _megatron_config(hf)
        # Some of the rows of a table of positions may be of padding.
        limits = ((megatron or config).get(key) for key in ("max_position_embeddings", "n_positions"))
        positions = next((number for number in limits if isinstance(number, int)), _UNLIMITED)
        return cls(directory, "Hugging Face", megatron, False, hf.untied_tensors(), directory, positions, rows)

    @classmethod
    def _of_engine(cls, checkpoint: NeMoCheckpoint, kind: str) -> Side:
        from conversion.families import family_of
        from conversion.families.mapping import map_to_hf

        source, config = str(checkpoint.directory), checkpoint.config
        table = family_of(checkpoint.family, source=source).table_of(checkpoint.tensors)
        mapped = map_to_hf(table, checkpoint.tensors, config, source=source)
        tensors = {tensor.name: tensor for tensor in mapped}
        positions, rows = (config[key] for key in ("max_position_embeddings", "vocab_size"))
        return cls(checkpoint.directory, kind, config, True, tensors, checkpoint.hf_dir, positions, rows)

    def require_sizes(self, tensor_parallel_sizes: Sequence[int]) -> None:
        """Refuse a size that the engine cannot cut the attention by: each rank has whole groups of heads.

        Raises:
            ValueError: naming the heads.
        """
        if not self.in_engine or self.config is None:
            return
        groups, heads = self.config["num_query_groups"], self.config["num_attention_heads"]
        what = f"{heads} attention heads" if heads == groups else f"{groups} key-value heads (of {heads} attention heads)"
        if unfit := [size for size in tensor_parallel_sizes if groups % size]:
            raise ValueError(f"--tensor-parallel-size {unfit[0]} does not divide the {what} of {self.directory}")


def _megatron_config(hf: HFCheckpoint) -> dict[str, Any] | None:
    from conversion.families import FAMILIES

    try:
        return FAMILIES[hf.model_type].megatron_config(hf.config, tied=hf.tie_word_embeddings, source=str(hf.directory))
    except (KeyError, ValueError):  # transformers runs more than the engine does
        return None


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
        ValueError: if one of them is not a checkpoint or cannot be read, or if a size does not divide its attention heads.
    """
    from conversion.checkpoints.hf_checkpoint import same_bits

    a, b = Side.open(a_dir), Side.open(b_dir)
    for side in (a, b):
        side.require_sizes(tensor_parallel_sizes)
    yield from compare_tensors(a.tensors, b.tensors)
    yield compare_configurations(a, b)
    token_ids = compare_token_ids(a, b, lines)
    yield token_ids.result
    if a.tensors.keys() != b.tensors.keys() or a.vocab_size != b.vocab_size:
        yield Result("logits", False, "not compared: the models do not have the same tensors")
        return
    if unknown := [side.directory for side in (a, b) if not side.in_engine and not _in_transformers(side.directory)]:
        same = all(same_bits(tensor, b.tensors[name]) for name, tensor in a.tensors.items())
        yield Result("logits", same, f"not computed: the installed transformers has no such model as {unknown[0]}; the tensors decide")
        return
    batch = token_batch(token_ids.ids, vocab_size=a.vocab_size, length=min(sequence_length, a.max_positions, b.max_positions))
    seen_of_a, seen_of_b = observe((a, b), batch, tensor_parallel_sizes, timeout_seconds=timeout_seconds)
    reference_label, reference = next(iter(seen_of_a.items()))
    rounding = next(seen.rounding for seen in (*seen_of_a.values(), *seen_of_b.values()) if seen.rounding)
    for label, other in [*list(seen_of_a.items())[1:], *seen_of_b.items()]:
        for subject, kind in (("logits", "whole"), ("logits of padded sequences", "padded")):
            expected, found = getattr(reference, kind), getattr(other, kind)
            yield compare_outputs(f"{subject}, {reference_label} against {label}", expected, found, rounding)


def _in_transformers(directory: Path) -> bool:
    from conversion.checkpoints.hf_files import load_config

    try:
        load_config(directory)
    except Exception:  # of any kind, from the library
        return False
    return True


def verify_other_vocabulary(a_dir: Path, b_dir: Path) -> Iterator[Result]:
    """Whether the second is the first with another vocabulary: token matrices may differ, and what of the configuration follows from them.

    Raises:
        ValueError: if one of them is not a Hugging Face folder, or its token matrices are not found.
    """
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint, same_bits
    from conversion.embeddings.layers import find_token_layers

    sides = [HFCheckpoint.open(directory) for directory in (a_dir, b_dir)]
    layers = [find_token_layers(side) for side in sides]
    others = [{name: tensor for name, tensor in side.tensors.items() if name not in side.token_tensors()} for side in sides]
    unlike = [name for name in (layers[0].input, *layers[0].beside) if not _fit(name, *sides)]
    shown = f"{', '.join(layers[1].by_token)}: {layers[0].num_rows} and {layers[1].num_rows} rows"
    yield Result("token matrices", not unlike, f"{', '.join(unlike)} differ in more than rows" if unlike else shown)
    changed = [name for name in others[0] if name in others[1] and not same_bits(others[0][name], others[1][name])]
    changed += sorted(others[0].keys() ^ others[1].keys())
    yield Result("all else", not changed, ", ".join(changed) or f"{len(others[0])} tensors equal bit for bit")
    keys = list(_unlike_keys(sides[0].config, sides[1].config))
    yield Result("configuration", not keys, ", ".join(keys) or "equal but for sizes and ids of the vocabulary")


def _fit(name: str, a: HFCheckpoint, b: HFCheckpoint) -> bool:
    """Whether a token matrix is of the same width and dtype on both sides."""
    return name in b.tensors and (a.shape(name)[1:], a.dtype(name)) == (b.shape(name)[1:], b.dtype(name))


def _unlike_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Keys of config.json that differ and have nothing to do with the vocabulary."""
    for key in sorted({*a, *b}):
        first, second = a.get(key), b.get(key)
        if isinstance(first, dict) and isinstance(second, dict):
            yield from (f"{key}.{inner}" for inner in _unlike_keys(first, second))
        elif first != second and key not in _OF_THE_VOCABULARY and not key.endswith(("_token_id", "_token_index")):
            yield key


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


def compare_configurations(a: Side, b: Side) -> Result:
    """What both say of the model besides its tensors, in Megatron's words; a wrong base of the rotations is too small for the logits."""
    if a.config is None or b.config is None:
        return Result("configuration", True, "not compared: the engine does not have the model")
    keys = [key for key in {**a.config, **b.config} if key not in NOT_OF_THE_FUNCTION]
    unequal = [f"{key} {a.config.get(key)} and {b.config.get(key)}" for key in keys if a.config.get(key) != b.config.get(key)]
    return Result("configuration", not unequal, "; ".join(unequal) or f"{len(keys)} values equal")


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
    in_engine = [side.directory for side in sides if side.in_engine]
    from_engine: Iterator[dict[int, Observation]] = iter(())
    if in_engine:  # a Hugging Face side measures the rounding where there is one
        rounding = len(in_engine) == len(sides)
        from_engine = iter(
            observe_engine(in_engine, batch, tensor_parallel_sizes=sizes, timeout_seconds=timeout_seconds, rounding=rounding)
        )
    return [
        {f"{side.format} at tensor parallel {size}": seen for size, seen in next(from_engine).items()}
        if side.in_engine
        else {"Hugging Face": observe_hf(side.directory, batch)}
        for side in sides
    ]


def compare_outputs(subject: str, a: Seen, b: Seen, rounding: Mapping[str, Distance]) -> Result:
    """Whether the logits agree but for rounding, and if not, where the difference begins.

    Args:
        a, b: name -> (batch, length, features), in the order of the layers.
        rounding: how far rounding alone moves each output of `a`, or of a model of the same sizes.
    """
    apart = {name: Distance.between(tensor, b[name]) for name, tensor in a.items()}
    allowed = {name: tolerance(tensor, rounding[name]) for name, tensor in a.items()}
    found, limit = apart["logits"], allowed["logits"]
    detail = f"largest difference {found.largest:.1e} (allowed {limit.largest:.1e})"
    if _is_within(found, limit):
        return Result(subject, True, detail)
    detail += f", root mean square {found.root_mean_square:.1e} (allowed {limit.root_mean_square:.1e})"
    first = next((name for name in a if not _is_within(apart[name], allowed[name])), "logits")
    return Result(subject, False, f"{detail}; it begins at {first} with {apart[first].largest:.1e}")


def tolerance(values: Tensor, rounding: Distance) -> Distance:
    """How far other values may be from these, of any shape, where rounding is all that differs."""
    largest, root_mean_square = values.abs().max().item(), values.double().square().mean().sqrt().item()
    return Distance(_bounded(rounding.largest, largest), _bounded(rounding.root_mean_square, root_mean_square))


def _bounded(rounding: float, size: float) -> float:
    return min(max(ROUNDINGS * rounding, SMALLEST_TOLERANCE * size), LARGEST_TOLERANCE * size)


def _is_within(found: Distance, allowed: Distance) -> bool:
    """False for NaN too."""
    return found.largest <= allowed.largest and found.root_mean_square <= allowed.root_mean_square


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments, print the results, and exit with 1 if anything differs."""
    example = f"python -m {STAGE} models/opt-125m work/nemo/opt-125m --tensor-parallel-size 1 2"
    parser = command.parser(__doc__, example=example)
    parser.add_argument("a", type=Path, help="first checkpoint folder (Hugging Face, NeMo, Megatron-LM or Megatron-Bridge)")
    parser.add_argument("b", type=Path, help="second checkpoint folder")
    add_option(parser, "--tensor-parallel-size", "tensor parallel sizes to run Megatron at (default: 1)", [1], type=int, nargs="+")
    add_option(parser, "--lines", "text file whose first 1,000 lines both tokenize (default: five built-in lines)", type=Path)
    add_option(parser, "--sequence-length", "tokens per sequence for the logits", 128)
    add_option(parser, "--timeout-seconds", "time limit of a Megatron run in seconds", 600, type=float)
    other = "the second is the first with another vocabulary: compare all other tensors bit for bit, and no logits"
    add_option(parser, "--other-vocabulary", other, False)
    arguments = parser.parse_args(argv)
    if any(size < 1 for size in arguments.tensor_parallel_size) or arguments.sequence_length < 1:
        raise ValueError("--tensor-parallel-size and --sequence-length must be at least 1")
    lines = DEFAULT_LINES if arguments.lines is None else _read_lines(arguments.lines)
    show(f"{arguments.a} and {arguments.b}: reading")
    if arguments.other_vocabulary:
        results = verify_other_vocabulary(arguments.a, arguments.b)
    else:
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
