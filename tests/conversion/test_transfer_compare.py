"""The comparison of methods: the same figures as transferring, saving, loading and scoring one by one."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from transformers import AutoModelForCausalLM

from conversion.comparing import comparison
from conversion.comparing.comparison import (
    Measurement,
    Planned,
    Race,
    TextScorer,
    TrainingOptions,
    difference_between,
    pack,
    put_rows,
    sample_documents,
    standing_of,
    train,
    training_steps,
)
from conversion.comparing.decision import DecisionRule
from conversion.comparing.page import Comparison
from conversion.embeddings.case import read_case
from conversion.embeddings.checkpoint import Transfer, plan_transfer, write_transfer
from conversion.embeddings.methods import words as word_methods
from conversion.embeddings.options import TransferRequest, VectorOptions
from conversion.measuring.bits_per_byte import DocumentScore, TextScore, choose_start_token, score_documents
from conversion.transfer_compare import main
from data_prep.reading.documents import Documents
from data_prep.reading.named_texts import Text
from data_prep.tokenizers.files import load_tokenizer
from tests.conversion.embedding_fixtures import demo_text, transfer_folders
from tests.conversion.folders import manifest_of
from tests.processes import ROOT

HELDOUT = [line for line in demo_text("sl")[40_000:46_000].splitlines() if line.strip()]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("compare")
    (root / "heldout.txt").write_text("\n".join(HELDOUT) + "\n", encoding="utf-8")
    return transfer_folders(root) | {"heldout": root / "heldout.txt"}


def request(folders: dict[str, Path], source: str = "tied", method: str = "mean", output_layer: str | None = None) -> TransferRequest:
    return TransferRequest(source=folders[source], tokenizer=folders["target"], method=method, output_layer=output_layer)


def transfer_and_model(folders: dict[str, Path], source: str, output_layer: str | None) -> tuple[Transfer, torch.nn.Module]:
    return plan_transfer(request(folders, source, output_layer=output_layer)), AutoModelForCausalLM.from_pretrained(folders[source])


def run(folders: dict[str, Path], output: Path, *options: str, source: str = "tied") -> int:
    arguments = ["--source", folders[source], "--tokenizer", folders["target"], "--heldout", f"sl={folders['heldout']}"]
    return main([str(argument) for argument in (*arguments, "--output", output, *options)])


@pytest.mark.parametrize(
    ("source", "output_layer"), [("tied", None), ("tied", "copied"), ("tied", "random"), ("untied", None), ("untied", "random")]
)
def test_rows_in_the_loaded_model_are_those_of_the_written_one(
    folders: dict[str, Path], tmp_path: Path, source: str, output_layer: str | None
) -> None:
    transfer, model = transfer_and_model(folders, source, output_layer)
    write_transfer(transfer, tmp_path / "out")
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    grafted = put_rows(model, transfer)
    ids = torch.arange(40).view(2, 20)
    assert torch.equal(grafted(ids).logits, written(ids).logits)
    is_tied = grafted.get_output_embeddings().weight is grafted.get_input_embeddings().weight
    assert is_tied == (source == "tied" and output_layer is None)


def test_training_one_method_leaves_the_next_its_model(folders: dict[str, Path]) -> None:
    transfer, model = transfer_and_model(folders, "tied", None)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tokenizer = load_tokenizer(folders["target"])
    options = TrainingOptions(num_steps=3, learning_rate=1e-2, batch_size=2, sequence_length=16)
    rows = pack(tokenizer, HELDOUT, options)
    one = train(deepcopy(put_rows(model, transfer)), rows, options, seed=1)
    other = train(deepcopy(put_rows(model, transfer)), rows, options, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters())), "the seed alone decides"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not torch.equal(one.get_input_embeddings().weight, put_rows(model, transfer).get_input_embeddings().weight)
    assert one.get_input_embeddings().weight is one.get_output_embeddings().weight


@pytest.mark.parametrize("mixed_precision", [False, True])
def test_training_learns(folders: dict[str, Path], mixed_precision: bool) -> None:
    transfer, model = transfer_and_model(folders, "tied", None)
    tokenizer = load_tokenizer(folders["target"])
    options = TrainingOptions(25, 1e-2, batch_size=4, sequence_length=16, mixed_precision=mixed_precision)
    rows = pack(tokenizer, HELDOUT, options)
    grafted = put_rows(model, transfer)
    before = grafted.eval()(rows, labels=rows).loss.item()
    trained = train(grafted, rows, options, seed=0)
    assert trained(rows, labels=rows).loss.item() < before - 0.5
    assert all(parameter.dtype == torch.float32 for parameter in trained.parameters())


def test_a_part_of_the_model_is_trained_first(folders: dict[str, Path]) -> None:
    """What wants no gradient stays, and from the step on at which it wants one it is trained."""
    transfer, model = transfer_and_model(folders, "tied", None)
    options = TrainingOptions(4, 1e-2, batch_size=2, sequence_length=16)
    rows = pack(load_tokenizer(folders["target"]), HELDOUT, options)
    grafted = deepcopy(put_rows(model, transfer))
    body = {name: p for name, p in grafted.named_parameters() if p is not grafted.get_input_embeddings().weight}
    before = {name: parameter.detach().clone() for name, parameter in body.items()}
    for parameter in body.values():
        parameter.requires_grad_(False)
    for step in training_steps(grafted, rows, options, seed=1):
        moved = [name for name, parameter in body.items() if not torch.equal(parameter, before[name])]
        assert bool(moved) == (step > 2)
        if step == 2:
            for parameter in body.values():
                parameter.requires_grad_(True)


def test_packed_rows_are_the_documents_with_eos_between(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(folders["target"])
    options = TrainingOptions(num_steps=1, batch_size=1, sequence_length=8)
    rows = pack(tokenizer, HELDOUT[:3], options)
    ids = [i for text in HELDOUT[:3] for i in (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)]
    assert rows.flatten().tolist() == ids[: len(ids) // 8 * 8]


@pytest.mark.slow
def test_command_measures_all_that_the_material_allows(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run(folders, output, "--seeds", "1", "2", "--steps", "2", "--text", str(folders["text"]), "--sequence-length", "16") == 0
    figures = json.loads((output / "comparison.json").read_text())
    measured = {(m["method"], m["seed"], m["step"]) for m in figures["measurements"]}
    methods = {"random", "random-all", "mean", "merge", "align", "focus"}
    assert {(method, seed, step) for method in methods for seed in (1, 2) for step in (0, 2)} <= measured
    # One figure again by hand: transfer, write, load, score.
    write_transfer(plan_transfer(replace(request(folders), seed=1)), tmp_path / "mean")
    tokenizer = load_tokenizer(tmp_path / "mean")
    score = score_documents(
        AutoModelForCausalLM.from_pretrained(tmp_path / "mean").eval(),
        tokenizer,
        HELDOUT,
        start_token=choose_start_token(tokenizer),
        window_tokens=96,
    )
    (mean,) = (m for m in figures["measurements"] if (m["method"], m["seed"], m["step"]) == ("mean", 1, 0))
    assert mean["texts"]["sl"]["bits_per_byte"] == pytest.approx(score.bits_per_byte, rel=1e-6)
    assert mean["texts"]["sl"]["num_documents"] == len(HELDOUT)
    manifest = manifest_of(output)
    assert manifest.stage == "conversion.transfer_compare"
    assert {"comparison.json", "comparison.md", "comparison.html", "comparison.png", "comparison.svg"} <= set(manifest.files)
    page = (output / "comparison.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "") and "<script" not in page
    printed = capsys.readouterr().out
    assert "| random " in printed and "| source, own vocabulary" in printed


def measured(method: str, bits: Sequence[float], sizes: Sequence[int]) -> Measurement:
    documents = tuple(DocumentScore(b * np.log(2), 1, size, 0) for b, size in zip(bits, sizes, strict=True))
    return Measurement(method, 0, 0, {"sl": TextScore(documents, 8)})


def test_difference_is_over_bytes_and_seeds_count_by_their_mean_per_document() -> None:
    sizes = (10, 20, 30)
    theirs = measured("random", [30.0, 60.0, 90.0], sizes)
    found = difference_between([measured("mean", [20.0, 40.0, 90.0], sizes)], [theirs], "sl")
    assert (found.value, found.units) == (pytest.approx(-0.5), 3)
    # By the jackknife, of -10 + 0.5 * 10, -20 + 0.5 * 20 and 0 + 0.5 * 30 over what is left; 60^2 / (10^2 + 20^2 + 30^2) documents of one length.
    half = scipy.stats.t.ppf(0.975, 3600 / 1400 - 1) * np.sqrt(2 / 3 * ((5 / 50) ** 2 + (10 / 40) ** 2 + (15 / 30) ** 2))
    assert (found.low, found.high) == (pytest.approx(-0.5 - half), pytest.approx(-0.5 + half))
    pair = [measured("mean", bits, sizes) for bits in ([10.0, 30.0, 60.0], [30.0, 50.0, 60.0])]
    assert difference_between(pair, [theirs], "sl").value == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("num_documents", "cell"), [(1, r"-0\.\d+, too few to tell"), (5, r"-0\.\d+, too few to tell"), (6, r"-0\.\d+ \[-0\.\d+, -0\.\d+\]")]
)
def test_few_documents_decide_nothing(num_documents: int, cell: str) -> None:
    sizes = [100] * num_documents
    methods = {
        "random": [500.0] * num_documents,
        "mean": [450.0 - number for number in range(num_documents)],
        "source": [400.0] * num_documents,
    }
    text = Text("sl", Path("sl.txt"), ["x" * 100] * num_documents, "digest")
    comparison = Comparison(
        tuple(measured(method, bits, sizes) for method, bits in methods.items()), (text,), TrainingOptions(), "source", "target"
    )
    _, rows = comparison.table(text)
    assert re.fullmatch(cell, next(row[2] for row in rows if row[0] == "mean"))


def raced(monkeypatch: pytest.MonkeyPatch, levels: dict[str, float], *, num_documents: int, rule: DecisionRule) -> dict[str, int]:
    """Methods whose documents need so many bits per byte, with noise of 0.05 shared by all and 0.02 of their own: documents that each was scored on."""
    sizes = np.random.default_rng(1).integers(50, 150, num_documents)
    of_document = {f"{number:04d}" + "x" * int(size - 4): number for number, size in enumerate(sizes)}
    common = np.random.default_rng(2).normal(0, 0.05, num_documents)
    own = {method: np.random.default_rng(sum(map(ord, method))).normal(0, 0.02, num_documents) for method in levels}

    def score(method: str, texts: Sequence[Text]) -> dict[str, TextScore]:
        found = {}
        for text in texts:
            bits = [(levels[method] + common[n] + own[method][n]) * sizes[n] for n in (of_document[d] for d in text.documents)]
            found |= measured(method, bits, [sizes[of_document[d]] for d in text.documents]).scores
        return found

    monkeypatch.setattr(comparison, "put_rows", lambda model, transfer: transfer)
    text = sample_documents(Text("sl", Path("sl.txt"), list(of_document), "digest"), 10**9)
    plans = {(method, 0): Planned(method, 0.0) for method in levels}
    measurements = Race(plans, score, [text], rule).compare(None)
    assert all(len({d.text_bytes for d in m.scores["sl"].documents}) > 1 for m in measurements)
    return {m.method: len(m.scores["sl"].documents) for m in measurements}


def test_significantly_worse_methods_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {"random": 8.0, "mean": 3.4, "focus": 3.44, "align": 3.39}
    found = raced(monkeypatch, levels, num_documents=200, rule=DecisionRule(tie=0.0))
    assert found["random"] == 12 and found["focus"] < 200
    # Nothing is left to know when all that are left are tied.
    assert raced(monkeypatch, levels, num_documents=200, rule=DecisionRule(tie=0.1))["align"] <= 24
    assert set(raced(monkeypatch, levels, num_documents=200, rule=DecisionRule(every_document=True)).values()) == {200}
    assert set(raced(monkeypatch, levels, num_documents=23, rule=DecisionRule()).values()) == {23}, "too few to be cut into rounds"


def screened_race(
    monkeypatch: pytest.MonkeyPatch, *, of_its_own: dict[str, float]
) -> tuple[list[Measurement], list[Measurement], list[str]]:
    """A comparison with and without screening by a model that is off by 0.04 bits per byte for all methods, and by so much more for some."""
    levels = {"random": 8.0, "mean": 3.40, "focus": 3.43, "align": 3.39, "merge": 3.402}
    sizes = np.random.default_rng(1).integers(50, 150, 64)
    of_document = {f"{number:04d}" + "x" * int(size - 4): number for number, size in enumerate(sizes)}
    own = {method: np.random.default_rng(sum(map(ord, method))).normal(0, 0.004, len(sizes)) for method in levels}

    def score(scored: tuple[str, str], texts: Sequence[Text]) -> dict[str, TextScore]:
        precision, method = scored
        numbers = [of_document[document] for text in texts for document in text.documents]
        off = 0.04 + of_its_own.get(method, 0.0) if precision == "bfloat16" else 0.0
        return dict(measured(method, [(levels[method] + own[method][n] + off) * sizes[n] for n in numbers], sizes[numbers].tolist()).scores)

    monkeypatch.setattr(comparison, "put_rows", lambda model, transfer: (model.dtype, transfer))
    rough, exact = (argparse.Namespace(dtype=name) for name in ("bfloat16", "torch.float32"))
    text = Text("sl", Path("sl.txt"), list(of_document), "digest")
    said: list[str] = []
    race = Race({(method, 0): Planned(method, 0.0) for method in levels}, score, [text], DecisionRule(tie=0.001), said.append)
    found, plain = race.compare(exact, race.screen(rough)), replace(race, say=print).compare(exact)
    return found, plain, said


def test_screening_leaves_the_figures_and_the_order_of_those_that_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    found, plain, said = screened_race(monkeypatch, of_its_own={"mean": 0.002, "merge": -0.002})
    by_method, plainly = ({m.method: m for m in group} for group in (found, plain))
    assert by_method["random"].screened and not by_method["align"].screened
    assert by_method["random"].scores["sl"].bits_per_byte == pytest.approx(8.04, abs=0.01)
    for method, measurement in by_method.items():
        if not measurement.screened:
            both = min(len(m.scores["sl"].documents) for m in (measurement, plainly[method]))
            assert measurement.scores["sl"].documents[:both] == plainly[method].scores["sl"].documents[:both]
    best = {standing_of(group, "sl", 0, looks=3, tie=0.001).best for group in (found, plain)}
    assert best == {"align"}
    assert re.fullmatch(r"in bfloat16 the differences between these were off by at most 0\.00[0-4]\d bits per byte", said[-1])


def test_a_screening_that_is_off_by_more_than_it_may_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, said = screened_race(monkeypatch, of_its_own={"mean": -0.06, "focus": 0.03})
    assert not any(measurement.screened for measurement in found)
    assert standing_of(found, "sl", 0, looks=3, tie=0.001).best == "align"
    assert any(line == "too much: the others are measured again as well" for line in said)


def test_screened_command_gives_the_figures_of_the_plain_one(folders: dict[str, Path], tmp_path: Path) -> None:
    found = {}
    for choice in ("bfloat16", "none"):
        assert run(folders, tmp_path / choice, "--methods", "mean", "random", "--screening", choice) == 0
        figures = json.loads((tmp_path / choice / "comparison.json").read_text())
        found[choice] = {m["method"]: m["texts"]["sl"]["bits_per_byte"] for m in figures["measurements"]}
        assert not any(m["screened"] for m in figures["measurements"])  # two are always measured
    assert found["bfloat16"] == found["none"]


def test_the_best_is_dropped_as_seldom_as_the_level_says() -> None:
    """One of two that are alike is called significantly worse in at most 5 of 100 comparisons, though there are three looks at the scores."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        sizes = [100] * 64
        pair = [measured("mean", rng.normal(300, 5, 64), sizes), measured("focus", rng.normal(300, 5, 64), sizes)]
        wrong += any(
            "mean"
            in standing_of(
                [replace(m, scores={"sl": replace(m.scores["sl"], documents=m.scores["sl"].documents[:end])}) for m in pair],
                "sl", 0, looks=3, tie=0.02,
            ).significantly_worse
            for end in (16, 32, 64)
        )  # fmt: skip
    assert wrong <= 5


