"""Encoders fine-tuned on one language and scored in all: equal to a plain loop, killed and gone on, and what is wrong named."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from common.lease import InUseError
from conversion.checkpoints.hf_model import inspect_checkpoint
from eval import finetune
from eval.protocols.zero_shot import TASKS, FineTuning, f1_of_counts, label_names, labelled_rows, scores, span_counts
from eval.running.earlier import folder_in_use
from eval.tuning import fine_tuning
from eval.tuning.fine_tuning import KeptState
from tests.conversion.embedding_fixtures import byte_level, demo_text
from tests.eval.encoder_rows import SPECIALS, Sentence, tiny_encoder, word_sentences, write_rows, write_words
from tests.processes import Group, call_command

FAST = ("--learning-rate", "3e-3", "--epochs", "2", "--device", "cpu", "--micro-batch-size", "16")
TOPICS = ("Recommendation", "Faith", "Description", "Sin", "Grace", "Violence")


def made_sentences(count: int, *, shift: int = 0) -> list[Sentence]:
    """Names that a model can learn: the same few people and places."""
    people, places, rest = ("Ana", "Peter", "Marko"), ("Ljubljana", "Rim", "Dunaj"), ("je", "bila", "v", "in", "danes")
    found = []
    for number in range(shift, shift + count):
        words = [people[number % 3], rest[number % 5], rest[(number + 1) % 5], places[number // 3 % 3], "."]
        found.append((words, ["B-PER", "O", "O", "B-LOC", "O"]))
    return found


def made_texts(split: str, count: int) -> list[dict[str, object]]:
    return [
        {"id": f"{split}:{n}", "split": split, "text": f"{TOPICS[n % 6]} {TOPICS[n % 6]} {n}", "label": TOPICS[n % 6]} for n in range(count)
    ]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("encoder"), demo_text("en") + "\n" + demo_text("sl"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_words(folder, "ner", "eng", {"train": made_sentences(48), "dev": made_sentences(9), "test": made_sentences(12)})
    for language in ("hrv", "slv"):
        write_words(folder, "ner", language, {"test": made_sentences(12, shift=7)})
    splits = (("train", 48), ("dev", 12), ("test", 12))
    write_rows(folder, "taxi1500", "eng", [row for split, count in splits for row in made_texts(split, count)])
    write_rows(folder, "taxi1500", "slv", made_texts("test", 18))
    return folder


def run(encoder: Path, data: Path, output: Path, *words: str) -> dict[str, Any]:
    assert finetune.main(["--model", f"tiny={encoder}", "--data", str(data), "--output", str(output), *FAST, *words]) == 0
    result: dict[str, Any] = json.loads((output / "tiny" / "result.json").read_text())
    return result


def samples(output: Path, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "tiny" / "samples" / f"{task}.jsonl").read_text().splitlines()]


def test_all_tasks_are_learned_and_scored(encoder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The result has each language of each task; its figures are those of the answers that it keeps."""
    from sklearn.metrics import f1_score

    result = run(encoder, data, tmp_path, "--tasks", "ner", "taxi1500", "--seeds", "3", "--epochs", "6")
    assert list(result["tasks"]) == ["ner_eng", "ner_hrv", "ner_slv", "taxi1500_eng", "taxi1500_slv"]
    told = samples(tmp_path, "ner_slv")
    gold, predicted = [sample["target"].split() for sample in told], [sample["resps"][0][0].split() for sample in told]
    counts = span_counts(gold, predicted).sum(axis=0)
    found_f1 = result["tasks"]["ner_slv"]["metrics"]["f1"]["value"]
    assert found_f1 == pytest.approx(float(f1_of_counts(counts[None])[0])) and found_f1 > 0.5
    told = samples(tmp_path, "taxi1500_slv")
    wanted, found = [sample["target"] for sample in told], [sample["resps"][0][0] for sample in told]
    metric = result["tasks"]["taxi1500_slv"]["metrics"]["macro_f1"]
    assert metric["value"] == pytest.approx(f1_score(wanted, found, average="macro")) and metric["low"] <= metric["value"] <= metric["high"]
    assert metric["value"] > 0.3, "always one topic has 0.05"
    assert "| names (WikiAnn), f1" in capsys.readouterr().out
    assert not (tmp_path / ".answers").exists()
    protocol = result["tasks"]["ner_slv"]["protocol"]
    assert (
        protocol["unlike the paper"] == {"learning_rate": 3e-3, "epochs": 6} and protocol["train"] == ["eng"] and protocol["seeds"] == [3]
    )


