"""A tokenizer's identity without transformers is that with it, and where it might not be, transformers is asked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_prep.tokenizers import plain_tokenizer
from data_prep.tokenizers.files import CONFIG_NAME, load_tokenizer, rows_needed, tokenizer_digest
from data_prep.tokenizers.plain_tokenizer import Identity, PlainTokenizer, described, read_tokenizer, special_token, tokenizer_identity
from tests.processes import ROOT

Edit = Callable[[dict[str, Any], dict[str, Any]], object]

PLAIN: dict[str, Edit] = {
    "as it was made": lambda config, content: None,
    "another order": lambda config, content: config.update(sorted(config.items())),
    "a token as a mapping": lambda config, content: config.update(eos_token=_mapping(content, config["eos_token"])),
    "tokens listed": lambda config, content: config.update(added_tokens_decoder=_listed(content)),
    "some listed": lambda config, content: config.update(added_tokens_decoder={"2": _listed(content)["2"]}),
    "another side": lambda config, content: config.update(padding_side="left", model_max_length=77),
    "ids without a token": lambda config, content: _named(content, 2777, "<far>"),
    "an added token that is special nowhere": lambda config, content: content["added_tokens"].append({"id": 2000, **_token("<more>")}),
}
NOT_PLAIN: dict[str, Edit] = {
    "a token that is not there": lambda config, content: config.update(pad_token="<another>"),
    "a token with other flags": lambda config, content: config.update(added_tokens_decoder={"2": _listed(content)["2"] | {"lstrip": True}}),
    "one more token": lambda config, content: config.update(added_tokens_decoder={"2000": _token("<more>")}),
    "extra tokens": lambda config, content: config.update(additional_special_tokens=["<left>", "<right>"]),
    "a space in front": lambda config, content: (config.update(add_prefix_space=False), content.update(pre_tokenizer=_spaces())),
    "an unknown key": lambda config, content: config.update(another="x"),
    "a class with rules": lambda config, content: config.update(tokenizer_class="LlamaTokenizerFast"),
    "a beginning of its own": lambda config, content: config.update(add_bos_token=True),
    "padding": lambda config, content: content.update(padding=_padding()),
}


def _token(content: str) -> dict[str, Any]:
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


def _listed(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(added["id"]): {key: value for key, value in added.items() if key != "id"} for added in content["added_tokens"]}


def _mapping(content: dict[str, Any], token: str) -> dict[str, Any]:
    return next(added for added in _listed(content).values() if added["content"] == token)


def _named(content: dict[str, Any], token_id: int, token: str) -> None:
    content["added_tokens"].append({"id": token_id, **_token(token)})
    content["model"]["vocab"][token] = token_id


def _spaces() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def _padding() -> dict[str, Any]:
    return {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<x>"}


def _edited(source: Path, directory: Path, edit: Edit) -> Path:
    shutil.copytree(source, directory)
    paths = [directory / CONFIG_NAME, directory / "tokenizer.json"]
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    edit(*contents)
    for path, content in zip(paths, contents, strict=True):
        path.write_text(json.dumps(content), encoding="utf-8")
    return directory


def by_transformers(directory: Path) -> Identity:
    tokenizer = load_tokenizer(directory)
    return Identity(rows_needed(tokenizer), tokenizer_digest(tokenizer))


@pytest.mark.parametrize("edit", PLAIN.values(), ids=PLAIN)
def test_a_plain_tokenizer_says_what_transformers_says(tokenizer_dir: Path, tmp_path: Path, edit: Edit) -> None:
    directory = _edited(tokenizer_dir, tmp_path / "edited", edit)
    found, expected = read_tokenizer(directory), load_tokenizer(directory)
    assert isinstance(found, PlainTokenizer)
    for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        assert special_token(found, role) == special_token(expected, role), role
    assert found.all_special_tokens == expected.all_special_tokens
    assert found.all_special_ids == expected.all_special_ids
    assert found.get_vocab() == expected.get_vocab()
    assert found.chat_template == expected.chat_template
    known = json.loads(expected.backend_tokenizer.to_str())
    assert {key: known[key] for key in described(found.backend_tokenizer) if key != "model"} == {
        key: value for key, value in described(found.backend_tokenizer).items() if key != "model"
    }


@pytest.mark.parametrize("edit", PLAIN.values(), ids=PLAIN)
def test_without_transformers(tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Edit) -> None:
    directory = _edited(tokenizer_dir, tmp_path / "tokenizer", edit)
    expected = by_transformers(directory)
    monkeypatch.setattr(plain_tokenizer, "load_tokenizer", None)
    assert tokenizer_identity(directory) == expected


@pytest.mark.parametrize("edit", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_transformers_would_change(tokenizer_dir: Path, tmp_path: Path, edit: Edit) -> None:
    directory = _edited(tokenizer_dir, tmp_path / "tokenizer", edit)
    assert plain_tokenizer._plain_identity(directory) is None
    assert tokenizer_identity(directory) == by_transformers(directory)


def test_tokens_in_files_of_their_own(tokenizer_dir: Path, tmp_path: Path) -> None:
    directory = _edited(tokenizer_dir, tmp_path / "tokenizer", lambda config, content: None)
    assert plain_tokenizer._plain_identity(directory) is not None
    (directory / "special_tokens_map.json").write_text(json.dumps({"mask_token": "<mask>"}))
    assert plain_tokenizer._plain_identity(directory) is None
    assert tokenizer_identity(directory) == by_transformers(directory) != tokenizer_identity(tokenizer_dir)


def test_one_id_for_two_tokens_is_refused(tokenizer_dir: Path, tmp_path: Path) -> None:
    """The library would number an added token by the 2,000 tokens of the model, whose highest id is 2,000 too."""

    def edit(config: dict[str, Any], content: dict[str, Any]) -> None:
        model = content["model"]
        parts = {part for merge in model["merges"] for part in merge}
        merge = next(merge for merge in reversed(model["merges"]) if "".join(merge) not in parts)
        model["merges"].remove(merge)
        del model["vocab"]["".join(merge)]
        model["vocab"]["zadnji"] = 2000
        content["added_tokens"].append({"id": 2001, **_token("<more>")})

    with pytest.raises(ValueError, match=r"gives the id 2000 to the added token '<more>' and to 'zadnji'"):
        tokenizer_identity(_edited(tokenizer_dir, tmp_path / "tokenizer", edit))


def test_two_tokens_of_the_model_with_one_id_are_refused(tokenizer_dir: Path, tmp_path: Path) -> None:
    def edit(config: dict[str, Any], content: dict[str, Any]) -> None:
        vocab = content["model"]["vocab"]
        vocab[list(vocab)[100]] = vocab[list(vocab)[200]]

    directory = _edited(tokenizer_dir, tmp_path / "tokenizer", edit)
    for read in (tokenizer_identity, load_tokenizer):
        with pytest.raises(ValueError, match=r"gives the id \d+ to '.+' and to '.+'; give each token an id of its own"):
            read(directory)


def test_a_frame_that_the_library_cannot_make_is_refused(tokenizer_dir: Path, tmp_path: Path) -> None:
    """Two templates, one behind the other, end in a panic of Rust at the first text."""

    def edit(config: dict[str, Any], content: dict[str, Any]) -> None:
        token = {"SpecialToken": {"id": "a", "type_id": 0}}
        parts = [token, {"Sequence": {"id": "A", "type_id": 0}}, token]
        template = {"type": "TemplateProcessing", "single": parts, "pair": parts * 2}
        template["special_tokens"] = {"a": {"id": "a", "ids": [9, 9], "tokens": ["a", "a"]}}
        content["post_processor"] = {"type": "Sequence", "processors": [template, template]}

    with pytest.raises(ValueError, match=r"cannot be loaded: "):
        load_tokenizer(_edited(tokenizer_dir, tmp_path / "tokenizer", edit))


def test_broken_files_are_told_by_transformers(tokenizer_dir: Path, tmp_path: Path) -> None:
    directory = _edited(tokenizer_dir, tmp_path / "tokenizer", lambda config, content: None)
    (directory / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(ValueError, match=r"^the tokenizer in .* cannot be loaded: "):
        tokenizer_identity(directory)


def test_transformers_is_not_imported(tokenizer_dir: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from data_prep.tokenizers.plain_tokenizer import tokenizer_identity;"
        "tokenizer_identity(Path(sys.argv[1])); print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, tokenizer_dir], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
