"""Small text, JSON and YAML files: errors name the file, and no file costs more memory than its size explains.

YAML lets a file of a kilobyte stand for gigabytes (aliases of aliases), for a structure that contains itself, and for objects of any
program.  Here it is looked at as a tree first: how deep it is and how much it would be if every alias were written out.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from yaml import Mark, Node

MAX_DEPTH = 50
_MAX_BYTES = 32 << 20
_NO_PLAIN_FILE = "{path} is a pipe, socket or device; expected a plain file"
_MAX_NUMBER_CHARACTERS = 400
# What aliases may make of a file: so many times its length, and as much more, which leaves honest files room.
_MAX_GROWTH, _MAX_GROWTH_START = 10, 100_000


def require_plain_files(directory: Path) -> None:
    """Refuse a folder with a pipe, socket or device anywhere in it, or a link to one, which a library would open by its name and never end.

    Raises:
        ValueError: naming one; also if the folder is missing.
    """
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a folder; expected one")
    for path in sorted(directory.rglob("*")):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ValueError(_NO_PLAIN_FILE.format(path=path))


def read_text(path: Path) -> str:
    """The text of a file, without a byte-order mark.

    Raises:
        ValueError: if it is not a plain file, not UTF-8, or too large to be a file of settings.
        OSError: if it cannot be read.
    """
    found = path.stat()
    if not (
        stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    ):  # a pipe or device may never end; a directory is the system's to refuse
        raise ValueError(_NO_PLAIN_FILE.format(path=path))
    if found.st_size > _MAX_BYTES:
        raise ValueError(f"{path} has {found.st_size} bytes; expected a file of settings of at most {_MAX_BYTES >> 20} MiB")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start + 1}; convert it, for example with iconv"
        ) from error


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ValueError: if it is not valid JSON, or nested too deeply.
        OSError: if it cannot be read.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply to be read; make it again") from error
    except ValueError as error:  # also of a number of more than 4,300 digits
        raise ValueError(f"{path} is not valid JSON: {error}; make it again") from error


def write_text(path: Path, text: str) -> None:
    """Write a small file that is complete or absent, also after the machine went down."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small JSON file, as `write_text`."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_yaml(path: Path, *, loader: type | None = None) -> Any:
    """What a YAML file holds; arguments and errors as `parse_yaml`, and an OSError if it cannot be read."""
    return parse_yaml(read_text(path), subject=str(path), loader=loader)


def parse_yaml(text: str, *, subject: str, loader: type | None = None) -> Any:
    """The content of YAML text; of a safe loader, so that nothing in it runs.

    Args:
        subject: what errors call it.
        loader: another subclass of `yaml.SafeLoader`, which knows more tags.

    Raises:
        ValueError: if it is not YAML, deeper than `MAX_DEPTH`, contains itself, uses a key twice, or is many times as large once its
            aliases are written out.
    """
    import yaml

    try:
        reader = type("Shallow", (_Shallow, loader or yaml.SafeLoader), {})(text)
        node = reader.get_single_node()
        if node is None:
            return None
        _require_bounded(node, _MAX_GROWTH * len(text) + _MAX_GROWTH_START)
        return reader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(f"{subject} is not valid YAML: {_what_is_wrong(error)}") from error
    except _RefusedError as error:
        raise ValueError(f"{subject}, {error}") from None
    except (ValueError, OverflowError) as error:  # such as a date without such a day
        raise ValueError(f"{subject} holds a value that cannot be read: {error}; write it in quotes if it is text") from error


def _what_is_wrong(error: Exception) -> str:
    """In one line: the library's own text shows the line again, and where it has no name for the text."""
    parts = [getattr(error, name, None) for name in ("context", "problem")]
    mark = getattr(error, "problem_mark", None)
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return " ".join(": ".join(filter(None, parts)).split()) + place if any(parts) else " ".join(str(error).split())