def test_a_difference_within_a_tie_is_called_one_however_sure_it_is() -> None:
    """Every document needs a little more, 0.00016 bits per byte: significantly more, but irrelevant."""
    sizes, bits = [1000] * 40, np.random.default_rng(0).normal(3400, 10, 40)
    pair = [measured("align", bits, sizes), measured("mean", bits + np.linspace(0.15, 0.17, 40), sizes)]
    standing = standing_of(pair, "sl", 0, looks=1, tie=0.02)
    assert (standing.significantly_worse, standing.tied) == ([], ["mean"])
    sentence = standing.recommendation("sl", {"align": [], "mean": []})
    assert sentence.endswith(
        "No other is significantly worse. As good, within a tie of 0.02 bits per byte: mean (+0.0002 [+0.0002, +0.0002])."
    )


def test_recommendation_says_how_sure_it_is() -> None:
    sizes = [100] * 40
    noise = np.random.default_rng(0).normal(0, 1, (4, 40))
    values = {"align": 340 + noise[0], "mean": 339.9 + noise[1], "random": 800 + noise[2], "source": 300 + noise[3]}
    text = Text("sl", Path("sl.txt"), ["x" * 100] * 40, "digest")
    of = {method: measured(method, bits.tolist(), sizes) for method, bits in values.items()}

    def sentence(*methods: str, documents: int = 40) -> str:
        parts = [
            replace(of[m], scores={"sl": replace(of[m].scores["sl"], documents=of[m].scores["sl"].documents[:documents])}) for m in methods
        ]
        return Comparison(tuple(parts), (text,), TrainingOptions(), "source", "target").recommendation

    tied = sentence("source", "align", "mean", "random")
    assert re.match(
        r"Take align \(3\.\d+ bits per byte of sl\)\. 1 of 2 others are significantly worse\. As good, within a tie of 0\.02 bits per byte: mean \(\+0\.0",
        tied,
    )
    assert "Of these mean needs no --text FILE." in tied and "before any training" in tied
    assert re.match(
        r"Take mean .* All 1 others are significantly worse, the nearest \(random\) \+4\.\d+ \[", sentence("source", "mean", "random")
    )
    assert sentence("source", "align", "random", documents=5).startswith("No recommendation: align is lowest on sl")


