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
from common.options import add_option
from conversion.layouts.moving import LAYOUTS, STAGE, change


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and move."""
    parser = command.parser(__doc__, example=f"python -m {STAGE} --input work/run --to megatron-bridge --output work/bridge")
    add_option(parser, "--input", "checkpoint folder, or a folder of several, of which the newest is used", type=Path, required=True)
    add_option(parser, "--to", "target layout", choices=LAYOUTS, required=True)
    add_option(parser, "--output", "folder to write", type=Path, required=True)
    add_option(parser, "--context DIR", "NeMo checkpoint of the same model, for inputs without a folder `context`", type=Path)
    add_option(parser, "--copy", "copy the weights even where the files could be hard-linked", False)
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
