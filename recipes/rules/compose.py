"""From a recipe's name and overrides on the command line to a typed recipe (Hydra).

What interpolations stand for, `${schedule.max_steps}` and the like, is measured before OmegaConf works them out: it does so again wherever
a key is named, so forty lines that each name the one before twice would take it years and all memory.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.plain_files import MAX_DEPTH, parse_yaml, read_text
from recipes.rules.languages import with_mixture, with_table
from recipes.rules.schema import Recipe, recipe_from_mapping
from recipes.rules.tiny import Size, size_overrides

CONF_DIR = Path(__file__).resolve().parent.parent / "conf"
_ROOT = "bundled"


def recipe_names() -> list[str]:
    """All bundled recipes."""
    root = CONF_DIR / "recipe"
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def recipe_descriptions() -> dict[str, str]:
    """Name of each bundled recipe -> the comment that it begins with."""
    descriptions = {}
    for name in recipe_names():
        lines = (CONF_DIR / "recipe" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        comments = itertools.takewhile(lambda line: line.startswith("#"), lines)
        descriptions[name] = " ".join(line.removeprefix("# ") for line in comments if "@package" not in line)
    return descriptions


def compose_recipe(recipe: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a bundled name or a YAML file, with overrides in Hydra's grammar.

    Args:
        overrides: `key=value`; `group=choice` for another choice in the recipe's defaults, `+group=choice` for one more; `+size=tiny`
            for the form that a laptop runs.

    Raises:
        ValueError: for an unknown recipe, a malformed override, and all that `recipe_from_mapping` refuses.
    """
    choices, values, size = _sorted_overrides(overrides)
    # Bundled recipes do not change while a process lives, and Hydra takes a third of a second for each.
    composed = _compose if recipe.endswith((".yaml", ".yml")) else _compose_bundled
    if size is not None:
        values = size_overrides(composed(recipe, tuple(choices)), _read_size(size)) + values
    return with_mixture(with_table(composed(recipe, (*choices, *values))))


def _sorted_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str], str | None]:
    """Choices of groups, values of keys, and the size if one is asked for."""
    choices, values, size = [], [], None
    given: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        group = key.removeprefix("+")
        if not equals or not group.replace(".", "").replace("_", "").isalnum():
            raise ValueError(f"the override {override!r} is not of the form key=value, for example schedule.max_steps=100")
        if group.split(".")[0] == "hydra":
            raise ValueError(f"the override {override!r} configures Hydra and not the training; leave it out")
        if (other := given.setdefault(group.removeprefix("+"), override)) is not override:
            _tell_once(f"note: {group} is given twice, as {other} and as {override}; the last one is used")
        if not (CONF_DIR / group).is_dir():
            # ++ lets unknown keys through to our own check, which names the nearest known one
            values.append(f"++{key.removeprefix('+')}={_quoted(value)}")
        elif not (CONF_DIR / group / f"{value}.yaml").is_file():
            known = sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml"))
            raise ValueError(f"there is no {group} {value}; there are {', '.join(known)}")
        elif group == "size":
            size = value
        else:
            choices.append(override)
    return choices, values, size


# An element of a list, a value of a mapping or the whole, if it is an absolute path or not in ASCII; and what Hydra does not read without quotes.
_WORD = re.compile(r"""((?:^|[\[{,])\s*(?:[\w-]+:\s*)?)((?=/|[^,\[\]{}'"]*[^\x00-\x7F])[^,\[\]{}'"]+)""")
_UNREAD = re.compile(r"[^A-Za-z0-9_/\\+.$%*@?|:\s-]")


def _quoted(value: str) -> str:
    """The value of an override with quotes around paths such as /home/čas/a (1)."""
    return _WORD.sub(lambda found: f"{found[1]}'{found[2]}'" if _UNREAD.search(found[2]) else found[0], value)


def _tell_once(sentence: str) -> None:
    """On stderr, by one process of a run."""
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0" and "SCION_LAUNCHED" not in os.environ:
        print(sentence, file=sys.stderr, flush=True)


def _read_size(name: str) -> Size:
    from omegaconf import OmegaConf

    return Size(**OmegaConf.to_container(OmegaConf.load(CONF_DIR / "size" / f"{name}.yaml")))  # type: ignore[arg-type]


