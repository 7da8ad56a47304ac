"""Texts generated in batches with their token ids, and how fast: by transformers or vLLM, from the same prompts and settings."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conversion.measuring.intervals import Estimate, ratio_interval, t_quantile

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Settings:
    """How texts are drawn.

    Attributes:
        temperature: 0 takes the likeliest token.
        stop: ends a text and is not a part of it; None for the end of text alone.
        num_beams: sampled or not, transformers' beam search with early stopping; vLLM's knows neither top-k, top-p nor penalties.
        fixed_length: generate `max_new_tokens` whatever comes: for measuring speed.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    stop: str | None = None
    fixed_length: bool = False
    num_beams: int = 1


_LOWRES = Settings(128, temperature=0.8, top_k=40, top_p=0.9, repetition_penalty=1.1, stop="\n")
SETTINGS = {
    "sava": Settings(512, stop="\n\n"),  # greedy; the paper cut at the first blank line afterwards, which is the same and slower
    "lowres": _LOWRES,
    "lowres-beams": replace(_LOWRES, num_beams=5),  # as the paper's Table 7 has it
    "speed": Settings(128, fixed_length=True),
}


_UNKNOWN = 100.0  # half of an interval of a logarithm that says nothing: a repeat that the machine held up for minutes


@dataclass(frozen=True)
class Text:
    """One generated text.

    Attributes:
        token_ids: as the model gave them, up to the one that ended the text.
        num_prompt_tokens: of the prompt, with what the tokenizer puts around it.
    """

    token_ids: tuple[int, ...]
    text: str
    num_prompt_tokens: int


EFFICIENCY_NAME = "efficiency.json"
EFFICIENCY_FORMAT = 3

# prompts, seed -> texts in their order, and the seconds that generation took
Generator = Callable[[Sequence[str], int], tuple[list[Text], float]]


