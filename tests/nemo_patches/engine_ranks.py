"""What the ranks of test_engine_model.py do."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.enums import AttnMaskType
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nemo_patches.attention import CappedAttention, ScaledDotProductAttention, SinkAttention
from nemo_patches.engine_model import engine_config
from nemo_patches.opt_model import opt_config

SIZES = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "vocab_size": 101,
    "share_embeddings_and_output_weights": True,
}

GEMMA2 = {
    **SIZES,
    "normalization": "RMSNorm",
    "activation_func": "gelu_tanh",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "num_query_groups": 2,
    "layernorm_zero_centered_gamma": True,
    "post_norms": True,
    "scale_embeddings": True,
    "window_size": [5, 0],
    "window_attn_skip_freq": 2,
    "query_pre_attn_scalar": 10,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}


def _model(**arguments: Any) -> torch.nn.Module:
    torch.manual_seed(5)
    return opt_config(SIZES, **arguments).configure_model(tokenizer=None)


def _gemma2(**arguments: Any) -> torch.nn.Module:
    torch.manual_seed(5)
    return engine_config(GEMMA2, **arguments).configure_model(tokenizer=None)


def dropout(tensor_parallel_size: int) -> dict[str, float]:
    """Largest differences that it makes in training mode."""
    model = _model(hidden_dropout=0.5)
    ids, positions = torch.arange(16).repeat(2, 1), torch.arange(16).repeat(2, 1)
    embedded_in_training = model.train().embedding(ids, positions)
    embedded = model.eval().embedding(ids, positions)
    layer = model.decoder.layers[0]
    torch.nn.init.normal_(layer.mlp.linear_fc2.bias, std=2.0)
    dropped, kept = (layer.train(mode)(embedded, attention_mask=None)[0] for mode in (True, False))
    return {"embedding": float((embedded_in_training - embedded).abs().max()), "residual": float((dropped - kept).abs().max())}


def padding(tensor_parallel_size: int) -> dict[str, Any]:
    """Loss and gradients with 27 padding rows, against the plain softmax over the 101 real ones."""
    return {name: _padding(make(padded_vocab_size=128), tensor_parallel_size) for name, make in (("opt", _model), ("gemma2", _gemma2))}


def _padding(model: Any, tensor_parallel_size: int) -> dict[str, Any]:
    rank = parallel_state.get_tensor_model_parallel_rank()
    table = model.embedding.word_embeddings.weight
    with torch.no_grad():
        first = rank * table.shape[0]
        real = min(max(101 - first, 0), table.shape[0])
        table[real:] = 50.0  # loud, so that any leak shows
    ids = torch.randint(0, 101, (2, 16), generator=torch.Generator().manual_seed(3))
    labels = torch.randint(0, 101, (2, 16), generator=torch.Generator().manual_seed(4))
    logits = model(ids, torch.arange(16).repeat(2, 1), None)
    loss = vocab_parallel_cross_entropy(logits.transpose(0, 1).contiguous(), labels.transpose(0, 1).contiguous()).mean()
    loss.backward()
    gathered = [torch.empty_like(logits) for _ in range(tensor_parallel_size)]
    torch.distributed.all_gather(gathered, logits.detach().contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    whole = torch.cat(gathered, dim=-1)[..., :101]
    plain = F.cross_entropy(whole.flatten(0, 1), labels.flatten())
    return {
        "rows": table.shape[0],
        "loss_difference": abs(float(loss) - float(plain)),
        "padding_gradient": float(table.grad[real:].abs().max()) if real < table.shape[0] else 0.0,
        "logits": whole.flatten()[:200].tolist(),
    }


def loss_gradient(tensor_parallel_size: int) -> dict[str, bool]:
    """Whether the gradient of the logits fits in bfloat16 when a run in float32 asks for the fused loss, as it does on a GPU."""
    model = _model(cross_entropy_loss_fusion=True)
    gradients: list[torch.Tensor] = []
    model.output_layer.register_forward_hook(lambda module, inputs, output: output[0].register_hook(gradients.append) and None)
    ids = torch.arange(16).repeat(2, 1)
    model(ids, ids, None, labels=ids + 1).mean().backward()
    return {"rounded": torch.equal(gradients[0], gradients[0].bfloat16().float())}


def textbook(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, *, cap: float | None = None, sinks: Any = ()
) -> torch.Tensor:
    """(queries, batch, heads * size) by all scores at once, times 0.4; visible is of queries and keys, with a batch and heads before if need be.

    A sink is one score more, which takes its part of the softmax and has no value.
    """
    keys, values = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("sbhd,tbhd->bhst", q, keys) * 0.4
    scores = torch.tanh(scores / cap) * cap if cap else scores
    scores = scores.masked_fill(~visible, float("-inf"))
    scores = torch.cat([scores, *(sink[:, None, None].expand(len(scores), -1, len(q), 1) for sink in sinks)], dim=-1)
    return torch.einsum("bhst,tbhd->sbhd", scores.softmax(-1)[..., : len(k)], values).flatten(2)


def taken_gradients(*inputs: torch.Tensor) -> list[torch.Tensor]:
    """Gradients, which are set back."""
    gradients = [x.grad.clone() for x in inputs]  # type: ignore[union-attr]
    for x in inputs:
        x.grad = None
    return gradients


class Watcher(TorchDispatchMode):
    """Notes the numbers of the largest tensor that is made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.largest = max([self.largest, *(tensor.numel() for tensor in tree_leaves(made) if isinstance(tensor, torch.Tensor))])
        return made