def _compose(recipe: str, overrides: tuple[str, ...]) -> Recipe:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config_dir, choice, place = _place(recipe)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir), version_base="1.3"):
            composed = compose(choice, overrides=[place, *overrides])
            _require_bounded(recipe, OmegaConf.to_container(composed, resolve=False))
            content = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        if found := re.search(r"Could not override '(\w+)'. No match in the defaults list", str(error)):
            raise ValueError(f"the recipe {recipe} has no choice of {found[1]} to replace; add one with +{found[1]}=...") from error
        raise ValueError(f"the recipe {recipe} cannot be composed: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict):
        raise ValueError(f"the recipe {recipe} holds no keys")
    return recipe_from_mapping({"name": recipe if choice == _ROOT else choice, **{str(key): value for key, value in content.items()}})


_compose_bundled = functools.lru_cache(maxsize=64)(_compose)


def _require_bounded(recipe: str, content: object) -> None:
    try:
        require_bounded_interpolations(content)
    except ValueError as error:
        raise ValueError(f"the recipe {recipe} cannot be composed: {error}") from None


def _place(recipe: str) -> tuple[Path, str, str]:
    """Directory and name of the file that Hydra begins with, and the override that says what else belongs to it."""
    if recipe.endswith((".yaml", ".yml")):
        file = Path(recipe).resolve()
        if not file.is_file():
            raise ValueError(f"the recipe file {recipe} does not exist; the bundled recipes are {', '.join(recipe_names())}")
        _require_plain_files(file, {file})
        return file.parent, file.stem, f"hydra.searchpath=['file://{CONF_DIR}']"  # so that its defaults list can name our groups
    if recipe not in recipe_names():
        nearest = difflib.get_close_matches(recipe, recipe_names(), n=1, cutoff=0.0)[0]
        raise ValueError(f"there is no recipe {recipe}; did you mean {nearest}? The bundled recipes are {', '.join(recipe_names())}")
    return CONF_DIR, _ROOT, f"recipe={recipe}"


def _require_plain_files(file: Path, seen: set[Path]) -> None:
    """Refuse a recipe's file, and those beside it that its defaults name, that Hydra would work on for ever or not understand.

    Raises:
        ValueError: naming the file.
    """
    content = parse_yaml(read_text(file), subject=f"the recipe {file}")
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"{type(content).__name__} {str(content)[:40]!r}"
        raise ValueError(f"the recipe {file} holds {found}; expected keys and values, such as those of {CONF_DIR}/recipe/demo_adapt.yaml")
    defaults = content.get("defaults", [])
    if "hydra" in content:
        raise ValueError(f"the recipe {file} has a key hydra, which configures Hydra and not the training; leave it out")
    if isinstance(defaults, list) and (wrong := [entry for entry in defaults if not _is_choice(entry)]):
        raise ValueError(f"the recipe {file} has {wrong[0]!r} among its defaults; expected a name, or group: choice such as /model: opt_1b")
    if not isinstance(defaults, list):
        raise ValueError(f"the recipe {file} has defaults {defaults!r}; expected a list, such as [/model: opt_1b, _self_]")
    for name in (name for entry in defaults for name in _named(entry)):
        beside = (file.parent / f"{name}.yaml").resolve()
        if beside not in seen and beside.is_file():
            seen.add(beside)
            _require_plain_files(beside, seen)


def _is_choice(entry: object) -> bool:
    """Whether an entry of a defaults list is a name, or one group with its choices; of Hydra's own groups none."""
    if isinstance(entry, str):
        return bool(entry.strip("/ ")) and not entry.strip("/ ").startswith("hydra/")
    if not isinstance(entry, dict) or len(entry) != 1:
        return False
    [(group, choice)] = entry.items()
    name = str(group).removeprefix("optional ").removeprefix("override ").strip("/ ")
    choices = choice if isinstance(choice, list) else [choice]
    return isinstance(group, str) and name.split("/")[0] != "hydra" and all(isinstance(one, str) and one for one in choices)


def _named(entry: object) -> list[str]:
    """The files that an entry of a defaults list may mean, without suffix: `group: choice`, `group: [choice, ...]` or a name alone."""
    if not isinstance(entry, dict):
        return [str(entry).partition("@")[0].lstrip("/")]
    names = []
    for key, value in entry.items():
        group = str(key).removeprefix("optional ").removeprefix("override ").partition("@")[0].strip("/")
        names += [f"{group}/{choice}" for choice in (value if isinstance(value, list) else [value])]
    return names


_VARIABLE = re.compile(r"\$\{\s*oc\.env:\s*['\"]?(\w+)[^${}]*\}")
_NUMBER_OF_VARIABLE = re.compile(r"\$\{\s*oc\.decode:\s*(?=\$\{\s*oc\.env:[^${}]*\}\s*\})")
_KEY = re.compile(r"\$\{\s*(\.*)([^${}:]*?)\s*\}")
# What interpolations may make of a recipe: so many times its length, and as much more, which leaves honest recipes room.
_MAX_GROWTH, _MAX_GROWTH_START = 10, 100_000

Place = tuple[str, ...]


def require_bounded_interpolations(content: object) -> None:
    """Refuse a recipe whose interpolations stand for much more than what is written, or for themselves.

    Args:
        content: the recipe as dictionaries and lists, interpolations as they are written.

    Raises:
        ValueError: from the key on, without the recipe's name; also for an interpolation that names neither a key nor a variable.
    """
    _Sizes(content).of((), 0)


class _Sizes:
    """Characters and nodes of each place once the interpolations are worked out."""

    def __init__(self, content: object) -> None:
        self._content = content
        self._known: dict[Place, int] = {}
        self._under_way: set[Place] = set()
        self._limit = _MAX_GROWTH * sum(len(text) + 1 for text in _texts(content)) + _MAX_GROWTH_START

    def of(self, place: Place, depth: int) -> int:
        """Raises ValueError where it is too much; `depth` counts interpolations within interpolations."""
        if place in self._known:
            return self._known[place]
        if place in self._under_way:
            raise ValueError(f"{_name(place)} contains itself by an interpolation; write the value out")
        if depth > MAX_DEPTH:
            raise ValueError(f"{_name(place)} is named by more than {MAX_DEPTH} interpolations in a row; write the value out")
        self._under_way.add(place)
        node, _ = self._find(place)
        if isinstance(node, (dict, list)):
            size = 1 + sum(self.of((*place, key), depth) for key in _children(node))
        else:
            size = 1 + len(str(node)) + sum(self._size_of(found, place, depth) for found in re.finditer(r"\$\{", str(node)))
        if size > self._limit:
            wrong = f"has more than {self._limit:,} characters once its interpolations are resolved"
            raise ValueError(f"{_name(place)} {wrong}; write the value out")
        self._under_way.remove(place)
        self._known[place] = size
        return size

    def _size_of(self, found: re.Match[str], place: Place, depth: int) -> int:
        if variable := _VARIABLE.match(found.string, found.start()):
            return 1 + len(os.environ.get(variable[1], ""))
        if _NUMBER_OF_VARIABLE.match(found.string, found.start()):
            return 1  # the variable itself is counted where it is named
        key = _KEY.match(found.string, found.start())
        if key is None:
            raise ValueError(
                f"{_name(place)} is {found.string[:60]!r}; an interpolation names a key, such as ${{schedule.max_steps}}, or a variable"
                " of the environment, such as ${oc.env:HOME}; write the value out"
            )
        above = place[: max(0, len(place) - len(key[1]))] if key[1] else ()
        _, named = self._find((*above, *filter(None, re.split(r"[.\[\]]", key[2]))))
        return 1 + (0 if named is None else self.of(named, depth + 1))

    def _find(self, place: Place) -> tuple[object, Place | None]:
        """What is there, and its place; that of an interpolation on the way, which stands for more; None where there is nothing."""
        node = self._content
        for length, key in enumerate(place):
            if isinstance(node, str):
                return node, place[:length]
            children = _children(node)
            if key not in children:
                return None, None
            node = children[key]
        return node, place


def _children(node: object) -> dict[str, object]:
    if isinstance(node, dict):
        return {str(key): value for key, value in node.items()}
    return {str(index): value for index, value in enumerate(node)} if isinstance(node, list) else {}


def _texts(node: object) -> Iterator[str]:
    """All keys and values."""
    if not isinstance(node, (dict, list)):
        yield str(node)
    for key, child in _children(node).items():
        yield key
        yield from _texts(child)


def _name(place: Place) -> str:
    return ".".join(place) or "it"
