"""Extra state of TransformerEngine's modules, which holds the scales of FP8 and nothing else: no run of this project has any.

Which modules have it depends on TransformerEngine and its version, so a checkpoint and the run that loads it may disagree: the
converter's, one of a run without TransformerEngine, one of another image.  Megatron refuses a checkpoint without an object that a
module asks for, so none is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SUFFIX = "._extra_state"


def without_extra_state(expected: Mapping[str, Any]) -> dict[str, Any]:
    """What of a sharded state to ask a checkpoint for."""
    return {name: value for name, value in expected.items() if not name.endswith(SUFFIX)}


def with_no_extra_state(loaded: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """What was loaded, and None for each extra state, which every module takes as nothing to load and misses if it is not there."""
    return {**dict.fromkeys(name for name in expected if name.endswith(SUFFIX)), **loaded}
