"""Which method should I take? Several transfers of one model, measured in bits per byte of held-out text before any training.

Takes the options of conversion.transfer; every method that the given material allows is compared unless `--methods` names some.
`--steps N` also trains each a little, on the same batches of `--text`, and measures again.  No checkpoint is written: the output
holds a table, a drawing and a page (`comparison.html`), and all figures (`comparison.json`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from conversion.embeddings import METHODS
from conversion.embeddings.arguments import add_transfer_arguments, method_name, transfer_request
from conversion.embeddings.vocabulary_strategies import COPYING_STRATEGIES, read_by, require_vocabulary_options
from data_prep import command
from data_prep.artifacts import combined_digest, staged_directory, write_manifest
from data_prep.reading.named_texts import Text, read_texts

if TYPE_CHECKING:
    from conversion.embeddings.request import TransferRequest

STAGE = "conversion.transfer_compare"
# Compared only where they are named: what gives the rows of `sava` to four digits in a hundred to a thousand times the time, and what learns.
_ONLY_WHEN_NAMED = ("sava-adam", *(name for name, method in METHODS.items() if method.learns))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the methods, print the table and write the page."""
    arguments = _parser().parse_args(argv)
    from conversion.comparison import SOURCE, Measurement, TrainingOptions, compare, sample_documents, score_texts
    from conversion.comparison_page import Comparison, write_comparison
    from conversion.embeddings.case import read_case
    from conversion.embeddings.checkpoint import Transfer
    from conversion.hf_model import be_quiet_and_offline, default_device, inspect_checkpoint, load_model

    be_quiet_and_offline()
    training = TrainingOptions(arguments.steps, arguments.learning_rate, arguments.batch_size, arguments.sequence_length)
    request = transfer_request(arguments, method="random", seed=arguments.seeds[0])
    methods = choose_methods(arguments.methods, request, trains=training.num_steps > 0)
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise ValueError(f"--seeds names a seed twice: {' '.join(map(str, arguments.seeds))}")
    texts = [
        sample_documents(text, arguments.heldout_bytes)
        for text in read_texts(arguments.heldout, option="--heldout", text_key=arguments.text_key, separator=arguments.document_separator)
    ]
    checkpoint = inspect_checkpoint(request.source, name=SOURCE)
    case = read_case(request)
    tokenizer = case.target.tokenizer
    with staged_directory(arguments.output) as staging:
        model = load_model(checkpoint, device=arguments.device or default_device(), dtype=arguments.dtype)
        measurements = [Measurement(SOURCE, 0, 0, score_texts(model, checkpoint.tokenizer, texts))]
        runs = compare(
            model,
            lambda method, seed: Transfer.of(case, replace(request, method=method, seed=seed)),
            methods,
            arguments.seeds,
            tokenizer=tokenizer,
            texts=texts,
            training=training,
            training_text=list(request.text) if training.num_steps and request.text is not None else (),
        )
        for measurement in runs:
            measurements.append(measurement)
            print(_progress(measurement, texts), file=sys.stderr, flush=True)
        comparison = Comparison(
            tuple(measurements), tuple(texts), training, str(request.source), str(request.tokenizer or request.vocabulary.strategy)
        )
        write_comparison(comparison, staging)
        write_manifest(
            staging,
            stage=STAGE,
            facts={"tokenizer_digest": case.target.digest, "model_type": checkpoint.model_type, "vocab_size": len(case.inputs.target)},
            arguments=vars(arguments),
            inputs={
                str(request.source): checkpoint.digest,
                str(request.tokenizer or request.vocabulary.strategy): case.target.digest,
                "heldout": combined_digest({text.name: text.digest for text in texts}),
            },
        )
    print("Bits per byte of held-out text (lower is better)")
    print(comparison.tables())
    print(f"\npage: {arguments.output / 'comparison.html'}")
    return command.DONE


def choose_methods(named: Sequence[str] | None, request: TransferRequest, *, trains: bool) -> list[str]:
    """The methods to compare: those named, else all that the given material allows.

    Args:
        trains: whether text serves training, so that it is of use even if no method reads it.

    Raises:
        ValueError: if a named method lacks material, if none is left, or if some material serves none of them.
    """
    from conversion.embeddings.request import MATERIAL, refusal_of

    require_vocabulary_options(request.vocabulary, tokenizer=request.tokenizer, text=request.text)
    if request.vocabulary.strategy in COPYING_STRATEGIES:
        raise ValueError(f"--vocabulary {request.vocabulary.strategy} copies every row, so there is nothing to compare")
    if trains and request.text is None:
        raise ValueError("--steps trains on text in the target language; give it with --text FILE")
    if named:
        for method in named:
            if refusal := refusal_of(request, method):
                raise ValueError(refusal)
        methods = list(dict.fromkeys(named))
    else:
        methods = [m for m in METHODS if not refusal_of(request, m) and m not in _ONLY_WHEN_NAMED]
    used = {name for method in methods for name in METHODS[method].uses} | ({"text"} if trains else set())
    used |= read_by(request.vocabulary, request.tokenizer)
    for field_name, (flag, _) in MATERIAL.items():
        if getattr(request, field_name) is not None and field_name not in used:
            raise ValueError(f"none of the methods {', '.join(methods)} makes use of {flag}; leave it out or name a method that does")
    return methods


def _progress(measurement: object, texts: Sequence[Text]) -> str:
    from conversion.comparison import Measurement

    assert isinstance(measurement, Measurement)
    figures = ", ".join(f"{text.name} {measurement.scores[text.name].bits_per_byte:.3f}" for text in texts)
    return f"{measurement.method}, seed {measurement.seed}, step {measurement.step}: {figures} ({measurement.seconds:.1f} s)"


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        prog=STAGE,
        example="python -m conversion.transfer_compare --source opt-1.3b/ --tokenizer slovene/ --text sl.jsonl.gz \\\n"
        "      --heldout sl=heldout.sl.txt --steps 50 --output comparison/",
    )
    add_transfer_arguments(parser)
    parser.add_argument(
        "--methods",
        nargs="+",
        type=method_name,
        choices=tuple(METHODS),
        help="default: all that the given material allows, but sava-adam and those that learn",
    )
    parser.add_argument("--heldout", nargs="+", required=True, metavar="NAME=FILE", help="texts to measure on, none of them in --text")
    parser.add_argument(
        "--heldout-bytes", type=int, default=200_000, metavar="N", help="of each text, in whole documents (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[42], metavar="N", help="each method is measured with each (default: 42)")
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="training steps before measuring again (default: none)")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="of these steps (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="sequences in a step (default: %(default)s)")
    parser.add_argument("--sequence-length", type=int, default=256, metavar="N", help="tokens in a sequence (default: %(default)s)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights in memory (default: %(default)s)"
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ...; default: cuda where there is one")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory")
    return parser


if __name__ == "__main__":
    command.run(main)
