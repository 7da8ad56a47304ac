"""One shard of a mixture: its documents counted in tokens, then written to training or validation."""

from __future__ import annotations

import json
import os
import zipfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.artifacts import written_aside
from common.progress import Counter
from data_prep.cleaning.scores import value_at
from data_prep.megatron.word_encoder import LibraryEncoder, WordEncoder, word_encoder
from data_prep.mixing.sentences import sentences
from data_prep.reading.document_ids import id_hash
from data_prep.reading.documents import Document, batches
from data_prep.sharing.scanning import Reading
from data_prep.sharing.shards import JsonLinesWriter, file_state
from data_prep.tokenizers.files import load_tokenizer

LEFT_OUT, TRAIN, VALIDATION = 0, 1, 2
SIDES = ("left out", "train", "validation")
_BATCH_CHARACTERS = 1 << 20
_PROGRESS: list[Counter] = []
_ANY_TOKEN = 0  # stands for the end-of-text token, which only has to be counted


class Unit(NamedTuple):
    """A document of the mixture.

    Attributes:
        group: documents of one group, of any corpus, stay on one side.
    """

    document: Document
    identity: Any
    group: Any


@dataclass(frozen=True)
class Units:
    """What a document of the mixture is: a document of the input, or a sentence of one."""

    reading: Reading
    group_key: str = "group"
    by_sentence: bool = False
    weight_keys: tuple[tuple[str, str], ...] = ()

    def weight(self, unit: Unit, path: Path, corpus: str) -> float:
        """In proportion to which it is taken beside others.

        Raises:
            ValueError: if it has none.
        """
        if (key := key_of(corpus, self.weight_keys)) is None:
            return 1.0
        value = value_at(unit.document.fields, key)
        if value is None or value < 0:
            found = "missing, or not a number" if value is None else f"{value:g}"
            raise ValueError(
                f"{path}, document {unit.identity}: {key}, the --weight-key of {corpus}, is {found}; expected a number of at least 0."
                f" Leave such documents out with data_prep.clean (scores, missing: drop), or name the key for other corpora alone (CORPUS=KEY)"
            )
        return value

    def read(self, path: Path, corpus: str) -> Iterator[Unit]:
        """The documents with text; one without the group key is a group by itself, as are the sentences of one."""
        for document in self.reading.documents(path, progress=_PROGRESS[0] if _PROGRESS else None):
            identity = document.fields.get("id", f"{path.name}:{document.line}")
            group = document.fields.get(self.group_key, [corpus, identity])
            if self.by_sentence:
                for number, sentence in enumerate(sentences([document.text]), start=1):
                    yield Unit(Document(sentence.strip(), document.line, document.fields), f"{identity}#{number}", group)
            elif document.text.strip():
                yield Unit(document, identity, group)


def key_of(corpus: str, weight_keys: Sequence[tuple[str, str]]) -> str | None:
    """Key of the weights of a corpus; None if its documents are alike.

    Args:
        weight_keys: (corpus, key); a corpus of "" stands for those that are not named.
    """
    keys = dict(weight_keys)
    return keys.get(corpus, keys.get(""))


@dataclass(frozen=True)
class ShardTable:
    """The documents of a shard, in order.

    Attributes:
        ids, groups: (num_documents,) uint64, hashes of the corpus with the id, and of the group.
        tokens: (num_documents, num_tokenizers) int64, each with the tokens that will stand in front of it and the end-of-text token behind it.
        text_bytes: (num_documents,) int64, of UTF-8.
        weights: (num_documents,) float64, in proportion to which documents are taken; 1 where they are alike.
    """

    ids: NDArray[np.uint64]
    groups: NDArray[np.uint64]
    tokens: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    weights: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def load(cls, path: Path) -> ShardTable:
        """What `count_shard` wrote."""
        with np.load(path) as saved:
            return cls(*(saved[field.name] for field in fields(cls)))


@dataclass(frozen=True)
class CountJob:
    """A file to count, and where its table goes."""

    path: Path
    corpus: str
    table_path: Path
    units: Units


_ENCODERS: list[tuple[WordEncoder | LibraryEncoder, int]] = []  # of this process, and how many tokens stand in front of a document


def show_progress(progress: Counter) -> None:
    """Where shards count the bytes that they read, in this process and those forked from it."""
    _PROGRESS[:] = [progress]


