"""The command: whole checkpoints in and out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken
from transformers import OPTForCausalLM

from common.artifacts import check_files
from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.embeddings import METHODS
from conversion.transfer import main
from data_prep.tokenizers.files import load_tokenizer, read_tokenizer_files, tokenizer_digest
from tests.conversion.embedding_fixtures import (
    PADDING,
    demo_text,
    marked_bpe,
    opt_config,
    opt_tensors,
    save_checkpoint,
    transfer_arguments,
    transfer_folders,
)
from tests.conversion.folders import edited_tensors, manifest_of
from tests.refusals import refused

INPUT, OUTPUT = "model.decoder.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return transfer_folders(tmp_path_factory.mktemp("transfer"))


def run(folders: dict[str, Path], output: Path, *options: str, source: str = "tied", method: str = "mean") -> int:
    return main(transfer_arguments(folders, output, *options, source=source, method=method))


@pytest.mark.some(6)
@pytest.mark.parametrize("method", [name for name in METHODS if name != "sava-adam" and not METHODS[name].learns])
def test_everything_but_the_tokens_is_unchanged(
    folders: dict[str, Path], tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run(folders, output, method=method) == 0
    before, after = load_file(folders["tied"] / "model.safetensors"), load_file(output / "model.safetensors")
    num_tokens = len(load_tokenizer(folders["target"]))
    assert list(after) == list(before) and after[INPUT].shape == (num_tokens, 24)
    assert all(torch.equal(after[name], before[name]) for name in before if name != INPUT)
    for file, content in read_tokenizer_files(folders["target"]).items():
        assert (output / file).read_bytes() == content
    config = json.loads((output / "config.json").read_text())
    old = json.loads((folders["tied"] / "config.json").read_text())
    new_ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    assert config == old | new_ids | {"vocab_size": num_tokens, "tie_word_embeddings": True}
    generation = json.loads((output / "generation_config.json").read_text())
    assert generation == new_ids | {"max_new_tokens": 7}
    manifest = manifest_of(output)
    check_files(output, manifest)
    counts = manifest.facts.pop("num_rows_by_origin")
    assert sum(counts.values()) == num_tokens
    assert manifest.facts == {
        "tokenizer_digest": tokenizer_digest(load_tokenizer(folders["target"])),
        "vocab_size": num_tokens,
        "tie_word_embeddings": True,
        "method": method,
        "head": "tied",
        "seed": 42,
        "model_type": "opt",
        "vocabulary": {"strategy": "replace"},
        "matching": "exact",
    }
    printed = capsys.readouterr().out
    assert printed.startswith(f"{output}: {num_tokens:,} tokens by {method}, output layer tied, seed 42\n")
    for origin, count in counts.items():
        assert f"  {origin:<18}{count:>9,}" in printed
    special = "from </s>         (same role)" if METHODS[method].copies else "no source"
    assert f"  <s>               {special}" in printed
    report = json.loads((output / "transfer.json").read_text())
    assert [entry["id"] for entry in report["tokens"]] == list(range(num_tokens))
    copied = [entry for entry in report["tokens"] if entry["origin"] == "copied"]
    assert len(copied) == counts.get("copied", 0) and bool(copied) == METHODS[method].copies
    for entry in copied:
        assert torch.equal(after[INPUT][entry["id"]], before[INPUT][entry["sources"][0][0]])


def test_loads_in_transformers(folders: dict[str, Path], tmp_path: Path) -> None:
    for source, choice, is_tied in (("tied", "tied", True), ("tied", "copied", False), ("untied", "transferred", False)):
        output = tmp_path / choice
        run(folders, output, "--output-layer", choice, source=source)
        model = OPTForCausalLM.from_pretrained(str(output))
        shares = model.lm_head.weight.data_ptr() == model.model.decoder.embed_tokens.weight.data_ptr()
        assert shares == is_tied
        logits = model(torch.arange(12)[None]).logits
        assert logits.shape[-1] == model.config.vocab_size and torch.isfinite(logits).all()


@pytest.mark.parametrize(("source", "choice"), [("tied", "copied"), ("untied", "copied")])
def test_copied_output_is_the_transferred_input(folders: dict[str, Path], tmp_path: Path, source: str, choice: str) -> None:
    run(folders, tmp_path / "out", "--output-layer", choice, source=source)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(tensors[INPUT], tensors[OUTPUT])


def test_transferred_output_comes_from_the_output(folders: dict[str, Path], tmp_path: Path) -> None:
    run(folders, tmp_path / "out", source="untied")
    before, after = (load_file(folder / "model.safetensors") for folder in (folders["untied"], tmp_path / "out"))
    report = json.loads((tmp_path / "out" / "transfer.json").read_text())
    assert report["head"] == "transferred"
    combined = [entry for entry in report["tokens"] if entry["origin"] == "combined" and entry["num_sources"] <= 8]
    assert len(combined) > 100
    for entry in combined:
        ids, weights = [source[0] for source in entry["sources"]], torch.tensor([source[2] for source in entry["sources"]])
        for name in (INPUT, OUTPUT):
            # Weights in the report have six digits.
            torch.testing.assert_close(after[name][entry["id"]], weights @ before[name][ids], atol=1e-5, rtol=0)
    correlation = np.corrcoef(after[OUTPUT].flatten(), after[INPUT].flatten())[0, 1]
    assert abs(correlation) < 0.05


@pytest.mark.parametrize("source", ["tied", "untied"])
def test_random_output_follows_the_source(folders: dict[str, Path], tmp_path: Path, source: str) -> None:
    run(folders, tmp_path / "out", "--output-layer", "random", source=source)
    before, after = (load_file(folder / "model.safetensors") for folder in (folders[source], tmp_path / "out"))
    matrix = before[OUTPUT if source == "untied" else INPUT][:-PADDING]
    drawn = after[OUTPUT]
    torch.testing.assert_close(drawn.mean(dim=0), matrix.mean(dim=0), atol=0.07, rtol=0)  # five standard errors of 860 rows
    assert abs(np.corrcoef(drawn.flatten(), after[INPUT].flatten())[0, 1]) < 0.2
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_dtype_of_the_source_is_kept(folders: dict[str, Path], tmp_path: Path, dtype: torch.dtype) -> None:
    tokenizer = load_tokenizer(folders["tied"])
    config = opt_config(len(tokenizer) + PADDING)
    save_checkpoint(tmp_path / "half", config, opt_tensors(config, dtype=dtype), tokenizer)
    run(folders | {"half": tmp_path / "half"}, tmp_path / "out", "--output-layer", "copied", source="half")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}
    assert HFCheckpoint.open(tmp_path / "out").nbytes == sum(tensor.nbytes for tensor in tensors.values())


def test_seed_decides_the_file(folders: dict[str, Path], tmp_path: Path) -> None:
    contents = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        run(folders, tmp_path / name, "--seed", seed, method="random")
        contents.append((tmp_path / name / "model.safetensors").read_bytes())
    assert contents[0] == contents[1] != contents[2]


# ---- errors: one sentence each, before anything is written ----


def error_of(folders: dict[str, Path], output: Path, *options: str, **choices: str) -> str:
    with pytest.raises(ValueError) as error:
        run(folders, output, *options, **choices)
    assert not output.exists() and not list(output.parent.glob(".*partial*"))
    return str(error.value)


NO_TOKEN = "give --special-token TARGET=SOURCE with tokens as they are spelled there"


@pytest.mark.parametrize(
    ("choices", "options", "sentence"),
    [
        (
            {},
            ("--text", "TEXT"),
            "--method mean does not use --text FILE; leave it out (it is for align, focus, wechsel, ofa-aligned, token-distillation,"
            " next-token, alm)",
        ),
        ({}, ("--parallel-columns", "en", "sl"), "--parallel-columns names columns of --parallel FILE; give that too"),
        (
            {"source": "untied"},
            ("--output-layer", "tied"),
            "--output-layer tied would drop the output layer of {untied}, which is a matrix of its own; choose transferred, copied or random",
        ),
        (
            {},
            ("--output-layer", "transferred"),
            "--output-layer transferred needs an output layer of its own, but {tied} ties it to the input embeddings; choose tied or copied",
        ),
        ({}, ("--seed", "-1"), "--seed is -1; expected 0 to 4294967295"),
        ({}, ("--special-token", "<s>"), "--special-token <s> is not of the form TARGET=SOURCE, for example '<s>=</s>'"),
        ({}, ("--special-token", "<nothing>=</s>"), f"the target tokenizer has no token '<nothing>'; {NO_TOKEN}"),
        ({}, ("--special-token", "<s>=<nothing>"), f"the source tokenizer has no token '<nothing>'; {NO_TOKEN}"),
        (
            {"method": "random-all"},
            ("--special-token", "<s>=</s>"),
            "--method random-all draws every row, so that --special-token changes nothing; leave it out",
        ),
    ],
)
def test_options_must_fit_the_method_and_the_models(
    folders: dict[str, Path], tmp_path: Path, choices: dict[str, str], options: tuple[str, ...], sentence: str
) -> None:
    given = (str(folders["text"]) if option == "TEXT" else option for option in options)
    assert error_of(folders, tmp_path / "out", *given, **choices) == sentence.format(**folders)


@pytest.mark.parametrize("method", [*METHODS, ""])
def test_help_shows_what_serves_the_method(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*(["--method", method] if method else []), "--help"])
    shown = capsys.readouterr().out
    options = {"helper": "--helper", "num_atoms": "--num-atoms", "parallel": "--parallel-columns", "vectors": "--vector-size"}
    for name, flag in (options | {"encoder": "--encoder", "learning": "--steps", "as_published": "--as-published"}).items():
        assert (f"{flag} " in shown) == (not method or name in METHODS[method].uses), name
    assert "--vocabulary" in shown and "--text FILE" in shown  # which serve every method


def test_words_come_from_vectors_or_from_text(folders: dict[str, Path], tmp_path: Path) -> None:
    material = ["--dictionary", str(folders["dictionary"]), "--source-vectors", str(folders["source-vectors"])]
    arguments = ["--source", str(folders["tied"]), "--tokenizer", str(folders["target"]), "--method", "wechsel", *material]
    with refused(
        "--method wechsel needs vectors of words in the target language or text in the target language; give it with"
        " --vectors FILE or --text FILE"
    ):
        main([*arguments, "--output", str(tmp_path / "out")])
    text = ["--text", str(folders["text"]), "--vector-epochs", "1"]
    assert error_of(folders, tmp_path / "out", *text, method="wechsel") == (
        "--method wechsel reads --vectors FILE or --text FILE; leave one of them out"
    )
    assert main([*arguments, *text, "--output", str(tmp_path / "out")]) == 0
    manifest = manifest_of(tmp_path / "out")
    assert str(folders["text"]) in manifest.inputs


NUM_TOKENS = 700
NO_NUMBERS = torch.zeros(NUM_TOKENS + PADDING, 24)
NO_NUMBERS[5, 3], NO_NUMBERS[9, 0], NO_NUMBERS[-1, 0] = float("nan"), float("inf"), float("nan")


@pytest.mark.parametrize(
    ("rows", "changes", "sentence"),
    [
        (-3, {}, f"the tokenizer in {{changed}} has 700 ids, but {INPUT} has only 697 rows; give the model with its own tokenizer"),
        (
            PADDING,
            {INPUT: NO_NUMBERS},
            f"{{changed}}: 2 of 700 token rows of {INPUT} hold NaN or infinite values, the first at id 5; repair the checkpoint",
        ),
        (
            PADDING,
            {"final_logits_bias": torch.zeros(1, NUM_TOKENS + PADDING)},
            "{changed}: final_logits_bias has a row per token too, but nothing is known about it; drop it first",
        ),
        (
            PADDING,
            {INPUT: torch.zeros(3, 24)},
            f"{{changed}}: {INPUT} has 3 rows, but config.json says vocab_size 707; repair the checkpoint",
        ),
    ],
)
def test_a_model_that_does_not_fit_its_tokenizer_is_refused(
    folders: dict[str, Path], tmp_path: Path, rows: int, changes: dict[str, torch.Tensor], sentence: str
) -> None:
    config = opt_config(NUM_TOKENS + rows)
    save_checkpoint(tmp_path / "changed", config, opt_tensors(config) | changes, load_tokenizer(folders["tied"]))
    found = error_of(folders | {"changed": tmp_path / "changed"}, tmp_path / "out", source="changed")
    assert found == sentence.format(changed=tmp_path / "changed")


@pytest.mark.parametrize(
    ("name", "matrix", "what"),
    [
        ("untied", OUTPUT, f"1 of 700 token rows of {OUTPUT} hold NaN or infinite values, the first at id 7"),
        ("helper", INPUT, f"{INPUT} holds NaN or infinite values"),
    ],
)
def test_nan_in_any_matrix_is_refused(folders: dict[str, Path], tmp_path: Path, name: str, matrix: str, what: str) -> None:
    broken = Path(shutil.copytree(folders[name], tmp_path / "broken"))
    with edited_tensors(broken) as tensors:
        tensors[matrix][7, 1] = float("nan")
    message = error_of(folders | {name: broken}, tmp_path / "out", source="untied", method="clp")
    assert message == f"{broken}: {what}; repair the checkpoint"


def test_model_without_embeddings_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    config = opt_config(10)
    save_checkpoint(tmp_path / "empty", config, {"x": torch.zeros(2)}, load_tokenizer(folders["tied"]))
    assert error_of(folders | {"empty": tmp_path / "empty"}, tmp_path / "out", source="empty") == (
        f"{tmp_path / 'empty'}: expected one matrix of input embeddings, a name ending in"
        " embeddings.word_embeddings.weight, embed_tokens.weight, wte.weight, word_embeddings.weight, embed_in.weight, or the only one"
        " outside the layers with as many rows as vocab_size in config.json; found none"
    )


def test_source_with_another_tokenizer_than_its_manifest_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    run(folders, tmp_path / "first")
    tokenizer = load_tokenizer(tmp_path / "first")
    expected = tokenizer_digest(tokenizer)
    tokenizer.add_tokens([AddedToken("neu")])
    tokenizer.save_pretrained(str(tmp_path / "first"))
    found = tokenizer_digest(load_tokenizer(tmp_path / "first"))
    assert error_of(folders | {"first": tmp_path / "first"}, tmp_path / "out", source="first") == (
        f"{tmp_path / 'first'} uses tokenizer {found}, but its manifest uses tokenizer {expected}; make both with the same tokenizer"
    )


def test_transfer_of_a_transfer(folders: dict[str, Path], tmp_path: Path) -> None:
    """What the command writes it can read; back to the first vocabulary, the shared rows are the first ones."""
    run(folders, tmp_path / "there")
    back = folders | {"there": tmp_path / "there", "target": folders["tied"]}
    run(back, tmp_path / "back", source="there")
    first, last = (load_file(folder / "model.safetensors")[INPUT] for folder in (folders["tied"], tmp_path / "back"))
    report = json.loads((tmp_path / "back" / "transfer.json").read_text())
    there = json.loads((tmp_path / "there" / "transfer.json").read_text())["tokens"]
    copied = [e["id"] for e in report["tokens"] if e["origin"] == "copied" and there[e["sources"][0][0]]["origin"] == "copied"]
    assert len(copied) > 100 and torch.equal(first[copied], last[copied])


def test_special_tokens_can_be_chosen(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "special.tsv").write_text("<unk>\t</s>\n\n")
    run(folders, tmp_path / "out", "--special-tokens", str(tmp_path / "special.tsv"), "--special-token", "<pad>=</s>")
    printed = capsys.readouterr().out
    assert "  <unk>             from </s>         (chosen)" in printed and "  <pad>             from </s>         (chosen)" in printed
    before, after = (load_file(folder / "model.safetensors")[INPUT] for folder in (folders["tied"], tmp_path / "out"))
    assert torch.equal(after[3], before[0]) and torch.equal(after[2], before[0])
    twice = ("--special-tokens", str(tmp_path / "special.tsv"), "--special-token", "<unk>=<pad>")
    assert error_of(folders, tmp_path / "twice", *twice) == ("the target token '<unk>' is given two sources, '<pad>' and '</s>'; give one")
    (tmp_path / "broken.tsv").write_text("<unk> </s>\n")
    assert error_of(folders, tmp_path / "broken", "--special-tokens", str(tmp_path / "broken.tsv")) == (
        f"{tmp_path / 'broken.tsv'}, line 1 is not a target token and source token with a tab between: '<unk> </s>'"
    )
    missing = tmp_path / "missing.tsv"
    assert error_of(folders, tmp_path / "none", "--special-tokens", str(missing)) == f"the special tokens file {missing} does not exist"


def test_a_name_that_is_gone_is_answered_with_the_new_one(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        run(folders, tmp_path / "out", "--method", "clp-random")
    sentence = "clp-random is called random: shared tokens keep their rows and the others are drawn (random-all draws every row)"
    assert f"argument --method: {sentence}" in capsys.readouterr().err


def test_vectors_of_another_language_are_warned_of(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words of the source's language alone: nothing is known of new tokens."""
    words = sorted({word for word in demo_text("en")[:20_000].split() if word.isalpha()} - set(demo_text("sl").split()))
    (tmp_path / "en.vec").write_text("".join(f"{word} {place % 7} {place % 5} 1\n" for place, word in enumerate(words)))
    run(folders, tmp_path / "out", "--vectors", str(tmp_path / "en.vec"), method="ofa")
    facts = manifest_of(tmp_path / "out").facts["num_rows_by_origin"]
    num_new = facts.get("combined", 0) + facts["fallback: mean"]
    warning = next(line for line in capsys.readouterr().err.splitlines() if "cannot initialise" in line)
    assert warning == (
        f"warning: the method cannot initialise {facts['fallback: mean']:,} of {num_new:,} new tokens, which get the fallback; check that its"
        " text, vectors or models are of the target language"
    )


