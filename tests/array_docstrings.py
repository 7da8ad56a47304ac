"""Which public functions take or give arrays without saying their shapes: read from the source, nothing is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_DENSE = {"Tensor", "FloatTensor", "LongTensor", "BoolTensor", "ndarray", "NDArray", "ArrayLike", "memmap"}
_SPARSE = {"sparray", "spmatrix", "csr_matrix", "csc_matrix", "coo_matrix", "csr_array", "csc_array", "coo_array"}
ARRAYS = frozenset(_DENSE | _SPARSE)
_WORDS = re.compile(r"\bscalars?\b|\bof any shape\b|\bthe shape of\b")
_POINTER = re.compile(r"\b(?:as|see)(?:\s+(?:of|in))?(?:\s+(?:a|an|the))?\s+`([\w.]+)`", re.IGNORECASE)
_SIZES = (ast.Tuple, ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Call, ast.operator, ast.unaryop, ast.expr_context)


@dataclass(frozen=True)
class Module:
    """A file of source.

    Attributes:
        modules: all that the source may point to, by name.
    """

    source: str
    modules: Mapping[str, Module]

    @cached_property
    def tree(self) -> ast.Module:
        """Parsed."""
        return ast.parse(self.source)

    @cached_property
    def definitions(self) -> dict[str, ast.FunctionDef | ast.ClassDef]:
        """Functions, classes and their methods, as `name` or `Class.name`; not those inside of functions."""
        return dict(_definitions(self.tree))

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """What a name stands for that comes from another module: that module and its name there."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom) and node.module]
        return {alias.asname or alias.name: (str(node.module), alias.name) for node in found for alias in node.names}

    @cached_property
    def own_arrays(self) -> frozenset[str]:
        """Names that the module gives to types of arrays."""
        names = set[str]()
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                target, value = node.targets[0], node.value
                if isinstance(value, ast.Subscript | ast.Attribute | ast.BinOp) and _names_in(value) & (ARRAYS | names):
                    names.add(target.id)
        return frozenset(names)

    @cached_property
    def arrays(self) -> frozenset[str]:
        """Names that are arrays here, or are made of them."""
        others = {
            name for name, (module, there) in self.imports.items() if module in self.modules and there in self.modules[module].own_arrays
        }
        return ARRAYS | self.own_arrays | others

    def without_shapes(self) -> list[tuple[int, str]]:
        """Line and name of the public functions that name an array in their signature and no shape in their docstring."""
        return [
            (node.lineno, name)
            for name, node in _definitions(self.tree)
            if isinstance(node, ast.FunctionDef)
            and not node.name.startswith("_")
            and any(_names_in(annotation) & self.arrays for annotation in _annotations(node))
            and not self._tells_shapes(ast.get_docstring(node) or "", name)
        ]

    def _tells_shapes(self, docstring: str, name: str) -> bool:
        return has_shape(docstring) or any(has_shape(self._docstring(pointer, name)) for pointer in _POINTER.findall(docstring))

    def _docstring(self, pointer: str, name: str) -> str:
        """Of what a docstring points to: in the same class or module, imported there, or by its full name; empty if there is none."""
        owner, first, rest = name.rpartition(".")[0], *pointer.partition(".")[::2]
        places = [(self, f"{owner}.{pointer}"), (self, pointer)]
        if first in self.imports:
            module, there = self.imports[first]
            places.append((self.modules.get(module, self), f"{there}.{rest}" if rest else there))
        parts = pointer.split(".")
        places += [
            (self.modules[".".join(parts[:n])], ".".join(parts[n:])) for n in range(1, len(parts)) if ".".join(parts[:n]) in self.modules
        ]
        return next((ast.get_docstring(module.definitions[there]) or "" for module, there in places if there in module.definitions), "")


def sources(files: Mapping[str, Path]) -> dict[str, Module]:
    """All of them, which may point to each other.

    Args:
        files: dotted name -> file.
    """
    found: dict[str, Module] = {}
    for name, path in files.items():
        found[name] = Module(path.read_text(encoding="utf-8"), found)
    return found


def has_shape(docstring: str) -> bool:
    """Whether there is a shape in parentheses, or a word that stands for one."""
    return bool(_WORDS.search(docstring)) or any(map(_is_shape, _parentheses(docstring)))


def _is_shape(text: str) -> bool:
    """Whether it is a tuple of names in small or in capital letters, whole numbers, `...`, `len(name)`, and sums and products of these."""
    try:
        found = ast.parse(" ".join(text.split()), mode="eval").body
    except SyntaxError:
        return False
    return isinstance(found, ast.Tuple) and bool(found.elts) and all(map(_is_size, ast.walk(found)))


def _is_size(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id.islower() or node.id.isupper()
    if isinstance(node, ast.Constant):
        return node.value is ... or type(node.value) is int
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "len"
    return isinstance(node, _SIZES)


def _parentheses(text: str) -> Iterator[str]:
    """What stands in parentheses, these included; not the arguments of a call."""
    opened = []
    for place, character in enumerate(text):
        if character == "(":
            opened.append(place)
        elif character == ")" and opened:
            start = opened.pop()
            if not re.match(r"\w", text[start - 1 : start]):
                yield text[start : place + 1]


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.")
        else:
            yield from _definitions(child, prefix)


def _annotations(function: ast.FunctionDef) -> list[ast.expr]:
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    found = [argument.annotation for argument in given if argument is not None] + [function.returns]
    return [annotation for annotation in found if annotation is not None]


def _names_in(annotation: ast.expr) -> set[str]:
    """The last part of each name, also in an annotation between quotes."""
    names = set[str]()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(re.findall(r"\w+", node.value))
    return names
