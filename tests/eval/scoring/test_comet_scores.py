"""What COMET is given and where its scores go; the library itself is in test_comet.py, which needs an environment of its own."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest

from common.artifacts import check_files, digest_file, read_manifest
from eval.comet import find_comet_files, main
from eval.report import main as report
from eval.running.results import load_result, write_lines
from eval.running.task_runs import find_tasks, run_task
from eval.scoring.learned_scores import RememberedScores, Triple, read_items, scorable_tasks, score_results, scored_before
from tests.eval.made_results import make_result
from tests.eval.made_translations import SENTENCES, make_translations
from tests.eval.paper_rows import write_rows
from tests.eval.protocols.test_paper_tasks import Scripted

MODEL = {"name": "tiny", "digest": "xxh3:00112233445566778899", "package": "unbabel-comet 2.2.7"}
GREEDY = {"flores_en_sl": [["Stari mlin."], [SENTENCES[1][1]], [""], ["Most"]]}
SAMPLED = {"mt_en_sl": [["Mlin", "Stari mlin", "a"], ["b", "", "češnje"], ["c", "d", "megla"], ["e", "f", "most"]]}


class Lengths:
    """Scores a translation by the letters it has of its reference's; remembers what it was asked."""

    def __init__(self, stop_after: float = math.inf):
        self.asked: list[Triple] = []
        self.stop_after = stop_after

    def __call__(self, triples):
        if len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        self.asked += triples
        return [quality(triple) for triple in triples]


def quality(triple: Triple) -> float:
    return min(len(triple.output), len(triple.reference)) / len(triple.reference)


def fails(sentence: str, function, *arguments, **more):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        function(*arguments, **more)


