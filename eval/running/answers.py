"""Answers of a model that outlive the process: a killed evaluation resumes with the item after the last one written."""

from __future__ import annotations

import contextlib
import copy
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from common.artifacts import digest_bytes
from common.progress import Counter
from eval.running.asking import Question, ask_all
from eval.running.journal import Answer, Journal
from eval.running.shortening import shortened

if TYPE_CHECKING:
    from eval.running.chat import Chat, Messages
    from eval.running.encoding import Encoder


def journal_of_samples(samples: Sequence[dict[str, Any]], kind: str) -> Journal:
    """The journal that a task's saved samples were made from.

    Args:
        samples: in the order of their documents.
        kind: the type of request that the task makes.
    """
    journal, runs = Journal(None), dict[str, int]()
    for sample in samples:
        finished = sample.get("finished", [])
        for arguments, answers in zip(sample["arguments"], sample["resps"], strict=True):
            first = request_key(kind, arguments)
            for number, answer in enumerate(answers):
                run = runs.get(first, 0)
                runs[first] = run + 1
                ended = finished[number] if number < len(finished) else None
                cut = bool(sample.get("prompt_cut"))
                journal.add([{"key": request_key(kind, arguments, run), "answer": answer, "finished": ended, "prompt_cut": cut}])
    return journal


def request_key(kind: str, arguments: Sequence[Any], run: int = 0) -> str:
    """Identity of a request: equal for equal text and settings; `run` tells repeated ones apart."""
    return digest_bytes(json.dumps([kind, list(arguments), run], ensure_ascii=False).encode())


def tokens_after(instance: Instance, encode: Callable[[str], list[int]]) -> int:
    """Positions that a request takes after its prompt."""
    if instance.request_type == "generate_until":
        return int(instance.args[1]["max_gen_toks"])
    # The last token of a continuation is only predicted, so a pass has one position less.
    return len(encode(instance.args[1])) - 1 if instance.request_type == "loglikelihood" else 0


def tokens_needed(instances: Sequence[Instance], encode: Callable[[str], list[int]]) -> int:
    """Positions that the longest of some requests takes with its answer; rolling windows fit into any number."""
    asked = [instance for instance in instances if instance.request_type != "loglikelihood_rolling"]
    return max((len(encode(instance.args[0])) + tokens_after(instance, encode) for instance in asked), default=0)


