"""What breaks evaluations in practice: a user's own tasks, two commands at once, odd letters, kills, and prompts that do not fit."""

import json
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from common.artifacts import read_manifest
from common.lease import take_lease, this_process
from eval.generate import read_prompts
from eval.harness import main
from eval.report import main as report
from eval.running.answers import RememberingModel
from eval.running.journal import Journal
from eval.running.results import load_result, read_lines, write_lines
from eval.running.shortening import shortened
from eval.running.task_runs import TASKS_DIR, find_tasks, run_task
from tests.eval.paper_rows import write_rows
from tests.eval.protocols.test_paper_tasks import Scripted
from tests.eval.tiny_models import SENTENCES, tiny_llama, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[3]
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: [da, ne]
doc_to_target: label
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture
def model(save_checkpoint) -> Path:
    return save_checkpoint("model", tiny_llama(num_positions=512), tiny_tokenizer())


@pytest.fixture
def own_tasks(tmp_path):
    """A folder of a user's tasks: the name of one and what is wrong in it -> its file."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    rows = [{"question": f"Ali je {n}?\u2028Odgovor\u0085:", "label": n % 2} for n in range(4)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")

    def write(name: str, *, rows: Path = folder / "rows.jsonl", more: str = "", split: str = "test") -> Path:
        text = TASK.format(name=name, rows=rows).replace("test_split: test", f"test_split: {split}")
        (folder / f"{name}.yaml").write_text(text + more, encoding="utf-8")
        return folder

    return write


def test_a_users_task_that_fails_ends_no_other(model, own_tasks, tmp_path, capsys):
    folder = own_tasks("good")
    bad = folder / "bad.jsonl"
    bad.write_text('{"question": "Ali?", "label": 0}\n{"question": "Ali?", "label": 7}\n')
    (folder / "functions.py").write_text('def fails(doc, results):\n    return {"acc": {}["wanted"]}\n')
    own_tasks("no_file", rows=folder / "none.jsonl")
    own_tasks("bad_split", split="banana")
    own_tasks("bad_label", rows=bad)
    own_tasks("no_function", more="process_results: !function functions.gone\n")
    own_tasks("no_module", more="process_results: !function missing.gone\n")
    own_tasks("raises", more="process_results: !function functions.fails\n")
    names = ["no_file", "bad_split", "bad_label", "no_function", "no_module", "raises", "good"]
    output = tmp_path / "results"
    with pytest.raises(ValueError) as failed:
        main(["--model", str(model), "--tasks", *names, "--task-dir", str(folder), "--output", str(output)])
    said = str(failed.value)
    assert said.startswith("6 tasks could not be evaluated: ") and "\n" not in said
    for told in (
        f"task no_file: FileNotFoundError: Unable to find '{folder}/none.jsonl' (line ",
        "task bad_split: KeyError: 'banana' (line ",
        f"task no_function: AttributeError: Module '{folder}/functions.py' has no function 'gone'",
        "task no_module: ImportError: Cannot import module 'missing'",
        f"task raises: KeyError: 'wanted' (line 2 of {folder}/functions.py)",
        "task bad_label: row 2 has the label 7; expected the number of one of its 2 choices, from 0;",
    ):
        assert told in said, told
    result = load_result(output / "model" / "result.json")
    assert list(result["tasks"]) == ["good"] and set(result["failures"]) == {"raises"}
    told = capsys.readouterr().err
    assert "task no_file is skipped: FileNotFoundError" in told
    assert re.search(r"^\[1/1\] model: 0 texts, 2 tasks$", told, re.MULTILINE) and re.search(
        r"^model, 2 tasks: \d+\.\d s$", told, re.MULTILINE
    )

    # Odd letters in prompts and answers: what was written is read again, by the report and line for line.
    samples = read_lines(output / "model/samples/good.jsonl")
    assert len(samples) == 4 and "\u2028" in samples[0]["arguments"][0][0]
    assert report(["--results", str(output), "--output", str(tmp_path / "report")]) == 0


def test_letters_that_end_a_line_for_python_end_none_of_a_file(tmp_path):
    rows = [{"prompt": "a\u2028b\u0085c\u2029d\x0be\x0cf\x1cg"}, {"prompt": "h"}]
    write_lines(tmp_path / "rows/x.jsonl", rows)
    assert read_lines(tmp_path / "rows/x.jsonl") == rows
    assert [row["prompt"] for row in read_prompts(tmp_path / "rows/x.jsonl")] == [row["prompt"] for row in rows]


def digest_of(folder: Path) -> str:
    sys.path.insert(0, str(folder))
    return find_tasks(["mine"], task_dirs=[folder])["mine"].digest


def test_a_tasks_identity_is_what_scores_it(own_tasks):
    folder = own_tasks("mine", more="process_results: !function functions.score\n")
    (folder / "functions.py").write_text(
        "from scoring_of_mine import right\n\n\ndef score(doc, results):\n    return {'acc': right(doc)}\n"
    )
    scoring = folder / "scoring_of_mine.py"
    scoring.write_text("def right(doc):\n    return float(doc['label'])\n")

    def digest() -> str:
        with ProcessPoolExecutor(1, get_context("fork")) as process:  # a new one each time, which has imported nothing of the task
            return process.submit(digest_of, folder).result(timeout=120)

    first = digest()
    (folder / "README.md").write_text("Said of the task.\n")
    own_tasks("another")
    scoring.write_text('"""Words."""\n\n\ndef right(doc):\n    """More words."""\n    return float(doc["label"])  # a comment\n')
    assert digest() == first, "neither a README nor another task, nor a comment"
    scoring.write_text("def right(doc):\n    return 1 - float(doc['label'])\n")
    assert digest() != first


def test_what_identifies_the_papers_tasks(tmp_path):
    """Their code is the protocols' and what those import of the evaluation, not the report's or another stage's."""
    from eval.running.task_code import code_files
    from eval.running.task_runs import _EVAL_DIR

    files = {path.relative_to(_EVAL_DIR).as_posix() for path in code_files(iter([_EVAL_DIR / "protocols/slovene.py"]))}
    assert files == {f"protocols/{name}.py" for name in ("slovene", "protocol", "rows")}
    files = {path.relative_to(_EVAL_DIR).as_posix() for path in code_files(iter([_EVAL_DIR / "protocols/scoring.py"]))}
    assert files == {"protocols/scoring.py", "scoring/statistics.py"}
    data = write_rows(tmp_path / "data")
    found = find_tasks(["sl_senta_0shot"], metadata={"data": str(data)})["sl_senta_0shot"]
    path = data / "sl/senta_test.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("Je stara.", "Stara je."), encoding="utf-8")
    changed = find_tasks(["sl_senta_0shot"], metadata={"data": str(data)})["sl_senta_0shot"]
    assert changed.prompts_digest != found.prompts_digest, "references score, and no request holds them"


