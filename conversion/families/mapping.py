"""Rules that map tensors between two formats, and the code that runs a table of them in either direction.

A model family is such a table.  One table serves both directions, so they cannot disagree; a name that no rule covers,
and a rule whose tensors are not there, is an error that lists them.

Patterns: `*` stands for each layer number, `#` for each expert's, `{a,b}` for a, then b.  Names on the Megatron side that begin with `kept.` are
tensors that the engine has no use for and that are kept aside to restore the Hugging Face checkpoint exactly.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from conversion.families.qkv import interleave_qkv, joined_groups, separate_qkv
from conversion.formats.lazy_tensor import Bits, LazyTensor, bits_of

KEPT = "kept."
EXPERT = "#"
_MOST_EXPERTS = 10_000  # models have hundreds
_MOST_NAMED = 24  # tensors in one error

Shape = tuple[int, ...]
Sizes = Mapping[str, int]
Config = Mapping[str, Any]
Tensors = Sequence[LazyTensor]


FLOATS = ("float16", "bfloat16", "float32", "float64")
_BASE_SIZES = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "vocab_size")
# Sizes that `sizes_of` makes, and what of the configuration they need besides the base.
_MADE_SIZES = {
    "single": "",
    "head_dim": "",
    "attention_size": "",
    "key_size": "",
    "qkv_size": "",
    "gate_up_size": "ffn_hidden_size",
    "expert_gate_up_size": "moe_ffn_hidden_size",
}


def sizes_of(config: Config) -> dict[str, int]:
    """Sizes by name, from Megatron's configuration: its own whole numbers and those of the fused projections."""
    heads, groups = config["num_attention_heads"], config["num_query_groups"]
    head_dim = config.get("kv_channels") or config["hidden_size"] // heads
    sizes = {key: value for key, value in config.items() if isinstance(value, int) and not isinstance(value, bool)}
    return {
        **sizes,
        "single": 1,
        "head_dim": head_dim,
        "attention_size": heads * head_dim,
        "key_size": groups * head_dim,
        "qkv_size": (heads + 2 * groups) * head_dim,
        "gate_up_size": 2 * sizes.get("ffn_hidden_size", 0),
        "expert_gate_up_size": 2 * sizes.get("moe_ffn_hidden_size", 0),
    }


