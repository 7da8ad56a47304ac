"""Log-likelihoods and texts are those of lm-eval's own loop, from fewer tokens."""

import contextlib
import random

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from eval.running.hf_backend import LocalModel
from eval.running.workers import Call, answer_call
from tests.eval.tiny_models import SENTENCES, tiny_gemma3, tiny_llama, tiny_opt, tiny_tokenizer

MODELS = [tiny_llama, tiny_opt, tiny_gemma3]  # the last forgets what is more than 16 tokens back, in two layers of three
GREEDY = {"until": ["\n"], "max_gen_toks": 5, "do_sample": False}


def scored(*pairs: tuple[str, str]) -> list[Instance]:
    return [Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0) for pair in pairs]


def generated(*prompts: str) -> list[Instance]:
    return [Instance(request_type="generate_until", doc={}, arguments=(prompt, GREEDY), idx=0) for prompt in prompts]


def questions(seed: int) -> list[tuple[str, str]]:
    """Some with several choices, some that share a passage, one without a context, one asked twice."""
    draw = random.Random(seed)
    words = " ".join(SENTENCES).split()
    pairs = []
    for _ in range(8):
        context = " ".join(draw.choices(words, k=draw.randint(1, 14)))
        pairs += [(context, " " + " ".join(draw.choices(words, k=draw.randint(1, 4)))) for _ in range(draw.choice([1, 2, 4]))]
    pairs += [(f"{SENTENCES[1]} {word} Odgovor:", choice) for word in words[:3] for choice in (" Da", " Ne")]
    draw.shuffle(pairs)
    return [*pairs, ("", " megla"), ("Presledek na koncu ", "je"), pairs[0]]


@contextlib.contextmanager
def counted(model):
    """What the model reads, (rows, tokens) of each pass, and how many logits it makes."""
    passes, logits = [], []
    hooks = [
        model.get_input_embeddings().register_forward_hook(lambda module, given, output: passes.append(tuple(given[0].shape))),
        model.get_output_embeddings().register_forward_hook(lambda module, given, output: logits.append(output.shape[:-1].numel())),
    ]
    yield passes, logits
    for hook in hooks:
        hook.remove()


@pytest.mark.some(5)
@pytest.mark.parametrize("make_model", MODELS)
@pytest.mark.parametrize("in_front", [None, "<s>"])
@pytest.mark.parametrize("positions", [64, 24])  # the smaller cuts the beginning of some
def test_lm_evals_own_loop_says_the_same(make_model, in_front, positions) -> None:
    model, tokenizer, requests = make_model(), tiny_tokenizer(in_front=in_front), scored(*questions(0))
    arguments = {"pretrained": model, "tokenizer": tokenizer, "batch_size": 4, "max_length": positions}
    theirs = HFLM(**arguments).loglikelihood(requests, disable_tqdm=True)
    ours = LocalModel(**arguments).loglikelihood(requests, disable_tqdm=True)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    # Both sum in float32: what differs is the order of sums in products over 32 to 64 numbers.
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], rel=2e-6)


def test_a_model_that_keeps_a_state_reads_every_sequence_whole() -> None:
    model, requests = tiny_llama(), scored(("Zjutraj je nad dolino", " megla"), ("Zjutraj je nad dolino", " cesta"))
    theirs = HFLM(pretrained=model, tokenizer=tiny_tokenizer(), batch_size=2).loglikelihood(requests, disable_tqdm=True)
    model._is_stateful = True
    backend = LocalModel(pretrained=model, tokenizer=tiny_tokenizer(), batch_size=2)
    with counted(model) as (passes, _):
        ours = backend.loglikelihood(requests, disable_tqdm=True)
    assert [rows for rows, _ in passes] == [2]
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], rel=2e-6)


def test_what_choices_share_is_read_once_and_only_their_logits_are_made() -> None:
    model, tokenizer = tiny_llama(), tiny_tokenizer()
    backend = LocalModel(pretrained=model, tokenizer=tokenizer, batch_size=8)
    context = "Zjutraj je nad dolino ležala"
    # The last token is only predicted, so one of a single token needs no pass.
    choices = ["qq", "xyz", "w"]
    with counted(model) as (passes, logits):
        backend.loglikelihood(scored(*((context, choice) for choice in choices)), disable_tqdm=True)
    assert passes == [(1, len(tokenizer.encode(context))), (2, 2)]
    assert logits == [1, 1 + 2]


def test_texts_go_on_from_what_was_read() -> None:
    for make_model in MODELS:
        model, tokenizer = make_model(num_positions=128), tiny_tokenizer()
        arguments = {"pretrained": model, "tokenizer": tokenizer, "batch_size": 4}
        prompts = ["Zjutraj je nad", "Žena je šla čez", "In the"]
        pairs, texts = scored(*((prompt, choice) for prompt in prompts for choice in (" Da", " Ne"))), generated(*prompts)
        theirs = HFLM(**arguments)
        expected = [*theirs.loglikelihood(pairs, disable_tqdm=True), *theirs.generate_until(texts, disable_tqdm=True)]
        backend = LocalModel(**arguments)
        assert backend.encoder is not None
        call = Call("loglikelihood", [*pairs, *texts], pairs=backend.encoder.pairs(pairs))
        with counted(model) as (passes, _):
            answers, finished = answer_call(backend, call)
        assert answers[len(pairs) :] == expected[len(pairs) :]
        assert [value for value, _ in answers[: len(pairs)]] == pytest.approx([value for value, _ in expected[: len(pairs)]], rel=2e-6)
        assert finished == [*[None] * len(pairs), *[False] * len(texts)]
        longest = max(len(tokenizer.encode(f"{prompt} ")) for prompt in prompts)  # what the choices of each share begins with a space
        assert [shape for shape in passes if shape[1] > 1] == [(3, longest)]
        assert passes[-1] == (3, 1)


def test_prompts_longer_than_what_a_model_remembers_are_read_again() -> None:
    """Of a window of 16 tokens too little is kept to go on from the middle of it."""
    model, prompt = tiny_gemma3(num_positions=128), SENTENCES[1]
    backend = LocalModel(pretrained=model, tokenizer=tiny_tokenizer(), batch_size=4)
    assert backend.encoder is not None
    pairs, texts = scored((prompt, " Da"), (prompt, " Ne")), generated(prompt)
    expected = HFLM(pretrained=model, tokenizer=tiny_tokenizer()).generate_until(texts, disable_tqdm=True)
    answers, _ = answer_call(backend, Call("loglikelihood", [*pairs, *texts], pairs=backend.encoder.pairs(pairs)))
    assert answers[2:] == expected
    assert (
        backend._read_before(torch.tensor([backend.tok_encode(prompt)]), {"attention_mask": torch.ones(1, len(backend.tok_encode(prompt)))})
        is None
    )


def test_nothing_to_score_is_refused() -> None:
    """lm-eval's assertion has no sentence."""
    backend = LocalModel(pretrained=tiny_llama(), tokenizer=tiny_tokenizer(), batch_size=4)
    for pair in (((4, 5), ()), ((), (4,))):
        with pytest.raises(ValueError, match=r"^a request has no token in its context or in what comes after it, so"):
            backend.score([pair])
