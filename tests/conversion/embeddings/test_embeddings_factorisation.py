"""OFA's factorisation: the error is the tail of the spectrum, and combining rows before or after is the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import OPTForCausalLM

from common.artifacts import check_files
from conversion.embeddings.factorisation import factorise
from conversion.embeddings.methods.row_plan import Origin
from conversion.transfer import main
from data_prep.tokenizers.files import load_tokenizer
from tests.conversion.embedding_fixtures import PADDING, transfer_arguments, transfer_folders
from tests.conversion.folders import manifest_of
from tests.refusals import refused

INPUT, OUTPUT = "model.decoder.embed_tokens.weight", "lm_head.weight"
HIDDEN = 24


def decaying(num_rows: int, size: int, seed: int = 0) -> np.ndarray:
    """Rows whose singular values fall quickly, as those of a trained model do."""
    generator = np.random.default_rng(seed)
    rows = (
        generator.standard_normal((num_rows, size))
        @ np.diag(0.8 ** np.arange(size))
        @ np.linalg.qr(generator.standard_normal((size, size)))[0]
    )
    return rows + 0.05


@pytest.mark.parametrize("num_rows", [300, 17], ids=["tall", "wide"])
@pytest.mark.parametrize("factorised_size", [1, 5, 17])
def test_error_is_the_tail_of_the_spectrum(num_rows: int, factorised_size: int) -> None:
    rows = decaying(num_rows, HIDDEN)
    factors = factorise(torch.from_numpy(rows).float(), np.arange(num_rows), factorised_size)
    values = np.linalg.svd(rows, compute_uv=False)
    error = np.linalg.norm(factors.fold().double().numpy() - rows)
    assert error == pytest.approx(np.sqrt(np.sum(values[factorised_size:] ** 2)), rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(factors.singular_values.numpy(), values[:factorised_size], rtol=1e-5, atol=1e-5)


def test_primitives_are_orthonormal_and_coordinates_as_long_as_rows() -> None:
    rows = torch.from_numpy(decaying(300, HIDDEN)).float()
    factors = factorise(rows, np.arange(300), HIDDEN)
    torch.testing.assert_close(factors.primitives @ factors.primitives.T, torch.eye(HIDDEN), atol=1e-5, rtol=0)
    torch.testing.assert_close(factors.coordinates.norm(dim=1), rows.norm(dim=1), rtol=1e-5, atol=1e-5)
    # OFA's code has the scale on the other side: left singular vectors, and right ones times the values.
    left, values, right = np.linalg.svd(rows.double().numpy(), full_matrices=False)
    signs = np.sign(np.sum(right * factors.primitives.numpy(), axis=1))
    theirs = factors.coordinates / factors.singular_values
    np.testing.assert_allclose(theirs[:, :10].numpy(), (left * signs)[:, :10], atol=1e-4)
    np.testing.assert_allclose(
        (factors.singular_values[:, None] * factors.primitives).numpy(), values[:, None] * right * signs[:, None], atol=1e-4
    )


def test_blocks_and_padding_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.from_numpy(decaying(300, HIDDEN)).float()
    padded = torch.cat([rows, torch.full((PADDING, HIDDEN), 1e4)])
    whole = factorise(rows, np.arange(300), 5)
    monkeypatch.setattr("conversion.embeddings.factorisation._BLOCK_ROWS", 37)
    factors = factorise(padded, np.arange(300), 5)
    torch.testing.assert_close(factors.fold()[:300], whole.fold(), atol=1e-6, rtol=0)
    assert not factors.coordinates[300:].any()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return transfer_folders(tmp_path_factory.mktemp("factorised"))


def run(folders: dict[str, Path], output: Path, *options: str, source: str = "tied", method: str = "ofa") -> Path:
    assert main(transfer_arguments(folders, output, *options, source=source, method=method)) == 0
    return output


def test_combining_before_or_after_is_the_same(folders: dict[str, Path], tmp_path: Path) -> None:
    plain = load_file(run(folders, tmp_path / "plain", source="untied") / "model.safetensors")
    full = load_file(run(folders, tmp_path / "full", "--factorised-size", "full", source="untied") / "model.safetensors")
    report = json.loads((tmp_path / "full" / "transfer.json").read_text())
    combined = [entry["id"] for entry in report["tokens"] if entry["origin"] in (Origin.COMBINED, Origin.COPIED, Origin.FALLBACK_MEAN)]
    assert len(combined) > 500
    for name in (INPUT, OUTPUT):
        torch.testing.assert_close(full[name][combined], plain[name][combined], atol=2e-6, rtol=0)
    assert all(torch.equal(full[name], plain[name]) for name in plain if name not in (INPUT, OUTPUT))


@pytest.mark.parametrize(
    ("source", "output_layer"), [("tied", "tied"), ("tied", "copied"), ("untied", "transferred"), ("untied", "random")]
)
def test_factors_fold_to_the_rows(folders: dict[str, Path], tmp_path: Path, source: str, output_layer: str) -> None:
    out = run(folders, tmp_path / "out", "--factorised-size", "5", "--output-layer", output_layer, source=source)
    weights, factors = load_file(out / "model.safetensors"), load_file(out / "factors.safetensors")
    layers = {"input": INPUT} | ({"output": OUTPUT} if output_layer == "transferred" else {})
    assert set(factors) == {f"{layer}.{part}" for layer in layers for part in ("coordinates", "primitives", "singular_values")}
    num_tokens = len(load_tokenizer(folders["target"]))
    for layer, name in layers.items():
        coordinates, primitives = factors[f"{layer}.coordinates"], factors[f"{layer}.primitives"]
        assert coordinates.shape == (num_tokens, 5) and primitives.shape == (5, HIDDEN)
        torch.testing.assert_close(coordinates @ primitives, weights[name], atol=1e-6, rtol=0)
    if output_layer == "copied":
        assert torch.equal(weights[OUTPUT], weights[INPUT])
    if output_layer == "random":
        assert np.linalg.matrix_rank(weights[OUTPUT].numpy()) == HIDDEN > np.linalg.matrix_rank(weights[INPUT].numpy(), tol=1e-4) == 5
    manifest = manifest_of(out)
    assert manifest.facts["factorised_size"] == 5
    check_files(out, manifest)
    logits = OPTForCausalLM.from_pretrained(str(out))(torch.arange(12)[None]).logits
    assert torch.isfinite(logits).all()


def test_copied_rows_are_the_nearest_of_the_rank(folders: dict[str, Path], tmp_path: Path) -> None:
    """What is copied are coordinates: the row is the projection of the source's row on the source's first directions."""
    out = run(folders, tmp_path / "out", "--factorised-size", "5", method="random")
    before, after = (load_file(folder / "model.safetensors")[INPUT].double().numpy() for folder in (folders["tied"], out))
    _, _, right = np.linalg.svd(before[:-PADDING], full_matrices=False)
    report = json.loads((out / "transfer.json").read_text())
    copied = [(entry["id"], entry["sources"][0][0]) for entry in report["tokens"] if entry["origin"] == "copied"]
    assert len(copied) > 200
    ids, source_ids = map(list, zip(*copied))
    np.testing.assert_allclose(after[ids], before[source_ids] @ right[:5].T @ right[:5], atol=1e-5)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("0", "--factorised-size is 0; expected 1 to 24, what 700 source tokens of 24 dimensions allow, or full"),
        ("25", "--factorised-size is 25; expected 1 to 24, what 700 source tokens of 24 dimensions allow, or full"),
        ("half", "--factorised-size is 'half'; expected a number of dimensions (OFA: 100, 200, 400) or full"),
    ],
)
def test_impossible_sizes_are_refused(folders: dict[str, Path], tmp_path: Path, size: str, message: str) -> None:
    with refused(message):
        run(folders, tmp_path / "out", "--factorised-size", size)
    assert not (tmp_path / "out").exists()
