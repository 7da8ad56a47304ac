from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from conversion.checkpoints.config_ids import NewRoles, with_new_ids
from conversion.transfer import main
from tests.conversion.conftest import OPTMaker
from tests.conversion.embedding_fixtures import byte_level, demo_text, opt_config, opt_tensors
from tests.conversion.folders import there_and_back

TEMPLATE = "{% for m in messages %}<|turn|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
NEW_IDS = {1: 11, 2: 12, 5: 15, 6: 16}


@pytest.mark.parametrize(
    ("config", "expected", "lost"),
    [
        ({"eos_token_id": 2}, {"eos_token_id": 12}, []),
        ({"eos_token_id": [2, 5, 9]}, {"eos_token_id": [12, 15]}, [("eos_token_id", 9)]),
        ({"eos_token_id": 9, "x": 9}, {"eos_token_id": None, "x": 9}, [("eos_token_id", 9)]),
        ({"suppress_tokens": [9]}, {"suppress_tokens": None}, [("suppress_tokens", 9)]),
        ({"suppress_tokens": [], "pad_token_id": None}, {"suppress_tokens": [], "pad_token_id": None}, []),
        ({"pad_token_id": -1}, {"pad_token_id": -1}, []),
        ({"bad_words_ids": [[5], [6, 9], [1, 2]]}, {"bad_words_ids": [[15], [11, 12]]}, [("bad_words_ids", 9)]),
        ({"force_words_ids": [[[5, 9], [6]], [9]]}, {"force_words_ids": [[[16]]]}, [("force_words_ids", 9)]),
        ({"sequence_bias": [[[5, 6], -1.0], [[9], 2.0]]}, {"sequence_bias": [[[15, 16], -1.0]]}, [("sequence_bias", 9)]),
        ({"forced_decoder_ids": [[1, 5], [2, 9]]}, {"forced_decoder_ids": [[1, 15]]}, [("forced_decoder_ids", 9)]),
    ],
)
def test_every_id_is_renumbered_or_told(config: dict[str, object], expected: dict[str, object], lost: list[tuple[str, int]]) -> None:
    found = with_new_ids(config, NEW_IDS)
    assert found.config == expected
    assert list(found.lost) == lost


def test_roles_go_first_and_their_tokens_may_part() -> None:
    """One token begins and ends texts in OPT, two in the new tokenizer."""
    roles = NewRoles(old={"bos": 2, "eos": 2, "pad": 1}, new={"bos": 20, "eos": 21})
    config = {"bos_token_id": 2, "eos_token_id": [2, 5], "pad_token_id": 1, "forced_eos_token_id": 2, "forced_bos_token_id": 2}
    expected = {"bos_token_id": 20, "eos_token_id": [21, 15], "pad_token_id": 11, "forced_eos_token_id": 21, "forced_bos_token_id": 20}
    assert with_new_ids(config, {1: 11, 5: 15}, roles=roles).config == expected
    assert with_new_ids({}, {}, roles=roles).config == {"bos_token_id": 20, "eos_token_id": 21}
    assert with_new_ids({"eos_token_id": [5]}, {5: 15}, roles=roles).config["eos_token_id"] == [21, 15]


@pytest.fixture(scope="module")
def chat_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuned model: a second token that ends, suppressed and forced tokens, a chat template with a token of its own."""
    directory = tmp_path_factory.mktemp("chat") / "source"
    tokenizer = byte_level(demo_text("en")[:5000], num_tokens=300, specials={"bos": "<s>", "eos": "</s>", "pad": "<pad>"})
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>", "<|tool|>"]})
    tokenizer.chat_template = {"default": TEMPLATE, "tool": "<|tool|>{{ messages }}"}
    tokenizer.save_pretrained(directory)
    turn = tokenizer.convert_tokens_to_ids("<|turn|>")
    config = opt_config(len(tokenizer), eos_token_id=[tokenizer.eos_token_id, turn])
    generation = {
        "eos_token_id": [tokenizer.eos_token_id, turn],
        "suppress_tokens": [turn, tokenizer.convert_tokens_to_ids("<|tool|>"), tokenizer.convert_tokens_to_ids("e")],
        "forced_bos_token_id": turn,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps(generation))
    save_file(opt_tensors(config), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def replaced(source: Path, output: Path, *, special: list[str], template: str | None = None) -> dict[str, object]:
    target = byte_level(demo_text("sl")[:5000], num_tokens=290, specials={"bos": "<s>", "eos": "</s>", "pad": "<pad>"})
    target.add_special_tokens({"additional_special_tokens": special})
    target.chat_template = template
    target.save_pretrained(output.parent / "target")
    arguments = ["--source", source, "--tokenizer", output.parent / "target", "--method", "mean", "--output", output]
    assert main([str(argument) for argument in arguments]) == 0
    return dict(target.get_vocab())


def test_replace_keeps_what_the_target_has(chat_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = replaced(chat_source, tmp_path / "out", special=["<|tool|>", "<|turn|>"])
    assert "warning: generation_config" not in capsys.readouterr().err
    ends = [ids["</s>"], ids["<|turn|>"]]
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == ends
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert generation["eos_token_id"] == ends
    assert generation["suppress_tokens"] == [ids["<|turn|>"], ids["<|tool|>"], ids["e"]]
    assert generation["forced_bos_token_id"] == ids["<|turn|>"]
    assert (tmp_path / "out/chat_template.jinja").read_text() == TEMPLATE
    assert (tmp_path / "out/additional_chat_templates/tool.jinja").read_text() == "<|tool|>{{ messages }}"


def test_replace_says_what_is_lost(chat_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = replaced(chat_source, tmp_path / "out", special=["<|tool|>"])
    turn = json.loads((chat_source / "config.json").read_text())["eos_token_id"][1]
    told = capsys.readouterr().err
    for key in ("eos_token_id", "suppress_tokens", "forced_bos_token_id"):
        assert f"warning: generation_config.json: {key} loses {turn} ('<|turn|>'), because the new tokenizer has no such token\n" in told
    assert f"warning: config.json: eos_token_id loses {turn} ('<|turn|>')" in told
    assert "warning: the source's chat template is left out, because the new tokenizer has no <|turn|>; put a chat template" in told
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == [ids["</s>"]]
    assert not (tmp_path / "out/chat_template.jinja").exists()
    assert (tmp_path / "out/additional_chat_templates/tool.jinja").is_file()


def test_a_template_of_the_targets_own_stays(chat_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replaced(chat_source, tmp_path / "out", special=[], template="{{ messages }}")
    assert "chat template" not in capsys.readouterr().err
    assert (tmp_path / "out/chat_template.jinja").read_text() == "{{ messages }}"


def test_further_chat_templates_survive_the_way_there_and_back(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    (hf_dir / "additional_chat_templates").mkdir()
    (hf_dir / "additional_chat_templates/tool.jinja").write_bytes(b"{{ tools }}\r\n")
    there_and_back(hf_dir, tmp_path)
    assert (tmp_path / "back/additional_chat_templates/tool.jinja").read_bytes() == b"{{ tools }}\r\n"