def transformers_generator(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: Settings, *, batch_size: int) -> Generator:
    """Batches of prompts of like length, padded on the left.

    The generator raises ValueError if a prompt with its answer does not fit into the model.
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)

    def generate(prompts: Sequence[str], seed: int) -> tuple[list[Text], float]:
        import torch

        encoded = [list(tokenizer(prompt)["input_ids"]) for prompt in prompts]
        require_room(encoded, settings, positions)
        torch.manual_seed(seed)
        texts: list[Text | None] = [None] * len(prompts)
        seconds = 0.0
        order = sorted(range(len(prompts)), key=lambda index: -len(encoded[index]))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            began = time.monotonic()
            rows = _generate_batch(model, tokenizer, [encoded[index] for index in batch], settings)
            seconds += time.monotonic() - began
            for index, row in zip(batch, rows, strict=True):
                texts[index] = _text(row, tokenizer, settings, len(encoded[index]))
        return [text for text in texts if text is not None], seconds

    return generate


def _generate_batch(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Sequence[list[int]], settings: Settings
) -> list[list[int]]:
    import torch

    longest = max(map(len, rows))
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows], device=model.device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=model.device)
    arguments: dict[str, Any] = {"max_new_tokens": settings.max_new_tokens, "do_sample": settings.temperature > 0, "pad_token_id": pad}
    if settings.temperature > 0:
        arguments |= {"temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
    if settings.repetition_penalty != 1:
        arguments["repetition_penalty"] = settings.repetition_penalty
    if settings.fixed_length:
        arguments["min_new_tokens"] = settings.max_new_tokens
    if settings.num_beams > 1:
        arguments |= {"num_beams": settings.num_beams, "early_stopping": True}
    if settings.stop is not None:
        arguments |= {"stop_strings": [settings.stop], "tokenizer": tokenizer}
    with torch.inference_mode():
        # transformers' types leave `generate` open.
        output: Any = model.generate(input_ids=ids, attention_mask=mask, **arguments)  # type: ignore[operator]
    new: list[list[int]] = output[:, longest:].tolist()
    return new


def _text(row: Sequence[int], tokenizer: PreTrainedTokenizerFast, settings: Settings, num_prompt_tokens: int) -> Text:
    """A row without what pads it after its end."""
    ids = list(row)
    if not settings.fixed_length:
        if tokenizer.eos_token_id in ids:
            ids = ids[: ids.index(tokenizer.eos_token_id) + 1]
        while ids and ids[-1] == tokenizer.pad_token_id and tokenizer.pad_token_id != tokenizer.eos_token_id:
            ids.pop()
    text = str(tokenizer.decode(ids, skip_special_tokens=True))
    if settings.stop is not None:
        text = text.split(settings.stop, 1)[0]
    return Text(tuple(ids), text, num_prompt_tokens)


def vllm_generator(engine: Any, tokenizer: PreTrainedTokenizerFast, settings: Settings, *, positions: int) -> Generator:
    """vLLM's own batches; every prompt is seeded by its place.

    The generator raises ValueError if a prompt with its answer does not fit into the model.
    """

    def generate(prompts: Sequence[str], seed: int) -> tuple[list[Text], float]:
        from vllm import SamplingParams, TokensPrompt

        encoded = [list(tokenizer(prompt)["input_ids"]) for prompt in prompts]
        require_room(encoded, settings, positions)
        parameters = [
            SamplingParams(
                max_tokens=settings.max_new_tokens,
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                repetition_penalty=settings.repetition_penalty,
                stop=None if settings.stop is None else [settings.stop],
                # As transformers' min_new_tokens: the end of text is not chosen, instead of chosen and gone past.
                min_tokens=settings.max_new_tokens if settings.fixed_length else 0,
                seed=seed + number if settings.temperature > 0 else None,
            )
            for number in range(len(prompts))
        ]
        began = time.monotonic()
        outputs = engine.generate([TokensPrompt(prompt_token_ids=ids) for ids in encoded], parameters, use_tqdm=False)
        seconds = time.monotonic() - began
        return [Text(tuple(o.outputs[0].token_ids), o.outputs[0].text, len(ids)) for o, ids in zip(outputs, encoded, strict=True)], seconds

    return generate


def require_room(encoded: Sequence[Sequence[int]], settings: Settings, positions: int | None) -> None:
    """Refuse prompts that do not fit with their answers, which would lose their beginning or end in garbage."""
    longest = max(map(len, encoded))
    if positions is not None and longest + settings.max_new_tokens > positions:
        raise ValueError(
            f"the longest prompt has {longest} tokens and up to {settings.max_new_tokens} are generated, but the model has {positions}"
            " positions; give shorter prompts or --max-new-tokens"
        )


@dataclass(frozen=True)
class Pace:
    """What one repeat of all prompts gave, in how many seconds."""

    seconds: float
    num_tokens: int
    num_characters: int
    num_bytes: int

    @classmethod
    def of(cls, texts: Sequence[Text], seconds: float) -> Pace:
        """Sums over texts."""
        characters = sum(len(text.text) for text in texts)
        return cls(seconds, sum(len(t.token_ids) for t in texts), characters, sum(len(t.text.encode()) for t in texts))


def per_second(paces: Sequence[Pace], what: str) -> Estimate:
    """Tokens, characters or bytes per second over repeats, with an interval between them."""
    return ratio_interval([getattr(pace, what) for pace in paces], [pace.seconds for pace in paces], bounds=(0, math.inf))


def speedup(paces: Sequence[Pace], source: Sequence[Pace]) -> Estimate:
    """Bytes per second beside the source model's, by both models' spread between repeats; the source's own is 1 by definition.

    Bytes, because tokens of another vocabulary are another unit.  The interval is t's of the logarithm, whose two errors add up.
    """
    if paces is source:
        return Estimate(1.0, 1.0, 1.0, len(paces), len(paces))
    ours, theirs = per_second(paces, "num_bytes"), per_second(source, "num_bytes")
    if theirs.value == 0 or ours.value == 0:
        return Estimate(0.0 if theirs.value else math.nan, -math.inf, math.inf, len(paces), len(paces))
    point, errors = ours.value / theirs.value, 0.0
    for repeats, rate in ((paces, ours), (source, theirs)):
        if not math.isfinite(rate.high):
            return Estimate(point, -math.inf, math.inf, len(paces), len(paces))
        errors += ((rate.high - rate.value) / t_quantile(len(repeats)) / rate.value) ** 2
    half = t_quantile(min(len(paces), len(source))) * math.sqrt(errors)
    if half > _UNKNOWN:
        return Estimate(point, -math.inf, math.inf, len(paces), len(paces))
    return Estimate(point, point / math.exp(half), point * math.exp(half), len(paces), len(paces))


def target_token_ratio(texts: Sequence[Text], new_ids: frozenset[int]) -> float | None:
    """Share of generated tokens that the source vocabulary has not; None if nothing was generated."""
    ids = [index for text in texts for index in text.token_ids]
    return sum(index in new_ids for index in ids) / len(ids) if ids else None


def machine(device: str) -> dict[str, Any]:
    """What seconds depend on: the device, and on a CPU the threads."""
    import torch

    if device.startswith("cuda"):
        return {"device": torch.cuda.get_device_name(device), "threads": None}
    return {"device": _processor(), "threads": torch.get_num_threads()}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
