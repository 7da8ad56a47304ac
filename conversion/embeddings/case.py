"""The inputs of a transfer: model, tokenizers and texts, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common.artifacts import read_manifest, require_same_tokenizer
from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.embeddings.factorisation import choose_factorised_size
from conversion.embeddings.layers import TokenLayers, choose_output_layer, find_token_layers, require_same_padding
from conversion.embeddings.methods.method import Teacher, TransferInputs
from conversion.embeddings.methods.words import read_dictionary
from conversion.embeddings.options import LearningOptions, TransferRequest
from conversion.embeddings.spaces.helper_model import HelperModel
from conversion.embeddings.spaces.word_vectors import WordVectors
from conversion.embeddings.vocabularies.strategies import TargetTokenizer, read_source_tokenizer, target_tokenizer
from conversion.embeddings.vocabularies.vocabulary import Kind, Vocabulary
from conversion.embeddings.vocabularies.vocabulary_map import map_vocabulary
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.numbers import finite_rows
from data_prep.tokenizers.files import tokenizer_digest

if TYPE_CHECKING:
    from data_prep.tokenizers.plain_tokenizer import AnyTokenizer

_AS_GIVEN = ("seed", "text", "source_text", "vectors", "parallel", "num_atoms", "num_pairs", "fallback")  # to a method as to the command


@dataclass(frozen=True)
class TransferCase:
    """What a transfer starts from, read and checked; it serves any number of methods and seeds."""

    checkpoint: HFCheckpoint
    layers: TokenLayers
    output_layer: str
    factorised_size: int | None
    inputs: TransferInputs
    target: TargetTokenizer


def read_case(request: TransferRequest) -> TransferCase:
    """Read the model, both tokenizers and whatever material the request names, and refuse what does not fit; writes nothing.

    Raises:
        ValueError: for anything that the user has to change.
    """
    checkpoint = HFCheckpoint.open(request.source)
    layers = find_token_layers(checkpoint)
    output_layer = choose_output_layer(request.output_layer, source_is_tied=checkpoint.tie_word_embeddings, source=str(request.source))
    source_tokenizer = read_source_tokenizer(request.vocabulary, request.source)
    manifest = read_manifest(request.source)
    if manifest is not None:
        require_same_tokenizer(
            tokenizer_digest(source_tokenizer),
            manifest.facts.get("tokenizer_digest"),
            found_in=str(request.source),
            expected_by="its manifest",
        )
    source = Vocabulary.of(source_tokenizer).as_source()
    if len(source) > layers.num_rows:
        raise ValueError(
            f"the tokenizer in {request.source} has {len(source)} ids, but {layers.input} has only {layers.num_rows} rows;"
            " give the model with its own tokenizer"
        )
    num_tokens = int((source.kinds != Kind.HOLE).sum())
    factorised_size = choose_factorised_size(request.factorised_size, num_tokens=num_tokens, hidden_size=checkpoint.shape(layers.input)[1])
    for name in filter(None, (layers.input, layers.output)):
        _require_finite(checkpoint.tensors[name].row_range(name, 0, len(source)), request.source)
    target_files = target_tokenizer(request, source_tokenizer)
    target = Vocabulary.of(target_files.tokenizer)
    require_same_padding(checkpoint, target.roles.get("pad"))
    inputs = TransferInputs(
        source=source,
        target=target,
        overlap=map_vocabulary(
            source, target, special_tokens=request.special_tokens, known_ids=target_files.source_ids, matching=request.matching
        ),
        tokenize=partial(_tokenize, target_files.tokenizer),
        tokenize_source=partial(_tokenize, source_tokenizer),
        helper=HelperModel.open(request.helper) if request.helper else None,
        encoder=HelperModel.open(request.encoder) if request.encoder else None,
        word_vectors=WordVectors.read(request.word_vectors) if request.word_vectors else None,
        source_word_vectors=WordVectors.read(request.source_word_vectors) if request.source_word_vectors else None,
        dictionary=read_dictionary(request.dictionary) if request.dictionary else None,
        as_published=bool(request.as_published),
        teacher=Teacher(request.source, output_layer, request.random_statistics, request.learning or LearningOptions()),
        **{name: getattr(request, name) for name in _AS_GIVEN},
    )
    return TransferCase(checkpoint, layers, output_layer, factorised_size, inputs, target_files)


def _tokenize(tokenizer: AnyTokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]


def _require_finite(rows: LazyTensor, source: Path) -> None:
    """Refuse token rows (num_tokens, size) that are not numbers."""
    is_finite, start = np.zeros(rows.shape[0], dtype=bool), 0
    for bits in rows.checked_blocks():
        is_finite[start : start + len(bits)] = finite_rows(bits, rows.dtype_name)
        start += len(bits)
    if not is_finite.all():
        bad = np.flatnonzero(~is_finite)
        raise ValueError(
            f"{source}: {len(bad)} of {len(is_finite)} token rows of {rows.name} hold NaN or infinite values, the first at id {bad[0]}; repair the checkpoint"
        )
