"""A transfer applied to a checkpoint: new token matrices, all else bit for bit, and the ids in the configs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from common.artifacts import Manifest, digest_file, staged_directory, write_manifest
from conversion.checkpoints.config_ids import NewRoles, Renumbered, sees_nothing, with_new_ids
from conversion.checkpoints.hf_checkpoint import HFCheckpoint, copy_processor, write_hf_checkpoint, write_json
from conversion.checkpoints.hf_files import CONFIG_NAME, GENERATION_CONFIG_NAME, read_json, with_vocabulary
from conversion.embeddings import METHODS
from conversion.embeddings.case import TransferCase, read_case
from conversion.embeddings.factorisation import FACTORS_NAME, Factors, factorise
from conversion.embeddings.methods.method import copy_all
from conversion.embeddings.methods.random_rows import row_statistics
from conversion.embeddings.methods.row_plan import INPUT_LAYER, RowPlan, drawn_blocks, target_matrix
from conversion.embeddings.options import LASTING_STRATEGIES, TransferRequest
from conversion.embeddings.report.figures import TEXT_BYTES, LayerRows
from conversion.embeddings.report.files import write_report
from conversion.embeddings.request import require_options
from conversion.embeddings.vocabularies.vocabulary import Kind
from conversion.embeddings.vocabularies.vocabulary_map import ids_of_same_tokens
from conversion.formats.lazy_tensor import Bits, LazyTensor
from conversion.formats.safetensors_file import write_safetensors
from data_prep.reading.named_texts import Text
from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest, write_tokenizer_files

_COPY = "copy"  # what manifests call the method where nothing is new
SWAPPED_NAME = "swapped_tokens.tsv"


@dataclass(frozen=True)
class Transfer(TransferCase):
    """A transfer that is decided and not yet written."""

    request: TransferRequest
    plan: RowPlan

    @classmethod
    def of(cls, case: TransferCase, request: TransferRequest) -> Transfer:
        """Decide where every row comes from, by the request's method and seed."""
        inputs = replace(case.inputs, seed=request.seed)
        if request.method is not None and METHODS[request.method].learns and case.layers.beside:
            raise ValueError(
                f"--method {request.method} learns embeddings and output layer alone, but {request.source} has"
                f" {', '.join(case.layers.beside)} beside them; choose a method that does not learn, such as mean"
            )
        plan = copy_all(inputs) if request.method is None else METHODS[request.method].plan(inputs)
        return cls(**vars(case) | {"inputs": inputs, "request": request, "plan": plan})

    @property
    def keeps_matrices(self) -> bool:
        """Whether the vocabulary is the source's, so that its matrices stay as they are, padding rows included."""
        return self.request.vocabulary.strategy == "keep"

    @property
    def num_rows(self) -> int:
        """Rows of the new matrices."""
        return self.layers.num_rows if self.request.vocabulary.strategy in LASTING_STRATEGIES else len(self.inputs.target)

    @property
    def source_rows(self) -> np.ndarray:
        """(num_source_tokens,) ids of the rows of the source that have a token; the others are padding and say nothing."""
        return np.flatnonzero(self.inputs.source.kinds != Kind.HOLE)

    @cached_property
    def factors(self) -> dict[str, Factors]:
        """The target's factors of each matrix that is transferred, by the matrix's name; empty where rows are transferred themselves."""
        size = self.factorised_size
        if size is None:
            return {}
        names = [self.layers.input, *([self.layers.output] if self.layers.output and self.output_layer == "transferred" else [])]
        return {name: self._factors_of(name, size) for name in names}

    def _factors_of(self, name: str, size: int) -> Factors:
        factors = factorise(self.checkpoint.tensor(name), self.source_rows, size)
        return replace(factors, coordinates=self._rows_of(LazyTensor.of(name, factors.coordinates), name).read())

    def _made_from(self, name: str) -> LazyTensor:
        """The target's rows of one of the source's matrices or biases, in its dtype, made when they are written."""
        matrix = self.checkpoint.tensors[name]
        shape = (self.num_rows, *matrix.shape[1:])
        if self.keeps_matrices:
            return LazyTensor.of_bits_blocks(name, shape, matrix.dtype_name, lambda: iter([matrix.bits()]))
        if name in self.factors:
            return LazyTensor.computed(name, shape, matrix.dtype, lambda: self.factors[name].fold().to(matrix.dtype))
        if len(matrix.shape) == 1:
            column = self._rows_of(LazyTensor(name, (*matrix.shape, 1), matrix.dtype_name, lambda: matrix.bits()[:, None]), name)
            return LazyTensor.of_bits_blocks(name, shape, matrix.dtype_name, lambda: (rows[:, 0] for rows in column.checked_blocks()))
        return self._rows_of(matrix, name)

    def _rows_of(self, matrix: LazyTensor, name: str) -> LazyTensor:
        made = target_matrix(
            self.plan,
            matrix,
            keys=lambda: self.inputs.target.keys,
            statistics=lambda: row_statistics(matrix, self.source_rows, over=self.request.random_statistics),
            seed=self.request.seed,
            layer=INPUT_LAYER if name == self.layers.input else name,
        )
        padding = self.num_rows - len(self.inputs.target)
        if not padding or made.shape[0] == self.num_rows:
            return made
        rest = matrix.row_range(name, matrix.shape[0] - padding, matrix.shape[0])

        def both() -> Iterator[Bits]:
            yield from made.checked_blocks()
            yield from rest.checked_blocks()

        return LazyTensor.of_bits_blocks(name, (self.num_rows, *made.shape[1:]), made.dtype_name, both)

    def _drawn(self) -> LazyTensor:
        """An output layer of random rows, as large and varied as the source's, in its dtype."""
        matrix = self.checkpoint.tensors[self.layers.output or self.layers.input]
        return LazyTensor.of_bits_blocks(
            matrix.name, (self.num_rows, matrix.shape[1]), matrix.dtype_name, partial(self._drawn_blocks, matrix)
        )

    def _drawn_blocks(self, matrix: LazyTensor) -> Iterator[Bits]:
        statistics = row_statistics(matrix, self.source_rows, over=self.request.random_statistics)
        keys = self.inputs.target.keys
        yield from drawn_blocks(keys, statistics, matrix.dtype_name, seed=self.request.seed, layer="output")
        if self.num_rows > len(keys):
            yield matrix.bits()[len(keys) :]

    def tensors(self) -> Iterator[LazyTensor]:
        """All tensors of the new checkpoint, in the order of the source's."""
        makers: dict[str, Callable[[], LazyTensor]] = {
            name: partial(self._made_from, name) for name in (self.layers.input, *self.layers.biases, *self.layers.beside)
        }
        output = self.layers.output or self.layers.new_output
        if self.output_layer == "transferred":
            makers[output] = partial(self._made_from, output)
        elif self.output_layer == "random":
            makers[output] = self._drawn
        elif self.output_layer == "copied":
            makers[output] = partial(self._made_from, self.layers.input)
        names = [name for name in self.checkpoint.names() if name != self.layers.output or self.output_layer != "tied"]
        if self.output_layer != "tied" and output not in names:
            names.append(output)
        for name in names:
            yield makers[name]().renamed(name) if name in makers else self.checkpoint.tensors[name]


