from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from common.artifacts import read_manifest
from conversion import edit_vocabulary, hf_to_nemo
from conversion.checkpoints.hf_model import inspect_checkpoint, load_model
from conversion.inspection import describe
from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest
from tests.conversion.conftest import VOCAB_SIZE, OPTMaker
from tests.conversion.folders import edited_tensors
from tests.refusals import refused

INPUT, OUTPUT = "model.decoder.embed_tokens.weight", "lm_head.weight"
NUM_TOKENS = 280  # of the tokenizer; the other 21 rows are padding
TEXT = "The quick brown fox and the other animals were there."


def run(hf_dir: Path, *arguments: str | Path) -> Path:
    output = hf_dir.parent / "edited"
    assert edit_vocabulary.main(["--input", str(hf_dir), "--output", str(output), *map(str, arguments)]) == 0
    return output


def config(directory: Path) -> dict[str, object]:
    return json.loads((directory / "config.json").read_text())


def assert_others_unchanged(before: Path, after: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    old, new = load_file(before / "model.safetensors"), load_file(after / "model.safetensors")
    for name in old.keys() - {INPUT, OUTPUT}:
        assert torch.equal(old[name], new[name])
    return old, new


# -- untie and tie --------------------------------------------------------------------------------------------------------


def test_untie_copies_and_changes_no_logit(make_opt: OPTMaker) -> None:
    hf_dir = make_opt()
    edited = run(hf_dir, "--untie")
    old, new = assert_others_unchanged(hf_dir, edited)
    assert torch.equal(new[INPUT], old[INPUT]) and torch.equal(new[OUTPUT], old[INPUT])
    assert config(edited) == {**config(hf_dir), "tie_word_embeddings": False}
    ids = torch.arange(20)[None]
    first, second = (AutoModelForCausalLM.from_pretrained(directory)(ids).logits for directory in (hf_dir, edited))
    assert torch.equal(first, second)
    manifest = read_manifest(edited)
    assert manifest and manifest.facts["tie_word_embeddings"] is False and manifest.facts["head"] == "copied"
    hf_to_nemo.convert(edited, edited.parent / "nemo")


def test_tie_is_the_way_back(make_opt: OPTMaker) -> None:
    hf_dir = make_opt()
    untied = run(hf_dir, "--untie").rename(hf_dir.parent / "untied")
    tied = run(untied, "--tie")
    assert (tied / "model.safetensors").read_bytes() == (hf_dir / "model.safetensors").read_bytes()
    assert config(tied) == {**config(hf_dir), "tie_word_embeddings": True}


def test_tie_names_the_number_of_rows_that_differ(make_opt: OPTMaker) -> None:
    hf_dir = make_opt()
    untied = run(hf_dir, "--untie").rename(hf_dir.parent / "untied")
    with edited_tensors(untied) as state:
        state[OUTPUT][3, 0] += 1
        state[OUTPUT][7] = 0
        state[OUTPUT][9, 1] = -state[OUTPUT][9, 1]
    (untied / "scion.json").unlink()
    message = (
        f"{untied} cannot be tied: 3 of {VOCAB_SIZE} rows of lm_head.weight differ from those of {INPUT}; one of the two would be lost"
    )
    with refused(message):
        run(untied, "--tie")
    assert not (untied.parent / "edited").exists()


def test_nothing_to_untie_or_tie(make_opt: OPTMaker) -> None:
    tied, untied = make_opt("tied"), make_opt("untied", tie_word_embeddings=False)
    with refused(f"{tied} has one matrix for input and output already; there is nothing to tie"):
        run(tied, "--tie")
    with refused(f"{untied} has two matrices for input and output already; there is nothing to untie"):
        run(untied, "--untie")


def test_a_model_is_tied_by_its_config_not_by_what_is_missing(make_opt: OPTMaker) -> None:
    """The one matrix of a tied model may stand under the name of the output layer; an untied model without its output layer is broken."""
    hf_dir, broken = make_opt(), make_opt("untied", tie_word_embeddings=False)
    whole = inspect_checkpoint(hf_dir, name="whole")
    ids = torch.arange(20)[None]
    expected = load_model(whole, device="cpu", dtype="float32")(ids).logits
    with edited_tensors(hf_dir) as state:
        state[OUTPUT] = state.pop(INPUT)
    assert not describe(hf_dir).problems and describe(hf_dir).notes == [f"the one matrix of input and output stands under {OUTPUT} alone"]
    assert torch.equal(load_model(whole, device="cpu", dtype="float32")(ids).logits, expected)
    edited = load_file(run(hf_dir, "--append-rows", "1") / "model.safetensors")
    assert OUTPUT not in edited and torch.equal(edited[INPUT][:VOCAB_SIZE], state[OUTPUT])
    with edited_tensors(broken) as lacking:
        del lacking[OUTPUT]
    shutil.rmtree(broken.parent / "edited")
    with pytest.raises(ValueError, match=r"tie_word_embeddings false.*but the weights have no lm_head.weight; restore the matrix"):
        run(broken, "--append-rows", "1")
    assert not (broken.parent / "edited").exists()


# -- append ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_append_rows_is_the_mean_of_real_rows(make_opt: OPTMaker, tied: bool) -> None:
    hf_dir = make_opt(tie_word_embeddings=tied)
    edited = run(hf_dir, "--append-rows", "5")
    old, new = assert_others_unchanged(hf_dir, edited)
    for name in [INPUT] if tied else [INPUT, OUTPUT]:
        assert new[name].shape == (VOCAB_SIZE + 5, 32)
        assert torch.equal(new[name][:VOCAB_SIZE], old[name])
        mean = old[name][:NUM_TOKENS].double().mean(dim=0).float()
        assert torch.allclose(new[name][VOCAB_SIZE:], mean.expand(5, -1), atol=1e-6)
    assert config(edited) == {**config(hf_dir), "vocab_size": VOCAB_SIZE + 5}
    assert (edited / "tokenizer.json").read_bytes() == (hf_dir / "tokenizer.json").read_bytes()


def test_append_random_rows_by_the_seed(make_opt: OPTMaker) -> None:
    hf_dir = make_opt(tie_word_embeddings=False)
    results = []
    for seed in ("1", "1", "2"):
        edited = run(hf_dir, "--append-rows", "400", "--new-rows", "random", "--seed", seed)
        results.append(load_file(edited / "model.safetensors"))
        for path in edited.iterdir():
            path.unlink()
    first, same, other = results
    assert torch.equal(first[INPUT], same[INPUT]) and not torch.equal(first[INPUT], other[INPUT])
    old = load_file(hf_dir / "model.safetensors")
    for name in (INPUT, OUTPUT):
        drawn, real = first[name][VOCAB_SIZE:], old[name][:NUM_TOKENS]
        # Means of 400 draws are off by a twentieth of the deviation, seldom by four times that.
        assert ((drawn.mean(0) - real.mean(0)).abs() / real.std(0)).max() < 0.2
        assert ((drawn.std(0) / real.std(0)) - 1).abs().max() < 0.2
    assert not torch.equal(first[INPUT][VOCAB_SIZE:], first[OUTPUT][VOCAB_SIZE:])


def test_append_tokens_uses_the_padding_first(make_opt: OPTMaker, tmp_path: Path) -> None:
    """280 tokens, 301 rows: the new tokens take rows 280 to 304."""
    hf_dir = make_opt(dtype=torch.bfloat16)
    tokens = [f"<extra {number}>" for number in range(25)]
    (tmp_path / "tokens.txt").write_text("".join(f"{token}\n" for token in tokens))
    edited = run(hf_dir, "--append-tokens", tmp_path / "tokens.txt")
    old, new = assert_others_unchanged(hf_dir, edited)
    assert new[INPUT].shape == (305, 32) and new[INPUT].dtype == torch.bfloat16
    assert torch.equal(new[INPUT][:NUM_TOKENS], old[INPUT][:NUM_TOKENS])
    assert torch.equal(new[INPUT][NUM_TOKENS:], new[INPUT][-1].expand(25, -1))
    before, after = (AutoTokenizer.from_pretrained(directory) for directory in (hf_dir, edited))
    assert [after.convert_tokens_to_ids(token) for token in tokens] == list(range(280, 305))
    assert after(TEXT)["input_ids"] == before(TEXT)["input_ids"]
    assert after("a<extra 7>b")["input_ids"].count(287) == 1
    assert (edited / "tokenizer_config.json").read_bytes() == (hf_dir / "tokenizer_config.json").read_bytes()
    manifest = read_manifest(edited)
    assert manifest and manifest.facts["tokenizer_digest"] == tokenizer_digest(after)


def test_tokens_are_appended_behind_the_highest_id(make_opt: OPTMaker, tmp_path: Path) -> None:
    """An id in the middle has no token, so that there is one token less than ids."""
    hf_dir = make_opt()
    content = json.loads((hf_dir / "tokenizer.json").read_text())
    vocabulary, (first, second) = content["model"]["vocab"], content["model"]["merges"].pop()
    hole, last = vocabulary.pop(first + second), max(vocabulary, key=vocabulary.__getitem__)
    if hole > vocabulary[last]:
        hole, vocabulary[last] = vocabulary[last], hole
    (hf_dir / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokens.txt").write_text("new\n")
    edited = run(hf_dir, "--append-tokens", tmp_path / "tokens.txt")
    old, new = assert_others_unchanged(hf_dir, edited)
    after = load_tokenizer(edited)
    assert after.get_vocab()[last] == NUM_TOKENS - 1 and after("a new a")["input_ids"].count(NUM_TOKENS) == 1
    assert torch.equal(new[INPUT][:NUM_TOKENS], old[INPUT][:NUM_TOKENS])
    with_token = [i for i in range(NUM_TOKENS) if i != hole]
    assert torch.allclose(new[INPUT][NUM_TOKENS], old[INPUT][with_token].double().mean(0).float(), atol=1e-6)


def test_tokens_begin_as_others(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt(tie_word_embeddings=False)
    (tmp_path / "tokens.txt").write_text("one=a\ntwo=a b\n==\n")
    edited = run(hf_dir, "--append-tokens", tmp_path / "tokens.txt")
    old, new = assert_others_unchanged(hf_dir, edited)
    a, b, one, two, _ = load_tokenizer(edited).convert_tokens_to_ids(["a", "b", "one", "two", "=="])
    assert (one, two) == (NUM_TOKENS, NUM_TOKENS + 1)
    for name in (INPUT, OUTPUT):
        assert torch.equal(new[name][one], old[name][a])
        assert torch.equal(new[name][two], old[name][[a, b]].double().mean(0).float())


def test_tokens_that_a_decoder_takes_for_bytes_come_back_as_they_are(make_opt: OPTMaker, tmp_path: Path) -> None:
    """The letters é, đ and č of a byte-level vocabulary stand for bytes; 谁 and a space do not.  A second edit keeps the first."""
    hf_dir, tokens = make_opt(), ["谁", "été", "đuveč", "to¿é+?", "a č"]
    for number, listed in enumerate((tokens[:2], tokens[2:])):
        (tmp_path / "tokens").write_text("\n".join(listed))
        hf_dir = run(hf_dir, "--append-tokens", tmp_path / "tokens").rename(tmp_path / f"edited {number}")
    after = load_tokenizer(hf_dir)
    for token_id, token in enumerate(tokens, NUM_TOKENS):
        for text in (token, f"x{token}y", f"a {token} b\n{token}"):
            ids = after(text, add_special_tokens=False)["input_ids"]
            assert token_id in ids and after.decode(ids) == text
    settings = json.loads((hf_dir / "tokenizer_config.json").read_text())
    assert (
        settings["tokenizer_class"] == "PreTrainedTokenizerFast" and settings["eos_token"]
    )  # transformers 5 has other decoders for others


def test_tokens_that_cannot_be_appended(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    (tmp_path / "known").write_text("new\n</s>\n")
    (tmp_path / "twice").write_text("new\nnew\n")
    with refused(f"1 of the 2 tokens are already in the tokenizer of {hf_dir}, the first '</s>'"):
        run(hf_dir, "--append-tokens", tmp_path / "known")
    with refused("the list of tokens has one twice or an empty line; give each once"):
        run(hf_dir, "--append-tokens", tmp_path / "twice")
    (tmp_path / "unknown").write_text("new=no-such-token\n")
    with pytest.raises(ValueError, match="'new' is to begin as 'no-such-token', which is not a token of"):
        run(hf_dir, "--append-tokens", tmp_path / "unknown")
    with refused("0 rows are to be added; expected at least 1"):
        run(hf_dir, "--append-rows", "0")
    assert not (tmp_path / "edited").exists()


# -- keep -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_ids", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_keep_the_tokens_of_a_text(make_opt: OPTMaker, tmp_path: Path, tied: bool, as_ids: bool) -> None:
    """Their rows are theirs under new ids, the text is cut as before, and the logits over kept tokens are the same."""
    hf_dir = make_opt(tie_word_embeddings=tied)
    tokenizer = AutoTokenizer.from_pretrained(hf_dir)
    ids = sorted(set(tokenizer(TEXT)["input_ids"]))
    (tmp_path / "keep.json").write_text(json.dumps(ids if as_ids else tokenizer.convert_ids_to_tokens(ids)))
    edited = run(hf_dir, "--keep", tmp_path / "keep.json")
    old, new = assert_others_unchanged(hf_dir, edited)
    smaller = AutoTokenizer.from_pretrained(edited)
    assert len(ids) < len(smaller) == new[INPUT].shape[0] == config(edited)["vocab_size"] < NUM_TOKENS + 1
    for name in [INPUT] if tied else [INPUT, OUTPUT]:
        for token, new_id in smaller.get_vocab().items():
            assert torch.equal(new[name][new_id], old[name][tokenizer.convert_tokens_to_ids(token)]), token
    before, after = tokenizer(TEXT)["input_ids"], smaller(TEXT)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(before) == smaller.convert_ids_to_tokens(after)
    model, small_model = (AutoModelForCausalLM.from_pretrained(directory) for directory in (hf_dir, edited))
    kept = torch.tensor([tokenizer.convert_tokens_to_ids(token) for token in smaller.convert_ids_to_tokens(range(len(smaller)))])
    expected = model(torch.tensor([before[:20]])).logits[..., kept]
    assert torch.allclose(small_model(torch.tensor([after[:20]])).logits, expected, atol=1e-5)
    roles = [config(edited)[f"{role}_token_id"] for role in ("bos", "eos", "pad")]
    assert roles == [
        smaller.convert_tokens_to_ids(token) for token in tokenizer.convert_ids_to_tokens([config(hf_dir)["bos_token_id"], 2, 1])
    ]
    merges = json.loads((edited / "tokenizer.json").read_text())["model"]["merges"]
    vocabulary = smaller.get_vocab()
    assert merges and all(first in vocabulary and second in vocabulary and first + second in vocabulary for first, second in merges)


def test_tokens_that_cannot_be_kept(make_opt: OPTMaker, tmp_path: Path) -> None:
    hf_dir = make_opt()
    for content, message in (
        ('["the", "no such token"]', f"2 of the 2 tokens to keep are not in the tokenizer of {hf_dir}, the first 'the'"),
        ("[1, 280]", f"1 of the 2 tokens to keep are not in the tokenizer of {hf_dir}, the first 280"),
        ("[1, 2.5]", f"{tmp_path / 'keep'} holds 2.5; expected tokens and ids"),
        ("[]", "the list of tokens to keep is empty"),
    ):
        (tmp_path / "keep").write_text(content)
        with refused(message):
            run(hf_dir, "--keep", tmp_path / "keep")
    assert not (tmp_path / "edited").exists()


def test_a_single_edit_per_call(make_opt: OPTMaker) -> None:
    for arguments in (["--untie", "--tie"], []):
        with pytest.raises(SystemExit) as end:
            run(make_opt(f"hf{len(arguments)}"), *arguments)
        assert end.value.code == 2
