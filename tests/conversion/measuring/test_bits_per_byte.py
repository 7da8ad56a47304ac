"""Bits per byte equals what is computed token by token without batches, padding or windows."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conversion.measuring import bits_per_byte
from conversion.measuring.bits_per_byte import StartToken, Window, choose_start_token, choose_window_tokens, score_documents, split_windows
from tests.conversion.tiny_families import tiny_model
from tests.eval.tiny_models import SENTENCES, tiny_llama, tiny_opt, tiny_tokenizer

BOS, EOS = 0, 1
DOCUMENTS = [*SENTENCES, "a", "čšž 😀"]


def nats_by_hand(model, start_id: int, ids: list[int]) -> float:
    """One pass per token in float64; only the last position is read."""
    model = model.double()
    total = 0.0
    for position, token in enumerate(ids):
        with torch.no_grad():
            logits = model(torch.tensor([[start_id, *ids[:position]]])).logits[0, -1]
        total -= torch.log_softmax(logits, -1)[token].item()
    model.float()
    return total


@pytest.mark.parametrize("make_model", [tiny_opt, tiny_llama])
@pytest.mark.parametrize(("in_front", "start_id"), [(None, EOS), ("<s>", BOS), ("</s>", EOS)])
def test_equals_the_sum_by_hand_whatever_the_tokenizer_puts_in_front(make_model, in_front, start_id):
    model, tokenizer = make_model(), tiny_tokenizer(in_front=in_front)
    start_token = choose_start_token(tokenizer)
    assert start_token.id == start_id
    score = score_documents(model, tokenizer, DOCUMENTS, start_token=start_token, window_tokens=64)
    for text, document in zip(DOCUMENTS, score.documents):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert document.num_tokens == len(ids), "the start token is scored"
        assert document.text_bytes == len(text.encode()) > 0
        assert document.nats == pytest.approx(nats_by_hand(model, start_id, ids), rel=2e-6)  # float32 against float64
    num_bytes = sum(len(text.encode()) for text in DOCUMENTS)
    assert score.bits_per_byte == pytest.approx(score.nats / math.log(2) / num_bytes)
    assert score.perplexity_per_token == pytest.approx(math.exp(score.nats / score.num_tokens))


@pytest.mark.parametrize("make_model", [tiny_opt, tiny_llama])
def test_longer_than_the_position_table(make_model):
    """Tokens of later windows are conditioned on the start token and on at least half a window."""
    size, overlap = 16, 8
    model, tokenizer = make_model(num_positions=size), tiny_tokenizer()
    text = " ".join(SENTENCES)
    ids = tokenizer(text)["input_ids"]
    assert len(ids) > 3 * size
    expected = nats_by_hand(model, EOS, ids[:size])
    for begin in range(size, len(ids), size - overlap):
        end = min(begin + size - overlap, len(ids))
        context = ids[end - size : begin]
        expected += nats_by_hand(model, EOS, context + ids[begin:end]) - nats_by_hand(model, EOS, context)
    score = score_documents(model, tokenizer, [text], start_token=choose_start_token(tokenizer), window_tokens=size)
    assert score.nats == pytest.approx(expected, rel=2e-6)
    assert score.num_tokens == len(ids)


@given(st.data(), st.integers(0, 200), st.integers(2, 40))
def test_windows_score_every_token_once_with_context(data, num_tokens, window_tokens):
    overlap = data.draw(st.integers(0, window_tokens - 1))
    ids = list(range(100, 100 + num_tokens))
    scored = []
    for window in split_windows(ids, start_id=7, window_tokens=window_tokens, overlap_tokens=overlap):
        assert window.token_ids[0] == 7
        assert len(window.token_ids) - 1 <= window_tokens
        assert window.num_scored >= 1
        new = window.token_ids[-window.num_scored :]
        assert len(window.token_ids) - 1 - len(new) >= min(overlap, len(scored))
        assert window.token_ids[1:] == ids[new[0] - 100 - (len(window.token_ids) - 1 - len(new)) : new[-1] - 99], "not contiguous"
        scored += new
    assert scored == ids


def test_logits_in_bfloat16_are_summed_in_float32():
    model, tokenizer = tiny_llama().bfloat16(), tiny_tokenizer()
    ids = tokenizer(SENTENCES[0])["input_ids"]
    inputs = torch.tensor([[EOS, *ids[:-1]]])
    with torch.inference_mode():
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits[0]
    assert logits.dtype == torch.bfloat16
    expected = -torch.log_softmax(logits.double(), -1)[torch.arange(len(ids)), ids].sum().item()
    score = score_documents(model, tokenizer, SENTENCES[:1], start_token=choose_start_token(tokenizer), window_tokens=64)
    assert score.nats == pytest.approx(expected, rel=1e-6)


def test_what_unknown_tokens_hide_is_charged():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<s>": 0, "</s>": 1, "<pad>": 2, "<unk>": 3, "fog": 4, "rain": 5}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    model = tiny_opt()
    score = score_documents(model, tokenizer, ["fog megla rain", "čaj"], start_token=choose_start_token(tokenizer), window_tokens=64)
    assert [(d.num_tokens, d.text_bytes, d.unknown_bytes) for d in score.documents] == [(3, 14, 5), (1, 4, 4)]
    nats = nats_by_hand(model, EOS, [4, 3, 5]) + nats_by_hand(model, EOS, [3])
    assert score.bits_per_byte == pytest.approx((nats / math.log(2) + 8 * 9) / 18, rel=1e-5)
    tokenizer.eos_token = "<unk>"  # GPT-2 names its end of text as unknown token too, and never means it
    score = score_documents(model, tokenizer, ["čaj"], start_token=choose_start_token(tokenizer), window_tokens=64)
    assert score.unknown_bytes == 0


def test_start_token_choices():
    assert choose_start_token(tiny_tokenizer(), "eos") == StartToken(EOS, "</s>", "--start-token eos")
    assert choose_start_token(tiny_tokenizer(in_front="</s>"), "bos") == StartToken(BOS, "<s>", "--start-token bos")
    message = r"^--start-token is 'cls'; expected auto, bos, eos or a token of the tokenizer's, which has none so called$"
    with pytest.raises(ValueError, match=message):
        choose_start_token(tiny_tokenizer(), "cls")
    assert choose_start_token(tiny_tokenizer(), "<pad>").token == "<pad>"
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = None
    with pytest.raises(ValueError, match=r"^the tokenizer has no bos token to put before a document; choose --start-token eos$"):
        choose_start_token(tokenizer, "bos")


def test_a_tokenizer_that_puts_two_tokens_in_front_must_be_told():
    from tokenizers import processors

    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> </s> $A", special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    with pytest.raises(ValueError, match=r"^the tokenizer puts 2 tokens before a text \(<s> </s>\); choose with --start-token bos or eos$"):
        choose_start_token(tokenizer)


def test_window_choices():
    assert choose_window_tokens(512) == 512
    assert choose_window_tokens(131_072) == 2048
    assert choose_window_tokens(None) == 2048
    assert choose_window_tokens(131_072, 4096) == 4096
    with pytest.raises(ValueError, match=r"^--context-length is 4096, but the model has 2048 positions; use 2048 or less$"):
        choose_window_tokens(2048, 4096)
    with pytest.raises(ValueError, match=r"^--context-length is 1; it must be at least 2$"):
        choose_window_tokens(2048, 1)


def test_broken_logits_are_an_error():
    model, tokenizer = tiny_opt(), tiny_tokenizer()
    model.model.decoder.layers[0].fc1.weight.data[0, 0] = math.nan
    with pytest.raises(
        ValueError,
        match=r"^the log-likelihood of document 1 of held-out is not finite: the model's logits are broken;"
        r" check the checkpoint with `python -m conversion.verify`$",
    ):
        score_documents(model, tokenizer, DOCUMENTS, start_token=choose_start_token(tokenizer), window_tokens=64, text_name="held-out")


def test_the_end_of_a_turn_is_not_that_of_a_document():
    """As in the tuned models of SmolLM2 and Qwen 2.5."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"})
    assert choose_start_token(tokenizer).token == "</s>"  # what is there of the ends of documents
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endoftext|>"]})
    found = choose_start_token(tokenizer)
    assert (found.id, found.token) == (tokenizer.convert_tokens_to_ids("<|endoftext|>"), "<|endoftext|>")
    assert found.reason.endswith("stood there; <|im_end|> ends a turn, not a document")
    assert choose_start_token(tokenizer, "eos").token == "<|im_end|>"
    assert choose_start_token(tiny_tokenizer()).token == "</s>"


