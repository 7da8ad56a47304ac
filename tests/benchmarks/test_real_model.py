"""The study on a real model: its training goes on where it stopped, in the same order of text, and trains what it says."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.real_model import training
from benchmarks.real_model.cells import Cell
from benchmarks.real_model.training import WAYS, Way, trained_steps, training_rows
from conversion.comparison import TrainingOptions

NEW = torch.tensor([40, 41, 45])
HOW = TrainingOptions(learning_rate=1e-2, batch_size=2, sequence_length=8)


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**size, vocab_size=50, tie_word_embeddings=True))


def rows_of(steps: int) -> torch.Tensor:
    return torch.randint(0, 50, (steps * HOW.batch_size, HOW.sequence_length), generator=torch.Generator().manual_seed(1))


def run(model: LlamaForCausalLM, way: Way, state: Path, *, steps: int = 6, stop: int | None = None) -> list[int]:
    taken = []
    for step, _ in trained_steps(model, rows_of(steps), HOW, way, new_ids=NEW, state=state):
        taken.append(step)
        if step == stop:
            break
    return taken


def table_of(model: LlamaForCausalLM) -> torch.Tensor:
    return model.get_input_embeddings().weight.detach()


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_SAVE_SECONDS", -1)
    whole, killed = tiny_model(), tiny_model()
    assert run(whole, WAYS["new-rows-x3"], tmp_path / "whole") == [1, 2, 3, 4, 5, 6]
    run(killed, WAYS["new-rows-x3"], tmp_path / "state", stop=4)  # killed before it has kept step 4
    again = tiny_model()
    assert run(again, WAYS["new-rows-x3"], tmp_path / "state") == [4, 5, 6]
    assert not (tmp_path / "state").exists()
    for name, parameter in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], parameter), name
    assert not torch.equal(killed.state_dict()["lm_head.weight"], whole.state_dict()["lm_head.weight"])


def test_a_longer_run_goes_through_the_models_of_a_shorter_one(tmp_path: Path) -> None:
    short, long = tiny_model(), tiny_model()
    run(short, WAYS["plain"], tmp_path / "a", steps=3)
    run(long, WAYS["plain"], tmp_path / "b", steps=6, stop=3)
    assert torch.equal(table_of(short), table_of(long))


def test_embeddings_alone_are_trained_first(tmp_path: Path) -> None:
    of_step = HOW.batch_size * HOW.sequence_length
    before, model = tiny_model().state_dict(), tiny_model()
    for step, _ in trained_steps(model, rows_of(4), HOW, Way(embeddings_first=2 * of_step), new_ids=NEW, state=tmp_path / "state"):
        body = [name for name, value in model.state_dict().items() if "embed" not in name and "lm_head" not in name]
        moved = any(not torch.equal(model.state_dict()[name], before[name]) for name in body)
        assert moved == (step > 2)
        assert not torch.equal(table_of(model), before["lm_head.weight"])


def test_new_rows_take_longer_steps_and_old_ones_the_same(tmp_path: Path) -> None:
    start, plain = table_of(tiny_model()).clone(), tiny_model()
    three = copy.deepcopy(plain)
    run(plain, WAYS["plain"], tmp_path / "a", steps=1)
    run(three, WAYS["new-rows-x3"], tmp_path / "b", steps=1)
    is_new = torch.zeros(50, dtype=torch.bool)
    is_new[NEW] = True
    moved, moved_three = table_of(plain) - start, table_of(three) - start
    assert torch.equal(moved_three[~is_new], moved[~is_new]) and moved[is_new].abs().max() > 0
    torch.testing.assert_close(moved_three[is_new], 3 * moved[is_new], atol=1e-7, rtol=1e-4)  # sums of rows of the order of 1


def test_rows_are_english_by_their_share_and_those_of_a_shorter_run_first() -> None:
    words = {"[EOS]": 0, **{f"{side}{i}": 1 + i + 20 * (side == "e") for side in "te" for i in range(20)}}
    backend = Tokenizer(models.WordLevel(words, unk_token="[EOS]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="[EOS]")
    target, english = ([" ".join(f"{side}{(i + j) % 20}" for j in range(7)) for i in range(9)] for side in "te")

    def rows(num_rows: int, seed: int = 1) -> torch.Tensor:
        return training_rows(tokenizer, target, english, WAYS["replay-25"], num_rows=num_rows, length=8, seed=seed)

    found = rows(40)
    assert found.shape == (40, 8)
    is_english = (found > 20).any(dim=1)
    assert is_english.sum() == 10 and not ((found[is_english] > 0) & (found[is_english] <= 20)).any()
    assert torch.equal(rows(12), found[:12]) and not torch.equal(rows(12, seed=2), found[:12])


def test_a_cell_is_known_by_its_file() -> None:
    for cell in (Cell("sl", None, "lapt"), Cell("it", "expand-2000", "mean", "replay-25", 3)):
        assert Cell.of(cell.path(Path("study"))) == cell
    assert Cell("sl", "expand-2000", "mean", "copied", 3).untrained == Cell("sl", "expand-2000", "mean")
    assert Cell("sl", "expand-2000", "random", "copied", 3).untrained == Cell("sl", "expand-2000", "random", seed=3)
