"""All tasks in one queue: one model in memory, batches by length over all of them, each text encoded once, and a task that fails fails alone."""

import json
import math
from collections import Counter

import pytest
from lm_eval.api.instance import Instance

from eval.harness import main
from eval.running.answers import RememberingModel
from eval.running.asking import ask_all
from eval.running.encoding import Encoder
from eval.running.journal import Journal
from eval.running.results import GoneError
from eval.running.workers import Workers
from tests.eval.paper_rows import write_rows
from tests.eval.tiny_models import tiny_llama, tiny_tokenizer

GREEDY = {"until": ["\n"], "max_gen_toks": 3, "do_sample": False}


class Asked:
    """A backend that remembers what it was asked together, and cannot answer what names a broken thing."""

    max_length = 512

    def __init__(self) -> None:
        self.encoder = Encoder(tiny_tokenizer())
        self.together: list[list[str]] = []

    def tok_encode(self, text):
        return self.encoder.tok_encode(text)

    def score(self, pairs, *, going_on=()):
        decode = tiny_tokenizer().decode
        self.together.append([decode([*context, *continuation]) for context, continuation in pairs])
        self.together.append([f"{prompt} ..." for prompt in going_on])
        if any("pokvarjeno" in text for text in self.together[-2]):
            raise RuntimeError("broken")
        return [(-1.0, False)] * len(pairs)

    def generate_until(self, requests, disable_tqdm=False):
        return [f"text of {request.args[0]}" for request in requests]


def ask(backend, tasks: dict[str, list[tuple]], *, size: int):
    models = {name: RememberingModel(backend, Journal(None)) for name in tasks}
    kinds = {name: "generate_until" if isinstance(asked[0][1], dict) else "loglikelihood" for name, asked in tasks.items()}
    questions = [
        question
        for name, asked in tasks.items()
        for question in models[name].questions_of(
            [Instance(request_type=kinds[name], doc={}, arguments=a, idx=0, metadata=(name, n, 1)) for n, a in enumerate(asked)]
        )
    ]
    failures = ask_all(backend, questions, size=size)
    return models, {name: failures[model] for name, model in models.items() if model in failures}


def test_batches_are_by_length_over_all_tasks_and_texts_stand_with_their_prompts() -> None:
    backend = Asked()
    tasks = {
        "long": [("a b c d e f g h i j k l m n", " Da"), ("a b", " Da")],
        "choices": [("o p q r s t u v", " Da"), ("o p q r s t u v", " Ne")],
        "texts": [("o p q r s t u v", GREEDY), ("not asked above", GREEDY)],
    }
    models, failures = ask(backend, tasks, size=2)
    assert not failures
    assert backend.together == [
        ["a b c d e f g h i j k l m n Da", "o p q r s t u v Da", "o p q r s t u v Ne"],
        ["o p q r s t u v ..."],
        ["a b Da"],
        [],
    ]
    texts = models["texts"].generate_until(
        [Instance(request_type="generate_until", doc={}, arguments=arguments, idx=0) for arguments in tasks["texts"]]
    )
    assert texts == ["text of o p q r s t u v", "text of not asked above"]


def test_a_task_that_fails_fails_alone() -> None:
    backend = Asked()
    tasks = {"whole": [("a b c", " Da"), ("d e", " Da")], "broken": [("x y z pokvarjeno", " Da"), ("f", " Da")]}
    models, failures = ask(backend, tasks, size=4)
    assert [(name, str(error)) for name, error in failures.items()] == [("broken", "broken")]
    requests = [Instance(request_type="loglikelihood", doc={}, arguments=arguments, idx=0) for arguments in tasks["whole"]]
    asked = len(backend.together)
    assert models["whole"].loglikelihood(requests) == [(-1.0, False)] * 2
    assert len(backend.together) == asked, "what is known is not asked again"
    with pytest.raises(RuntimeError, match=r"^broken$"):
        models["broken"].loglikelihood([Instance(request_type="loglikelihood", doc={}, arguments=tasks["broken"][0], idx=0)])


