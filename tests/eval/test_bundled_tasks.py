"""lm-eval's own suites from folders that were fetched: no network, our intervals and paired tests, and what is missing is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conversion.hf_model import be_quiet_and_offline
from eval.harness import main
from eval.report import main as report
from eval.task_runs import find_tasks
from tests.eval.tiny_models import tiny_llama, tiny_opt, tiny_tokenizer

REVISION = "a" * 40


def write_hub(cache: Path) -> Path:
    """The cache of slurm.prefetch with Belebele and HellaSwag as their repositories are laid out, with rows of our own."""
    belebele = [
        {
            "link": "x", "question_number": n, "flores_passage": f"Reka {n} je dolga in teče skozi mesto.", "question": f"Kaj teče {n}?",
            "mc_answer1": "reka", "mc_answer2": "cesta", "mc_answer3": "gora", "mc_answer4": "hiša", "correct_answer_num": str(n % 4 + 1),
            "dialect": "slv_Latn", "ds": "x",
        }
        for n in range(12)
    ]  # fmt: skip
    hellaswag = [
        {
            "ind": n, "activity_label": "Cooking", "ctx_a": f"He takes {n} eggs.", "ctx_b": "he", "ctx": f"He takes {n} eggs. he",
            "endings": ["breaks them.", "flies away.", "sings.", "sleeps."], "source_id": "s", "split": "val", "split_type": "x", "label": str(n % 4),
        }
        for n in range(12)
    ]  # fmt: skip
    _repository(
        cache,
        "facebook/belebele",
        {"data/slv_Latn.jsonl": belebele},
        "- config_name: slv_Latn\n  data_files:\n  - split: test\n    path: data/slv_Latn.jsonl\n",
    )
    splits = {f"data/{split}.jsonl": hellaswag for split in ("train", "validation", "test")}
    files = "".join(f"  - split: {split}\n    path: data/{split}.jsonl\n" for split in ("train", "validation", "test"))
    _repository(cache, "Rowan/hellaswag", splits, f"- config_name: default\n  data_files:\n{files}")
    return cache


def _repository(cache: Path, name: str, files: dict[str, list[dict]], configs: str) -> None:
    repository = cache / "huggingface" / "hub" / f"datasets--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / REVISION
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    (snapshot / "data").mkdir(parents=True)
    (snapshot / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for file, rows in files.items():
        (snapshot / file).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets` makes of the files goes to the test's own folder."""
    import datasets

    be_quiet_and_offline()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def test_suites_of_the_field_from_a_prefetched_folder(save_checkpoint, tmp_path: Path) -> None:
    cache = write_hub(tmp_path / "scion_cache")
    tokenizer = tiny_tokenizer()
    models = [save_checkpoint("source", tiny_opt(), tokenizer), save_checkpoint("adapted", tiny_llama(), tokenizer)]
    words = ["--model", *map(str, models), "--tasks", "belebele_slv_Latn", "hellaswag", "--hub", str(cache), "--cut-prompts"]
    assert main([*words, "--limit", "10", "--output", str(tmp_path / "results")]) == 0
    result = json.loads((tmp_path / "results" / "source" / "result.json").read_text())
    assert {name: task["num_items"] for name, task in result["tasks"].items()} == {"belebele_slv_Latn": 10, "hellaswag": 10}
    samples = [json.loads(line) for line in (tmp_path / "results/source/samples/belebele_slv_Latn.jsonl").read_text().splitlines()]
    right = sum(sample["acc"] for sample in samples)
    accuracy = result["tasks"]["belebele_slv_Latn"]["metrics"]["acc"]
    assert accuracy["value"] == pytest.approx(right / 10) and accuracy["low"] < accuracy["value"] < accuracy["high"]
    assert [sample["target"] for sample in samples[:5]] == [0, 1, 2, 3, 0]
    assert report(["--results", str(tmp_path / "results"), "--output", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "Belebele" in page and "slv_Latn" in page and "hellaswag" in page


def test_a_data_set_that_was_not_fetched_is_named_with_its_command(tmp_path: Path) -> None:
    cache = write_hub(tmp_path / "scion_cache")
    with pytest.raises(ValueError) as error:
        find_tasks(["multiblimp_slv"], hub=cache)
    assert str(error.value) == (
        f"the task multiblimp_slv reads the data set jumelet/multiblimp, which is not below {cache}; fetch it with"
        " `python -m slurm.prefetch --cluster NAME --hub dataset:jumelet/multiblimp` and give the cache as --hub"
    )
    with pytest.raises(ValueError, match=r"^the folder of data sets .*/none does not exist; give the cache"):
        find_tasks(["multiblimp_slv"], hub=tmp_path / "none")


@pytest.mark.slow
def test_where_the_files_lie_changes_no_identity(tmp_path: Path) -> None:
    one, other = write_hub(tmp_path / "one"), write_hub(tmp_path / "other")
    found = [find_tasks(["belebele_slv_Latn"], hub=cache)["belebele_slv_Latn"] for cache in (one, other / "huggingface" / "hub")]
    assert found[0].digest == found[1].digest
    fewer = find_tasks(["belebele_slv_Latn"], hub=one, limit=3)["belebele_slv_Latn"]
    assert fewer.digest != found[0].digest and len({instance.doc_id for instance in fewer.task.instances}) == 3
