"""What the keys of a dataclass of settings mean: the comment beside each field, so that it is written once."""

from __future__ import annotations

import inspect
import re

_EXPLAINED = re.compile(r"    (\w+):.*?  # (.*)")


def comments_of(kind: type) -> dict[str, str]:
    """Field -> the comment beside it."""
    return {found[1]: found[2] for found in map(_EXPLAINED.fullmatch, inspect.getsource(kind).splitlines()) if found}
