"""Pseudo bits per byte of masked models, beside a plain loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from conversion.checkpoints.hf_model import inspect_checkpoint, load_model
from conversion.measuring.pseudo_likelihood import PseudoWindow, pseudo_nats, pseudo_windows, score_documents_by_filling_in
from data_prep.tokenizers.frame import Frame
from tests.conversion.embedding_fixtures import byte_level, demo_text
from tests.eval.encoder_rows import tiny_encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("encoder"), demo_text("sl"), max_positions=34)


class _Memory:
    def __init__(self) -> None:
        self.kept: dict[int, float] = {}

    def get(self, window: int) -> float | None:
        return self.kept.get(window)

    def keep(self, nats: Mapping[int, float]) -> None:
        self.kept.update(nats)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 23, 64])
def test_windows_score_each_token_once(count: int) -> None:
    """With a quarter of a window on both sides, where the text has as much."""
    frame, room = Frame((1,), (2, 3)), 8
    ids = list(range(100, 100 + count))
    windows = list(pseudo_windows(ids, frame=frame, window_tokens=room + 3))
    assert [token for window in windows for token in window.token_ids[window.first : window.end]] == ids
    for window in windows:
        assert window.token_ids[0] == 1 and window.token_ids[-2:] == (2, 3) and len(window.token_ids) <= room + 3
        inside = window.token_ids[1:-2]
        if inside[0] != ids[0]:
            assert window.first - 1 >= 2
        if inside[-1] != ids[-1]:
            assert len(inside) - (window.end - 1) >= 2
    with pytest.raises(ValueError, match=r"^--context-length is 3, which leaves no place between 3 special tokens$"):
        list(pseudo_windows(ids or [1], frame=frame, window_tokens=3))


def test_figures_are_those_of_a_plain_loop(encoder: Path) -> None:
    """One token hidden at a time, the whole text around it; bits over bytes."""
    checkpoint = inspect_checkpoint(encoder, name="tiny")
    assert checkpoint.num_positions == 34
    documents = ["Zjutraj je nad dolino.", "Žena."]
    model, tokenizer = load_model(checkpoint, device="cpu", dtype="float32", masked=True), checkpoint.tokenizer
    memory = _Memory()
    score = score_documents_by_filling_in(model, tokenizer, documents, window_tokens=34, memory=memory)
    plain, total = AutoModelForMaskedLM.from_pretrained(encoder).eval(), 0.0
    for document in documents:
        ids = torch.tensor([tokenizer(document)["input_ids"]])
        assert ids[0, 0] == tokenizer.bos_token_id and ids[0, -1] == tokenizer.eos_token_id
        for place in range(1, ids.shape[1] - 1):
            hidden = ids.clone()
            hidden[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                total -= float(plain(hidden).logits[0, place].log_softmax(-1)[ids[0, place]])
    assert score.pseudo_bits_per_byte == pytest.approx(total / math.log(2) / sum(len(d.encode()) for d in documents), rel=1e-6)
    assert "bits_per_byte" not in score.figures() and score.figures()["pseudo_bits_per_byte"] == score.pseudo_bits_per_byte
    memory.kept[0] += 1
    again = score_documents_by_filling_in(model, tokenizer, documents, window_tokens=34, memory=memory)
    assert again.documents[0].nats == score.documents[0].nats + 1, "what is remembered is not computed again"


def test_long_texts_by_windows(encoder: Path) -> None:
    """Each token within its own window, the same as a loop over them."""
    checkpoint = inspect_checkpoint(encoder, name="tiny")
    model, tokenizer = load_model(checkpoint, device="cpu", dtype="float32", masked=True), checkpoint.tokenizer
    text = demo_text("sl")[:240]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > 70
    score = score_documents_by_filling_in(model, tokenizer, [text], window_tokens=34)
    frame = Frame((tokenizer.bos_token_id,), (tokenizer.eos_token_id,))
    total = 0.0
    for window in pseudo_windows(ids, frame=frame, window_tokens=34):
        for place in range(window.first, window.end):
            hidden = torch.tensor([window.token_ids])
            hidden[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                total -= float(model(hidden).logits[0, place].log_softmax(-1)[window.token_ids[place]])
    assert score.documents[0].nats == pytest.approx(total, rel=1e-6) and score.documents[0].num_tokens == len(ids)


def test_a_head_of_another_family() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 20}
    model = BertForMaskedLM(BertConfig(vocab_size=50, **sizes)).eval()
    ids, total = tuple(range(10, 20)), 0.0
    for place in range(2, 9):
        hidden = torch.tensor([ids])
        hidden[0, place] = 4
        with torch.no_grad():
            total -= float(model(hidden).logits[0, place].log_softmax(-1)[ids[place]])
    assert pseudo_nats(model, PseudoWindow(ids, 2, 9), mask_id=4) == pytest.approx(total, rel=1e-6)


def test_what_cannot_be_filled_in(encoder: Path) -> None:
    checkpoint = inspect_checkpoint(encoder, name="tiny")
    model = load_model(checkpoint, device="cpu", dtype="float32", masked=True)
    with pytest.raises(ValueError, match=r"^the text holds no documents$"):
        score_documents_by_filling_in(model, checkpoint.tokenizer, [], window_tokens=34)
    without = byte_level(demo_text("sl"), num_tokens=600, specials={"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"})
    sentence = "the tokenizer of the model that should score x has no mask token, behind which each token is hidden; set its mask_token"
    with pytest.raises(ValueError, match=f"^{sentence} \\(<mask>\\)$"):
        score_documents_by_filling_in(model, without, ["a"], window_tokens=34, text_name="x")
