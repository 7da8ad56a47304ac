"""Transfer methods on a real pretrained model: bits per byte of held-out text before and after continued pretraining, beside training without a new vocabulary.

    python -m benchmarks.real_model_study --source smollm2/ --data DATA --output STUDY --languages sl it hr
    python -m benchmarks.real_model_study --source smollm2/ --data DATA --output STUDY --methods lapt random focus mean --tokens 20480 51200 --seeds 1 2 3

DATA holds `text/LANG/*.jsonl.gz`, `parallel/` and `dictionaries/`.  Held-out text are stories of NTREX in the target language and in English, and
pieces of every twelfth novel, none of which any tokenizer, method or training saw.  Each cell (language, vocabulary, method, way of training, seed) is a
JSON file of its own, so that a study of days can be stopped and continued, and grows by the same command with more of everything; a cell that is
trained for long keeps its state every 20 minutes, with --keep-states also at its end, so that more --tokens go on from there.  Cells made with other settings are refused.  `lapt` trains the source with its own vocabulary on as
many tokens (equal compute) and on as many bytes of text as each of the vocabularies reads.  Products are in bfloat16 unless --precision says float32; seconds are the processor's of one thread, unless --threads
says more, or with --device cuda those of the clock.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from conversion.checkpoints.hf_model import be_quiet_and_offline

be_quiet_and_offline()

import torch  # noqa: E402 (after the environment is set)

from benchmarks.real_model.cells import DRAWN, LAPT, STREAMS, Cell, equal_bytes, make_rows, measure, measure_speed, measure_together  # noqa: E402
from benchmarks.real_model.material import DICTIONARIES, HELPER_STEPS, Sizes, Study  # noqa: E402
from benchmarks.real_model.tables import all_tables  # noqa: E402
from benchmarks.real_model.training import WARMUP_STEPS, WAYS, chosen_device  # noqa: E402
from conversion.comparing.comparison import TrainingOptions  # noqa: E402
from conversion.embeddings import METHODS  # noqa: E402
from conversion.embeddings.request import refusal_of  # noqa: E402

VOCABULARIES = ("replace-16000", "replace-32000", "expand-2000")
CLOSED = tuple(name for name, method in METHODS.items() if not method.learns and name != "sava-adam")


def main(argv: Sequence[str] | None = None, sizes: Sizes | None = None) -> None:
    """Measure what is missing and write the tables of all that is there."""
    arguments = _parser().parse_args(argv)
    if arguments.threads < 1 or (arguments.speed and arguments.threads > 1):
        raise SystemExit(f"--threads {arguments.threads}: expected {'1, of which --speed tells' if arguments.speed else 'at least 1'}")
    device = chosen_device(arguments.device)
    if not 1 <= arguments.together <= STREAMS or (arguments.together > 1 and device.type != "cuda"):
        raise SystemExit(f"--together {arguments.together}: expected 1 to {STREAMS}, and more than 1 only with --device cuda")
    torch.set_num_threads(arguments.threads)
    how = TrainingOptions(
        learning_rate=arguments.learning_rate, batch_size=4, sequence_length=256, mixed_precision=arguments.precision == "bfloat16"
    )
    of_step = how.batch_size * how.sequence_length
    if odd := [tokens for tokens in arguments.tokens if tokens < of_step or tokens % of_step]:
        raise SystemExit(f"--tokens {' '.join(map(str, odd))}: expected multiples of the {of_step} tokens of a step")
    if few := [steps for steps in arguments.helper_steps if steps < HELPER_STEPS]:
        raise SystemExit(f"--helper-steps {' '.join(map(str, few))}: expected at least {HELPER_STEPS}")
    study = Study(
        arguments.source,
        arguments.data,
        arguments.output.resolve(),
        sizes or Sizes(),
        device=arguments.device,
        compiled=arguments.compile,
        precision=arguments.precision,
    )
    where = {"device": device.type} if device.type != "cpu" else {}  # whose seconds are not to be compared with a processor's
    if arguments.compile:
        where["compiled"] = "layers"
    study.require_same({"source": study.checkpoint.digest, **asdict(study.sizes), **asdict(how), "warmup_steps": WARMUP_STEPS, **where})
    if not arguments.tables_only:
        _measure(study, arguments, how)
    if arguments.rows_only:
        return
    tables = all_tables(study, of_step)
    (study.output / "tables.md").write_text(tables, encoding="utf-8")
    print(tables)


def _measure(study: Study, arguments: argparse.Namespace, how: TrainingOptions) -> None:
    """All that is asked for and missing."""
    if arguments.speed:
        for language in arguments.languages:
            measure_speed(study, language, arguments.vocabularies)
        return
    cells = (cell for language in arguments.languages for cell in _cells(study, language, arguments, how))
    if arguments.rows_only:
        for cell, _ in cells:
            make_rows(study, cell)
    elif arguments.together > 1:
        measure_together(study, list(cells), how, together=arguments.together, keep_state=arguments.keep_states)
    else:
        for cell, budgets in cells:
            measure(study, cell, budgets, how, keep_state=arguments.keep_states)


def _cells(study: Study, language: str, arguments: argparse.Namespace, how: TrainingOptions) -> Iterator[tuple[Cell, Sequence[int]]]:
    """All cells of a language, with the tokens after which they are measured."""
    of_step = how.batch_size * how.sequence_length
    for way in arguments.ways:
        if LAPT in arguments.methods and not WAYS[way].needs_new_rows:
            budgets = {
                equal_bytes(study, language, vocabulary, b, of_step) for vocabulary in arguments.vocabularies for b in arguments.tokens
            }
            for seed in arguments.seeds if arguments.tokens else [1]:
                yield Cell(language, None, LAPT, way, seed), sorted({*arguments.tokens, *budgets})
        for vocabulary in arguments.vocabularies:
            for method in (name for name in arguments.methods if name != LAPT):
                if refusal := refusal_of(study.request(language, vocabulary), method):
                    print(f"{method}: {refusal}", file=sys.stderr, flush=True)
                    continue
                for seed in arguments.seeds if arguments.tokens or method in DRAWN else [1]:
                    for steps in arguments.helper_steps if "helper" in METHODS[method].needs else [HELPER_STEPS]:
                        yield Cell(language, vocabulary, method, way, seed, steps), arguments.tokens


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="model folder with its tokenizer")
    parser.add_argument("--data", type=Path, required=True, help="folder of real text and dictionaries")
    parser.add_argument("--output", type=Path, required=True, help="everything is made here, and found again")
    parser.add_argument("--languages", nargs="+", choices=tuple(DICTIONARIES), default=["sl"])
    parser.add_argument("--vocabularies", nargs="+", default=VOCABULARIES, help="replace-SIZE or expand-TOKENS (default: %(default)s)")
    parser.add_argument("--methods", nargs="+", choices=(LAPT, *METHODS), default=(LAPT, *CLOSED), help="default: lapt and all closed ones")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=["plain"], help="of training")
    parser.add_argument(
        "--helper-steps",
        nargs="+",
        type=int,
        default=[HELPER_STEPS],
        metavar="STEPS",
        help="of training of the helper, of 1,024 tokens, for methods that read one (default: %(default)s)",
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=[], help="measure after so many tokens of training")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="of drawn rows and of the order of text")
    parser.add_argument("--threads", type=int, default=1, help="of this process; CPU seconds are of all of them (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: %(default)s)")
    parser.add_argument(
        "--precision",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of products; a processor without bfloat16 instructions takes many times as long for these as for float32 (default: %(default)s)",
    )
    parser.add_argument("--together", type=int, default=1, metavar="N", help="cells beside each other on one GPU (default: %(default)s)")
    parser.add_argument(
        "--rows-only", action="store_true", help="make the rows of the methods ahead and nothing else, in any number of processes"
    )
    parser.add_argument("--compile", action="store_true", help="train layers that torch has compiled: fewer kernels, other roundings")
    parser.add_argument("--keep-states", action="store_true", help="keep trained models (12 bytes a parameter), to train longer later")
    parser.add_argument("--speed", action="store_true", help="measure the speed of generation by each vocabulary, and nothing else")
    parser.add_argument("--tables-only", action="store_true", help="write the tables of what was measured (tables.md) and nothing else")
    return parser


if __name__ == "__main__":
    main()
