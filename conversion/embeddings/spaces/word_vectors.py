"""Word vectors, read from a file or trained on text, and the token vectors computed from them."""

from __future__ import annotations

import gzip
import mmap
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import regex

from conversion.embeddings.options import VECTOR_SUFFIXES
from conversion.embeddings.spaces.colexnet import has_languages, text_of
from conversion.embeddings.spaces.fasttext import MAX_SENTENCE_TOKENS
from conversion.embeddings.spaces.token_vectors import TokenVectors
from conversion.embeddings.vocabularies.vocabulary import Vocabulary

WORD = regex.compile(r"[\p{L}\p{M}\p{N}'’]+|[^\s]")
_FASTTEXT_MAGIC = 793712314  # of its files since 2017
_MAX_LINE_BYTES = 1 << 22  # of a vector as text
_MAX_GROWTH = 50  # of text that gzip compresses; vectors shrink to a third
_BLOCK_WORDS = 100_000  # whose tokens are held as lists at a time


@dataclass(frozen=True)
class WordVectors:
    """Vectors of the words of a language.

    Attributes:
        words: from the most frequent to the least.
        vectors: (num_words, size) float32.
        frequencies: (num_words,) counts, or 1 / rank where a file tells only the order (Zipf's law).
        of_any_word: the vector of a word that need not be in the list, from its character n-grams; None where there are none.
        marks_boundaries: whether the words are runs of characters of many languages, with a space where a word begins or ends (ColexNet+).
    """

    name: str
    words: tuple[str, ...]
    vectors: np.ndarray
    frequencies: np.ndarray
    of_any_word: Callable[[str], np.ndarray | None] | None = None
    marks_boundaries: bool = False

    @classmethod
    def read(cls, path: Path) -> WordVectors:
        """Read word2vec's text form (`.vec`, `.txt`, also `.gz`) or fastText's binary one (`.bin`), which has n-grams too.

        Keys of ColexNet+ become the texts that they stand for.

        Raises:
            ValueError: if the file is missing, of another kind, or damaged.
        """
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"the vectors {path} do not exist")
        if not path.name.endswith(VECTOR_SUFFIXES):
            raise ValueError(f"the vectors {path} are of an unknown kind; expected a name ending in {', '.join(VECTOR_SUFFIXES)}")
        if _is_pickle(path):
            raise ValueError(
                f"the vectors {path} are a pickle, as gensim's own form is, and are not opened; save them as text where you trust them:"
                f" KeyedVectors.load({path.name!r}).save_word2vec_format('{path.stem}.vec')"
            )
        return _read_binary(path) if path.suffix == ".bin" else _read_text(path)

    @property
    def index(self) -> dict[str, int]:
        """Word -> row."""
        return {word: i for i, word in enumerate(self.words)}

    def token_vectors(
        self, vocabulary: Vocabulary, tokenize: Callable[[list[str]], list[list[int]]], *, each_variant: bool = False
    ) -> TokenVectors:
        """Vectors of the tokens of text, as WECHSEL's code makes them.

        From n-grams where there are some: the vector of the token's text without spaces.  Otherwise the mean of the words that
        contain the token, weighted by their frequency; words are cut with and without a space before them.
        """
        if self.of_any_word is not None:
            return self._from_ngrams(vocabulary)
        return self.pooled(vocabulary, tokenize, variants=(str, _after_space), by_frequency=True, each_variant=each_variant)

    def pooled(
        self,
        vocabulary: Vocabulary,
        tokenize: Callable[[list[str]], list[list[int]]],
        *,
        variants: Sequence[Callable[[str], str]],
        by_frequency: bool,
        each_variant: bool = False,
    ) -> TokenVectors:
        """For each token the mean of the vectors of the words that contain it.

        Args:
            tokenize: text -> ids of the vocabulary.
            variants: how a word may stand in text; a token that occurs in any variant belongs to the word.
            by_frequency: weight each word by its frequency; otherwise all alike.
            each_variant: count a word as often as it has variants with the token; otherwise once.
        """
        from scipy import sparse

        blocks = [
            _members(self.words[start : start + _BLOCK_WORDS], start, tokenize, variants, each_variant=each_variant)
            for start in range(0, len(self.words), _BLOCK_WORDS)
        ]
        token_ids, word_ids = (np.concatenate(parts) if parts else np.zeros(0, np.int32) for parts in zip(*blocks, strict=True))
        values = self.frequencies[word_ids] if by_frequency else np.ones(len(word_ids))
        weights = sparse.csr_matrix((values, (token_ids, word_ids)), shape=(len(vocabulary), len(self.words)))
        totals = np.asarray(weights.sum(axis=1)).ravel()
        ids = np.flatnonzero((totals > 0) & vocabulary.is_text)
        means = (weights[ids] @ self.vectors.astype(np.float64)) / totals[ids, None]
        return TokenVectors.of(means.astype(np.float32), ids, len(vocabulary))

    def _from_ngrams(self, vocabulary: Vocabulary) -> TokenVectors:
        assert self.of_any_word is not None
        ids, vectors = [], []
        for token_id in np.flatnonzero(vocabulary.is_text):
            try:
                word = (vocabulary.token_bytes[token_id] or b"").decode().strip()
            except UnicodeDecodeError:  # part of a character has no text
                continue
            vector = self.of_any_word(word) if word else None
            if vector is not None:
                ids.append(int(token_id))
                vectors.append(vector)
        matrix = np.array(vectors, dtype=np.float32).reshape(len(ids), self.vectors.shape[1])
        return TokenVectors.of(matrix, np.array(ids, dtype=np.int64), len(vocabulary))


