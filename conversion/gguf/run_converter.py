"""Run llama.cpp's convert_hf_to_gguf.py with the pre-tokenization rule of a tokenizer that it does not know.

The script tells the rule by which a byte-level tokenizer cuts words from a digest of the ids of a test text, and knows those of published
tokenizers only.  Started by its path and in Python's isolated mode, as both projects have a package `conversion`:

    python -I run_converter.py convert_hf_to_gguf.py RULE ARGUMENTS...      (RULE is - where there is none to give)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_QUESTION = "get_vocab_base_pre"
_NO_RULE = "-"


def main() -> None:
    """Load the script as a module, let the classes that it brings answer by the rule where their list does not, and run it."""
    script, rule, arguments = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *arguments]
    module = importlib.import_module(script.stem)
    if rule != _NO_RULE:
        for asked in _classes_that_ask():
            setattr(asked, _QUESTION, _answering(getattr(asked, _QUESTION), rule))
    module.main()


def _classes_that_ask() -> list[type]:
    """Those that define the question: in the script itself in older releases, in its package in later ones."""
    found = {
        id(value): value
        for module in list(sys.modules.values())
        for value in list(vars(module).values())
        if isinstance(value, type) and _QUESTION in vars(value)
    }
    return list(found.values())


def _answering(original: Callable[..., str], rule: str) -> Callable[..., str]:
    def answer(self: Any, tokenizer: Any) -> str:
        try:
            return original(self, tokenizer)
        except NotImplementedError:
            return rule

    return answer


if __name__ == "__main__":
    main()
