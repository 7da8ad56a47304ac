"""SENTA: a Slovene sentence made simpler, scored by SARI, with what a plain copy and silence would score beside it.

SARI (Xu et al. 2016) by the definition that the GaMS paper names, Hugging Face's: lower case, tokenizer 13a of sacrebleu, n-grams of 1 to 4;
F1 of what is kept, precision of what is deleted, F1 of what is added.  An empty denominator counts 1, so that a plain copy of the source gets
about 55 and an empty output about 16: never print SARI without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from eval.protocols.protocol import Protocol, dataset_of
from eval.protocols.rows import Rows, field

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


def load(**metadata: Any) -> DatasetDict:
    """Documents with source and references."""
    return dataset_of(SENTA, **metadata)


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


_ORDERS = (1, 2, 3, 4)
Grams = Counter[tuple[str, ...]]


def sari(source: str, output: str, references: Sequence[str]) -> float:
    """SARI of one sentence, 0 to 100.

    Raises:
        ValueError: if there is no reference.
    """
    if not references:
        raise ValueError("SARI needs at least one reference")
    texts = [_tokens(source), _tokens(output), *map(_tokens, references)]
    keep = delete = add = 0.0
    for order in _ORDERS:
        source_grams, output_grams, *reference_grams = (_grams(tokens, order) for tokens in texts)
        order_keep, order_delete, order_add = _order_scores(source_grams, output_grams, reference_grams)
        keep, delete, add = keep + order_keep, delete + order_delete, add + order_add
    return 100 * (keep + delete + add) / (3 * len(_ORDERS))


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return Tokenizer13a()


def _tokens(text: str) -> list[str]:
    return str(_tokenizer()(text.lower())).split()


def _grams(tokens: Sequence[str], order: int) -> Grams:
    return Counter(tuple(tokens[start : start + order]) for start in range(len(tokens) - order + 1))


def _order_scores(source: Grams, output: Grams, references: Sequence[Grams]) -> tuple[float, float, float]:
    """F1 of keeping, precision of deleting, F1 of adding, for n-grams of one length."""
    expected = sum(references, Counter())
    # Source and output count once per reference, to be comparable with all references together.
    many_source = Counter({gram: count * len(references) for gram, count in source.items()})
    many_output = Counter({gram: count * len(references) for gram, count in output.items()})
    kept, deleted = many_source & many_output, many_source - many_output
    kept_well = kept & expected
    keep_precision = _ratio(sum(kept_well[gram] / count for gram, count in kept.items()), len(kept))
    keep_recall = _ratio(kept_well.total(), (many_source & expected).total())
    deleted_well = deleted - expected
    delete_precision = _ratio(sum(deleted_well[gram] / count for gram, count in deleted.items()), len(deleted))
    added, to_add = output.keys() - source.keys(), expected.keys() - source.keys()
    added_well = len(added & expected.keys())
    return (
        _f1(keep_precision, keep_recall),
        delete_precision,
        _f1(_ratio(added_well, len(added)), _ratio(added_well, len(to_add))),
    )


def _ratio(above: float, below: float) -> float:
    return above / below if below else 1.0


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