@pytest.mark.slow
def test_two_commands_do_not_work_in_one_folder(model, tmp_path, capsys):
    output = tmp_path / "results"
    arguments = ["--model", str(model), "--tasks", "completion_sl", "--output", str(output)]
    in_use = rf"^1 of 1 models could not be evaluated: model: {re.escape(str(output))}/model is in use by"
    with take_lease(output / ".leases/model", this_process("eval.harness")), pytest.raises(ValueError, match=in_use):
        main(arguments)
    assert main(arguments) == 0
    assert [path.name for path in output.iterdir()] == ["model"]
    # Added by another command after this one has looked: what that one did is kept and not done again.
    one = subprocess.Popen(
        [sys.executable, "-m", "eval.harness", *arguments[:2], "--tasks", "completion_en", "--output", str(output)], cwd=ROOT
    )
    two = subprocess.Popen(
        [sys.executable, "-m", "eval.harness", *arguments[:2], "--tasks", "completion_en", "--output", str(output)], cwd=ROOT
    )
    assert sorted([one.wait(180), two.wait(180)])[0] == 0
    assert list(load_result(output / "model" / "result.json")["tasks"]) == ["completion_sl", "completion_en"]
    assert read_manifest(output / "model").arguments["tasks"] == ["completion_sl", "completion_en"]


