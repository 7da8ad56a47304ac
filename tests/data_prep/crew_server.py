"""What the process has imported that the machines of `test_crew` are forked from: the commands, and transformers as they load it, without torch."""

from __future__ import annotations

import importlib

from data_prep.tokenizers.files import start_without_torch

start_without_torch()
for _name in ("clean", "collect", "dedup", "mixture", "to_megatron", "train_tokenizer"):
    importlib.import_module(f"data_prep.{_name}")
importlib.import_module("transformers").PreTrainedTokenizerFast  # noqa: B018 imported when it is asked for
