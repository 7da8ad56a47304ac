"""Read a compressed file and write it in zstd: what no command from files to files can do without."""

import os
import sys

import pyarrow

source, output = sys.argv[1:]
kind = "gzip" if source.endswith(".gz") else "zstd"
with pyarrow.CompressedInputStream(source, kind) as reading, pyarrow.CompressedOutputStream(output, "zstd") as writing:
    while data := reading.read(1 << 20):
        writing.write(data)
descriptor = os.open(output, os.O_RDONLY)
os.fsync(descriptor)
