"""The tokens that vLLM chooses after prompts of token ids, on a CPU; run by `benchmarks.family_vllm` with an interpreter that has vLLM."""

from __future__ import annotations

import json
import sys

from tests.eval.vllm_on_cpu import prepare


def main(directory: str, prompts: str, num_tokens: str) -> None:
    """Print a list of lists of token ids."""
    prepare()
    from vllm import LLM, SamplingParams, TokensPrompt

    settings = {"enforce_eager": True, "gpu_memory_utilization": 0.1, "max_num_seqs": 4, "max_model_len": 64, "skip_tokenizer_init": True}
    model = LLM(directory, dtype="float32", disable_log_stats=True, **settings)
    params = SamplingParams(temperature=0, max_tokens=int(num_tokens), ignore_eos=True, detokenize=False)
    outputs = model.generate([TokensPrompt(prompt_token_ids=ids) for ids in json.loads(prompts)], params, use_tqdm=False)
    print(json.dumps([list(output.outputs[0].token_ids) for output in outputs]))


if __name__ == "__main__":
    main(*sys.argv[1:])
