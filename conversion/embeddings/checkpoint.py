"""A transfer applied to a checkpoint: new token matrices, all else bit for bit, and the ids in the configs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from conversion.embeddings import METHODS
from conversion.embeddings.factorisation import FACTORS_NAME, Factors, choose_factorised_size, factorise
from conversion.embeddings.helper_model import HelperModel
from conversion.embeddings.layers import TokenLayers, choose_output_layer, find_token_layers, require_same_padding
from conversion.embeddings.method import TransferInputs, VectorOptions, copy_all
from conversion.embeddings.parallel_text import ParallelText
from conversion.embeddings.random_rows import row_statistics
from conversion.embeddings.report import write_report
from conversion.embeddings.report_figures import TEXT_BYTES, LayerRows
from conversion.embeddings.row_plan import INPUT_LAYER, RowPlan, drawn_blocks, row_blocks
from conversion.embeddings.vocabulary import Kind, Vocabulary
from conversion.embeddings.vocabulary_map import map_vocabulary
from conversion.embeddings.vocabulary_strategies import (
    COPYING_STRATEGIES,
    TargetTokenizer,
    VocabularyOptions,
    read_by,
    require_vocabulary_options,
    target_tokenizer,
)
from conversion.embeddings.word_methods import read_dictionary
from conversion.embeddings.word_vectors import WordVectors
from conversion.hf_checkpoint import HFCheckpoint, write_hf_checkpoint, write_json
from conversion.hf_files import GENERATION_CONFIG_NAME
from conversion.lazy_tensor import LazyTensor
from conversion.safetensors_file import write_safetensors
from data_prep.artifacts import Manifest, digest_file, read_manifest, require_same_tokenizer, staged_directory, write_manifest
from data_prep.documents import Documents
from data_prep.named_texts import Text
from data_prep.tokenizer_files import load_tokenizer, tokenizer_digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Ids in configs that name no role of the tokenizer; those of the old vocabulary would mean other tokens.
_OTHER_ID_KEYS = (
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
)
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
}
_CONFIG_ROLES = ("bos", "eos", "pad", "sep")
_COPY = "copy"  # what manifests call the method where nothing is new


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
        num_atoms, as_published: what some methods are told, see `TransferInputs`.
        fallback: `mean` or `random`, for tokens that the method has nothing for.
        factorised_size: dimensions of the coordinates that are transferred in place of rows, `full`, or None to transfer rows.
        random_statistics: drawn rows follow the mean and variance per `dimension` or over the `matrix`.
        special_tokens: target token -> source token, over the rules of `map_vocabulary`.
        matching: one of `MATCHINGS`, which tokens of text count as shared.
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
    as_published: bool | None = None
    fallback: str = "mean"
    factorised_size: int | str | None = None
    random_statistics: str = "dimension"
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    matching: str = "exact"


@dataclass(frozen=True)
class TransferCase:
    """What a transfer starts from, read and checked; it serves any number of methods and seeds."""

    checkpoint: HFCheckpoint
    layers: TokenLayers
    output_layer: str
    factorised_size: int | None
    inputs: TransferInputs
    target: TargetTokenizer


@dataclass(frozen=True)
class Transfer:
    """A transfer that is decided and not yet written."""

    request: TransferRequest
    checkpoint: HFCheckpoint
    layers: TokenLayers
    output_layer: str
    factorised_size: int | None
    inputs: TransferInputs
    plan: RowPlan
    target: TargetTokenizer

    @classmethod
    def of(cls, case: TransferCase, request: TransferRequest) -> Transfer:
        """Decide where every row comes from, by the request's method and seed."""
        inputs = replace(case.inputs, seed=request.seed)
        plan = copy_all(inputs) if request.method is None else METHODS[request.method].plan(inputs)
        return cls(request, case.checkpoint, case.layers, case.output_layer, case.factorised_size, inputs, plan, case.target)

    @property
    def keeps_matrices(self) -> bool:
        """Whether the vocabulary is the source's, so that its matrices stay as they are, padding rows included."""
        return self.request.vocabulary.strategy == "keep"

    @property
    def num_rows(self) -> int:
        """Rows of the new matrices."""
        return self.layers.num_rows if self.keeps_matrices else len(self.inputs.target)

    @property
    def source_rows(self) -> np.ndarray:
        """Ids of the rows of the source that have a token; the others are padding and say nothing."""
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
        return replace(factors, coordinates=torch.cat(list(self._blocks_of(factors.coordinates, name))))

    def blocks(self, name: str) -> Iterator[Tensor]:
        """The target's rows of one of the source's matrices or biases, some at a time."""
        matrix = self.checkpoint.tensor(name)
        if self.keeps_matrices:
            yield matrix
        elif name in self.factors:
            yield self.factors[name].fold().to(matrix.dtype)
        elif matrix.dim() == 1:
            yield from (rows[:, 0].contiguous() for rows in self._blocks_of(matrix[:, None], name))
        else:
            yield from self._blocks_of(matrix, name)

    def _blocks_of(self, matrix: Tensor, name: str) -> Iterator[Tensor]:
        statistics = partial(row_statistics, matrix, self.source_rows, over=self.request.random_statistics)
        layer = INPUT_LAYER if name == self.layers.input else name
        return row_blocks(self.plan, matrix, keys=self.inputs.target.keys, statistics=statistics, seed=self.request.seed, layer=layer)

    def draw_output(self) -> Iterator[Tensor]:
        """An output layer of random rows, as large and varied as the source's, some rows at a time."""
        matrix = self.checkpoint.tensor(self.layers.output or self.layers.input)
        statistics = row_statistics(matrix, self.source_rows, over=self.request.random_statistics)
        keys = self.inputs.target.keys
        yield from drawn_blocks(keys, statistics, matrix.dtype, seed=self.request.seed, layer="output")
        if self.keeps_matrices:
            yield matrix[len(keys) :]

    def tensors(self) -> Iterator[LazyTensor]:
        """All tensors of the new checkpoint, in the order of the source's."""
        size = self.checkpoint.shape(self.layers.input)[1]
        makers: dict[str, Callable[[], Iterator[Tensor]]] = {
            name: partial(self.blocks, name) for name in (self.layers.input, *self.layers.biases)
        }
        output = self.layers.output or self.layers.new_output
        if self.output_layer == "transferred":
            makers[output] = partial(self.blocks, output)
        elif self.output_layer == "random":
            makers[output] = self.draw_output
        elif self.output_layer == "copied":
            makers[output] = partial(self.blocks, self.layers.input)
        names = [name for name in self.checkpoint.names() if name != self.layers.output or self.output_layer != "tied"]
        if self.output_layer != "tied" and output not in names:
            names.append(output)
        for name in names:
            if name in makers:
                origin = name if name in self.checkpoint.names() else self.layers.input
                shape = (self.num_rows,) if name in self.layers.biases else (self.num_rows, size)
                yield LazyTensor.of_blocks(name, shape, self.checkpoint.dtype(origin), makers[name])
            else:
                yield self.checkpoint.tensors[name]