def test_the_papers_settings() -> None:
    """Of the scripts that OFA's authors publish: 8 sentences times 4 steps (NER), 2 times 16 (POS), 8 times 2 (Taxi1500)."""
    assert TASKS["ner"].paper == TASKS["pos"].paper == FineTuning(2e-5, 32, 10, 256, 1.0)
    assert TASKS["taxi1500"].paper == FineTuning(1e-5, 16, 40, 100, None)


def test_killed_and_gone_on(
    encoder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever was trained or labelled is not done again, and the figures are those of a run that nothing stopped."""
    words = ("--tasks", "ner", "--seeds", "1", "2")
    whole = run(encoder, data, tmp_path / "whole", *words)
    capsys.readouterr()
    predict, calls = fine_tuning.predict, 0

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:  # two epochs' development rows, one language, then this
            raise KeyboardInterrupt
        return predict(*arguments, **options)

    monkeypatch.setattr(fine_tuning, "predict", killed)
    with pytest.raises(KeyboardInterrupt):
        run(encoder, data, tmp_path / "again", *words)
    assert not (tmp_path / "again" / "tiny").exists()
    assert "seed 1: trained" in capsys.readouterr().err
    calls = 10
    again = run(encoder, data, tmp_path / "again", *words)
    told = capsys.readouterr().err
    assert "seed 1: trained" not in told and "seed 2: trained" in told
    assert calls == 10 + 2 + 2 + 3, "two languages of the first seed; both epochs and all languages of the second"
    assert again["tasks"] == whole["tasks"]
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == ["tiny"]
    run(encoder, data, tmp_path / "again", *words)
    assert "tiny, ner: evaluated before" in capsys.readouterr().err
    with folder_in_use(tmp_path / "again" / "tiny-finetune"), pytest.raises(InUseError, match="tiny-finetune"):
        run(encoder, data, tmp_path / "again", *words)
    with pytest.raises(ValueError, match=r"^the results of tiny hold ner_eng of other rows or settings; choose another --output$"):
        run(encoder, data, tmp_path / "again", "--tasks", "ner", "--seeds", "1")


@pytest.mark.slow
def test_killed_within_a_training(encoder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process that is killed between two steps loses none that were kept, and the figures are those of a run that nothing stopped."""
    words = ("--tasks", "ner", "--seeds", "2", "--epochs", "12")
    whole = run(encoder, data, tmp_path / "whole", *words)
    capsys.readouterr()
    again = tmp_path / "again"
    arguments = ["--model", f"tiny={encoder}", "--data", str(data), "--output", str(again), *FAST, *words, "--state-every-minutes", "0"]
    held = ["-m", "tests.held_command", ".training.pt.partial:6"]  # so that the training is not over before it is killed
    group = Group([*held, "eval.finetune", *arguments], log_dir=tmp_path / "log")
    group.wait_until(lambda: any(again.glob(".answers/*/*/training.pt")), timeout_seconds=120)
    group.kill()
    assert group.process.returncode == -signal.SIGKILL
    (state,) = again.glob(".answers/*/*/training.pt")
    state.with_name(f".{state.name}.partial").write_bytes(b"cut off")
    found = run(encoder, data, again, *words)
    steps = re.search(r"tiny, ner, seed 2, training resumes after step (\d+) of 24\n", capsys.readouterr().err)
    assert steps is not None and 1 <= int(steps[1]) < 24
    assert found["tasks"] == whole["tasks"]
    assert sorted(path.name for path in again.iterdir()) == ["tiny"]


@pytest.mark.parametrize("last_step", [1, 3, 6])
def test_going_on_from_a_state_changes_no_bit(
    encoder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_step: int
) -> None:
    """Within an epoch, behind its last step, and behind the epoch that was best, the second; with dropout."""
    task, settings = TASKS["ner"], FineTuning(3e-3, 16, 3, 64, 1.0)
    checkpoint, rows = (
        inspect_checkpoint(encoder, name="tiny"),
        {split: labelled_rows(data, task, "eng", split) for split in ("train", "val")},
    )
    names, reader = label_names(task, [rows["train"]]), fine_tuning.Reader(checkpoint, task, max_tokens=64)

    def trained(kept: KeptState | None) -> tuple[list[float], dict[str, torch.Tensor]]:
        model = fine_tuning.new_tagger(checkpoint, task, names, seed=5, device="cpu")
        split = {"train": rows["train"], "dev": rows["val"]}
        options = {"seed": 5, "micro_batch_size": 16, "label": "training", "kept": kept}
        by_epoch = fine_tuning.fine_tune(model, task, settings, reader, names, **split, **options)
        return by_epoch, model.state_dict()

    headlines = itertools.cycle([0.2, 0.9, 0.4])
    monkeypatch.setattr(fine_tuning, "headline_value", lambda *arguments: next(headlines))
    whole = trained(None)
    gradients, calls = fine_tuning._gradients, 0

    def stopped(*arguments: Any, **options: Any) -> float:
        nonlocal calls
        calls += 1
        if calls == last_step + 1:
            raise KeyboardInterrupt
        return gradients(*arguments, **options)

    monkeypatch.setattr(fine_tuning, "_gradients", stopped)
    with pytest.raises(KeyboardInterrupt):
        trained(KeptState(tmp_path / "state", every_seconds=0))
    by_epoch, weights = trained(KeptState(tmp_path / "state", every_seconds=1e9))
    assert calls == last_step + 1 + (9 - last_step), "no step is taken twice"
    assert by_epoch == whole[0] == [0.2, 0.9, 0.4] and all(torch.equal(weights[name], tensor) for name, tensor in whole[1].items())


def test_a_state_that_cannot_be_read(tmp_path: Path) -> None:
    kept = KeptState(tmp_path / "state", every_seconds=0)
    assert kept.read() is None and kept.is_due
    kept.keep({"step": 3})
    assert kept.read() == {"step": 3}
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-40])
    with pytest.raises(ValueError, match=f"^{tmp_path}/state is not a complete training state; remove it to start the training again$"):
        kept.read()
    kept.remove()
    assert not any(tmp_path.iterdir())


