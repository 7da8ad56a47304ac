"""What one borrowed GPU does in a quarter of an hour: training, save and resume, evaluation and transfer as commands run them, beside plan, rehearsal and lm-eval.

OPT-1.3B and a Llama of the 8B shape with few layers train in bfloat16 and, where torch can, in FP8; tokenizer, data and weights are made here, nothing is downloaded.
Parts run in order of what only a GPU can tell.  One for which the minutes no longer suffice is left out and named; OUTPUT/gpu.json is written after each, so that
an interruption loses one.  Two kinds of MFU: with the scores that a causal mask shows, as everywhere in this project, and with all scores, as Megatron's paper counts
(Narayanan et al. 2021).  `--device cpu --tiny` runs every part with models that fit a laptop, whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT, TEXT, made, opt_inputs
from benchmarks.training_loops import SIZES, Size, recipe_overrides
from benchmarks.whole.evaluation_cases import lm_eval
from common import command
from common.artifacts import project_commit, read_manifest
from common.devices import has_gpu
from common.plain_files import read_json, write_json, write_text
from common.tables import markdown_table
from recipes.numbers.arithmetic import LayerShape, flops_per_token
from recipes.planner.hardware import has_known_rates, visible_gpu
from recipes.rehearsal.apart import rehearse_apart
from recipes.runs.run_dir import checkpoint_name, measured_save_seconds
from recipes.runs.run_metrics import read_metrics

Figures = dict[str, float | str]
LOG_EVERY = 8
MEASURED, LAST = 2 * LOG_EVERY, 3 * LOG_EVERY  # steps 9 to 16 are timed; the run that is resumed from there goes on to the last
DISK_GIB, TINY_DISK_GIB = 45, 1
FP8_CAPABILITY = (8, 9)
_TEXT_COPIES = 20


@dataclass(frozen=True)
class Model:
    """One that is trained, drawn at random.

    Attributes:
        family: as `conversion.new_model` calls it.
        shape: more of its options.
    """

    name: str
    family: str
    size: Size
    shape: tuple[str | int, ...] = ()


def models(tiny: bool) -> list[Model]:
    """OPT and Llama, at their real widths or so small that a CPU trains them in seconds."""
    if tiny:
        size = Size(2, 64, 4, 1536, 64, 2, 2, "32", LAST)
        return [Model("tiny OPT", "opt", size), Model("tiny Llama", "llama", size, ("--ffn-size", 224, "--num-key-value-heads", 2))]
    llama = Size(4, 4096, 32, 128_256, 4096, 1, 8, "bf16", LAST)
    shape = ("--ffn-size", 14_336, "--num-key-value-heads", 8)
    return [Model("OPT-1.3B", "opt", SIZES["gpu"]), Model("Llama 8B, 4 layers", "llama", llama, shape)]


@dataclass
class Bench:
    """Where it works, how long it may, and what it has found; `work` is removed at the end."""

    output: Path
    device: str
    deadline: float
    found: dict[str, Figures] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    @property
    def work(self) -> Path:
        return self.output / "work"

    def call(self, *words: str | Path) -> float:
        """Run Python with these words, at most until the end of our time; returns its seconds.

        Raises:
            RuntimeError: if it fails, with its last line.
            subprocess.TimeoutExpired: if the time is over.
        """
        start = time.monotonic()
        words, left = (sys.executable, *map(str, words)), max(1.0, self.deadline - start)
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=left, check=False)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
        return time.monotonic() - start

    def part(self, column: str, what: str, measured: Callable[[], Figures], *, usual_seconds: float) -> None:
        """Measure a part if there is time for it, put it into its column, and write all that there is."""
        left, name = self.deadline - time.monotonic(), f"{column}, {what}"
        if left < usual_seconds:
            self.left_out[name] = f"takes about {usual_seconds:.0f} s, and {max(0, left):.0f} s were left"
        else:
            print(f"== {name} ({left:.0f} s left)", file=sys.stderr, flush=True)
            try:
                self.found.setdefault(column, {}).update(measured())
            except subprocess.TimeoutExpired:
                self.left_out[name] = "was not done when the time was over"
            except (RuntimeError, ValueError, OSError, subprocess.CalledProcessError) as error:
                self.left_out[name], self.failed = f"failed: {error}", True
        write_json(self.output / "gpu.json", {**self.machine(), "columns": self.found, "left_out": self.left_out})

    def machine(self) -> dict[str, Any]:
        """Commit, device and torch."""
        gpu = visible_gpu() if self.device == "cuda" else None
        return {"commit": project_commit(), "device": gpu.name if gpu else self.device, "torch": metadata.version("torch")}


def inputs(bench: Bench, model: Model) -> Path:
    """Tokenizer, data and checkpoints of a model, by the project's commands."""
    base, size = bench.work / model.family, model.size
    sizes = ("--num-layers", size.num_layers, "--hidden-size", size.hidden_size, "--num-attention-heads", size.num_heads)
    shape = ("--model-type", model.family, "--max-positions", size.sequence_length, "--untied", *model.shape)
    opt_inputs(base, *sizes, *shape, vocab_size=1500)
    return base