def plan_transfer(request: TransferRequest) -> Transfer:
    """Read what is needed, refuse what cannot work, and decide where every row comes from; writes nothing.

    Raises:
        ValueError: for anything that the user has to change.
    """
    require_options(request)
    return Transfer.of(read_case(request), request)


def read_case(request: TransferRequest) -> TransferCase:
    """Read the model, both tokenizers and whatever material the request names, and refuse what does not fit; writes nothing.

    Raises:
        ValueError: for anything that the user has to change.
    """
    checkpoint = HFCheckpoint.open(request.source)
    layers = find_token_layers(checkpoint)
    output_layer = choose_output_layer(request.output_layer, source_is_tied=checkpoint.tie_word_embeddings, source=str(request.source))
    source_tokenizer = load_tokenizer(request.source)
    manifest = read_manifest(request.source)
    if manifest is not None:
        require_same_tokenizer(
            tokenizer_digest(source_tokenizer),
            manifest.facts.get("tokenizer_digest"),
            found_in=str(request.source),
            expected_by="its manifest",
        )
    source = Vocabulary.of(source_tokenizer)
    if len(source) > layers.num_rows:
        raise ValueError(
            f"the tokenizer in {request.source} has {len(source)} ids, but {layers.input} has only {layers.num_rows} rows;"
            " give the model with its own tokenizer"
        )
    num_tokens = int((source.kinds != Kind.HOLE).sum())
    factorised_size = choose_factorised_size(request.factorised_size, num_tokens=num_tokens, hidden_size=checkpoint.shape(layers.input)[1])
    for name in filter(None, (layers.input, layers.output)):
        _require_finite(checkpoint.tensor(name)[: len(source)], name, request.source)
    target_files = target_tokenizer(
        request.vocabulary,
        source=request.source,
        source_tokenizer=source_tokenizer,
        tokenizer=request.tokenizer,
        text=request.text,
        source_text=request.source_text,
    )
    target = Vocabulary.of(target_files.tokenizer)
    require_same_padding(checkpoint, target.roles.get("pad"))
    inputs = TransferInputs(
        source=source,
        target=target,
        overlap=map_vocabulary(
            source, target, special_tokens=request.special_tokens, known_ids=target_files.source_ids, matching=request.matching
        ),
        seed=request.seed,
        tokenize=partial(_tokenize, target_files.tokenizer),
        tokenize_source=partial(_tokenize, source_tokenizer),
        text=request.text,
        source_text=request.source_text,
        vectors=request.vectors,
        helper=HelperModel.open(request.helper) if request.helper else None,
        encoder=HelperModel.open(request.encoder) if request.encoder else None,
        word_vectors=WordVectors.read(request.word_vectors) if request.word_vectors else None,
        source_word_vectors=WordVectors.read(request.source_word_vectors) if request.source_word_vectors else None,
        dictionary=read_dictionary(request.dictionary) if request.dictionary else None,
        parallel=request.parallel,
        num_atoms=request.num_atoms,
        as_published=bool(request.as_published),
        fallback=request.fallback,
    )
    return TransferCase(checkpoint, layers, output_layer, factorised_size, inputs, target_files)