def _trained(encoder: Path, data: Path, task: str, *, micro_batch_size: int, seed: int = 1) -> dict[str, torch.Tensor]:
    checkpoint, chosen = inspect_checkpoint(encoder, name="tiny"), TASKS[task]
    settings = FineTuning(1e-3, 8, 1, 64, 1.0)
    train, dev = (labelled_rows(data, chosen, "eng", split) for split in ("train", "val"))
    names = label_names(chosen, [train])
    model = fine_tuning.new_tagger(checkpoint, chosen, names, seed=seed, device="cpu")
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    for layer in model.base_model.encoder.layer:
        layer.attention.self.dropout_prob = 0.0
    reader = fine_tuning.Reader(checkpoint, chosen, max_tokens=64)
    fine_tuning.fine_tune(
        model, chosen, settings, reader, names, train=train, dev=dev, seed=seed, micro_batch_size=micro_batch_size, label="training"
    )
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _plain_loop(encoder: Path, data: Path, task: str) -> dict[str, torch.Tensor]:
    """The same with transformers' own loss on sentences that its tokenizer cuts as they are written, without dropout."""
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    chosen = TASKS[task]
    tokenizer = inspect_checkpoint(encoder, name="tiny").tokenizer
    train = labelled_rows(data, chosen, "eng", "train")
    names = label_names(chosen, [train])
    torch.manual_seed(1)
    library = AutoModelForTokenClassification if chosen.of_words else AutoModelForSequenceClassification
    model = library.from_pretrained(
        encoder, num_labels=len(names), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1)).tolist()
    for step in range(6):
        numbers = order[8 * step : 8 * step + 8]
        texts = [" ".join(train.inputs[number]) for number in numbers]
        batch = tokenizer(texts, padding=True, return_tensors="pt", return_offsets_mapping=True, return_token_type_ids=False)
        offsets = batch.pop("offset_mapping").tolist()
        labels = torch.full(batch["input_ids"].shape if chosen.of_words else (8,), -100)
        for row, number in enumerate(numbers):
            if not chosen.of_words:
                labels[row] = names.index(train.labels[number][0])
                continue
            end = 0
            for word, label in zip(train.inputs[number], train.labels[number], strict=True):
                begin = texts[row].index(word, end)
                end = begin + len(word)
                at = max(begin - 1, 0)  # the space before a word is of its first piece, or that piece
                labels[row, next(i for i, (a, b) in enumerate(offsets[row]) if a <= at < b)] = names.index(label)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - step / 6)
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("task", ["ner", "taxi1500"])
def test_training_is_that_of_a_plain_loop(encoder: Path, data: Path, task: str) -> None:
    """Micro batches change nothing, another seed does."""

    def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
        return max(float((one[name] - other[name]).abs().max()) for name in one)

    ours = _trained(encoder, data, task, micro_batch_size=8)
    assert apart(ours, _plain_loop(encoder, data, task)) < 1e-5
    assert apart(ours, _trained(encoder, data, task, micro_batch_size=3)) < 1e-5
    assert apart(ours, _trained(encoder, data, task, micro_batch_size=8, seed=2)) > 1e-3


