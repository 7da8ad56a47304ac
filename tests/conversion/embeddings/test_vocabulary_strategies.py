"""The command with vocabularies made from the source's own: expand, union, prune, keep."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, GPT2Tokenizer, OPTForCausalLM, PreTrainedTokenizerFast

from common.artifacts import check_files
from conversion.embeddings import METHODS
from conversion.embeddings.vocabularies.chat_template import rendered_chats
from conversion.embeddings.vocabularies.strategies import TargetTokenizer
from conversion.gguf.file import GGUFFile
from conversion.gguf.tokenizer import read_tokenizer
from conversion.transfer import main
from data_prep.mixing.sentences import sample_sentences
from data_prep.reading.documents import Documents
from data_prep.tokenizers.files import load_tokenizer, rows_needed, tokenizer_digest
from recipes.projects.smollm2 import cached_path
from tests.conversion.embedding_fixtures import (
    PADDING,
    SOURCE_SPECIALS,
    byte_level,
    demo_text,
    material_of,
    opt_config,
    opt_tensors,
    save_checkpoint,
    sentencepiece_like,
    transfer_folders,
    unigram,
    wrap,
)
from tests.conversion.folders import manifest_of
from tests.data_prep.trained import train_tokenizer
from tests.processes import ROOT
from tests.refusals import refused

INPUT = "model.decoder.embed_tokens.weight"
NUM_NEW = 60
TEXT_USERS = ", ".join(name for name, method in METHODS.items() if "text" in method.uses)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A source whose tokenizer has a token added beyond its vocabulary and a chat template, and what methods learn from."""
    root = tmp_path_factory.mktemp("strategies")
    source = byte_level(demo_text("en"), num_tokens=600, specials=SOURCE_SPECIALS)
    source.add_tokens([AddedToken("<|user|>", special=True)])
    source.chat_template = "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}"
    made = transfer_folders(root, source)
    generation = {"eos_token_id": [0, 600], "pad_token_id": 1, "bad_words_ids": [[5], [400, 401]], "max_new_tokens": 7}
    for name in ("tied", "untied"):
        (made[name] / "generation_config.json").write_text(json.dumps(generation))
    (root / "en.txt").write_text(demo_text("en")[:20_000], encoding="utf-8")
    return made | {"sl": made["text"], "en": root / "en.txt"}


def run(folders: dict[str, Path], output: Path, strategy: str, *options: str, source: str = "tied") -> int:
    arguments = ["--source", folders[source], "--vocabulary", strategy, "--output", output, *options]
    return main([str(argument) for argument in arguments])


def expand(folders: dict[str, Path], output: Path, *options: str, method: str = "mean", source: str = "tied") -> int:
    material = [str(word) for item in (material_of(folders, method) | {"--text": folders["sl"]}).items() for word in item]
    return run(folders, output, "expand", "--new-tokens", str(NUM_NEW), "--method", method, *material, *options, source=source)


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


@pytest.mark.some(5)
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if name != "sava-adam" and method.copies])
def test_expansion_keeps_what_there_was(folders: dict[str, Path], tmp_path: Path, method: str) -> None:
    output = tmp_path / "out"
    assert expand(folders, output, method=method) == 0
    source, target = load_tokenizer(folders["tied"]), load_tokenizer(output)
    num_old = len(source)
    assert len(target) == num_old + NUM_NEW
    assert all(target.convert_tokens_to_ids(token) == i for token, i in source.get_vocab().items())
    before, after = tensors_of(folders["tied"]), tensors_of(output)
    assert after[INPUT].shape[0] == num_old + NUM_NEW  # the padding rows made room
    assert torch.equal(after[INPUT][:num_old], before[INPUT][:num_old])
    assert all(torch.equal(after[name], before[name]) for name in before if name != INPUT)
    assert torch.isfinite(after[INPUT]).all() and after[INPUT].norm(dim=1).min() > 0
    for name in ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json"):
        found, expected = ((folder / name) for folder in (output, folders["tied"]))
        if name == "generation_config.json":
            assert json.loads(found.read_text()) == json.loads(expected.read_text())
        else:
            assert found.read_bytes() == expected.read_bytes()
    config, old = (json.loads((folder / "config.json").read_text()) for folder in (output, folders["tied"]))
    assert config == old | {"vocab_size": num_old + NUM_NEW}
    manifest = manifest_of(output)
    check_files(output, manifest)
    assert manifest.facts["tokenizer_digest"] == tokenizer_digest(target)


