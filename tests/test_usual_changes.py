"""The usual changes of CONTRIBUTING.md, made in a copy of the checkout and run there; and every path that it names exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.cli import STAGES
from tests.conversion.tiny_families import save_tiny_model
from tests.eval.tiny_models import tiny_tokenizer
from tests.processes import ROOT

FAMILY = '''"""Toy: Llama under another name."""

from __future__ import annotations

from dataclasses import replace

from conversion.families.llama import LLAMA

TOY = replace(LLAMA, model_type="toy")
'''
METHOD = '''"""The last piece of a token stands for it."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from conversion.embeddings.methods.method import TransferInputs, plan_rows
from conversion.embeddings.methods.row_plan import RowPlan


def last_piece_method(inputs: TransferInputs) -> RowPlan:
    """Copy the row of the last source piece of each new token."""
    ids = inputs.new_ids
    pieces = [inputs.source.pieces(inputs.target.token_bytes[i] or b"x") for i in ids]
    places = np.array([found[-1] for found in pieces], dtype=np.int64)
    weights = sparse.csr_matrix((np.ones(len(ids)), (np.arange(len(ids)), places)), shape=(len(ids), len(inputs.source)))
    return plan_rows(inputs, ids, weights, fallback="random")
'''
FILTER = '''

@dataclass(frozen=True)
class FewDifferentWords(Filter):
    """Drops texts that say few different words."""

    minimum_share: float = 0.5

    def reason(self, text: Text) -> str | None:
        """See `Filter`."""
        share = len(set(text.words)) / max(1, len(text.words))
        return f"{share:.2f} of the words are different" if share < self.minimum_share else None
'''
METRIC = '''"""Toy metric."""


def long_answers(doc, results):
    """Share of answers of more than three characters."""
    return {"long": float(len(results[0]) > 3)}
