"""Tasks asked as conversations: the prompts that lm-eval itself makes, the papers' examples as turns, and results that stay apart."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conversion.checkpoints.hf_model import inspect_checkpoint
from eval.harness import main
from eval.report import main as report
from eval.rescore import main as rescore
from eval.running.answers import RememberingModel
from eval.running.chat import chat_of
from eval.running.hf_backend import LocalModel
from eval.running.journal import Journal
from eval.running.results import read_lines
from eval.running.task_runs import find_tasks, run_task
from tests.eval.paper_rows import write_rows
from tests.eval.tiny_models import tiny_llama, tiny_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# As Gemma 2's: a conversation has a user and an assistant, and nobody else.
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + TEMPLATE
SYSTEM = "Odgovarjaj kratko."
COLOURS = """task: colours
custom_dataset: !function rows.load
test_split: test
fewshot_split: train
fewshot_config: {sampler: first_n}
output_type: multiple_choice
description: "Barve.\\n\\n"
doc_to_text: "Kaj je {{thing}}?"
doc_to_choice: ["modro", "rdeče"]
doc_to_target: label
num_fewshot: 2
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
ROWS = """from datasets import Dataset, DatasetDict


def load(**_):
    rows = [{"thing": f"reč {n}", "label": n % 2} for n in range(8)]
    return DatasetDict(train=Dataset.from_list(rows[:3]), test=Dataset.from_list(rows[3:]))
"""


@pytest.fixture
def chat_model(save_checkpoint):
    """A folder whose tokenizer has a chat template and puts `<s>` before texts."""

    def make(name: str, template: str | None = TEMPLATE, seed: int = 0) -> Path:
        tokenizer = tiny_tokenizer(in_front="<s>")
        tokenizer.chat_template = template
        return save_checkpoint(name, tiny_llama(num_positions=1024, seed=seed), tokenizer)

    return make


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "colours.yaml").write_text(COLOURS)
    (folder / "rows.py").write_text(ROWS)
    return folder


@pytest.mark.parametrize("multiturn", [True, False])
def test_prompts_and_scores_are_those_of_lm_eval(chat_model, colours, tmp_path, multiturn) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    folder, output = chat_model("chat"), tmp_path / "results"
    words = ["--model", str(folder), "--tasks", "colours", "--task-dir", str(colours), "--output", str(output)]
    asked = ["--chat-template", "--system-prompt", SYSTEM, *([] if multiturn else ["--no-fewshot-as-multiturn"])]
    assert main([*words, *asked]) == 0
    ours = read_lines(output / "chat/samples/colours.jsonl")
    checkpoint = inspect_checkpoint(folder, name="x")
    stock = lm_eval.simple_evaluate(
        model=LocalModel(pretrained=tiny_llama(num_positions=1024), tokenizer=checkpoint.tokenizer, batch_size=8),
        tasks=["colours"],
        task_manager=TaskManager(include_path=str(colours), include_defaults=False),
        apply_chat_template=True,
        system_instruction=SYSTEM,
        fewshot_as_multiturn=multiturn,
        bootstrap_iters=0,
    )
    theirs = stock["samples"]["colours"]
    assert [s["arguments"] for s in ours] == [[list(pair) for pair in s["arguments"]] for s in theirs]
    assert [s["resps"] for s in ours] == json.loads(json.dumps([s["resps"] for s in theirs]))
    first = ours[0]["arguments"][0][0]
    assert first.startswith(f"<s><|system|>\n{SYSTEM}") and first.count("<|user|>") == (3 if multiturn else 1)
    assert first.endswith("<|assistant|>\n") and ours[0]["arguments"][0][1] == "modro"


@pytest.mark.slow
def test_examples_of_the_papers_are_turns_and_the_start_token_stands_once(chat_model, tmp_path) -> None:
    data, output = write_rows(tmp_path / "data"), tmp_path / "results"
    tasks = ["sl_copa_gen", "sl_rte_mc", "squad_it", "flores_en_sl", "sl_senta_3shot"]
    folder = chat_model("chat")
    words = ["--model", str(folder), "--tasks", *tasks, "--data", str(data), "--metadata", '{"shots": 2, "items": 1}']
    assert main([*words, "--chat-template", "--system-prompt", SYSTEM, "--output", str(output)]) == 0
    plain = find_tasks(tasks, metadata={"data": str(data), "shots": 2, "items": 1})
    tokenizer = inspect_checkpoint(folder, name="x").tokenizer
    for task in tasks:
        (sample,) = read_lines(output / f"chat/samples/{task}.jsonl")
        read = sample["arguments"][0][0]
        system, *messages = re.findall(r"<\|(\w+)\|>\n(.*?)</s>\n", read, flags=re.DOTALL)
        assert system == ("system", SYSTEM) and [role for role, _ in messages] == ["user", "assistant"] * 2 + ["user"], task
        # Nothing is lost or asked twice: the turns one after the other are the prompt of the paper.
        prompt = plain[task].task.instances[0].args[0]
        assert re.sub(r"\s", "", "".join(text for _, text in messages)) == re.sub(r"\s", "", prompt)
        ids = LocalModel(pretrained=tiny_llama(), tokenizer=tokenizer).tok_encode(read)
        assert ids.count(tokenizer.bos_token_id) == 1
    result = json.loads((output / "chat/result.json").read_text())
    assert result["settings"]["chat_template"] == "default" and result["settings"]["fewshot_as_multiturn"] is True
    again = ["--results", str(output / "chat"), "--tasks", "sl_copa_gen", "--data", str(data), "--metadata", '{"shots": 2, "items": 1}']
    assert rescore([*again, "--output", str(tmp_path / "rescored")]) == 0
    rescored = json.loads((tmp_path / "rescored/chat/result.json").read_text())
    assert rescored["tasks"]["sl_copa_gen"] == result["tasks"]["sl_copa_gen"]


