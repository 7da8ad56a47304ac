"""The faster kernels that a run may find: used where they are installed, never required."""

from __future__ import annotations

import importlib.util

# The module that only the real package has: the package called apex on the public index is a web toolkit.
_MODULES = {"TransformerEngine": "transformer_engine", "apex": "amp_C", "flash-attention": "flash_attn"}


def installed_kernels() -> str:
    """One line that says which there are."""
    found = {name: importlib.util.find_spec(module) is not None for name, module in _MODULES.items()}
    there = [name for name, is_there in found.items() if is_there]
    absent = [name for name, is_there in found.items() if not is_there]
    return "; ".join(part for part in (f"uses {', '.join(there)}" * bool(there), f"without {', '.join(absent)}" * bool(absent)) if part)
