"""vLLM and transformers answer alike; needs the environment of `make test-vllm`."""

import importlib.util
import json
import os
from multiprocessing import active_children

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here; run `make test-vllm`", allow_module_level=True)

from tests.eval.vllm_on_cpu import prepare

prepare()

from conversion import from_gguf, hf_to_nemo, nemo_to_hf  # noqa: E402
from conversion.families import FAMILIES  # noqa: E402
from data_prep.tokenizers.files import load_tokenizer  # noqa: E402
from eval.generate import main as generate  # noqa: E402
from eval.harness import main  # noqa: E402
from eval.running.answers import RememberingModel  # noqa: E402
from eval.running.generation import Settings, transformers_generator, vllm_generator  # noqa: E402
from eval.running.hf_backend import LocalModel  # noqa: E402
from eval.running.journal import Journal  # noqa: E402
from eval.running.task_runs import find_tasks, run_task  # noqa: E402
from recipes.projects import smollm2  # noqa: E402
from tests.conversion.tiny_families import CASES, save_tiny_model  # noqa: E402
from tests.eval.paper_rows import write_rows  # noqa: E402
from tests.eval.tiny_models import SENTENCES, tiny_gemma3, tiny_llama, tiny_opt, tiny_tokenizer  # noqa: E402
from tests.processes import ROOT  # noqa: E402

SIZE = {"num_positions": 512, "hidden_size": 128}  # vLLM's attention on a CPU wants 32 dimensions a head
SMALL = {"enforce_eager": True, "gpu_memory_utilization": 0.1, "max_num_seqs": 16}
HEADS = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
OTHERS = {
    "opt": {"hidden_size": 128, "num_attention_heads": 4, "word_embed_proj_dim": 128, "ffn_dim": 192},
    "gemma2": {**HEADS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},  # with lower ones the CPU build gives NaN
}
# The CPU build has no kernels for gpt-oss's experts; vision towers need torchvision, whose build is for CUDA; phi3_long is for heads of 8;
# vLLM refuses a Qwen 2 of which some layers have windows.
NOT_HERE = {"gpt_oss", "gemma3", "mistral3", "phi3_long", "qwen2_windows"}
RUN_HERE = [name for name, case in CASES.items() if name not in NOT_HERE and not FAMILIES[case.model_type].masked]


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
    from eval.running.vllm_backend import VllmModel

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


@pytest.mark.skipif(not smollm2.cached_path().is_file(), reason=f"{smollm2.cached_path()} is not there: `make demo` fetches it")
def test_a_real_model_as_exported_writes_the_same(tmp_path):
    """SmolLM2 through NeMo and back: its English continued by vLLM and by transformers."""
    import torch
    from transformers import AutoModelForCausalLM
    from vllm import LLM, SamplingParams, TokensPrompt

    hf, nemo, back = (str(tmp_path / name) for name in ("hf", "nemo", "back"))
    assert from_gguf.main(["--input", str(smollm2.fetch()), "--dtype", "float32", "--output", hf]) == 0
    assert hf_to_nemo.main(["--input", hf, "--output", nemo]) == 0
    assert nemo_to_hf.main(["--input", nemo, "--output", back]) == 0
    tokenizer = load_tokenizer(tmp_path / "back")
    ids = tokenizer("The capital of France is")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32).eval()
    ours = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=2)[0, len(ids) :].tolist()
    del model
    engine = LLM(back, dtype="float32", max_model_len=512, **SMALL)
    (theirs,) = engine.generate([TokensPrompt(prompt_token_ids=ids)], SamplingParams(temperature=0, max_tokens=12))
    assert list(theirs.outputs[0].token_ids) == ours
    assert "Paris" in tokenizer.decode(ours)


