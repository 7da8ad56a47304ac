"""Say what is in a checkpoint folder: Hugging Face, NeMo 2, Megatron-LM or Megatron-Bridge.

Architecture, sizes, parameters, dtypes, vocabulary with and without padding, whether input and output share a matrix, step and
tokens of the training, where it came from, and whether files are missing, truncated, changed, unsafe or left over.  Only
metadata is read, so it takes a second whatever the size; `--deep` reads every value as well.  Of a run or a series of
checkpoints, the newest is shown.  The exit code is 1 if there is a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import command
from conversion.inspection import describe


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments, look and print."""
    parser = command.parser(__doc__, prog="conversion.inspect", example="python -m conversion.inspect work/run")
    parser.add_argument("path", type=Path, metavar="PATH", help="folder of a checkpoint, of a run, or of several iterations")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--deep", action="store_true", help="read every value: NaN, infinity, and edits since the manifest was written")
    parser.add_argument("--tokenizer", action="store_true", help="compare all ways to read its tokenizer, on hostile and real text")
    parser.add_argument(
        "--other-python", type=Path, metavar="FILE", help="also AutoTokenizer of this interpreter, with another transformers"
    )
    arguments = parser.parse_args(argv)
    if arguments.other_python and not arguments.tokenizer:
        raise ValueError("--other-python is for the check-up of --tokenizer; give both")
    description = describe(arguments.path, deep=arguments.deep, tokenizer=arguments.tokenizer, other_python=arguments.other_python)
    print(description.to_json() if arguments.json else description.to_text())
    return command.WRONG if description.problems else command.DONE


if __name__ == "__main__":
    command.run(main)