def any_tag_loader() -> type:
    """A loader for `read_yaml` that takes what has an unknown tag, such as a Python object's, as the plain list, mapping or text under it."""
    import yaml

    class AnyTagLoader(yaml.SafeLoader):
        """Never makes an object."""

    def plain(loader: Any, _suffix: str, node: Node) -> Any:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        return loader.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else loader.construct_scalar(node)

    AnyTagLoader.add_multi_constructor("", plain)
    return AnyTagLoader


def literal_loader() -> type:
    """A loader for `read_yaml` that takes for numbers, truth and nothing only what reads so: 007, yes, 24:00:00 and 1e3 stay text."""
    import yaml

    class LiteralLoader(yaml.SafeLoader):
        """Without the guesses of YAML 1.1."""

        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # of its own: those of the class above are every loader's

    for tag, pattern, first in (
        ("null", "~|null|", ["~", "n", ""]),
        ("bool", "true|false", list("tf")),
        ("int", "[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
        ("float", r"[-+]?(?:0|[1-9][0-9]*)\.[0-9]+(?:e[-+]?[0-9]+)?", list("-+0123456789")),
    ):
        LiteralLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), first)
    return LiteralLoader


class _RefusedError(ValueError):
    """What is wrong, from its line on."""

    def __init__(self, mark: Mark, wrong: str) -> None:
        super().__init__(f"line {mark.line + 1} {wrong}")


class _Shallow:
    """A loader that stops before Python's stack ends, as composing a node calls itself for what is in it."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """See `yaml.composer.Composer`."""
        if self._depth > MAX_DEPTH:
            raise _RefusedError(self.peek_event().start_mark, f"is nested more than {MAX_DEPTH} levels deep; reduce the nesting")  # type: ignore[attr-defined]
        self._depth += 1
        try:
            return super().compose_node(parent, index)  # type: ignore[misc]
        finally:
            self._depth -= 1


def _require_bounded(root: Node, limit: int) -> None:
    """Refuse a node that contains itself, uses a key twice, or has more than so many characters and nodes once aliases are written out."""
    sizes: dict[int, int] = {}  # of nodes that are measured; an alias is the node itself
    stack = [(root, _children(root))]
    above = {id(root)}
    while stack:
        node, waiting = stack[-1]
        child = next((child for child in waiting if id(child) not in sizes), None)
        if child is None:
            size = 1 + (len(node.value) if isinstance(node.value, str) else 0) + sum(sizes[id(child)] for child in _children(node))
            if size > limit:
                wrong = f"stands for more than {limit:,} characters once its aliases are expanded; write the values out"
                raise _RefusedError(node.start_mark, wrong)
            _require_keys_once(node)
            _require_sane_number(node)
            sizes[id(node)] = size
            above.remove(id(node))
            stack.pop()
        elif id(child) in above:
            raise _RefusedError(child.start_mark, "contains itself through an alias; write the values out")
        else:
            above.add(id(child))
            stack.append((child, _children(child)))


def _require_keys_once(node: Node) -> None:
    """Of two equal keys one would be lost silently."""
    from yaml import MappingNode, ScalarNode

    seen = set()
    for key, _ in node.value if isinstance(node, MappingNode) else ():
        if isinstance(key, ScalarNode):
            if (key.tag, key.value) in seen:
                raise _RefusedError(key.start_mark, f"gives {key.value!r} a second time; keep one of them")
            seen.add((key.tag, key.value))


def _require_sane_number(node: Node) -> None:
    """YAML also knows numbers to the base 60, which Python's own limit does not see."""
    if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and len(node.value) > _MAX_NUMBER_CHARACTERS:
        raise _RefusedError(node.start_mark, f"holds a number of {len(node.value):,} characters; write it in quotes if it is text")


def _children(node: Node) -> Iterator[Node]:
    from yaml import MappingNode, SequenceNode

    if isinstance(node, MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, SequenceNode):
        yield from node.value