@dataclass(frozen=True)
class Rule(ABC):
    """One row of a table.

    Attributes:
        hf: pattern of the tensors on the Hugging Face side.
        megatron: pattern of the tensors on the Megatron side.
        shape: of the Megatron tensor, in names of `sizes_of`; both sides are held to it.
        when: the switch of Megatron's configuration, perhaps after `not`, without which there are no such tensors; one that is not after `not`
            may be absent, and is off then.
    """

    hf: str
    megatron: str
    shape: tuple[str, ...]
    when: str = ""

    @abstractmethod
    def hf_shapes(self, sizes: Sizes) -> list[Shape]:
        """Shapes of the tensors on the Hugging Face side."""

    def megatron_shapes(self, sizes: Sizes) -> list[Shape]:
        """Shapes of the tensors on the Megatron side."""
        return [tuple(sizes[name] for name in self.shape)] * len(expand(self.megatron))

    @abstractmethod
    def to_megatron(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """The tensors called `names` on the Megatron side, made from those of the Hugging Face side."""

    @abstractmethod
    def to_hf(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """The tensors called `names` on the Hugging Face side, made from those of the Megatron side."""


@dataclass(frozen=True)
class Rename(Rule):
    """The same tensor under another name."""

    def hf_shapes(self, sizes: Sizes) -> list[Shape]:
        """See `Rule`."""
        return self.megatron_shapes(sizes)

    def to_megatron(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        return [tensor.renamed(name) for tensor, name in zip(tensors, names, strict=True)]

    to_hf = to_megatron


@dataclass(frozen=True)
class FuseQKV(Rule):
    """Query, key and value projection, in this order in the pattern, as Megatron's fused one."""

    def hf_shapes(self, sizes: Sizes) -> list[Shape]:
        """See `Rule`."""
        ((_, *columns),) = self.megatron_shapes(sizes)
        heads, groups, head_dim = sizes["num_attention_heads"], sizes["num_query_groups"], sizes["head_dim"]
        return [(count * head_dim, *columns) for count in (heads, groups, groups)]

    def to_megatron(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        q, k, v = tensors
        _require_one_dtype(tensors)
        (shape,) = self.megatron_shapes(sizes)
        groups = sizes["num_query_groups"]

        def read() -> Bits:
            return interleave_qkv(q.bits(), k.bits(), v.bits(), num_query_groups=groups)

        in_order = [part for group in zip(*(_cut(tensor, groups) for tensor in tensors), strict=True) for part in group]
        return [replace(LazyTensor.concatenated(names[0], in_order), shape=shape, bits=read)]

    def to_hf(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        (fused,) = tensors
        heads, groups = sizes["num_attention_heads"], sizes["num_query_groups"]

        def read(part: int) -> Bits:
            return joined_groups(separate_qkv(fused.bits(), num_attention_heads=heads, num_query_groups=groups)[part])

        shapes = FuseQKV.hf_shapes(self, sizes)
        num_rows = [shape[0] // groups for shape in shapes]  # of each in a query group
        starts = (0, num_rows[0], num_rows[0] + num_rows[1])
        together = _cut(fused, groups)
        return [
            replace(
                LazyTensor.concatenated(names[part], [group.row_range("", start, start + num_rows[part]) for group in together]),
                shape=shapes[part],
                bits=partial(read, part),
            )
            for part, start in enumerate(starts)
        ]


@dataclass(frozen=True)
class GroupQKV(FuseQKV):
    """Query, key and value projection as one matrix on either side: one above the other here, by query group there."""

    def hf_shapes(self, sizes: Sizes) -> list[Shape]:
        """See `Rule`."""
        return self.megatron_shapes(sizes)

    def to_megatron(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        (stacked,) = tensors
        bounds = [0, *itertools.accumulate(rows for rows, *_ in super().hf_shapes(sizes))]
        parts = [stacked.row_range(stacked.name, start, stop) for start, stop in itertools.pairwise(bounds)]
        return super().to_megatron(parts, names, sizes)

    def to_hf(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        return [LazyTensor.concatenated(names[0], super().to_hf(tensors, [*names] * 3, sizes))]


def _cut(tensor: LazyTensor, num_parts: int) -> list[LazyTensor]:
    """The rows of a tensor in equal parts."""
    rows = tensor.shape[0] // num_parts
    return [tensor.row_range("", part * rows, (part + 1) * rows) for part in range(num_parts)]


@dataclass(frozen=True)
class FuseGateUp(Rule):
    """Gate and up projection of a gated feed-forward part, in this order in the pattern, as one matrix: gate above up.

    Gated units: Shazeer 2020.  Megatron cuts the two apart before it shards them, so the whole is the same at every layout.
    """

    def hf_shapes(self, sizes: Sizes) -> list[Shape]:
        """See `Rule`."""
        ((rows, *columns),) = self.megatron_shapes(sizes)
        return [(rows // 2, *columns)] * 2

    def to_megatron(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        _require_one_dtype(tensors)
        return [LazyTensor.concatenated(names[0], tensors)]

    def to_hf(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        (fused,) = tensors
        middle = fused.shape[0] // 2
        return [fused.row_range(names[0], 0, middle), fused.row_range(names[1], middle, fused.shape[0])]


@dataclass(frozen=True)
class StackExperts(Rule):
    """The matrices of all experts of a layer as one tensor, which counts experts first; of each, those of the pattern one above the other.

    So Megatron saves them, whichever of its modules computes them and however many ranks share them.
    """

    def _num_parts(self) -> int:
        return len(expand(self.hf.replace(EXPERT, "")))

    def hf_shapes(self, sizes: Sizes) -> list[Shape]:
        """See `Rule`."""
        ((experts, rows, *columns),) = self.megatron_shapes(sizes)
        parts = self._num_parts()
        return [(rows // parts, *columns)] * (experts * parts)

    def to_megatron(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        _require_one_dtype(tensors)
        (shape,) = self.megatron_shapes(sizes)
        return [LazyTensor(names[0], shape, tensors[0].dtype_name, lambda: np.concatenate([t.bits() for t in tensors]).reshape(shape))]

    def to_hf(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        (stacked,) = tensors
        parts, shapes = self._num_parts(), self.hf_shapes(sizes)

        def read(number: int) -> Bits:
            expert, part = divmod(number, parts)
            rows = shapes[number][0]
            return stacked.row_range("", expert, expert + 1).bits()[0, part * rows : (part + 1) * rows]

        return [LazyTensor(name, shapes[number], stacked.dtype_name, partial(read, number)) for number, name in enumerate(names)]


@dataclass(frozen=True)
class TurnExperts(Rule):
    """Matrices, or biases, of all experts of a layer, one tensor on either side: Hugging Face's has the inputs before the outputs.

    Attributes:
        alternates: of the outputs on Hugging Face's side every second one is of the gate, the first among them, the others of the up projection;
            on Megatron's side all gates come first.
    """

    alternates: bool = False

    def hf_shapes(self, sizes: Sizes) -> list[Shape]:
        """See `Rule`."""
        ((experts, *inner),) = self.megatron_shapes(sizes)
        return [(experts, *reversed(inner))]

    def to_megatron(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        (tensor,) = tensors
        (shape,) = self.megatron_shapes(sizes)

        def read() -> Bits:
            experts = _turned(tensor.bits())
            if self.alternates:
                experts = experts.reshape(shape[0], -1, 2, *shape[2:]).swapaxes(1, 2)
            return np.ascontiguousarray(experts).reshape(shape)

        return [LazyTensor(names[0], shape, tensor.dtype_name, read)]

    def to_hf(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        (tensor,) = tensors
        (shape,) = self.hf_shapes(sizes)

        def read() -> Bits:
            experts = tensor.bits()
            if self.alternates:
                halves = experts.reshape(shape[0], 2, -1, *experts.shape[2:])
                experts = halves.swapaxes(1, 2).reshape(experts.shape)
            return np.ascontiguousarray(_turned(experts))

        return [LazyTensor(names[0], shape, tensor.dtype_name, read)]


def _turned(experts: Bits) -> Bits:
    """(experts, rows, columns) -> (experts, columns, rows); biases, (experts, rows), as they are."""
    return experts.swapaxes(1, 2) if experts.ndim == 3 else experts


@dataclass(frozen=True)
class SplitRows(Rule):
    """One table whose first rows are kept aside: the Megatron side names those, then the rest, whose shape is `shape`."""

    num_kept_rows: int = 0

    def hf_shapes(self, sizes: Sizes) -> list[Shape]:
        """See `Rule`."""
        (rows, *columns), rest = self.megatron_shapes(sizes)
        return [(rows + rest[0], *columns)]

    def megatron_shapes(self, sizes: Sizes) -> list[Shape]:
        """See `Rule`."""
        rest, _ = super().megatron_shapes(sizes)
        return [(self.num_kept_rows, *rest[1:]), rest]

    def to_megatron(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        (table,) = tensors
        kept = self.num_kept_rows
        return [table.row_range(names[0], 0, kept), table.row_range(names[1], kept, table.shape[0])]

    def to_hf(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`; the kept rows take the dtype of the rest, which training may have changed."""
        kept, rest = tensors
        return [LazyTensor.concatenated(names[0], [_as_dtype_of(rest, kept), rest])]


@dataclass(frozen=True)
class Drop(Rename):
    """Tensors of the Hugging Face side that are left out where they occur, for a reason; there are none on the way back."""

    megatron: str = ""
    shape: tuple[str, ...] = ()
    because: str = ""


@dataclass(frozen=True)
class Duplicate(Drop):
    """Tensors that some files hold a second time under another name; left out where they occur, and refused where they differ."""

    of: str = ""


@dataclass(frozen=True)
class KeepAside(Rename):
    """Tensors of the Hugging Face side alone that not all models have: kept where they occur, and given back."""


@dataclass(frozen=True)
class KeepConstant(KeepAside):
    """A number of the Hugging Face side that the engine computes with as it is: kept where it occurs, and refused where it is another."""

    shape: tuple[str, ...] = ()
    value: float = 0.0


@dataclass(frozen=True)
class Beside(Rename):
    """All tensors whose names begin so, however many there are: another part of the model, kept aside as it is."""

    megatron: str = ""
    shape: tuple[str, ...] = ()


@dataclass(frozen=True)
class Keep(Rename):
    """One tensor that is kept aside as it is, whatever its shape and type."""

    shape: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mark(Rename):
    """A single zero that is kept aside and says by which of two tables a checkpoint was read, where these differ in Hugging Face names alone."""

    hf: str = ""
    megatron: str = ""
    shape: tuple[str, ...] = ()

    def to_megatron(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        return [LazyTensor(name, (1,), "float32", lambda: np.zeros(1, dtype=np.int32)) for name in names]

    def to_hf(self, tensors: Tensors, names: Sequence[str], sizes: Sizes) -> Tensors:
        """See `Rule`."""
        return []


_ANY_SHAPE = (Drop, Keep, Mark)


def below(table: Sequence[Rule], prefixes: Mapping[str, str]) -> tuple[Rule, ...]:
    """The same rules for files in which Hugging Face names begin otherwise.

    Args:
        prefixes: beginning -> what stands in its place.
    """
    return tuple(
        replace(rule, hf=new + rule.hf.removeprefix(old))
        for rule in table
        for old, new in [next(((old, new) for old, new in prefixes.items() if rule.hf.startswith(old)), ("", ""))]
    )


def with_names(table: Sequence[Rule], names: Iterable[str]) -> tuple[Rule, ...]:
    """A table with a rule for each tensor that is beside the language model.

    Args:
        names: of all tensors, on either side.
    """
    hf_names = sorted({name.removeprefix(KEPT) for name in names})
    return tuple(
        row
        for rule in table
        for row in ([Keep(name, KEPT + name) for name in hf_names if name.startswith(rule.hf)] if isinstance(rule, Beside) else [rule])
    )


def names_in(table: Sequence[Rule]) -> set[str]:
    """What stands in a table as it is, without layers, on either side."""
    return {name for rule in table for pattern in (rule.hf, rule.megatron) for name in expand(pattern) if "*" not in name}


def map_to_megatron(table: Sequence[Rule], tensors: Mapping[str, LazyTensor], config: Config, *, source: str) -> list[LazyTensor]:
    """The Megatron side of a Hugging Face checkpoint; nothing is read yet.

    Args:
        tensors: all of the checkpoint; one that is stored under two names, under the first only.
        config: Megatron's configuration.
        source: what errors call the checkpoint.

    Raises:
        ValueError: listing the tensors that are missing, unknown, no floats, or of another shape than the configuration's.
    """
    _require_config(table, config, len(tensors), source)
    applications = [found for found in _applications(table, config) if _occurs(found, found.hf, tensors)]
    _require_names(applications, tensors, "hf", source)
    _require_shapes(applications, tensors, "hf", config, source)
    _require_equal(applications, tensors, source)
    _require_constants(applications, tensors, source)
    sizes = sizes_of(config)
    return [
        tensor
        for rule, hf, megatron in applications
        if not isinstance(rule, Drop)
        for tensor in rule.to_megatron([tensors[name] for name in hf], megatron, sizes)
    ]


def map_to_hf(table: Sequence[Rule], tensors: Mapping[str, LazyTensor], config: Config, *, source: str) -> list[LazyTensor]:
    """The Hugging Face side of a Megatron checkpoint; nothing is read yet.

    Rows that pad a vocabulary for tensor parallelism are cut off.

    Args:
        tensors: all weights of the checkpoint and what was kept aside.
        config: Megatron's configuration; its `vocab_size` counts the real rows.
        source: what errors call the checkpoint.

    Raises:
        ValueError: listing the tensors that are missing, unknown, no floats, or of another shape than the configuration's.
    """
    _require_config(table, config, len(tensors), source)
    applications = [found for found in _applications(table, config) if _occurs(found, found.megatron, tensors)]
    _require_names(applications, tensors, "megatron", source)
    sizes = sizes_of(config)
    padded = {name for rule, _, names in applications if rule.shape[:1] == ("vocab_size",) for name in names}
    tensors = {name: first_rows(tensor, sizes["vocab_size"]) if name in padded else tensor for name, tensor in tensors.items()}
    _require_shapes(applications, tensors, "megatron", config, source)
    return [
        tensor
        for rule, hf, megatron in applications
        if not isinstance(rule, Drop)
        for tensor in rule.to_hf([tensors[name] for name in megatron], hf, sizes)
    ]


def _as_dtype_of(example: LazyTensor, tensor: LazyTensor) -> LazyTensor:
    if tensor.dtype_name == example.dtype_name:
        return tensor
    return LazyTensor(tensor.name, tensor.shape, example.dtype_name, lambda: bits_of(tensor.read().to(example.dtype)))


def first_rows(tensor: LazyTensor, num_rows: int) -> LazyTensor:
    """A table without its rows from `num_rows` on, if it has any."""
    return tensor.row_range(tensor.name, 0, num_rows) if tensor.shape and tensor.shape[0] > num_rows else tensor


def expand(pattern: str, layer: int | None = None) -> list[str]:
    """The names that a pattern stands for, with `layer` for `*`; none for an empty pattern."""
    if not pattern:
        return []
    if layer is not None:
        pattern = pattern.replace("*", str(layer))
    if found := re.search(r"\{([^}]*)\}", pattern):
        return [name for word in found[1].split(",") for name in expand(pattern[: found.start()] + word + pattern[found.end() :])]
    return [pattern]


class _Application(NamedTuple):
    """A rule with its names, for one layer."""

    rule: Rule
    hf: list[str]
    megatron: list[str]


def _applications(table: Iterable[Rule], config: Config) -> Iterable[_Application]:
    for rule in table:
        if rule.when and bool(config.get(rule.when.removeprefix("not "))) is rule.when.startswith("not "):
            continue
        for layer in range(config["num_layers"]) if "*" in rule.hf else (None,):
            yield _Application(rule, expand(_with_experts(rule.hf, config), layer), expand(rule.megatron, layer))


def _with_experts(pattern: str, config: Config) -> str:
    if EXPERT not in pattern:
        return pattern
    return pattern.replace(EXPERT, "{" + ",".join(map(str, range(config["num_moe_experts"]))) + "}")


def _occurs(application: _Application, names: Sequence[str], tensors: Mapping[str, LazyTensor]) -> bool:
    """Whether a rule is about tensors that are there, or that have to be."""
    return not isinstance(application.rule, KeepAside) or any(name in tensors for name in names)


def hf_name_of(table: Sequence[Rule], megatron: str) -> str:
    """The Hugging Face name of the one tensor that is the same on both sides."""
    [name] = (rule.hf for rule in table if rule.megatron == megatron)
    return name


def megatron_names(table: Sequence[Rule], config: Config) -> list[str]:
    """Names of a model's parameters in the engine, without what is kept aside."""
    return [name for application in _applications(table, config) for name in application.megatron if not name.startswith(KEPT)]


def megatron_shapes(table: Sequence[Rule], config: Config) -> dict[str, Shape]:
    """Shape of each of a model's tensors in the engine by name, without what is kept aside."""
    sizes = sizes_of(config)
    return {
        name: shape
        for application in _applications(table, config)
        for name, shape in zip(application.megatron, application.rule.megatron_shapes(sizes), strict=True)
        if not name.startswith(KEPT)
    }


def _require_config(table: Sequence[Rule], config: Config, num_tensors: int, source: str) -> None:
    """Hold the values that decide names and shapes to what they can be, wherever the configuration was read."""
    names = {*_BASE_SIZES, *(name for rule in table for name in rule.shape)} - _MADE_SIZES.keys()
    names |= {part for name, part in _MADE_SIZES.items() if part and any(name in rule.shape for rule in table)}
    sizes = {name: config.get(name) for name in sorted(names)}
    if config.get("kv_channels") is not None:
        sizes["kv_channels"] = config["kv_channels"]
    switches = {rule.when.removeprefix("not "): None if rule.when.startswith("not ") else False for rule in table if rule.when}
    wrong = [f"{name} {value!r}" for name, value in sizes.items() if type(value) is not int or not 0 < value < 2**31]
    wrong += [f"{name} {config.get(name)!r}" for name, off in sorted(switches.items()) if not isinstance(config.get(name, off), bool)]
    if wrong:
        raise ValueError(f"{source} has a configuration with {', '.join(wrong)}; expected whole numbers above 0, true or false")
    if "num_moe_experts" in names and config["num_moe_experts"] > _MOST_EXPERTS:
        raise ValueError(f"{source} has a configuration with {config['num_moe_experts']} experts; expected at most {_MOST_EXPERTS}")
    if config["num_layers"] > num_tensors:
        raise ValueError(f"{source} has {num_tensors} tensors, too few for the {config['num_layers']} layers of its configuration")


def _require_names(applications: Iterable[_Application], tensors: Mapping[str, LazyTensor], side: str, source: str) -> None:
    known = {name: isinstance(application.rule, Drop) for application in applications for name in getattr(application, side)}
    if missing := [name for name, may_be_absent in known.items() if name not in tensors and not may_be_absent]:
        raise ValueError(f"{source} lacks {_tensors(missing)} that its configuration asks for: {_listed(missing)}")
    if left_over := sorted(set(tensors) - set(known)):
        raise ValueError(f"{source} has {_tensors(left_over)} that its model family does not know: {_listed(left_over)}")


def _require_equal(applications: Iterable[_Application], tensors: Mapping[str, LazyTensor], source: str) -> None:
    for rule, names, _ in applications:
        if not isinstance(rule, Duplicate):
            continue
        if different := [name for name in names if name in tensors and not _same_bits(tensors[name], tensors[rule.of])]:
            raise ValueError(
                f"{source} has {different[0]}, which should be {rule.of} a second time but differs from it; remove the wrong one"
            )


def _require_constants(applications: Iterable[_Application], tensors: Mapping[str, LazyTensor], source: str) -> None:
    for rule, names, _ in applications:
        if not isinstance(rule, KeepConstant):
            continue
        for name in names:
            found = float(tensors[name].read())
            if not abs(found - rule.value) <= abs(rule.value) / 256:  # bfloat16 keeps 8 bits
                raise ValueError(f"{source} has {name} {found:g}; expected {rule.value:g}, with which the engine computes")


def _same_bits(first: LazyTensor, second: LazyTensor) -> bool:
    same_kind = (first.shape, first.dtype_name) == (second.shape, second.dtype_name)
    return same_kind and np.array_equal(first.bits(), second.bits())


def _require_shapes(
    applications: Iterable[_Application], tensors: Mapping[str, LazyTensor], side: str, config: Config, source: str
) -> None:
    sizes = sizes_of(config)
    wrong = [
        f"{name} is {_times(tensors[name].shape)}, expected {_times(shape)}"
        for application in applications
        if not isinstance(application.rule, _ANY_SHAPE)
        for name, shape in zip(getattr(application, side), getattr(application.rule, f"{side}_shapes")(sizes), strict=True)
        if tensors[name].shape != shape
    ]
    if no_floats := sorted(
        f"{name} is torch.{tensors[name].dtype_name}"
        for application in applications
        if not isinstance(application.rule, _ANY_SHAPE)
        for name in getattr(application, side)
        if tensors[name].dtype_name not in FLOATS
    ):
        raise ValueError(f"{source} has {_tensors(no_floats)} that cannot be weights: {_listed(no_floats, separator='; ')}")
    if wrong:
        raise ValueError(
            f"{source} has {_tensors(wrong)} of another shape than its configuration asks for: {_listed(wrong, separator='; ')}"
        )


def _tensors(items: Sequence[str]) -> str:
    return "1 tensor" if len(items) == 1 else f"{len(items)} tensors"


def _listed(items: Sequence[str], *, separator: str = ", ") -> str:
    """All of them, or of very many the first: a wrong number of layers makes hundreds."""
    if len(items) <= _MOST_NAMED:
        return separator.join(items)
    return f"{separator.join(items[:_MOST_NAMED])} and {len(items) - _MOST_NAMED} more"


def _times(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _require_one_dtype(tensors: Tensors) -> None:
    if len({tensor.dtype_name for tensor in tensors}) > 1:
        found = ", ".join(f"{tensor.name} is torch.{tensor.dtype_name}" for tensor in tensors)
        raise ValueError(f"tensors that are to be fused have different dtypes ({found}); convert the checkpoint to one dtype first")
