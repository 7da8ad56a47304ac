"""Generated texts with their ids, and efficiency in units that compare vocabularies."""

import json
import math
import re

import pytest

from conversion.checkpoints.hf_model import inspect_checkpoint, load_model
from conversion.measuring.intervals import Estimate
from eval.generate import main, task_prompts
from eval.running.generation import SETTINGS, Pace, Settings, Text, per_second, speedup, target_token_ratio, transformers_generator
from tests.eval.paper_rows import write_rows
from tests.eval.tiny_models import SENTENCES, tiny_llama, tiny_opt, tiny_tokenizer


def save(folder, model, tokenizer=None):
    model.save_pretrained(folder)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    return folder


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{n}", "prompt": text[:20]}) + "\n" for n, text in enumerate(SENTENCES)), encoding="utf-8")
    return path


@pytest.mark.parametrize("make_model", [tiny_opt, tiny_llama])
def test_greedy_texts_are_those_of_generate_whatever_the_batch(tmp_path, make_model):
    import torch

    checkpoint = inspect_checkpoint(save(tmp_path / "model", make_model(num_positions=256)), name="m")
    model = load_model(checkpoint, device="cpu", dtype="float32")
    asked = [text[:25] for text in SENTENCES] + ["Z"]
    batches = [transformers_generator(model, checkpoint.tokenizer, Settings(12), batch_size=size)(asked, 0)[0] for size in (1, 5)]
    assert batches[0] == batches[1]
    for prompt, text in zip(asked, batches[0]):
        ids = torch.tensor([checkpoint.tokenizer(prompt)["input_ids"]])
        alone = model.generate(input_ids=ids, max_new_tokens=12, do_sample=False, pad_token_id=2)[0, ids.shape[1] :].tolist()
        assert list(text.token_ids) == alone
        assert text.num_prompt_tokens == ids.shape[1]


def test_a_plain_folder_of_another_family_is_compared_too(tmp_path, prompts, capsys):
    """GaMS, 4 and its Table 2: what Falcon answers; generation and its speed need no converter, only a Hugging Face folder."""
    import torch
    from transformers import FalconConfig, FalconForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256}
    config = FalconConfig(**shape, initializer_range=0.3, bos_token_id=0, eos_token_id=1, pad_token_id=2)
    falcon = save(tmp_path / "falcon", FalconForCausalLM(config).eval())
    opt = save(tmp_path / "opt", tiny_opt(num_positions=256))
    options = ["--prompts", str(prompts), "--settings", "speed", "--max-new-tokens", "6", "--output", str(tmp_path / "out")]
    assert main(["--model", f"falcon={falcon}", f"opt={opt}", *options]) == 0
    assert "falcon" in (tmp_path / "out/efficiency.json").read_text() and "falcon" in capsys.readouterr().out
    texts = [json.loads(line) for line in (tmp_path / "out/texts/falcon.jsonl").read_text().splitlines()]
    assert {text["id"] for text in texts} == {f"p{n}" for n in range(len(SENTENCES))}
    # The paper's: prompt, output, "interrupted, when the maximal number of allowed tokens was reached".
    shown = (tmp_path / "out/texts.md").read_text(encoding="utf-8")
    assert f"**Prompt**: {SENTENCES[0][:20].strip()}\n\n**falcon**: " in shown
    assert shown.count("*(interrupted after 6 tokens)*") == 2 * len(SENTENCES)


def test_stop_and_fixed_length(tmp_path):
    checkpoint = inspect_checkpoint(save(tmp_path / "model", tiny_llama(num_positions=256)), name="m")
    model = load_model(checkpoint, device="cpu", dtype="float32")

    def text(settings, seed=0):
        return transformers_generator(model, checkpoint.tokenizer, settings, batch_size=4)(["Zjutraj"], seed)[0][0]

    whole = text(Settings(16, fixed_length=True))
    assert len(whole.token_ids) == 16
    stop = whole.text[3:4]
    stopped = text(Settings(16, stop=stop))
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)], "ids up to the one that ended it"
    assert len(stopped.token_ids) < 16
    sampled = SETTINGS["lowres"]
    assert text(sampled, 1) == text(sampled, 1) != text(sampled, 2)
    with pytest.raises(
        ValueError, match=r"^the longest prompt has \d+ tokens and up to 512 are generated, but the model has 256 positions;"
    ):
        text(SETTINGS["sava"])


