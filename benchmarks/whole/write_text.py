"""`write_text` in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.whole.material import write_text

if __name__ == "__main__":
    write_text(Path(sys.argv[1]), int(sys.argv[2]), [Path(word) for word in sys.argv[3:]])