def _tokenize(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]


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
    request, checkpoint = transfer.request, transfer.checkpoint
    tensors = list(transfer.tensors())
    is_tied = transfer.output_layer == "tied"
    facts = {
        "tokenizer_digest": transfer.target.digest,
        "vocab_size": transfer.num_rows,
        "tie_word_embeddings": is_tied,
        "method": request.method or _COPY,
        "vocabulary": {"strategy": request.vocabulary.strategy, **transfer.target.facts},
        "head": transfer.output_layer,
        "seed": request.seed,
        "model_type": checkpoint.model_type,
        "matching": request.matching,
        "num_rows_by_origin": transfer.plan.counts(),
    }
    if transfer.factorised_size is not None:
        facts["factorised_size"] = transfer.factorised_size
    inputs = {str(request.source): checkpoint.digest()}
    if request.tokenizer is not None:
        inputs[str(request.tokenizer)] = tokenizer_digest(load_tokenizer(request.tokenizer))
    text_files = [path for text in (request.text, request.source_text) if text is not None for path in text.paths]
    files = [*text_files, *(text.path for text in report_texts), request.word_vectors, request.source_word_vectors, request.dictionary]
    files.append(request.parallel.path if request.parallel else None)
    inputs.update({str(path): digest_file(path) for path in files if path is not None})
    inputs.update({str(path): HFCheckpoint.open(path).digest() for path in (request.helper, request.encoder) if path is not None})
    factors = list(_factor_tensors(transfer))
    with staged_directory(output_dir, required_bytes=sum(tensor.nbytes for tensor in [*tensors, *factors])) as staging:
        config = _with_target_ids(checkpoint.config, transfer)
        config.update(vocab_size=transfer.num_rows, tie_word_embeddings=is_tied)
        digests = write_hf_checkpoint(staging, config, tensors)
        if factors:
            digests[FACTORS_NAME] = write_safetensors(staging / FACTORS_NAME, factors)
        for name, content in transfer.target.files.items():
            (staging / name).write_bytes(content)
        generation_config = _generation_config(request.source)
        if generation_config is not None:
            write_json(staging / GENERATION_CONFIG_NAME, _with_target_ids(generation_config, transfer))
        texts = {text.name: _first_documents(text.documents) for text in report_texts}
        if not texts and request.text is not None:
            texts["--text"] = _first_documents(request.text)
        layers = _written_layers(transfer, HFCheckpoint.open(staging))
        warnings = write_report(staging, transfer.inputs, transfer.plan, facts, layers=layers, texts=texts)
        manifest = write_manifest(
            staging, stage="conversion.transfer", facts=facts, arguments=arguments, inputs=inputs, known_digests=digests
        )
    return manifest, warnings


