"""Less noise: NeMo and its libraries greet every process with pages that hide what matters.

`SCION_VERBOSE=1` shows everything.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import warnings
from collections.abc import Iterator

from nemo_patches.no_allocator import compile_no_allocator

VERBOSE = bool(os.environ.get("SCION_VERBOSE"))


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Import NeMo inside this: it warns of every optional package that is absent, and of its own deprecation.

    The garbage collector waits meanwhile: a third of the import would be its walks through a million objects that stay.
    """
    compile_no_allocator()
    gc.disable()
    try:
        with contextlib.nullcontext() if VERBOSE else _quiet():
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # transformers prints a line in every process whose W&B is offline
            yield
    finally:
        logging.disable(logging.NOTSET)
    from nemo.utils import logging as nemo_logging

    nemo_logging.setLevel(logging.WARNING)
    import lightning_utilities.core.rank_zero

    lightning_utilities.core.rank_zero.log.setLevel(logging.ERROR)
    for name in ("megatron.core", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
