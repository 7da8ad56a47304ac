"""Which cases there are, stage by stage, and which material each needs from the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.whole import checkpoint_cases, evaluation_cases, text_cases, training_cases
from benchmarks.whole.case import Case
from benchmarks.whole.material import Material

Made = Callable[[Material, str], Case | Sequence[Case]]
STAGES: dict[str, Made] = {
    "help": text_cases.help_case,
    "collect": text_cases.collect_case,
    "clean": text_cases.clean_cases,
    "dedup": text_cases.dedup_cases,
    "train_tokenizer": text_cases.train_tokenizer_cases,
    "mixture": text_cases.mixture_case,
    "to_megatron": text_cases.to_megatron_case,
    "transfer": checkpoint_cases.transfer_cases,
    "compare": checkpoint_cases.compare_case,
    "convert": checkpoint_cases.conversion_cases,
    "merge": checkpoint_cases.merge_cases,
    "from_gguf": checkpoint_cases.from_gguf_case,
    "verify": checkpoint_cases.verify_case,
    "plan": training_cases.plan_case,
    "rehearse": training_cases.rehearse_case,
    "submit": training_cases.submit_case,
    "train": training_cases.training_cases,
    "save": training_cases.saving_case,
    "harness": evaluation_cases.harness_cases,
}
NEEDS = {"--model": ("transfer", "compare", "verify", "harness", "from_gguf"), "--gguf": ("from_gguf",)}
"""Stages that the options of a user's own material are for."""


def cases_of(stage: str, material: Material, peers: str) -> Sequence[Case]:
    """All cases of a stage.

    Args:
        peers: interpreter that has other packages.
    """
    made = STAGES[stage](material, peers)
    return [made] if isinstance(made, Case) else made
