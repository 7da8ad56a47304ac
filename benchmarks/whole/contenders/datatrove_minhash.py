"""datatrove's four MinHash stages with its own settings, from .jsonl.zst to .jsonl.zst in one process each."""

import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

source, output = Path(sys.argv[1]), sys.argv[2]
config = MinhashConfig()


def reader() -> JsonlReader:
    return JsonlReader(str(source.parent), glob_pattern=source.name, compression="zstd")


stages = [
    ([reader(), MinhashDedupSignature(f"{output}/signatures", config=config)], 1),
    ([MinhashDedupBuckets(f"{output}/signatures", f"{output}/buckets", config=config)], config.num_buckets),
    ([MinhashDedupCluster(f"{output}/buckets", f"{output}/remove", config=config)], 1),
    ([reader(), MinhashDedupFilter(f"{output}/remove"), JsonlWriter(f"{output}/kept", compression="zstd")], 1),
]
if __name__ == "__main__":
    for number, (pipeline, tasks) in enumerate(stages):
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=f"{output}.logs/{number}").run()
