"""Methods that train the rows of new tokens on text; the rest of the model and all old rows are frozen.

They begin at the mean of the source's pieces (`mean`), and keep it for tokens that the text has too rarely.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from common.artifacts import combined_digest, digest_bytes
from conversion.embeddings.methods.method import Teacher, TransferInputs, plan_rows
from conversion.embeddings.methods.paired_windows import Window, balanced_order, make_batch, paired_windows
from conversion.embeddings.methods.random_rows import RowStatistics, row_statistics
from conversion.embeddings.methods.row_plan import INPUT_LAYER, MappedRows, Origin, RowPlan, make_rows, weighted_sums
from conversion.embeddings.methods.simple import mean_method
from conversion.embeddings.spaces.sparse_weights import piece_weights
from conversion.embeddings.vocabularies.vocabulary import Kind
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.numbers import Numbers

if TYPE_CHECKING:
    from torch import Tensor

    from conversion.checkpoints.hf_model import Checkpoint
    from conversion.embeddings.methods.row_learning import Learned
    from conversion.embeddings.methods.row_objectives import Objective

# Windows are read from the beginning of the text until there are so many for each that is learned from, or, where that is more, so many in all.
_WINDOWS_PER_PLACE = 16
_MANY_WINDOWS = 200_000  # of about a kilobyte


def token_distillation_method(inputs: TransferInputs) -> RowPlan:
    """Rows with which the model's states behind new tokens are those behind their old pieces (Dobler et al. 2025, arXiv 2505.20133).

    Only input rows learn; those of an output layer of its own are the mean of pieces, or learned from the next token with `--output-rows learned`.
    """
    from conversion.embeddings.methods import row_objectives

    assert inputs.teacher is not None
    if inputs.teacher.options.output_rows == "learned":
        return _learned_plan(inputs, "token-distillation", row_objectives.token_distillation_with_output, learns_output=True)
    return _learned_plan(inputs, "token-distillation", row_objectives.token_distillation, learns_output=False)


def next_token_method(inputs: TransferInputs) -> RowPlan:
    """Rows of both matrices that predict the text best: the baseline that asks nothing of the source's own way to read it."""
    from conversion.embeddings.methods import row_objectives

    return _learned_plan(inputs, "next-token", row_objectives.next_token, learns_output=True)


def alm_method(inputs: TransferInputs) -> RowPlan:
    """Rows of both matrices with which each stretch of text is as likely as to the source (Minixhofer et al. 2025, arXiv 2503.20083)."""
    from conversion.embeddings.methods import row_objectives

    return _learned_plan(inputs, "alm", row_objectives.approximate_likelihood, learns_output=True)


@dataclass(frozen=True)
class Lesson:
    """What there is to learn from.

    Attributes:
        learned_ids: target ids of the rows that learn, in ascending order.
        num_rare: new tokens that the text has too rarely.
        order: indices of windows, a batch of them for each step.
        contexts: (num_learned,) windows that each token is in.
    """

    windows: Sequence[Window]
    learned_ids: np.ndarray
    num_rare: int
    order: Sequence[int]
    contexts: np.ndarray

    def digest(self) -> str:
        """Of the tokens, in the order in which they are learned from."""
        parts = [self.learned_ids]
        for index in self.order:
            window = self.windows[index]
            parts += [window.source_ids, window.target_ids, window.source_chunks, window.target_chunks]
        return digest_bytes(b"".join(np.asarray(part, dtype=np.int64).tobytes() + b"|" for part in parts))


def _learned_plan(inputs: TransferInputs, method: str, objective: Objective, *, learns_output: bool) -> RowPlan:
    assert inputs.teacher is not None
    if not len(inputs.new_ids):
        return mean_method(inputs)
    setting = _setting(inputs, inputs.teacher)  # before the text is read, which takes longer
    lesson = choose_lesson(inputs, inputs.teacher, method)
    learned = _learn(inputs, inputs.teacher, setting, lesson, method, objective, learns_output=learns_output)
    start = _start_plan(inputs, lesson.learned_ids).weights[lesson.learned_ids]

    def fit(matrix: LazyTensor, is_output: bool) -> Callable[[np.ndarray], Numbers]:
        rows = learned.rows.get("output" if is_output else "input")
        if rows is None or matrix.shape[1] != rows.shape[1]:  # a bias, or an output layer that does not learn
            return lambda places: weighted_sums(sparse.csr_matrix(start[places]), matrix.read()).numpy()
        return lambda places: rows[places].numpy()

    no_weights = np.array([], dtype=np.int64), sparse.csr_matrix((0, len(inputs.source)))
    plan = plan_rows(inputs, *no_weights, mapped=MappedRows(lesson.learned_ids, fit, Origin.LEARNED))
    return replace(plan, facts=_facts(inputs.teacher, lesson, learned))


