"""The CPU build of vLLM that `make test-vllm` installs, as lm-eval and vLLM itself have to find it."""

from __future__ import annotations

import importlib.metadata
import os

# On a CPU it takes a share of all memory, starts processes and binds threads unless told otherwise.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def prepare() -> None:
    """To be called before vLLM is imported."""
    os.environ |= ENVIRONMENT
    version = importlib.metadata.version
    # lm-eval asks for the version of `vllm`; the CPU build is packaged under another name, and is told by "+cpu".
    importlib.metadata.version = lambda name: f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)
