"""What a model is evaluated with: settings that change figures, the machine that changes none, and lm-eval's backend of a model."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from common.options import option
from conversion.checkpoints.hf_model import DTYPES, Checkpoint, whole_folder
from conversion.measuring.bits_per_byte import START_TOKEN_RULES
from eval.running.chat import OWN_TEMPLATE, Chat, chat_of

if TYPE_CHECKING:
    from eval.running.encoding import Encoder

BACKENDS = ("hf", "vllm")


@dataclass(frozen=True)
class Settings:
    """What changes a figure without being model, text or task.

    Attributes:
        start_token: rule for the token before every document, see `conversion.measuring.bits_per_byte.choose_start_token`.
        context_length: positions per pass; None for all that the model has in tasks, and for at most 2048 of them in texts, whose bits per
            byte depend on it.
        dtype: of the weights in memory.
        backend: what runs the tasks; texts are always scored by transformers.
        cut_prompts: prompts that do not fit lose examples, then the end of their article, instead of being refused.
        sampling_seed: of the protocols that sample.
        chat_template: tasks are asked in the tokenizer's template of this name; None with plain prompts.
        system_prompt: stands before every task's prompt.
        fewshot_as_multiturn: examples are turns of the conversation.
    """

    start_token: str = option(
        "--start-token TOKEN",
        f"token before every document of a text: {', '.join(START_TOKEN_RULES)}, or any token of the tokenizer; auto: what the tokenizer"
        " adds itself, else what ended documents in training (EOS, or <|endoftext|> and its like where EOS ends a turn)",
        "auto",
    )
    context_length: int | None = option(
        "--context-length TOKENS", "tokens per forward pass (default: the model's context length; for texts at most 2048)"
    )
    dtype: str = option("--dtype", "data type of the weights in memory", "float32", choices=DTYPES)
    backend: str = option("--backend", "library that runs the tasks", "hf", choices=BACKENDS)
    cut_prompts: bool = option(
        "--cut-prompts", "shorten prompts that exceed the context: drop examples, then the end of the article; reported", False
    )
    sampling_seed: int = option("--sampling-seed", "seed of tasks that sample (default: %(default)s)", 1234)
    chat_template: str | None = option(
        "--chat-template NAME",
        "apply the chat template of each model's tokenizer to tasks; NAME: which one, if it has several",
        nargs="?",
        const=OWN_TEMPLATE,
    )
    system_prompt: str | None = option(
        "--system-prompt TEXT", "system prompt before every task's prompt, as the chat template's system turn if it has one"
    )
    fewshot_as_multiturn: bool = option(
        "--fewshot-as-multiturn",
        "make few-shot examples turns of the conversation, not one message with the question (default: with --chat-template, as lm-eval)",
        False,
        of_command=None,
        action=BooleanOptionalAction,
    )

    def chat(self, checkpoint: Checkpoint) -> Chat | None:
        """How a model is asked in tasks.

        Raises:
            ValueError: if its tokenizer has no such template.
        """
        return chat_of(checkpoint, template=self.chat_template, system_prompt=self.system_prompt, multiturn=self.fewshot_as_multiturn)

    def told(self) -> dict[str, Any]:
        """All, but those of conversations only where there are any, so that identities from before there were some stay."""
        added = ("chat_template", "system_prompt", "fewshot_as_multiturn")
        return {name: value for name, value in asdict(self).items() if name not in added or value}


@dataclass(frozen=True)
class Machine:
    """What a model runs on; it changes no figure beyond rounding.

    Attributes:
        workers: processes that share the requests.
        vllm: arguments of vLLM's engine, beside those that follow from the settings.
    """

    device: str = option("--device", "device: cpu, cuda or cuda:1 ... (default: cuda where there is one)", "cpu", of_command=None)
    batch_size: int = option("--batch-size", "requests per forward pass in tasks", 8)
    workers: int = option("--workers N", "number of processes that share the requests, each with one GPU or a share of the cores", 1)
    vllm: Mapping[str, Any] = field(default_factory=dict)


def open_backend(
    model: Any, checkpoint: Checkpoint, positions: int, settings: Settings, machine: Machine, encoder: Encoder | None = None
) -> Any:
    """lm-eval's backend of a model.

    Args:
        encoder: of its tokenizer, which knows texts that other checkpoints were asked.
    """
    # The tokenizer's own special tokens stay in front of a task's prompt, as with the stock command.
    if settings.backend == "vllm":
        from eval.running.vllm_backend import VllmModel

        with whole_folder(checkpoint, settings.dtype) as folder:
            return VllmModel(pretrained=str(folder), dtype=settings.dtype, max_model_len=positions, **machine.vllm)
    from eval.running.hf_backend import LocalModel

    return LocalModel(
        pretrained=model, tokenizer=checkpoint.tokenizer, max_length=positions, batch_size=machine.batch_size, encoder=encoder
    )
