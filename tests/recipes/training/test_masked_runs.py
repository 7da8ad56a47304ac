"""Masked training of a tiny RoBERTa in the engine, beside a plain loop of transformers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from common.artifacts import read_manifest
from conversion.checkpoints.factorised_model import load_factorised
from data_prep.megatron.index import PREFIX, TokenFile
from eval import report
from recipes.numbers import arithmetic
from recipes.rules.checks import check_run
from recipes.rules.compose import compose_recipe
from recipes.rules.inputs import read_inputs
from recipes.rules.masking import MaskVocabulary, parts_of_sample, read_mask_vocabulary
from recipes.rules.schema import MaskingRecipe
from tests.conftest import TEXT, Inputs
from tests.conversion.embedding_fixtures import byte_level, demo_text
from tests.eval.reporting.test_across_languages import make
from tests.processes import call_command
from tests.recipes.conftest import ENCODER_SPECIALS, SHAPE, make_factors
from tests.recipes.rules.test_languages import data_set_of
from tests.recipes.tiny_runs import export, train_tiny
from tests.recipes.watched_runs import BATCH, SEQUENCE_LENGTH, STEPS, Runs

MASKED = ("+objective=masked", "run.validate_every_steps=1")
TOLERANCE = 1e-4  # of the losses of a loop in another library
LAYOUT_TOLERANCE = 1e-5  # layouts sum in another order


class MaskedRuns(Runs):
    """Runs that write down the samples that they saw."""

    ranks = "tests.recipes.masked_ranks:train"

    def train(self, name: str, *overrides: str, **options: Any) -> dict[str, Any]:
        return super().train(name, *MASKED, *overrides, **options)

    def two_languages(self) -> tuple[str, ...]:
        """Of which the second has far less text."""
        return (
            f"data.train=[{self.inputs.data},{self.inputs.held_out}]",
            "data.languages=[slv_Latn,slv_heldout]",
            "data.sampling_exponent=0.3",
        )

    def samples(self, name: str) -> dict[int, Any]:
        """What all ranks saw."""
        return {number: sample for rank in range(2) for number, sample in torch.load(self.directory / f"{name}.{rank}.pt").items()}


@pytest.fixture(scope="module")
def runs(encoder: Inputs, tmp_path_factory: pytest.TempPathFactory) -> MaskedRuns:
    return MaskedRuns(encoder, tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def whole(runs: MaskedRuns) -> dict[str, Any]:
    """An uninterrupted run at tensor parallel 2, of two languages."""
    return runs.train("whole", *runs.two_languages())


def by_documents(model: Any, sample: dict[str, torch.Tensor], end_of_text: int) -> torch.Tensor:
    """Losses of a sample whose documents do not see each other: each is computed alone."""
    ends = [0, *(np.flatnonzero(sample["labels"][:-1] == end_of_text) + 1).tolist(), len(sample["labels"])]
    logits = [model(sample["tokens"][None, first:end]).logits[0] for first, end in pairwise(ends)]
    return F.cross_entropy(torch.cat(logits), sample["labels"], reduction="none")


def by_samples(model: Any, sample: dict[str, torch.Tensor]) -> torch.Tensor:
    """Losses of a sample that is seen whole."""
    return F.cross_entropy(model(sample["tokens"][None]).logits[0], sample["labels"], reduction="none")


def plain_loop(encoder: Inputs, samples: dict[int, Any], recipe: Any, losses_of: Any = by_samples) -> list[float]:
    """The same steps by transformers and torch: a mean over all masked tokens of a step, AdamW without decay of biases and norms."""
    model = AutoModelForMaskedLM.from_pretrained(encoder.hf, dtype=torch.float32)
    model.eval()  # the recipe has no dropout
    schedule, losses = recipe.schedule, []
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": decayed, "weight_decay": schedule.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(schedule.adam_beta1, schedule.adam_beta2), eps=schedule.adam_epsilon)
    steps = recipe.total_steps
    for step in range(steps):
        batch = [samples[number] for number in range(step * BATCH, (step + 1) * BATCH)]
        mask = torch.stack([sample["loss_mask"] for sample in batch])
        loss = (torch.stack([losses_of(model, sample) for sample in batch]) * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= min(1.0, schedule.clip_gradient_norm / (float(norm) + 1e-6))
        for group in optimizer.param_groups:
            group["lr"] = arithmetic.learning_rate(step, schedule, steps=steps)
        optimizer.step()
        losses.append(float(loss))
    return losses


@pytest.mark.slow
def test_the_losses_are_those_of_a_plain_loop(runs: MaskedRuns, whole: dict[str, Any], encoder: Inputs) -> None:
    recipe = compose_recipe("demo_adapt", [*runs.settings(*MASKED), "parallel.tensor_parallel_size=2"])
    samples = runs.samples("whole")
    expected = plain_loop(encoder, samples, recipe)
    assert whole["losses"] == pytest.approx(expected, abs=TOLERANCE)
    assert max(expected) - min(expected) > 0.01, "it learns something"
    assert max(whole["head_shares"]) < 0.3, "logits are those of the masked tokens alone"
    shares = torch.stack([samples[number]["loss_mask"] for number in range(STEPS * BATCH)])
    assert float(shares.mean()) == pytest.approx(0.15, abs=0.02)
    assert float(shares.sum(dim=1).std()) > 1, "samples differ in how many tokens are masked"


@pytest.mark.slow
def test_killed_and_resumed_in_another_layout(runs: MaskedRuns, whole: dict[str, Any]) -> None:
    """On two pipeline stages and with other micro batches than before: the same samples behind the same masks, and the same losses."""
    with pytest.raises(AssertionError, match=r"rank . failed"):
        runs.train("killed", *runs.two_languages(), at_step=["crash", 4])
    options = (*runs.two_languages(), "parallel.pipeline_parallel_size=2", "schedule.micro_batch_size=4")
    runs.train("killed", *options, tensor_parallel_size=1)
    before, after = runs.samples("whole"), runs.samples("killed")
    assert set(after) == set(range(3 * BATCH, STEPS * BATCH))
    assert all(torch.equal(after[number][key], before[number][key]) for number in after for key in after[number])
    expected, found = ([record for record in runs.records(name) if record["step"] > 3 and "loss" in record] for name in ("whole", "killed"))
    assert [record["loss"] for record in found] == pytest.approx([record["loss"] for record in expected], abs=LAYOUT_TOLERANCE)


def by_padding(model: Any, sample: dict[str, torch.Tensor], padding_id: int) -> torch.Tensor:
    """Losses of a document that is filled up, which transformers takes by a mask of keys."""
    logits = model(sample["tokens"][None], attention_mask=(sample["labels"] != padding_id)[None].long()).logits[0]
    return F.cross_entropy(logits, sample["labels"], reduction="none")


DOCUMENTS = ("data.document_mask=true", "schedule.max_steps=5", "masking.whole_words=true", "schedule.micro_batch_size=4")


@pytest.mark.slow
def test_a_checkpoint_says_how_much_of_each_language_was_seen(runs: MaskedRuns, whole: dict[str, Any], encoder: Inputs) -> None:
    """Counted in the samples themselves, by the text with which they begin."""
    data_sets, samples = [encoder.data, encoder.held_out], runs.samples("whole")
    manifests = [manifest for path in data_sets if (manifest := read_manifest(path)) is not None]
    tokens = [manifest.facts["num_tokens"] for manifest in manifests]
    which = [data_set_of(samples[number], data_sets, manifests[0].facts["eos_token_id"]) for number in range(STEPS * BATCH)]
    planned = np.array(tokens) ** 0.3 / (np.array(tokens) ** 0.3).sum()
    assert planned[1] > 2 * tokens[1] / sum(tokens), "the smaller language is drawn more often than there is of it"
    for step in (3, 6):
        found = read_manifest(runs.directory / f"whole/checkpoints/step_{step:07d}")
        assert found is not None
        counts = np.bincount(which[: step * BATCH], minlength=2)
        assert [entry["samples"] for entry in found.facts["languages"].values()] == counts.tolist()
        assert counts / counts.sum() == pytest.approx(planned, abs=1 / counts.sum())
        for entry, count, of_tokens, share in zip(found.facts["languages"].values(), counts, tokens, planned, strict=True):
            assert (entry["tokens"], entry["planned_share"], entry["share"]) == (of_tokens, pytest.approx(share), count / counts.sum())
            assert entry["passes"] == pytest.approx(count * SEQUENCE_LENGTH / of_tokens)


@pytest.mark.slow
def test_documents_are_filled_up(bert: Inputs, tmp_path: Path) -> None:
    """Of a BERT, at data parallel 2 in other micro batches; whole words are masked; what is held out is packed, and its documents do not see each other."""
    runs, padded = MaskedRuns(bert, tmp_path), (*DOCUMENTS, "data.pad_documents=true", "data.sequence_length=64")
    found = runs.train("documents", *padded, tensor_parallel_size=1)
    manifest, model = read_manifest(bert.data), AutoModelForMaskedLM.from_pretrained(bert.hf, dtype=torch.float32).eval()
    assert manifest is not None
    samples, vocabulary = runs.samples("documents"), read_mask_vocabulary(bert.tokenizer)
    assert vocabulary.padding_id is not None
    lengths = [int((sample["labels"] != vocabulary.padding_id).sum()) for sample in samples.values()]
    assert min(lengths) < 64 == max(lengths), "short documents, and pieces of long ones"
    recipe = compose_recipe("demo_adapt", runs.settings(*MASKED, *padded))
    losses_of = partial(by_padding, padding_id=vocabulary.padding_id)
    assert found["losses"] == pytest.approx(plain_loop(bert, samples, recipe, losses_of), abs=TOLERANCE)
    records = [record for record in runs.records("documents") if "loss" in record]
    assert [record["tokens"] for record in records] == np.cumsum(lengths_by_step(samples, vocabulary.padding_id)).tolist()
    check_words(samples, vocabulary)
    losses_of = partial(by_documents, model, end_of_text=manifest.facts["eos_token_id"])
    check_validation(runs, "documents", bert, model, losses_of, length=64)


def lengths_by_step(samples: dict[int, Any], padding_id: int) -> list[int]:
    """Tokens of text in each step."""
    counts = [int((samples[number]["labels"] != padding_id).sum()) for number in sorted(samples)]
    return [sum(counts[first : first + BATCH]) for first in range(0, len(counts), BATCH)]


def check_words(samples: dict[int, Any], vocabulary: MaskVocabulary) -> None:
    """Of a word all tokens are chosen or none."""
    for sample in samples.values():
        words = np.cumsum(vocabulary.begins_word[sample["labels"]] | ~vocabulary.is_ordinary[sample["labels"]])
        chosen = sample["loss_mask"].numpy()
        for word in np.unique(words[chosen > 0]):
            inside = (words == word) & vocabulary.is_ordinary[sample["labels"]]
            assert chosen[inside].all()


@pytest.mark.long
def test_documents_are_packed(encoder: Inputs, tmp_path: Path) -> None:
    """At data parallel 2."""
    runs = MaskedRuns(encoder, tmp_path)
    found = runs.train("packed", *DOCUMENTS, tensor_parallel_size=1)
    manifest = read_manifest(encoder.data)
    assert manifest is not None
    samples, end_of_text = runs.samples("packed"), manifest.facts["eos_token_id"]
    assert sum(int((samples[number]["labels"] == end_of_text).sum()) for number in range(BATCH)) > 1, "documents end in them"
    recipe = compose_recipe("demo_adapt", runs.settings(*MASKED, *DOCUMENTS))
    expected = plain_loop(encoder, samples, recipe, partial(by_documents, end_of_text=end_of_text))
    assert found["losses"] == pytest.approx(expected, abs=TOLERANCE)
    check_words(samples, read_mask_vocabulary(encoder.tokenizer))


@pytest.mark.long
def test_a_bert_at_tensor_parallel_2(bert: Inputs, tmp_path: Path) -> None:
    """Its losses, and that they are the same over two pipeline stages with other micro batches."""
    runs = MaskedRuns(bert, tmp_path)
    recipe = compose_recipe("demo_adapt", [*runs.settings(*MASKED), "parallel.tensor_parallel_size=2"])
    found = runs.train("whole")
    assert found["losses"] == pytest.approx(plain_loop(bert, runs.samples("whole"), recipe), abs=TOLERANCE)
    runs.train("stages", "parallel.pipeline_parallel_size=2", "schedule.micro_batch_size=4", tensor_parallel_size=1)
    expected, again = ([record["loss"] for record in runs.records(name) if "loss" in record] for name in ("whole", "stages"))
    assert again == pytest.approx(expected, abs=LAYOUT_TOLERANCE)


def check_validation(runs: MaskedRuns, name: str, encoder: Inputs, model: Any, losses_of: Any, *, length: int = SEQUENCE_LENGTH) -> None:
    """The first step has the rate 0, so what is measured behind it is the model that the run started from."""
    vocabulary, manifest = read_mask_vocabulary(encoder.tokenizer), read_manifest(encoder.held_out)
    assert manifest is not None
    tokens, total, number = TokenFile(encoder.held_out / PREFIX), 0.0, 0
    for index in range(2 * BATCH):
        text = tokens.slice(index * length, (index + 1) * length).astype(np.int64)
        parts = parts_of_sample(text, vocabulary, num_parts=MaskingRecipe().validation_parts, number=index)
        for part in range(MaskingRecipe().validation_parts):
            seen = np.where(parts == part, vocabulary.mask_id, text)
            with torch.no_grad():
                losses = losses_of({"tokens": torch.from_numpy(seen), "labels": torch.from_numpy(text)})
            total, number = total + float(losses[torch.from_numpy(parts == part)].double().sum()), number + int((parts == part).sum())
    record = next(record for record in runs.records(name) if "validation_masked_loss_sl" in record)
    assert record["validation_masked_loss_sl"] == pytest.approx(total / number, rel=1e-5)
    bytes_seen = 2 * BATCH * length * manifest.facts["text_bytes"] / manifest.facts["num_tokens"]
    assert record["validation_masked_bits_per_byte_sl"] == pytest.approx(total / math.log(2) / bytes_seen, rel=1e-5)
    assert not any(key.startswith("validation_loss") for key in record), "it is not a causal figure"


@pytest.mark.slow
def test_validation_predicts_each_token_once(runs: MaskedRuns, whole: dict[str, Any], encoder: Inputs) -> None:
    model = AutoModelForMaskedLM.from_pretrained(encoder.hf, dtype=torch.float32).eval()
    check_validation(runs, "whole", encoder, model, partial(by_samples, model))


@pytest.mark.slow
def test_what_was_trained_is_a_plain_model(runs: MaskedRuns, whole: dict[str, Any], encoder: Inputs, tmp_path: Path) -> None:
    before = load_file(encoder.hf / "model.safetensors")
    after = export(runs.directory / "whole/checkpoints/step_0000006", tmp_path / "back")
    assert before.keys() == after.keys()
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    assert not unchanged
    table = "roberta.embeddings.position_embeddings.weight"
    assert torch.equal(after[table][:2], before[table][:2]), "the rows of padding are nobody's positions"
    _, notes = AutoModelForMaskedLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(notes.values())


@pytest.mark.long
def test_factors_of_an_encoder(encoder: Inputs, tmp_path: Path) -> None:
    """By the paper's recipe: exported before the first change they make the transfer's table, and later one of their rank."""
    hf, nemo, run = tmp_path / "hf", tmp_path / "nemo", tmp_path / "run"
    make_factors(encoder, tmp_path)
    overrides = ["schedule.warmup_steps=1", "schedule.learning_rate=1e-2", "schedule.max_steps=4", "run.checkpoint_every_steps=1"]
    overrides += [f"model.checkpoint={nemo}", f"model.factors={hf / 'factors.safetensors'}"]
    losses = [record["loss"] for record in train_tiny("ofa/mono", run, encoder, encoder.data, *overrides) if "loss" in record]
    assert all(map(math.isfinite, losses))
    table = "roberta.embeddings.word_embeddings.weight"
    start = load_file(hf / "model.safetensors")
    first, last = (export(run / f"checkpoints/step_000000{step}", tmp_path / f"back_{step}") for step in (1, 4))
    assert start.keys() == first.keys() == last.keys()
    assert (first[table] - start[table]).abs().max() < 1e-6
    assert (last[table] - start[table]).abs().max() > 1e-3
    assert torch.linalg.matrix_rank(last[table], rtol=1e-5) == 6
    assert not torch.equal(last["lm_head.bias"], start["lm_head.bias"])
    call_command("conversion.nemo_to_hf", "--input", run / "checkpoints/step_0000004", "--keep-factors", "--output", tmp_path / "kept")
    plain, kept = AutoModelForMaskedLM.from_pretrained(tmp_path / "back_4").eval(), load_factorised(tmp_path / "kept")
    ids = torch.arange(5, 45)[None]
    with torch.inference_mode():
        torch.testing.assert_close(kept(ids).logits, plain(ids).logits, atol=1e-5, rtol=0)
    check_costs(run, tmp_path)


def check_costs(run: Path, folder: Path) -> None:
    """OFA's Table 4: hours and carbon to the checkpoint that is best, here the third of four, of two devices."""
    for step in (1, 2, 3, 4):
        make(folder / "results", f"ofa-{step}", 0.3 if step == 3 else 0.1, method="ofa", step=step)
    words = ["--results", str(folder / "results"), "--run", f"ofa, seed 1={run}", "--output", str(folder / "report")]
    assert report.main([*words, "--gpu", "a100-40gb", "--kg-co2-per-kwh", "0.5"]) == 0
    paces = [record["seconds_per_step"] for record in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "loss" in record]
    assert len(paces) == 4
    hours = sum(paces[:3]) / 3600
    told = (folder / "report" / "across_languages.md").read_text().partition("## Training to the best checkpoint\n\n")[2].splitlines()
    header, (name, step, *amounts) = ([cell.strip() for cell in told[line].strip("|").split("|")] for line in (0, 2))
    assert header == ["run", "best step", "hours", "hours for 10,000 steps", "device hours", "CO2 (kg)"]
    assert (name, step) == ("ofa, seed 1", "3")
    expected = [hours, hours / 3 * 10_000, 2 * hours, 2 * hours * 0.4 * 0.5]
    assert [float(amount) for amount in amounts] == pytest.approx(expected, rel=5e-3)