@pytest.mark.parametrize("strategy", ["expand", "union"])
def test_growing_a_vocabulary_draws_no_row_of_the_source(folders: dict[str, Path], tmp_path: Path, strategy: str) -> None:
    """Low-resource paper, 4.1: "We randomly initialize new tokens"; those of the source, special ones too, are not new tokens."""
    options = {"expand": ("--new-tokens", str(NUM_NEW), "--text", str(folders["sl"])), "union": ("--tokenizer", str(folders["target"]))}
    with refused(
        f"--vocabulary {strategy} keeps the source's rows, and --method random-all initialises every row randomly; take --method random"
    ):
        run(folders, tmp_path / "out", strategy, "--method", "random-all", *options[strategy])
    assert run(folders, tmp_path / "out", strategy, "--method", "random", *options[strategy]) == 0
    before, after = tensors_of(folders["tied"])[INPUT][:-PADDING], tensors_of(tmp_path / "out")[INPUT]
    assert torch.equal(after[: len(before)], before)
    origins = [entry["origin"] for entry in json.loads((tmp_path / "out" / "transfer.json").read_text())["tokens"]]
    assert "random" not in origins[: len(before)] and set(origins[len(before) :]) == {"random"}


def test_expansion_is_measured(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expand(folders, tmp_path / "out", "--source-text", str(folders["en"]), "--tokenizer-sentences", "200")
    manifest = manifest_of(tmp_path / "out")
    facts = manifest.facts["vocabulary"]
    assert facts["strategy"] == "expand" and facts["num_new_tokens"] == facts["num_reached"] == NUM_NEW
    held_out = facts["held_out_text"]
    assert held_out["num_tokens_after"] < held_out["num_tokens_before"] and 0 < held_out["num_new_tokens_used"] <= NUM_NEW
    assert 0 < facts["source_text"]["share_of_bytes_in_new_tokens"] < 0.1
    # Independently: lines of the English text whose ids differ.
    source, target = load_tokenizer(folders["tied"]), load_tokenizer(tmp_path / "out")
    lines = [line for line in folders["en"].read_text().split("\n") if line]
    changed = sum(source(line)["input_ids"] != target(line)["input_ids"] for line in lines)
    assert facts["source_text"]["share_of_lines_changed"] == changed / len(lines)
    printed = capsys.readouterr().out
    assert f"  {NUM_NEW} new tokens, {facts['num_intermediate_tokens']} of them intermediate; {NUM_NEW} are reachable\n" in printed
    assert "  source-language text: " in printed and "  held-out text: " in printed


@pytest.mark.some(2)
@pytest.mark.parametrize("tokens_by", ["auxiliary", "continued-bpe"])
@pytest.mark.parametrize("source", ["tied", "untied"])
def test_old_text_has_the_same_logits_bit_for_bit(folders: dict[str, Path], tmp_path: Path, source: str, tokens_by: str) -> None:
    expand(folders, tmp_path / "out", "--tokens-by", tokens_by, source=source)
    before, after = load_tokenizer(folders[source]), load_tokenizer(tmp_path / "out")
    old, new = (OPTForCausalLM.from_pretrained(str(path)) for path in (folders[source], tmp_path / "out"))
    lines = [line for line in folders["en"].read_text().split("\n") if line and max(after(line)["input_ids"]) < len(before)]
    assert len(lines) > 30  # text that uses no new token
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for line in lines[:40]:
            ids = before(line)["input_ids"][:90]
            assert after(line)["input_ids"][:90] == ids
            with torch.no_grad():
                expected, found = (model(torch.tensor([ids])).logits for model in (old, new))
            assert found.shape[-1] == len(before) + NUM_NEW and torch.isfinite(found).all()
            assert torch.equal(found[..., : len(before)], expected[..., : len(before)])
    finally:
        torch.set_num_threads(threads)


def test_continued_merges(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("auxiliary", "continued-bpe"):
        expand(folders, tmp_path / name, "--tokens-by", name)
        manifest = manifest_of(tmp_path / name)
        facts = manifest.facts["vocabulary"]
        assert facts["tokens_by"] == name and facts["num_reached"] == NUM_NEW
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / name)
        sample, _ = sample_sentences(Documents([folders["sl"]]), 30_000)
        used = {i for sentence in sample for i in tokenizer(sentence)["input_ids"]}
        num_old = len(load_tokenizer(folders["tied"]))
        assert facts["num_unused"] == sum(i not in used for i in range(num_old, num_old + NUM_NEW))
        assert f"  dead tokens: 0 unreachable, {facts['num_unused']} not in the text learned from\n" in capsys.readouterr().out
    text = "Kako lepo je, če sije sonce, 12 ljudi."
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_tokenizer_of_two_files(folders: dict[str, Path], tmp_path: Path) -> None:
    """As OPT's: vocab.json with merges.txt and no tokenizer.json; the slow tokenizer follows too."""
    tokenizer = byte_level(demo_text("en"), num_tokens=600, specials=SOURCE_SPECIALS)
    config = opt_config(len(tokenizer))
    save_checkpoint(tmp_path / "source", config, opt_tensors(config), None)
    tokenizer.backend_tokenizer.model.save(str(tmp_path / "source"))
    (tmp_path / "source" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}'
    )
    assert {path.name for path in (tmp_path / "source").glob("*.json")} == {
        "config.json", "generation_config.json", "tokenizer_config.json", "vocab.json"
    }  # fmt: skip
    expand(folders | {"two": tmp_path / "source"}, tmp_path / "out", source="two")
    text = demo_text("sl")[:2000]
    fast = AutoTokenizer.from_pretrained(tmp_path / "out")
    (tmp_path / "out" / "tokenizer.json").unlink()
    slow = GPT2Tokenizer.from_pretrained(str(tmp_path / "out"))
    assert len(slow) == len(fast) == 600 + NUM_NEW
    assert slow(text)["input_ids"] == fast(text)["input_ids"] and max(fast(text)["input_ids"]) >= 600