def test_what_was_answered_before_a_worker_was_killed_is_kept() -> None:
    class Killed(Workers):
        max_length = 512
        encoder = None

        def __init__(self) -> None:
            pass

        def tok_encode(self, text):
            return text.split()

        def answer_all(self, calls):
            for number, call in enumerate(calls):
                if number == 1:
                    raise GoneError("killed")
                yield number, ([(-1.0, True)] * len(call.requests), [None] * len(call.requests))

    tasks = {"done": [("a b c d", " Da"), ("a b c e", " Da")], "half": [("a b c", " Da"), ("d", " Da"), ("e", " Da")]}
    models, failures = ask(Killed(), tasks, size=3)
    assert [(name, str(error)) for name, error in failures.items()] == [("half", "killed")]
    requests = [Instance(request_type="loglikelihood", doc={}, arguments=arguments, idx=0) for arguments in tasks["done"]]
    assert models["done"].loglikelihood(requests) == [(-1.0, True)] * 2


def test_a_number_that_is_none_fails_its_task_alone() -> None:
    class Broken(Asked):
        def score(self, pairs, *, going_on=()):
            texts = [tiny_tokenizer().decode(context) for context, _ in pairs]
            return [(math.nan if text == "f" else -1.0, False) for text in texts]

    _, failures = ask(Broken(), {"whole": [("a b c", " Da")], "broken": [("f", " Da")]}, size=4)
    assert list(failures) == ["broken"]


@pytest.mark.long
def test_a_suite_loads_each_model_once_and_encodes_each_text_once_for_all(save_checkpoint, tmp_path, monkeypatch) -> None:
    """Three checkpoints of a run: their tokenizer, prompts and so token ids are the same, of which all but the first have no work."""
    folders = [save_checkpoint(f"step-{seed}", tiny_llama(seed=seed, num_positions=512), tiny_tokenizer()) for seed in range(3)]
    other = save_checkpoint("other", tiny_llama(seed=9, num_positions=512), tiny_tokenizer(in_front="<s>"))
    words = ["--tasks", "sl_copa_mc", "sl_copa_gen", "sl_rte_mc", "completion_sl", "--data", str(write_rows(tmp_path / "data"))]
    words += ["--metadata", '{"shots": 1}', "--device", "cpu"]
    alone = ["--model", str(folders[2]), *words, "--output", str(tmp_path / "alone")]
    assert main(alone) == 0

    from conversion.checkpoints import hf_model
    from eval.running import evaluation

    loads: Counter[str] = Counter()
    encoded: Counter[tuple] = Counter()
    load, encode = hf_model.load_model, Encoder.tok_encode

    def loading(checkpoint, **arguments):
        loads[checkpoint.name] += 1
        return load(checkpoint, **arguments)

    def encoding(encoder, text, add_special_tokens=None):
        before = len(encoder._known)
        ids = encode(encoder, text, add_special_tokens)
        encoded[id(encoder), text, add_special_tokens] += len(encoder._known) - before
        return ids

    monkeypatch.setattr(evaluation, "load_model", loading)
    monkeypatch.setattr(Encoder, "tok_encode", encoding)
    assert main(["--model", *map(str, folders), str(other), *words, "--output", str(tmp_path / "all")]) == 0
    assert loads == {"step-0": 1, "step-1": 1, "step-2": 1, "other": 1}
    assert set(encoded.values()) == {1}
    assert len({encoder for encoder, *_ in encoded}) == 2, "one for each tokenizer"
    for kind in ("samples", "items"):
        for path in (tmp_path / "alone/step-2" / kind).iterdir():
            assert path.read_bytes() == (tmp_path / "all/step-2" / kind / path.name).read_bytes()
    results = [json.loads((tmp_path / f"all/step-{seed}/result.json").read_text()) for seed in range(3)]
    assert len({json.dumps(result["tasks"]["completion_sl"]["metrics"]) for result in results}) > 1, "models that answer alike show nothing"
