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

from common import start_up
from nemo_patches.no_allocator import compile_no_allocator

VERBOSE = bool(os.environ.get("SCION_VERBOSE"))


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Import NeMo inside this: it warns of every optional package that is absent, and of its own deprecation.

    The collector of cycles waits meanwhile, which takes a third off: again and again it would walk through the million objects that an import
    makes to stay.  Nor does it walk through them afterwards, when training goes on or the process ends: they are frozen.
    Nothing is compiled meanwhile.
    """
    compile_no_allocator()
    with _collector_waits():
        if VERBOSE:
            yield
        else:
            with _quiet():
                yield


@contextlib.contextmanager
def _collector_waits() -> Iterator[None]:
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        start_up.is_over()
        if collects:
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
