"""Python code as text that every Python gives alike, for digests: without comments, layout and docstrings."""

from __future__ import annotations

import ast
import sys
from typing import Any

_AS_BEFORE: dict[str, Any] = {"show_empty": True} if sys.version_info >= (3, 13) else {}  # which leaves empty fields out


def bare_dump(tree: ast.AST) -> str:
    """The dump of a syntax tree, which loses its docstrings."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body.pop(0)
        if not getattr(node, "type_params", True):  # which Python 3.12 gives functions and classes
            del node.type_params  # type: ignore[attr-defined]
    return ast.dump(tree, **_AS_BEFORE)
