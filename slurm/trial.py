"""Job of `slurm.doctor --train`: a trial training on this node, part after part.

Called by the job script, not by users.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import command
from common.options import add_option
from common.plain_files import write_text
from slurm.checks.trial import PARTS, RESULT_NAME, Trial


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts and write what each found, or what kept it from it, as soon as it is there."""
    parser = command.parser(__doc__, example="python -m slurm.trial --output doctor")
    add_option(parser, "--output", "directory that slurm.doctor created", required=True, type=Path)
    add_option(parser, "--devices N", "number of processes without a GPU (default: the node's GPUs, or 4)", type=int)
    arguments = parser.parse_args(argv)
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    trial = Trial(arguments.output.absolute(), arguments.devices or num_gpus or 4, has_gpus=num_gpus > 0)
    found: dict[str, Any] = {}
    for name, part in PARTS.items():
        start = time.monotonic()
        try:
            found[name] = part(trial)
        except Exception as error:  # of a library or of a machine that is not sound, which is what is looked for
            traceback.print_exc()
            found[name] = {"error": f"{type(error).__name__}: {str(error).strip()[-600:]}"}
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        write_text(trial.directory / RESULT_NAME, json.dumps(found, indent=2) + "\n")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
