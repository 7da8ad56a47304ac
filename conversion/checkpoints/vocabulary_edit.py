"""Edits of the token matrices alone: all other tensors stay as they are, and the tokenizer follows.

Each edit is a function from what there is (`Tables`) to what there shall be, without reading a tensor; matrices are read when
they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.embeddings.layers import TokenLayers, find_token_layers
from conversion.embeddings.methods.random_rows import random_rows, row_statistics
from conversion.formats.lazy_tensor import LazyTensor
from data_prep.tokenizers.files import load_tokenizer, rows_needed, tokenizer_files

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NEW_ROWS = ("mean", "random")
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Tables:
    """A checkpoint as far as its vocabulary goes.

    Attributes:
        source: what errors call it.
        layers: the tensors that have something for each token.
        tensors: all tensors; a tied output layer is not among them.
        rows: of the token matrices.
        token_ids: (num_tokens,) ids that have a token, in ascending order; those of all rows where there is no tokenizer.
        tokenizer_files: name -> content of what has changed; None where the files stay as they are.
        new_ids: old id -> new id; None where none has changed.
    """

    source: Path
    layers: TokenLayers
    tensors: Mapping[str, LazyTensor]
    rows: int
    token_ids: np.ndarray
    tokenizer_files: Mapping[str, bytes] | None = None
    new_ids: Mapping[int, int] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, hf: HFCheckpoint) -> Tables:
        """The tables of a checkpoint.

        Raises:
            ValueError: if it has no input embeddings that are known, or matrices that do not fit each other or the tokenizer.
        """
        layers = find_token_layers(hf)
        tensors, is_tied = hf.untied_tensors(), hf.tie_word_embeddings  # refuses an untied model without its head: the edit would tie it
        assert is_tied == (layers.new_output not in tensors)
        rows = layers.num_rows
        token_ids = np.arange(rows)
        if tokenizer_files(hf.directory):
            tokenizer = load_tokenizer(hf.directory)
            if (needed := rows_needed(tokenizer)) > rows:
                raise ValueError(
                    f"the tokenizer in {hf.directory} needs {needed} rows, but the model has {rows}; they do not belong together"
                )
            token_ids = np.unique(np.fromiter(tokenizer.get_vocab().values(), np.int64))
        return cls(hf.directory, layers, tensors, rows, token_ids)

    @property
    def input_name(self) -> str:
        """The matrix of input embeddings."""
        return self.layers.input

    @property
    def output_name(self) -> str:
        """The output layer's matrix, whether there is one or not."""
        return self.layers.new_output

    @property
    def is_tied(self) -> bool:
        """Whether there is one matrix for both."""
        return self.output_name not in self.tensors

    @property
    def num_ids(self) -> int:
        """The highest id that has a token + 1."""
        return int(self.token_ids[-1]) + 1 if len(self.token_ids) else 0

    @property
    def row_tensors(self) -> list[LazyTensor]:
        """The tensors that have something for each token."""
        names = (self.input_name, self.output_name, *self.layers.biases, *self.layers.beside)
        return [self.tensors[name] for name in names if name in self.tensors]

    def with_tensors(self, changed: Sequence[LazyTensor], **fields: Any) -> Tables:
        """The same with some tensors changed or added."""
        return replace(self, tensors={**self.tensors, **{tensor.name: tensor for tensor in changed}}, **fields)


def untie(tables: Tables) -> Tables:
    """Give the output layer a matrix of its own, which begins as a copy of the input's.

    Raises:
        ValueError: if it has one already.
    """
    if not tables.is_tied:
        raise ValueError(f"{tables.source} has two matrices for input and output already; there is nothing to untie")
    return tables.with_tensors([tables.tensors[tables.input_name].renamed(tables.output_name)], facts={"head": "copied"})


def tie(tables: Tables) -> Tables:
    """Leave out the output layer, if it is the input's matrix bit for bit.

    Raises:
        ValueError: if it is not, or is not there.
    """
    if tables.is_tied:
        raise ValueError(f"{tables.source} has one matrix for input and output already; there is nothing to tie")
    first, second = (tables.tensors[name] for name in (tables.input_name, tables.output_name))
    if different := _different_rows(first, second):
        raise ValueError(
            f"{tables.source} cannot be tied: {different:,} of {tables.rows:,} rows of {tables.output_name} differ from those of"
            f" {tables.input_name}; one of the two would be lost"
        )
    kept = {name: tensor for name, tensor in tables.tensors.items() if name != tables.output_name}
    return replace(tables, tensors=kept, facts={"head": "tied"})


