"""The losses of learned rows: match hidden states, likelihoods or next-token predictions of the frozen model on text in new tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from conversion.embeddings.methods.paired_windows import Batch

INPUT, OUTPUT = "input", "output"
_BIAS = "bias"  # of the output layer
# Minixhofer et al. (2025) take 100: a chunk's likelihood, a product of many, then stays far from 0.
ALM_TEMPERATURE = 100.0
_LEAST_LOG = 1e-7  # of a likelihood at temperature: 1 - exp(-1e-7) is the smallest difference to 1 that float32 tells from 0


class Models(Protocol):
    """The frozen model on its own tokens and, with the target's rows, on the new ones."""

    def source(self, batch: Batch, *, logits: bool) -> tuple[Tensor, Tensor | None]:
        """States (num_windows, longest, hidden_size) and, if asked for, logits (num_windows, longest, num_source_tokens): no gradient."""
        ...

    def target(self, batch: Batch, rows: Mapping[str, Tensor], *, logits: bool) -> tuple[Tensor, Tensor | None]:
        """The same on the target's tokens, with the learned rows in their places: logits (num_windows, longest, num_target_tokens).

        Args:
            rows: `INPUT`, and `OUTPUT` where it is learned by itself, to (num_learned, size).
        """
        ...


class Objective(Protocol):
    """A loss of the learned rows on a batch."""

    def __call__(self, models: Models, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """The loss, a scalar."""
        ...


def token_distillation(models: Models, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
    """Mean square, a scalar, of what the states over new tokens differ by from the states over their old pieces (Dobler et al. 2025).

    Compared where a token of either side ends on the same byte, from the end of a window's first learned token on: that is where its row
    can make a difference.

    Args:
        rows: as `Models.target` takes them.
    """
    expected, _ = models.source(batch, logits=False)
    found, _ = models.target(batch, rows, logits=False)
    return _difference(batch, found, expected)


def token_distillation_with_output(models: Models, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
    """The same, with the loss of the next token for the rows of the output layer, scaled to the size of the former (their alpha-NTP).

    Arguments and result are as of `token_distillation`.
    """
    expected, _ = models.source(batch, logits=False)
    found, logits = models.target(batch, rows, logits=True)
    assert logits is not None
    distance, prediction = _difference(batch, found, expected), _next_token_loss(batch, logits)
    return distance + prediction * (distance / prediction).detach()


def next_token(models: Models, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
    """Mean negative log-likelihood of the target's tokens in nats, a scalar: what continued training of these rows alone would minimise.

    Args:
        rows: as `Models.target` takes them.
    """
    _, logits = models.target(batch, rows, logits=True)
    assert logits is not None
    return _next_token_loss(batch, logits)


def approximate_likelihood(models: Models, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
    """Kullback-Leibler divergence of a chunk's likelihood on both sides, each as a coin's, at a temperature (Minixhofer et al. 2025).

    With p the likelihood of a chunk over the old tokens and q over the new ones, both to the power of 1 / temperature:
    p log(p / q) + (1 - p) log((1 - p) / (1 - q)), the mean over chunks, a scalar in nats.  Chunks are not weighed by how surely a token
    ends with them.

    Args:
        rows: as `Models.target` takes them.
    """
    _, expected = models.source(batch, logits=True)
    _, found = models.target(batch, rows, logits=True)
    assert expected is not None and found is not None
    with torch.no_grad():
        old = chunk_log_likelihoods(expected, batch.source_ids, batch.source_chunks, batch.num_chunks)
    new = chunk_log_likelihoods(found, batch.target_ids, batch.target_chunks, batch.num_chunks)
    return coin_divergence(old, new).mean()


def coin_divergence(old: Tensor, new: Tensor, *, temperature: float = ALM_TEMPERATURE) -> Tensor:
    """Divergence in nats of two coins that fall on one side with the given log-likelihoods over the temperature.

    Args:
        old, new: of any shape, both of the same; so is the result, in their dtype.
    """
    log_p, log_q = ((value / temperature).clamp(max=-_LEAST_LOG) for value in (old, new))
    log_not_p, log_not_q = (torch.log(-torch.expm1(value)) for value in (log_p, log_q))
    return log_p.exp() * (log_p - log_q) + log_not_p.exp() * (log_not_p - log_not_q)


def chunk_log_likelihoods(logits: Tensor, ids: Tensor, chunks: Tensor, num_chunks: int) -> Tensor:
    """(num_chunks,) float32 sums of the log-likelihoods of the tokens of each chunk, in nats.

    Args:
        logits: (num_windows, longest, num_tokens)
        ids, chunks: (num_windows, longest); tokens of chunk -1 do not count.
    """
    values = _log_likelihoods(logits, ids)
    of_token = chunks[:, 1:]
    is_counted = of_token >= 0
    sums = torch.zeros(num_chunks, dtype=values.dtype, device=values.device)
    return sums.index_add(0, of_token[is_counted], values[is_counted])


def _next_token_loss(batch: Batch, logits: Tensor) -> Tensor:
    values = _log_likelihoods(logits, batch.target_ids)
    return -values[batch.target_chunks[:, 1:] >= 0].mean()


def _log_likelihoods(logits: Tensor, ids: Tensor) -> Tensor:
    """(num_windows, longest - 1) of each token behind the first, in float32 whatever the model runs in."""
    losses = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return -losses.view(len(ids), -1)


def _difference(batch: Batch, found: Tensor, expected: Tensor) -> Tensor:
    compared = found.flatten(0, 1)[batch.target_places].float(), expected.flatten(0, 1)[batch.source_places].float()
    return functional.mse_loss(*compared)


class FrozenModel:
    """`Models` of a Hugging Face model: its body and old rows stay as they are, and need no gradient.

    The learned rows are put into the target's matrices with every call, by name and without a copy of the model; gradients come back to them
    alone.  So whatever a family does to its embeddings or logits is done here too.
    """

    def __init__(
        self, model: Any, tables: Mapping[str, Tensor], learned_ids: Tensor, *, bias: Tensor | None = None, layer: int | None = None
    ) -> None:
        """Freeze a model and keep what stands in for its matrices.

        Args:
            tables: `INPUT`, and `OUTPUT` where the output layer is a matrix of its own, to (num_target_tokens, size) of the model's dtype.
            learned_ids: (num_learned,) places of the learned rows in them.
            bias: (num_target_tokens,) of the output layer.
            layer: whose states are given, from 1; None for the last, behind its norm.
        """
        self._model, self._tables, self._learned_ids, self._bias, self._layer = model, tables, learned_ids, bias, layer
        self._body = getattr(model, model.base_model_prefix)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        # A new token may have the id of the old padding, whose row would get no gradient.
        model.get_input_embeddings().padding_idx = None
        owners = {INPUT: model.get_input_embeddings(), OUTPUT: model.get_output_embeddings()}
        self._names = {id(module): _parameters_of(module, owners) for module in (self._model, self._body)}

    def source(self, batch: Batch, *, logits: bool) -> tuple[Tensor, Tensor | None]:
        """As `Models.source`."""
        with torch.no_grad():
            return self._run({}, batch.source_ids, batch.source_mask, logits=logits)

    def target(self, batch: Batch, rows: Mapping[str, Tensor], *, logits: bool) -> tuple[Tensor, Tensor | None]:
        """As `Models.target`."""
        values = {
            name: table.index_copy(0, self._learned_ids, rows[name].to(table.dtype)) if name in rows else table
            for name, table in self._tables.items()
        }
        values.setdefault(OUTPUT, values[INPUT])
        if self._bias is not None:
            values[_BIAS] = self._bias
        return self._run(values, batch.target_ids, batch.target_mask, logits=logits)

    def _run(self, values: Mapping[str, Tensor], ids: Tensor, mask: Tensor, *, logits: bool) -> tuple[Tensor, Tensor | None]:
        module = self._model if logits else self._body
        replaced = {name: values[role] for name, role in self._names[id(module)].items() if role in values}
        arguments = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        arguments["output_hidden_states"] = logits or self._layer is not None
        found = torch.func.functional_call(module, replaced, kwargs=arguments, tie_weights=False)
        if self._layer is not None:
            states = found.hidden_states[self._layer]
        else:
            states = found.hidden_states[-1] if logits else found.last_hidden_state
        return states, found.logits if logits else None


def _parameters_of(module: Any, owners: Mapping[str, Any]) -> dict[str, str]:
    """Name in the module -> what it is, of the parameters with a value or a row per token; a tied matrix has two names."""
    roles = {}
    for name, _ in module.named_parameters(remove_duplicate=False):
        path, _, last = name.rpartition(".")
        for role, owner in owners.items():
            if module.get_submodule(path) is owner:
                roles[name] = _BIAS if last == "bias" else role
    return roles