def _written_layers(transfer: Transfer, written: HFCheckpoint) -> list[LayerRows]:
    """The token matrices before and after; an output layer only where it is not the input's."""
    layers = [LayerRows("input embeddings", transfer.checkpoint.tensor(transfer.layers.input), written.tensor(transfer.layers.input))]
    if transfer.output_layer in ("transferred", "random"):
        source, target = transfer.layers.output or transfer.layers.input, transfer.layers.output or transfer.layers.new_output
        layers.append(LayerRows("output layer", transfer.checkpoint.tensor(source), written.tensor(target)))
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
    elif method not in METHODS:
        found = "no --method is given" if method is None else f"unknown method {method!r}"
        raise ValueError(f"{found}; the known ones are {', '.join(METHODS)}")
    if strategy == "keep" and request.factorised_size is not None:
        raise ValueError("--vocabulary keep leaves the matrices as they are; leave out --factorised-size")
    if request.special_tokens and (strategy == "keep" or (method is not None and not METHODS[method].copies)):
        asked = f"--method {method} draws every row" if method else f"--vocabulary {strategy} leaves the matrices as they are"
        raise ValueError(f"{asked}, so that --special-token changes nothing; leave it out")
    if not 0 <= request.seed < 2**32:
        raise ValueError(f"--seed is {request.seed}; expected 0 to {2**32 - 1}")
    if method is not None and (missing := missing_material(request, method)):
        raise ValueError(missing)
    given = {name for name in MATERIAL if getattr(request, name) is not None} - read_by(request.vocabulary, request.tokenizer)
    for name in (name for name in MATERIAL if name in given - (METHODS[method].uses if method is not None else frozenset())):
        flag, users = MATERIAL[name][0], ", ".join(method for method, other in METHODS.items() if name in other.uses)
        asked = f"--vocabulary {strategy}" if method is None else f"--method {method}"
        raise ValueError(f"{asked} makes no use of {flag}; leave it out (it serves {users})")
    for first, second in METHODS[method].either if method is not None else ():
        if {first, second} <= given:
            raise ValueError(f"--method {method} reads {MATERIAL[first][0]} or {MATERIAL[second][0]}; leave one of them out")


def missing_material(request: TransferRequest, method: str) -> str:
    """A sentence about what a method needs and the request does not give; empty where nothing is missing."""
    needs = [*((name,) for name in METHODS[method].needs), *METHODS[method].either]
    for names in sorted(needs, key=lambda names: list(MATERIAL).index(names[0])):
        if all(getattr(request, name) is None for name in names):
            flags, kinds = zip(*(MATERIAL[name] for name in names))
            return f"--method {method} needs {' or '.join(kinds)}; give it with {' or '.join(flags)}"
    return ""


def _require_finite(rows: Tensor, name: str, source: Path) -> None:
    is_bad = ~torch.isfinite(rows.sum(dim=1, dtype=torch.float64))
    if is_bad.any():
        ids = torch.nonzero(is_bad).flatten().tolist()
        raise ValueError(
            f"{source}: {len(ids)} of {len(rows)} token rows of {name} hold NaN or infinite values, the first at id {ids[0]}; repair the checkpoint"
        )


def _factor_tensors(transfer: Transfer) -> Iterator[LazyTensor]:
    """The factors by the layer that they belong to, `input` or `output`."""
    for name, factors in transfer.factors.items():
        layer = "input" if name == transfer.layers.input else "output"
        for part in fields(factors):
            yield LazyTensor.of(f"{layer}.{part.name}", getattr(factors, part.name))


def _with_target_ids(config: Mapping[str, Any], transfer: Transfer) -> dict[str, Any]:
    """A config whose token ids are the target's.

    Where the tokens were taken over with their ids, nothing changes; where they were renumbered, all ids are; for another tokenizer
    ids follow the roles, and those without a role in it are unset.
    """
    changed = dict(config)
    strategy = transfer.request.vocabulary.strategy
    if strategy == "replace":
        for role in _CONFIG_ROLES:
            key = f"{role}_token_id"
            if key in changed or role in transfer.inputs.target.roles:
                changed[key] = transfer.inputs.target.roles.get(role)
        changed.update({key: None for key in _OTHER_ID_KEYS if changed.get(key) is not None})
    elif strategy == "prune":
        assert transfer.target.source_ids is not None
        new_ids = {old_id: new_id for new_id, old_id in enumerate(transfer.target.source_ids.tolist())}
        changed = with_new_ids(config, new_ids)
    return changed


def with_new_ids(config: Mapping[str, Any], new_ids: Mapping[int, int]) -> dict[str, Any]:
    """A config whose token ids are renumbered; those that are gone are unset.

    Args:
        new_ids: old id -> new id.
    """
    keys = (*(f"{role}_token_id" for role in _CONFIG_ROLES), *_OTHER_ID_KEYS)
    return {**config, **{key: _renumbered(config[key], new_ids) for key in keys if key in config}}


def _renumbered(ids: Any, new_ids: Mapping[int, int]) -> Any:
    """An id, or ids in lists of any depth, by their new numbers; those that are gone are left out of lists."""
    if isinstance(ids, list):
        return [new for new in (_renumbered(old, new_ids) for old in ids) if new is not None]
    return new_ids.get(ids)


def _generation_config(source: Path) -> dict[str, Any] | None:
    path = source / GENERATION_CONFIG_NAME
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}); copy or download it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; expected a JSON object")
    return content