def plan_transfer(request: TransferRequest) -> Transfer:
    """Read what is needed, refuse what cannot work, and decide where every row comes from; writes nothing.

    Raises:
        ValueError: for anything that the user has to change.
    """
    require_options(request)
    return Transfer.of(read_case(request), request)


def write_transfer(
    transfer: Transfer, output_dir: Path, *, arguments: Mapping[str, Any] | None = None, report_texts: Sequence[Text] = ()
) -> tuple[Manifest, list[str]]:
    """Write the new checkpoint with its tokenizer, configs, report and manifest.

    Args:
        report_texts: what the report measures fertility on; without any, the request's own text.

    Returns:
        The manifest, and sentences about rows that need a look.

    Raises:
        ValueError: if the output exists or the disk is too small.
    """
    tensors, factors = list(transfer.tensors()), list(_factor_tensors(transfer))
    facts, inputs = _facts(transfer), _inputs(transfer, report_texts)
    with staged_directory(output_dir, required_bytes=sum(tensor.nbytes for tensor in [*tensors, *factors])) as staging:
        digests, lost = _write_checkpoint(transfer, staging, tensors, factors)
        warnings = _write_report(transfer, staging, facts, report_texts)
        manifest = write_manifest(
            staging, stage="conversion.transfer", facts=facts, arguments=arguments, inputs=inputs, known_digests=digests
        )
    return manifest, [*transfer.target.warnings, *lost, *warnings]


