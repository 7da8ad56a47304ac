"""datatrove's pipeline with Gopher's and C4's rules, from .jsonl.zst to .jsonl.zst in one process."""

import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import C4QualityFilter, GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

source, output = Path(sys.argv[1]), sys.argv[2]
pipeline = [
    JsonlReader(str(source.parent), glob_pattern=source.name, compression="zstd"),
    GopherRepetitionFilter(),
    GopherQualityFilter(),
    C4QualityFilter(),
    JsonlWriter(output, compression="zstd"),
]
LocalPipelineExecutor(pipeline, tasks=1, workers=1, logging_dir=f"{output}.logs").run()
