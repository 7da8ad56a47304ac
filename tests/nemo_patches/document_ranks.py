"""What the ranks of test_documents.py do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from megatron.core.transformer.enums import AttnMaskType
from torch import Tensor, nn

from conversion.families import family_of
from conversion.measuring.engine_forward import set_layout
from nemo_patches import attention, documents
from nemo_patches.attention import CappedAttention, ScaledDotProductAttention
from nemo_patches.documents import documents_data_step, documents_of
from nemo_patches.engine_model import causal_forward_step, engine_config
from nemo_patches.lora import LoRA
from tests.nemo_patches.engine_ranks import GEMMA2, MasksOfGroups, Watcher, taken_gradients, textbook

# Tokens of each document, by sample; the last one of a sample goes on in the next. Some are longer than the windows of 8 tokens.
LENGTHS = ((13, 1, 9, 2, 15), (22, 18))
LENGTH = sum(LENGTHS[0])
END_OF_TEXT = 3
FACTORISED_SIZE = 6


def build(name: str, model: Mapping[str, Any], **settings: Any) -> nn.Module:
    """This rank's part of a model in training mode, whose every parameter is off its start.

    Args:
        name: family, and what is particular: "adapters", "two tokens", "factorised", "dropout", "frozen table".
        settings: of the engine's configuration.
    """
    torch.manual_seed(5)
    rate = 0.3 if "dropout" in name else 0.0
    config = family_of(name.split(",")[0], source=name).engine_config(
        model,
        padded_vocab_size=512,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        pipeline_dtype=torch.float32,
        lora=LoRA(rank=2, alpha=4.0, dropout=rate, seed=1) if "adapters" in name else None,
        predicts_two_tokens="two tokens" in name,
        factorised_size=FACTORISED_SIZE if "factorised" in name else None,
        hidden_dropout=rate,
        attention_dropout=rate,
        **settings,
    )
    ends = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    engine = config.configure_model(tokenizer=None, pre_process=ends[0], post_process=ends[1]).train()
    noise = torch.Generator().manual_seed(7)
    whole = torch.Generator().manual_seed(8)  # alike on all ranks, which have these parameters whole
    for key, parameter in engine.named_parameters():
        generator = noise if getattr(parameter, "tensor_model_parallel", False) else whole
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
        if "frozen table" in name and key.startswith("embedding."):
            parameter.requires_grad_(False)
    return engine


def same_as_alone(models: Mapping[str, Mapping[str, Any]], layouts: list[list[int]], **_: Any) -> dict[str, dict[str, float]]:
    """Largest differences of a micro batch from its documents, each given alone to the same model without document mask.

    Args:
        models: configuration by the name of what is built.
        layouts: tensor and pipeline parallel sizes.
    """
    attention.WINDOW_BLOCK, attention.CAP_BLOCK, documents.TOGETHER = 5, 7, 12  # so that short documents are in several blocks
    found = {}
    for tensor, pipeline in layouts:
        set_layout(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
        for name, model in models.items():
            found[f"{name}, TP {tensor}, PP {pipeline}"] = _compare(name, model)
    return found


def _compare(name: str, model: Mapping[str, Any]) -> dict[str, float]:
    whole = batch_of_documents()
    masked, plain = _Run(name, model, document_mask=True), _Run(name, model, document_mask=False)
    masked.take(whole)
    for document in _alone(whole):
        plain.take(document)
    differences = masked.differences(plain)
    singly = _Run(name, model, document_mask=True)
    for sample in range(len(LENGTHS)):
        singly.take({key: tensor[sample : sample + 1] for key, tensor in whole.items()})
    differences["singly"] = max(singly.differences(plain)[key] for key in ("gradients", "loss", "logits"))
    blind = _Run(name, model, document_mask=False)
    blind.take(whole)
    return {**differences, "without mask": blind.differences(plain)["logits"]}


def batch_of_documents() -> dict[str, Tensor]:
    """A micro batch as Megatron's data set gives it when positions begin again and the loss of ends is masked."""
    text = torch.randint(4, 250, (len(LENGTHS), LENGTH + 1), generator=torch.Generator().manual_seed(2))
    for sample, lengths in zip(text, LENGTHS, strict=True):
        sample[torch.tensor(lengths[:-1]).cumsum(0) - 1] = END_OF_TEXT
    tokens = text[:, :-1]
    positions = torch.cat([torch.cat([torch.arange(length) for length in lengths])[None] for lengths in LENGTHS])
    mask = (tokens != END_OF_TEXT).float()
    return {"tokens": tokens.contiguous(), "labels": text[:, 1:].contiguous(), "position_ids": positions, "loss_mask": mask}


