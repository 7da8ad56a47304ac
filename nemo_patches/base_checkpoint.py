"""Parameters that a model has beyond the checkpoint that it starts from: absent from that one, present in all that it saves itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_loading = [False]


@contextmanager
def loading_base_checkpoint() -> Iterator[None]:
    """Within it, added parameters ask the checkpoint for nothing, or for the tensor that they start as a copy of."""
    _loading[0] = True
    try:
        yield
    finally:
        _loading[0] = False


def is_loading_base_checkpoint() -> bool:
    """Whether the weights that are being loaded are those of the model without the added parameters."""
    return _loading[0]
