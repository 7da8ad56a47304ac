"""The models of a merge, mapped to the vocabulary of one of them: rows are matched by the bytes of their tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from conversion.checkpoints.hf_checkpoint import QUANTIZATION, HFCheckpoint, same_bits
from conversion.checkpoints.hf_files import language_part, load_config
from conversion.checkpoints.vocabulary_edit import Tables
from conversion.embeddings.report.files import REPORT_NAME
from conversion.embeddings.vocabularies.vocabulary import Vocabulary
from conversion.embeddings.vocabularies.vocabulary_map import map_vocabulary
from conversion.formats.lazy_tensor import LazyTensor
from conversion.merging.arithmetic import Rows
from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest, tokenizer_files

KEEP, PIECES = "keep", "pieces"
# What may differ between models that are merged: names, versions, vocabularies and lengths, not what the tensors mean.
_MAY_DIFFER = {
    "_name_or_path", "transformers_version", "torch_dtype", "dtype", "vocab_size", "tie_word_embeddings", "use_cache", "bos_token_id",
    "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "architectures", "max_position_embeddings", "attention_dropout", "dropout",
    "hidden_dropout", "initializer_range", "text_config", "quantization_config", "pretraining_tp", "transformers.js_config", "unsloth_fixed",
    "unsloth_version", "_attn_implementation_autoset",
}  # fmt: skip


_RECOMPUTED = ".rotary_emb.inv_freq"  # computed from rope_theta; old checkpoints carry it


@dataclass(frozen=True, eq=False)
class Model:
    """A model of a merge.

    Attributes:
        name: what it is called on the command line and in errors.
    """

    name: str
    hf: HFCheckpoint
    tables: Tables

    @classmethod
    def open(cls, name: str, folder: Path) -> Model:
        """Look at a folder.

        Raises:
            ValueError: if it is not a model, or a quantized one.
        """
        hf = HFCheckpoint.open(folder)
        if QUANTIZATION in hf.config:
            raise ValueError(f"{folder} is quantized ({QUANTIZATION} in config.json); merge the model that it was made from")
        tables = Tables.of(hf)
        kept = {name: tensor for name, tensor in tables.tensors.items() if not name.endswith(_RECOMPUTED)}
        return cls(name, hf, replace(tables, tensors=kept))

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """None where the folder has no tokenizer."""
        return Vocabulary.of(load_tokenizer(self.hf.directory)) if tokenizer_files(self.hf.directory) else None

    @cached_property
    def tokenizer_digest(self) -> str | None:
        """None where the folder has no tokenizer."""
        return tokenizer_digest(load_tokenizer(self.hf.directory)) if tokenizer_files(self.hf.directory) else None

    def tensor(self, name: str, like: Model) -> LazyTensor:
        """The tensor that is called so in another model: of a tied one its one matrix where that has two."""
        if name == like.tables.output_name and self.tables.is_tied:
            return self.tables.tensors[self.tables.input_name]
        return self.tables.tensors[name]


@dataclass(frozen=True)
class Mapped:
    """A model's token rows in the vocabulary of another.

    Attributes:
        weights: (rows there, rows here): each row there as a sum of rows here; None where they are the same.
        known: (rows there,) bool, whether there is such a sum.
    """

    model: Model
    weights: sparse.csr_matrix | None = None
    known: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    def rows(self, tensor: LazyTensor, *, of_tokens: bool) -> Rows:
        """The tensor's rows in the other vocabulary; those that are not known are 0."""
        if not of_tokens or self.weights is None:
            return plain_rows(tensor)
        weights = self.weights

        def mapped(start: int, stop: int) -> Tensor:
            part = weights[start:stop]
            ids, columns = np.unique(part.indices, return_inverse=True)
            if not len(ids):
                return torch.zeros(stop - start, *tensor.shape[1:])
            found = torch.from_numpy(tensor.rows_at(ids.tolist())).view(tensor.dtype).float().numpy()
            small = sparse.csr_matrix((part.data, columns, part.indptr), (stop - start, len(ids)))
            flat = small @ found.reshape(len(ids), -1)
            return torch.from_numpy(np.ascontiguousarray(flat, np.float32)).view(stop - start, *tensor.shape[1:])

        return mapped

    def known_rows(self, start: int, stop: int) -> Tensor | None:
        """(stop - start,) bool; None where all are."""
        return None if self.weights is None else torch.from_numpy(self.known[start:stop])


def plain_rows(tensor: LazyTensor) -> Rows:
    """A tensor's own rows."""

    def rows(start: int, stop: int) -> Tensor:
        if not tensor.shape or (start, stop) == (0, tensor.shape[0]):
            return tensor.read().float().view(-1, *tensor.shape[1:])
        return tensor.row_range(tensor.name, start, stop).read().float()

    return rows


def require_alike(target: Model, others: Sequence[Model]) -> None:
    """Refuse models that are not of one shape.

    Raises:
        ValueError: naming what differs.
    """
    for other in others:
        if other.hf.model_type != target.hf.model_type:
            raise ValueError(
                f"{other.name} is of the type {other.hf.model_type or '(none)'}, but {target.name} of {target.hf.model_type}; only models of one"
                " architecture can be merged"
            )
        if _different_settings(target.hf.config, other.hf.config) and (
            different := _different_settings(*map(_with_defaults, (target, other)))
        ):
            key, ours, theirs = different[0]
            raise ValueError(
                f"config.json of {other.name} has {key} {theirs!r}, but that of {target.name} {ours!r}: their weights do not mean the same"
            )
        if target.tables.is_tied and not other.tables.is_tied:
            raise ValueError(
                f"{other.name} has an output layer of its own, but {target.name} has one matrix for both, with no place for it; give it one with"
                f" `python -m conversion.edit_vocabulary --input {target.hf.directory} --untie --output DIR`"
            )
        _require_same_tensors(target, other)


