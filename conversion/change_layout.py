"""Convert a checkpoint between the layouts of NeMo 2, Megatron-LM and Megatron-Bridge: new tensor names for the same data files.

All three store Megatron's distributed checkpoints, so no weights are read: data files are hard-linked where the file system allows it (`--copy`
copies them instead) and only the index is rewritten.  Optimizer and random state are left out.  The model's configuration is in the
folder `context`, which the other two programs ignore; to convert a checkpoint that they have trained back to NeMo, give `--context`, a NeMo
checkpoint of the same model from this toolkit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common import command
from conversion.layouts.moving import LAYOUTS, STAGE, change


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and move."""
    parser = command.parser(__doc__, prog=STAGE, example=f"python -m {STAGE} --input work/run --to megatron-bridge --output work/bridge")
    parser.add_argument("--input", type=Path, required=True, help="checkpoint folder, or a folder of several, of which the newest is used")
    parser.add_argument("--to", choices=LAYOUTS, required=True, help="target layout")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--context", type=Path, metavar="DIR", help="NeMo checkpoint of the same model, for inputs without a folder `context`"
    )
    parser.add_argument("--copy", action="store_true", help="copy the weights even where the files could be hard-linked")
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    manifest = change(arguments.input, arguments.output, layout=arguments.to, context_of=arguments.context, copy=arguments.copy)
    linked = manifest.facts["linked_files"]
    print(
        f"{arguments.output}: {manifest.facts['model_type']} for {arguments.to}, step {manifest.facts['step']},"
        f" {f'{linked} data files shared with the input' if linked else 'weights copied'}, in {time.monotonic() - start:.1f} s"
    )
    if missing := manifest.facts.get("not_expressible"):
        print(
            f"note: Megatron-LM's own options have no {', '.join(missing)}; the weights are right, but give them to a model that has it",
            file=sys.stderr,
        )
    return command.DONE


if __name__ == "__main__":
    command.run(main)
