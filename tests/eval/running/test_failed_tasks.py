"""One task that fails throws away no other: what is done is kept, the failed are named, and the next command does only the rest."""

import re

import pytest
import torch

from eval.harness import main
from eval.report import main as report
from eval.running.results import load_result, read_lines
from tests.eval.paper_rows import write_rows
from tests.eval.tiny_models import tiny_llama, tiny_tokenizer


@pytest.fixture
def data(tmp_path):
    """Rows of all sets, of which the shortest question of RTE, asked last, has a letter that no other set has."""
    folder = write_rows(tmp_path / "data")
    path = folder / "sl/superglue_human/RTE.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("Na mizi je 3 jabolk.", "ß."), encoding="utf-8")
    return folder


@pytest.fixture
def model(save_checkpoint):
    """Its logits are not numbers after that letter."""
    llama, tokenizer = tiny_llama(num_positions=512), tiny_tokenizer()
    with torch.no_grad():
        llama.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids("Ł")] = torch.nan  # the second byte of ß
    assert tokenizer.tokenize("ß")[-1] == "Ł"
    return save_checkpoint("model", llama, tokenizer, step=5, method="focus")


def fails_with(sentence: str, arguments: list) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        main([str(argument) for argument in arguments])


def test_the_others_are_kept_and_the_next_command_does_only_the_rest(model, data, tmp_path, capsys):
    output, cb = tmp_path / "results", data / "sl/superglue_human/CB.jsonl"
    kept = cb.read_bytes()
    cb.unlink()
    tasks = ["sl_boolq_mc", "sl_rte_mc", "squad_it", "sl_cb_mc", "sl_copa_mc"]

    def command(tasks, output=output):
        asked = ["--tasks", *tasks, "--data", data, "--metadata", '{"shots": 0}', "--output", output, "--batch-size", "2"]
        return [str(a) for a in ["--model", model, *asked]]

    missing = f"task sl_cb_mc: the file sl/superglue_human/CB.jsonl.gz (or .jsonl) is not in the folder of evaluation data {data}"
    broken = "task sl_rte_mc: the model's logits are not finite; check the checkpoint with `python -m conversion.verify`"
    room = "task squad_it: the task asks for up to 512 new tokens, but the model has 512 positions; use a model or a --context-length with more"
    rest = "; finished results are kept, and the same command does the rest"
    fails_with(f"3 tasks could not be evaluated: {missing}; model, {broken}; {room}{rest}", command(tasks))
    printed = capsys.readouterr()
    rows, left_out, *_ = printed.err.splitlines()
    assert rows == f"reading the rows of {', '.join(tasks)}"
    assert left_out.startswith(f"task sl_cb_mc is skipped: the file sl/superglue_human/CB.jsonl.gz (or .jsonl) is not in {data}"[:60])
    assert re.search(r"^model, sl_copa_mc: task 4 of 4, 12 requests\nmodel, 4 tasks: [\d.]+ s$", printed.err, re.MULTILINE)
    assert " sl_boolq_mc " in printed.out and "sl_rte_mc" not in printed.out
    first = load_result(output / "model" / "result.json")
    assert list(first["tasks"]) == ["sl_boolq_mc", "sl_copa_mc"]
    assert [f"task {task}: {reason}" for task, reason in first["failures"].items()] == [broken, room]
    assert {path.name for path in (output / "model/samples").iterdir()} == {"sl_boolq_mc.jsonl", "sl_copa_mc.jsonl"}
    (waiting,) = (output / ".answers").rglob("*.jsonl")
    assert waiting.name.startswith("sl_rte_mc."), "what it answered before the letter"

    assert report(["--results", str(output), "--output", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert "Could not be evaluated: sl_rte_mc of model (the model&#39;s logits are not finite;" in page

    cb.write_bytes(kept)
    written = (output / "model/samples/sl_boolq_mc.jsonl").stat().st_mtime_ns
    fails_with(f"2 tasks could not be evaluated: model, {broken}; {room}{rest}", command(tasks))
    assert (output / "model/samples/sl_boolq_mc.jsonl").stat().st_mtime_ns == written
    second = load_result(output / "model" / "result.json")
    assert list(second["tasks"]) == ["sl_boolq_mc", "sl_copa_mc", "sl_cb_mc"]
    assert {name: second["tasks"][name] for name in first["tasks"]} == first["tasks"]
    assert second["key"] != first["key"]
    assert not list(output.glob(".model.partial-*"))

    # Given up, they fail nothing any more.
    good = ["sl_boolq_mc", "sl_copa_mc", "sl_cb_mc"]
    capsys.readouterr()
    assert main(command(good)) == 0
    assert "model: evaluated before" in capsys.readouterr().err
    assert main(command(good, tmp_path / "whole")) == 0
    whole = load_result(tmp_path / "whole/model" / "result.json")
    assert (whole["key"], whole["tasks"]) == (second["key"], second["tasks"])
    for task in good:
        items = [(folder / "model/items" / f"{task}.jsonl").read_bytes() for folder in (output, tmp_path / "whole")]
        assert items[0] == items[1]
        found, expected = (read_lines(folder / f"model/samples/{task}.jsonl") for folder in (output, tmp_path / "whole"))
        # Asked beside other tasks, in other batches: products round otherwise.
        for sample, other in zip(found, expected, strict=True):
            values = [[answer for ((answer, _),) in one.pop("resps")] for one in (sample, other)]
            assert values[0] == pytest.approx(values[1], rel=2e-6)
            assert sample.pop("filtered_resps") and other.pop("filtered_resps")
            assert sample == other


def test_a_folder_gathers_what_is_asked_of_its_model(model, data, tmp_path):
    from common.artifacts import check_files, read_manifest

    text = tmp_path / "sl.txt"
    text.write_text("Zjutraj je nad dolino ležala megla.\n", encoding="utf-8")
    output = tmp_path / "results"
    end = ["--model", str(model), "--data", str(data), "--metadata", '{"shots": 0}', "--output", str(output)]
    assert main(["--tasks", "sl_copa_mc", *end]) == 0
    assert main(["--text", f"sl={text}", *end]) == 0
    assert main(["--tasks", "sl_boolq_mc", "--text", f"sl={text}", *end]) == 0
    result = load_result(output / "model" / "result.json")
    assert (list(result["texts"]), list(result["tasks"])) == (["sl"], ["sl_copa_mc", "sl_boolq_mc"])
    assert result["settings"]["start_token_used"]["token"] == "</s>"
    manifest = read_manifest(output / "model")
    check_files(output / "model", manifest)
    assert manifest.arguments["tasks"] == ["sl_copa_mc", "sl_boolq_mc"]
    text.write_text("Drugo besedilo.\n", encoding="utf-8")
    held = f"{output}/model has the result of another model, text, task or setting;"
    with pytest.raises(ValueError, match=f"^{re.escape(held)}"):
        main(["--text", f"sl={text}", *end])


def test_nothing_is_written_if_no_task_can_be_asked(model, data, tmp_path):
    """A wrong --data is told at once, before any model is loaded."""
    for path in data.rglob("*.jsonl"):
        path.unlink()
    end = ["--model", model, "--data", data, "--output", tmp_path / "results"]
    gone = f"(or .jsonl) is not in the folder of evaluation data {data}"
    one = f"the file sl/superglue_human/COPA.jsonl.gz {gone}"
    fails_with(one, ["--tasks", "sl_copa_gen", "sl_copa_mc", *end])
    two = f"task sl_copa_gen: {one}; task sl_rte_gen: the file sl/superglue_human/RTE.jsonl.gz {gone}"
    fails_with(two, ["--tasks", "sl_copa_gen", "sl_rte_gen", *end])
    fails_with(
        f"the folder of evaluation data {tmp_path}/none does not exist", ["--tasks", "sl_generative", *end, "--data", tmp_path / "none"]
    )
    assert not (tmp_path / "results").exists()
