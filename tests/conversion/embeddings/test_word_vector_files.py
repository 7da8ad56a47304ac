"""Files of vectors that are cut off, or stand for more than their size explains."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import numpy as np
import pytest

from conversion.embeddings.spaces.word_vectors import WordVectors


def test_a_fasttext_model_is_read_whole_or_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    from gensim.models import FastText
    from gensim.models.fasttext import save_facebook_model

    logging.getLogger("gensim").setLevel(logging.CRITICAL)
    path = tmp_path / "m.bin"
    model = FastText([["hiša", "stoji"], ["na", "hribu"]] * 5, vector_size=4, min_count=1, bucket=20, workers=1)
    save_facebook_model(model, str(path))
    assert np.array_equal(WordVectors.read(path).vectors, model.wv.vectors)
    content = path.read_bytes()
    for size in (4, 60, 92, 95, 110, 140, len(content) // 2):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="is not a fastText model"):
            WordVectors.read(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (gzip.compress(b"a 1 2\nb 3 4\n" * 1000)[:-20], r"is cut off or damaged behind line \d+"),
        (gzip.compress(b"a 1" + b" 0" * (1 << 23)), "stands for more text than its size explains"),
        (gzip.compress(b"a 1 0 0 0 0 0 0\n" * (1 << 20)), "stands for more text than its size explains"),
        (gzip.compress(b"a\xff 1 2\n"), "is cut off or damaged behind line 1"),
    ],
    ids=["cut", "one line", "many lines", "no UTF-8"],  # packed bytes hold the second in which a process starts
)
def test_compressed_text_is_bounded_by_its_size(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "m.vec.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        WordVectors.read(path)
    path.write_bytes(gzip.compress(b"2 2\na 1 2\r\nb 3 4\n"))
    assert WordVectors.read(path).vectors.tolist() == [[1, 2], [3, 4]]