@pytest.mark.parametrize("method", ["focus", "clp", "sava", "omp"])
def test_empty_overlap_is_refused(folders: dict[str, Path], tmp_path: Path, method: str) -> None:
    """Greek letters without a byte of the source's."""
    letters = [chr(0x3B1 + place) for place in range(24)]
    greek = marked_bpe({token: i for i, token in enumerate(["<s>", *letters])}, [], {"bos": "<s>"}, byte_fallback=False)
    greek.save_pretrained(str(tmp_path / "greek"))
    config = opt_config(25, hidden_size=16, word_embed_proj_dim=16)
    save_checkpoint(tmp_path / "helper", config, opt_tensors(config), greek)
    (tmp_path / "text.txt").write_text("".join(letters) * 200)
    paths = folders | {"target": tmp_path / "greek", "helper": tmp_path / "helper", "text": tmp_path / "text.txt"}
    assert error_of(paths, tmp_path / "out", "--vector-epochs", "1", method=method) == (
        f"source and target vocabulary share no token of text, so --method {method} has nothing to combine; choose another method"
    )
    run(paths, tmp_path / "mean")  # pieces of bytes are still there
    assert manifest_of(tmp_path / "mean").facts["num_rows_by_origin"] == {"special": 1, "combined": 24}


def test_matches_that_are_not_exact_are_counted_apart(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_file(folders["tied"] / "model.safetensors")[INPUT]
    counts = {}
    for match in ("exact", "case", "space", "case-space"):
        run(folders, tmp_path / match, "--match", match)
        manifest = manifest_of(tmp_path / match)
        assert manifest.facts["matching"] == match
        counts[match] = manifest.facts["num_rows_by_origin"]
        report = json.loads((tmp_path / match / "transfer.json").read_text())
        after = load_file(tmp_path / match / "model.safetensors")[INPUT]
        alike = [entry for entry in report["tokens"] if entry["origin"].startswith("copied: ")]
        for entry in alike:
            _, token, weight = entry["sources"][0]
            assert torch.equal(after[entry["id"]], before[entry["sources"][0][0]]) and weight == 1
            assert token != entry["token"]
        assert len(alike) == sum(count for origin, count in counts[match].items() if origin.startswith("copied: "))
    assert {match: [origin for origin in found if origin.startswith("copied: ")] for match, found in counts.items()} == {
        "exact": [],
        "case": ["copied: case"],
        "space": ["copied: space"],
        "case-space": ["copied: case", "copied: space"],  # no token of this text differs in both alone
    }
    assert len({found["copied"] for found in counts.values()}) == 1
    assert "  copied: space" in capsys.readouterr().out
