"""`benchmarks.gpu` without a GPU: all its parts on tiny models, the products in FP8, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import fp8, gpu
from tests.processes import ROOT


@pytest.mark.long
def test_every_part_is_measured_on_tiny_models(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--tiny", "--minutes", "50", "--output", str(tmp_path / "gpu")]
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in (tmp_path / "gpu").iterdir()) == ["gpu.json", "gpu.md"]
    found = json.loads((tmp_path / "gpu/gpu.json").read_text())
    assert found["left_out"] == {}
    opt, llama = (found["columns"][name] for name in ("tiny OPT", "tiny Llama"))
    assert opt["loss of the last step, resumed"] == "the same"
    assert opt["TFLOP/s, all scores"] > opt["TFLOP/s, causal"] > 0 < opt["saved, GB"]
    for bf16, name in ((opt, "tiny OPT, FP8"), (llama, "tiny Llama, FP8")):
        assert bf16["peak planned, GiB"] == pytest.approx(bf16["peak rehearsed, GiB"], rel=0.2)
        in_fp8 = found["columns"][name]["loss at step 16"]
        assert in_fp8 == pytest.approx(bf16["loss at step 16"], rel=0.03) and in_fp8 != bf16["loss at step 16"]
    assert found["columns"]["harness"]["lm-eval's kB/s"] > 0 and found["columns"]["transfer"]["rows learned"] > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_linear_layer_in_fp8(dtype: torch.dtype) -> None:
    """E4M3 has 3 bits behind the point and E5M2 2, so that a rounding errs by 1/16 or 1/8 at most, and sums of many by less."""
    generator = torch.Generator().manual_seed(0)
    rows, weight, gradient = (torch.randn(shape, generator=generator, dtype=dtype) for shape in ((64, 32), (48, 32), (64, 48)))
    rows.requires_grad_(), weight.requires_grad_()
    output = fp8.Linear.apply(rows, weight)
    output.backward(gradient)
    expected = (rows @ weight.t(), gradient @ weight, gradient.t() @ rows)
    for found, exact in zip((output, rows.grad, weight.grad), expected, strict=True):
        assert float((found - exact).norm() / exact.norm()) < 1 / 8 and found.dtype == dtype


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--minutes", "0"), "--minutes is 0; expected more than 0"),
        (("--minutes", "nan"), "--minutes is nan; expected more than 0"),
        (("--device", "cpu"), "--device cpu needs --tiny: the real models take a CPU hours"),
        (("--device", "cpu", "--tiny", "--output", "/"), "--output / exists"),
    ],
)
def test_what_it_refuses(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        gpu.main(words)
