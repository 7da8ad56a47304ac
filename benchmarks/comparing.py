"""Where the time of `conversion.transfer_compare` goes: total = shared + variants x (decision + passes), beside bare passes of the same text.

python -m benchmarks.comparing -- --source smollm2/ --tokenizer byte-level-32000/ --text sl.txt --heldout sl=heldout.sl.txt ...

What follows `--` goes to the command, which runs in this process, measured in processor seconds, imports included.  A bare pass is the model
alone on the windows of the text, by the rows of the variant that was measured last.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import command
from common.tables import markdown_table


class Spent:
    """Processor seconds within calls, and how many there were."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def within(self, stage: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.process_time()
            try:
                return whole(*arguments, **named)
            finally:
                self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - start
                self.calls[stage] = self.calls.get(stage, 0) + 1

        return timed


def main(argv: list[str] | None = None) -> int:
    parser = command.parser(__doc__, prog="benchmarks.comparing", example="python -m benchmarks.comparing -- --source smollm2/ ...")
    parser.add_argument("compare", nargs="+", help="after --: arguments of conversion.transfer_compare, without --output")
    arguments = parser.parse_args(argv)
    from conversion import transfer_compare
    from conversion.comparing import comparison
    from conversion.embeddings.checkpoint import Transfer
    from conversion.measuring import bits_per_byte

    spent = Spent()
    batches: list[tuple[Any, Any]] = []
    plain = bits_per_byte.batch_nats

    def remembered(model: Any, windows: Any) -> Any:
        batches.append((model, windows))
        del batches[:-512]
        return plain(model, windows)

    of = spent.within("decisions", Transfer.of)
    Transfer.of = staticmethod(of)  # type: ignore[method-assign,assignment]
    comparison.put_rows = spent.within("rows made and put in", comparison.put_rows)  # type: ignore[assignment]
    comparison.TextScorer.__call__ = spent.within("scoring", comparison.TextScorer.__call__)  # type: ignore[method-assign]
    bits_per_byte.batch_nats = spent.within("passes and losses", remembered)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as scratch:
        transfer_compare.main([*arguments.compare, "--output", str(Path(scratch) / "comparison")])
    total = time.process_time()
    variants = spent.calls["scoring"]
    model = batches[-1][0]
    of_last = [windows for other, windows in batches if other is model]
    bare = _bare_passes(model, of_last)
    scoring, rows, decisions = (spent.seconds[stage] for stage in ("scoring", "rows made and put in", "decisions"))
    last = _seconds(lambda: [plain(model, windows) for windows in of_last])
    table = [
        ["the command", f"{total:.1f}", ""],
        ["shared: imports, reading, tokenizers, loading, page", f"{total - scoring - rows - decisions:.1f}", ""],
        [f"decisions, {spent.calls['decisions']}", f"{decisions:.1f}", f"{decisions / spent.calls['decisions']:.2f}"],
        [
            f"rows made and put in, {spent.calls['rows made and put in']}",
            f"{rows:.1f}",
            f"{rows / spent.calls['rows made and put in']:.2f}",
        ],
        [f"scoring, {variants}", f"{scoring:.1f}", f"{scoring / variants:.2f}"],
        [
            "of these passes with losses",
            f"{spent.seconds['passes and losses']:.1f}",
            f"{spent.seconds['passes and losses'] / variants:.2f}",
        ],
        ["a bare pass of the text, the last model", "", f"{bare:.2f}"],
        ["the same with losses", "", f"{last:.2f}"],
    ]
    print(markdown_table(["what", "processor seconds", "of one"], table))
    return command.DONE


def _bare_passes(model: Any, batches: list[Any]) -> float:
    import torch

    def run() -> None:
        with torch.inference_mode():
            for windows in batches:
                longest = max(len(window.token_ids) for window in windows) - 1
                model(input_ids=torch.tensor([[*w.token_ids[:-1], *[0] * (longest + 1 - len(w.token_ids))] for w in windows]))

    return _seconds(run)


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    command.run(main)
