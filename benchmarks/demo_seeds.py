"""Bits per byte of the tiny demo's methods at step 0 and at the end, over several seeds.

    python -m benchmarks.demo_seeds --output /tmp/demo_seeds --seeds 1 2 3

Runs the demo once per seed (weights, transfer and data order all follow it) and prints a Markdown table of mean and standard
deviation, and how often each informed method was below `random-all` with the same seed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

PROJECT = "recipes/projects/demo_tiny.yaml"
METHODS, STEPS = ("random-all", "mean", "focus"), (0, 100)


def bits_per_byte(demo_dir: Path, text: str) -> dict[tuple[str, int], float]:
    """(method, step) -> bits per byte on a held-out text, from the results of one demo."""
    found = {}
    for path in sorted((demo_dir / "results").glob("*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if "method" in result["facts"]:  # the source model has none
            found[result["facts"]["method"], result["facts"].get("step", 0)] = result["texts"][text]["bits_per_byte"]
    return found


def main() -> None:
    """Run the demos and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="one directory per seed goes here; finished ones are used again")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        directory = arguments.output / f"seed_{seed}"
        if not (directory / "report").exists():
            settings = (f"seed={seed}", f"machine.work_dir={directory.resolve()}")
            subprocess.run([sys.executable, "-m", "recipes.run", PROJECT, *settings], check=True)
    for text in ("sl", "en"):
        by_seed = {seed: bits_per_byte(arguments.output / f"seed_{seed}", text) for seed in arguments.seeds}
        print(f"\nBits per byte on held-out `{text}`, mean ± standard deviation over {len(by_seed)} seeds\n")
        print("| method | " + " | ".join(f"step {step} | below random-all" for step in STEPS) + " |")
        print("|---|" + "---:|---:|" * len(STEPS))
        for method in METHODS:
            cells = []
            for step in STEPS:
                values = [found[method, step] for found in by_seed.values()]
                below = sum(found[method, step] < found["random-all", step] for found in by_seed.values())
                spread = stdev(values) if len(values) > 1 else 0.0
                cells.append(f"{mean(values):.4f} ± {spread:.4f} | {'' if method == 'random-all' else f'{below} of {len(values)}'}")
            print(f"| {method} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