# -- what is refused ------------------------------------------------------------------------------------------------------


def refusal(inputs: Inputs, *overrides: str, checkpoint: Path | None = None) -> str:
    settings = [f"model.checkpoint={checkpoint or inputs.checkpoint}", f"data.train=[{inputs.data}]", "data.sequence_length=48"]
    recipe = compose_recipe("demo_adapt", [*settings, *overrides])
    with pytest.raises(ValueError) as caught:
        check_run(recipe, read_inputs(recipe))
    return str(caught.value).removeprefix(f"recipe {recipe.name} cannot run: ")


def test_a_causal_model_is_not_trained_on_masks(inputs: Inputs) -> None:
    assert refusal(inputs, "+objective=masked") == (
        f"the objective is masked, but the checkpoint {inputs.checkpoint} is of the family opt, which is causal;"
        " give an encoder (bert, roberta, xlm-roberta), or leave the objective out"
    )


@pytest.mark.parametrize(("choice", "objective"), [("clm", "next_token"), ("two_tokens", "two_tokens")])
def test_an_encoder_is_not_trained_on_next_tokens(encoder: Inputs, choice: str, objective: str) -> None:
    assert refusal(encoder, f"+objective={choice}") == (
        f"the objective is {objective}, but the checkpoint {encoder.checkpoint} is of the family roberta, which is bidirectional;"
        " set objective=masked, or give a causal model"
    )


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("masking.hidden=0.8", "masking.replaced=0.3"), "masking.hidden and masking.replaced add up to 1.1; expected at most 1"),
        (("masking.share=1.5",), "masking.share is 1.5; expected a number above 0 and below 1"),
        (("lora.rank=4",), "lora adapts causal models, not those of the objective masked; leave it out"),
        (
            ("data.pad_documents=true",),
            "data.pad_documents pads samples of single documents, which attention must not see; also set data.document_mask=true",
        ),
    ],
)
def test_what_contradicts_masks(encoder: Inputs, overrides: tuple[str, ...], sentence: str) -> None:
    assert refusal(encoder, "+objective=masked", *(f"+{override}" for override in overrides)) == sentence


