"""Prompts as conversations: a system prompt, and the chat template of the model's own tokenizer, as lm-eval asks in them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from common.artifacts import digest_bytes
from eval.running.shortening import shortened

if TYPE_CHECKING:
    from conversion.checkpoints.hf_model import Checkpoint

OWN_TEMPLATE = "default"  # of a tokenizer that has several, the one with this name
_RENDER_SECONDS = 10
_BETWEEN = "\n\n"  # lm-eval's, after a system prompt without template
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Chat:
    """How one model is asked.

    Attributes:
        template: Jinja; None to put only the system prompt in front.
        special_tokens: what the template may name: `bos_token`, `eos_token` ...
        multiturn: examples are turns of the conversation, instead of one message with the question.
        documents: prompt -> document of the task that is asked now, where its examples are known.
    """

    template: str | None
    special_tokens: Mapping[str, str]
    system_prompt: str | None
    multiturn: bool
    documents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def template_digest(self) -> str | None:
        """Identity of the template; None where there is none."""
        return None if self.template is None else digest_bytes(self.template.encode())

    def apply_chat_template(self, messages: Messages, add_generation_prompt: bool = True) -> str:
        """What the model reads of a conversation; lm-eval calls this.

        Where a template has no place for a system prompt, it stands before the first message; lm-eval would leave it out, and with it the
        instruction of a task.
        """
        if self.multiturn and len(messages) and messages[-1]["role"] == "user":
            messages = [*messages[:-1], *self._turns(messages[-1]["content"])]
        from jinja2.exceptions import TemplateError

        try:
            return self._render(messages, add_generation_prompt)
        except TemplateError as error:
            if messages[0]["role"] != "system":
                raise ValueError(f"the tokenizer's chat template cannot be used: {error}; leave out --chat-template") from error
            system, first, *rest = messages
            return self._render([{**first, "content": f"{system['content']}{_BETWEEN}{first['content']}"}, *rest], add_generation_prompt)

    def _render(self, messages: Messages, add_generation_prompt: bool) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        names: dict[str, Any] = dict(self.special_tokens)
        with at_most(
            _RENDER_SECONDS, f"the tokenizer's chat template takes more than {_RENDER_SECONDS} s for a conversation; leave it out"
        ):
            rendered = render_jinja_template(
                [messages],
                chat_template=self.template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **names,
            )
        return str(rendered[0][0] if isinstance(rendered, tuple) else rendered[0])

    def _turns(self, prompt: str, document: Mapping[str, Any] | None = None) -> Messages:
        """The conversation of a prompt with examples: each question with its answer, the instruction before the first."""
        document = document or self.documents.get(prompt, {})
        messages: Messages = []
        turns = document.get("turns") or []
        start, place = 0, document["cuts"][-2][0] if turns else 0  # of the message, and of the example
        for turn in turns:
            whole = f"{turn['question']} {turn['answer']}{turn['after']}"
            if not prompt.startswith(whole, place):  # left out, with all after it, of a prompt that did not fit
                break
            question = prompt[start : place + len(turn["question"])]
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": turn["answer"]}]
            start = place = place + len(whole)
        return [*messages, {"role": "user", "content": prompt[start:]}]

    def shorter(self, document: Mapping[str, Any], fits: Callable[[str], bool]) -> str | None:
        """What the model reads of a document whose prompt does not fit whole; None where nothing says what may be left out."""
        prompt, cuts = document.get("prompt"), document.get("cuts")
        if not prompt or not cuts:
            return None
        text = shortened(prompt, cuts, lambda text: fits(self._read(text, document)))
        return None if text is None else self._read(text, document)

    def _read(self, prompt: str, document: Mapping[str, Any]) -> str:
        if self.template is None:
            return f"{self.system_prompt}{_BETWEEN}{prompt}"
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        asked = self._turns(prompt, document) if self.multiturn else [{"role": "user", "content": prompt}]
        return self.apply_chat_template([*system, *asked])

    def request_arguments(self) -> dict[str, Any]:
        """What lm-eval gets to build requests."""
        return {
            "apply_chat_template": self.template is not None,
            "system_instruction": self.system_prompt,
            "fewshot_as_multiturn": self.multiturn,
        }


def chat_of(checkpoint: Checkpoint, *, template: str | None, system_prompt: str | None, multiturn: bool) -> Chat | None:
    """How a model is asked; None for plain prompts.

    Args:
        template: name of one of the tokenizer's, OWN_TEMPLATE for its only one; None for none.

    Raises:
        ValueError: if the tokenizer has no such template.
    """
    if template is None:
        return None if not system_prompt else Chat(None, {}, system_prompt, multiturn=False)
    found = checkpoint.tokenizer.chat_template
    if not found:
        raise ValueError(
            f"the tokenizer in {checkpoint.directory} has no chat template, like a base model; leave out --chat-template, or put its"
            " chat_template.jinja there"
        )
    templates = found if isinstance(found, dict) else {OWN_TEMPLATE: found}
    if template not in templates:
        raise ValueError(f"the tokenizer in {checkpoint.directory} has no chat template {template}; it has {', '.join(templates)}")
    tokens = {name: str(token) for name, token in checkpoint.tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return Chat(templates[template], tokens, system_prompt or None, multiturn)


def lend_template(checkpoint: Checkpoint, lender: Checkpoint) -> None:
    """Have a tokenizer without a chat template use that of another model.

    Raises:
        ValueError: if that has none either, or spells special tokens that the tokenizer does not have.
    """
    if checkpoint.tokenizer.chat_template:
        return
    template = lender.tokenizer.chat_template
    if not isinstance(template, str):
        raise ValueError(
            f"the tokenizer in {lender.directory} has no chat template, or several, so the template to use is unknown; put its"
            " chat_template.jinja there"
        )
    known = checkpoint.tokenizer.get_vocab()
    specials = {str(token.content) for token in lender.tokenizer.added_tokens_decoder.values() if token.special}
    if missing := sorted(token for token in specials if token in template and token not in known):
        raise ValueError(
            f"the chat template of {lender.directory} spells {', '.join(missing)}, which the tokenizer in {checkpoint.directory} does not"
            f" have; give it these with `python -m conversion.edit_vocabulary --input {checkpoint.directory} --append-tokens FILE --output DIR`"
        )
    checkpoint.tokenizer.chat_template = template


def documents_with_turns(documents: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Prompt -> document, of those that tell their examples."""
    return {document["prompt"]: document for document in documents if document.get("turns")}


@contextmanager
def at_most(seconds: float, sentence: str) -> Iterator[None]:
    """A block that ends with a sentence when it takes longer; in the main thread, as signals reach no other.

    Raises:
        ValueError: with the sentence.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: object) -> None:
        raise ValueError(sentence)

    before = signal.signal(signal.SIGALRM, late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, before)