def _members(
    words: Sequence[str],
    first: int,
    tokenize: Callable[[list[str]], list[list[int]]],
    variants: Sequence[Callable[[str], str]],
    *,
    each_variant: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Token and word of each place where a word contains a token: ids, and numbers from `first` on, (places,) int32 each."""
    ids_of_variants = [tokenize([variant(word) for word in words]) for variant in variants]
    token_ids: list[int] = []
    word_ids: list[int] = []
    for word_id, ids_of_word in enumerate(zip(*ids_of_variants), start=first):
        members = [i for variant in ids_of_word for i in set(variant)]
        if not each_variant:
            members = list(dict.fromkeys(members))
        token_ids.extend(members)
        word_ids.extend([word_id] * len(members))
    return np.array(token_ids, dtype=np.int32), np.array(word_ids, dtype=np.int32)


@dataclass(frozen=True)
class WordCorpus:
    """The words of a text, line by line; as ids, which take a twentieth of the memory of strings.

    A word is a run of letters, digits and apostrophes, or one other character.
    """

    name: str
    words: tuple[str, ...]
    lines: list[np.ndarray]

    @classmethod
    def of(cls, texts: Iterable[str], *, name: str) -> WordCorpus:
        """Cut texts into words."""
        ids: dict[str, int] = {}
        lines = []
        for text in texts:
            for line in text.split("\n"):
                words = [ids.setdefault(word, len(ids)) for word in split_words(line)]
                lines += [np.array(words[i : i + MAX_SENTENCE_TOKENS], dtype=np.int32) for i in range(0, len(words), MAX_SENTENCE_TOKENS)]
        return cls(name, tuple(ids), lines)

    def __len__(self) -> int:
        return sum(map(len, self.lines))

    def __iter__(self) -> Iterator[list[str]]:
        for ids in self.lines:
            yield [self.words[i] for i in ids]


def train_word_vectors(corpus: WordCorpus, *, size: int, epochs: int, min_count: int, seed: int) -> WordVectors:
    """Train fastText (skip-gram, as its published word vectors) on the words of a text; one thread makes it repeatable.

    Raises:
        ValueError: if hardly any word occurs often enough.
    """
    counts = np.bincount(np.concatenate(corpus.lines), minlength=len(corpus.words)) if corpus.lines else np.zeros(0, dtype=np.int64)
    kept = [corpus.words[i] for i in np.flatnonzero(counts >= min_count)]
    if len(kept) < 2:
        raise ValueError(
            f"{corpus.name} has {len(corpus)} words, of which {len(kept)} are seen at least {min_count} times:"
            " too little to train vectors; give more text or a lower --vector-min-count"
        )
    from conversion.embeddings.spaces.fasttext import fit_fasttext

    model = fit_fasttext(corpus, len(corpus), kept, size=size, epochs=epochs, min_count=min_count, seed=seed, skip_gram=True)
    words = tuple(model.wv.index_to_key)
    frequencies = np.array([model.wv.get_vecattr(word, "count") for word in words], dtype=np.float64)
    return WordVectors(corpus.name, words, model.wv.vectors, frequencies, _any_word(model.wv))


def split_words(text: str) -> list[str]:
    """Words and other characters of a line, spaces left out."""
    return WORD.findall(text)


def _after_space(word: str) -> str:
    return f" {word}"


def _any_word(vectors: object) -> Callable[[str], np.ndarray | None]:
    def of_any_word(word: str) -> np.ndarray | None:
        try:
            return vectors.get_vector(word)  # type: ignore[attr-defined]
        except KeyError:  # none of its n-grams is known
            return None

    return of_any_word


def _is_pickle(path: Path) -> bool:
    with open(path, "rb") as stream:
        return stream.read(1) == b"\x80"  # the protocol's number follows; no text and no other form that is known begins so


def _read_binary(path: Path) -> WordVectors:
    from gensim.models.fasttext import load_facebook_vectors

    try:
        _require_whole_binary(path)
        vectors = load_facebook_vectors(str(path))
    except Exception as error:  # the library raises anything for a damaged file
        raise ValueError(f"{path} is not a fastText model ({error}); copy or download it again") from error
    words: tuple[str, ...] = tuple(vectors.index_to_key)
    frequencies = np.array([vectors.get_vecattr(word, "count") for word in words], dtype=np.float64)
    return WordVectors(str(path), words, vectors.vectors, frequencies, _any_word(vectors))


def _require_whole_binary(path: Path) -> None:
    """Go over the words and sizes of a fastText model, whose reader looks for the end of a word that was cut off for ever.

    Raises:
        ValueError: if they lead beyond the end of the file.
        struct.error: if the file ends before them.
    """
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        is_new = struct.unpack_from("<i", content)[0] == _FASTTEXT_MAGIC
        place = 64 if is_new else 56  # behind the settings
        num_words, num_pruned = (
            struct.unpack_from("<i", content, place)[0],
            struct.unpack_from("<q", content, place + 20)[0] if is_new else 0,
        )
        place += 28 if is_new else 20
        for _ in range(num_words):
            end = content.find(b"\0", place)
            if end < 0:
                raise ValueError(f"its {num_words} words are not terminated")
            place = end + 10  # behind the count and the kind of the word
        place += 8 * max(0, num_pruned) + is_new
        rows, size = struct.unpack_from("<qq", content, place)
        if rows < 0 or size < 0 or place + 16 + 4 * rows * size > len(content):
            raise ValueError(f"{rows} vectors of {size} numbers are more than it has")


def _read_text(path: Path) -> WordVectors:
    names: list[str] = []
    rows: list[np.ndarray] = []
    size = 0
    for number, fields in _vector_lines(path):
        word, values = fields[0], fields[1:]
        size = size or len(values)
        if len(values) != size:
            raise ValueError(f"{path}, line {number} has {len(values)} numbers, but the first vector has {size}; repair or remove the line")
        try:
            row = np.array(values, dtype=np.float32)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} holds something that is not a number: {error}") from error
        if not np.isfinite(row).all():
            raise ValueError(f"{path}, line {number} holds NaN or infinite values; repair or remove the line")
        names.append(word)
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} has no vectors; expected a word and its numbers on each line")
    is_multilingual = has_languages(names)
    if is_multilingual:
        texts = [text_of(name) for name in names]
        if "" in texts:
            raise ValueError(
                f"{path} has the key {names[texts.index('')]!r} among keys of ColexNet+, which stands for no text; expected a language, a colon"
                " and a run of characters, such as slv:$hiša$"
            )
        names = texts
    return WordVectors(str(path), tuple(names), np.stack(rows), 1 / np.arange(1, len(names) + 1), marks_boundaries=is_multilingual)


def _vector_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Numbered lines as word and numbers; the header with the sizes is skipped.

    Raises:
        ValueError: if the file is damaged, or stands for far more text than its size explains.
    """
    number, left = 0, _MAX_GROWTH * path.stat().st_size + _MAX_LINE_BYTES
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            while line := stream.readline(_MAX_LINE_BYTES):
                number, left = number + 1, left - len(line)
                if len(line) == _MAX_LINE_BYTES or left < 0:
                    raise ValueError(
                        f"{path}, line {number} is longer than any vector, or the file stands for more text than its size explains"
                    )
                fields = line.decode().rstrip("\r\n").rstrip(" ").split(" ")
                if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                    continue
                if len(fields) > 1:
                    yield number, fields
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is cut off or damaged behind line {number} ({error}); copy or download it again") from error
