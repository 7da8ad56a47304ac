"""Rows that a model learns: against plain loops over tokens, after interruptions, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, RobertaConfig, RobertaForMaskedLM

from conversion.embeddings import METHODS
from conversion.embeddings.case import TransferCase, read_case
from conversion.embeddings.checkpoint import Transfer
from conversion.embeddings.methods import row_learning
from conversion.embeddings.methods.learned import choose_lesson
from conversion.embeddings.methods.paired_windows import Window, balanced_order, cut
from conversion.embeddings.methods.row_plan import Origin
from conversion.embeddings.options import LearningOptions, TransferRequest, VocabularyOptions
from conversion.measuring.bits_per_byte import choose_start_token
from conversion.transfer import main
from data_prep.reading.documents import Documents
from data_prep.tokenizers.files import load_tokenizer
from tests.conversion.embedding_fixtures import byte_level, demo_text, opt_config, opt_tensors, save_checkpoint, sentencepiece_like
from tests.conversion.folders import manifest_of
from tests.processes import ROOT

LEARNED = [name for name, method in METHODS.items() if method.learns]
SPECIALS = {"bos": "</s>", "eos": "</s>", "pad": "<pad>"}
INPUT, HEAD = "model.decoder.embed_tokens.weight", "lm_head.weight"
QUICK = LearningOptions(num_steps=5, batch_size=2, window_tokens=24, learning_rate=0.05, device="cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("learned")
    source = byte_level(demo_text("en"), num_tokens=500, specials=SPECIALS)
    for name in ("tied", "untied"):
        config = opt_config(len(source), tied=name == "tied")
        save_checkpoint(root / name, config, opt_tensors(config), source)
    sentencepiece_like(demo_text("sl")[:20_000], num_tokens=420).save_pretrained(str(root / "target"))
    (root / "sl.txt").write_text(demo_text("sl")[:20_000], encoding="utf-8")
    sizes = {"vocab_size": len(source), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    encoder = RobertaConfig(**sizes, pad_token_id=1, initializer_range=0.5)
    RobertaForMaskedLM(encoder).save_pretrained(str(root / "encoder"))
    source.save_pretrained(str(root / "encoder"))
    return {path.stem: path for path in root.iterdir()}


def case_of(folders: dict[str, Path], source: str, vocabulary: str) -> tuple[TransferCase, TransferRequest]:
    options = VocabularyOptions("expand", 30) if vocabulary == "expand" else VocabularyOptions()
    tokenizer = None if vocabulary == "expand" else folders["target"]
    request = TransferRequest(folders[source], tokenizer, "mean", options, text=Documents([folders["sl"]]))
    return read_case(request), request


@pytest.fixture(scope="module")
def cases(folders: dict[str, Path]) -> dict[tuple[str, str], tuple[TransferCase, TransferRequest]]:
    return {(source, way): case_of(folders, source, way) for source in ("tied", "untied") for way in ("expand", "replace")}


def transfer_of(case: TransferCase, request: TransferRequest, method: str, options: LearningOptions = QUICK) -> Transfer:
    assert case.inputs.teacher is not None
    inputs = replace(case.inputs, teacher=replace(case.inputs.teacher, options=options))
    return Transfer.of(replace(case, inputs=inputs), replace(request, method=method))


def tensors_of(transfer: Transfer) -> dict[str, torch.Tensor]:
    return {tensor.name: tensor.read() for tensor in transfer.tensors()}


# ---- a plain implementation: one window after the other, one parameter and one optimizer for each token ----


class PlainLearner:
    def __init__(self, source: Path, start: dict[str, torch.Tensor], learned: list[int], *, learns_output: bool) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32).eval().requires_grad_(False)
        self.start = start
        layers = [INPUT, *([HEAD] if HEAD in start and learns_output else [])]
        self.rows = {layer: {i: start[layer][i].clone().requires_grad_(True) for i in learned} for layer in layers}
        # Real rows only: all of them here.
        old = self.model.state_dict()
        self.rates = {layer: QUICK.learning_rate * float(old[layer].square().mean().sqrt()) for layer in layers}
        self.optimizers = {
            (layer, i): torch.optim.Adam([row], betas=(0.9, 0.95), eps=1e-12) for layer in layers for i, row in self.rows[layer].items()
        }

    def matrix(self, layer: str) -> torch.Tensor:
        rows = self.rows.get(layer, {})
        return torch.stack([rows.get(i, row) for i, row in enumerate(self.start[layer])])

    def states(self, matrix: torch.Tensor, ids: list[int]) -> list[torch.Tensor]:
        embedded = torch.stack([matrix[i] for i in ids])[None]
        mask = torch.ones(1, len(ids), dtype=torch.long)
        return list(self.model.model.decoder(inputs_embeds=embedded, attention_mask=mask).last_hidden_state[0])

    def step(self, loss: torch.Tensor, number: int) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        for (layer, i), optimizer in self.optimizers.items():
            gradient = self.rows[layer][i].grad
            if gradient is not None and gradient.any():
                optimizer.param_groups[0]["lr"] = self.rates[layer] * (1 - number / QUICK.num_steps)
                optimizer.step()


def plain_loss(method: str, learner: PlainLearner, windows: list[Window], learned: set[int], starts: tuple[int, int]) -> torch.Tensor:
    old = learner.model.state_dict()
    new_input = learner.matrix(INPUT)
    new_head = learner.matrix(HEAD) if HEAD in learner.start else new_input
    squares, predictions, divergences = [], [], []
    for window in windows:
        source, target = [starts[0], *window.source_ids.tolist()], [starts[1], *window.target_ids.tolist()]
        before, after = learner.states(old[INPUT], source), learner.states(new_input, target)
        old_head = old.get(HEAD, old[INPUT])
        is_behind = False
        for chunk in range(window.num_chunks):
            of_source = [k for k, c in enumerate(window.source_chunks.tolist()) if c == chunk]
            of_target = [k for k, c in enumerate(window.target_chunks.tolist()) if c == chunk]
            is_behind = is_behind or any(int(window.target_ids[k]) in learned for k in of_target)
            if is_behind:
                squares.append((after[of_target[-1] + 1] - before[of_source[-1] + 1]) ** 2)
            # Token k of the window follows state k: the start token is the first.
            p = sum(float(torch.log_softmax(old_head @ before[k], 0)[source[k + 1]]) for k in of_source)
            logs = [torch.log_softmax(new_head @ after[k], 0)[target[k + 1]] for k in of_target]
            predictions += logs
            p, q = np.exp(p / 100), torch.exp(sum(logs) / 100)  # type: ignore[arg-type]
            divergences.append(p * (np.log(p) - torch.log(q)) + (1 - p) * (np.log(1 - p) - torch.log(1 - q)))
    distance, prediction = torch.cat(squares).mean(), -torch.stack(predictions).mean()
    if method == "token-distillation, learned":
        return distance + prediction * float(distance) / float(prediction)
    return {"token-distillation": distance, "next-token": prediction, "alm": torch.stack(divergences).mean()}[method]


@pytest.mark.some(6)
@pytest.mark.parametrize("way", ["expand", "replace"])
@pytest.mark.parametrize("source", ["tied", "untied"])
@pytest.mark.parametrize("method", [*LEARNED, "token-distillation, learned"])
def test_rows_equal_those_of_a_plain_loop(cases: dict[Any, Any], folders: dict[str, Path], method: str, source: str, way: str) -> None:
    case, request = cases[source, way]
    name, _, output_rows = method.partition(", ")
    options = replace(QUICK, output_rows=output_rows or "mean")
    transfer = transfer_of(case, request, name, options)
    found = tensors_of(transfer)
    start = tensors_of(transfer_of(case, request, "mean"))
    learned_ids = np.flatnonzero(transfer.plan.origins == Origin.LEARNED).tolist()
    learner = PlainLearner(
        folders[source],
        {key: start[key].float() for key in (INPUT, HEAD) if key in start},
        learned_ids,
        learns_output=method != "token-distillation",
    )
    lesson = choose_lesson(transfer.inputs, replace(case.inputs.teacher, options=options), name)
    first = choose_start_token(load_tokenizer(folders[source])).id
    starts = first, int(np.flatnonzero(case.inputs.overlap.source_ids == first)[0])
    losses = []
    for step in range(QUICK.num_steps):
        windows = [lesson.windows[i] for i in lesson.order[step * QUICK.batch_size : (step + 1) * QUICK.batch_size]]
        loss = plain_loss(method, learner, windows, set(learned_ids), starts)
        losses.append(float(loss))
        learner.step(loss, step)
    assert [value for _, value in transfer.plan.facts["losses"]] == pytest.approx(losses, rel=1e-5, abs=1e-5)
    for layer in (INPUT, HEAD):
        if layer in found:
            expected = learner.matrix(layer).detach()
            torch.testing.assert_close(found[layer], expected, atol=1e-5, rtol=1e-5)
            moved = (found[layer] != start[layer]).any(dim=1)
            assert not moved[[i for i in range(len(moved)) if i not in learned_ids]].any()
            assert moved.sum() > 5 or (layer == HEAD and method == "token-distillation" and not moved.any())


def test_a_layer_between_is_another_goal(cases: dict[Any, Any]) -> None:
    case, request = cases["tied", "expand"]
    middle, last = (transfer_of(case, request, "token-distillation", replace(QUICK, layer=layer)) for layer in (1, None))
    assert middle.plan.facts["losses"] != last.plan.facts["losses"]
    same = transfer_of(case, request, "token-distillation", replace(QUICK, layer=2))
    assert same.plan.facts["losses"] == last.plan.facts["losses"]  # the library gives the last layer's states behind the norm


def test_rare_tokens_keep_their_start_and_are_counted(cases: dict[Any, Any]) -> None:
    case, request = cases["tied", "replace"]
    transfer = transfer_of(case, request, "next-token", replace(QUICK, min_contexts=40))
    facts, counts = transfer.plan.facts, transfer.plan.counts()
    assert facts["num_learned"] == counts["learned"] and facts["contexts"][0] >= 40
    assert facts["num_learned"] + facts["num_too_rare"] == len(transfer.inputs.new_ids)
    assert counts["fallback: mean"] + counts.get("fallback: random", 0) >= facts["num_too_rare"] > 0
    start, found = (tensors_of(t)[INPUT] for t in (transfer_of(case, request, "mean"), transfer))
    assert torch.equal(found[transfer.plan.origins == Origin.FALLBACK_MEAN], start[transfer.plan.origins == Origin.FALLBACK_MEAN])


@pytest.mark.parametrize("method", LEARNED)
def test_an_interrupted_learning_goes_on(cases: dict[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    case, request = cases["untied", "expand"]
    whole = tensors_of(transfer_of(case, request, method))
    options = replace(QUICK, state=tmp_path / "state")

    class Interrupted(row_learning.Progress):
        def advance(self, amount: int = 1) -> None:
            super().advance(amount)
            if self._done == 4:
                raise KeyboardInterrupt

    monkeypatch.setattr(row_learning, "SAVE_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(row_learning, "Progress", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            transfer_of(case, request, method, options)
    # The fourth step was made and not saved.
    resumed = transfer_of(case, request, method, options)
    assert resumed.plan.facts["first_step"] == 3
    assert len(resumed.plan.facts["losses"]) == QUICK.num_steps
    found = tensors_of(resumed)
    assert all(torch.equal(found[name], whole[name]) for name in whole)
    other = transfer_of(case, replace(request, seed=7), method, options)
    assert other.plan.facts["first_step"] == 0
    (tmp_path / "state").write_bytes(b"no safetensors")
    assert transfer_of(case, request, method, options).plan.facts["first_step"] == 0


# ---- windows ----


def test_windows_are_cut_where_both_end() -> None:
    # "ab|c|d|ef|g" and "a|bcd|e|f|g": they meet at 4 (abcd), 6 (ef), 7 (g).
    source, target = (
        (np.array([10, 11, 12, 13, 14]), np.array([2, 3, 4, 6, 7])),
        (np.array([20, 21, 22, 23, 24]), np.array([1, 4, 5, 6, 7])),
    )
    (whole,) = cut(*source, *target, 9)
    assert whole.source_chunks.tolist() == [0, 0, 0, 1, 2] and whole.target_chunks.tolist() == [0, 0, 1, 1, 2]
    first, second = cut(*source, *target, 4)
    assert first.source_ids.tolist() == [10, 11, 12, 13] and first.target_ids.tolist() == [20, 21, 22, 23] and first.num_chunks == 2
    assert second.source_ids.tolist() == [14] and second.target_chunks.tolist() == [0]
    # abcd is three tokens of the source, so that no window of two holds it.
    middle, last = cut(*source, *target, 2)
    assert middle.source_ids.tolist() == [13] and middle.target_ids.tolist() == [22, 23] and middle.num_chunks == 1
    assert last.source_ids.tolist() == [14] and last.target_ids.tolist() == [24]


def test_windows_give_back_the_text(cases: dict[Any, Any]) -> None:
    case, _ = cases["tied", "replace"]
    from conversion.embeddings.methods.paired_windows import paired_windows

    for window in paired_windows(case.inputs, 16):
        for chunk in range(window.num_chunks):
            one, other = (
                b"".join(vocabulary.token_bytes[i] or b"" for i in ids[chunks == chunk])
                for vocabulary, ids, chunks in (
                    (case.inputs.source, window.source_ids, window.source_chunks),
                    (case.inputs.target, window.target_ids, window.target_chunks),
                )
            )
            assert one == other or other == b" " + one  # SentencePiece's space before a line
        assert max(len(window.source_ids), len(window.target_ids)) <= 16


def test_rare_tokens_come_as_often_as_the_text_allows() -> None:
    generator = np.random.default_rng(0)
    common, rare = [np.array([0])] * 50, [np.array([0, 1]), np.array([1]), np.array([2])]
    tokens = [*common, *rare]
    order = balanced_order(tokens, 6, seed=3)
    assert len(set(order)) == 6 and {50, 51, 52} <= set(order)  # all that there is of 1 and 2
    assert balanced_order(tokens, 6, seed=3) == order != balanced_order(tokens, 6, seed=4)
    many = [np.unique(generator.integers(0, 30, 4)) for _ in range(40)]
    order = balanced_order(many, 100, seed=0)
    assert sorted(order[:40]) == list(range(40)) and sorted(order[40:80]) == list(range(40))  # each once before any twice


# ---- the command ----


@pytest.mark.slow
def test_the_command_in_a_process_of_its_own(folders: dict[str, Path], tmp_path: Path) -> None:
    """It asks for transformers without torch until it knows that the method runs a model."""
    words = [
        "--vocabulary",
        "expand",
        "--new-tokens",
        "20",
        "--method",
        "token-distillation",
        "--steps",
        "3",
        "--batch-size",
        "2",
        "--sequence-length",
        "32",
        "--device",
        "cpu",
    ]
    words += ["--source", str(folders["tied"]), "--text", str(folders["sl"]), "--output", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "conversion.transfer", *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "rows learned in 3 steps of 2" in done.stdout and "too rare and keep their initial row" in done.stdout
    manifest = manifest_of(tmp_path / "out")
    assert manifest.facts["learning"]["num_steps"] == 3 and manifest.facts["method"] == "token-distillation"
    assert manifest.facts["num_rows_by_origin"]["learned"] == manifest.facts["learning"]["num_learned"]
    assert "learned from the text" in (tmp_path / "out" / "transfer.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # what was kept is gone


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"--text": None}, "--method token-distillation needs text in the target language; give it with --text FILE"),
        ({"--steps": "0"}, "--steps is 0; expected at least 1"),
        ({"--batch-size": "0"}, "--batch-size is 0; expected at least 1"),
        ({"--learning-rate": "nan"}, "--learning-rate is nan; expected a number above 0"),
        ({"--device": "cuda:99"}, "--device cuda:99 is not available: torch sees"),
        ({"--device": "abacus"}, "--device abacus is not a device that models run on; expected cpu, cuda or cuda:1"),
        (
            {"--sequence-length": "96"},
            "--sequence-length is 96, but the model has 96 positions, one of them for the start token; use 95 or less",
        ),
        ({"--distilled-layer": "3"}, "--distilled-layer is 3, but the model has 2 layers; use 2 or less"),
        ({"--min-contexts": "100000"}, "has nothing to learn from: none of the "),
        ({"--factorised-size": "8"}, "--method token-distillation learns rows, not their coordinates; leave out --factorised-size"),
        (
            {"--method": "mean", "--text": None},
            "--method mean does not use --steps N and the other options of learning; leave it out (it is for token-dist",
        ),
        ({"--method": "alm", "--output-rows": "learned"}, "--method alm does not use --output-rows; leave it out (it is for token-dist"),
        (
            {"--method": "alm", "--output-layer": "random"},
            "--method alm learns rows of the output layer, which --output-layer random initialises randomly",
        ),
        ({"--source": "encoder"}, "score this one by pseudo-likelihood (pseudo bits per byte): `python -m eval.harness --model "),
        ({"--output": "tied"}, "exists and is not empty"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    folders: dict[str, Path], tmp_path: Path, options: dict[str, str | None], sentence: str
) -> None:
    given: dict[str, Any] = {"--source": "tied", "--tokenizer": "target", "--text": "sl", "--method": "token-distillation", "--steps": "2"}
    given |= {"--device": "cpu", "--batch-size": "2", "--sequence-length": "16", "--output": tmp_path / "out"} | options
    if given["--source"] == "encoder":  # of its own padding id
        given |= {"--vocabulary": "expand", "--new-tokens": "10", "--tokenizer": None}
    words = [
        str(word)
        for flag, value in given.items()
        if value is not None
        for word in (flag, folders.get(str(value), value) if flag in ("--source", "--tokenizer", "--text", "--output") else value)
    ]
    with pytest.raises(ValueError) as error:
        main(words)
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