def choose_lesson(inputs: TransferInputs, teacher: Teacher, method: str) -> Lesson:
    """Read the text and choose what to learn, and from which windows.

    Raises:
        ValueError: if no new token is in it often enough.
    """
    options = teacher.options
    can_learn = np.zeros(len(inputs.target), dtype=bool)
    can_learn[inputs.new_ids[np.diff(_pieces(inputs, inputs.new_ids).indptr) > 0]] = True
    num_places = options.num_steps * options.batch_size
    most_windows = min(_WINDOWS_PER_PLACE * num_places, max(num_places, _MANY_WINDOWS))
    windows: list[Window] = []
    for window in paired_windows(inputs, options.window_tokens):
        if can_learn[window.target_ids].any():
            windows.append(window)
            if len(windows) == most_windows:
                break
    counts = np.zeros(len(inputs.target), dtype=np.int64)
    for window in windows:
        counts[np.unique(window.target_ids)] += 1
    is_learned = can_learn & (counts >= options.min_contexts)
    if not is_learned.any():
        raise ValueError(
            f"--method {method} has nothing to learn from: none of the {len(inputs.new_ids):,} new tokens is in {options.min_contexts} or more"
            f" windows of --text ({len(windows):,} windows have any); give more text in the target language or a lower --min-contexts"
        )
    of_window = [np.unique(window.target_ids[is_learned[window.target_ids]]) for window in windows]
    kept = [index for index, tokens in enumerate(of_window) if len(tokens)]
    order = balanced_order([of_window[index] for index in kept], num_places, seed=inputs.seed)
    learned_ids = np.flatnonzero(is_learned)
    num_rare = len(inputs.new_ids) - len(learned_ids)
    return Lesson([windows[index] for index in kept], learned_ids, num_rare, order, counts[learned_ids])


@dataclass(frozen=True)
class _Setting:
    """Where learning happens, on what model, and the token before each text on both sides."""

    source: Checkpoint
    device: str
    dtype: str
    source_start_id: int
    target_start_id: int


def _setting(inputs: TransferInputs, teacher: Teacher) -> _Setting:
    """Check the device and the source as far as this can be done without its weights.

    Raises:
        ValueError: for what the user has to change.
    """
    import torch

    from conversion.checkpoints.hf_model import default_device, inspect_checkpoint, require_device
    from conversion.measuring.bits_per_byte import choose_start_token

    device = require_device(teacher.options.device or default_device())
    dtype = teacher.options.dtype or ("float32" if torch.device(device).type == "cpu" else "bfloat16")
    source = inspect_checkpoint(teacher.directory, name="source")
    _require_positions(teacher.options.window_tokens, source.num_positions)
    start_id = choose_start_token(source.tokenizer).id
    return _Setting(source, device, dtype, start_id, _target_start(inputs, start_id))


def _learn(
    inputs: TransferInputs,
    teacher: Teacher,
    setting: _Setting,
    lesson: Lesson,
    method: str,
    objective: Objective,
    *,
    learns_output: bool,
) -> Learned:
    import torch

    from conversion.checkpoints.hf_model import load_model
    from conversion.embeddings.methods.row_learning import learn_rows
    from conversion.embeddings.methods.row_objectives import FrozenModel

    options, device = teacher.options, setting.device
    tables, sizes, bias = _start_tables(inputs, teacher, lesson.learned_ids)
    ids = torch.from_numpy(lesson.learned_ids).to(device)
    start = {name: table.to(device)[ids].float() for name, table in tables.items() if name == "input" or learns_output}
    model = load_model(setting.source, device=device, dtype=setting.dtype)
    _require_layer(options.layer, int(model.config.get_text_config().num_hidden_layers))
    on_device = {name: table.to(device, model.dtype) for name, table in tables.items()}
    models = FrozenModel(model, on_device, ids, bias=bias.to(device, model.dtype) if bias is not None else None, layer=options.layer)
    is_learned = np.zeros(len(inputs.target), dtype=bool)
    is_learned[lesson.learned_ids] = True

    def loss_of(step: int, rows: Mapping[str, Tensor]) -> Tensor:
        places = lesson.order[step * options.batch_size : (step + 1) * options.batch_size]
        windows = [lesson.windows[index] for index in places]
        batch = make_batch(windows, is_learned, source_start=setting.source_start_id, target_start=setting.target_start_id, device=device)
        return objective(models, batch, rows)

    told = {key: value for key, value in asdict(options).items() if key != "state"} | {"device": device, "dtype": setting.dtype}
    identity = {"method": method, "seed": inputs.seed, "output_layer": teacher.output_layer, **told}
    start_bytes = b"".join(rows.cpu().numpy().tobytes() for rows in start.values())
    digests = {"source": setting.source.digest, "text": lesson.digest(), "start": digest_bytes(start_bytes), "told": json.dumps(identity)}
    return learn_rows(
        start,
        loss_of,
        rates={name: options.learning_rate * sizes[name] for name in start},
        num_steps=options.num_steps,
        label=f"learning {len(ids):,} rows by {method}",
        identity=combined_digest(digests),
        state=options.state,
    )