class MasksOfGroups(TorchFunctionMode):
    """Notes whether torch's attention was given a mask for grouped queries: then no kernel of a GPU but the one by parts takes it."""

    found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self.found |= kwargs.get("attn_mask") is not None and bool(kwargs.get("enable_gqa"))
        return func(*args, **kwargs)


def blocks_of_attention(tensor_parallel_size: int) -> dict[str, Any]:
    """All attentions in blocks, with a window and without: differences from all scores at once, and the largest tensor."""
    from nemo_patches import attention

    found: dict[str, Any] = {}
    length, heads, before = 512, 4, 70
    config = _gemma2().config
    config.window_size = (before, 0)
    kept = attention.WINDOW_BLOCK, attention.CAP_BLOCK
    attention.WINDOW_BLOCK = attention.CAP_BLOCK = 40  # does not divide the length
    for kind, layer, dropout in (
        (ScaledDotProductAttention, 1, 0.0),
        (ScaledDotProductAttention, 2, 0.0),
        (CappedAttention, 1, 0.0),
        (CappedAttention, 2, 0.0),
        (CappedAttention, 1, 0.3),
        (SinkAttention, 1, 0.0),
        (SinkAttention, 2, 0.0),
    ):
        module = kind(config, layer, AttnMaskType.causal, "self", attention_dropout=dropout, softmax_scale=0.4)
        for sinks in module.parameters():
            sinks.data.normal_(mean=2.0)
        q = torch.randn(length, 1, heads, 8, requires_grad=True)
        k, v = (torch.randn(length, 1, 2, 8, requires_grad=True) for _ in range(2))
        watcher, masks = Watcher(), MasksOfGroups()
        model_parallel_cuda_manual_seed(7, force_reset_rng=True)
        with watcher, masks:
            output = module(q, k, v, None)
            output.square().sum().backward()
        inputs = (q, k, v, *module.parameters())
        gradients = taken_gradients(*inputs)
        if dropout:  # what was dropped cannot be drawn in another order, so the same blocks are taken, and kept
            model_parallel_cuda_manual_seed(7, force_reset_rng=True)
            attention.checkpoint = lambda function, *parts, **options: function(*parts)
            expected = module(q, k, v, None)
        else:
            distance = torch.arange(length)[:, None] - torch.arange(length)
            visible = (distance >= 0) & (distance <= (before if layer == 1 else length))
            expected = textbook(q, k, v, visible, cap=2.0 if kind is CappedAttention else None, sinks=list(module.parameters()))
        expected.square().sum().backward()
        found[f"{kind.__name__} {layer} {dropout}"] = {
            "output": float((output - expected).abs().max()),
            "gradients": max(float((mine - x.grad).abs().max()) for mine, x in zip(gradients, inputs, strict=True)),
            "largest": watcher.largest / length**2,
            "mask of groups": masks.found,
        }
    attention.WINDOW_BLOCK, attention.CAP_BLOCK = kept
    return found


