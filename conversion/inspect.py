"""Describe and check a checkpoint folder of Hugging Face, NeMo 2, Megatron-LM or Megatron-Bridge.

Prints architecture, sizes, parameters, dtypes, vocabulary with and without padding, whether the output layer is tied, training step and
tokens, origin, and files that are missing, truncated, changed, unsafe or unexpected.  Only metadata is read, which takes a second for
any size; `--deep` also reads every value.  Of a run or a series of checkpoints, the newest is shown.  The exit code is 1 if there is a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import command
from common.options import add_option
from conversion.inspection import describe


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments, look and print."""
    parser = command.parser(__doc__, example="python -m conversion.inspect work/run")
    parser.add_argument("path", type=Path, metavar="PATH", help="folder of a checkpoint, of a run, or of several checkpoints")
    add_option(parser, "--json", "print JSON instead of text", False)
    add_option(parser, "--deep", "read every value: finds NaN, infinity and changes since the manifest was written", False)
    add_option(parser, "--tokenizer", "compare all libraries that load its tokenizer, on adversarial and real text", False)
    add_option(parser, "--other-python FILE", "also compare AutoTokenizer of this Python interpreter, with another transformers", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.other_python and not arguments.tokenizer:
        raise ValueError("--other-python is for the check-up of --tokenizer; give both")
    description = describe(arguments.path, deep=arguments.deep, tokenizer=arguments.tokenizer, other_python=arguments.other_python)
    print(description.to_json() if arguments.json else description.to_text())
    return command.WRONG if description.problems else command.DONE


if __name__ == "__main__":
    command.run(main)