def test_scores_stand_beside_the_others_and_reach_the_report(tmp_path):
    results, scored = tmp_path / "results", tmp_path / "scored"
    for name, step, worse in (("focus-0", 0, True), ("focus-10", 10, False), ("source", None, True)):
        texts = GREEDY["flores_en_sl"]
        make_translations(results / name, {"flores_en_sl": [[row[0][:3]] for row in texts] if worse else texts, **SAMPLED}, step=step)
    scores = RememberedScores(Lengths())
    for folder in sorted(results.iterdir()):
        score_results(folder, scored / folder.name, scores=scores, model=MODEL)
    result = load_result(scored / "focus-10/result.json")
    task = result["tasks"]["flores_en_sl"]
    by_hand = [quality(Triple(source, text, ref)) for (source, ref), (text,) in zip(SENTENCES, GREEDY["flores_en_sl"])]
    assert task["metrics"]["comet"]["value"] == pytest.approx(100 * sum(by_hand) / 4)
    assert task["metrics"]["comet"]["low"] <= task["metrics"]["comet"]["value"] <= task["metrics"]["comet"]["high"]
    copies = [quality(Triple(source, source, ref)) for source, ref in SENTENCES]
    assert task["metrics"]["comet_copy"]["value"] == pytest.approx(100 * sum(copies) / 4)
    assert "comet_sd" not in task["metrics"]
    assert task["comet"] == {**MODEL, "samples": digest_file(results / "focus-10/samples/flores_en_sl.jsonl")}
    (items,) = map(json.loads, (scored / "focus-10/items/flores_en_sl.jsonl").read_text().splitlines())
    assert items["scores"]["comet"] == pytest.approx([100 * score for score in by_hand])
    assert (
        items["scores"]["chrf_sentence"]
        == json.loads((results / "focus-10/items/flores_en_sl.jsonl").read_text())["scores"]["chrf_sentence"]
    )

    sampled = result["tasks"]["mt_en_sl"]["metrics"]
    runs = [[100 * quality(Triple(s, text, r)) for text in texts] for (s, r), texts in zip(SENTENCES, SAMPLED["mt_en_sl"])]
    assert sampled["comet"]["value"] == pytest.approx(sum(map(sum, runs)) / 12)
    means = [sum(column) / 4 for column in zip(*runs)]
    assert sampled["comet_sd"]["value"] == pytest.approx((sum((m - sum(means) / 3) ** 2 for m in means) / 2) ** 0.5)
    before = load_result(results / "focus-10/result.json")
    assert {key: value for key, value in result.items() if key != "tasks"} == {k: v for k, v in before.items() if k != "tasks"}
    manifest = read_manifest(scored / "focus-10")
    assert (manifest.stage, manifest.inputs["comet"]) == ("eval.comet", MODEL["digest"])
    check_files(scored / "focus-10", manifest)
    assert not (scored / ".comet").exists()

    assert report(["--results", str(scored), "--output", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert f"COMET, times 100: tiny ({MODEL['digest']}) with unbabel-comet 2.2.7, on the first reference." in page
    assert "flores_en_sl, COMET: focus-10" in page, "a paired test"
    assert f"copy of the source: {100 * sum(copies) / 4:.1f}" in page
    assert "COMET" in (tmp_path / "report/tables.tex").read_text(encoding="utf-8")


def test_no_triple_is_scored_twice_and_a_kill_loses_one_piece(tmp_path):
    for name in ("a", "b"):
        make_translations(tmp_path / "results" / name, {**GREEDY, **SAMPLED})
    distinct = {triple for name in GREEDY | SAMPLED for item in read_items(tmp_path / "results/a", name) for triple in item.triples()}
    killed = Lengths(stop_after=6)
    with pytest.raises(KeyboardInterrupt):
        score_results(tmp_path / "results/a", tmp_path / "out/a", scores=RememberedScores(killed, triples_per_piece=3), model=MODEL)
    assert len(killed.asked) == 6
    assert not (tmp_path / "out/a").exists()
    again = Lengths()
    scores = RememberedScores(again, triples_per_piece=3)
    found = score_results(tmp_path / "results/a", tmp_path / "out/a", scores=scores, model=MODEL)
    assert sorted(killed.asked + again.asked) == sorted(distinct)
    score_results(tmp_path / "results/b", tmp_path / "out/b", scores=scores, model=MODEL)
    assert len(killed.asked + again.asked) == len(distinct), "the same translations of another model"
    whole = score_results(tmp_path / "results/a", tmp_path / "whole", scores=RememberedScores(Lengths()), model=MODEL)
    assert whole == found


def test_what_was_scored_before(tmp_path):
    folder, output = make_translations(tmp_path / "a", GREEDY), tmp_path / "out"

    def before(**model):
        return scored_before(output, folder, model=MODEL | model, tasks=["flores_en_sl"])

    assert before() is None
    found = score_results(folder, output, scores=RememberedScores(Lengths()), model=MODEL)
    assert before() == found
    other = f"{output} exists and holds other results; remove it or choose another --output"
    fails(other, before, digest="xxh3:1")
    with open(folder / "samples/flores_en_sl.jsonl", "a") as stream:
        stream.write("{}\n")
    fails(other, before)


def test_samples_of_the_harness_are_read(tmp_path):
    """Samples as tasks make them: one answer, and five sampled runs."""
    data = {"data": str(write_rows(tmp_path / "rows"))}
    for task, count in (("flores_en_it", 1), ("mt_en_de", 5)):
        lm = Scripted(lambda document, run: f" {document['references'][0]} {run}\n")
        _, samples = run_task(lm, find_tasks([task], metadata=data)[task])
        write_lines(tmp_path / "samples" / f"{task}.jsonl", samples)
        items = read_items(tmp_path, task)
        assert [item.source for item in items] == [f"en {n}: Dober dan, hiša." for n in range(6)]
        assert items[2].outputs == tuple(f"{items[2].reference} {run}" for run in range(count))
        assert (items[2].identity, items[2].group) == ("devtest:2", "devtest:2")


def test_what_cannot_be_scored(tmp_path):
    folder = make_translations(tmp_path / "a", GREEDY | SAMPLED)
    result = load_result(folder / "result.json")
    assert scorable_tasks(result, folder) == ["flores_en_sl", "mt_en_sl"]
    assert scorable_tasks(result, folder, ["mt_en_sl"]) == ["mt_en_sl"]
    fails(f"{folder} has no answers to flores_it_en; it has flores_en_sl, mt_en_sl", scorable_tasks, result, folder, ["flores_it_en"])
    other = make_result(tmp_path, "b", None, None, skill=0.5, items=4)
    tasks = load_result(other / "result.json")
    none = f"sl_boolq_gen is not a translation, so COMET cannot score it; the translations in {other} are none"
    fails(none, scorable_tasks, tasks, other, ["sl_boolq_gen"])
    has = "sl_boolq_gen, sl_rte_gen, completion_sl, completion_en"
    fails(
        f"{other} holds no translations; COMET scores tasks such as flores_en_it and mt_en_de, it has {has}",
        main,
        ["--results", str(other), "--checkpoint", str(tmp_path / "none"), "--output", str(tmp_path / "out")],
    )

    path = folder / "samples/flores_en_sl.jsonl"
    samples = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for lost, sentence in (("source", "no source"), ("references", "no reference")):
        broken = json.loads(json.dumps(samples))
        del broken[2]["doc"][lost]
        write_lines(path, broken)
        needs = "COMET needs source, translation and reference"
        fails(f"item devtest:2 of {path} has {sentence}; {needs}", read_items, folder, "flores_en_sl")
    write_lines(path, [])
    fails(f"{path} is empty; evaluate the model again", read_items, folder, "flores_en_sl")
    write_lines(path, samples)
    broken = RememberedScores(lambda triples: [math.nan] * len(triples))
    with pytest.raises(ValueError, match=r"^COMET gives nan to the source 'The old mill stands by the river\.'; check its checkpoint$"):
        score_results(folder, tmp_path / "out/a", scores=broken, model=MODEL)
    assert not list((tmp_path / "out").glob("[!.]*"))


def test_two_comet_checkpoints_are_not_compared(tmp_path):
    for name, digest in (("a", "xxh3:1"), ("b", "xxh3:2")):
        folder = make_translations(tmp_path / "results" / name, GREEDY)
        score_results(folder, tmp_path / "scored" / name, scores=RememberedScores(Lengths()), model=MODEL | {"digest": digest})
    a, b = (tmp_path / "scored" / name / "result.json" for name in "ab")
    fails(
        f"flores_en_sl of {b} was scored by the COMET checkpoint tiny (xxh3:2), but flores_en_sl of {a} by tiny (xxh3:1);"
        " score all with one, by `python -m eval.comet`",
        report,
        ["--results", str(tmp_path / "scored"), "--output", str(tmp_path / "report")],
    )
    # Scored for one model only, COMET is shown and not compared.
    shutil.rmtree(b.parent)
    shutil.copytree(tmp_path / "results/b", b.parent)
    assert report(["--results", str(tmp_path / "scored"), "--output", str(tmp_path / "report"), "--baseline", "b"]) == 0
    assert "flores_en_sl, COMET: a" not in (tmp_path / "report/report.html").read_text(encoding="utf-8")


def comet_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "comet-22"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints/model.ckpt").write_bytes(b"weights")
    (folder / "hparams.yaml").write_text("class_identifier: regression_metric\npretrained_model: xlm-roberta-large\n")
    return folder


def test_files_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fetch = "`hf download Unbabel/wmt22-comet-da --local-dir comet-22`"
    gone = f"the COMET checkpoint {tmp_path}/none.ckpt does not exist; download it where there is internet access, for example with {fetch}"
    fails(gone, find_comet_files, tmp_path / "none.ckpt", None)
    folder, encoder = comet_folder(tmp_path), tmp_path / "xlmr"
    needs = f"the encoder xlm-roberta-large of {folder}/checkpoints/model.ckpt needs its config and tokenizer"
    how = (
        "download them where there is internet access, for example with `hf download FacebookAI/xlm-roberta-large config.json tokenizer.json"
        " tokenizer_config.json sentencepiece.bpe.model --local-dir xlm-roberta-large`"
    )
    fails(f"{needs}, but no --encoder names them; {how}", find_comet_files, folder, None)
    fails(f"{needs}, but {encoder} has no config.json; {how}", find_comet_files, folder, encoder)
    encoder.mkdir()
    (encoder / "config.json").write_text("{}")
    found = find_comet_files(folder, encoder)
    assert (found.name, found.settings["pretrained_model"]) == ("comet-22", str(encoder))
    assert find_comet_files(folder / "checkpoints/model.ckpt", encoder) == found
    (folder / "checkpoints/model.ckpt").write_bytes(b"other weights")
    assert find_comet_files(folder, encoder).digest != found.digest
    (folder / "hparams.yaml").write_text("hidden_sizes: !!python/tuple [3072, 1024]\nclass_identifier: a\npretrained_model: b\n")
    assert find_comet_files(folder, encoder).settings["hidden_sizes"] == (3072, 1024)
    no_names = f"{folder}/hparams.yaml names no class_identifier and pretrained_model; it does not belong to a COMET checkpoint"
    for text in ("a: b\n", "a: [b\n", ""):
        (folder / "hparams.yaml").write_text(text)
        fails(no_names, find_comet_files, folder, encoder)
    (folder / "hparams.yaml").unlink()
    beside = (
        f"{folder}/hparams.yaml is missing; COMET needs it beside the folder of its checkpoint; download both, for example with {fetch}"
    )
    fails(beside, find_comet_files, folder, encoder)


def test_the_wrong_environment_is_named_before_anything_is_written(tmp_path):
    folder = make_translations(tmp_path / "results/a", GREEDY)
    comet = comet_folder(tmp_path)
    (comet / "config.json").write_text("{}")
    arguments = ["--results", str(folder), "--checkpoint", str(comet), "--encoder", str(comet), "--output", str(tmp_path / "out")]
    with pytest.raises(
        ValueError, match=r"^unbabel-comet is not installed in this environment \(.*\); make one with `make comet-environment`"
    ):
        main(arguments)
    assert not (tmp_path / "out").exists()


def test_two_models_of_one_name(tmp_path):
    first, second = (make_translations(tmp_path / side / "a", GREEDY) for side in ("one", "other"))
    arguments = ["--results", str(first), str(second), "--checkpoint", "none", "--output", str(tmp_path / "out")]
    fails(f"two models are called a ({first} and {second}); score them into two --output folders", main, arguments)