def prepare_to_count(directories: Sequence[Path], fronts: Sequence[Sequence[int]], is_alone: bool, progress: Counter) -> None:
    """Load the tokenizers of this process: they do not survive a fork in use.

    Args:
        fronts: ids in front of each document, by tokenizer.
        is_alone: whether they may use all cores; a forked process that tries to would wait for threads that it does not have.
    """
    show_progress(progress)
    if not is_alone:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _ENCODERS[:] = [
        (word_encoder(load_tokenizer(directory).backend_tokenizer), len(front))
        for directory, front in zip(directories, fronts, strict=True)
    ]


def count_shard(job: CountJob) -> None:
    """Count a file into its table, unless an earlier run has.

    Raises:
        ValueError: if the file cannot be read.
    """
    state = json.dumps(file_state(job.path))
    if _is_counted(job.table_path, state):
        return
    ids, groups, text_bytes, weights = array("Q"), array("Q"), array("q"), array("d")

    def texts() -> Iterator[str]:
        for unit in job.units.read(job.path, job.corpus):
            ids.append(id_hash(json.dumps([job.corpus, unit.identity])))
            groups.append(id_hash(json.dumps(unit.group)))
            text_bytes.append(len(unit.document.text.encode()))
            weights.append(job.units.weight(unit, job.path, job.corpus))
            yield unit.document.text

    rows = [count_tokens(batch) for batch in batches(texts(), _BATCH_CHARACTERS)]
    tokens = np.concatenate([*rows, np.zeros((0, len(_ENCODERS)), np.int64)])
    table = ShardTable(
        np.frombuffer(ids, np.uint64),
        np.frombuffer(groups, np.uint64),
        tokens,
        np.frombuffer(text_bytes, np.int64),
        np.frombuffer(weights, np.float64),
    )
    job.table_path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(job.table_path) as file:
        np.savez(file, state=np.array(state), **vars(table))


def _is_counted(table_path: Path, state: str) -> bool:
    """Whether the table of an earlier run is whole and of the same input."""
    try:
        with np.load(table_path) as saved:
            if str(saved["state"]) == state:
                for field in fields(ShardTable):
                    saved[field.name]
                return True
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile):  # cut by a machine that went down
        table_path.unlink()
    return False


def count_tokens(texts: Sequence[str]) -> NDArray[np.int64]:
    """(len(texts), num_tokenizers) tokens, with those in front of each text and an end-of-text token after it."""
    return np.stack([encoder.encode(texts, _ANY_TOKEN)[1] + front for encoder, front in _ENCODERS], axis=1)


@dataclass(frozen=True)
class WriteJob:
    """A file to divide.

    Attributes:
        table_path, sides_path: what was counted, and for each document `LEFT_OUT`, `TRAIN` or `VALIDATION`.
        train_path, validation_path, documents_path: what is written.
    """

    path: Path
    corpus: str
    units: Units
    table_path: Path
    sides_path: Path
    tokenizers: tuple[str, ...]
    train_path: Path
    validation_path: Path
    documents_path: Path


def write_shard(job: WriteJob) -> None:
    """Write the documents of both sides, their text under `text`, and a line for each document that says where it went and how long it is.

    Raises:
        ValueError: if the file is not what was counted.
    """
    table, sides = ShardTable.load(job.table_path), np.load(job.sides_path)
    number = -1
    with (
        JsonLinesWriter(job.train_path) as train_file,
        JsonLinesWriter(job.validation_path) as validation_file,
        JsonLinesWriter(job.documents_path) as documents_file,
    ):
        for number, (document, identity, _) in enumerate(job.units.read(job.path, job.corpus)):
            if number >= len(table) or id_hash(json.dumps([job.corpus, identity])) != int(table.ids[number]):
                raise ValueError(f"{job.path} was changed while the mixture was made; run again")
            side = int(sides[number])
            record: dict[str, Any] = {**document.fields, "id": identity, "corpus": job.corpus, "text": document.text}
            if side == TRAIN:
                train_file.write(record)
            elif side == VALIDATION:
                validation_file.write(record)
            tokens = dict(zip(job.tokenizers, table.tokens[number].tolist()))
            line = {"id": identity, "line": document.line, "side": SIDES[side], "bytes": int(table.text_bytes[number]), "tokens": tokens}
            has_weight = key_of(job.corpus, job.units.weight_keys) is not None
            documents_file.write(line | ({"weight": float(table.weights[number])} if has_weight else {}))
        if number + 1 != len(table):
            raise ValueError(f"{job.path} was changed while the mixture was made; run again")
