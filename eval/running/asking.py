"""The requests of all tasks in one queue: what is asked together, in which order, and what becomes of a task that cannot be answered."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from eval.running.beginnings import most_together, stems_of
from eval.running.results import GoneError
from eval.running.workers import Answers, Call, Workers, answer_call

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from eval.running.encoding import Encoder, Pair


class Asker(Protocol):
    """Whose questions they are: a task.

    Attributes:
        sampling_seed: of what is drawn.
    """

    sampling_seed: int

    def knows(self, key: str) -> bool:
        """Whether a question has its answer."""

    def remember(self, answered: Sequence[tuple[Question, Any, bool | None]]) -> None:
        """Keep answers; with each whether its text ended by itself."""

    def advance(self, count: int) -> None:
        """Count answers."""


@dataclass(frozen=True)
class Question:
    """A request of a task.

    Attributes:
        task: which remembers the answers.
        request: as it is asked, with a shorter prompt where its own does not fit.
        key: by which its answer is remembered.
        run: number among requests that are alike.
        is_cut: the model does not see the whole prompt.
        pair: token ids of a log-likelihood's context and continuation, where the backend takes them.
    """

    task: Asker
    kind: str
    request: Instance
    key: str
    run: int
    is_cut: bool = False
    pair: Pair | None = None

    @property
    def samples(self) -> bool:
        """Whether its answer is drawn, so that a seed decides it and what is asked with it."""
        return self.kind == "generate_until" and bool(self.request.args[1].get("do_sample"))


@dataclass(frozen=True)
class _Piece:
    questions: Sequence[Question]
    call: Call


def ask_all(backend: Any, questions: Sequence[Question], *, size: int) -> dict[Asker, Exception]:
    """Answer what the tasks do not remember, and let them remember it.

    Pieces are cut before answers are looked for, so that an interruption changes no answer.  Where one that several tasks share cannot be
    answered, each task's part of it is asked alone, and only a task whose own part fails is given up.

    Args:
        backend: lm-eval's of a model, or processes that have one.
        size: questions of a piece; those after one prompt stay together.

    Returns:
        task -> why it was given up
    """
    failures: dict[Asker, Exception] = {}
    waiting = deque(_pieces(questions, size, encoder=getattr(backend, "encoder", None)))
    while waiting:
        asked: list[_Piece] = []
        try:
            for number, answers in _answers(backend, _take(waiting, asked, failures)):
                piece = asked[number]
                failure = answers if isinstance(answers, Exception) else _remember(piece.questions, answers)
                if failure is None:
                    continue
                if len(tasks := dict.fromkeys(question.task for question in piece.questions)) == 1:
                    failures.setdefault(piece.questions[0].task, failure)
                else:
                    waiting.extendleft(_part(piece, [q for q in piece.questions if q.task is task]) for task in tasks)
        except GoneError as error:
            for question in questions:
                if not question.task.knows(question.key):
                    failures.setdefault(question.task, error)
            break
    return failures


def _take(waiting: deque[_Piece], asked: list[_Piece], failures: dict[Asker, Exception]) -> Iterator[Call]:
    """The calls that are still to be made, when their turn comes."""
    while waiting:
        piece = waiting.popleft()
        left = [question for question in piece.questions if question.task not in failures]
        if not left:
            continue
        if len(left) < len(piece.questions):
            piece = _part(piece, left)
        if all(question.task.knows(question.key) for question in left):
            for question in left:
                question.task.advance(1)
            continue
        asked.append(piece)
        yield piece.call


def _answers(backend: Any, calls: Iterable[Call]) -> Iterator[tuple[int, Answers | Exception]]:
    """Number of each call and its answers: from one backend in their order, from several processes as they come."""
    if isinstance(backend, Workers):
        yield from backend.answer_all(calls)
        return
    for number, call in enumerate(calls):
        try:
            answers: Answers | Exception = answer_call(backend, call)
        except Exception as error:  # a backend is not ours alone, and raises anything
            answers = error
        yield number, answers


def _remember(questions: Sequence[Question], answers: Answers) -> Exception | None:
    """Let each task remember its answers; returns why one cannot."""
    found: dict[Asker, list[tuple[Question, Any, bool | None]]] = {}
    for question, answer, finished in zip(questions, *answers, strict=True):
        found.setdefault(question.task, []).append((question, answer, finished))
    try:
        for task, of_task in found.items():
            task.remember(of_task)
    except ValueError as error:  # a number that is none
        return error
    return None


def _part(piece: _Piece, questions: Sequence[Question]) -> _Piece:
    call = piece.call
    pairs = None if call.pairs is None else [question.pair for question in questions if question.pair is not None]
    return _Piece(questions, Call(call.kind, [question.request for question in questions], call.seed, pairs))


def _pieces(questions: Sequence[Question], size: int, *, encoder: Encoder | None) -> Iterator[_Piece]:
    """What is sampled, task by task and seeded by piece; of all else what is alike together, whichever task it is of."""
    greedy: dict[str, list[Question]] = {}
    sampled: dict[Asker, list[Question]] = {}
    for question in questions:
        if question.samples:
            sampled.setdefault(question.task, []).append(question)
        else:
            greedy.setdefault(question.kind, []).append(question)
    if encoder is not None and (scored := greedy.pop("loglikelihood", [])):
        yield from _scored_pieces(scored, greedy, size, encoder)
    for kind, of_kind in greedy.items():
        alike: dict[str, list[Question]] = {}
        for question in of_kind:
            settings = question.request.args[1] if kind == "generate_until" else None
            alike.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(question)
        for some in alike.values():
            for piece in _by_length(some, size):
                yield _Piece(piece, Call(kind, [question.request for question in piece]))
    for task, of_task in sampled.items():
        for number, piece in enumerate(_by_length(of_task, size)):
            seed = _derived_seed(task.sampling_seed, piece[0].run, number)
            yield _Piece(piece, Call("generate_until", [question.request for question in piece], seed))


def _scored_pieces(scored: Sequence[Question], greedy: dict[str, list[Question]], size: int, encoder: Encoder) -> Iterator[_Piece]:
    """Log-likelihoods, with so many beginnings in a piece, longest first; the texts that go on from one of their contexts are asked with them.

    Args:
        greedy: kind -> other questions; loses those that are asked here.
    """
    pairs = [question.pair for question in scored if question.pair is not None]
    assert len(pairs) == len(scored), "a backend with an encoder takes all of them"
    owners: dict[tuple[int, ...], list[int]] = {}
    for number, (context, continuation) in enumerate(pairs):
        owners.setdefault((*context, *continuation)[:-1], []).append(number)
    prompts: dict[tuple[int, ...], list[Question]] = {}
    for question in greedy.pop("generate_until", []):
        prompts.setdefault(tuple(encoder.tok_encode(question.request.args[0])), []).append(question)
    sequences = list(owners)
    stems = stems_of(sequences, most=most_together(size))
    for begin in range(0, len(stems), size):
        members = [owner for stem in stems[begin : begin + size] for member in stem.members for owner in owners[sequences[member]]]
        texts = [text for context in dict.fromkeys(tuple(pairs[m][0]) for m in members) for text in prompts.pop(context, [])]
        together = [*(scored[member] for member in members), *texts]
        call = Call("loglikelihood", [question.request for question in together], pairs=[pairs[member] for member in members])
        yield _Piece(together, call)
    if prompts:
        greedy["generate_until"] = [question for some in prompts.values() for question in some]


def _by_length(questions: Sequence[Question], size: int) -> Iterator[list[Question]]:
    """One run, longest prompts first, choices after the same prompt side by side."""
    piece: list[Question] = []
    for question in sorted(questions, key=lambda q: (q.run, -len(q.request.args[0]), q.request.args[0])):
        if piece:
            same_prompt = piece[-1].request.args[0] == question.request.args[0]
            if piece[-1].run != question.run or (len(piece) >= size and not same_prompt):
                yield piece
                piece = []
        piece.append(question)
    if piece:
        yield piece


def _derived_seed(seed: int, run: int, piece: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}|{run}|{piece}".encode()).digest()[:4], "big")
