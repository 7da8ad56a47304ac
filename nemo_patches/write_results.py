"""What the writers of a checkpoint report, handed to the training through a file without a name that forked processes share.

Megatron-core asks a manager of `multiprocessing` for a queue.  That is one process more beside each rank from its first save to its end: it
imports torch to unpack what it is handed, and passes it on.  Writers are forked, so that a file which the rank has opened is theirs too.
"""

from __future__ import annotations

import pickle
import queue
import tempfile
from collections.abc import Callable
from typing import Any

from nemo_patches.core import Patch


class WriteResults:
    """Takes one object in a process and gives it back in the one that made this, once; what of a queue Megatron's writers use."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # for as long as this lives

    def put(self, results: Any) -> None:
        """Leave the object: by pickle, as a queue would."""
        self._file.seek(0)
        self._file.write(pickle.dumps(results))
        self._file.flush()

    def get_nowait(self) -> Any:
        """What was left.

        Raises:
            queue.Empty: if nothing was, or a process ended while it did so.
        """
        self._file.seek(0)
        try:
            return pickle.load(self._file)
        except (EOFError, pickle.UnpicklingError) as error:
            raise queue.Empty from error


def _without_a_manager(original: Callable[..., Any]) -> Callable[..., Any]:
    return WriteResults


PATCHES = (
    Patch(
        target="megatron.core.dist_checkpointing.strategies.filesystem_async:_get_write_results_queue",
        wrap=_without_a_manager,
        package="megatron-core",
        digests={"0.15.3": "6d70d0a0f9cf853e"},
        reason="It starts a process beside each rank that imports torch and stays until the rank ends.",
        remove_when="writers report through what forked processes share.",
    ),
)