def test_a_killed_text_goes_on_where_it_was(model, tmp_path, monkeypatch):
    text = tmp_path / "sl.txt"
    text.write_text("\n".join(f"{sentence} {n}" for n in range(200) for sentence in SENTENCES[:2]), encoding="utf-8")
    asked = ["--model", str(model), "--text", f"sl={text}", "--context-length", "32"]
    assert main([*asked, "--output", str(tmp_path / "whole")]) == 0
    add, output = Journal.add, tmp_path / "killed"

    def killed(journal, answers):
        add(journal, answers)
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        main([*asked, "--output", str(output)])
    (kept,) = (output / ".answers").rglob("text-sl.*.jsonl")
    before = kept.read_text().count("\n")
    counted: list[int] = []
    monkeypatch.setattr(Journal, "add", lambda journal, answers: (counted.append(len(answers)), add(journal, answers))[1])
    assert main([*asked, "--output", str(output)]) == 0
    documents = "model/documents/sl.jsonl"
    assert (output / documents).read_bytes() == (tmp_path / "whole" / documents).read_bytes()
    windows = sum(1 for _ in read_lines(output / documents))
    assert 0 < before < windows <= before + sum(counted), "what was scored before is not scored again"
    assert not (output / ".answers").exists()


def test_shortened_prompts_keep_instruction_and_question():
    prompt = "Reci!\n\nA1\n\nA2\n\nBesedilo: dolgo in dolgo\nVprašanje?"
    first, second = [prompt.index("A1"), prompt.index("A2")], [prompt.index("A2"), prompt.index("Besedilo")]
    article = [prompt.index("dolgo"), prompt.index("\nVprašanje")]
    cuts = [second, first, article]

    def to(size: int) -> str | None:
        return shortened(prompt, cuts, lambda text: len(text) <= size)

    assert to(len(prompt) - 1) == prompt.replace("A2\n\n", "")
    assert to(len(prompt) - 5) == "Reci!\n\nBesedilo: dolgo in dolgo\nVprašanje?"
    assert to(30) == "Reci!\n\nBesedilo: do\nVprašanje?"
    assert to(28) == "Reci!\n\nBesedilo: \nVprašanje?"
    assert to(27) is None
    assert shortened(prompt, [], lambda text: False) is None


def test_prompts_that_must_be_cut_lose_the_article(save_checkpoint, tmp_path):
    """A long article: the model sees instruction and question, where it once saw the article's end alone."""
    data = write_rows(tmp_path / "data")
    path = data / "sl/superglue_human/BoolQ.jsonl"
    path.write_text(
        path.read_text(encoding="utf-8").replace("stoji na hribu.", "stoji na hribu. " + "Tam je lepo. " * 200), encoding="utf-8"
    )
    from eval.running.hf_backend import LocalModel

    tokenizer, seen = tiny_tokenizer(), []

    class Watched(LocalModel):
        def generate_until(self, requests, disable_tqdm=False):
            seen.extend(request.args[0] for request in requests)
            return super().generate_until(requests, disable_tqdm=disable_tqdm)

    backend = Watched(pretrained=tiny_llama(num_positions=256), tokenizer=tokenizer, max_length=256, batch_size=2)
    found = find_tasks(["sl_boolq_gen"], metadata={"data": str(data), "shots": 1})["sl_boolq_gen"]
    summary, samples = run_task(RememberingModel(backend, Journal(None), cut_prompts=True), found)
    assert summary["prompt_cut"] == 1.0 and len(seen) == 6
    for prompt in seen:
        assert prompt.startswith("Podano besedilo vključuje vprašanje."), "the instruction"
        assert re.search(r"\n\nBesedilo: Grad \d stoji na hribu\. Tam je lepo\.[^\n]*\nVprašanje: Ali stoji grad \d\?\nOdgovor:$", prompt)
        assert prompt.count("Besedilo:") == 1, "no example"
        assert 236 <= len(tokenizer.encode(prompt)) <= 240, "no more than needed is cut"
    assert samples[0]["arguments"][0][0].count("Tam je lepo.") == 400, "the sample says what the task asks"


def _is_at_most(size: int, text: str) -> bool:
    return len(text) <= size


@pytest.mark.some(5)
@pytest.mark.parametrize(
    "name",
    [*sorted(path.stem for path in TASKS_DIR.rglob("sl_*_gen.yaml")), "sl_multirc_mc", "sl_senta_3shot", "squad_it", "itabench_boolq_it"],
)
def test_what_may_be_cut_is_no_instruction_and_no_question(name, tmp_path):
    data = write_rows(tmp_path / "data")
    found = find_tasks([name], metadata={"data": str(data)})[name]
    for document in {instance.doc_id: instance.doc for instance in found.task.instances}.values():
        *examples, article = document["cuts"]
        assert len(examples) == len(document["shot_ids"])
        left = document["prompt"]
        for start, end in sorted([*examples, article], reverse=True):
            left = left[:start] + left[end:]
        assert shortened(document["prompt"], document["cuts"], partial(_is_at_most, len(left))) == left
        assert left.count("Odgovor:") <= 1
        assert left.splitlines()[-1] == document["prompt"].splitlines()[-1], "the question's end"
        if "sl_" in name:
            assert left.splitlines()[0] == document["prompt"].splitlines()[0], "the instruction"


