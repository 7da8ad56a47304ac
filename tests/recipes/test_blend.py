"""Passes over data: each sample as often as the recipe says, whatever the interruptions and the number of ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_prep.megatron.index import index_parts
from recipes.blend import Blend, apportion, num_windows, sample_order
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


def test_no_sample_is_lost_or_repeated_over_resumes_and_numbers_of_ranks(tmp_path: Path) -> None:
    """Real Megatron data sets: two ranks for some steps, then one, then two again, see what one rank sees in a run without a break."""
    lengths = {tmp_path / "a": [5, 40, 70, 30], tmp_path / "b": [33, 50]}
    firsts = {tmp_path / "a": 0, tmp_path / "b": 1000}
    tokens = [_data_set(prefix, lengths[prefix], firsts[prefix]) for prefix in lengths]
    blend = Blend(tuple(num_windows(n, SEQUENCE_LENGTH) for n in tokens), (9, 10), 2)
    assert blend.sizes == (9, 5)
    arguments = {
        "prefixes": list(map(str, lengths)),
        "sizes": blend.sizes,
        "drawn": blend.drawn,
        "passes": blend.passes,
        "sequence_length": SEQUENCE_LENGTH,
        "batch": 4,
    }
    function = "tests.recipes.data_ranks:steps_seen"
    index = {"index": str(tmp_path / "index")}
    [whole] = run_on_gloo(function, world_size=1, directory=tmp_path / "whole", start=0, stop=9, **index, **arguments)
    parts: list[list[int]] = []
    for ranks, start, stop in ((2, 0, 3), (1, 3, 4), (2, 4, 9)):
        layout = {"world_size": ranks, "tensor_parallel_size": 1, "directory": tmp_path / f"part_{start}"}
        seen = run_on_gloo(function, start=start, stop=stop, **layout, **index, **arguments)
        parts += [[window for rank in seen for window in rank[step]] for step in range(stop - start)]
    assert [sorted(step) for step in parts] == [sorted(step) for step in whole]
    first_pass = Counter([window for step in whole for window in step][: blend.samples_per_pass])
    assert sorted(first_pass.values()) == [1] * 9 + [2] * 5
    assert {count for window, count in first_pass.items() if window >= firsts[tmp_path / "b"]} == {2}
