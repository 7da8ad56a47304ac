"""The help of each command, one process each; `-` is a Python that does nothing."""

import subprocess
import sys

for name in sys.argv[1:]:
    words = ["-c", "pass"] if name == "-" else ["-m", name, "--help"]
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