def overrides(model: Model, base: Path, *, steps: int) -> list[str]:
    """The demo's recipe as this model trains: `steps` of them, with a save behind those that are timed."""
    return [
        *recipe_overrides(replace(model.size, steps=steps), base),
        f"run.checkpoint_every_steps={MEASURED}",
        f"run.log_every_steps={LOG_EVERY}",
        "run.keep_optimizer_in_last_checkpoint=false",
    ]


def training(bench: Bench, model: Model, *, fp8: bool = False, resumes: bool = False) -> Figures:
    """Speed, memory and MFU of steps 9 to 16; with `resumes` also a save with the optimizer, and whether a resumed run has the same loss."""
    base, run = inputs(bench, model), bench.work / "run"
    words: list[str | Path] = ["-m", "benchmarks.fp8" if fp8 else "recipes.train", "--recipe", "demo_adapt", "--output", run]
    words += overrides(model, base, steps=LAST if resumes else MEASURED)
    shutil.rmtree(run, ignore_errors=True)
    found: Figures = {"seconds of the command": bench.call(*words)}
    rows = {row["step"]: row for row in read_metrics(run)}
    timed = rows[MEASURED]
    rate, config = timed["tokens_per_second"], read_json(base / "nemo/context/model.json")["config"]
    found |= {"tokens/s": rate, "s per step": timed["seconds_per_step"], "loss at step 16": timed["loss"]}
    found |= utilisation(model.size, config, rate)
    if bench.device == "cuda":
        found |= {"peak allocated, GiB": timed["memory_gib"], "peak reserved, GiB": timed["reserved_gib"]}
    if resumes:
        shutil.rmtree(run / "checkpoints" / checkpoint_name(LAST))
        stopped = measured_save_seconds(run)
        assert stopped is not None, "the run has saved"
        found |= {"a save stops it for, s": stopped[0], "saved, GB": _gigabytes(run / "checkpoints" / checkpoint_name(MEASURED))}
        found["seconds of the resumed command"] = bench.call(*words)
        again = next(row["loss"] for row in read_metrics(run) if row["step"] == LAST)
        found["loss of the last step, resumed"] = "the same" if again == rows[LAST]["loss"] else f"{again - rows[LAST]['loss']:+.1e}"
    shutil.rmtree(run)
    return found


def utilisation(size: Size, config: Mapping[str, Any], tokens_per_second: float) -> Figures:
    """TFLOP/s by either count, and its share of the bfloat16 peak where the GPU is known."""
    causal = flops_per_token(config, vocab_size=size.vocab_rows, sequence_length=size.sequence_length)
    all_scores = causal + 6.0 * config["num_layers"] * size.sequence_length * LayerShape.of(config).attention
    gpu, found = visible_gpu(), Figures()
    for name, flops in (("causal", causal), ("all scores", all_scores)):
        found[f"TFLOP/s, {name}"] = tokens_per_second * flops / 1e12
        if gpu is not None and has_known_rates(gpu):
            found[f"MFU, {name}"] = tokens_per_second * flops / gpu.peak_flops
    return found


def rehearsal(bench: Bench, model: Model) -> Figures:
    """The most that the run allocates by the plan, and by a run on simulated GPUs."""
    [report] = rehearse_apart("demo_adapt", overrides(model, inputs(bench, model), steps=MEASURED), ranks="0")["ranks"]
    return {"peak planned, GiB": report["planned"]["total"], "peak rehearsed, GiB": report["peak"]}


def harness(bench: Bench, model: Model) -> Figures:
    """Bits per byte of one text by the harness and by lm-eval, as each times itself: from reading the model to the result."""
    copies, dtype = (1, "float32") if bench.device == "cpu" else (_TEXT_COPIES, "bfloat16")
    hf, text, ours, theirs = inputs(bench, model) / "hf", bench.work / "text.jsonl", bench.work / "harness", bench.work / "lm_eval"
    documents = TEXT.read_text(encoding="utf-8").split("\n\n") * copies
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents), encoding="utf-8")
    kilobytes = sum(len(document.encode()) for document in documents) / 1e3
    arguments = ("--model", f"model={hf}", "--text", f"text={text}", "--device", bench.device, "--dtype", dtype)
    found: Figures = {"kB of text": kilobytes, "seconds of the command": bench.call("-m", "eval.harness", *arguments, "--output", ours)}
    words = lm_eval(hf, theirs, "heldout_text", "--metadata", f'{{"text": "{text}"}}', device=bench.device, dtype=dtype)[1:]
    found["lm-eval's seconds of the command"] = bench.call(*words)
    [result] = theirs.rglob("results_*.json")
    found["kB/s"] = kilobytes / read_json(ours / "model/result.json")["seconds"]
    return found | {"lm-eval's kB/s": kilobytes / float(read_json(result)["total_evaluation_time_seconds"])}


