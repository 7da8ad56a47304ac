"""Import of NeMo that takes of it what a run uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from common.transformers_modules import remember_modules
from nemo_patches.core import apply
from nemo_patches.lazy_packages import import_lazily
from nemo_patches.quiet import quiet_imports


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import NeMo inside this, before anything else has: quietly, packages are gathered and functions compiled when they are used."""
    with quiet_imports():
        import_lazily()
        remember_modules()
        from nemo_patches import lazy_compile  # which imports torch

        apply(lazy_compile.PATCHES)
        yield
