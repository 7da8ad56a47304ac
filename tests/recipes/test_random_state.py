"""What ranks drop out: the same in every run, and not what another stage, another part or another step does."""

from __future__ import annotations

from pathlib import Path

from tests.gloo import run_on_gloo


def test_stages_parts_and_steps_draw_different_numbers_and_a_step_always_the_same(tmp_path: Path) -> None:
    function = "tests.recipes.random_ranks:draws"
    ranks = run_on_gloo(function, world_size=4, directory=tmp_path, initialize=False, tensor_parallel_size=2, steps=[0, 1, 100, 0])
    assert sorted((rank["stage"], rank["rank"]) for rank in ranks) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    by_place = {(rank["stage"], rank["rank"]): rank for rank in ranks}
    for rank in ranks:
        for kind in ("whole", "part"):
            assert rank[kind][0] == rank[kind][3], "a step that is taken again"
    for stage in (0, 1):
        assert by_place[stage, 0]["whole"] == by_place[stage, 1]["whole"], "what tensor-parallel ranks have whole they drop out alike"
    drawn = [tuple(by_place[stage, 0]["whole"][step]) for stage in (0, 1) for step in (0, 1, 2)]
    drawn += [tuple(rank["part"][step]) for rank in ranks for step in (0, 1, 2)]
    assert len(set(drawn)) == len(drawn) == 18