def test_tokenizer_of_sentencepiece_alone(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Llama 2's first folders: every strategy works, and what cannot follow is left out and named."""
    train_tokenizer(Documents([folders["en"]]), tmp_path / "trained", vocab_size=600)
    config = opt_config(600)
    save_checkpoint(tmp_path / "source", config, opt_tensors(config), None)
    (tmp_path / "source" / "tokenizer.model").write_bytes((tmp_path / "trained" / "tokenizer.model").read_bytes())
    paths = folders | {"slow": tmp_path / "source"}
    expand(paths, tmp_path / "expanded", source="slow")
    assert "  left out: tokenizer.model, which cannot follow the new vocabulary\n" in capsys.readouterr().out
    assert not (tmp_path / "expanded" / "tokenizer.model").exists() and (tmp_path / "expanded" / "tokenizer.json").exists()
    old, new = load_tokenizer(tmp_path / "trained"), load_tokenizer(tmp_path / "expanded")
    text = demo_text("sl")[:500]
    assert len(new) == 600 + NUM_NEW and new.decode(new(text, add_special_tokens=False)["input_ids"]) == text
    assert all(new.convert_tokens_to_ids(token) == i for token, i in old.get_vocab().items())
    run(paths, tmp_path / "kept", "keep", source="slow")
    assert (tmp_path / "kept" / "tokenizer.model").read_bytes() == (tmp_path / "source" / "tokenizer.model").read_bytes()
    run(paths | {"other": tmp_path / "kept"}, tmp_path / "replaced", "replace", "--tokenizer", str(tmp_path / "source"), "--method", "mean")
    assert load_tokenizer(tmp_path / "replaced").get_vocab() == old.get_vocab()


def test_given_tokenizer_says_which_tokens(folders: dict[str, Path], tmp_path: Path) -> None:
    options = ("--tokenizer", str(folders["target"]), "--method", "mean")
    run(folders, tmp_path / "some", "expand", "--new-tokens", "50", *options)
    run(folders, tmp_path / "all", "union", *options)
    some, every = (load_tokenizer(tmp_path / name) for name in ("some", "all"))
    assert len(some) == len(load_tokenizer(folders["tied"])) + 50
    texts = {token.replace("▁", " ") for token in load_tokenizer(folders["target"]).get_vocab() if not token.startswith("<")}
    for text in texts:
        pieces = every.backend_tokenizer.model.tokenize("".join(every.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)[0][0]))
        assert len(pieces) == 1, text
    report = json.loads((tmp_path / "all" / "transfer.json").read_text())
    assert report["vocabulary"]["num_new_tokens"] == report["vocabulary"]["num_reached"] > 150


