"""Seconds for which each save of a training stops it, or for which as many processes write the same bytes, as a list in the last line."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
from benchmarks.saving import stopped_seconds, writing_seconds  # noqa: E402

contender, inputs, ranks, output = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
if contender in ("cached", "direct"):
    output.mkdir()
    seconds = [writing_seconds(inputs / "weights", output / str(copy), ranks, direct=contender == "direct") for copy in range(3)]
else:
    seconds = stopped_seconds(contender, inputs, output, ranks)
print(json.dumps(seconds))
