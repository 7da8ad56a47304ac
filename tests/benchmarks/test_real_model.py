"""The study on a real model: its training goes on where it stopped, in the same order of text, and trains what it says."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.real_model import training
from benchmarks.real_model.cells import Cell, equal_bytes
from benchmarks.real_model.material import Sizes, Study
from benchmarks.real_model.tables import across_table, all_tables, trained_table, zero_shot_table
from benchmarks.real_model.training import WAYS, Way, trained_steps, training_rows
from common.plain_files import write_json
from conversion.comparing.comparison import TrainingOptions

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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a recording needs a GPU")
@pytest.mark.parametrize("way", ["plain", "embeddings-first", "new-rows-x3"])
def test_steps_recorded_on_a_gpu_are_those_taken_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    ways = {**WAYS, "embeddings-first": Way(embeddings_first=6 * HOW.batch_size * HOW.sequence_length)}
    recorded, one_by_one = tiny_model().cuda(), tiny_model().cuda()
    run(recorded, ways[way], tmp_path / "state", steps=14)
    monkeypatch.setattr("benchmarks.real_model.recorded._ONE_BY_ONE", 100)
    run(one_by_one, ways[way], tmp_path / "state", steps=14)
    start = table_of(tiny_model().cuda())
    assert (table_of(recorded) - start).abs().max() > 1e-2
    for name, parameter in one_by_one.state_dict().items():
        torch.testing.assert_close(recorded.state_dict()[name], parameter, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="streams are a GPU's")
def test_models_beside_each_other_on_a_gpu_learn_what_each_learns_alone(tmp_path: Path) -> None:
    alone, models = threading.RLock(), [tiny_model().cuda() for _ in range(4)]

    def learn(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in trained_steps(
                models[number], rows_of(14), HOW, WAYS["plain"], new_ids=NEW, state=tmp_path / f"state{number}", alone=alone
            ):
                pass

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(learn, range(3)))
    learn(3)
    for name, parameter in models[3].state_dict().items():
        for other in models[:3]:
            torch.testing.assert_close(other.state_dict()[name], parameter, rtol=1e-4, atol=1e-5, msg=name)


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


def test_a_kept_state_is_gone_on_from_where_nothing_earlier_is_asked_for(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def steps(number: int, **options: float) -> tuple[list[int], LlamaForCausalLM]:
        model = tiny_model()
        taken = trained_steps(model, rows_of(number), HOW, WAYS["plain"], new_ids=NEW, state=state, kept=True, **options)
        return [step for step, _ in taken], model

    assert steps(3)[0] == [1, 2, 3] and state.exists()
    taken, went_on = steps(5, before=4)
    assert taken == [4, 5]
    taken, anew = steps(5, before=2)
    assert taken == [1, 2, 3, 4, 5]
    for name, parameter in anew.state_dict().items():
        assert torch.equal(went_on.state_dict()[name], parameter), name


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


def write_cell(output: Path, cell: Cell, by_tokens: dict[int, list[float]]) -> None:
    """A cell of three stories of 100 bytes, of which the bits are given; English and novels have twice as many."""

    def figures(bits: list[float]) -> dict[str, object]:
        texts = {"sl": bits, "en": [2 * b for b in bits], "novels": [2 * b for b in bits]}
        documents = {name: [(b, 100) for b in values] for name, values in texts.items()}
        return {"bits_per_byte": {name: sum(v) / 300 for name, v in texts.items()}, "documents": documents, "seconds": 4.0}

    path = cell.path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {str(tokens): figures(bits) for tokens, bits in by_tokens.items()})


def lines_of(table: str) -> list[str]:
    """Those of the methods, without what fills up columns."""
    return [" ".join(line.split()) for line in table.splitlines()[2:]]


def test_tables_compare_story_by_story(tmp_path: Path) -> None:
    write_cell(tmp_path, Cell("sl", "replace-100", "mean"), {0: [300, 310, 290], 1000: [200, 210, 190]})
    for seed, shift in ((1, -10), (2, 30)):
        write_cell(tmp_path, Cell("sl", "replace-100", "random", seed=seed), {0: [400 + shift, 412 + shift, 388 + shift]})
    write_cell(tmp_path, Cell("sl", None, "lapt"), {0: [250, 250, 250], 1000: [191, 200, 179], 1500: [181, 190, 169]})
    write_cell(tmp_path, Cell("sl", "replace-200", "mean"), {0: [1, 1, 2]})  # of another vocabulary
    zero_shot = lines_of(zero_shot_table(tmp_path, "sl", "replace-100"))
    assert [line.split(" |")[0] for line in zero_shot] == ["| source, own vocabulary", "| `mean`", "| `random`, 2 seeds"]
    # By hand: 110, 112 and 108 bits more in 100 bytes, whose standard error is 2 / sqrt(3), and Student's t of two degrees 4.303.
    assert "| 4.100 | +1.100 [+1.050, +1.150] | 8.200 | 8.200 | 4 |" in zero_shot[2]
    across = lines_of(across_table(tmp_path))
    assert [line.split(" |")[0] for line in across] == ["| source, own vocabulary", "| `mean`", "| `random`"]
    assert across[2].split("|")[-2].strip() == "0 / 0 / 1"
    study = Study(tmp_path, tmp_path, tmp_path, Sizes())
    for name, size in (("own", 2.0), ("replace-100", 3.0)):
        (tmp_path / "bytes_per_token").mkdir(exist_ok=True)
        write_json(tmp_path / "bytes_per_token" / f"sl.{name}.json", size)
    assert equal_bytes(study, "sl", "replace-100", 1000, 100) == 1500
    after = lines_of(trained_table(study, "sl", "replace-100", 1000, 100))
    assert [line.split(" |")[0] for line in after] == ["| `lapt`", "| `mean`"]
    assert after[1].endswith("| 3.000 | 2.000 | 6.000 | 4.000 | 6.000 | 4.000 | +0.100 [+0.075, +0.125] | +0.200 [+0.175, +0.225] | 4 |")
    titles = [line for line in all_tables(study, 100).splitlines() if line and not line.startswith("|")]
    assert titles == [
        "Before training, news in the target language by language and vocabulary",
        "sl, replace-100: bits per byte before training",
        "sl, replace-100: bits per byte after 1,000 tokens",
        "sl, replace-200: bits per byte before training",
    ]