def _different_rows(first: LazyTensor, second: LazyTensor) -> int:
    """Rows that are not the same bit for bit."""
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return first.shape[0]
    a, b = first.read(), second.read()
    return sum(
        int((a[start : start + _BLOCK_ROWS].view(torch.uint8) != b[start : start + _BLOCK_ROWS].view(torch.uint8)).any(dim=1).sum())
        for start in range(0, len(a), _BLOCK_ROWS)
    )


def append(
    tables: Tables, *, num_rows: int, method: str, seed: int, tokens: Sequence[str] = (), starts: Mapping[str, Sequence[str]] | None = None
) -> Tables:
    """Add rows, after those of the tokenizer's tokens.

    The first of them may exist already, as padding that no token uses: those get new values too.  Every new row is the mean
    of the rows of all tokens (Hewitt 2021), or drawn with their mean and deviation per dimension, or that of named tokens alone.

    Args:
        num_rows: how many, one per token.
        method: one of NEW_ROWS.
        seed: decides what is drawn.
        tokens: to be added to the tokenizer; without any, the tokenizer stays as it is.
        starts: new token -> old tokens whose mean its row is; a copy where it is one.

    Raises:
        ValueError: if there is nothing to add, a token is known already, twice in the list or comes back from its ids as another text, or
            an old token is unknown.
    """
    if num_rows < 1:
        raise ValueError(f"{num_rows} rows are to be added; expected at least 1")
    files = _with_tokens(tables.source, tokens) if tokens else None
    named = _old_ids(tables.source, starts) if starts else {}
    old_ids = {place: named[token] for place, token in enumerate(tokens) if token in named}
    first = tables.num_ids if tokens else tables.rows
    rows = max(tables.rows, first + num_rows)
    changed = [
        LazyTensor.of_blocks(
            t.name, (rows, *t.shape[1:]), t.dtype, partial(_appended, t, tables.token_ids, first, num_rows, rows, method, seed, old_ids)
        )
        for t in tables.row_tensors
    ]
    facts: dict[str, Any] = {"num_new_rows": num_rows, "new_rows": method, "seed": seed}
    if starts:
        facts["num_rows_from_named_tokens"] = len(old_ids)
    return tables.with_tensors(changed, rows=rows, tokenizer_files=files, facts=facts)


def _appended(
    tensor: LazyTensor,
    token_ids: np.ndarray,
    first: int,
    count: int,
    rows: int,
    method: str,
    seed: int,
    old_ids: Mapping[int, Sequence[int]],
) -> Iterator[Tensor]:
    """The rows in order, some at a time: as many may be asked for as the disk holds."""
    old = tensor.read()
    statistics = row_statistics(LazyTensor.of(tensor.name, old.reshape(len(old), -1)), token_ids)
    yield old[:first]
    for start in range(0, count, _BLOCK_ROWS):
        length = min(_BLOCK_ROWS, count - start)
        if method == "mean":
            new = torch.from_numpy(statistics.mean).expand(length, -1)
        else:
            keys = [f"row {first + start + i}" for i in range(length)]
            new = torch.from_numpy(random_rows(keys, statistics, seed=seed, layer=tensor.name))
        new = new.to(old.dtype).reshape(length, *old.shape[1:]).clone()
        for place in old_ids.keys() & range(start, start + length):
            ids = old_ids[place]
            new[place - start] = old[ids[0]] if len(ids) == 1 else old[list(ids)].double().mean(0).to(old.dtype)
        yield new
    if first + count < rows:
        yield old[first + count :]


