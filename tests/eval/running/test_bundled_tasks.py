"""lm-eval's own suites from folders that were fetched: no network, our intervals and paired tests, and what is missing is named."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import lm_eval.tasks
import pytest
from lm_eval.api.model import LM

from conversion.checkpoints.hf_model import be_quiet_and_offline
from eval.harness import main
from eval.report import main as report
from eval.running.results import read_lines
from eval.running.task_runs import find_tasks, run_task
from tests.eval.suite_rows import write_suites
from tests.eval.tiny_models import tiny_llama, tiny_tokenizer
from tests.refusals import refused

LM_EVAL = Path(lm_eval.tasks.__file__).parent  # an index of one of its folders, where it does not matter, saves ten seconds


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets` makes of the files goes to the test's own folder."""
    import datasets

    be_quiet_and_offline()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


ASKED = [
    "belebele_slv_Latn", "belebele_ita_Latn", "belebele_eng_Latn", "sib200_slv_Latn", "sib200_ita_Latn", "global_mmlu_it", "include_base_44_italian",
    "multiblimp_slv", "multiblimp_ita", "global_piqa_parallel_cloze_slv_latn", "global_piqa_nonparallel_cloze_slv_latn", "arc_it", "hellaswag_hr",
    "hellaswag_sr", "hellaswag", "evalita-mp_te", "slovenian_llm_eval",
]  # fmt: skip


