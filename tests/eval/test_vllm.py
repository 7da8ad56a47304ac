"""vLLM and transformers answer alike; needs the environment of `make test-vllm`."""

import importlib.util
import json

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here; run `make test-vllm`", allow_module_level=True)

from tests.eval.vllm_on_cpu import prepare

prepare()

from eval.answers import RememberingModel  # noqa: E402
from eval.generation import Settings, transformers_generator, vllm_generator  # noqa: E402
from eval.harness import main  # noqa: E402
from eval.hf_backend import LocalModel  # noqa: E402
from eval.journal import Journal  # noqa: E402
from eval.task_runs import find_tasks, run_task  # noqa: E402
from tests.eval.paper_rows import write_rows  # noqa: E402
from tests.eval.tiny_models import SENTENCES, tiny_gemma3, tiny_llama, tiny_opt, tiny_tokenizer  # noqa: E402

SIZE = {"num_positions": 512, "hidden_size": 128}  # vLLM's attention on a CPU wants 32 dimensions a head
SMALL = {"enforce_eager": True, "gpu_memory_utilization": 0.1, "max_num_seqs": 16}


def whole_characters(runs):
    return [[text.rstrip("\ufffd") for text in texts] for texts in runs]


def save(folder, model):
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def untied_opt(**size):
    import torch

    model = tiny_opt(**size)
    model.config.tie_word_embeddings = False
    torch.manual_seed(9)
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return model


@pytest.fixture(params=[tiny_opt, untied_opt, tiny_llama, tiny_gemma3], ids=["opt", "untied opt", "llama", "gemma3"], scope="module")
def pair(request, tmp_path_factory):
    """One model on both backends."""
    from eval.vllm_backend import VllmModel

    model = request.param(**SIZE)
    folder = save(tmp_path_factory.mktemp("model"), model)
    local = LocalModel(pretrained=model, tokenizer=tiny_tokenizer(), batch_size=4)
    return local, VllmModel(pretrained=str(folder), dtype="float32", max_model_len=512, **SMALL)


def test_the_same_greedy_tokens(pair):
    import torch
    from vllm import SamplingParams, TokensPrompt

    local, vllm = pair
    prompts = [tiny_tokenizer()(sentence, add_special_tokens=False)["input_ids"][:12] for sentence in SENTENCES]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    theirs = vllm.model.generate([TokensPrompt(prompt_token_ids=ids) for ids in prompts], params)
    for ids, output in zip(prompts, theirs, strict=True):
        ours = local.model.generate(torch.tensor([ids]), max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=2)
        assert list(output.outputs[0].token_ids) == ours[0, len(ids) :].tolist()


def test_the_same_texts_in_batches(pair):
    local, vllm = pair
    settings, tokenizer = Settings(24, stop="a"), tiny_tokenizer()
    prompts = [sentence[:20] for sentence in SENTENCES]
    ours, _ = transformers_generator(local.model, tokenizer, settings, batch_size=4)(prompts, 0)
    theirs, seconds = vllm_generator(vllm.model, tokenizer, settings, positions=512)(prompts, 0)
    assert [text.token_ids for text in ours] == [text.token_ids for text in theirs]
    assert [text.num_prompt_tokens for text in ours] == [text.num_prompt_tokens for text in theirs]
    assert seconds > 0


@pytest.mark.parametrize("task", ["sl_copa_gen", "sl_copa_mc", "sl_multirc_mc"])
def test_the_same_answers_to_a_task(pair, task, tmp_path):
    found = find_tasks([task], metadata={"data": str(write_rows(tmp_path)), "shots": 1})[task]
    (ours, samples), (theirs, other_samples) = (run_task(RememberingModel(lm, Journal(None)), found) for lm in pair)
    assert ours["task_hash"] == theirs["task_hash"]
    assert json.dumps(ours["metrics"]) == json.dumps(theirs["metrics"])  # NaN, which is no score, equals itself only so
    for one, other in zip(samples, other_samples, strict=True):
        if task.endswith("_gen"):
            # Cut inside a character, a text ends in U+FFFD with transformers and before it with vLLM.
            assert whole_characters(one["resps"]) == whole_characters(other["resps"])
            assert one["finished"] == other["finished"]
        else:
            assert [a[0][0] for a in one["resps"]] == pytest.approx([a[0][0] for a in other["resps"]], abs=1e-4)


def test_the_same_answers_in_conversations(pair, tmp_path):
    """Prompts in a chat template, with its start token, are read alike."""
    from eval.chat import Chat

    template = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"
    chat = Chat(template, {"bos_token": "<s>"}, "Odgovarjaj kratko.", multiturn=True)
    found = find_tasks(["sl_copa_mc"], metadata={"data": str(write_rows(tmp_path)), "shots": 1, "turns": True})["sl_copa_mc"]
    asked = found.build(chat)
    (ours, samples), (theirs, other_samples) = (run_task(RememberingModel(lm, Journal(None), chat=asked), found, asked) for lm in pair)
    assert ours["task_hash"] == theirs["task_hash"] and samples[0]["arguments"][0][0].startswith("<s><system>Odgovarjaj kratko.</s><user>")
    for one, other in zip(samples, other_samples, strict=True):
        assert [a[0][0] for a in one["resps"]] == pytest.approx([a[0][0] for a in other["resps"]], abs=1e-4)


def test_sampling_is_decided_by_the_seed(pair, tmp_path):
    found = find_tasks(["mt_en_sw"], metadata={"data": str(write_rows(tmp_path))})["mt_en_sw"]

    def ask(seed):
        _, samples = run_task(RememberingModel(pair[1], Journal(None), sampling_seed=seed), found)
        return [sample["resps"] for sample in samples]

    first = ask(1)
    assert ask(1) == first
    assert ask(2) != first
    assert len(set(first[0][0])) > 1, "five runs"


def test_the_harness_on_vllm(tmp_path, monkeypatch):
    import eval.vllm_backend as backend

    folder = save(tmp_path / "llama", tiny_llama(**SIZE))
    whole = backend.VllmModel.__init__
    monkeypatch.setattr(backend.VllmModel, "__init__", lambda self, **arguments: whole(self, **arguments, **SMALL))
    tasks = ["--tasks", "sl_copa_gen", "--data", str(write_rows(tmp_path / "data")), "--metadata", '{"shots": 1}']
    results = {}
    for name in ("hf", "vllm"):
        assert main(["--model", str(folder), *tasks, "--output", str(tmp_path / name), "--backend", name]) == 0
        results[name] = json.loads((tmp_path / name / "llama/result.json").read_text())
    assert results["vllm"]["tasks"] == results["hf"]["tasks"]
    assert results["vllm"]["key"] != results["hf"]["key"]
    assert results["vllm"]["versions"]["vllm"]
