"""The project's commands as benchmarks call them: as a user would, once, with what they made kept for the next call."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.plain_files import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "recipes" / "demo_text" / "sl.train.txt"
_TIMEOUT_SECONDS = 24 * 3600


def call(module: str, *arguments: str | Path) -> None:
    """One command, printed as one would type it.

    Raises:
        subprocess.CalledProcessError: if it fails.
    """
    words = ["-m", module, *map(str, arguments)]
    print(f"   python {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, timeout=_TIMEOUT_SECONDS)


def made(output: Path, module: str, *arguments: str | Path) -> Path:
    """The output of a command, which is called unless it is there."""
    if not output.exists():
        call(module, *arguments, "--output", output)
    return output


def opt_inputs(base: Path, *shape: str | int, vocab_size: int) -> None:
    """Folders `tokenizer`, `data`, `hf` and `nemo` of a drawn OPT and the demo's text, for what is trained for its time alone.

    Args:
        shape: options of `conversion.new_model`.
    """
    tokenizer = made(base / "tokenizer", "data_prep.train_tokenizer", "--input", TEXT, "--vocab-size", str(vocab_size))
    made(base / "data", "data_prep.to_megatron", "--input", TEXT, "--tokenizer", tokenizer)
    hf = made(base / "hf", "conversion.new_model", *map(str, shape), "--tokenizer", tokenizer, "--seed", "1")
    made(base / "nemo", "conversion.hf_to_nemo", "--input", hf)


def require_same_settings(output: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to put inputs beside those that were made with other settings; the first call writes them down."""
    path = output / "settings.json"
    if not path.exists():
        output.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)
    elif (found := read_json(path)) != settings:
        other = [f"{key} {found.get(key)}, now {value}" for key, value in settings.items() if found.get(key) != value]
        raise SystemExit(f"{output} holds inputs made with {'; '.join(other)}; choose another --work or the same settings")