def test_intervals_are_of_rows_and_seeds(data: Path) -> None:
    """Wider than those of a seed alone where seeds differ; the mean is over seeds."""
    task = TASKS["ner"]
    rows = labelled_rows(data, task, "slv", "test")
    right = [list(labels) for labels in rows.labels]
    half = [labels if number % 2 else ["O"] * len(labels) for number, labels in enumerate(right)]
    names = label_names(task, [rows])
    one, both = scores(task, rows, [half], names), scores(task, rows, [half, right], names)
    assert one["f1"]["value"] == pytest.approx(2 / 3) and both["f1"]["value"] == pytest.approx(5 / 6)
    assert both["f1"]["by_seed"] == pytest.approx([2 / 3, 1.0]) and both["f1_sd"]["value"] == pytest.approx(2**-0.5 / 3)
    assert both["f1"]["high"] == 1.0 and both["f1"]["low"] < one["f1"]["low"]


@pytest.mark.parametrize("task", ["ner", "pos"])
def test_real_rows(shared_data: Path, tmp_path: Path, task: str) -> None:
    """Trained on a part of real English rows, scored on others and on a neighbour's: each word has one label, and parts of speech are learned."""
    files = {"ner": ("en_ewt.test", "hr_set.dev"), "pos": ("en_ewt.test", "sl_ssj.dev")}[task]
    source = shared_data / "encoders" / task
    # Those with the most labels, so that training has all of them.
    english = sorted(word_sentences(source / "en_ewt.dev.tsv.gz"), key=lambda sentence: -len(set(sentence[1])))[:300]
    base = tiny_encoder(tmp_path, "\n".join(" ".join(words) for words, _ in english))
    tests = [word_sentences(source / f"{name}.tsv.gz", 80) for name in files]
    write_words(tmp_path / "data", task, "eng", {"train": english[:250], "dev": english[:250:6], "test": tests[0]})
    write_words(tmp_path / "data", task, "other", {"test": tests[1]})
    if task == "ner":  # the Croatian rows have names of a kind that the English ones have not
        with pytest.raises(ValueError, match=r"^the row other:test:\d+ of ner in other has the label B-OTH"):
            run(base, tmp_path / "data", tmp_path / "results", "--tasks", task)
        tests[1] = [(words, labels) for words, labels in tests[1] if not {"B-OTH", "I-OTH"} & set(labels)]
        write_words(tmp_path / "data", task, "other", {"test": tests[1]})
    result = run(base, tmp_path / "data", tmp_path / "results", "--tasks", task, "--seeds", "1", "--epochs", "2")
    for language, sentences in zip(("eng", "other"), tests, strict=True):
        told = samples(tmp_path / "results", f"{task}_{language}")
        labels = [label for _, gold in sentences for label in gold]
        answers = [label for sample in told for label in sample["resps"][0][0].split()]
        assert len(answers) == len(labels), "each word has a label, those of cut sentences too"
        accuracy = sum(a == b for a, b in zip(answers, labels, strict=True)) / len(labels)
        assert result["tasks"][f"{task}_{language}"]["metrics"]["acc"]["value"] == pytest.approx(accuracy)
        if task == "pos":
            assert accuracy > max(labels.count(label) for label in set(labels)) / len(labels) + 0.05


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: write_words(data, "ner", "slv", {"test": [(["Rim"], ["B-MISC"])]}),
         "the row slv:test:0 of ner in slv has the label B-MISC, which the training rows never had (they have B-LOC, B-PER, O); correct the row,"
         " or leave the language out with --languages"),
        (lambda data: write_words(data, "ner", "eng", {"train": made_sentences(9), "dev": [(["Rim"], ["B-ORG"])], "test": made_sentences(3)}),
         "the row eng:dev:0 of ner in the development rows has the label B-ORG, which the training rows never had (they have B-LOC, B-PER, O);"
         " correct the row, or train on languages whose rows have it, with --train"),
        (lambda data: write_words(data, "ner", "slv", {"test": [([], [])]}),
         "the row slv:test:0 has no words; leave it out, or prepare the set again"),
        (lambda data: write_words(data, "ner", "slv", {"test": [(["Rim", " "], ["O", "O"])]}),
         "the row slv:test:0 has an empty word; leave it out, or prepare the set again"),
        (lambda data: write_words(data, "ner", "slv", {"test": [(["Rim", "je"], ["O"])]}),
         "the row slv:test:0 has 2 words and 1 labels; expected one for each word"),
        (lambda data: write_words(data, "ner", "slv", {"dev": made_sentences(2)}),
         "DATA/encoders/ner/slv.jsonl has no rows of the split test; an empty set cannot be evaluated"),
        (lambda data: write_words(data, "ner", "eng", {"train": [(["je"], ["O"])], "dev": made_sentences(1), "test": made_sentences(1)}),
         "the training rows of ner have 1 label (O); expected two at least"),
    ],
)  # fmt: skip
def test_rows_that_are_wrong(encoder: Path, tmp_path: Path, change: Callable[[Path], None], sentence: str) -> None:
    folder = tmp_path / "data"
    write_words(folder, "ner", "eng", {"train": made_sentences(9), "dev": made_sentences(3), "test": made_sentences(3)})
    change(folder)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence.replace('DATA', str(folder)))}$"):
        run(encoder, folder, tmp_path / "out", "--tasks", "ner")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--tasks", "pos"), "DATA/encoders/pos has no rows of parts of speech (UD); make them with `python -m eval.prepare`"),
        (("--tasks", "ner", "--languages", "ita"), "there are no rows of ner in ita; there are some in eng, hrv, slv"),
        (("--tasks", "ner", "--train", "ita"), "there are no rows of ner in ita; there are some in eng, hrv, slv"),
        (("--tasks", "ner", "--epochs", "0"), "--epochs is 0; it must be greater than 0"),
        (("--tasks", "ner", "--learning-rate", "nan"), "--learning-rate is nan; expected more than 0 and less than 1"),
        (("--tasks", "ner", "--learning-rate", "2"), "--learning-rate is 2.0; expected more than 0 and less than 1"),
        (("--tasks", "ner", "--micro-batch-size", "0"), "--micro-batch-size is 0; expected at least 1"),
        (("--tasks", "ner", "--state-every-minutes", "nan"), "--state-every-minutes is nan; expected at least 0 (0: after every step)"),
        (("--tasks", "ner", "--seeds", "1", "1"), "--seeds 1 1 names a seed twice; give each once"),
    ],
)  # fmt: skip
def test_misuse(encoder: Path, data: Path, tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence.replace('DATA', str(data)))}$"):
        run(encoder, data, tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def test_a_loss_that_is_no_number(encoder: Path, data: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    shutil.copytree(encoder, tmp_path / "broken", ignore=shutil.ignore_patterns("scion.json"))
    model = AutoModelForMaskedLM.from_pretrained(encoder)
    torch.nn.init.constant_(model.base_model.embeddings.word_embeddings.weight, float("nan"))
    model.save_pretrained(tmp_path / "broken")
    with pytest.raises(ValueError, match=r"^the loss of ner is nan in epoch 1 with seed 1; lower --learning-rate or check the model$"):
        run(tmp_path / "broken", data, tmp_path / "out", "--tasks", "ner", "--seeds", "1")
    assert not (tmp_path / "out").exists()


def test_models_that_are_no_encoders(data: Path, tmp_path: Path) -> None:
    byte_level(demo_text("en"), num_tokens=400, specials=SPECIALS).save_pretrained(str(tmp_path / "tokenizer"))
    shape = ("--num-layers", 1, "--hidden-size", 32, "--num-attention-heads", 4, "--ffn-size", 64, "--max-positions", 40)
    call_command("conversion.new_model", *shape, "--model-type", "opt", "--tokenizer", tmp_path / "tokenizer", "--output", tmp_path / "opt")
    sentence = (
        f"the model in {tmp_path / 'opt'} (opt) is causal, so a word would be labelled without the words after it; give an encoder, such as RoBERTa,"
        " XLM-R or BERT"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        run(tmp_path / "opt", data, tmp_path / "out", "--tasks", "ner")
