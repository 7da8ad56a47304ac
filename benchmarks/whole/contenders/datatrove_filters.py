"""datatrove's pipeline with the rules of Gopher, C4 and FineWeb, from .jsonl.zst to .jsonl.zst in one process."""

import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from loguru import logger

source, language, output = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
logger.remove()
pipeline = [
    JsonlReader(str(source.parent), glob_pattern=source.name, compression="zstd"),
    GopherRepetitionFilter(language=language),
    GopherQualityFilter(language=language),
    C4QualityFilter(filter_no_terminal_punct=False, language=language),
    FineWebQualityFilter(language=language),
    JsonlWriter(output, compression="zstd", output_filename="${rank}.jsonl.zst"),
]
LocalPipelineExecutor(pipeline, tasks=1, workers=1, logging_dir=f"{output}.logs").run()