def test_factors_of_another_vocabulary(encoder: Inputs, tmp_path: Path) -> None:
    factors = tmp_path / "factors.safetensors"
    save_file({"input.coordinates": torch.ones(600, 6), "input.primitives": torch.ones(6, 32)}, factors)
    assert refusal(encoder, "+objective=masked", f"model.factors={factors}") == (
        f"{factors} gives a table of 600 x 32, but the checkpoint has 601 x 32; both have to come from the same transfer"
    )


def test_documents_of_a_causal_model_are_not_filled_up(inputs: Inputs) -> None:
    sentence = "data.pad_documents is for the objective masked, not next_token; leave it out"
    assert refusal(inputs, "data.pad_documents=true", "data.document_mask=true") == sentence


def test_masks_of_another_objective(inputs: Inputs) -> None:
    sentence = "masking is given, but the objective next_token masks no tokens; set objective=masked, or leave it out"
    assert refusal(inputs, "+masking.share=0.2") == sentence


def test_a_tokenizer_without_a_mask_token(encoder: Inputs, tmp_path: Path) -> None:
    specials = {role: token for role, token in ENCODER_SPECIALS.items() if role != "mask"}
    byte_level(demo_text("sl"), num_tokens=601, specials=specials).save_pretrained(str(tmp_path / "tokenizer"))
    arguments = (*SHAPE, "--model-type", "roberta", "--tokenizer", tmp_path / "tokenizer", "--output", tmp_path / "hf")
    call_command("conversion.new_model", *arguments)
    call_command("conversion.hf_to_nemo", "--input", tmp_path / "hf", "--output", tmp_path / "nemo")
    call_command("data_prep.to_megatron", "--input", TEXT, "--tokenizer", tmp_path / "tokenizer", "--output", tmp_path / "data")
    found = refusal(replace(encoder, checkpoint=tmp_path / "nemo", data=tmp_path / "data"), "+objective=masked")
    assert found == (
        f"the tokenizer in {tmp_path}/nemo/context/hf has no mask token, which masked language modelling needs; set its mask_token (<mask>),"
        " or train one with data_prep.train_tokenizer --mask-token, and make checkpoint and data with it"
    )
    assert json.loads((tmp_path / "hf/config.json").read_text())["model_type"] == "roberta"
