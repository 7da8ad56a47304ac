"""Answers that outlive a kill, belong to one model, and can be scored again."""

import json
import math
import re
from pathlib import Path

import pytest

from eval.harness import main
from eval.rescore import main as rescore
from eval.running.answers import RememberingModel, journal_of_samples, request_key
from eval.running.backends import Settings
from eval.running.evaluation import result_key
from eval.running.hf_backend import LocalModel
from eval.running.journal import Journal
from eval.running.results import load_result
from eval.running.task_runs import find_tasks, run_task
from tests.eval.paper_rows import write_rows
from tests.eval.protocols.test_paper_tasks import Scripted
from tests.eval.tiny_models import tiny_llama, tiny_opt, tiny_tokenizer

SAMPLING = {"until": ["\n"], "max_gen_toks": 4, "do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9}


@pytest.fixture
def data(tmp_path) -> Path:
    return write_rows(tmp_path / "data")


def find(task: str, data: Path, **metadata):
    return find_tasks([task], metadata={"data": str(data), **metadata})[task]


class Counting(Scripted):
    """Counts what it is asked, and is killed after so many pieces."""

    def __init__(self, pieces: int | None = None):
        super().__init__(lambda document, run: f" {document['choices'][document['label']]}")
        self.asked, self.pieces = 0, pieces

    def generate_until(self, requests, **_):
        if self.pieces == 0:
            raise KeyboardInterrupt
        self.pieces = None if self.pieces is None else self.pieces - 1
        self.asked += len(requests)
        return super().generate_until(requests)


def test_a_killed_task_goes_on_after_the_last_answer_written(data, tmp_path):
    found, path = find("sl_cb_gen", data), tmp_path / "journal.jsonl"
    killed = Counting(pieces=2)
    with pytest.raises(KeyboardInterrupt):
        run_task(RememberingModel(killed, Journal(path), requests_per_piece=2), found)
    assert killed.asked == 4
    with open(path, "a") as stream:
        stream.write('{"key": "half a li')
    rest = Counting()
    resumed = run_task(RememberingModel(rest, Journal(path), requests_per_piece=2), found)
    assert rest.asked == 2
    whole = run_task(RememberingModel(Counting(), Journal(None), requests_per_piece=2), found)
    assert json.dumps(resumed, default=str) == json.dumps(whole, default=str)
    assert len(Journal(path)) == 6


def test_journal_keeps_repeated_requests_apart():
    journal = Journal(None)
    journal.add([{"key": request_key("generate_until", ("a", {}), run), "answer": str(run)} for run in range(3)])
    assert [journal[request_key("generate_until", ("a", {}), run)]["answer"] for run in range(3)] == ["0", "1", "2"]
    assert request_key("generate_until", ("a", {"b": 1})) != request_key("generate_until", ("a", {"b": 2}))
    assert request_key("generate_until", ("a",)) != request_key("loglikelihood", ("a",))


@pytest.fixture
def local():
    def make(seed: int = 0, *, batch_size: int = 4, make_model=tiny_llama, num_positions: int = 512) -> LocalModel:
        return LocalModel(pretrained=make_model(seed=seed, num_positions=num_positions), tokenizer=tiny_tokenizer(), batch_size=batch_size)

    return make


def requests_of(prompts, kwargs, runs=1):
    from lm_eval.api.instance import Instance

    return [
        Instance(request_type="generate_until", doc={}, arguments=(prompt, kwargs), idx=0, metadata=("t", number, runs))
        for number, prompt in enumerate(prompts)
        for _ in range(runs)
    ]


def test_sampled_runs_differ_and_do_not_depend_on_an_interruption(local, tmp_path):
    requests = requests_of(["Zjutraj", "Žena je", "In the"], SAMPLING, runs=5)
    whole = RememberingModel(local(), Journal(tmp_path / "whole"), requests_per_piece=2).generate_until(requests)
    assert len(set(whole[:5])) > 1, "five runs of one prompt"
    lines = (tmp_path / "whole").read_text().splitlines(keepends=True)
    (tmp_path / "half").write_text("".join(lines[:4]))
    assert RememberingModel(local(), Journal(tmp_path / "half"), requests_per_piece=2).generate_until(requests) == whole
    other = RememberingModel(local(), Journal(None), requests_per_piece=2, sampling_seed=1).generate_until(requests)
    assert other != whole


@pytest.mark.parametrize("make_model", [tiny_opt, tiny_llama])
def test_greedy_answers_do_not_depend_on_batches(local, data, make_model):
    found = find("sl_copa_gen", data)

    def ask(batch_size, piece):
        backend = local(batch_size=batch_size, make_model=make_model, num_positions=1024)
        _, samples = run_task(RememberingModel(backend, Journal(None), requests_per_piece=piece), found)
        return [(sample["prompt_hash"], sample["resps"], sample["finished"]) for sample in samples]

    alone = ask(1, 1)
    assert ask(4, 6) == alone
    assert any(text for _, ((text,),), _ in alone), "a model that says nothing proves nothing"


def test_texts_that_reach_the_last_token_are_known(local):
    backend = local()
    requests = requests_of(["Zjutraj je", "Žena"], {"until": ["\n"], "max_gen_toks": 6, "do_sample": False})
    lm = RememberingModel(backend, Journal(None))
    lm.generate_until(requests)
    assert [lm.finished(request.args, runs=1) for request in requests] == [[False], [False]], "random weights rarely end a line"
    texts = lm.generate_until(requests)
    stop = texts[0][2:3]
    again = requests_of(["Zjutraj je"], {"until": [stop], "max_gen_toks": 6, "do_sample": False})
    assert lm.generate_until(again) == [texts[0][: texts[0].index(stop)]]
    assert lm.finished(again[0].args, runs=1) == [True]


def test_prompts_that_do_not_fit(local, data):
    found = find("sl_boolq_gen", data)
    with pytest.raises(ValueError, match=r"^6 of 6 prompts exceed the 64 tokens of the model's context \(the longest needs \d+ with"):
        run_task(RememberingModel(local(num_positions=64), Journal(None)), found)
    summary, samples = run_task(RememberingModel(local(num_positions=64), Journal(None), cut_prompts=True), found)
    assert summary["prompt_cut"] == 1.0
    assert all(sample["prompt_cut"] for sample in samples)
    with pytest.raises(
        ValueError, match=r"^the task asks for up to 16 new tokens, but the model has 16 positions; use a model or a --cont"
    ):
        run_task(RememberingModel(local(num_positions=16), Journal(None), cut_prompts=True), found)
    assert run_task(RememberingModel(local(num_positions=1024), Journal(None)), found)[0]["prompt_cut"] == 0.0


def test_broken_logits_end_generation(local, data):
    backend = local()
    backend.model.model.layers[1].mlp.down_proj.weight.data[3] = math.nan
    with pytest.raises(ValueError, match=r"^the model's logits are not finite; check the checkpoint with `python -m conversion.verify`$"):
        run_task(RememberingModel(backend, Journal(None)), find("sl_senta_0shot", data))


def harness(model: Path, output: Path, data: Path, *more: str) -> list[str]:
    tasks = ["--tasks", "sl_copa_gen", "sl_copa_mc", "--data", str(data), "--metadata", '{"shots": 1}']
    return ["--model", str(model), *tasks, "--output", str(output), "--batch-size", "2", *more]


def test_answers_of_a_killed_model_are_not_taken_for_anothers(save_checkpoint, data, tmp_path, monkeypatch):
    """lm-eval's own cache would: it is keyed by the request alone."""
    first = save_checkpoint("first", tiny_llama(seed=1, num_positions=512), tiny_tokenizer())
    second = save_checkpoint("second", tiny_llama(seed=2, num_positions=512), tiny_tokenizer())
    output = tmp_path / "results"
    whole = Journal.add

    def killed(journal, answers):
        whole(journal, answers)
        if len(journal) >= 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        main(harness(first, output, data))
    monkeypatch.undo()
    kept = list((output / ".answers").rglob("*.jsonl"))
    assert 4 <= sum(len(path.read_text().splitlines()) for path in kept) < 18
    assert main(harness(second, output, data)) == 0
    assert main(harness(second, tmp_path / "alone", data)) == 0
    samples = "second/samples/sl_copa_gen.jsonl"
    assert (output / samples).read_text() == (tmp_path / "alone" / samples).read_text()
    assert all(path.exists() for path in kept), "the first model's answers wait for it"
    assert main(harness(first, output, data)) == 0
    assert not (output / ".answers").exists()
    assert load_result(output / "first" / "result.json")["key"] != load_result(output / "second" / "result.json")["key"]


def test_results_are_keyed_by_prompts_and_settings(save_checkpoint, data, tmp_path):
    model = save_checkpoint("model", tiny_llama(num_positions=512), tiny_tokenizer())
    output = tmp_path / "results"
    assert main(harness(model, output, data)) == 0
    held = f"{output}/model has the result of another model, text, task or setting;"
    for more in (["--metadata", '{"shots": 2}'], ["--sampling-seed", "1"], ["--cut-prompts"]):
        with pytest.raises(ValueError, match=f"^{re.escape(held)}"):
            main(harness(model, output, data, *more))
    with pytest.raises(ValueError, match=r"^--metadata shots=2 is not valid JSON: "):
        main(harness(model, output, data, "--metadata", "shots=2"))
    with pytest.raises(ValueError, match=r"^--metadata 2 is not a JSON object; expected one such as"):
        main(harness(model, output, data, "--metadata", "2"))
    task = load_result(output / "model" / "result.json")["tasks"]["sl_copa_gen"]
    assert list(task["metrics"]) == ["acc", "acc_valid", "invalid", "macro_f1", "macro_f1_valid"], (
        "as in the task's file: tables take the first"
    )
    assert task["num_fewshot"] == 1
    assert task["majority"] == {"answer": "1", "acc": 0.5}
    assert (task["prompt_cut"], task["answer_cut"]) == (0.0, 1.0)
    items = json.loads((output / "model/items/sl_copa_gen.jsonl").read_text())
    assert items["ids"] == [f"val:{n}" for n in range(6)]
    assert set(items["scores"]) == {"acc", "acc_valid", "invalid"}


def test_the_key_tells_backends_and_versions_apart(monkeypatch):
    keys = set()
    for installed in ("1.0", "1.1"):
        monkeypatch.setattr("importlib.metadata.version", lambda name, installed=installed: installed)
        keys |= {result_key("xxh3:m", {}, Settings(backend=backend)) for backend in ("hf", "vllm")}
    assert len(keys) == 4


def test_saved_answers_are_scored_again_without_a_model(save_checkpoint, data, tmp_path, monkeypatch, capsys):
    model = save_checkpoint("model", tiny_llama(num_positions=512), tiny_tokenizer())
    results = tmp_path / "results"
    assert main(harness(model, results, data)) == 0
    capsys.readouterr()
    arguments = ["--results", str(results / "model"), "--data", str(data), "--metadata", '{"shots": 1}']
    arguments += ["--tasks", "sl_copa_gen", "sl_copa_mc"]
    assert rescore([*arguments, "--output", str(tmp_path / "same")]) == 0
    before, after = load_result(results / "model/result.json"), load_result(tmp_path / "same/model/result.json")
    assert {key: value for key, value in before.items() if key != "seconds"} == {k: v for k, v in after.items() if k != "seconds"}
    assert (tmp_path / "same/model/samples/sl_copa_gen.jsonl").read_text() == (results / "model/samples/sl_copa_gen.jsonl").read_text()

    import eval.protocols.scoring as scoring

    monkeypatch.setattr(scoring, "read_label", lambda text, form: 0)  # a corrected form: everything is a 1
    assert rescore([*arguments, "--output", str(tmp_path / "corrected")]) == 0
    corrected = load_result(tmp_path / "corrected/model" / "result.json")["tasks"]["sl_copa_gen"]["metrics"]
    assert (corrected["acc"]["value"], corrected["invalid"]["value"]) == (0.5, 0.0)
    assert "| sl_copa_gen | acc " in capsys.readouterr().out
    monkeypatch.undo()

    changed = [*arguments[:4], "--metadata", '{"shots": 2}', *arguments[6:]]
    with pytest.raises(
        ValueError, match=r"model, task sl_copa_gen: 6 of 6 requests are missing in the saved answers: prompts or settings of"
    ):
        rescore([*changed, "--output", str(tmp_path / "changed")])
    with pytest.raises(ValueError, match=r"model has no answers to sl_rte_gen; it has sl_copa_gen, sl_copa_mc$"):
        rescore([*arguments[:6], "--tasks", "sl_rte_gen", "--output", str(tmp_path / "changed")])
    assert not (tmp_path / "changed").exists()


def test_journal_of_samples_with_several_runs(data, local):
    found = find("mt_en_sw", data)
    found.task.set_config(key="generation_kwargs", value=SAMPLING)
    lm = RememberingModel(local(), Journal(None), requests_per_piece=4)
    summary, samples = run_task(lm, found)
    again, _ = run_task(RememberingModel(None, journal_of_samples(json.loads(json.dumps(samples)), "generate_until")), found)
    assert again == summary
    assert len(samples[0]["resps"][0]) == 5