def _require_same_tensors(target: Model, other: Model) -> None:
    names = {tensor.name for tensor in target.tables.row_tensors}
    only = [name for name in target.tables.tensors if name not in names and name not in other.tables.tensors]
    only += [name for name in other.tables.tensors if name not in target.tables.tensors and name != other.tables.output_name]
    if only:
        raise ValueError(f"{other.name} and {target.name} do not have the same tensors; only one of them has {only[0]}")
    for name, tensor in target.tables.tensors.items():
        its = other.tensor(name, target)
        theirs, ours = (shape[1:] if name in names else shape for shape in (its.shape, tensor.shape))
        if theirs != ours:
            raise ValueError(f"{name} is {theirs} in {other.name} and {ours} in {target.name}; only models of one shape can be merged")
        if not (tensor.dtype.is_floating_point and its.dtype.is_floating_point) and not same_bits(tensor, its):
            raise ValueError(f"{name} is not the same in {other.name} and {target.name}; only floating-point numbers can be merged")


def _different_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Key and both values of what two configs say differently about the meaning of tensors."""
    first, second = (_told({**config, **(language_part(config) or {})}) or {} for config in (ours, theirs))
    return [(key, first.get(key), second.get(key)) for key in sorted(first.keys() | second.keys()) if first.get(key) != second.get(key)]


def _with_defaults(model: Model) -> Mapping[str, Any]:
    """A model's config with what transformers assumes where it is silent, as older versions wrote fewer keys."""
    try:
        found: dict[str, Any] = load_config(model.hf.directory).to_dict()
    except Exception:  # whatever transformers raises for a model that it does not know
        return model.hf.config
    return found


def _told(value: Any) -> Any:
    """A value of a config as JSON has it, without what may differ, nothing and false being alike."""
    if isinstance(value, dict):
        return {key: told for key, item in value.items() if key not in _MAY_DIFFER and (told := _told(item)) is not None} or None
    return json.loads(json.dumps(value)) or None


def mapped_to(target: Model, model: Model, *, missing: str, record: Record | None = None) -> Mapped:
    """A model's rows in the vocabulary of the target.

    Args:
        missing: what becomes of rows whose token the model does not have: KEEP, they are not known, or PIECES, they are the mean of the
            rows of the tokens into which the model's tokenizer cuts them.
        record: of the transfer that made the target's vocabulary, which goes before that rule.

    Raises:
        ValueError: if one of two models with different numbers of rows has no tokenizer.
    """
    if target is model or (target.tokenizer_digest == model.tokenizer_digest and target.tables.rows == model.tables.rows):
        return Mapped(model)
    if target.vocabulary is None or model.vocabulary is None:
        without = target if target.vocabulary is None else model
        raise ValueError(f"{without.name} has no tokenizer, so its rows cannot be matched; put its tokenizer into {without.hf.directory}")
    same = map_vocabulary(model.vocabulary, target.vocabulary).source_ids
    columns: list[list[int]] = [[int(found)] if found >= 0 else [] for found in same]
    values: list[list[float]] = [[1.0] * len(found) for found in columns]
    for token_id in np.flatnonzero(same < 0).tolist():
        sources = record.sources(token_id, model.vocabulary) if record is not None else {}
        if not sources and missing == PIECES and (data := target.vocabulary.token_bytes[token_id]):
            pieces = model.vocabulary.pieces(data)
            sources = dict.fromkeys(pieces, 0.0)
            for piece in pieces:
                sources[piece] += 1 / len(pieces)
        columns[token_id], values[token_id] = list(sources), list(sources.values())
    lengths = np.array([*(len(found) for found in columns), *[0] * (target.tables.rows - len(columns))])
    weights = sparse.csr_matrix(
        (
            np.array([value for row in values for value in row], np.float32),
            np.array([column for row in columns for column in row], np.int64),
            np.concatenate([[0], np.cumsum(lengths)]),
        ),
        (target.tables.rows, model.tables.rows),
    )
    return Mapped(model, weights, lengths > 0)


@dataclass(frozen=True)
class Record:
    """From which source tokens a transfer made the rows of its target, as its `transfer.json` says."""

    path: Path
    tokens: Mapping[int, Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Of an output of conversion.transfer.

        Raises:
            ValueError: if it is none.
        """
        path = folder / REPORT_NAME
        if not path.is_file():
            raise ValueError(f"{folder} has no {REPORT_NAME}; give the output of conversion.transfer from which the model was trained")
        return cls(path, {entry["id"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))["tokens"]})

    def sources(self, token_id: int, vocabulary: Vocabulary) -> dict[int, float]:
        """Source id -> weight; empty where the record does not have all sources of the row.

        Raises:
            ValueError: if the record is of another source.
        """
        entry = self.tokens.get(token_id, {})
        listed = entry.get("sources", [])
        for source_id, spelling, _ in listed:
            if source_id >= len(vocabulary) or vocabulary.tokens[source_id] != spelling:
                raise ValueError(f"{self.path} is of a transfer from another tokenizer: there {source_id} is {spelling!r}")
        return {i: weight for i, _, weight in listed} if entry.get("num_sources", len(listed)) == len(listed) else {}
