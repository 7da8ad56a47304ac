"""The paper's test rows, which have no labels here: asked as the labelled ones, and written as SloBench takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval.prepare import main as prepare
from eval.running.task_runs import find_tasks
from eval.slobench import TEST_SETS, asked_documents, main, read_answer, submission_lines
from tests.eval import published_forms as forms
from tests.eval.tiny_models import tiny_llama, tiny_tokenizer

BY_NAME = {one.protocol: one for one in TEST_SETS}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From the archives of CLARIN.SI, and SI-NLI's test from the paper's framework, which has neither labels nor numbers of pairs."""
    source, rows = tmp_path_factory.mktemp("published"), forms.superglue_rows()
    for row in rows["COPA"]["test"]:
        row.pop("label", None)
    rows["MultiRC"]["test"][0]["passage"]["questions"][1]["answers"][1]["text"] = ""  # lost in translation: not shown, and not right
    forms.write_superglue(source, rows)
    pairs = forms.si_nli_rows(test_labels=True)
    without = [{"premise": row["premise"], "hypothesis": row["hypothesis"]} for row in pairs.pop("test")]
    forms.write_si_nli(source, pairs)
    (source / "test_data/tsv").mkdir(parents=True)
    (source / "test_data/tsv/test_without_labels.tsv").write_bytes(forms.tsv(without))
    output = tmp_path_factory.mktemp("prepared") / "eval_data"
    assert prepare(["superglue_sl", "si_nli", "--source", str(source), "--output", str(output), "--sample"]) == 0
    return output


def test_prompts_are_those_of_the_labelled_rows(data: Path) -> None:
    """GaMS, Table 3: k of BoolQ 3, CB 5, COPA 5, MultiRC 2, RTE 3, WSC 4, SI-NLI 5; instruction and question as the tasks have them."""
    assert {name: one.shots for name, one in BY_NAME.items()} == {
        "boolq": 3, "cb": 5, "copa": 5, "multirc": 2, "rte": 3, "wsc": 4, "si_nli": 5,
    }  # fmt: skip
    for name in ("boolq", "multirc", "si_nli"):
        task = find_tasks([f"sl_{name}_gen"], metadata={"data": str(data)})[f"sl_{name}_gen"].task
        labelled = task.instances[0].doc["prompt"]
        asked = asked_documents(BY_NAME[name], data=str(data), wording="2024-10", seed=1234)
        assert asked[0]["prompt"].partition("\n")[0] == labelled.partition("\n")[0] and len(asked[0]["shot_ids"]) == BY_NAME[name].shots
        assert all(":train:" in shot for shot in asked[0]["shot_ids"]) and ":test:" in asked[0]["id"]
    july = asked_documents(BY_NAME["cb"], data=str(data), wording="2024-07", seed=1234)
    assert july[0]["prompt"].startswith("Podano je besedilo, hipoteza")


def test_answers_become_the_files_of_slobench(data: Path) -> None:
    def lines(name: str, *texts: str) -> list[str]:
        asked = asked_documents(BY_NAME[name], data=str(data), wording="2024-10", seed=1)[: len(texts)]
        answers = [read_answer(BY_NAME[name], document, text) for document, text in zip(asked, texts)]
        return submission_lines(BY_NAME[name], asked, answers, seed=1)

    assert lines("cb", " Ne drži, ker", " ne vemo.", " Drži.") == [
        '{"idx": 0, "label": "contradiction"}', '{"idx": 1, "label": "neutral"}', '{"idx": 2, "label": "entailment"}',
    ]  # fmt: skip
    assert lines("boolq", " Da.", "Ne") == ['{"idx": 0, "label": "true"}', '{"idx": 1, "label": "false"}']
    assert lines("wsc", " Da.", "Ne") == ['{"idx": 0, "label": "True"}', '{"idx": 1, "label": "False"}']
    assert lines("copa", " Hipoteza 2", "1") == ['{"idx": 0, "label": 1}', '{"idx": 1, "label": 0}']
    assert lines("rte", " Ne drži.") == ['{"idx": 0, "label": "not_entailment"}']
    assert lines("si_nli", " Nasprotovanje.", "Sosledje", "Nevtralnost") == ["contradiction", "entailment", "neutral"]
    first, second = lines("multirc", " 1, 2", " 1", " 2", "kdo ve")
    assert json.loads(first) == {
        "idx": 0,
        "passage": {
            "questions": [
                {"idx": 0, "answers": [{"idx": 0, "label": 1}, {"idx": 1, "label": 1}]},
                {"idx": 1, "answers": [{"idx": 2, "label": 1}, {"idx": 3, "label": 0}]},
            ]
        },
    }
    questions = json.loads(second)["passage"]["questions"]
    assert [answer["label"] for answer in questions[0]["answers"]] == [0, 1]
    drawn = lines("cb", "kdo ve", "nihče", "?")
    assert drawn == lines("cb", "kdo ve", "nihče", "?") and all(json.loads(line)["label"] in BY_NAME["cb"].labels for line in drawn)


def test_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_llama(num_positions=1024).save_pretrained(tmp_path / "hf")
    tiny_tokenizer().save_pretrained(tmp_path / "hf")
    words = ["--model", str(tmp_path / "hf"), "--data", str(data), "--wording", "2024-07", "--device", "cpu"]
    assert main([*words, "--output", str(tmp_path / "submission")]) == 0
    table = capsys.readouterr().out
    answers = [json.loads(line) for line in (tmp_path / "submission/answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(answers) == 8 * forms.NUM
    for one in TEST_SETS:
        written = (tmp_path / "submission" / one.file).read_text(encoding="utf-8").splitlines()
        assert len(written) == forms.NUM, "a line for each row, of MultiRC for each passage"
        asked = [answer for answer in answers if answer["file"] == one.file]
        (row,) = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if one.file in line)
        invalid = 100 * sum(answer["answer"] is None for answer in asked) / len(asked)
        assert (row[:3], row[4]) == ([one.file, str(len(asked)), str(one.shots)], "0") and row[3].startswith(f"{invalid:.2f} [")
    with pytest.raises(ValueError, match=r"has no slobench/; expected the test rows that `python -m eval.prepare superglue_sl si_nli`"):
        main(["--model", str(tmp_path / "hf"), "--data", str(tmp_path), "--output", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
