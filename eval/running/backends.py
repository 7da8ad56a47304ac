"""What a model is evaluated with: settings that change figures, the machine that changes none, and lm-eval's backend of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from conversion.checkpoints.hf_model import Checkpoint, whole_folder
from eval.running.chat import Chat, chat_of

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

    start_token: str = "auto"
    context_length: int | None = None
    dtype: str = "float32"
    backend: str = "hf"
    cut_prompts: bool = False
    sampling_seed: int = 1234
    chat_template: str | None = None
    system_prompt: str | None = None
    fewshot_as_multiturn: bool = False

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

    device: str = "cpu"
    batch_size: int = 8
    workers: int = 1
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
