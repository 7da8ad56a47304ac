"""Passes over data: each sample as often as the recipe says, whatever the interruptions and the number of ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.megatron.index import index_parts
from recipes.numbers.blend import Blend, apportion, num_windows, sample_order
from tests.gloo import run_on_gloo

SEQUENCE_LENGTH = 16


def _pairs(blend: Blend, start: int = 0, stop: int | None = None, seed: int = 1) -> Counter[tuple[int, int]]:
    order = sample_order(blend, seed=seed)
    return Counter(zip(order.data_sets[start:stop].tolist(), order.samples[start:stop].tolist(), strict=True))


def test_every_pass_has_every_sample_as_often_as_its_epochs_say() -> None:
    blend = Blend(sizes=(7, 5, 11), drawn=(7, 10, 5), passes=3)
    assert blend.num_samples == 66
    for number in range(3):
        seen = _pairs(blend, 22 * number, 22 * number + 22)
        assert {seen[0, sample] for sample in range(7)} == {1}
        assert {seen[1, sample] for sample in range(5)} == {2}
        assert sum(seen[2, sample] for sample in range(11)) == 5 and max(seen[2, sample] for sample in range(11)) == 1


def test_passes_differ_and_the_seed_decides() -> None:
    blend = Blend(sizes=(50,), drawn=(50,), passes=2)
    order = sample_order(blend, seed=1).samples
    assert order[:50].tolist() != order[50:].tolist()
    assert order.tolist() == sample_order(blend, seed=1).samples.tolist()
    assert order.tolist() != sample_order(blend, seed=2).samples.tolist()


def test_half_a_pass_is_the_beginning_of_a_whole_one() -> None:
    half, whole = (sample_order(Blend((40, 8), (40, 8), passes), seed=3) for passes in (2.5, 3))
    assert len(half.samples) == 120
    assert half.samples.tolist() == whole.samples[:120].tolist()


def test_every_stretch_of_a_pass_has_the_same_proportions() -> None:
    data_sets = sample_order(Blend((300, 100), (300, 100), 1), seed=1).data_sets
    for start in range(0, 400, 20):
        assert np.count_nonzero(data_sets[start : start + 20]) == 5


def test_apportion_sums_up() -> None:
    assert apportion(10, [1, 1, 1]) == (4, 3, 3)
    assert apportion(8, [0.75, 0.25]) == (6, 2)


@pytest.mark.parametrize(("tokens", "windows"), [(16, 0), (17, 1), (32, 1), (33, 2)])
def test_windows_share_a_token(tokens: int, windows: int) -> None:
    assert num_windows(tokens, SEQUENCE_LENGTH) == windows


def _data_set(prefix: Path, lengths: list[int], first_token: int) -> int:
    tokens = np.arange(first_token, first_token + sum(lengths), dtype=np.int32)
    prefix.with_suffix(".bin").write_bytes(tokens.tobytes())
    with prefix.with_suffix(".idx").open("wb") as stream:
        for part in index_parts(np.array(lengths, dtype=np.int32), np.dtype(np.int32)):
            stream.write(part)
    return sum(lengths)


# Ranks, tensor parallel size, first and last step: another layout after every interruption.
PARTS = [(2, 1, 0, 3), (1, 1, 3, 4), (2, 2, 4, 6), (2, 1, 6, 9)]
STEPS, BATCH = 9, 4


@dataclass(frozen=True)
class Corpora:
    """Real Megatron data sets in which every token is another one, so that it says from which document it is."""

    directory: Path
    first_tokens: dict[str, int]
    lengths: dict[str, list[int]]

    @classmethod
    def make(cls, directory: Path) -> Corpora:
        lengths, firsts = {"a": [5, 40, 70, 30], "b": [33, 50]}, {"a": 0, "b": 1000}
        for name in lengths:
            (directory / name).mkdir()
            _data_set(directory / name / "text", lengths[name], firsts[name])
        return cls(directory, firsts, lengths)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(num_windows(sum(lengths), SEQUENCE_LENGTH) for lengths in self.lengths.values())

    def steps(self, world_size: int, tensor_parallel_size: int, start: int, stop: int, **order: Any) -> list[list[dict[str, Any]]]:
        """The samples of each step, those of all replicas together."""
        ranks = run_on_gloo(
            "tests.recipes.data_ranks:steps_seen",
            world_size=world_size,
            directory=self.directory / f"ranks_{start}_{stop}_{len(order)}",
            tensor_parallel_size=tensor_parallel_size,
            prefixes=[str(self.directory / name / "text") for name in self.lengths],
            sequence_length=SEQUENCE_LENGTH,
            **{"batch": BATCH, "end": STEPS, **order},
            start=start,
            stop=stop,
            index=str(self.directory / "index"),
        )
        if tensor_parallel_size == 2:
            assert ranks[0] == ranks[1], "the parts of one model have to see the same"
            ranks = ranks[:1]
        return [[sample for rank in ranks for sample in rank[step]] for step in range(stop - start)]

    def documents(self, sample: dict[str, Any]) -> dict[str, list[int]]:
        """Those whose tokens a sample has."""
        name = "b" if sample["tokens"][0] >= self.first_tokens["b"] else "a"
        ends = np.cumsum(self.lengths[name])
        numbers = {int(np.searchsorted(ends, token - self.first_tokens[name], side="right")) for token in sample["tokens"]}
        return {str(self.directory / name): sorted(numbers)}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    return Corpora.make(tmp_path_factory.mktemp("corpora"))


def _firsts(steps: list[list[dict[str, Any]]]) -> list[list[int]]:
    return [[sample["tokens"][0] for sample in step] for step in steps]


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("order", ["passes", "shares"])
def test_no_sample_is_lost_or_repeated_over_resumes_and_layouts(corpora: Corpora, order: str) -> None:
    """Runs whose layout changes with every interruption see what one rank sees in a run without a break, and know from where it is."""
    assert corpora.sizes == (9, 5)
    given = {"blend": [corpora.sizes, (9, 10), 2]} if order == "passes" else {"weights": [0.75, 0.25]}
    whole = corpora.steps(1, 1, 0, STEPS, **given)
    parts = [step for part in PARTS for step in corpora.steps(*part, **given)]
    assert [sorted(step) for step in _firsts(parts)] == [sorted(step) for step in _firsts(whole)]
    assert [sample["documents"] for step in parts for sample in step] == [corpora.documents(sample) for step in parts for sample in step]
    seen = Counter(first for step in _firsts(whole) for first in step)
    if order == "passes":
        first_pass = Counter([first for step in _firsts(whole) for first in step][:19])
        assert sorted(first_pass.values()) == [1] * 9 + [2] * 5
        assert {count for first, count in first_pass.items() if first >= corpora.first_tokens["b"]} == {2}
    else:  # within one sample of its share at every moment
        assert sum(count for first, count in seen.items() if first >= corpora.first_tokens["b"]) == STEPS * BATCH // 4
        for done in range(1, STEPS):
            of_b = sum(first >= corpora.first_tokens["b"] for step in _firsts(whole)[:done] for first in step)
            assert abs(of_b - done * BATCH / 4) <= 1


def test_batches_that_grow_move_no_sample(corpora: Corpora) -> None:
    """Batches of 4, then of 8, over interruptions at other layouts: the samples of a run with batches of 4, each as often and as early."""
    given = {"blend": [corpora.sizes, (9, 10), 2]}
    growing = {**given, "batch": 8, "end": 6, "ramp_up": [4, 4, 12]}
    plain = [first for step in _firsts(corpora.steps(1, 1, 0, STEPS, **given)) for first in step]
    parts = [step for part in ((2, 1, 0, 2), (1, 1, 2, 4), (2, 2, 4, 5), (2, 1, 5, 6)) for step in corpora.steps(*part, **growing)]
    assert [len(step) for step in parts] == [4, 4, 4, 8, 8, 8]
    begin = 0
    for step in _firsts(parts):
        assert sorted(step) == sorted(plain[begin : begin + len(step)])
        begin += len(step)
    assert [sample["documents"] for step in parts for sample in step] == [corpora.documents(sample) for step in parts for sample in step]
