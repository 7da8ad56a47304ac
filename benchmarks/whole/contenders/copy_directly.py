"""The least that is possible: the bytes of a folder by direct writes, which need no page of memory per page of the file."""

import os
import subprocess
import sys

source, target = sys.argv[1:]
os.mkdir(target)
for entry in os.scandir(source):
    subprocess.run(
        ["dd", f"if={entry.path}", f"of={target}/{entry.name}", "bs=8M", "oflag=direct", "conv=fsync", "status=none"], check=True
    )