def test_start_token_is_the_same_for_every_document(folders: dict[str, Path], tmp_path: Path) -> None:
    options = ("--methods", "mean", "--heldout-bytes", "2000")
    by_token = {}
    word = next(token for token in sorted(load_tokenizer(folders["target"]).get_vocab()) if "č" in token and len(token) > 1)
    for number, token in enumerate(("auto", "bos", word)):
        output = tmp_path / str(number)
        assert run(folders, output, *options, "--start-token", token) == 0
        figures = json.loads((output / "comparison.json").read_text())
        by_token[token] = {m["method"]: m["texts"]["sl"]["nats"] for m in figures["measurements"]}
    assert by_token["auto"] == by_token["bos"]
    assert by_token[word]["mean"] != by_token["bos"]["mean"]
    assert by_token[word]["source"] == by_token["bos"]["source"], "the source has no such token, and keeps its own"
    with pytest.raises(ValueError, match="--start-token is '<nowhere>'; expected auto, bos, eos or a token of the tokenizer's"):
        run(folders, tmp_path / "out", *options, "--start-token", "<nowhere>")


def test_a_text_is_encoded_once_for_all_methods(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    encode = comparison.encode_text
    monkeypatch.setattr(comparison, "encode_text", lambda tokenizer, text: seen.append(text) or encode(tokenizer, text))
    transfer, model = transfer_and_model(folders, "tied", None)
    plans = {(method, 0): Planned(transfer, 0.0) for method in ("mean", "merge", "align")}
    text = Text("sl", folders["heldout"], HELDOUT[:8], "digest")
    Race(plans, TextScorer(load_tokenizer(folders["target"])), [text], DecisionRule()).compare(model)
    assert sorted(seen) == sorted(HELDOUT[:8])


def test_what_methods_have_in_common_is_made_once(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(word, word) for word in sorted(set(re.findall(r"\w{4,}", demo_text("sl")[:20_000])))]
    (tmp_path / "dictionary.txt").write_text("".join(f"{one}\t{other}\n" for one, other in pairs), encoding="utf-8")
    trained: list[str] = []
    train_words = word_methods.train_word_vectors
    monkeypatch.setattr(word_methods, "train_word_vectors", lambda corpus, **o: trained.append(corpus.name) or train_words(corpus, **o))
    asked = replace(
        request(folders),
        text=Documents([folders["text"]]),
        source_text=Documents([folders["heldout"]]),
        dictionary=tmp_path / "dictionary.txt",
        vectors=VectorOptions(size=8, epochs=1),
    )
    case = read_case(asked)
    both = [Transfer.of(case, replace(asked, method=method)).plan for method in ("wechsel", "ofa-aligned")]
    assert sorted(trained) == ["--source-text", "--text"]  # beside each other, in any order
    alone = Transfer.of(read_case(asked), replace(asked, method="ofa-aligned")).plan
    assert (both[1].weights != alone.weights).nnz == 0 and sorted(trained) == ["--source-text"] * 2 + ["--text"] * 2
    Transfer.of(case, replace(asked, method="wechsel", seed=7))
    assert len(trained) == 6, "vectors of another seed are others"
    other = replace(case.inputs, text=Documents([folders["heldout"]]))
    Transfer.of(replace(case, inputs=other), replace(asked, method="wechsel"))
    assert len(trained) == 8, "and so are those of another text"


@pytest.mark.parametrize("command", ["conversion.transfer", "conversion.transfer_compare"])
def test_help_does_not_wait_for_what_methods_compute_with(command: str) -> None:
    """Half of the time of --help went into numpy and scipy: it needs the names of the methods alone."""
    code = (
        "import runpy, sys\n"
        "sys.argv = ['x', '--help']\n"
        "try:\n"
        f"    runpy.run_module({command!r}, run_name='__main__')\n"
        "except SystemExit:\n"
        "    print(sorted({'numpy', 'scipy', 'torch', 'regex'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_sample_takes_whole_documents_from_all_over() -> None:
    text = Text("sl", Path("x"), [f"{number:03d}" * 10 for number in range(100)], "d")
    sampled = sample_documents(text, 600).documents
    assert sum(map(len, sampled)) <= 600 and len(sampled) >= 19
    for part, gap in ((sampled, 10), (sampled[:8], 25)):  # and so is every beginning, which is what a round reads
        places = sorted(int(document[:3]) for document in part)
        assert places[0] < gap and places[-1] > 100 - gap and max(np.diff(places)) < gap
    assert sorted(sample_documents(text, 10**6).documents) == text.documents
    assert len(sample_documents(text, 1).documents) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--methods", "sava"), "--method sava needs a model in the target language with the target tokenizer; give it with --helper DIR"),
        (("--steps", "3"), "--steps trains on text in the target language; give it with --text FILE"),
        (("--steps", "-1"), "--steps is -1; expected 0 or more"),
        (("--seeds", "1", "1"), "--seeds names a seed twice: 1 1"),
        (("--tie", "-1"), "--tie is -1.0; expected a number of bits per byte, 0 or more"),
        (("--learning-rate", "0"), "--learning-rate is 0.0; expected a number above 0"),
        (("--heldout-bytes", "0"), "--heldout-bytes is 0; expected at least 1"),
        (
            ("--methods", "mean", "--text", "TEXT"),
            "none of the methods mean uses --text FILE; leave it out or name a method that does",
        ),
        (
            ("--steps", "1", "--text", "TEXT", "--batch-size", "100000"),
            "which is less than one batch of 100000 x 256; give more --text or a smaller batch",
        ),
    ],
)
def test_misuse_is_refused_before_anything_is_written(
    folders: dict[str, Path], tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError) as error:
        run(folders, tmp_path / "out", *(str(folders["text"]) if option == "TEXT" else option for option in options))
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())
