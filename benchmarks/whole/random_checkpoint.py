"""Hugging Face checkpoints of random weights, with the shapes of real models and the files of a tokenizer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# What the published config.json files say of shapes: Zhang et al. 2022, table 1; the model cards of Llama 3.2 and SmolLM2.
SHAPES: dict[str, dict[str, Any]] = {
    "opt-1.3b": {
        "model_type": "opt", "vocab_size": 50272, "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32, "ffn_dim": 8192,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        "model_type": "llama", "vocab_size": 49152, "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "tie_word_embeddings": True,
    },
    "llama-3.2-1b": {
        "model_type": "llama", "vocab_size": 128256, "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "tie_word_embeddings": True,
    },
}  # fmt: skip


def main(folder: str, shape: str, dtype: str, tokenizer: str, seed: str) -> None:
    """Write one; the end-of-text token is 2."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from conversion.checkpoints.hf_checkpoint import copy_companions

    torch.manual_seed(int(seed))
    config = AutoConfig.for_model(**SHAPES[shape], bos_token_id=1, eos_token_id=2)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    copy_companions(Path(tokenizer), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
