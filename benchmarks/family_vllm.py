"""Check that vLLM loads the exported checkpoint of every model family and generates the tokens that transformers generates.

Needs the interpreter of `make test-vllm`.  The models are random, with four layers and heads of 32 dimensions, which vLLM's CPU attention
requires.  Each model is first converted to NeMo and back; both libraries read the resulting folder.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common import command

NUM_TOKENS = 24
PROMPTS = [[7 * n % 251 + 5 for n in range(first, first + 12)] for first in (0, 40, 90)]
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 192, "head_dim": 32}
TIMEOUT_SECONDS = 600


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row per model."""
    parser = command.parser(
        __doc__, prog="benchmarks.family_vllm", example="python -m benchmarks.family_vllm --python .venv-vllm/bin/python"
    )
    parser.add_argument("--python", required=True, help="Python interpreter with vLLM installed")
    parser.add_argument("--models", nargs="*", help="names of models in tests/conversion/tiny_families.py (default: all causal ones)")
    arguments = parser.parse_args(argv)

    from conversion import hf_to_nemo, nemo_to_hf
    from conversion.families import FAMILIES
    from tests.conversion.tiny_families import CASES, save_tiny_model

    names = arguments.models or [name for name, case in CASES.items() if not FAMILIES[case.model_type].masked and name != "gemma3"]
    print("| model | tokens as with transformers | |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            hf_dir, nemo_dir, back_dir = (Path(temporary) / name / part for part in ("hf", "nemo", "back"))
            save_tiny_model(name, hf_dir, **_sizes(CASES[name].model_type))
            hf_to_nemo.convert(hf_dir, nemo_dir)
            nemo_to_hf.export(nemo_dir, back_dir)
            expected = _greedy(back_dir)
            finished = subprocess.run(
                [arguments.python, "-m", "benchmarks.family_vllm_side", str(back_dir), json.dumps(PROMPTS), str(NUM_TOKENS)],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
            )
            if finished.returncode:
                print(f"| {name} | not loaded | {_last_line(finished.stderr)} |", flush=True)
                continue
            found = json.loads(finished.stdout.splitlines()[-1])
            same = sum(a == b for one, other in zip(expected, found, strict=True) for a, b in zip(one, other, strict=True))
            print(f"| {name} | {same} of {len(PROMPTS) * NUM_TOKENS} | |", flush=True)
    return command.DONE


def _sizes(model_type: str) -> dict[str, float]:
    """Of a model, in its own words."""
    if model_type == "opt":
        return {"hidden_size": 128, "num_attention_heads": 4, "word_embed_proj_dim": 128, "ffn_dim": 192}
    # With the caps of the tiny model all large logits are the same, and no token is chosen; and vLLM on a CPU answers token 0.
    if model_type == "gemma2":
        return {**SIZES, "final_logit_softcapping": 3000.0, "attn_logit_softcapping": 50.0}
    return SIZES


def _greedy(directory: Path) -> list[list[int]]:
    """The tokens that transformers chooses."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    chosen = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        options = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS, "do_sample": False, "pad_token_id": 0}
        chosen.append(model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist())
    return chosen


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["no output"])[-1][:200].replace("|", "/")


if __name__ == "__main__":
    command.run(main)
