"""What one protocol is, and the documents that lm-eval gets from it: prompts are finished here, examples included.

lm-eval draws solved examples in the order it meets documents, so that its prompts change with the number of processes, with a limit on the
items and with the shots of the document before.  Here the seed and the document's id alone decide, and fewer examples are always the first
of more, so that curves over k are paired.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from eval.protocols.rows import Row, Rows, data_folder, read_rows

if TYPE_CHECKING:
    from datasets import DatasetDict


DEFAULT_SEED = 1234


@dataclass(frozen=True)
class Protocol:
    """How the rows of one set are asked.

    Attributes:
        evaluated: the rows that are asked.
        question: what stands before the answer, which follows after a space (`Odgovor:`).
        answer: the answer as a solved example shows it.
        scored: fields that scoring needs (label, references ...), the same for every row.
        examples: rows that examples are drawn from; None where there are never any.
        instruction: stands once above everything; of a row, as it may name what is asked.
        between: between two examples.
        prepare: rows of the file -> rows that are asked, for sets that keep several in one.
        like: only examples that agree with the document in this are drawn.
        pool_rows: only so many rows of the file, from its start, are examples.
        article: long text that the question holds, whose end may be left out of a prompt that does not fit; None where there is none.
    """

    evaluated: Rows
    question: Callable[[Row], str]
    answer: Callable[[Row], str]
    scored: Callable[[Row], dict[str, Any]]
    examples: Rows | None = None
    instruction: Callable[[Row], str] | None = None
    between: str = "\n\n"
    prepare: Callable[[Sequence[Row]], list[Row]] = list
    like: Callable[[Row], Any] | None = None
    pool_rows: int | None = None
    article: Callable[[Row], str] | None = None


def documents(
    protocol: Protocol,
    *,
    data: str | None = None,
    shots: int = 0,
    seed: int = DEFAULT_SEED,
    split: str | None = None,
    items: int | None = None,
    turns: bool = False,
) -> list[dict[str, Any]]:
    """Documents for lm-eval, each with `id`, `group`, `prompt`, `shot_ids`, `cuts` and what scoring needs.

    `cuts` are spans of the prompt, in characters, that may be left out where it does not fit (`eval.running.shortening`): the examples from the last
    on, so that fewer are always the first of more, and last the article.

    Args:
        data: folder of evaluation data.
        shots: examples before every question.
        split: other than the protocol's own.
        items: ask only so many rows, drawn by the seed; None for all.
        turns: documents also tell `question`, `answer` and what stands `after` it of each example, for conversations (`eval.running.chat`).

    Raises:
        ValueError: if files, fields or labels are missing, or the pool of examples is smaller than `shots`.
    """
    folder = data_folder(data)
    source = protocol.evaluated if split is None else replace(protocol.evaluated, split=split)
    evaluated = protocol.prepare(read_rows(folder, source))
    if shots and protocol.examples is None:
        raise ValueError(f"{shots} examples were asked for, but this protocol has no examples; leave out the shots")
    pool: list[Row] = []
    if shots and protocol.examples is not None:
        candidates = read_rows(folder, protocol.examples)[: protocol.pool_rows]
        pool = example_pool(protocol.prepare(candidates), evaluated)
    if items is not None and int(items) < len(evaluated):  # after the pool, which holds none of them, asked or not
        if int(items) < 1:
            raise ValueError(f"{items} items were asked for; expected 1 or more")
        evaluated = draw_examples(sorted(evaluated, key=lambda row: str(row["id"])), "evaluated items", int(items), seed=seed)
    pools = _pools_by_likeness(protocol, pool)
    return [_document(protocol, row, pools, shots=shots, seed=seed, turns=turns) for row in evaluated]


def _pools_by_likeness(protocol: Protocol, pool: Sequence[Row]) -> dict[Any, list[Row]]:
    pools: dict[Any, list[Row]] = {}
    for row in pool:
        pools.setdefault(None if protocol.like is None else protocol.like(row), []).append(row)
    return pools


def _document(protocol: Protocol, row: Row, pools: dict[Any, list[Row]], *, shots: int, seed: int, turns: bool) -> dict[str, Any]:
    pool = pools.get(None if protocol.like is None else protocol.like(row), [])
    examples = draw_examples(pool, str(row["id"]), shots, seed=seed)
    solved = [f"{protocol.question(example)} {protocol.answer(example)}{protocol.between}" for example in examples]
    instruction = "" if protocol.instruction is None else f"{protocol.instruction(row)}\n\n"
    before, question = f"{instruction}{''.join(solved)}", protocol.question(row)
    description = [
        {"question": protocol.question(example), "answer": protocol.answer(example), "after": protocol.between} for example in examples
    ]
    return {
        "id": str(row["id"]),
        "group": str(row.get("group", row["id"])),
        "prompt": f"{before}{question}",
        "shot_ids": [str(example["id"]) for example in examples],
        "cuts": [*reversed(_spans(solved, start=len(instruction))), _article_span(protocol, row, question, start=len(before))],
        **({"turns": description} if turns else {}),
        **protocol.scored(row),
    }


def _spans(parts: Sequence[str], *, start: int) -> list[list[int]]:
    """First character of each part and the one after it, one part after the other."""
    ends = list(accumulate(map(len, parts), initial=start))
    return [list(span) for span in pairwise(ends)]


def _article_span(protocol: Protocol, row: Row, question: str, *, start: int) -> list[int]:
    """Where the article stands in the prompt, an empty place where there is none."""
    article = "" if protocol.article is None else protocol.article(row)
    found = question.find(article)
    assert found >= 0, "an article is a part of its question"
    return [start + found, start + found + len(article)]


def dataset_of(
    protocol: Protocol,
    *,
    data: str | None = None,
    shots: int = 0,
    seed: int = DEFAULT_SEED,
    split: str | None = None,
    items: int | None = None,
    turns: bool = False,
    **metadata: Any,
) -> DatasetDict:
    """The documents for lm-eval; a protocol without examples is asked without them, whatever the metadata say.

    Args:
        metadata: what else lm-eval hands over; not used.

    Raises:
        ValueError: as `documents`.
    """
    shots, turns = (0, False) if protocol.examples is None else (int(shots), turns)
    return as_dataset(documents(protocol, data=data, shots=shots, seed=int(seed), split=split, items=items, turns=turns))


def as_dataset(rows: Sequence[dict[str, Any]]) -> DatasetDict:
    """One split, `test`, as lm-eval wants it."""
    from datasets import Dataset, DatasetDict

    return DatasetDict(test=Dataset.from_list(list(rows)))


def example_pool(candidates: Sequence[Row], evaluated: Sequence[Row]) -> list[Row]:
    """Candidates that share neither id nor group (passage, story, source sentence) with any evaluated row, by id.

    By id, so that the order of a file decides nothing.
    """
    taken = {identity for row in evaluated for identity in _identities(row)}
    return sorted((row for row in candidates if not taken & set(_identities(row))), key=lambda row: str(row["id"]))


def _identities(row: Row) -> tuple[str, ...]:
    group = row.get("group")
    return (str(row["id"]),) if group is None else (str(row["id"]), str(group))


def draw_examples(pool: Sequence[Row], document_id: str, num_examples: int, *, seed: int = DEFAULT_SEED) -> list[Row]:
    """Examples for one document, no two the same; those for a smaller number are the first of these.

    Raises:
        ValueError: if the pool is too small.
    """
    if num_examples < 0:
        raise ValueError(f"{num_examples} examples were asked for; expected 0 or more")
    if len(pool) < num_examples:
        raise ValueError(
            f"the pool has {len(pool)} examples outside the evaluation data, but {num_examples} are needed for {document_id};"
            " give fewer shots or more training rows"
        )
    rng = random.Random(hashlib.sha256(f"{seed}|{document_id}".encode()).digest())
    # The first steps of a Fisher-Yates shuffle: unlike random.sample, one algorithm for every number of draws.
    moved: dict[int, int] = {}
    drawn = []
    for position in range(num_examples):
        other = rng.randrange(position, len(pool))
        drawn.append(pool[moved.get(other, other)])
        moved[other] = moved.get(position, position)
    return drawn