@pytest.mark.parametrize("family", RUN_HERE)
def test_the_same_probabilities_of_every_family_as_exported(family, tmp_path):
    """Of 40 tokens, which reach beyond windows and beyond the positions that rotations were made for."""
    import torch
    from transformers import AutoModelForCausalLM
    from vllm import LLM, SamplingParams, TokensPrompt

    hf, nemo, back = (tmp_path / name for name in ("hf", "nemo", "back"))
    save_tiny_model(family, hf, **OTHERS.get(family, HEADS))
    hf_to_nemo.convert(hf, nemo)
    nemo_to_hf.export(nemo, back)
    ids = torch.randint(3, 280, (40,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32, attn_implementation="eager")(ids[None]).logits[0]
    ours = torch.log_softmax(logits, -1)[:-1].gather(1, ids[1:, None])[:, 0].tolist()
    # vLLM looks for the position temperature under the name of Mistral's own format (docs/publishing.md).
    temperature = {"llama_4_scaling": {"original_max_position_embeddings": 16, "beta": 0.7}} if family == "ministral3" else {}
    engine = LLM(str(back), dtype="float32", max_model_len=64, skip_tokenizer_init=True, hf_overrides=temperature, **SMALL)
    settings = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    (found,) = engine.generate([TokensPrompt(prompt_token_ids=ids.tolist())], settings)
    theirs = [of_token[id_].logprob for id_, of_token in zip(ids[1:].tolist(), found.prompt_logprobs[1:], strict=True)]
    # vLLM keeps numbers of Apertus's activation in bfloat16.
    assert theirs == pytest.approx(ours, abs=1e-3 if family == "apertus" else 1e-5)


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
    assert json.dumps(ours["metrics"]) == json.dumps(theirs["metrics"])  # NaN, which is not a score, equals itself only so
    for one, other in zip(samples, other_samples, strict=True):
        if task.endswith("_gen"):
            # Cut inside a character, a text ends in U+FFFD with transformers and before it with vLLM.
            assert whole_characters(one["resps"]) == whole_characters(other["resps"])
            assert one["finished"] == other["finished"]
        else:
            # Sums over a text in float32, of logits up to 30.
            assert [a[0][0] for a in one["resps"]] == pytest.approx([a[0][0] for a in other["resps"]], abs=1e-4, rel=2e-6)


def test_the_same_answers_in_conversations(pair, tmp_path):
    """Prompts in a chat template, with its start token, are read alike."""
    from eval.running.chat import Chat

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


TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
ENGINE = json.dumps(SMALL)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny Llama whose tokenizer has a chat template."""
    folder = save(tmp_path_factory.mktemp("models") / "llama", tiny_llama(**SIZE))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def adapter(base):
    """LoRA on it whose factors are not zero."""
    import torch
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(tiny_llama(**SIZE), LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"]))
    torch.manual_seed(3)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.2)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(base.parent / "adapter")
    return base.parent / "adapter"


def evaluated(words, output, backend, *more):
    engine = ["--vllm-arguments", ENGINE] if backend == "vllm" else []
    assert main([*words, "--output", str(output), "--backend", backend, *engine, *more]) == 0
    return {path.parent.name: json.loads(path.read_text()) for path in output.glob("*/result.json")}


def test_conversations_and_adapters_through_the_harness(base, adapter, tmp_path):
    """A chat template, a system prompt, examples as turns, and a LoRA folder: the figures of transformers."""
    words = ["--model", str(base), str(adapter), "--tasks", "sl_copa_gen", "sl_copa_mc", "--data", str(write_rows(tmp_path / "data"))]
    words += ["--metadata", '{"shots": 1}', "--chat-template", "--system-prompt", "Odgovarjaj kratko."]
    ours, theirs = evaluated(words, tmp_path / "hf", "hf"), evaluated(words, tmp_path / "vllm", "vllm")
    for name in ("llama", "adapter"):
        assert theirs[name]["tasks"] == ours[name]["tasks"] and theirs[name]["key"] != ours[name]["key"]
    lines = [(tmp_path / "vllm" / name / "samples/sl_copa_gen.jsonl").read_text().splitlines() for name in ("llama", "adapter")]
    prompts, other_prompts = ([json.loads(line)["arguments"][0][0] for line in found] for found in lines)
    answers, other_answers = ([json.loads(line)["resps"] for line in found] for found in lines)
    assert prompts == other_prompts and prompts[0].startswith("<s><system>Odgovarjaj kratko.</s><user>") and "<assistant>" in prompts[0]
    assert answers != other_answers, "an adapter that changes what is said"
    assert theirs["llama"]["versions"]["vllm"]


def test_several_processes_of_vllm_answer_as_one(base, tmp_path, monkeypatch):
    """--workers 2: each has an engine of its own, and more requests than one of them gets at once."""
    import eval.running.evaluation

    monkeypatch.setattr(eval.running.evaluation, "_VLLM_PIECE", 2)
    # The workers' own processes have to find the CPU build as this one does.
    (tmp_path / "sitecustomize.py").write_text("from tests.eval.vllm_on_cpu import prepare\n\nprepare()\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    words = ["--model", str(base), "--tasks", "sl_copa_gen", "mt_en_sw", "--data", str(write_rows(tmp_path / "data")), "--chat-template"]
    words += ["--metadata", '{"shots": 1}', "--device", "cpu"]
    one = evaluated(words, tmp_path / "one", "vllm")["llama"]
    two = evaluated(words, tmp_path / "two", "vllm", "--workers", "2")["llama"]
    assert two["tasks"] == one["tasks"] and two["key"] == one["key"]
    assert not active_children()


def test_generation_of_an_adapter(base, adapter, tmp_path):
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text[:20]}) + "\n" for text in SENTENCES))
    words = ["--model", str(base), str(adapter), "--prompts", str(tmp_path / "prompts.jsonl"), "--settings", "speed"]
    words += ["--max-new-tokens", "8", "--repeats", "2", "--output"]
    assert generate([*words, str(tmp_path / "hf")]) == 0
    assert generate([*words, str(tmp_path / "vllm"), "--backend", "vllm", "--vllm-arguments", ENGINE]) == 0
    found = [
        [
            [json.loads(line)["token_ids"] for line in (tmp_path / backend / "texts" / f"{name}.jsonl").open()]
            for name in ("llama", "adapter")
        ]
        for backend in ("hf", "vllm")
    ]
    assert found[0] == found[1] and found[0][0] != found[0][1]
    assert json.loads((tmp_path / "vllm/efficiency.json").read_text())["conditions"]["vLLM's engine"] == SMALL