def padded_encoder(tensor_parallel_size: int) -> dict[str, float]:
    """An encoder's attention over padded samples: differences from all scores at once at what is not padding, and the largest tensor."""
    from nemo_patches.encoder_model import BidirectionalAttention

    length, heads = 512, 4
    module = BidirectionalAttention(_model().config, 1, AttnMaskType.padding, "self", softmax_scale=0.4)
    q, k, v = (torch.randn(length, 2, heads, 8, requires_grad=True) for _ in range(3))
    padding = torch.arange(length) >= torch.tensor([300, 512])[:, None]
    weight = (~padding).T[:, :, None].float()  # what padding gives has no meaning
    watcher = Watcher()
    with watcher:
        output = module(q, k, v, padding[:, None, None, :]) * weight
        output.square().sum().backward()
    gradients = taken_gradients(q, k, v)
    expected = textbook(q, k, v, ~padding[:, None, None, :]) * weight
    expected.square().sum().backward()
    return {
        "output": float((output - expected).abs().max()),
        "gradients": max(float((mine - x.grad).abs().max()) for mine, x in zip(gradients, (q, k, v), strict=True)),
        "largest": watcher.largest / length**2,
    }


def sinks_over_ranks(tensor_parallel_size: int) -> str:
    """What is said of sinks where samples are cut among ranks."""
    config = engine_config(GEMMA2, context_parallel_size=2)
    try:
        SinkAttention(config, 1, AttnMaskType.causal, "self")
    except ValueError as error:
        return str(error)
    return "nothing"


def one_rank(tensor_parallel_size: int) -> dict[str, Any]:
    """All of the above on one rank: importing Megatron takes longer than the tests."""
    functions = (dropout, padding, loss_gradient, blocks_of_attention, padded_encoder, sinks_over_ranks)
    return {function.__name__: function(tensor_parallel_size) for function in functions}


def two_token_losses(tensor_parallel_size: int, family: str) -> dict[str, list[float]]:
    """Losses in training and evaluation of a model with a second head, and what they are by hand from the logits of the first."""
    from nemo_patches import second_head
    from nemo_patches.engine_model import causal_forward_step
    from nemo_patches.second_head import copy_first_head, draw_second_head

    model = {"opt": _model, "gemma2": _gemma2}[family](padded_vocab_size=102, predicts_two_tokens=True)
    copy_first_head(model)
    stream = torch.arange(2 * 13).reshape(2, 13) * 7 % 101
    batch = {"tokens": stream[:, :-1], "labels": stream[:, 1:], "position_ids": torch.arange(12).expand(2, -1)}
    trained = causal_forward_step(model.train(), batch)
    evaluated = causal_forward_step(model.eval(), batch)
    with torch.no_grad():
        logits = model(batch["tokens"], batch["position_ids"], None)  # (batch, sequence, this rank's columns)
    first = vocab_parallel_cross_entropy(logits.clone(), stream[:, 1:])
    second = vocab_parallel_cross_entropy(logits[:, :-1].contiguous(), stream[:, 2:])
    by_hand = first.mean() + second.mean()
    second_head._BLOCK_ROWS = 16  # so that the 51 rows of a rank begin within a block
    draw_second_head(model, seed=5)
    return {
        "drawn": model.second_head.weight.flatten().tolist(),
        "trained": [trained.mean().item()],
        "by_hand": [by_hand.item()],
        "evaluated": evaluated.flatten().tolist(),
        "first": first.flatten().tolist(),
    }


def factorised_table(tensor_parallel_size: int, family: str) -> dict[str, Any]:
    """Losses of a model with a table, of one with the table's factors, and the squared norms of the gradients of these."""
    from nemo_patches.engine_model import causal_forward_step

    build = {"opt": _model, "gemma2": _gemma2}[family]
    whole, factorised = build(padded_vocab_size=102), build(padded_vocab_size=102, factorised_size=6)
    generator = torch.Generator().manual_seed(3)
    factors = {"coordinates": torch.randn(101, 6, generator=generator) * 0.1, "primitives": torch.randn(6, 32, generator=generator) * 0.3}
    factorised.embedding.word_embeddings.fill(factors)
    table = whole.embedding.word_embeddings
    rows = (factors["coordinates"] @ factors["primitives"])[table.vocab_start_index : table.vocab_end_index]
    table.weight.data[: len(rows)] = rows
    stream = torch.arange(2 * 13).reshape(2, 13) * 7 % 101
    batch = {"tokens": stream[:, :-1], "labels": stream[:, 1:], "position_ids": torch.arange(12).expand(2, -1)}
    losses = {name: causal_forward_step(model, batch) for name, model in (("whole", whole), ("factorised", factorised))}
    losses["factorised"].mean().backward()
    coordinates = factorised.embedding.word_embeddings.weight.grad.square().sum()
    torch.distributed.all_reduce(coordinates, group=parallel_state.get_tensor_model_parallel_group())
    primitives = factorised.embedding.word_embeddings.primitives.grad.square().sum()
    return {**{name: value.flatten().tolist() for name, value in losses.items()}, "squares": [coordinates.item(), primitives.item()]}