def _alone(batch: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    for sample, lengths in enumerate(LENGTHS):
        parts = {name: tensor[sample].split(list(lengths)) for name, tensor in batch.items()}
        for number in range(len(lengths)):
            yield {name: part[number][None].contiguous() for name, part in parts.items()}


def scores_of_documents(tensor_parallel_size: int) -> dict[str, dict[str, float]]:
    """Both attentions over long and short documents, with a window and without: differences from all scores at once, and the largest tensor."""
    attention.WINDOW_BLOCK, attention.CAP_BLOCK, documents.TOGETHER = 60, 40, 64
    lengths, heads = ((300, 5, 40, 167), (20, 30, 10, 60, 200, 192)), 4
    config = engine_config(GEMMA2, document_mask=True)
    config.window_size = (70, 0)
    found = {}
    given = documents_of(torch.stack([torch.cat([torch.arange(length) for length in sample]) for sample in lengths]))
    number = torch.cat([torch.full((length,), float(n)) for n, length in enumerate(lengths[0] + lengths[1])]).reshape(2, -1)
    for kind, layer in ((ScaledDotProductAttention, 1), (ScaledDotProductAttention, 2), (CappedAttention, 1), (CappedAttention, 2)):
        module = kind(config, layer, AttnMaskType.causal, "self", softmax_scale=0.4)
        size = number.shape[1]
        q = torch.randn(size, 2, heads, 8, requires_grad=True)
        k, v = (torch.randn(size, 2, 2, 8, requires_grad=True) for _ in range(2))
        watcher, masks = Watcher(), MasksOfGroups()
        with watcher, masks:
            output = module(q, k, v, None, packed_seq_params=given)
            output.square().sum().backward()
        gradients = taken_gradients(q, k, v)
        distance = torch.arange(size)[:, None] - torch.arange(size)
        visible = (distance >= 0) & (distance <= (70 if layer == 1 else size)) & (number[:, None, :, None] == number[:, None, None, :])
        expected = textbook(q, k, v, visible, cap=2.0 if kind is CappedAttention else None)
        expected.square().sum().backward()
        found[f"{kind.__name__} {layer}"] = {
            "output": float((output - expected).abs().max()),
            "gradients": max(float((mine - x.grad).abs().max()) for mine, x in zip(gradients, (q, k, v), strict=True)),
            "largest": watcher.largest / size**2,
            "mask of groups": float(masks.found),
        }
    return found


class _Run:
    """A model, what its heads said and what the sum of the losses gives for gradients.

    The loss is made of the logits by hand where nothing is masked, as the model makes it where documents are.
    """

    def __init__(self, name: str, model: Mapping[str, Any], *, document_mask: bool) -> None:
        self._masks = document_mask
        self.model = build(name, model, document_mask=document_mask)
        self.logits: list[list[Tensor]] = []
        self._now: list[Tensor] = []
        self.losses = torch.zeros(())
        for head in (getattr(self.model, "output_layer", None), getattr(self.model, "second_head", None)):
            if isinstance(head, nn.Module):
                head.register_forward_hook(lambda module, inputs, output: self._now.append(output[0].clone()) and None)

    def take(self, batch: Mapping[str, Tensor]) -> None:
        """Forward and backward, the gradients being added up."""
        config, length = self.model.config, batch["tokens"].shape[1]
        config.seq_length = length

        def forward(batches: Iterator[Any], model: Any) -> tuple[Tensor, Any]:
            taken = documents_data_step(batches) if self._masks else next(batches)
            self._now.clear()
            output = causal_forward_step(model, taken)
            return output, lambda losses: self._sum(losses, batch)

        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter([dict(batch)]),
            model=self.model,
            num_microbatches=1,
            seq_length=length,
            micro_batch_size=len(batch["tokens"]),
            forward_only=False,
        )
        if parallel_state.is_pipeline_last_stage():
            self.logits.append([logits.detach() for logits in self._now])

    def _sum(self, losses: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if not self._masks:
            labels, mask = batch["labels"].t().contiguous(), batch["loss_mask"].t()
            losses = vocab_parallel_cross_entropy(self._now[0].clone(), labels) * mask
            if len(self._now) == 2:  # the second head's label is the next token's
                second = vocab_parallel_cross_entropy(self._now[1][:-1].clone(), labels[1:]) * mask[:-1] * mask[1:]
                losses = torch.cat([losses, second])
            total = losses.sum()
        else:
            total = (losses * batch["loss_mask"]).sum()
        self.losses = self.losses + total.detach()
        return total, {}

    def differences(self, other: _Run) -> dict[str, float]:
        """From a run on the documents alone, on this rank."""
        gradients = {name: parameter.grad for name, parameter in other.model.named_parameters() if parameter.grad is not None}
        mine = dict(self.model.named_parameters())
        found = {
            "gradients": max(
                # Of a part of a table that no token is in, the largest is 0.
                float((mine[name].grad - gradient).abs().max() / gradient.abs().max().clamp(min=1e-3))
                for name, gradient in gradients.items()
            ),
            "number of gradients": len(gradients),
            "loss": float((self.losses - other.losses).abs() / LENGTH),
            "logits": 0.0,
            "spread": 1.0,
        }
        if self.logits:
            heads = range(len(self.logits[0]))
            expected = [torch.cat([torch.cat(rows) for rows in _by_sample([parts[head] for parts in other.logits])], 1) for head in heads]
            seen = [torch.cat([parts[head] for parts in self.logits], 1) for head in heads]
            found["logits"] = max(float((mine - theirs).abs().max()) for mine, theirs in zip(seen, expected, strict=True))
            found["spread"] = float(expected[0][..., :250].std())
        return found


def _by_sample(documents: list[Tensor]) -> list[list[Tensor]]:
    """(length, 1, vocabulary) of all documents, for each sample."""
    left = iter(documents)
    return [[next(left) for _ in lengths] for lengths in LENGTHS]
