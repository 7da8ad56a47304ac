"""Relative representations: what must change nothing, what must change something, and the command."""

import csv
import re

import numpy as np
import pytest

from eval.embeddings import main
from eval.scoring.relative_embeddings import TokenMatrices, choose_anchors, compare, read_matrices, token_rows
from tests.eval.tiny_models import tiny_llama, tiny_opt, tiny_tokenizer

TOKENS = [f" word{n}".encode() for n in range(200)] + [f"piece{n}".encode() for n in range(200)]


def model(name, matrix, tokens=TOKENS):
    matrix = matrix.astype(np.float32)
    return TokenMatrices(name, {token: row for row, token in enumerate(tokens)}, matrix, matrix)


@pytest.fixture
def matrix():
    return np.random.default_rng(0).normal(size=(400, 48)) + 0.3


def similarity(first, second, **how):
    return compare([model("a", first), model("b", second)], **how).input[0, 1]


@pytest.mark.parametrize("norm", ["dot", "cosine"])
def test_rotation_and_scale_change_nothing(matrix, norm):
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(48, 48)))
    assert similarity(matrix, matrix, norm=norm) == pytest.approx(1, abs=1e-6)
    assert similarity(matrix, matrix @ rotation, norm=norm) == pytest.approx(1, abs=1e-5)
    assert similarity(matrix, 7 * matrix, norm=norm) == pytest.approx(1, abs=1e-6)
    wider = np.concatenate([matrix, np.zeros((400, 80))], axis=1)
    assert similarity(matrix, wider, norm=norm) == pytest.approx(1, abs=1e-6), "models of different sizes compare"


def test_lengths_of_rows_change_dots_alone(matrix):
    rescaled = matrix * np.random.default_rng(2).uniform(0.3, 3, size=(400, 1))
    assert similarity(matrix, rescaled, norm="cosine") == pytest.approx(1, abs=1e-6)
    assert similarity(matrix, rescaled, norm="dot") < 0.99


def test_unrelated_embeddings_are_near_zero():
    tokens = [f" word{n}".encode() for n in range(4000)] + TOKENS[200:]  # anchors, each its own best description, are few
    first, second = (np.random.default_rng(seed).normal(size=(4200, 256)) for seed in (3, 4))

    def similarity(other):
        return compare([model("a", first, tokens), model("b", other, tokens)]).input[0, 1]

    assert abs(similarity(second)) < 0.1
    assert 0.3 < similarity(first + second) < 0.9, "half of it is the other's"


def test_tokens_are_matched_by_their_text_not_by_their_row(matrix):
    order = np.random.default_rng(5).permutation(400)
    shuffled = model("b", matrix[order], [TOKENS[i] for i in order])
    assert compare([model("a", matrix), shuffled]).input[0, 1] == pytest.approx(1, abs=1e-6)
    more = model("c", np.concatenate([matrix, matrix[:5]]), [*TOKENS, *(f" new{n}".encode() for n in range(5))])
    found = compare([model("a", matrix), more])
    assert (found.num_tokens, found.input[0, 1]) == (400, pytest.approx(1, abs=1e-6))


def test_anchors():
    anchors = choose_anchors(TOKENS, seed=1)
    assert len(set(anchors)) == 256
    assert all(anchor.startswith(b" ") == (number < 128) for number, anchor in enumerate(anchors))
    assert choose_anchors(TOKENS, seed=1) == anchors != choose_anchors(TOKENS, seed=2)
    with pytest.raises(ValueError, match=r"^the models share 100 tokens that do not begin a word, but 128 are needed as anchors;"):
        choose_anchors(TOKENS[:300], seed=1)


def test_rows_that_say_nothing(matrix):
    broken = matrix.copy()
    broken[7] = 0
    with pytest.raises(ValueError, match=r"^1 rows of b are zero or no numbers, first that of ' word7'; check the checkpoint$"):
        similarity(matrix, broken)
    broken[8] = np.nan
    with pytest.raises(ValueError, match=r"^\d+ rows of b are zero or no numbers"):
        similarity(matrix, broken, norm="cosine")


def many_words():
    """A byte-level tokenizer with enough tokens of both kinds."""
    letters = "bcdfgklmnprstvz"
    words = [a + v + b + v2 for a in letters for v in "aeiou" for b in letters for v2 in "ae"]
    return tiny_tokenizer(vocab_size=900, texts=[" ".join(words)])


def test_the_command_on_models(tmp_path, capsys):
    import torch

    tokenizer = many_words()
    folders = []
    for name, made in (("opt", tiny_opt), ("llama", tiny_llama)):
        net = made(vocab_size=900)
        net.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        folders.append(str(tmp_path / name))
    rotated = tiny_llama(vocab_size=900)
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(32, 32)))
    for layer in (rotated.model.embed_tokens, rotated.lm_head):
        layer.weight.data = layer.weight.data @ torch.tensor(rotation, dtype=torch.float32)
    rotated.save_pretrained(tmp_path / "rotated")
    tokenizer.save_pretrained(tmp_path / "rotated")
    output = tmp_path / "out"
    assert main(["--model", *folders, f"turned={tmp_path}/rotated", "--output", str(output)]) == 0
    assert {path.name for path in output.iterdir()} == {"similarity.html", "similarity.png", "similarity.csv", "anchors.json", "scion.json"}
    with open(output / "similarity.csv") as stream:
        found = {(row["matrix"], row["model"], row["other"]): float(row["similarity"]) for row in csv.DictReader(stream)}
    assert len(found) == 2 * 9
    assert found["input", "llama", "turned"] == pytest.approx(1, abs=1e-5)
    assert found["output", "llama", "turned"] == pytest.approx(1, abs=1e-5)
    assert abs(found["input", "llama", "opt"]) < 0.2
    assert found["input", "opt", "opt"] == found["output", "opt", "opt"] == pytest.approx(1, abs=1e-6)
    assert "input embeddings" in capsys.readouterr().out
    matrices = read_matrices(tmp_path / "opt", name="opt")
    assert matrices.output is matrices.input, "tied"
    assert b"<s>" not in token_rows(tokenizer)
    assert token_rows(tokenizer)[b" ba"] == tokenizer.get_vocab()["Ġba"]
    assert not re.search(r"https?://(?!www\.w3)", re.sub(r"base64,[A-Za-z0-9+/=]+", "", (output / "similarity.html").read_text()))


def test_refusals(tmp_path):
    tiny_opt().save_pretrained(tmp_path / "opt")
    tiny_tokenizer().save_pretrained(tmp_path / "opt")
    tiny_opt(seed=1).save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    out = ["--output", str(tmp_path / "out")]
    with pytest.raises(ValueError, match=r"^--model names one model; give two or more to compare$"):
        main(["--model", str(tmp_path / "opt"), *out])
    with pytest.raises(ValueError, match=rf"^the model folder {tmp_path}/no does not exist$"):
        main(["--model", str(tmp_path / "opt"), str(tmp_path / "no"), *out])
    with pytest.raises(
        ValueError, match=r"^the models share \d+ tokens that begin a word, but 128 are needed as anchors; compare models with"
    ):
        main(["--model", str(tmp_path / "opt"), str(tmp_path / "other"), *out])
    assert not (tmp_path / "out").exists()
