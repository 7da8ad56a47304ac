"""Compare transfer methods for one model by bits per byte of held-out text before training, and recommend one.

Takes the options of conversion.transfer and compares every method that has its inputs, or those of `--methods`.
Documents are scored in rounds until one method is significantly better or the remaining ones are tied; the first text decides.
`--steps N` also trains each result for N steps, on the same batches of `--text`, and measures again.  No checkpoint is written: the output
has a table, a chart and a page (`comparison.html`), and all figures (`comparison.json`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from common import command
from common.artifacts import combined_digest, staged_directory, write_manifest
from common.options import add_option
from conversion.embeddings import METHODS
from conversion.embeddings.options import COPYING_STRATEGIES, MATERIAL, METHOD_NAME, add_transfer_options, transfer_request
from data_prep.reading.named_texts import Text, read_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from conversion.comparing.comparison import Measurement, Planned
    from conversion.embeddings.case import TransferCase
    from conversion.embeddings.options import TransferRequest

STAGE = "conversion.transfer_compare"
# Compared only where they are named: what gives the rows of `sava` to four digits in a hundred to a thousand times the time, and what learns.
_ONLY_WHEN_NAMED = ("sava-adam", *(name for name, method in METHODS.items() if method.learns))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the methods, print the table and write the page."""
    arguments = _parser().parse_args(argv)
    request = transfer_request(arguments, method="random", seed=arguments.seeds[0])
    methods = choose_methods(arguments.methods, request, trains=arguments.steps > 0)
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise ValueError(f"--seeds names a seed twice: {' '.join(map(str, arguments.seeds))}")
    _say(f"comparing {len(methods)} methods: {', '.join(methods)}")
    from conversion.checkpoints.hf_model import be_quiet_and_offline

    be_quiet_and_offline()
    from conversion.checkpoints.hf_model import default_device, inspect_checkpoint, load_model
    from conversion.comparing.comparison import (
        SOURCE,
        Measurement,
        Race,
        TextScorer,
        TrainingOptions,
        sample_documents,
    )
    from conversion.comparing.decision import DecisionRule
    from conversion.comparing.page import Comparison, write_comparison
    from conversion.embeddings.case import read_case
    from data_prep.tokenizers.plain_tokenizer import by_transformers

    training = TrainingOptions(arguments.steps, arguments.learning_rate, arguments.batch_size, arguments.sequence_length)
    # What training makes of a method is not known before it, so then all are measured on everything.
    rule = DecisionRule(arguments.tie, every_document=arguments.every_document or training.num_steps > 0)
    texts = [
        sample_documents(text, arguments.heldout_bytes)
        for text in read_texts(arguments.heldout, option="--heldout", text_key=arguments.text_key, separator=arguments.document_separator)
    ]
    checkpoint = inspect_checkpoint(request.source, name=SOURCE)
    case = read_case(request)
    tokenizer = by_transformers(case.target.tokenizer)
    scorer = TextScorer(tokenizer, start_token=arguments.start_token)
    _say(f"read {request.source} and a vocabulary of {len(case.inputs.target):,} tokens, {len(case.inputs.new_ids):,} of them new")
    with staged_directory(arguments.output) as staging:
        race = Race(_plan(case, request, methods, arguments.seeds), scorer, texts, rule, _say)
        device = arguments.device or default_device()
        screened = None
        if not rule.every_document and arguments.dtype == "float32" and _screens(arguments.screening, device):
            _say("the rounds are measured in bfloat16; the remaining methods are measured in float32")
            screened = race.screen(load_model(checkpoint, device=device, dtype="bfloat16"))
        model = load_model(checkpoint, device=device, dtype=arguments.dtype)
        measurements = race.compare(model, screened)
        if training.num_steps:
            assert request.text is not None
            for measurement in race.train_and_measure(model, tokenizer, training, list(request.text)):
                measurements.append(measurement)
                _say(_progress(measurement, texts))
        # The source on as much as the best have: no more says anything about them.
        texts = [replace(text, documents=text.documents[: max(len(m.scores[text.name].documents) for m in measurements)]) for text in texts]
        source_start = arguments.start_token if _has_token(checkpoint.tokenizer, arguments.start_token) else "auto"
        source = Measurement(SOURCE, 0, 0, TextScorer(checkpoint.tokenizer, start_token=source_start)(model, texts))
        _say(_progress(source, texts))
        comparison = Comparison(
            (source, *measurements),
            tuple(texts),
            training,
            str(request.source),
            str(request.tokenizer or request.vocabulary.strategy),
            rule,
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
    print(f"\n{comparison.recommendation}\n\npage: {arguments.output / 'comparison.html'}")
    return command.DONE


def _plan(case: TransferCase, request: TransferRequest, methods: Sequence[str], seeds: Sequence[int]) -> dict[tuple[str, int], Planned]:
    """Decide every transfer; what several of them need is made once."""
    from conversion.comparing.comparison import Planned
    from conversion.embeddings.checkpoint import Transfer

    plans = {}
    for seed in seeds:
        for method in methods:
            start = time.monotonic()
            transfer = Transfer.of(case, replace(request, method=method, seed=seed))
            plans[method, seed] = Planned(transfer, time.monotonic() - start)
            _say(f"{method}, seed {seed}: rows planned in {plans[method, seed].seconds:.1f} s")
    return plans


def _screens(choice: str, device: str) -> bool:
    """Whether rounds are read in bfloat16 first: where a CPU multiplies it several times as fast as float32, unless the user says."""
    import torch

    if choice != "auto":
        return choice == "bfloat16"
    return device == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _has_token(tokenizer: PreTrainedTokenizerFast, rule: str) -> bool:
    from conversion.measuring.bits_per_byte import START_TOKEN_RULES

    return rule in START_TOKEN_RULES or rule in tokenizer.get_vocab()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def choose_methods(named: Sequence[str] | None, request: TransferRequest, *, trains: bool) -> list[str]:
    """The methods to compare: those named, else all that the given material allows.

    Args:
        trains: whether text serves training, so that it is of use even if no method reads it.

    Raises:
        ValueError: if a named method lacks material, if none is left, or if some material serves none of them.
    """
    from conversion.embeddings.request import refusal_of
    from conversion.embeddings.vocabularies.strategies import read_by, require_vocabulary_options

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
            raise ValueError(f"none of the methods {', '.join(methods)} uses {flag}; leave it out or name a method that does")
    return methods


def _progress(measurement: Measurement, texts: Sequence[Text]) -> str:
    figures = ", ".join(f"{text.name} {measurement.scores[text.name].bits_per_byte:.3f}" for text in texts)
    return f"{measurement.method}, seed {measurement.seed}, step {measurement.step}: {figures} ({measurement.seconds:.1f} s)"


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        example="python -m conversion.transfer_compare --source opt-1.3b/ --tokenizer slovene/ --text sl.jsonl.gz \\\n"
        "      --heldout sl=heldout.sl.txt --steps 50 --output comparison/",
    )
    add_transfer_options(parser, leave_out=("method", "seed", "learning"))
    parser.add_argument(
        "--methods",
        nargs="+",
        **METHOD_NAME,
        help="methods to compare (default: all that have their inputs, except sava-adam and methods that learn)",
    )
    add_option(parser, "--heldout NAME=FILE", "held-out texts to measure on; none of it may be in --text", nargs="+", required=True)
    add_option(parser, "--heldout-bytes N", "bytes to read of each text, in whole documents", 200_000)
    add_option(parser, "--tie BITS", "difference in bits per byte of the first text below which methods count as tied", 0.02)
    add_option(
        parser, "--every-document", "score every document with every method, also with those already ruled out (always with --steps)", False
    )
    add_option(
        parser,
        "--start-token TOKEN",
        "token before every document: auto, bos, eos, or a token of the target (the source uses auto if it lacks that token)",
        "auto",
    )
    add_option(parser, "--seeds N", "random seeds to measure each method with (default: 42)", [42], type=int, nargs="+")
    add_option(parser, "--steps N", "training steps before measuring again (default: none)", 0)
    add_option(parser, "--learning-rate", "learning rate of these steps", 1e-4)
    add_option(parser, "--batch-size N", "sequences per step", 8)
    add_option(parser, "--sequence-length N", "tokens per sequence", 256)
    add_option(parser, "--dtype", "dtype of the weights in memory", "float32", choices=("float32", "bfloat16"))
    add_option(
        parser,
        "--screening",
        "dtype of the rounds; the remaining methods are measured in float32 (default: bfloat16 if the CPU supports it)",
        "auto",
        choices=("auto", "bfloat16", "none"),
    )
    add_option(parser, "--device", "cpu, cuda, cuda:1 ... (default: cuda if available)")
    add_option(parser, "--output DIR", "new directory", type=Path, required=True)
    return parser


if __name__ == "__main__":
    command.run(main)