def test_pruning_copies_and_gives_the_same_logits(folders: dict[str, Path], tmp_path: Path) -> None:
    for source in ("tied", "untied"):
        (tmp_path / "few.txt").write_text(demo_text("en")[:3000])
        run(folders, tmp_path / source, "prune", "--text", str(tmp_path / "few.txt"), source=source)
        old_tokenizer, new_tokenizer = load_tokenizer(folders[source]), load_tokenizer(tmp_path / source)
        assert len(new_tokenizer) < len(old_tokenizer)
        old_ids = [old_tokenizer.convert_tokens_to_ids(new_tokenizer.convert_ids_to_tokens(i)) for i in range(len(new_tokenizer))]
        before, after = tensors_of(folders[source]), tensors_of(tmp_path / source)
        for name in (INPUT, "lm_head.weight")[: 1 if source == "tied" else 2]:
            assert torch.equal(after[name], before[name][old_ids])
        first_line = demo_text("en").split("\n")[0][:30]
        text = f"{first_line}<|user|>{first_line}"
        ids = new_tokenizer(text)["input_ids"]
        assert [old_ids[i] for i in ids] == old_tokenizer(text)["input_ids"]
        old, new = (OPTForCausalLM.from_pretrained(str(path)) for path in (folders[source], tmp_path / source))
        with torch.no_grad():
            expected = old(torch.tensor([[old_ids[i] for i in ids]])).logits[..., old_ids]
            torch.testing.assert_close(new(torch.tensor([ids])).logits, expected, atol=1e-5, rtol=0)
        generation = json.loads((tmp_path / source / "generation_config.json").read_text())
        user = new_tokenizer.convert_tokens_to_ids("<|user|>")
        assert generation["eos_token_id"] == [0, user] and user == len(new_tokenizer) - 1
        assert manifest_of(tmp_path / source).facts["vocabulary"]["num_unreached"] == 0
        assert (
            json.loads((tmp_path / source / "tokenizer_config.json").read_text())["added_tokens_decoder"][str(user)]["content"]
            == "<|user|>"
        )


def test_keeping_changes_nothing(folders: dict[str, Path], tmp_path: Path) -> None:
    for source in ("tied", "untied"):
        run(folders, tmp_path / source, "keep", source=source)
        for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
            assert (tmp_path / source / name).read_bytes() == (folders[source] / name).read_bytes(), name
    run(folders, tmp_path / "copied", "keep", "--output-layer", "copied")
    assert torch.equal(tensors_of(tmp_path / "copied")["lm_head.weight"], tensors_of(folders["tied"])[INPUT])
    run(folders, tmp_path / "random", "keep", "--output-layer", "random")
    assert tensors_of(tmp_path / "random")["lm_head.weight"].shape == tensors_of(folders["tied"])[INPUT].shape


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("expand", ["--method", "mean", "--text", "sl"], "--vocabulary expand needs the number of new tokens; give it with --new-tokens N"),
        ("expand", ["--method", "mean", "--new-tokens", "5"], "--vocabulary expand needs text in the target language or a tokenizer; give --text FILE or --tokenizer DIR"),
        ("expand", ["--new-tokens", "5", "--text", "sl"], f"no --method is given; the known ones are {', '.join(METHODS)}"),
        ("expand", ["--method", "mean", "--new-tokens", "0", "--text", "sl"], "--new-tokens is 0; expected at least 1"),
        ("expand", ["--method", "mean", "--new-tokens", "5", "--tokenizer", "target", "--text", "sl"], f"--method mean does not use --text FILE; leave it out (it is for {TEXT_USERS})"),
        ("union", ["--method", "mean"], "--vocabulary union needs the target's tokenizer; give it with --tokenizer DIR"),
        ("union", ["--method", "mean", "--tokenizer", "target", "--new-tokens", "5"], "--new-tokens is for --vocabulary expand and swap; leave it out with union"),
        ("replace", ["--method", "mean"], "--vocabulary replace needs the target's tokenizer; give it with --tokenizer DIR"),
        ("expand", ["--method", "mean", "--new-tokens", "5", "--tokenizer", "target", "--tokens-by", "auxiliary"], "--tokens-by says how expand and swap learn tokens from --text; leave it out with --tokenizer DIR"),
        ("union", ["--method", "mean", "--tokenizer", "target", "--tokens-by", "auxiliary"], "--tokens-by says how expand and swap learn tokens from --text; leave it out with --vocabulary union"),
        ("prune", [], "--vocabulary prune needs text that says which tokens are used; give it with --text FILE"),
        ("prune", ["--text", "en", "--method", "mean"], "--vocabulary prune copies every row; leave out --method mean"),
        ("prune", ["--text", "en", "--min-count", "0"], "--min-count is 0; expected at least 1"),
        ("keep", ["--min-count", "2"], "--min-count is for --vocabulary prune; leave it out with keep"),
        ("keep", ["--text", "en"], f"--vocabulary keep does not use --text FILE; leave it out (it is for {TEXT_USERS})"),
        ("keep", ["--tokenizer", "target"], "--vocabulary keep uses the source's own tokenizer; leave out --tokenizer DIR"),
        ("keep", ["--factorised-size", "full"], "--vocabulary keep leaves the matrices as they are; leave out --factorised-size"),
    ],
)  # fmt: skip
def test_options_must_fit_the_strategy(folders: dict[str, Path], tmp_path: Path, strategy: str, options: list[str], message: str) -> None:
    with refused(message):
        run(folders, tmp_path / "out", strategy, *(str(folders.get(option, option)) for option in options))
    assert not (tmp_path / "out").exists()


