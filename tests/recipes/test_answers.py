"""Which tokens of a question with its answer count."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_prep.megatron.index import index_parts
from recipes.training.answers import Answers


def test_the_loss_is_that_of_the_answer_and_its_end(tmp_path: Path) -> None:
    parts = [[11, 12, 13], [21, 22, 2], [14], [23, 2]]  # two prompts, each with an answer that ends with 2
    (tmp_path / "text.bin").write_bytes(np.concatenate(parts).astype(np.uint16).tobytes())
    lengths = np.array([len(part) for part in parts], dtype=np.int32)
    (tmp_path / "text.idx").write_bytes(b"".join(bytes(part) for part in index_parts(lengths, np.dtype(np.uint16))))
    pairs = Answers(str(tmp_path / "text"), sequence_length=7, eos_token_id=2)
    assert len(pairs) == 2
    for number, (tokens, counted) in enumerate([([11, 12, 13, 21, 22, 2, 2], [21, 22, 2]), ([14, 23, 2, 2, 2, 2, 2], [23, 2])]):
        sample = pairs[number]
        assert sample["tokens"].tolist() == tokens
        assert sample["position_ids"].tolist() == list(range(7))
        assert sample["labels"][sample["loss_mask"] == 1].tolist() == counted
        assert {tensor.shape for tensor in sample.values()} == {(7,)}