def test_all_positions_of_a_model_are_used_in_tasks(save_checkpoint, tmp_path):
    """Prompts of 2,300 tokens and a model of 4,096 positions; texts still go by 2,048, so that models compare."""
    data = write_rows(tmp_path / "data")
    path = data / "sl/superglue_human/BoolQ.jsonl"
    long = "Zjutraj je nad dolino ležala megla. " * 150
    path.write_text(path.read_text(encoding="utf-8").replace("stoji na hribu.", f"stoji na hribu. {long}"), encoding="utf-8")
    text = tmp_path / "sl.txt"
    text.write_text("Zjutraj je nad dolino ležala megla.\n", encoding="utf-8")
    model = save_checkpoint("long", tiny_llama(num_positions=4096, hidden_size=16), tiny_tokenizer())
    asked = ["--tasks", "sl_boolq_mc", "--data", str(data), "--metadata", '{"shots": 0, "items": 2}', "--text", f"sl={text}"]
    assert main(["--model", str(model), *asked, "--output", str(tmp_path / "results")]) == 0
    result = load_result(tmp_path / "results/long" / "result.json")
    assert (result["settings"]["task_positions"], result["settings"]["window_tokens"]) == (4096, 2048)
    assert result["tasks"]["sl_boolq_mc"]["prompt_cut"] == 0.0
    found = find_tasks(["sl_boolq_mc"], metadata={"data": str(data), "shots": 0, "items": 2})["sl_boolq_mc"]
    assert len(tiny_tokenizer().encode(found.task.instances[0].args[0])) > 2048


def test_a_long_task_tells_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("common.progress.LOG_INTERVAL_SECONDS", 0.0)
    from common.progress import Progress

    data = {"data": str(write_rows(tmp_path / "data")), "shots": 0}
    found = find_tasks(["sl_copa_gen"], metadata=data)["sl_copa_gen"]

    class Backend:
        max_length = 1000

        def generate_until(self, requests, disable_tqdm=False):
            return ["1"] * len(requests)

    with Progress("model, sl_copa_gen", total=6, unit="answers") as progress:
        run_task(RememberingModel(Backend(), Journal(None), requests_per_piece=2, progress=progress), found)
    told = capsys.readouterr().err
    assert re.search(r"^model, sl_copa_gen: 4 of 6 answers \(67 %\), \d+ s left, ", told, re.MULTILINE), told


@pytest.mark.parametrize(
    ("task", "instruction"), [("flores_en_it", "Traduci dall'Inglese all'Italiano"), ("flores_it_en", "Translate from Italian to English")]
)
def test_flores_asks_in_the_language_of_the_translation(task, instruction, tmp_path):
    """SAVA, Table 8: "Translate from Italian to English Text: Ti amo così tanto. Translation: I love you so much."."""
    data = {"data": str(write_rows(tmp_path / "data")), "shots": 1}
    _, samples = run_task(Scripted(lambda document, run: " x"), find_tasks([task], metadata=data)[task])
    prompt = samples[0]["arguments"][0][0]
    assert prompt.count(f"{instruction}\nText: ") == 2 and prompt.count("Translat") == (4 if task == "flores_it_en" else 2)


def test_packages_of_an_image_are_no_code_of_a_task(tmp_path, monkeypatch):
    """They lie outside the environment that is laid over them; and a module may be no text at all."""
    from eval.running.task_code import code_files

    packages, own = tmp_path / "image/lib/python3.12/site-packages", tmp_path / "own"
    (packages / "of_the_image").mkdir(parents=True)
    own.mkdir()
    (packages / "of_the_image/__init__.py").write_text("from . import compiled\n")
    (own / "compiled_here.so").write_bytes(b"\x7fELF\0")
    (own / "helper.py").write_text("import of_the_image, compiled_here\n")
    (own / "task.py").write_text("import helper\n")
    for folder in (packages, own):
        monkeypatch.syspath_prepend(str(folder))
    assert code_files(iter([own / "task.py"])) == {own / "task.py", own / "helper.py"}