# --- Long documents ---

PARTS = ["tokens 0 to 4,096", "tokens 4,096 to 16,384", "tokens 16,384 to 65,536"]


class Remembered(dict):
    """What a killed process has kept."""

    keep = dict.update


class LargestTensor(TorchDispatchMode):
    """Notes the most numbers that any tensor has."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize("family", ["opt", "llama3", "mistral", "mistral3", "gemma2", "gemma3", "qwen3"])
@pytest.mark.parametrize("overlap", [0, 40])
def test_block_by_block_is_as_all_at_once(family, overlap, monkeypatch):
    """With windows of attention shorter than the text and with caps; blocks of 16 tokens, the last of them shorter."""
    model = tiny_model(family).eval()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 60, (58,), generator=generator).tolist()
    window = Window(ids, len(ids) - 1 - overlap)
    with torch.inference_mode():
        [whole] = bits_per_byte._losses(model, [window])
        monkeypatch.setattr(bits_per_byte, "_WHOLE_LOGIT_BYTES", 0)
        monkeypatch.setattr(bits_per_byte, "_BLOCK_TOKENS", 16)
        [blocks] = bits_per_byte._losses(model, [window])
    assert len(blocks) == len(whole) == 57 - overlap
    torch.testing.assert_close(blocks, whole, rtol=0, atol=2e-5)  # float32 sums in another order


@pytest.mark.parametrize(
    ("positions", "repeated", "parts"),
    [(9_500, 97, PARTS[:2]), pytest.param(65_536, 690, PARTS, marks=pytest.mark.slow)],
)
def test_a_long_document_is_scored_by_its_parts_in_little_memory(positions, repeated, parts):
    """No tensor of the sequence times itself; parts are those of the long document, and sum up to it; what is remembered is not done again."""
    model, tokenizer = tiny_llama(num_positions=positions, hidden_size=8), tiny_tokenizer()
    text = " ".join(SENTENCES * repeated)
    length = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert 0.94 * positions < length < positions
    documents, memory = [SENTENCES[0], text], Remembered()
    settings = {"start_token": choose_start_token(tokenizer), "window_tokens": positions}
    with LargestTensor() as largest:
        score = score_documents(model, tokenizer, documents, memory=memory, **settings)
    assert largest.numbers <= 2048 * length, "scores or masks of all tokens with all"
    assert [part.name for part in score.parts] == parts
    assert {part.num_documents for part in score.parts} == {1}
    assert sum(part.text_bytes for part in score.parts) == len(text.encode())
    assert sum(part.nats for part in score.parts) == pytest.approx(score.documents[1].nats, rel=1e-12)
    figures = score.figures()["parts"][parts[-1]]
    assert figures["bits_per_byte"] == pytest.approx(figures["nats"] / math.log(2) / figures["text_bytes"])

    def broken(*arguments, **options):
        raise AssertionError("computed again")

    model.forward = broken
    assert score_documents(model, tokenizer, documents, memory=memory, **settings) == score
    shorter = dict(list(memory.items())[:-1])
    with pytest.raises(AssertionError, match="computed again"):
        score_documents(model, tokenizer, documents, memory=Remembered(shorter), **settings)


def test_parts_are_the_same_in_shorter_windows():
    """Windows that end elsewhere than the parts do are cut; a text without a long document has no parts."""
    model, tokenizer = tiny_llama(num_positions=512, hidden_size=8), tiny_tokenizer()
    text = " ".join(SENTENCES * 60)
    score = score_documents(model, tokenizer, [text], start_token=choose_start_token(tokenizer), window_tokens=300)
    assert [part.first for part in score.parts] == [0, 4096]
    assert sum(part.nats for part in score.parts) == pytest.approx(score.nats, rel=1e-12)
    alone = score_documents(model, tokenizer, [SENTENCES[0]], start_token=choose_start_token(tokenizer), window_tokens=300)
    assert alone.parts == () and "parts" not in alone.figures()


@pytest.mark.parametrize("name, unknown", [("</s>", "<unk>"), ("<unk>", "<unk>"), ("<pad>", "<pad>")])
@pytest.mark.parametrize("split", [False, True])
def test_text_that_spells_a_special_token_is_text(name: str, unknown: str, split: bool) -> None:
    """As in training, whatever tokenizer_config.json says of it; SmolLM2's unknown token is another special one."""
    tokenizer = tiny_tokenizer()
    plain = [token.id for token in tokenizer.backend_tokenizer.model.tokenize(name)]
    tokenizer.unk_token, tokenizer.split_special_tokens = unknown, split
    assert bits_per_byte.encode_text(tokenizer, name) == (plain, 0) and len(plain) > 1
    assert len(tokenizer(f"{name}", add_special_tokens=False).input_ids) == (len(plain) if split else 1)  # as it was set, for prompts