def _facts(transfer: Transfer) -> dict[str, Any]:
    """What the transfer is, for manifest and report."""
    request = transfer.request
    facts = {
        "tokenizer_digest": transfer.target.digest,
        "vocab_size": transfer.num_rows,
        "tie_word_embeddings": transfer.output_layer == "tied",
        "method": request.method or _COPY,
        "vocabulary": {"strategy": request.vocabulary.strategy, **transfer.target.facts},
        "head": transfer.output_layer,
        "seed": request.seed,
        "model_type": transfer.checkpoint.model_type,
        "matching": request.matching,
        "num_rows_by_origin": transfer.plan.counts(),
    }
    if unreached := int((transfer.inputs.source.kinds == Kind.UNREACHED).sum()):
        facts["num_unreached_source_tokens"] = unreached
    if transfer.plan.facts:
        facts["learning"] = dict(transfer.plan.facts)
    if transfer.factorised_size is not None:
        facts["factorised_size"] = transfer.factorised_size
    return facts


def _inputs(transfer: Transfer, report_texts: Sequence[Text]) -> dict[str, str]:
    """All that was read, with its digest."""
    request = transfer.request
    inputs = {str(request.source): transfer.checkpoint.digest()}
    if request.tokenizer is not None:
        is_target = request.vocabulary.strategy == "replace"
        inputs[str(request.tokenizer)] = transfer.target.digest if is_target else tokenizer_digest(load_tokenizer(request.tokenizer))
    text_files = [path for text in (request.text, request.source_text) if text is not None for path in text.paths]
    files = [*text_files, *(text.path for text in report_texts), request.word_vectors, request.source_word_vectors, request.dictionary]
    files.append(request.parallel.path if request.parallel else None)
    inputs.update({str(path): digest_file(path) for path in (*files, *(request.vocabulary.swap_text or ())) if path is not None})
    inputs.update({str(path): HFCheckpoint.open(path).digest() for path in (request.helper, request.encoder) if path is not None})
    return inputs


def _write_checkpoint(
    transfer: Transfer, directory: Path, tensors: Sequence[LazyTensor], factors: Sequence[LazyTensor]
) -> tuple[dict[str, str], list[str]]:
    """Write weights, tokenizer and configs; give the digests of what was large, and a sentence for each id that was lost."""
    source, is_tied = transfer.request.source, transfer.output_layer == "tied"
    renumbered = _with_target_ids(transfer.checkpoint.config, transfer)
    lost = _lost_ids(CONFIG_NAME, renumbered, transfer)
    old_rows = transfer.layers.num_rows
    config = with_vocabulary(renumbered.config, rows=transfer.num_rows, old_rows=old_rows, tie_word_embeddings=is_tied)
    digests = write_hf_checkpoint(directory, config, tensors)
    if factors:
        digests[FACTORS_NAME] = write_safetensors(directory / FACTORS_NAME, factors)
    write_tokenizer_files(directory, transfer.target.files)
    if transfer.target.swapped:
        (directory / SWAPPED_NAME).write_text("\n".join(["id\told\tnew", *transfer.target.swapped_lines, ""]), encoding="utf-8")
    if not sees_nothing(renumbered):
        copy_processor(source, directory)
    generation_config = _generation_config(source)
    if generation_config is not None:
        renumbered = _with_target_ids(generation_config, transfer)
        lost += _lost_ids(GENERATION_CONFIG_NAME, renumbered, transfer)
        write_json(directory / GENERATION_CONFIG_NAME, renumbered.config)
    return digests, lost