class RememberingModel(LM):
    """A model as lm-eval sees it that answers from a journal what it can, and asks the backend for the rest in small pieces.

    lm-eval's own cache is keyed by the request alone, so that a second checkpoint gets the first one's answers; a journal here belongs
    to one model, backend and task.

    Args:
        backend: None answers from the journal alone.
        requests_per_piece: answered, then written, together.
        sampling_seed: of what is drawn.
        cut_prompts: shorten a prompt that is too long, instead of refusing: by what its document says may be left out, else the
            backend drops its beginning.
        progress: counts requests.
        chat: how the model is asked, where not with plain prompts.
    """

    def __init__(
        self,
        backend: Any,
        journal: Journal,
        *,
        requests_per_piece: int = 8,
        cut_prompts: bool = False,
        sampling_seed: int = 1234,
        progress: Counter | None = None,
        chat: Chat | None = None,
    ) -> None:
        super().__init__()
        self._chat = chat
        self._backend = backend
        self._journal = journal
        self._requests_per_piece = requests_per_piece
        self._cut_prompts = cut_prompts
        self.sampling_seed = sampling_seed
        self._too_long: set[str] = set()  # prompts
        self._shorter: dict[str, str] = {}  # prompt -> what is asked instead
        self._progress, self._stderr = progress, sys.stderr  # lm-eval's own bars are swallowed while it runs

    @property
    def tokenizer_name(self) -> str:
        """Of the requests' cache, which is not used here."""
        return ""

    def apply_chat_template(self, chat_history: Messages, add_generation_prompt: bool = True) -> str:
        """What the model reads of a conversation."""
        assert self._chat is not None, "lm-eval asks only where a chat template was wanted"
        return self._chat.apply_chat_template(chat_history, add_generation_prompt)

    def loglikelihood(self, requests: list[Instance], **_: Any) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether it is the greedy one."""
        return [(float(answer["answer"][0]), bool(answer["answer"][1])) for answer in self._answers("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: list[Instance], **_: Any) -> list[float]:
        """Log-likelihood of each text."""
        return [float(answer["answer"]) for answer in self._answers("loglikelihood_rolling", requests)]

    def generate_until(self, requests: list[Instance], **_: Any) -> list[str]:
        """Text after each prompt."""
        return [str(answer["answer"]) for answer in self._answers("generate_until", requests)]

    def prompt_was_cut(self, kind: str, arguments: Sequence[Any]) -> bool:
        """Whether the model saw only the end of this request's prompt."""
        return bool(self._journal[request_key(kind, arguments)].get("prompt_cut"))

    def finished(self, arguments: Sequence[Any], *, runs: int) -> list[bool | None]:
        """Whether each run's text after a prompt ended before the last token allowed; None where the backend does not say."""
        return [self._journal[request_key("generate_until", arguments, run)].get("finished") for run in range(runs)]

    def questions_of(self, instances: Sequence[Instance]) -> list[Question]:
        """All that lm-eval will ask of a task.

        Raises:
            ValueError: as `questions`.
        """
        requests: dict[str, list[Instance]] = {}
        for instance in instances:
            requests.setdefault(instance.request_type, []).extend([instance] * (instance.repeats or 1))
        return [question for kind, of_kind in requests.items() for question in self.questions(kind, of_kind)]

    def questions(self, kind: str, requests: Sequence[Instance]) -> list[Question]:
        """The requests as they are asked.

        Raises:
            ValueError: if some do not fit into the model's context, or are not known and there is no model to ask.
        """
        keys = _keys(kind, requests)
        if missing := sum(not self.knows(key) for key, _ in keys):
            if self._backend is None:
                raise ValueError(
                    f"{missing} of {len(requests)} requests are missing in the saved answers: prompts or settings of the task have changed;"
                    " evaluate with `python -m eval.harness`"
                )
            self._measure(kind, requests)
        asked = [self._as_asked(request) for request in requests]
        encoder: Encoder | None = getattr(self._backend, "encoder", None)
        pairs = encoder.pairs(asked) if encoder is not None and kind == "loglikelihood" else [None] * len(asked)
        return [
            Question(self, kind, one, key, run, request.args[0] in self._too_long, pair)
            for request, one, (key, run), pair in zip(requests, asked, keys, pairs, strict=True)
        ]

    def knows(self, key: str) -> bool:
        """Whether a question has its answer."""
        return key in self._journal

    def remember(self, answered: Sequence[tuple[Question, Any, bool | None]]) -> None:
        """Keep answers, on disk too before this returns; with each whether its text ended by itself."""
        self._journal.add(
            [
                {"key": question.key, "answer": answer, "finished": finished, "prompt_cut": question.is_cut}
                for question, answer, finished in answered
            ]
        )
        self.advance(len(answered))

    def advance(self, count: int) -> None:
        """Count answers."""
        if self._progress is not None:
            with contextlib.redirect_stderr(self._stderr):
                self._progress.advance(count)

    def _answers(self, kind: str, requests: Sequence[Instance]) -> list[Answer]:
        keys = [key for key, _ in _keys(kind, requests)]
        if not all(self.knows(key) for key in keys):
            for failure in ask_all(self._backend, self.questions(kind, requests), size=self._requests_per_piece).values():
                raise failure
        return [self._journal[key] for key in keys]

    def _as_asked(self, request: Instance) -> Instance:
        """The request, with a shorter prompt where its own does not fit."""
        prompt = self._shorter.get(request.args[0])
        if prompt is None:
            return request
        changed = copy.copy(request)
        changed.arguments = (prompt, *request.args[1:])
        return changed

    def _measure(self, kind: str, requests: Sequence[Instance]) -> None:
        """Find requests that do not fit into the model's context."""
        encode: Callable[[str], list[int]] | None = getattr(self._backend, "tok_encode", None)
        if encode is None or kind == "loglikelihood_rolling":  # rolling windows need no cut
            return
        room = int(self._backend.max_length)
        lengths: dict[str, int] = {}
        afters: dict[str, int] = {}  # the most of a prompt's continuations, which all get the same prompt
        too_long: dict[str, int] = {}
        for request in requests:
            prompt = request.args[0]
            if prompt not in lengths:
                lengths[prompt] = len(encode(prompt)) if prompt else 1
            after = tokens_after(request, encode)
            if kind == "generate_until" and after >= room:
                raise ValueError(
                    f"the task asks for up to {after} new tokens, but the model has {room} positions; use a model or a"
                    " --context-length with more"
                )
            afters[prompt] = max(after, afters.get(prompt, 0))
            if lengths[prompt] + after > room:
                too_long[request_key(kind, request.args)] = lengths[prompt] + after
        if too_long and not self._cut_prompts:
            raise ValueError(
                f"{len(too_long)} of {len(requests)} prompts exceed the {room} tokens of the model's context (the longest needs"
                f" {max(too_long.values())} with its answer); give fewer shots, or --cut-prompts to leave out examples"
                " and then the end of the article, of tasks that do not say which is which the beginning"
            )
        for request in requests:
            prompt = request.args[0]
            if lengths[prompt] + afters[prompt] <= room:
                continue
            self._too_long.add(prompt)
            if prompt not in self._shorter:
                shorter = self._shorter_prompt(request, partial(_fits, encode, room - afters[prompt]))
                if shorter is not None:
                    self._shorter[prompt] = shorter

    def _shorter_prompt(self, request: Instance, fits: Callable[[str], bool]) -> str | None:
        if self._chat is None:
            return shortened(request.args[0], request.doc.get("cuts") or [], fits)
        shorter = self._chat.shorter(request.doc, fits)
        if shorter is None:
            raise ValueError(
                "a conversation exceeds the model's context length, and only its beginning could be"
                " dropped, which holds the system prompt or the template's own text; give fewer shots, or leave out --chat-template"
                " and --system-prompt"
            )
        return shorter


def _keys(kind: str, requests: Sequence[Instance]) -> list[tuple[str, int]]:
    """By what the answer of each request is remembered, and its number among requests that are alike."""
    runs: dict[str, int] = {}
    keys: list[tuple[str, int]] = []
    for request in requests:
        first = request_key(kind, request.args)
        run = runs.get(first, 0)
        runs[first] = run + 1
        keys.append((first if run == 0 else request_key(kind, request.args, run), run))
    return keys


def _fits(encode: Callable[[str], list[int]], most: int, text: str) -> bool:
    return len(encode(text)) <= most
