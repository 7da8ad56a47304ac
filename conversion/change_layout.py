"""Move the weights of a checkpoint between NeMo 2, Megatron-LM and Megatron-Bridge: other names over the same data.

All three keep Megatron's distributed checkpoints, so no value is read: data files are linked where the file system can (`--copy`
copies the weights instead) and only the index is written anew.  Optimizer state and random state stay behind.  What the model is
travels in the folder `context`, which the other two programs ignore; a checkpoint that they have trained is brought back with
`--context`, a NeMo checkpoint of this project of the same model.
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
    parser.add_argument("--input", type=Path, required=True, help="checkpoint folder, or one of several, of which the newest is taken")
    parser.add_argument("--to", choices=LAYOUTS, required=True, help="the program that is to read it")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--context", type=Path, metavar="DIR", help="NeMo checkpoint that says what the model is, where the input does not")
    parser.add_argument("--copy", action="store_true", help="copy the weights even where the files could be linked")
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
