"""Beams: transformers' own search whatever the batch, in tasks that sample and in generation."""

import re
from dataclasses import replace

import pytest
import torch
from lm_eval.api.instance import Instance

from eval.generate import main as generate
from eval.harness import main
from eval.running.answers import RememberingModel
from eval.running.generation import SETTINGS, transformers_generator
from eval.running.hf_backend import LocalModel
from eval.running.journal import Journal
from eval.running.task_runs import find_tasks
from tests.eval.paper_rows import write_rows
from tests.eval.tiny_models import SENTENCES, tiny_llama, tiny_tokenizer

PROMPTS = [SENTENCES[0], "Žena", "In the morning a"]


def test_beams_of_a_task_are_those_of_transformers():
    """In one batch and alone, up to a stop string: lm-eval's own end at stop strings looks at other prompts' beams."""
    model, tokenizer = tiny_llama(num_positions=256), tiny_tokenizer()

    def theirs(prompt: str, stop: list[str]) -> str:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        ends = {"stop_strings": stop, "tokenizer": tokenizer} if stop else {}
        with torch.inference_mode():
            found = model.generate(ids, max_new_tokens=8, num_beams=4, early_stopping=True, do_sample=False, pad_token_id=2, **ends)
        text = tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True)
        return min((text.split(end)[0] for end in stop), key=len) if stop else text

    free = [theirs(prompt, []) for prompt in PROMPTS]
    stop = next(letter for letter in free[0][1:] if letter.isascii() and letter not in {text[:1] for text in free})
    settings = {"until": [stop], "max_gen_toks": 8, "do_sample": False, "num_beams": 4, "early_stopping": True}
    requests = [Instance("generate_until", {}, (prompt, settings), 0, ("t", n, 1)) for n, prompt in enumerate(PROMPTS)]
    expected = [theirs(prompt, [stop]) for prompt in PROMPTS]
    assert len(set(expected)) > 1
    for size in (1, 3):
        backend = LocalModel(pretrained=model, tokenizer=tokenizer, max_length=256, batch_size=size)
        assert RememberingModel(backend, Journal(None), requests_per_piece=size).generate_until(requests) == expected


def test_only_tasks_that_sample_have_beams(tmp_path):
    """The low-resource paper's Table 7: beam width 5, early stopping True, sampling True."""
    data = {"data": str(write_rows(tmp_path / "data"))}
    plain, beams = (find_tasks(["mt_en_de", "squad_it"], metadata={**data, **more}) for more in ({}, {"beams": 5}))
    asked = beams["mt_en_de"].task.instances[0].args[1]
    assert (asked["num_beams"], asked["early_stopping"], asked["do_sample"], asked["temperature"]) == (5, True, True, 0.8)
    assert beams["mt_en_de"].prompts_digest != plain["mt_en_de"].prompts_digest, "such results do not compare"
    assert beams["squad_it"].digest == plain["squad_it"].digest


def test_generation_over_beams():
    model, tokenizer = tiny_llama(num_positions=256), tiny_tokenizer()
    settings = replace(SETTINGS["lowres-beams"], max_new_tokens=8)
    (alone,), _ = transformers_generator(model, tokenizer, settings, batch_size=1)(PROMPTS[:1], 7)
    (single,), _ = transformers_generator(model, tokenizer, replace(settings, num_beams=1), batch_size=1)(PROMPTS[:1], 7)
    ids = torch.tensor([tokenizer(PROMPTS[0])["input_ids"]])
    drawn = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1, "num_beams": 5}
    torch.manual_seed(7)
    with torch.inference_mode():
        found = model.generate(
            ids, max_new_tokens=8, early_stopping=True, pad_token_id=2, stop_strings=["\n"], tokenizer=tokenizer, **drawn
        )
        found = found[0, ids.shape[1] :].tolist()
    assert list(alone.token_ids) == found[: len(alone.token_ids)]
    assert alone.token_ids != single.token_ids


def test_vllm_has_no_such_beams(tmp_path):
    vllm = ["--model", str(tmp_path), "--backend", "vllm", "--output", str(tmp_path / "out")]
    with pytest.raises(ValueError, match=r"^--metadata has beams 5, but vLLM does not support beam sampling; give --backend hf$"):
        main([*vllm, "--tasks", "mt_en_de", "--metadata", '{"beams": 5}'])
    with pytest.raises(ValueError, match=r"^--metadata has beams 0; expected a number of beams, at least 1$"):
        main([*vllm, "--tasks", "mt_en_de", "--metadata", '{"beams": 0}'])
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    refused = "--settings lowres-beams uses beam sampling, which vLLM does not support; give --backend hf"
    with pytest.raises(ValueError, match=f"^{re.escape(refused)}$"):
        generate([*vllm, "--prompts", str(prompts), "--settings", "lowres-beams"])