def test_a_conversation_that_does_not_fit_loses_its_last_examples(chat_model, colours, tmp_path) -> None:
    data = write_rows(tmp_path / "data")
    checkpoint = inspect_checkpoint(chat_model("chat"), name="x")
    found = find_tasks(["sl_copa_gen"], metadata={"data": str(data), "shots": 3, "items": 2, "turns": True})["sl_copa_gen"]
    chat = found.build(chat_of(checkpoint, template="default", system_prompt=SYSTEM, multiturn=True))
    whole = [instance.args[0] for instance in found.task.instances]
    needed = max(len(checkpoint.tokenizer.encode(prompt)) for prompt in whole)
    asked: list[str] = []

    class Told(LocalModel):
        def generate_until(self, requests, disable_tqdm=False):
            asked.extend(request.args[0] for request in requests)
            return super().generate_until(requests, disable_tqdm=disable_tqdm)

    backend = Told(pretrained=tiny_llama(num_positions=1024), tokenizer=checkpoint.tokenizer, max_length=needed - 20)
    lm = RememberingModel(backend, Journal(None), cut_prompts=True, chat=chat)
    run_task(lm, found, chat)
    assert len(asked) == 2
    for prompt, shorter in zip(sorted(whole), sorted(asked)):
        head, tail = "".join(re.split(r"(?<=</s>\n)", prompt)[:4]), prompt[prompt.rindex("<|user|>") :]
        assert shorter.startswith("<s><|system|>") and shorter.count("<|user|>") < prompt.count("<|user|>")
        assert shorter.startswith(head) and shorter.endswith(tail), "system prompt, first example and question stay"
    found = find_tasks(["colours"], task_dirs=[colours])["colours"]
    chat = found.build(chat)
    with pytest.raises(ValueError, match=r"^a conversation exceeds the model's context length, and only its beginning"):
        run_task(
            RememberingModel(Told(pretrained=tiny_llama(), tokenizer=checkpoint.tokenizer), Journal(None), cut_prompts=True, chat=chat),
            found,
            chat,
        )


def test_a_template_without_a_place_for_the_system_prompt(chat_model) -> None:
    """lm-eval leaves the system prompt out there, and with it a task's instruction."""
    checkpoint = inspect_checkpoint(chat_model("gemma", NO_SYSTEM), name="x")
    chat = chat_of(checkpoint, template="default", system_prompt=SYSTEM, multiturn=True)
    asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Kaj je to?"}]
    assert chat.apply_chat_template(asked) == f"<s><|user|>\n{SYSTEM}\n\nKaj je to?</s>\n<|assistant|>\n"


def test_results_of_different_settings_are_not_mixed_or_compared(chat_model, colours, tmp_path) -> None:
    one, other, base = chat_model("one"), chat_model("other", TEMPLATE + " ", seed=1), chat_model("base", None, seed=2)
    common = ["--tasks", "colours", "--task-dir", str(colours)]
    assert main(["--model", str(one), str(other), *common, "--chat-template", "--output", str(tmp_path / "chat")]) == 0
    assert main(["--model", str(base), *common, "--system-prompt", SYSTEM, "--output", str(tmp_path / "system")]) == 0
    prompts = {
        name: read_lines(tmp_path / name / "samples/colours.jsonl")[0]["arguments"][0][0]
        for name in ("chat/one", "chat/other", "system/base")
    }
    assert prompts["system/base"].startswith(f"{SYSTEM}\n\nBarve.") and prompts["chat/other"] == prompts["chat/one"] + " "
    with pytest.raises(ValueError, match="has the result of another model, text, task or setting"):
        main(["--model", str(one), *common, "--output", str(tmp_path / "chat")])
    sentence = f"the tokenizer in {base} has no chat template, like a base model; leave out --chat-template, or put its"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)} chat_template.jinja there$"):
        main(["--model", str(base), *common, "--chat-template", "--output", str(tmp_path / "more")])
    with pytest.raises(ValueError, match=r"has no chat template rag; it has default$"):
        main(["--model", str(one), *common, "--chat-template", "rag", "--output", str(tmp_path / "more")])
    with pytest.raises(ValueError, match=r"^--fewshot-as-multiturn needs --chat-template"):
        main(["--model", str(one), *common, "--fewshot-as-multiturn", "--output", str(tmp_path / "more")])
    assert not (tmp_path / "more").exists()
    where = [str(tmp_path / "chat"), str(tmp_path / "system")]
    with pytest.raises(ValueError, match=r"asked colours differently: with chat_template (None and default|default and None)"):
        report(["--results", *where, "--output", str(tmp_path / "report")])
    assert report(["--results", where[0], "--baseline", "one", "--output", str(tmp_path / "report")]) == 0
    told = (tmp_path / "report/report.md").read_text(encoding="utf-8")
    assert "Models were asked in different chat templates, each in its tokenizer's own (one and other)." in told