def _with_tokens(directory: Path, tokens: Sequence[str]) -> dict[str, bytes]:
    """The tokenizer's files with tokens added to its list of added ones, which are found in a text before anything else."""
    from data_prep.tokenizers.derived import derived_files, load_files, read_description
    from data_prep.tokenizers.extension import name_added_tokens
    from data_prep.tokenizers.token_bytes import respelling_decoder

    tokenizer = load_tokenizer(directory)
    known = tokenizer.get_vocab()
    if found := [token for token in tokens if token in known]:
        raise ValueError(f"{len(found)} of the {len(tokens)} tokens are already in the tokenizer of {directory}, the first {found[0]!r}")
    if len(set(tokens)) != len(tokens) or not all(tokens):
        raise ValueError("the list of tokens has one twice or an empty line; give each once")
    description = read_description(directory, tokenizer)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    first_id = rows_needed(tokenizer)
    added: list[dict[str, Any]] = [{"id": first_id + place, "content": token, **flags} for place, token in enumerate(tokens)]
    description["added_tokens"] = [*description["added_tokens"], *added]
    description["decoder"] = respelling_decoder(description.get("decoder"), tokens)
    if len(known) < first_id:  # the library would number them by counting
        name_added_tokens(description["model"], description["added_tokens"])
    files = derived_files(directory, tokenizer, description)
    backend = load_files(files).backend_tokenizer
    for place, token in enumerate(tokens):
        _require_round_trip(backend, first_id + place, token, directory)
    return files


def _require_round_trip(backend: Tokenizer, token_id: int, token: str, directory: Path) -> None:
    """Refuse a token that is not found where its text stands, or comes back as another."""
    for text in (token, f"x{token}y", f"a {token} b"):
        ids = backend.encode(text, add_special_tokens=False).ids
        decoded = backend.decode(ids, skip_special_tokens=False)
        is_found = token_id in ids or any(token in (backend.id_to_token(i) or "") for i in ids)  # a longer added token may take it
        if not is_found or token.strip() not in decoded:
            raise ValueError(
                f"{token!r} cannot be added to the tokenizer in {directory}: its ids of {text!r} come back as {decoded!r}; give a token"
                " of characters that its decoder leaves alone"
            )


def _old_ids(directory: Path, starts: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """New token -> ids of the old tokens that are named for it."""
    known = load_tokenizer(directory).get_vocab()
    for new, old in starts.items():
        if unknown := [token for token in old if token not in known]:
            raise ValueError(
                f"{new!r} is to begin as {unknown[0]!r}, which is not a token of {directory}; name tokens as the tokenizer spells them, and give new"
                " tokens that have = in them as a JSON list"
            )
    return {new: [known[token] for token in old] for new, old in starts.items()}


def keep(tables: Tables, requested: Sequence[str | int]) -> Tables:
    """Keep the rows of some tokens; the others go, and ids close up in their old order.

    Kept besides: added tokens, bytes, the single characters of those tokens, and every token on the way to one of them by the
    merges; `data_prep.tokenizers.pruning` says why.

    Args:
        requested: tokens as the tokenizer writes them, or ids.

    Raises:
        ValueError: if there is no tokenizer, or a token is unknown to it.
    """
    from data_prep.tokenizers.derived import derived_files, read_description
    from data_prep.tokenizers.pruning import prune_tokenizer

    tokenizer = load_tokenizer(tables.source)
    ids = _ids_of(requested, tokenizer.get_vocab(), tables.source)
    pruning = prune_tokenizer(read_description(tables.source, tokenizer), dict.fromkeys(ids, 1), min_count=1)
    files = derived_files(tables.source, tokenizer, pruning.description, new_ids=pruning.new_ids)
    kept = torch.tensor(pruning.old_ids)
    changed = [LazyTensor.computed(t.name, (len(kept), *t.shape[1:]), t.dtype, partial(_selected, t, kept)) for t in tables.row_tensors]
    facts = {"num_rows_before": tables.rows, "num_asked_for": len(ids), "num_needed": len(kept) - len(ids)}
    return tables.with_tensors(
        changed, rows=len(kept), token_ids=np.arange(len(kept)), tokenizer_files=files, new_ids=pruning.new_ids, facts=facts
    )


def _selected(tensor: LazyTensor, kept: Tensor) -> Tensor:
    return tensor.read()[kept]


def _ids_of(requested: Sequence[str | int], vocabulary: Mapping[str, int], source: Path) -> set[int]:
    known = set(vocabulary.values())
    unknown = [item for item in requested if item not in (vocabulary if isinstance(item, str) else known)]
    if unknown:
        raise ValueError(
            f"{len(unknown)} of the {len(requested)} tokens to keep are not in the tokenizer of {source}, the first {unknown[0]!r}"
        )
    if not requested:
        raise ValueError("the list of tokens to keep is empty")
    return {vocabulary[item] if isinstance(item, str) else item for item in requested}


Edit = Callable[[Tables], Tables]
