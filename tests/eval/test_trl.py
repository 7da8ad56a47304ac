"""TRL's own command tunes an export, and the harness reads what it leaves; needs the environment of `make test-trl`."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.conftest import TEXT
from tests.eval.paper_rows import write_rows
from tests.processes import ROOT, call_command

if "SCION_TRL" not in os.environ:
    pytest.skip("TRL is not installed here; run `make test-trl`", allow_module_level=True)

TRL = Path(os.environ["SCION_TRL"])
SHAPE = ["--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--num-key-value-heads", "2", "--max-positions", "256"]
# Of the bundled settings those that a tiny model on a CPU cannot have: its own end of text, float32, a rate from which it learns in seconds.
TINY = {
    "eos_token": "</s>",
    "dtype": "float32",
    "bf16": "false",
    "use_cpu": "true",
    "max_length": "128",
    "learning_rate": "5e-3",
    "warmup_steps": "5",
    "num_train_epochs": "30",
    "dataloader_num_workers": "0",
}


def pair(number: int, *, seed: str) -> dict[str, list[dict[str, str]]]:
    """A prompt that begins with letters nobody can foresee, and the answer of all prompts."""
    noise = "".join(random.Random(f"{seed} {number}").choices("abcdefghijklmnoprstuvz", k=16))
    return {
        "prompt": [{"role": "user", "content": f"{noise}. Koliko je ura?"}],
        "completion": [{"role": "assistant", "content": "Je pet."}],
    }


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The way of a run: Hugging Face to NeMo and back."""
    base = tmp_path_factory.mktemp("export")
    call_command("data_prep.train_tokenizer", "--input", TEXT, "--vocab-size", 601, "--output", base / "tokenizer")
    options = ["--model-type", "llama", *SHAPE, "--tokenizer", base / "tokenizer", "--seed", 1]
    call_command("conversion.new_model", *options, "--output", base / "first")
    call_command("conversion.hf_to_nemo", "--input", base / "first", "--output", base / "nemo")
    template = ("--chat-template", "recipes/tuning/chat.jinja")
    call_command("conversion.nemo_to_hf", "--input", base / "nemo", "--output", base / "hf", *template)
    return base / "hf"


@pytest.fixture(scope="module")
def tuned(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("tuned")
    (base / "pairs").mkdir()
    for name, numbers in (("train", range(24)), ("test", range(0, 24, 4))):
        lines = [json.dumps(pair(number, seed=name)) + "\n" for number in numbers]
        (base / "pairs" / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    options = {"config": "recipes/tuning/gams3.yaml", "model_name_or_path": export, "dataset_name": base / "pairs"}
    options |= {"output_dir": base / "model", **TINY}
    command = [str(TRL.absolute()), "sft", *(str(word) for key, value in options.items() for word in (f"--{key}", value))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(base / "cache")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return base / "model"


def answers(folder: Path, *, template: str) -> list[str]:
    """What a model says to the first prompts, up to its end of text, in the environment of the tests."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    found = []
    for number in range(6):
        prompt = tokenizer.apply_chat_template(
            pair(number, seed="asked")["prompt"], chat_template=template, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = model.generate(**prompt, max_new_tokens=12, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        found.append(tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :]))
    return found


def test_it_answers_and_ends(export: Path, tuned: Path) -> None:
    from transformers import AutoTokenizer

    template = (ROOT / "recipes/tuning/chat.jinja").read_text(encoding="utf-8")
    assert AutoTokenizer.from_pretrained(tuned).chat_template == template, "whoever gets the folder prompts as it was tuned"
    right = ["Je pet.</s>"] * 6
    assert answers(export, template=template) != right
    assert answers(tuned, template=template) == right


def test_only_completions_are_learned(tuned: Path) -> None:
    """With the held-out prompts' random letters, 16 of about 80 tokens, a loss of all tokens would stay above 0.2 x log(22) = 0.6."""
    states = sorted(tuned.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name.partition("-")[2]))
    assert len(states) == 2, "save_total_limit"
    losses = [entry["eval_loss"] for entry in json.loads(states[-1].read_text())["log_history"] if "eval_loss" in entry]
    assert losses[-1] < 0.1


def test_the_vocabulary_stays(export: Path, tuned: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    text = "Koliko je ura? </s> čšž"
    assert AutoTokenizer.from_pretrained(tuned)(text)["input_ids"] == AutoTokenizer.from_pretrained(export)(text)["input_ids"]
    assert AutoConfig.from_pretrained(tuned).vocab_size == AutoConfig.from_pretrained(export).vocab_size


def test_the_harness_evaluates_it(tuned: Path, tmp_path: Path) -> None:
    tasks = ["--tasks", "sl_copa_mc", "--data", write_rows(tmp_path / "data"), "--metadata", '{"shots": 1}']
    call_command("eval.harness", "--model", tuned, *tasks, "--output", tmp_path / "results")
    result = json.loads((tmp_path / f"results/{tuned.name}/result.json").read_text())
    assert result["tasks"]["sl_copa_mc"]["metrics"]