def test_more_new_tokens_than_the_text_has(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("nekaj nekaj nekaj\n")
    with pytest.raises(ValueError) as error:
        run(folders, tmp_path / "out", "expand", "--new-tokens", "500", "--method", "mean", "--text", str(tmp_path / "short.txt"))
    assert str(error.value).startswith("500 new tokens are wanted, but the auxiliary tokenizer has only ")
    assert not (tmp_path / "out").exists()


def swap(folders: dict[str, Path], output: Path, *options: str, source: str = "tied") -> int:
    return run(folders, output, "swap", "--new-tokens", "40", "--method", "mean", "--text", str(folders["sl"]), *options, source=source)


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece bpe", "unigram"])
def test_swap_gives_ids_of_tokens_that_go_to_new_ones(folders: dict[str, Path], tmp_path: Path, kind: str) -> None:
    source = folders["untied"]
    if kind != "byte-level":
        source = tmp_path / "source"
        made = {"sentencepiece bpe": sentencepiece_like, "unigram": unigram}[kind](demo_text("en"), num_tokens=600)
        config = opt_config(len(made) + PADDING, tied=False)
        save_checkpoint(source, config, opt_tensors(config), made)
    assert swap({**folders, "source": source}, tmp_path / "out", "--source-text", str(folders["en"]), source="source") == 0
    assert require_swapped(source, tmp_path / "out", num_new=40) > 100
    facts = manifest_of(tmp_path / "out").facts["vocabulary"]
    assert facts["num_reached"] == 40 and facts["held_out_text"]["num_tokens_after"] < facts["held_out_text"]["num_tokens_before"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["OPT", "Mistral", "SmolLM2", "like Gemma", "like Qwen"])
def test_swap_in_tokenizers_of_models(request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Published ones where they are on this machine; Gemma's kind (SentencePiece, bytes, all spaces kept) and Qwen's (NFC, digits alone) by training."""
    tokenizer = published_tokenizer(request, name, tmp_path / "tokenizer")
    config = opt_config(rows_needed(tokenizer) + PADDING, tied=False)
    save_checkpoint(tmp_path / "source", config, opt_tensors(config), tokenizer)
    options = ("--new-tokens", "400", "--method", "mean", "--text", str(folders["sl"]), "--source-text", str(folders["en"]))
    assert run({"source": tmp_path / "source"}, tmp_path / "out", "swap", *options, source="source") == 0
    assert require_swapped(tmp_path / "source", tmp_path / "out", num_new=400) > 100


def published_tokenizer(request: pytest.FixtureRequest, name: str, folder: Path) -> PreTrainedTokenizerFast:
    """A tokenizer as a model has it; the test is skipped where it is not here."""
    english = ROOT / "recipes/demo_text/en.train.txt"
    if name == "like Gemma":
        train_tokenizer(Documents([english]), folder, vocab_size=3000)
        return load_tokenizer(folder)
    if name == "like Qwen":
        tokenizer = byte_level(english.read_text(encoding="utf-8"), num_tokens=3000)
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        words = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        cut = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
        description |= {"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, bytes_alone]}}
        return wrap(Tokenizer.from_str(json.dumps(description)), {"eos": "<|endoftext|>", "pad": "<|endoftext|>"})
    if name == "SmolLM2":
        if not cached_path().is_file():
            pytest.skip("SmolLM2's file is not in the cache; `make demo` fetches it")
        return read_tokenizer(GGUFFile.open(cached_path()).metadata, name)
    return load_tokenizer(request.getfixturevalue("shared_data") / "tokenizers" / {"OPT": "opt_gpt2_bpe", "Mistral": "mistral_v1"}[name])


def require_swapped(source: Path, output: Path, *, num_new: int) -> int:
    """Ids, rows, table and configs of all others stay; text without what went or came has the ids that it had; all comes back.

    Returns:
        how many texts had none of these tokens.
    """
    before, after = load_tokenizer(source), load_tokenizer(output)
    lines = [line.split("\t") for line in (output / "swapped_tokens.tsv").read_text(encoding="utf-8").split("\n")[1:-1]]
    free = {int(token_id) for token_id, _, _ in lines}
    assert len(free) == num_new and not {old for _, old, _ in lines} & {new for _, _, new in lines}
    spelled = after.backend_tokenizer.id_to_token
    exchanged = [(i, before.backend_tokenizer.id_to_token(i), spelled(i)) for i in sorted(free)]
    assert lines == [line.split("\t") for line in TargetTokenizer(after, {}, swapped=exchanged).swapped_lines]
    assert all(spelled(i) == token for token, i in before.get_vocab().items() if i not in free)
    old_rows, new_rows = tensors_of(source), tensors_of(output)
    assert old_rows.keys() == new_rows.keys()
    for name, rows in old_rows.items():
        same = [i for i in range(len(rows)) if i not in free] if name in (INPUT, "lm_head.weight") else slice(None)
        assert rows.shape == new_rows[name].shape and torch.equal(rows[same], new_rows[name][same])
    assert not torch.equal(old_rows[INPUT], new_rows[INPUT])
    config, other = (json.loads((folder / "config.json").read_text()) for folder in (source, output))
    assert config == other
    num_same = 0
    for text in (*demo_text("sl").splitlines()[:300], *demo_text("en").split()[:1000], "x  \u00e9\u4e2d\n\t1234"):
        first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for tokenizer in (before, after))
        assert after.decode(second) == before.decode(first)
        if not free & {*first, *second}:
            assert first == second
            num_same += 1
    return num_same


def test_tokens_with_tabs_and_line_breaks_stay_on_their_line() -> None:
    target = TargetTokenizer(byte_level("a", num_tokens=257), {}, swapped=[(7, ");\r", "\ta"), (9, "\n\n", "\\n")])
    assert target.swapped_lines == ["7\t);\\r\t\\ta", "9\t\\n\\n\t\\\\n"]


def test_swap_leaves_what_the_chat_template_writes(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def taken(*options: str) -> list[str]:
        assert swap({**folders, "chat": tmp_path / "chat"}, tmp_path / "out", "--show-swap", *options, source="chat") == 0
        return [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]

    shutil.copytree(folders["tied"], tmp_path / "chat")
    word = next(token for token in taken() if token.startswith("\u0120"))
    template = tmp_path / "chat/chat_template.jinja"
    template.write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}A" + word.replace("\u0120", " ") + " {{ messages }}"
    )
    assert word not in taken()
    template.write_text("{{ nothing.at.all }}")
    assert word in taken() and "cannot be rendered" in rendered_chats(load_tokenizer(tmp_path / "chat"))[1][0]


def test_what_swap_takes_and_shows(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A language that is given up, or scripts; before anything is written."""
    (tmp_path / "given_up.txt").write_text(demo_text("en")[20_000:60_000], encoding="utf-8")
    assert swap(folders, tmp_path / "out", "--swap-text", str(tmp_path / "given_up.txt"), "--show-swap") == 0
    shown = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    used = {i for ids in load_tokenizer(folders["tied"])(demo_text("sl")[:30_000].splitlines())["input_ids"] for i in ids}
    assert len(shown) == 40 and not used & {int(token_id) for token_id, _, _ in shown} and not (tmp_path / "out").exists()
    for sentence, options in {
        "only 0 can without taking others with them": ["--swap-script", "Han"],
        "give names of Unicode such as Cyrillic": ["--swap-script", "Klingonese"],
        "leave out --factorised-size": ["--factorised-size", "4"],
        "but only": ["--new-tokens", "5000"],
    }.items():
        with pytest.raises(ValueError, match=sentence):
            swap(folders, tmp_path / "out", *options)
        assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="--swap-script is for --vocabulary swap"):
        expand(folders, tmp_path / "out", "--swap-script", "Han")