def test_rates_by_hand():
    texts = [Text((1, 2, 3), "čaj", 5), Text((1,), "a", 4)]
    pace = Pace.of(texts, 2.0)
    assert pace == Pace(2.0, 4, 4, 5)
    fast = [Pace(1.0, 4, 10, 20), Pace(2.0, 8, 20, 40)]
    slow = [Pace(2.0, 8, 10, 10), Pace(4.0, 16, 20, 20)]
    rate = per_second(fast, "num_bytes")
    assert rate.value == 20 and not rate.is_known, "repeats that are all alike say nothing of others"
    assert speedup(fast, slow).value == 4
    assert speedup(slow, slow) == Estimate(1.0, 1.0, 1.0, 2, 2), "the source beside itself"
    held_up = speedup([Pace(1.0, 1, 1, 500), Pace(1000.0, 1, 1, 500)], [Pace(1.0, 1, 1, 500), Pace(900.0, 1, 1, 500)])
    assert held_up.value == pytest.approx(901 / 1001) and held_up.high == math.inf, "an interval that says nothing is none"
    once = speedup([Pace(1.0, 1, 1, 20)], slow)
    assert once.value == 4 and not once.is_known
    uneven = speedup([Pace(1.0, 1, 1, 29), Pace(1.0, 1, 1, 31)], [Pace(1.0, 1, 1, 10), Pace(1.0, 1, 1, 10.1)])
    # By hand: relative standard errors 1 / 30 and 0.05 / 10.05, t of one degree of freedom 12.706.
    factor = math.exp(12.7062 * math.hypot(1 / 30, 0.05 / 10.05))
    assert (uneven.value, uneven.low, uneven.high) == pytest.approx((30 / 10.05, 30 / 10.05 / factor, 30 / 10.05 * factor), rel=1e-4)
    assert target_token_ratio(texts, frozenset({2, 3})) == 0.5
    assert target_token_ratio([Text((), "", 1)], frozenset({2})) is None


def test_the_command_counts_new_tokens_and_keeps_ids(tmp_path, prompts, capsys):
    source = save(tmp_path / "source", tiny_opt(vocab_size=300, num_positions=256), tiny_tokenizer(vocab_size=300))
    adapted = save(tmp_path / "adapted", tiny_opt(num_positions=256))
    output = tmp_path / "out"
    arguments = ["--model", str(source), str(adapted), "--prompts", str(prompts), "--settings", "speed", "--max-new-tokens", "6"]
    assert main([*arguments, "--repeats", "2", "--output", str(output)]) == 0
    content = json.loads((output / "efficiency.json").read_text())
    found = content["models"]
    assert found["adapted"]["digest"] == inspect_checkpoint(adapted, name="x").digest
    told = content["conditions"]
    assert (told["backend"], told["batch size"], told["dtype"], told["prompts"]) == ("hf", 8, "float32", 4)
    assert told["source model"] == found["source"]["digest"] and told["settings"]["max_new_tokens"] == 6
    assert told["machine"]["device"] and told["versions"]["torch"]
    lines = [json.loads(line) for line in (output / "texts/adapted.jsonl").read_text().splitlines()]
    assert [(line["id"], line["repeat"]) for line in lines] == [(f"p{n}", r) for r in range(2) for n in range(4)]
    assert all(len(line["token_ids"]) == 6 for line in lines)
    tokenizer = tiny_tokenizer()
    # The larger vocabulary was learned from the same text, so its first 300 tokens are the smaller one's.
    new = sum(index >= 300 for line in lines for index in line["token_ids"]) / (8 * 6)
    assert tokenizer.get_vocab().keys() >= tiny_tokenizer(vocab_size=300).get_vocab().keys()
    assert found["adapted"]["target_token_ratio"] == pytest.approx(new)
    assert 0 < found["adapted"]["prompt_target_token_ratio"] <= 1 and found["source"]["prompt_target_token_ratio"] == 0
    assert found["source"]["target_token_ratio"] == 0
    assert found["source"]["speedup"]["value"] == 1
    assert found["adapted"]["repeats"][0]["num_tokens"] == 24
    expected = sum(line["num_prompt_tokens"] for line in lines) / 8
    assert found["adapted"]["prompt_tokens_per_item"] == expected < found["source"]["prompt_tokens_per_item"]
    assert "| adapted |" in capsys.readouterr().out


def test_prompts_of_a_task(tmp_path):
    data = write_rows(tmp_path / "data")
    asked = task_prompts("mt_en_sw", data=str(data), items=3)
    assert len(asked) == 3
    assert all(re.fullmatch(r"Tafsiri Kiingereza hadi Kiswahili:\nen \d: Dober dan, hiša. =", row["prompt"]) for row in asked)
    with pytest.raises(ValueError, match=r"^sl_copa_mc is not a generative task; choose one such as mt_en_sw"):
        task_prompts("sl_copa_mc", data=str(data), items=None)


def test_refusals(tmp_path, prompts):
    model = save(tmp_path / "model", tiny_opt())

    def fails(sentence, *more, file=prompts):
        arguments = ["--model", str(model), "--prompts", str(file), "--settings", "speed", "--output", str(tmp_path / "out"), *more]
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            main(arguments)

    fails("--repeats is 0; expected at least 1", "--repeats", "0")
    fails(f"the file of prompts {tmp_path}/no does not exist", file=tmp_path / "no")
    fails("the longest prompt has ")
    (tmp_path / "empty.jsonl").touch()
    fails(f"{tmp_path}/empty.jsonl holds no prompts", file=tmp_path / "empty.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n')
    fails(f"line 1 of {tmp_path}/bad.jsonl is not a prompt (KeyError('prompt')); expected", file=tmp_path / "bad.jsonl")
    assert not (tmp_path / "out").exists()