def _start_plan(inputs: TransferInputs, learned_ids: np.ndarray) -> RowPlan:
    """Where learning begins: the mean of pieces for what learns, and what the transfer says for all else."""
    return plan_rows(inputs, learned_ids, _pieces(inputs, learned_ids))


def _pieces(inputs: TransferInputs, ids: np.ndarray) -> sparse.csr_matrix:
    return piece_weights(inputs.source, inputs.target, ids)


def _start_tables(
    inputs: TransferInputs, teacher: Teacher, learned_ids: np.ndarray
) -> tuple[dict[str, Tensor], dict[str, float], Tensor | None]:
    """The target's matrices where learning begins, the root mean square of the source's rows of each, and the target's output bias.

    An output matrix only where it is one of its own that the transfer keeps.
    """
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.embeddings.layers import find_token_layers

    checkpoint = HFCheckpoint.open(teacher.directory)
    layers = find_token_layers(checkpoint)
    plan, real = _start_plan(inputs, learned_ids), np.flatnonzero(inputs.source.kinds != Kind.HOLE)

    def rows_of(matrix: Tensor, name: str) -> Tensor:
        statistics = partial(row_statistics, LazyTensor.of(name, matrix), real, over=teacher.random_statistics)
        layer = INPUT_LAYER if name == layers.input else name
        return make_rows(plan, matrix, keys=lambda: inputs.target.keys, statistics=statistics, seed=inputs.seed, layer=layer)

    names = {"input": layers.input} | ({"output": layers.output} if layers.output and teacher.output_layer == "transferred" else {})
    matrices = {role: checkpoint.tensor(name) for role, name in names.items()}
    tables = {role: rows_of(matrix, names[role]) for role, matrix in matrices.items()}
    sizes = {role: _root_mean_square(row_statistics(checkpoint.tensors[names[role]], real)) for role in matrices}
    bias = rows_of(checkpoint.tensor(layers.biases[0])[:, None], layers.biases[0])[:, 0] if layers.biases else None
    return tables, sizes, bias


def _root_mean_square(statistics: RowStatistics) -> float:
    return float(np.sqrt((statistics.mean**2 + statistics.deviation**2).mean()))


def _target_start(inputs: TransferInputs, start_id: int) -> int:
    """The target's token with the row of the source's start token.

    Raises:
        ValueError: if it has none.
    """
    found = np.flatnonzero(inputs.overlap.source_ids == start_id)
    if not len(found):
        token = inputs.source.tokens[start_id]
        raise ValueError(
            f"the target tokenizer has no token for {token!r}, which the source has before every text;"
            f" name one with --special-token 'TARGET={token}'"
        )
    return int(found[0])


def _require_positions(window_tokens: int, num_positions: int | None) -> None:
    if num_positions is not None and window_tokens >= num_positions:
        raise ValueError(
            f"--sequence-length is {window_tokens}, but the model has {num_positions} positions, one of them for the start token;"
            f" use {num_positions - 1} or less"
        )


def _require_layer(layer: int | None, num_layers: int) -> None:
    if layer is not None and layer > num_layers:
        raise ValueError(f"--distilled-layer is {layer}, but the model has {num_layers} layers; use {num_layers} or less")


def _facts(teacher: Teacher, lesson: Lesson, learned: Learned) -> dict[str, Any]:
    """What was learned from what, and how the loss fell."""
    options, curve = teacher.options, learned.curve()
    return {
        "num_learned": len(lesson.learned_ids),
        "num_too_rare": lesson.num_rare,
        "num_windows": len(lesson.windows),
        "contexts": [int(figure(lesson.contexts)) for figure in (np.min, np.median, np.max)],
        "num_steps": options.num_steps,
        "batch_size": options.batch_size,
        "losses": [[step, float(f"{loss:.6g}")] for step, loss in curve],
        "first_step": learned.first_step,
        "seconds": round(learned.seconds, 1),
    }


def describe_learning(facts: Mapping[str, Any]) -> list[str]:
    """The facts in lines for the terminal."""
    fewest, middle, most = facts["contexts"]
    went_on = f" (resumed from step {facts['first_step']})" if facts["first_step"] else ""
    return [
        f"{facts['num_learned']:,} rows learned in {facts['num_steps']:,} steps of {facts['batch_size']}, {facts['seconds']:.0f} s{went_on};"
        f" loss {facts['losses'][0][1]:.4g} at the start, {facts['losses'][-1][1]:.4g} at the end",
        f"each is in {fewest:,} to {most:,} windows of the text read, half of them in {middle:,} or more;"
        f" {facts['num_too_rare']:,} new tokens are too rare and keep their initial row",
    ]
