"""Give a model the vocabulary of another language: Hugging Face checkpoint + target tokenizer -> checkpoint with new embeddings.

Tokens of both vocabularies keep their rows bit for bit; the embeddings of new tokens are initialised by the chosen method; all
other weights are copied unchanged.  `transfer.json` in the output records the origin of every row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common import command
from common.artifacts import free_output
from common.options import add_option
from conversion.checkpoints.hf_model import be_quiet_and_offline
from conversion.embeddings import METHODS
from conversion.embeddings.options import LearningOptions, add_transfer_options, transfer_request
from data_prep.reading.named_texts import read_texts
from data_prep.tokenizers.files import start_with_torch, start_without_torch


def main(argv: Sequence[str] | None = None) -> int:
    """Transfer the embeddings into a new checkpoint folder and print where the rows came from."""
    arguments = _parser(_named_method(sys.argv[1:] if argv is None else argv)).parse_args(argv)
    if arguments.show_swap and arguments.vocabulary != "swap":
        raise ValueError(f"--show-swap is for --vocabulary swap; leave it out with {arguments.vocabulary}")
    if arguments.method_from is not None:
        from conversion.embeddings.request import take_recommended

        take_recommended(arguments)
    target = arguments.tokenizer or f"--vocabulary {arguments.vocabulary}"
    print(f"{arguments.source} to {target}: reading", file=sys.stderr, flush=True)  # before what takes seconds to import
    learns = arguments.method is not None and METHODS[arguments.method].learns
    if learns:
        start_with_torch()
        be_quiet_and_offline()
    from common.allocation import return_freed_memory
    from conversion.embeddings.checkpoint import plan_transfer, write_transfer
    from conversion.embeddings.methods.learned import describe_learning
    from conversion.embeddings.report.files import PAGE_NAME, summary
    from conversion.embeddings.vocabularies.strategies import describe

    if not learns:  # steps of training want the same blocks again and again
        return_freed_memory()
    texts = read_texts(
        arguments.report_text, option="--report-text", text_key=arguments.text_key, separator=arguments.document_separator or "blank-line"
    )
    request, state = transfer_request(arguments), arguments.output.with_name(f"{arguments.output.name}.learning")
    if learns:
        free_output(arguments.output)  # not after hours
        request = replace(request, learning=replace(request.learning or LearningOptions(), state=state))
    transfer = plan_transfer(request)
    if arguments.show_swap:
        print(*transfer.target.swapped_lines, sep="\n")
        return command.DONE
    manifest, warnings = write_transfer(transfer, arguments.output, arguments=vars(arguments), report_texts=texts)
    if learns:
        state.unlink(missing_ok=True)
    facts = manifest.facts
    print(f"{arguments.output}: {facts['vocab_size']:,} tokens by {facts['method']}, output layer {facts['head']}, seed {facts['seed']}")
    for line in (*describe(transfer.target.facts), *(describe_learning(facts["learning"]) if "learning" in facts else ())):
        print(f"  {line}")
    print(summary(transfer.inputs, transfer.plan))
    if transfer.target.left_out:
        print(f"  left out: {', '.join(transfer.target.left_out)}, which cannot follow the new vocabulary")
    print(f"  report: {arguments.output / PAGE_NAME}")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return command.DONE


def _parser(method: str | None) -> argparse.ArgumentParser:
    parser = command.parser(
        f"{__doc__}\n`--method NAME --help` shows the options of one method; without a name, all options are shown.",
        example="python -m conversion.transfer --source opt-1.3b/ --tokenizer slovene/ --method focus --text sl.jsonl.gz --output opt-sl/",
    )
    add_transfer_options(parser, method=method)
    add_option(
        parser,
        "--method-from DIR",
        "use the method that this output of conversion.transfer_compare recommends, and the inputs that it needs",
        type=Path,
    )
    add_option(parser, "--show-swap", "print id, old and new token of each exchange of --vocabulary swap; write nothing", False)
    add_option(
        parser,
        "--report-text NAME=FILE",
        "texts on which the report compares the tokenizers, for example sl=heldout.sl.txt (default: --text)",
        [],
        nargs="+",
    )
    add_option(parser, "--output DIR", "new directory", type=Path, required=True)
    return parser


def _named_method(words: Sequence[str]) -> str | None:
    """The method whose options `--help` shows, if the words name one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--method", nargs="?")
    named = parser.parse_known_args(words)[0].method
    return named if named in METHODS else None


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
