"""Near-duplicate documents: candidates by MinHash (Broder 1997), verified by comparison, of which one per cluster is kept.

A document is the set of its n-grams of words, without case, accents and punctuation.  The hashes of its signature are cut into bands of
rows; two documents that agree in all rows of one band are candidates, which happens with probability 1 - (1 - s ** rows) ** bands
at a Jaccard similarity of s (the S-curve: Leskovec, Rajaraman, Ullman, section 3.4).  Candidates are compared by their true
similarity.  A document goes only if it is like one that *stays*, so likeness is never handed on from document to document.

The text is read once, in parallel; n-grams (4 bytes each) and keys of bands (8 bytes each) wait on disk.  Memory is some 50 bytes a
document, and about 100 for each that has a candidate.
"""

from __future__ import annotations

import ctypes
import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from common import native
from common.native import address
from common.options import option, require_values
from common.progress import Progress
from data_prep.deduplication.onion_types import finish

SOURCE = Path(__file__).with_name("similar.c")
_MAX_N = 64  # words that similar.c remembers
MEASURES = ("jaccard", "containment")
KEEP = ("longest", "first")
DEFAULT_SHARE, DEFAULT_N = 0.5, 4  # what finds most of those that take as little of other text, see docs/data.md
_NUM_HASHES, _MAX_HASHES = 256, 1024  # of a signature: as chosen here, and at most
DEFAULT_RECALL = 0.98
_WORDS, _EDITS = 200, (1, 2, 5, 10, 20)  # of a text, and how many of them are other ones, for which is said what to expect
_MOST_COMPARED = 1000  # kept documents of a band that a document is compared with
_PAGE, _NUM_PAGES = 256, 4352
_DROPPED, _SPACE, _ALONE = 0, 1, 0x80000000
# Scripts that put no spaces between words: each letter is a word.
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}&&\p{L}]", regex.V1)
_ACCENTS = regex.compile(r"[\p{Mn}&&[\p{Inherited}\p{Hebrew}]]", regex.V1)


@dataclass(frozen=True)
class SimilarSettings:
    """Which documents are alike, and which of them stays.

    Attributes:
        share: similarity from which on a document goes.
        n: words in an n-gram; a document of fewer is like none.
        recall: share of the pairs of that similarity that shall be compared.
        bands, rows: of the signature; None for as many as reach that recall, in at most 256 hashes, with the most rows.
        measure: `jaccard`: n-grams of both among those of either; `containment`: among those of the smaller.  Candidates are
            found by Jaccard similarity either way.
        keep: who of those that are alike stays: the `longest` (in words; of equals the first), or the `first`.
        unchecked: every candidate goes, without being compared, as in tools that stop at MinHash.

    Raises:
        ValueError: if a value is impossible.
    """

    share: float = option(
        "--similar-documents SHARE",
        f"remove documents with at least this similarity to a kept one (default if no number is given: {DEFAULT_SHARE})",
        DEFAULT_SHARE,
        nargs="?",
        const=DEFAULT_SHARE,
    )
    n: int = option("--similar-ngram N", "words in an n-gram", DEFAULT_N)
    recall: float = option(
        "--similar-recall SHARE", "share of the pairs with that similarity to find; decides bands and rows", DEFAULT_RECALL
    )
    bands: int | None = option("--similar-bands B", "number of bands of the MinHash signature (default: from similarity and recall)")
    rows: int | None = option("--similar-rows R", "rows per band; pairs with similarity s are compared with probability 1-(1-s^R)^B")
    measure: str = option(
        "--similar-measure",
        "similarity: shared n-grams out of all n-grams of both documents, or of the smaller one",
        "jaccard",
        choices=MEASURES,
    )
    keep: str = option("--similar-keep", "which document of a cluster of near-duplicates to keep", "longest", choices=KEEP)
    unchecked: bool = option(
        "--similar-unchecked",
        "remove all documents that agree in a band, without verifying their similarity",
        False,
    )

    def __post_init__(self) -> None:
        require_values(self)
        if not 0 < self.share <= 1:
            raise ValueError(f"--similar-documents is {self.share}; expected a share above 0, at most 1")
        if not 1 <= self.n <= _MAX_N:
            raise ValueError(f"--similar-ngram is {self.n}; expected 1 to {_MAX_N} words")
        if not 0 < self.recall < 1:
            raise ValueError(f"--similar-recall is {self.recall}; expected a share above 0 and below 1, such as {DEFAULT_RECALL}")
        if (self.bands is None) != (self.rows is None):
            raise ValueError(
                "--similar-bands and --similar-rows belong together; give both, or neither and they follow from --similar-documents"
            )
        if self.bands is not None and self.rows is not None:
            if min(self.bands, self.rows) < 1:
                raise ValueError(f"--similar-bands and --similar-rows are {self.bands} and {self.rows}; expected at least 1")
            if self.bands * self.rows > _MAX_HASHES:
                raise ValueError(
                    f"--similar-bands {self.bands} of --similar-rows {self.rows} are {self.bands * self.rows} hashes a document; expected at"
                    f" most {_MAX_HASHES}"
                )
        else:
            bands_and_rows(self.share, self.recall)
        if self.unchecked and self.measure != "jaccard":
            raise ValueError(
                f"--similar-unchecked compares nothing, so --similar-measure {self.measure} would have no effect; leave out one of them"
            )

    @property
    def curve(self) -> tuple[int, int]:
        """Bands and rows."""
        return (self.bands, self.rows) if self.bands is not None and self.rows is not None else bands_and_rows(self.share, self.recall)

    def as_facts(self) -> dict[str, Any]:
        """For the manifest, with the probability to compare a pair of some similarities, and to find a copy of a text of 200 words with some edits."""
        bands, rows = self.curve
        curve = {f"{share:.1f}": round(probability(share, bands, rows), 4) for share in np.arange(0.1, 1, 0.1).tolist()}
        expected = {str(edits): round(self.finds(_WORDS, edits), 4) for edits in _EDITS}
        return {
            **vars(self),
            "bands": bands,
            "rows": rows,
            "probability_to_be_compared": curve,
            "expected_of_200_words_with_edits": expected,
        }

    def finds(self, num_words: int, edits: int) -> float:
        """The probability that a copy is found in which so many single words, far from each other, are other ones."""
        common = max(0, num_words - self.n + 1 - edits * self.n)
        similarity = common / max(1, common + 2 * min(edits * self.n, num_words - self.n + 1))
        if self.measure == "containment":
            similarity_asked = common / max(1, num_words - self.n + 1)
        else:
            similarity_asked = similarity
        return probability(similarity, *self.curve) if similarity_asked >= self.share or self.unchecked else 0.0


