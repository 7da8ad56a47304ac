"""From a recipe's name and overrides on the command line to a typed recipe (Hydra)."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from recipes.schema import Recipe, recipe_from_mapping

CONF_DIR = Path(__file__).resolve().parent / "conf"


def recipe_names() -> list[str]:
    """All bundled recipes."""
    root = CONF_DIR / "recipe"
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def compose_recipe(recipe: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a bundled name or a YAML file, with `key=value` overrides in Hydra's grammar.

    Raises:
        ValueError: for an unknown recipe, a malformed override, and all that `recipe_from_mapping` refuses.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    config_dir, search_path = CONF_DIR, []
    if recipe.endswith((".yaml", ".yml")):
        file = Path(recipe).resolve()
        if not file.is_file():
            raise ValueError(f"the recipe file {recipe} does not exist; the bundled recipes are {', '.join(recipe_names())}")
        config_dir, choice = file.parent, file.stem
        search_path = [f"hydra.searchpath=[file://{CONF_DIR}]"]  # so that its defaults list can name our groups
    elif recipe in recipe_names():
        choice = f"recipe/{recipe}"
    else:
        nearest = difflib.get_close_matches(recipe, recipe_names(), n=1, cutoff=0.0)[0]
        raise ValueError(f"there is no recipe {recipe}; did you mean {nearest}? The bundled recipes are {', '.join(recipe_names())}")

    values = []
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals or not key.replace(".", "").replace("_", "").isalnum():
            raise ValueError(f"the override {override!r} is not of the form key=value, for example schedule.max_steps=100")
        # "++" lets unknown keys through to our own check, which names the nearest known one.
        values.append(override if (CONF_DIR / key).is_dir() else f"++{override}")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir), version_base="1.3"):
            content = OmegaConf.to_container(compose(choice, overrides=search_path + values), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(f"the recipe {recipe} cannot be composed: {str(error).splitlines()[0]}") from error
    except YAMLError as error:
        raise ValueError(f"the recipe {recipe} is no valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"the recipe {recipe} holds no keys")
    return recipe_from_mapping({str(key): value for key, value in content.items()})