'''
TASK = """task: toy
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 8, do_sample: false}
process_results: !function eval.protocols.toy.long_answers
metric_list:
  - {metric: long, aggregation: mean, higher_is_better: true}
metadata: {version: 1.0}
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All packages, for tests to change."""
    folder = tmp_path_factory.mktemp("checkout")
    for package in ("common", *STAGES):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run(folder: Path, module: str, *words: str | Path, code: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr[-3000:]
    return done.stdout


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_every_path_and_subpackage_of_the_map_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    subpackages, _, changes = text.partition("## Subpackages")[2].partition("## The usual changes")
    shown, stage = set(), ""
    for named_stage, row in re.findall(r"^\| (?:`(\w+)`)? ?\| (.*?) \|", subpackages, re.MULTILINE):
        stage = named_stage or stage
        shown.add(stage)
        for subpackage in re.findall(r"`([\w/]+)`", row):
            assert (ROOT / stage / subpackage).is_dir() or (ROOT / stage / "embeddings" / subpackage).is_dir(), (stage, subpackage)
    assert shown == {"common", *STAGES}
    named = re.findall(r"`([\w.]+/[\w./-]*)`", changes)
    assert len(named) > 20 and [name for name in named if not (ROOT / name).exists()] == []


def test_every_subpackage_is_on_the_map() -> None:
    map_ = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Subpackages")[2].partition("## The usual changes")[0]
    subpackages = {path.parent.name for stage in STAGES if stage != "nemo_patches" for path in (ROOT / stage).glob("*/__init__.py")}
    assert [subpackage for subpackage in sorted(subpackages) if f"`{subpackage}" not in map_ and f"/{subpackage}`" not in map_] == []


def test_a_family(copy: Path, tmp_path: Path) -> None:
    (copy / "conversion/families/toy.py").write_text(FAMILY)
    families = copy / "conversion/families/__init__.py"
    edit(
        families,
        "from conversion.families.smollm3 import SMOLLM3\n",
        "from conversion.families.smollm3 import SMOLLM3\nfrom conversion.families.toy import TOY\n",
    )
    edit(families, "_ALL = (", "_ALL = (TOY, ")
    hf = save_tiny_model("llama2", tmp_path / "hf")
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps({**config, "model_type": "toy"}))
    run(copy, "conversion.hf_to_nemo", "--input", hf, "--output", tmp_path / "nemo")
    run(copy, "conversion.nemo_to_hf", "--input", tmp_path / "nemo", "--output", tmp_path / "back")
    from safetensors.numpy import load_file

    before, after = (load_file(folder / "model.safetensors") for folder in (hf, tmp_path / "back"))
    assert before.keys() == after.keys() and all((before[name] == after[name]).all() for name in before)
    assert json.loads((tmp_path / "back/config.json").read_text())["model_type"] == "toy"


@pytest.mark.slow
def test_a_method(copy: Path, tmp_path: Path) -> None:
    (copy / "conversion/embeddings/methods/last.py").write_text(METHOD)
    methods = copy / "conversion/embeddings/__init__.py"
    edit(methods, '    "merge": Method(', '    "last-piece": Method("last.last_piece_method", "an example"),\n    "merge": Method(')
    source, target = tiny_tokenizer(vocab_size=300), tiny_tokenizer(vocab_size=340)
    source.save_pretrained(tmp_path / "source")
    target.save_pretrained(tmp_path / "target")
    words = ("--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--ffn-size", 32, "--max-positions", 32, "--seed", 1)
    run(copy, "conversion.new_model", *map(str, words), "--tokenizer", tmp_path / "source", "--output", tmp_path / "model")
    options = ("--source", tmp_path / "model", "--tokenizer", tmp_path / "target", "--method", "last-piece")
    run(copy, "conversion.transfer", *options, "--output", tmp_path / "out")
    from safetensors.numpy import load_file

    name = "model.decoder.embed_tokens.weight"
    before, after = (load_file(tmp_path / folder / "model.safetensors")[name] for folder in ("model", "out"))
    new = [token for token in target.get_vocab() if token not in source.get_vocab()]
    assert len(new) > 10
    for token in new:
        last = source(token.replace("Ġ", " "), add_special_tokens=False)["input_ids"][-1] if token.isascii() else None
        if last is not None:
            assert (after[target.get_vocab()[token]] == before[last]).all(), token
    assert "last-piece" in run(copy, "conversion.transfer", "--help")


@pytest.mark.slow
def test_a_task_with_a_metric(copy: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"Koliko je {i} in {i}?", "answer": str(2 * i)}) + "\n" for i in range(3)))
    (copy / "eval/protocols/toy.py").write_text(METRIC)
    (copy / "eval/tasks/toy").mkdir()
    (copy / "eval/tasks/toy/toy.yaml").write_text(TASK.replace("ROWS", str(rows)))
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    from tests.eval.tiny_models import tiny_opt

    tiny_opt().save_pretrained(tmp_path / "model")
    run(copy, "eval.harness", "--model", f"toy={tmp_path / 'model'}", "--tasks", "toy", "--output", tmp_path / "results")
    task = json.loads((tmp_path / "results/toy/result.json").read_text())["tasks"]["toy"]
    assert 0 <= task["metrics"]["long"]["value"] <= 1 and task["num_items"] == 3


def test_a_cluster(copy: Path, tmp_path: Path) -> None:
    text = (copy / "slurm/clusters/vega.yaml").read_text().replace("name: vega\n", "name: mine\n").replace("name: gpu #", "name: fastest #")
    (copy / "slurm/clusters/mine.yaml").write_text(text)
    said = run(
        copy, "slurm.doctor", "--cluster", "mine", "--account", "abc", "--nodes", "2", "--output", tmp_path / "doctor", code=1
    )  # no Slurm here
    assert "#SBATCH --partition=fastest" in said and "#SBATCH --account=abc" in said


def test_a_recipe(copy: Path) -> None:
    recipe = (copy / "recipes/conf/recipe/gams/focus.yaml").read_text()
    (copy / "recipes/conf/recipe/gams/mine.yaml").write_text(recipe)
    ours, theirs = (run(copy, "recipes.plan", "--recipe", f"gams/{name}", "--gpu", "a100-40gb") for name in ("mine", "focus"))
    assert ours.replace("gams/mine", "gams/focus") == theirs
    assert "gams/mine" in run(copy, "recipes.plan", "--list")


def test_thresholds_of_a_language(copy: Path, tmp_path: Path) -> None:
    words = ("--input", copy / "recipes/demo_text/sl.train.txt", "--language", "sl", "--output", tmp_path / "sl.yaml")
    run(copy, "data_prep.fit_filters", *words)
    corpus = ("--input", f"text={copy / 'recipes/demo_text/sl.heldout.txt'}", "--language", "sl")
    run(copy, "data_prep.clean", *corpus, "--filters", tmp_path / "sl.yaml", "--output", tmp_path / "clean")
    assert json.loads((tmp_path / "clean/scion.json").read_text())["stage"] == "data_prep.clean"


def test_a_filter(copy: Path, tmp_path: Path) -> None:
    with open(copy / "data_prep/cleaning/document_rules.py", "a") as file:
        file.write(FILTER)
    (tmp_path / "mine.yaml").write_text("base: none\nrules: {says little: {filter: FewDifferentWords, minimum_share: 0.6}}\n")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("da da da ne", "vse je drugače", "da da ne")))
    run(copy, "data_prep.clean", "--input", f"c={tmp_path / 'in.jsonl'}", "--filters", tmp_path / "mine.yaml", "--output", tmp_path / "out")
    (removed,) = [json.loads(line) for line in (tmp_path / "out/removed/c/00000_in.jsonl").read_text().splitlines()]
    assert (removed["line"], removed["reason"], removed["detail"]) == (1, "says little", "0.50 of the words are different")