def probability(similarity: float, bands: int, rows: int) -> float:
    """That two documents of some Jaccard similarity agree in a band."""
    return float(1 - (1 - similarity**rows) ** bands)


def bands_and_rows(share: float, recall: float = DEFAULT_RECALL) -> tuple[int, int]:
    """The most rows, and so the fewest unnecessary comparisons, with which pairs of some similarity are found as surely as they shall be.

    Raises:
        ValueError: if no signature finds them so surely.
    """
    choices = ((_NUM_HASHES // rows, rows) for rows in range(32, 0, -1))
    found = next((choice for choice in choices if probability(share, *choice) >= recall), None)
    if found is None:
        raise ValueError(
            f"--similar-documents {share:g} with --similar-recall {recall:g} cannot be reached: of pairs of that similarity {_NUM_HASHES} hashes"
            f" compare {probability(share, _NUM_HASHES, 1):.3f} at most; ask for a similarity of {_least_share(recall):.3f} or more, for less recall,"
            " or give --similar-bands and --similar-rows"
        )
    return found


def _least_share(recall: float) -> float:
    """The least similarity that is found so surely, rounded up to three digits."""
    return math.ceil(1000 * (1 - (1 - recall) ** (1 / _NUM_HASHES))) / 1000


@dataclass(frozen=True)
class Similar:
    """Documents that go because they are like one that stays; all arrays are of equal length, documents counted over all shards.

    Attributes:
        documents: sorted numbers of those that go.
        like: the document that each is most like.
        shares: how much so; 1 where that was not checked.
        num_compared: pairs that were compared.
    """

    documents: NDArray[np.int64]
    like: NDArray[np.int64]
    shares: NDArray[np.float64]
    num_compared: int = 0

    @classmethod
    def none(cls) -> Similar:
        """No document goes."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64))

    def part(self, first: int, last: int) -> Similar:
        """Those among the documents `first` to before `last`."""
        here = slice(*np.searchsorted(self.documents, (first, last)).tolist())
        return Similar(self.documents[here], self.like[here], self.shares[here])

    def among(self, first: int, num_documents: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Of some documents in a row those that go, by their place among these, what each is like, and how much so; all (num_gone,)."""
        here = slice(*np.searchsorted(self.documents, (first, first + num_documents)).tolist())
        return self.documents[here] - first, self.like[here], self.shares[here]


class _Fold(dict[int, "str | None"]):
    """What becomes of a code point, for `str.translate`."""

    def __missing__(self, point: int) -> str | None:
        value = _folded(point)
        if value == _SPACE:
            self[point] = " "
        elif value & _ALONE:
            self[point] = f" {chr(value & ~_ALONE)} "
        else:
            self[point] = chr(value) if value else None
        return self[point]


_FOLD = _Fold()


@cache
def _page(number: int) -> NDArray[np.uint32]:
    return np.array([_folded(point) for point in range(number * _PAGE, (number + 1) * _PAGE)], np.uint32)


def _folded(point: int) -> int:
    """The small letter without accents, white space, or nothing."""
    character = chr(point)
    if character.isspace():
        return _SPACE
    if _ACCENTS.fullmatch(character) or unicodedata.category(character)[0] not in "LNM":
        return _DROPPED
    base = ord(unicodedata.normalize("NFKD", character.casefold())[0])
    if chr(base).isspace():  # a spacing accent, as a character of its own
        return _DROPPED
    return base | (_ALONE if _UNSPACED.fullmatch(character) else 0)


class Sketcher:
    """Makes n-grams and keys of bands of documents."""

    def __init__(self, settings: SimilarSettings) -> None:
        self._n, (self._bands, self._rows) = settings.n, settings.curve
        random = finish(np.arange(1, 2 * self._bands * self._rows + 1, dtype=np.uint64)) >> np.uint64(32)
        self._a, self._b = random[0::2].astype(np.uint32) | np.uint32(1), random[1::2].astype(np.uint32)
        self._library = native.load(SOURCE)
        self._library.similar_scan.restype = ctypes.c_int64
        self._places = np.full(_NUM_PAGES, -1, np.int32)
        self._pages = np.zeros((0, _PAGE), np.uint32)
        self._learn(0)

    def sketch(self, texts: Sequence[bytes]) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """What is known of some documents.

        Returns:
            (num_ngrams,) the different n-grams of all texts one behind the other; (len(texts),) how many each has; (len(texts),) its words;
            and (len(texts), bands) its keys.
        """
        data = b"".join(texts)
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        while (page := self._library.similar_missing_page(data, _int64(len(data)), address(self._places))) >= 0:
            self._learn(page)
        shingles = np.empty(len(data) + 1, np.uint32)
        ends, words = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
        found = self._library.similar_scan(
            data,
            address(offsets),
            _int64(len(texts)),
            address(self._places),
            address(self._pages),
            self._n,
            address(shingles),
            address(ends),
            address(words),
        )
        _require_memory(found)
        minima = np.empty((len(texts), len(self._a)), np.uint32)
        self._library.similar_minima(
            address(shingles), address(ends), _int64(len(texts)), address(self._a), address(self._b), len(self._a), address(minima)
        )  # fmt: skip
        return shingles[:found].copy(), np.diff(ends, prepend=0), words, self._keys(minima)

    def _learn(self, page: int) -> None:
        self._places[page] = len(self._pages)
        self._pages = np.concatenate([self._pages, _page(page)[None]])

    def _keys(self, minima: NDArray[np.uint32]) -> NDArray[np.uint64]:
        rows = minima.reshape(len(minima), self._bands, self._rows).astype(np.uint64)
        keys = np.zeros(rows.shape[:2], np.uint64)
        for row in range(self._rows):
            keys = finish(keys ^ rows[:, :, row])
        return keys


@dataclass(frozen=True)
class _Sketches:
    """What is on disk of a shard."""

    directory: Path
    shard: int

    def path(self, what: str) -> Path:
        return self.directory / f"{self.shard}.{what}"

    def load(self, what: str, dtype: type) -> NDArray[Any]:
        """All values of a file, (num_values,)."""
        return np.fromfile(self.path(what), dtype)

    def keys_of_band(self, band: int, bands: int) -> NDArray[np.uint64]:
        """(num_documents,) read and not mapped, as pages that are mapped stay in the resident set: 512 bytes a document for 64 bands."""
        groups = self.load("groups", np.int64)
        keys = np.empty(groups.sum(), np.uint64)
        view, done, before = keys.view(np.uint8).data, 0, 0
        with open(self.path("keys"), "rb", buffering=0) as file:
            for count in (keys.itemsize * groups).tolist():
                file.seek(before * bands + band * count)
                read = file.readinto(view[done : done + count])
                assert read == count, "a band of a group of documents lies in one piece"
                done, before = done + count, before + count
        return keys


def sketch_shard(groups: Iterable[Sequence[bytes]], settings: SimilarSettings, directory: Path, shard: int) -> None:
    """Write the n-grams and keys of a shard's documents for `find_similar`.

    Args:
        groups: texts in UTF-8, some at a time.
    """
    place = _Sketches(directory, shard)
    sketcher = Sketcher(settings)
    names = ("shingles", "sizes", "words", "keys", "groups")
    files = [open(place.path(name), "wb") for name in names]  # noqa: SIM115 closed below
    try:
        for texts in groups:
            shingles, sizes, words, keys = sketcher.sketch(texts)
            # Keys of a band lie together: whoever asks for one band would else touch all pages of the file.
            parts: tuple[NDArray[Any], ...] = (shingles, sizes, words, keys.T, np.array([len(keys)], np.int64))
            for file, part in zip(files, parts):
                np.ascontiguousarray(part).tofile(file)
    finally:
        for file in files:
            file.close()


def find_similar(directory: Path, num_shards: int, settings: SimilarSettings) -> Similar:
    """Which documents go, from what `sketch_shard` wrote of each shard.

    Raises:
        ValueError: if there is not enough memory.
    """
    places = [_Sketches(directory, shard) for shard in range(num_shards)]
    sizes = _joined([place.load("sizes", np.int64) for place in places])
    with Progress("near-duplicate documents, by band", total=settings.curve[0], unit="bands") as progress:
        pairs = _candidates(places, sizes, settings, progress)
    documents = np.unique(pairs[0])
    if not len(documents):
        return Similar.none()
    if settings.keep == "longest":
        words = _joined([place.load("words", np.int64) for place in places])[documents]
        ranked = documents[np.argsort(-words, kind="stable")]
    else:
        ranked = documents
    with Progress("near-duplicate documents, clustering", total=len(documents), unit="documents") as progress:
        shingles, starts = _gathered(places, sizes, documents, directory / "compared", progress)
    own = np.searchsorted(documents, ranked)
    rank = np.empty(len(ranked), np.int64)
    rank[own] = np.arange(len(ranked))
    of, shares, compared = _decide(shingles, starts[own], sizes[ranked], rank[np.searchsorted(documents, pairs[0])], pairs[1], settings)
    gone = np.flatnonzero(of >= 0)
    order = np.argsort(ranked[gone])
    gone = gone[order]
    return Similar(ranked[gone], ranked[of[gone]], shares[gone], compared)


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _candidates(
    places: Sequence[_Sketches], sizes: NDArray[np.int64], settings: SimilarSettings, progress: Progress
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Documents and the groups that they are in: those that agree in a band; one band at a time is in memory."""
    bands = settings.curve[0]
    with_ngrams = np.flatnonzero(sizes)
    documents, groups, before = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for band in range(bands if len(with_ngrams) else 0):
        keys = np.concatenate([place.keys_of_band(band, bands) for place in places])[with_ngrams]
        order = np.argsort(keys, kind="stable")
        new = np.empty(len(order), bool)
        new[:1] = True
        np.not_equal(keys[order[1:]], keys[order[:-1]], out=new[1:])
        alone = new & np.append(new[1:], True)
        number = np.cumsum(new & ~alone) - 1
        documents.append(with_ngrams[order[~alone]])
        groups.append(before + number[~alone])
        before += int((new & ~alone).sum())
        progress.advance()
    return np.concatenate(documents), np.concatenate(groups)


def _gathered(
    places: Sequence[_Sketches], sizes: NDArray[np.int64], documents: NDArray[np.int64], target: Path, progress: Progress
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The n-grams of some documents in one file that is mapped, and where those of each begin."""
    first = 0
    with open(target, "wb") as file:
        for place in places:
            own = place.load("sizes", np.int64)
            starts = np.cumsum(own) - own
            here = documents[slice(*np.searchsorted(documents, (first, first + len(own))).tolist())] - first
            if len(here):
                shingles = np.memmap(place.path("shingles"), np.uint32, "r")
                for document in here.tolist():
                    shingles[starts[document] : starts[document] + own[document]].tofile(file)
                    progress.advance()
            first += len(own)
    own = sizes[documents]
    return np.memmap(target, np.uint32, "r"), np.cumsum(own) - own


def _decide(
    shingles: NDArray[np.uint32],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    documents: NDArray[np.int64],
    groups: NDArray[np.int64],
    settings: SimilarSettings,
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """See `similar_decide` in similar.c; `documents` (by rank) and `groups` are the candidates."""
    order = np.lexsort((groups, documents))
    own_groups = groups[order]
    group_starts = np.searchsorted(documents[order], np.arange(len(sizes) + 1))
    containment = settings.measure == "containment"
    library = native.load(SOURCE)
    room = np.concatenate([[0], np.cumsum(np.bincount(groups))]).astype(np.int64)
    of, shares = np.empty(len(sizes), np.int64), np.empty(len(sizes))
    library.similar_decide.restype = ctypes.c_int64
    compared = library.similar_decide(
        address(shingles), address(starts), address(sizes), _int64(len(sizes)), address(own_groups), address(group_starts),
        address(room), _int64(len(room) - 1),
        ctypes.c_double(settings.share), int(not settings.unchecked), int(containment), _int64(_MOST_COMPARED), address(of), address(shares),
    )  # fmt: skip
    _require_memory(compared)
    return of, shares, int(compared)


_int64 = ctypes.c_int64


def _require_memory(result: int) -> None:
    if result < 0:
        raise ValueError("there is not enough memory to compare documents; lower --max-document-mib or give fewer files at once")
