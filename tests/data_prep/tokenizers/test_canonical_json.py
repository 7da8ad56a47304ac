"""The pieces of a tokenizer's JSON are the bytes that Python's own writer makes of all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from data_prep.tokenizers import files
from data_prep.tokenizers.files import canonical_pieces

_STRANGE = ['"', "\\", '",', '"],["', '\\"', "\n\t\x00\x1f\x7f", "č\u2028😀", '"merges":[', '"vocab":{', "]]}}", "]]"]


def _bpe(tokens: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
    joined = [left + right for left, right in merges]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(dict.fromkeys([*tokens, *joined]))}, merges))
    made.normalizer = normalizers.Replace('"vocab":{', '},"merges":[[')
    made.pre_tokenizer = pre_tokenizers.Split('"merges":[', "isolated")
    made.add_special_tokens(['"merges":[["'])
    made.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 0)])
    return made


@pytest.mark.parametrize("block", [1, 3, 8192])
def test_vocabulary_and_merges_come_in_pieces(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BLOCK", block)
    text = _bpe(_STRANGE, list(zip(_STRANGE, _STRANGE[1:]))).to_str()
    assert files._split(text) is not None
    whole = json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False).encode()
    assert b"".join(canonical_pieces(text, lambda content: content)) == whole


def test_other_models_and_no_merges_come_as_a_whole(tokenizer_dir: Path) -> None:
    others = [
        Tokenizer(models.Unigram([("<unk>", 0.0), ('a"', -1.5)], 0, False)),
        Tokenizer(models.WordPiece({"[UNK]": 0, 'b"': 1}, unk_token="[UNK]")),
        Tokenizer(models.WordLevel({"[UNK]": 0}, "[UNK]")),
        _bpe(["a"], []),
        Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json")),
    ]
    for tokenizer in others:
        text = tokenizer.to_str()
        whole = json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False).encode()
        assert b"".join(canonical_pieces(text, lambda content: content)) == whole