def transfer(bench: Bench, model: Model) -> Figures:
    """Token distillation into another vocabulary on the device: the rest of the command is the same on every machine."""
    base, target = inputs(bench, model), bench.work / "transfer"
    tokenizer = made(bench.work / "target", "data_prep.train_tokenizer", "--input", TEXT, "--vocab-size", "2000")
    steps = "10" if bench.device == "cpu" else "100"
    options = ("--method", "token-distillation", "--text", TEXT, "--steps", steps, "--sequence-length", "48", "--device", bench.device)
    seconds = bench.call("-m", "conversion.transfer", "--source", base / "hf", "--tokenizer", tokenizer, *options, "--output", target)
    manifest = read_manifest(target)
    assert manifest is not None, "a transfer leaves its manifest"
    learning = manifest.facts["learning"]
    found: Figures = {"seconds of the command": seconds, "steps/s": learning["num_steps"] / max(learning["seconds"], 1e-3)}
    return found | {"rows learned": learning["num_learned"]}


def _gigabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9


def table(found: Mapping[str, Figures]) -> str:
    """Figures in rows, parts in columns."""
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    rows = [[name, *(_shown(name, figures.get(name, "")) for figures in found.values())] for name in names]
    return markdown_table(["", *found], rows)


def _shown(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.1%}" if name.startswith("MFU") else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def measure(bench: Bench, *, tiny: bool) -> None:
    """All parts; of equal ones those first that only a GPU can tell."""
    import torch

    opt, llama = models(tiny)

    def seconds(on_a_gpu: float) -> float:
        return 5 if tiny else on_a_gpu

    for model, usual in ((opt, 280), (llama, 120)):
        trained = partial(training, bench, model, resumes=model is opt)
        bench.part(model.name, "training", trained, usual_seconds=seconds(usual))
    capability = torch.cuda.get_device_capability() if bench.device == "cuda" else FP8_CAPABILITY
    for model in (llama, opt):
        if capability < FP8_CAPABILITY:
            bench.left_out[f"{model.name}, FP8"] = f"compute capability {capability}, where FP8 needs {FP8_CAPABILITY}"
        else:
            bench.part(f"{model.name}, FP8", "training", partial(training, bench, model, fp8=True), usual_seconds=seconds(80))
    bench.part("harness", "beside lm-eval", partial(harness, bench, opt), usual_seconds=seconds(90))
    bench.part("transfer", "token distillation", partial(transfer, bench, opt), usual_seconds=seconds(40))
    for model in (opt, llama):
        bench.part(model.name, "rehearsal", partial(rehearsal, bench, model), usual_seconds=seconds(40))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(__doc__, example="python -m benchmarks.gpu --minutes 12")
    parser.add_argument("--minutes", type=float, default=12, metavar="N", help="for all; what no longer fits in is left out (default: 12)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="(default: cuda)")
    parser.add_argument("--tiny", action="store_true", help="models that a CPU trains in seconds, to try the command")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("gpu_output"),
        metavar="DIR",
        help=f"new folder, on a disk with {DISK_GIB} GiB (default: gpu_output)",
    )
    arguments = parser.parse_args(argv)
    if not 0 < arguments.minutes < float("inf"):
        raise ValueError(f"--minutes is {arguments.minutes:g}; expected more than 0")
    if arguments.device == "cuda" and not has_gpu():
        raise ValueError("torch sees no GPU here; give --device cpu --tiny to try the command without one")
    if arguments.device == "cpu" and not arguments.tiny:
        raise ValueError("--device cpu needs --tiny: the real models take a CPU hours")
    if arguments.output.exists() or not arguments.output.absolute().parent.is_dir():
        raise ValueError(f"--output {arguments.output} exists, or is not in a folder; expected a new folder in one that is there")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Measure until the time is over, and show it; exit 1 where a part failed."""
    arguments = _arguments(argv)
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    bench = Bench(arguments.output.absolute(), arguments.device, time.monotonic() + 60 * arguments.minutes)
    needed, free = TINY_DISK_GIB if arguments.tiny else DISK_GIB, shutil.disk_usage(bench.output.parent).free / 2**30
    if free < needed:
        raise ValueError(f"{bench.output.parent} has {free:.0f} GiB free; expected {needed}, name an --output on another disk")
    bench.work.mkdir(parents=True)
    try:
        measure(bench, tiny=arguments.tiny)
    finally:
        shutil.rmtree(bench.work, ignore_errors=True)
    said = ", ".join(f"{name} {value}" for name, value in bench.machine().items())
    lines = [said, "", table(bench.found), "", *(f"- {name}: {why}" for name, why in bench.left_out.items())]
    write_text(bench.output / "gpu.md", "\n".join(lines).strip() + "\n")
    print("\n".join(lines))
    return command.WRONG if bench.failed else command.DONE


if __name__ == "__main__":
    command.run(main)
