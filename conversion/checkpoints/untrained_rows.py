"""Rows of a token matrix that training never reached: zero, or still at their random initial value.

The end-of-text token of a published base model can be one: a model that was trained on packed documents without it, or whose tuned
sibling alone uses it, can neither end a text nor read where one ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from conversion.checkpoints.hf_files import CONFIG_NAME, GENERATION_CONFIG_NAME, read_json
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.numbers import Numbers, numbers_of

_NUM_OTHERS = 256  # rows that say what a trained one looks like
_ZERO = 1e-3  # of the usual size of a row
_DEVIATIONS = 4  # of a statistic of a drawn row from its expectation
_MAX_DRAWN_OTHERS = 0.05  # where more rows look drawn, the model is new, or its rows tell nothing


def untrained(matrix: LazyTensor, token_ids: Iterable[int], *, init_std: float) -> dict[int, str]:
    """Which of some tokens have a row that was never trained, and what it is instead.

    A row is as it was drawn if its size, mean and kurtosis are those of normal numbers of the initial deviation, and hardly any
    other row's are.

    Args:
        matrix: (num_tokens, hidden_size), of input embeddings or an output layer.
        init_std: the standard deviation that its values were drawn with.
    """
    num_rows = matrix.shape[0]
    chosen = [token_id for token_id in dict.fromkeys(token_ids) if 0 <= token_id < num_rows]
    spread = np.linspace(0, num_rows - 1, min(num_rows, _NUM_OTHERS)).astype(int).tolist()
    others = [row for row in dict.fromkeys(spread) if row not in chosen]
    if not chosen or not others:
        return {}
    values = numbers_of(matrix.rows_at([*chosen, *others]), matrix.dtype_name).astype(np.float64)
    sizes = np.sqrt(np.square(values).mean(1))
    usual = np.median(sizes[len(chosen) :])
    drawn = _look_drawn(values, init_std)
    tells = drawn[len(chosen) :].mean() <= _MAX_DRAWN_OTHERS
    found = {}
    for place, token_id in enumerate(chosen):
        if sizes[place] <= _ZERO * usual:
            found[token_id] = "is zero"
        elif tells and drawn[place]:
            found[token_id] = "still has its random initial value"
    return found


def _look_drawn(values: Numbers, init_std: float) -> Numbers:
    """For each row whether its size, mean and kurtosis are those of a sample of N(0, init_std)."""
    width = values.shape[1]
    size, mean = np.sqrt(np.square(values).mean(1)), values.mean(1)
    squares = np.square(values - mean[:, None])
    kurtosis = np.square(squares).mean(1) / np.maximum(np.square(squares.mean(1)), 1e-300)
    return (
        (np.abs(size / init_std - 1) <= _DEVIATIONS / np.sqrt(2 * width))
        & (np.abs(mean) <= _DEVIATIONS * init_std / np.sqrt(width))
        & (np.abs(kurtosis - 3) <= _DEVIATIONS * np.sqrt(24 / width))
    )


def end_of_text_ids(hf_dir: Path) -> list[int]:
    """The ids that end a text, by the config, the generation config and the tokenizer of a folder; read without transformers."""
    found: list[object] = []
    for name in (CONFIG_NAME, GENERATION_CONFIG_NAME):
        if (hf_dir / name).is_file():
            ids = read_json(hf_dir / name, expected="").get("eos_token_id")
            found += ids if isinstance(ids, list) else [ids]
    if all((hf_dir / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        token = read_json(hf_dir / "tokenizer_config.json", expected="").get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        added = read_json(hf_dir / "tokenizer.json", expected="").get("added_tokens")
        entries = [entry for entry in added if isinstance(entry, dict)] if isinstance(added, list) else []
        found += [entry.get("id") for entry in entries if token is not None and entry.get("content") == token]
    return list(dict.fromkeys(i for i in found if isinstance(i, int) and not isinstance(i, bool)))


def end_of_text_sentences(matrices: Mapping[str, LazyTensor], token_ids: Iterable[int], config: Mapping[str, Any]) -> list[str]:
    """A sentence for each token that ends a text and has an untrained row in one of some matrices.

    Args:
        matrices: name -> input embeddings or output layer.
        config: config.json, or Megatron's configuration, for the deviation of the initial values.
    """
    stated = (config.get(key) for key in ("initializer_range", "init_std", "init_method_std"))
    init_std = next((value for value in stated if isinstance(value, int | float) and value > 0), 0.02)
    token_ids = list(token_ids)
    return [
        f"token {token_id} ends a text, but its row in {name} {what}: it was never trained, so the model neither generates nor"
        " understands it; train on documents that end with it, or choose another end-of-text token"
        for name, matrix in matrices.items()
        if len(matrix.shape) == 2
        for token_id, what in untrained(matrix, token_ids, init_std=init_std).items()
    ]