def _write_report(transfer: Transfer, directory: Path, facts: Mapping[str, Any], report_texts: Sequence[Text]) -> list[str]:
    """Write the report on what has been written; give the sentences about rows that need a look."""
    texts = {text.name: _first_documents(text.documents) for text in report_texts}
    if not texts and transfer.request.text is not None:
        texts["--text"] = _first_documents(transfer.request.text)
    layers = _written_layers(transfer, HFCheckpoint.open(directory))
    return write_report(directory, transfer.inputs, transfer.plan, facts, layers=layers, texts=texts)


def _written_layers(transfer: Transfer, written: HFCheckpoint) -> list[LayerRows]:
    """The token matrices before and after; an output layer only where it is not the input's."""
    before, after = transfer.checkpoint.tensors, written.tensors
    layers = [LayerRows("input embeddings", before[transfer.layers.input], after[transfer.layers.input])]
    if transfer.output_layer in ("transferred", "random"):
        source, target = transfer.layers.output or transfer.layers.input, transfer.layers.output or transfer.layers.new_output
        layers.append(LayerRows("output layer", before[source], after[target]))
    return layers


def _first_documents(documents: Iterable[str]) -> list[str]:
    """As many whole documents as the report looks at, at least one."""
    first: list[str] = []
    size = 0
    for document in documents:
        size += len(document.encode())
        if first and size > TEXT_BYTES:
            break
        first.append(document)
    return first


def _factor_tensors(transfer: Transfer) -> Iterator[LazyTensor]:
    """The factors by the layer that they belong to, `input` or `output`."""
    for name, factors in transfer.factors.items():
        layer = "input" if name == transfer.layers.input else "output"
        for part in fields(factors):
            yield LazyTensor.of(f"{layer}.{part.name}", getattr(factors, part.name))


def _with_target_ids(config: Mapping[str, Any], transfer: Transfer) -> Renumbered:
    """A config with the target's ids: nothing changes where tokens were taken over with theirs."""
    strategy = transfer.request.vocabulary.strategy
    if strategy == "replace":
        source, target = transfer.inputs.source, transfer.inputs.target
        roles = NewRoles(source.roles, target.roles)
        same = transfer.inputs.once("ids of same tokens", lambda: ids_of_same_tokens(source, target))  # both configs ask
        return with_new_ids(config, same, roles=roles, num_rows=transfer.num_rows)
    if strategy == "prune":
        assert transfer.target.source_ids is not None
        new_ids = {old_id: new_id for new_id, old_id in enumerate(transfer.target.source_ids.tolist())}
        return with_new_ids(config, new_ids, num_rows=transfer.num_rows)
    return Renumbered(dict(config))


def _lost_ids(name: str, renumbered: Renumbered, transfer: Transfer) -> list[str]:
    """A sentence for each key of a config that names tokens that the target lacks."""
    tokens = transfer.inputs.source.tokens
    by_key: dict[str, list[str]] = {}
    for key, token_id in renumbered.lost:
        spelled = tokens[token_id] if token_id < len(tokens) else None
        by_key.setdefault(key, []).append(f"{token_id} ({spelled!r})" if spelled is not None else f"{token_id}, which no token has")
    return [f"{name}: {key} loses {', '.join(ids)}, because the new tokenizer has no such token" for key, ids in by_key.items()]


def _generation_config(source: Path) -> dict[str, Any] | None:
    path = source / GENERATION_CONFIG_NAME
    return read_json(path, expected="") if path.is_file() else None