@pytest.mark.slow
def test_suites_of_the_field_from_a_prefetched_folder(save_checkpoint, tmp_path: Path) -> None:
    cache = write_suites(tmp_path / "scion_cache")
    models = [
        save_checkpoint(name, tiny_llama(num_positions=512, seed=seed), tiny_tokenizer()) for seed, name in enumerate(("source", "adapted"))
    ]
    words = ["--model", *map(str, models), "--tasks", *ASKED, "--hub", str(cache)]
    assert main([*words, "--output", str(tmp_path / "results")]) == 0
    result = json.loads((tmp_path / "results" / "source" / "result.json").read_text())
    assert not result["failures"] and len(result["tasks"]) == 3 + 2 + 6 + 6 + 2 + 2 + 1 + 2 + 1 + 6 + 9
    for name, task in result["tasks"].items():
        samples = read_lines(tmp_path / f"results/source/samples/{name}.jsonl")
        metric = "exact_match" if name.endswith(("nq_open", "triviaqa")) else "acc"
        score = next(entry for key, entry in task["metrics"].items() if key.startswith(metric))
        assert score["value"] == pytest.approx(sum(sample[metric] for sample in samples) / len(samples)), name
        assert score["low"] <= score["value"] <= score["high"] and score["low"] < score["high"], name
    belebele = result["tasks"]["belebele_slv_Latn"]
    assert (belebele["num_items"], belebele["num_groups"]) == (12, 6), "two questions about a passage are one"
    assert [sample["target"] for sample in read_lines(tmp_path / "results/source/samples/belebele_slv_Latn.jsonl")[:5]] == [0, 1, 2, 3, 0]
    assert report(["--results", str(tmp_path / "results"), "--baseline", "source", "--pairs", "--output", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    for suite in (
        "Belebele",
        "SIB-200",
        "Global-MMLU Lite",
        "INCLUDE",
        "MultiBLiMP",
        "Evalita-LLM, likeliest answer",
        "Slovenian-LLM-Eval",
    ):
        assert suite in page
    assert "textual entailment, prompt-1" in page and "Slovene (Latn)" in page
    assert "By language" in page and "By language" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    with open(tmp_path / "report" / "languages.csv", encoding="utf-8", newline="") as stream:
        rows = {(row["suite"], row["language"]): row for row in csv.DictReader(stream) if row["model"] == "source"}

    def of(task: str) -> dict:
        return {name: 100 * result["tasks"][task]["metrics"]["acc"][name] for name in ("value", "low", "high")}

    languages = [of(f"belebele_{code}") for code in ("slv_Latn", "ita_Latn", "eng_Latn")]
    whole = rows["Belebele", "all languages"]
    for column, name in (("mean", "value"), ("low", "low"), ("high", "high")):
        # The same passages in all languages: what one language's items lack, the others' lack too.
        assert float(whole[column]) == pytest.approx(sum(language[name] for language in languages) / 3)
        assert float(rows["Belebele", "Slovene (Latn)"][column]) == pytest.approx(languages[0][name])
    domains = [of(name) for name in result["tasks"] if name.startswith("include_")]
    italian = rows["INCLUDE", "Italian"]
    mean = sum(domain["value"] for domain in domains) / 6
    assert float(italian["mean"]) == pytest.approx(mean) and italian["tasks"] == "6"
    assert mean - float(italian["low"]) == pytest.approx(sum((d["value"] - d["low"]) ** 2 for d in domains) ** 0.5 / 6), (
        "items of their own"
    )
    assert ("INCLUDE", "all languages") not in rows
    prompts = [of(f"evalita-mp_te_prompt-{number}") for number in range(1, 7)]
    asked_six_times = rows["Evalita-LLM, likeliest answer", "Italian"]
    assert float(asked_six_times["low"]) == pytest.approx(sum(prompt["low"] for prompt in prompts) / 6), "the same items"
    assert rows["Slovenian-LLM-Eval", "Slovene"]["tasks"] == "9"


def test_tasks_of_our_own_ask_what_their_publishers_describe(tmp_path: Path) -> None:
    found = find_tasks(["sib200_slv_Latn", "slovenian_llm_eval"], hub=write_suites(tmp_path / "cache"))
    asked = {name: [instance.args for instance in task.task.instances] for name, task in found.items()}
    assert asked["sib200_slv_Latn"][0] == ("Text: Reka 0 teče skozi mesto.\nTopic:", " science/technology")
    name = "slovenian_llm_eval"
    assert asked[f"{name}_hellaswag"][1] == ("Dopolni naslednje besedilo.\nKaj je 0?", " cesta")
    assert asked[f"{name}_boolq"][0] == ("Reka 0 teče.\nVprašanje: ali teče?\nOdgovor:", " Ne")
    assert asked[f"{name}_piqa"][0] == ("Vprašanje: Kaj je 0?\nOdgovor:", " reka")
    assert asked[f"{name}_nq_open"][0][0] == "Odgovori na ta vprašanja:\n\nVprašanje: kdo 0\nOdgovor:"
    # Of the blank each name makes a context, after which the same words are scored.
    before, after = "Ana je dala Petri 0 knjig, ker jih ", " ni potrebovala več."
    assert asked[f"{name}_winogrande"][:2] == [(f"{before}Ana", after), (f"{before}Petra", after)]
    likes = {"Ana": -1.0, "Petra": -2.0}

    class First(LM):
        def loglikelihood(self, requests, **_):
            return [(likes[request.args[0].split()[-1]], False) for request in requests]

        loglikelihood_rolling = generate_until = None

    _, samples = run_task(First(), found[f"{name}_winogrande"])
    assert [sample["acc"] for sample in samples] == [1.0, 0.0] * 4, "1 is the first name"


def test_a_folder_of_tasks_reads_the_same_cache(tmp_path: Path) -> None:
    cache = write_suites(tmp_path / "cache")
    folder = tmp_path / "tasks"
    folder.mkdir()
    task = "task: mine\ndataset_path: NAME\ndataset_name: arc_easy\ntest_split: test\noutput_type: multiple_choice\n"
    task += 'doc_to_text: "{{query}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: "{{gold}}"\n'
    (folder / "mine.yaml").write_text(task.replace("NAME", "cjvt/slovenian-llm-eval"))
    assert len(find_tasks(["mine"], task_dirs=[folder], hub=cache)["mine"].task.instances) == 16
    (folder / "mine.yaml").write_text(task.replace("NAME", "someone/elsewhere"))
    with pytest.raises(ValueError, match=r"^the task mine reads the data set someone/elsewhere, which is not below"):
        find_tasks(["mine"], task_dirs=[folder], hub=cache)


def test_a_data_set_that_was_not_fetched_is_named_with_its_command(tmp_path: Path) -> None:
    cache = write_suites(tmp_path / "scion_cache")
    folder = [LM_EVAL / "xcopa"]
    with refused(
        f"the task xcopa_it reads the data set cambridgeltl/xcopa, which is not below {cache}; fetch it with"
        " `python -m slurm.prefetch --cluster NAME --hub dataset:cambridgeltl/xcopa` and give the cache as --hub"
    ):
        find_tasks(["xcopa_it"], task_dirs=folder, hub=cache)
    with pytest.raises(ValueError, match=r"^the folder of data sets .*/none does not exist; give the cache"):
        find_tasks(["xcopa_it"], task_dirs=folder, hub=tmp_path / "none")


def test_where_the_files_lie_changes_no_identity(tmp_path: Path) -> None:
    folder = [LM_EVAL / "belebele"]
    one, other = write_suites(tmp_path / "one"), write_suites(tmp_path / "other")
    found = [
        find_tasks(["belebele_slv_Latn"], task_dirs=folder, hub=cache)["belebele_slv_Latn"]
        for cache in (one, other / "huggingface" / "hub")
    ]
    assert found[0].digest == found[1].digest
    fewer = find_tasks(["belebele_slv_Latn"], task_dirs=folder, hub=one, limit=3)["belebele_slv_Latn"]
    assert fewer.digest != found[0].digest and len({instance.doc_id for instance in fewer.task.instances}) == 3
