"""A tokenizer's identity is what decides its ids, and a folder without a usable one is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from transformers import PreTrainedTokenizerFast

from data_prep.tokenizers.derived import read_description
from data_prep.tokenizers.files import load_tokenizer, read_tokenizer_files, save_tokenizer, tokenizer_digest, tokenizer_files
from data_prep.tokenizers.plain_tokenizer import tokenizer_identity
from tests.processes import ROOT


def _edited(source: Path, directory: Path, **changes: object) -> Path:
    """A copy of a tokenizer with some keys of its tokenizer.json replaced."""
    shutil.copytree(source, directory)
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return directory


def test_digest_ignores_what_does_not_decide_ids(tokenizer_dir: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    digest = tokenizer_digest(tokenizer)
    assert digest.startswith("xxh3:")
    tokenizer(["ena", "dva tri"], padding=True, truncation=True, max_length=2)  # leaves both settings in the backend
    assert tokenizer_digest(tokenizer) == digest
    tokenizer.save_pretrained(tmp_path)  # other layout of the same files
    assert tokenizer_digest(load_tokenizer(tmp_path)) == digest


def test_digest_sees_what_decides_ids(tokenizer_dir: Path, tmp_path: Path) -> None:
    content = json.loads((tokenizer_dir / "tokenizer.json").read_text(encoding="utf-8"))
    model = content["model"]
    vocab = dict(model["vocab"])
    first, second = list(vocab)[1000:1002]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    changed = {
        "two ids": {"model": model | {"vocab": vocab}},
        "merge order": {"model": model | {"merges": [*model["merges"][1:], model["merges"][0]]}},
        "unknown": {"model": model | {"byte_fallback": False}},
        "normalizer": {"normalizer": {"type": "NFC"}},
        "cutting": {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        "specials": {"added_tokens": content["added_tokens"] + [content["added_tokens"][0] | {"id": 2000, "content": "<sep>"}]},
    }
    folders = [_edited(tokenizer_dir, tmp_path / name, **keys) for name, keys in changed.items()]
    digests = {tokenizer_digest(load_tokenizer(folder)) for folder in [tokenizer_dir, *folders]}
    assert len(digests) == 1 + len(changed)


@pytest.mark.long
def test_digest_is_the_same_in_every_process(tokenizer_dir: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from data_prep.tokenizers.files import *; start_without_torch();"
        "print(tokenizer_digest(load_tokenizer(Path(sys.argv[1]))), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, tokenizer_dir], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    has_torch = not transformers.__version__.startswith("4.")  # from 5 on there is no way to leave it out
    assert done.stdout == f"{tokenizer_digest(load_tokenizer(tokenizer_dir))} {has_torch}\n"
    assert done.stderr == ""


def test_a_callers_truncation_and_padding_are_not_done(tokenizer_dir: Path, tmp_path: Path) -> None:
    left = shutil.copytree(tokenizer_dir, tmp_path / "left") / "tokenizer.json"
    content = json.loads(left.read_text(encoding="utf-8"))
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<s>",
    }
    left.write_text(json.dumps(content), encoding="utf-8")
    plain, found = load_tokenizer(tokenizer_dir), load_tokenizer(left.parent)
    for text in ("a", "medved in volk in lisica"):
        assert found.backend_tokenizer.encode(text).ids == plain.backend_tokenizer.encode(text).ids
    assert found.pad_token == plain.pad_token and read_description(left.parent, found)["padding"] is None


@pytest.mark.parametrize(("name", "owner"), [("tokenizer.model", "tiktoken"), ("tekken.json", r"mistral-common \(Tekken\)")])
def test_tokenizers_of_other_libraries_are_named(name: str, owner: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("IQ== 0\nIg== 1\n")
    with pytest.raises(ValueError, match=f"{name} is a tokenizer of {owner}, which is not read; put the model's tokenizer.json beside it"):
        load_tokenizer(tmp_path)


def test_refusals(tokenizer_dir: Path, tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.mkdir()
    shutil.copytree(tokenizer_dir, broken)
    (broken / "tokenizer.json").write_text('{"model": ')
    for directory, start in {
        tmp_path / "none": f"the tokenizer folder {tmp_path / 'none'} does not exist",
        tokenizer_dir / "tokenizer.json": f"the tokenizer folder {tokenizer_dir / 'tokenizer.json'} does not exist",
        empty: f"{empty} holds no tokenizer; expected one of tokenizer.json, tokenizer.model or vocab.json with merges.txt",
        broken: f"the tokenizer in {broken} cannot be loaded: ",
    }.items():
        with pytest.raises(ValueError) as error:
            load_tokenizer(directory)
        assert str(error.value).startswith(start) and (directory == broken or str(error.value) == start)


@pytest.mark.parametrize("what", ["an id beyond the file", "a panic of the library", "no pieces"])
def test_files_on_which_the_library_never_ends_or_panics_are_refused(what: str, tokenizer_dir: Path, tmp_path: Path) -> None:
    model = json.loads((tokenizer_dir / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    if what == "no pieces":
        (tmp_path / "tokenizer.model").touch()
        directory, sentence = tmp_path, "tokenizer.model cannot be read: it has no pieces"
    elif what == "a panic of the library":
        directory = _edited(tokenizer_dir, tmp_path / "x", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
        sentence = "cannot be loaded: Precompiled"
    else:
        vocab = model["vocab"] | {": 2147483646,": len(model["vocab"])}
        assert load_tokenizer(_edited(tokenizer_dir, tmp_path / "y", model=model | {"vocab": vocab})), "a number in a text is none"
        directory = _edited(tokenizer_dir, tmp_path / "x", model=model | {"vocab": model["vocab"] | {"zzz": 2147483646}})
        sentence = r"tokenizer\.json gives a token the id 2147483646, and has \d+ bytes"
    for read in (load_tokenizer, tokenizer_identity):
        with pytest.raises(ValueError, match=sentence):
            read(directory)


def test_files_to_copy(tokenizer_dir: Path) -> None:
    names = [path.name for path in tokenizer_files(tokenizer_dir)]
    assert names == ["tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"]


def test_words_of_transformers_5(tokenizer_dir: Path, tmp_path: Path) -> None:
    """A class and a list that version 4 does not know: read by either, and written by their older names, which 5 knows too."""
    old = load_tokenizer(tokenizer_dir)
    old.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    old.split_special_tokens = False
    old.save_pretrained(tmp_path / "five")
    (tmp_path / "five/special_tokens_map.json").unlink(missing_ok=True)
    path = tmp_path / "five/tokenizer_config.json"
    words = {"backend": "tokenizers", "tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<|user|>"]}
    config = {
        key: value
        for key, value in json.loads(path.read_text()).items()
        if key not in ("additional_special_tokens", "added_tokens_decoder")
    }
    path.write_text(json.dumps({**config, **words}))
    before = path.read_bytes()
    tokenizer = load_tokenizer(tmp_path / "five")
    assert tokenizer("burja in mraz") == old("burja in mraz") and tokenizer.eos_token == old.eos_token
    (added,) = tokenizer("<|user|>", add_special_tokens=False).input_ids
    assert tokenizer.decode([added], skip_special_tokens=True) == ""
    assert path.read_bytes() == before
    written = json.loads(read_tokenizer_files(tmp_path / "five")["tokenizer_config.json"])
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast" and written["additional_special_tokens"] == ["<|user|>"]
    save_tokenizer(tokenizer, tmp_path / "saved")
    again = PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
    assert again("burja <|user|> mraz").input_ids == tokenizer("burja <|user|> mraz").input_ids
    assert json.loads((tmp_path / "saved/tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    plain = tokenizer_dir / "tokenizer_config.json"
    assert read_tokenizer_files(tokenizer_dir)[plain.name] == plain.read_bytes()
