"""Join outputs of `data_prep.to_megatron` into one dataset, in the order given: the last step after tokenizing in several tasks.

The tokens are copied without loading them into memory and checked against the digests in the manifests; the result is identical, byte for
byte, to one run over all files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from common import command
from common.artifacts import Manifest, check_files, staged_directory, write_manifest
from common.options import add_option
from common.progress import Progress
from data_prep.megatron.index import PREFIX, STAGE, TokenFile, dataset_summary, open_dataset, totals
from data_prep.megatron.shard import LINES, Part, join
from data_prep.tokenizers.frame import FRONT, OWN_FRONT

_SAME = (FRONT, "tokenizer_digest", "vocab_size", "eos_token_id")  # the digest decides OWN_FRONT
_SLOW = "not_by_words_because"  # of tokenizers without a fast path alone


def join_megatron(directories: Sequence[Path], output_dir: Path, *, arguments: argparse.Namespace | None = None) -> Manifest:
    """Join datasets into a new directory and return its manifest.

    Raises:
        ValueError: if a part is damaged, given twice, or made with another tokenizer or --bos.
    """
    manifests = [open_dataset(directory)[1] for directory in directories]
    first = manifests[0]
    for number, (directory, manifest) in enumerate(zip(directories, manifests)):
        if directory.resolve() in {other.resolve() for other in directories[:number]}:
            raise ValueError(f"{directory} is given twice; its documents would be in the data twice")
        for name in _SAME:
            unsaid: list[int] | None = [] if name == FRONT else None  # older data sets have nothing in front
            if manifest.facts.get(name, unsaid) != first.facts.get(name, unsaid):
                raise ValueError(
                    f"{directory} has {name} {manifest.facts.get(name, unsaid)}, but {directories[0]} has {first.facts.get(name, unsaid)};"
                    " make both with the same tokenizer and --bos"
                )
    num_bytes = sum(manifest.files[f"{PREFIX}.bin"].size for manifest in manifests)
    with (
        staged_directory(output_dir, required_bytes=num_bytes) as staging,
        Progress("joining", total=num_bytes, unit="B", is_bytes=True) as progress,
    ):
        dtype = TokenFile(directories[0] / PREFIX).dtype
        digests = join(_parts(directories, manifests, progress), staging, dtype)
        sums = totals([shard for manifest in manifests for shard in manifest.facts["shards"]])
        data = TokenFile(staging / PREFIX)
        if (len(data), data.num_tokens) != (sums["num_documents"], sums["num_tokens"]):
            raise ValueError(
                f"the parts hold {len(data)} documents of {data.num_tokens} tokens, but their manifests say {sums['num_documents']} of"
                f" {sums['num_tokens']}; make them again"
            )
        checked = {
            name: sum(manifest.facts[name] for manifest in manifests) for name in ("num_samples", "num_samples_decoded_to_their_text")
        }
        return write_manifest(
            staging,
            stage=STAGE,
            facts={**{name: first.facts[name] for name in (*_SAME, OWN_FRONT, _SLOW) if name in first.facts}, **sums, **checked},
            arguments=vars(arguments) if arguments else None,
            inputs={str(directory): manifest.digest for directory, manifest in zip(directories, manifests)},
            known_digests=digests,
        )


def _parts(directories: Sequence[Path], manifests: Sequence[Manifest], progress: Progress) -> Iterator[Part]:
    for directory, manifest in zip(directories, manifests):
        tokens = f"{PREFIX}.bin"
        # The index and the lines are small; the tokens are compared while they are copied.
        check_files(directory, Manifest(manifest.stage, files={name: r for name, r in manifest.files.items() if name != tokens}))
        record = manifest.files[tokens]
        assert record.digest is not None
        yield Part(directory / tokens, record.digest, np.array(TokenFile(directory / PREFIX).lengths), np.load(directory / LINES))
        progress.advance(record.size)


def main(argv: Sequence[str] | None = None) -> int:
    """Join datasets into a new one."""
    parser = command.parser(__doc__, example="python -m data_prep.join_megatron --input parts/0 parts/1 parts/2 --output data/")
    add_option(parser, "--input DIR", "outputs of data_prep.to_megatron, in order", type=Path, nargs="+", required=True)
    add_option(parser, "--output DIR", "new directory", type=Path, required=True)
    arguments = parser.parse_args(argv)
    manifest = join_megatron(arguments.input, arguments.output, arguments=arguments)
    print(dataset_summary(arguments.output, manifest))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
