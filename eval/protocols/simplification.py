"""SENTA: a Slovene sentence made simpler, scored by SARI, with what a plain copy and silence would score beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eval.protocols.protocol import Protocol, as_dataset, documents
from eval.protocols.rows import Rows, field
from eval.protocols.sari import sari

if TYPE_CHECKING:
    from datasets import DatasetDict

# The paper names no more of its prompt than this sentence, "the instruction added to each example in the prompt", which it saw models repeat
# as their answer.
INSTRUCTION = "Poenostavi naslednji stavek."

SENTA = Protocol(
    evaluated=Rows("sl/senta_test"),
    examples=Rows("sl/senta_train"),
    question=lambda row: f"{INSTRUCTION}\nStavek: {field(row, 'source')}\nPoenostavljen stavek:",
    answer=lambda row: str(field(row, "references")[0]),
    scored=lambda row: {"source": field(row, "source"), "references": list(field(row, "references"))},
)


def load(
    *,
    data: str | None = None,
    shots: int,
    seed: int,
    split: str | None = None,
    items: int | None = None,
    turns: bool = False,
    **metadata: Any,
) -> DatasetDict:
    """Documents with source and references.

    Args:
        metadata: what else lm-eval hands over; not used.
    """
    return as_dataset(documents(SENTA, data=data, shots=int(shots), seed=int(seed), split=split, items=items, turns=turns))


def score(document: dict[str, Any], answers: Sequence[str]) -> dict[str, Any]:
    """SARI of the answer, of the copied source and of nothing; and whether the answer is empty or the instruction itself."""
    output, source, references = answers[0].strip(), document["source"], document["references"]
    return {
        "sari": sari(source, output, references),
        "sari_copy": sari(source, source, references),
        "sari_empty": sari(source, "", references),
        "empty": float(not output),
        "instruction_repeated": float(output.startswith(INSTRUCTION)),
        "copied": float(output == source),
    }
