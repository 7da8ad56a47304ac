"""Token table and output layer as parameter groups of their own, with a learning rate and a weight decay of their own.

Megatron knows such groups (its decoupled learning rate), but marks neither the factors of a table nor a second head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from recipes.rules.freezing import table_names
from recipes.training.freezing import FreezingOptimizer, parameters_by_name

_MARK = "is_embedding_or_output_parameter"


class TablesOptimizer(FreezingOptimizer):
    """Megatron's optimizer with the tables in groups of their own, where its `decoupled_lr` is set.

    Args:
        weight_decay_of_tables: in place of that of the others.
    """

    def __init__(self, *arguments: Any, weight_decay_of_tables: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._weight_decay = weight_decay_of_tables

    def optimizers(self, model: Any) -> list[torch.optim.Optimizer]:
        """See NeMo's class."""
        for chunk in model:
            parameters = dict(parameters_by_name(chunk))
            for name in table_names(parameters):
                setattr(parameters[name], _MARK, True)
        (optimizer,) = super().optimizers(model)
        for group in optimizer.param_groups:
            if is_of_tables(group):  # NeMo has put that of the others in
                group["weight_decay"] = self._weight_decay * group["pre_wd_mult"]
        return [optimizer]


def is_of_tables(group: Mapping[str, Any]) -> bool:
    """Whether a parameter group is that of tables with a rate of their own."""
    return bool(group.get("is_decoupled_lr"))
