"""Interpolations in a recipe of one's own: worked out where they are small, refused at once where they would never end."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.rules.compose import compose_recipe, require_bounded_interpolations

RECIPE = "defaults: [/recipe/demo_adapt@_here_, _self_]\n"


def _doubling(first: str) -> dict[str, object]:
    return {"a0": first, **{f"a{number}": f"${{a{number - 1}}}${{a{number - 1}}}" for number in range(1, 41)}}


@pytest.mark.parametrize(
    "content",
    [
        _doubling("xxxxxxxxxx"),
        dict(reversed(_doubling("").items())),  # of nothing, but worked out as often
        {"a0": {"x": "1", "y": "2"}, **{f"a{n}": {"x": f"${{a{n - 1}}}", "y": f"${{ ..a{n - 1} }}"} for n in range(1, 41)}},
        {"a0": ["1", "2"], **{f"a{n}": {"x": f"${{a{n - 1}.x}}${{a{n - 1}[x]}}" if n > 1 else "${a0[1]}"} for n in range(1, 41)}},
        {"b": {"c": "${a40}"}, "z": "${z2.c}", "z2": "${b}", **_doubling("x")},
    ],
)
def test_what_stands_for_too_much_is_refused_at_once(content: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"has more than 1\d\d,\d+ characters once its interpolations are resolved; write the value out"):
        require_bounded_interpolations(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": "${b}", "b": "${a}"}, "a contains itself by an interpolation; write the value out"),
        ({"a": {"b": "${a}"}}, "a contains itself by an interpolation"),
        ({"a0": "x", **{f"a{n}": f"${{a{n - 1}}}" for n in range(99, 0, -1)}}, "is named by more than 50 interpolations in a row"),
        ({"a": "${oc.create:'[1,2]'}"}, "an interpolation names a key, such as ${schedule.max_steps}, or a variable"),
        ({"a": "${b.${c}}", "b": {"x": 1}, "c": "x"}, "a is '${b.${c}}'; an interpolation names a key"),
    ],
)
def test_what_has_no_end_is_refused(content: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        require_bounded_interpolations(content)
    assert message in str(error.value)


def test_a_recipe_file_of_doubling_keys_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(RECIPE + "".join(f"{key}: {value or 'x'}\n" for key, value in _doubling("x").items()))
    with pytest.raises(ValueError, match=r"^the recipe .*own\.yaml cannot be composed: a\d+ has more than"):
        compose_recipe(str(path))


def test_a_recipe_may_name_its_own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCION_TEST_STEPS", "7")
    path = tmp_path / "own.yaml"
    path.write_text(
        RECIPE
        + "schedule: {max_steps: '${oc.decode:${oc.env:SCION_TEST_STEPS}}'}\nmodel: {checkpoint: 'step_${oc.env:SCION_TEST_STEPS}'}\n"
        + "run: {validate_every_steps: '${schedule.max_steps}', checkpoint_every_steps: '${.validate_every_steps}'}\n"
    )
    recipe = compose_recipe(str(path))
    assert (recipe.schedule.max_steps, recipe.run.validate_every_steps, recipe.run.checkpoint_every_steps) == (7, 7, 7)
    assert recipe.model.checkpoint == "step_7"
