"""Convert a Hugging Face checkpoint to a NeMo 2 checkpoint that loads at any tensor and pipeline parallel size.

Works tensor by tensor, on the CPU, without NeMo: memory use is that of the largest tensors, not of the model.  Position
rows that only the Hugging Face side has, its configuration and its tokenizer are stored beside the weights, so that
converting back without training (`python -m conversion.nemo_to_hf`) restores every byte.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import command
from common.artifacts import Manifest, check_files, read_manifest, staged_directory, write_manifest
from common.background import Background
from common.options import add_option
from common.progress import Progress
from conversion.checkpoints.summary import summary
from data_prep.tokenizers.files import start_without_torch
from data_prep.tokenizers.plain_tokenizer import tokenizer_identity

if TYPE_CHECKING:
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint

STAGE = "conversion.hf_to_nemo"


def convert(input_dir: Path, output_dir: Path, *, tell: Callable[[str], object] = lambda sentence: None) -> Manifest:
    """Write the NeMo checkpoint of a Hugging Face checkpoint.

    Args:
        tell: gets what is worth knowing of the checkpoint, before the output is there.

    Raises:
        ValueError: if the input is missing, corrupt, edited, or of a family or variant that is not supported; if its tokenizer has
            more tokens than the model has rows; if a value is NaN or infinite; if the output exists or the disk is full.
    """
    from common.allocation import return_freed_memory
    from conversion.checkpoints.for_engine import for_engine
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.checkpoints.nemo_checkpoint import write_nemo_checkpoint
    from conversion.formats.lazy_tensor import counted

    return_freed_memory()
    hf = HFCheckpoint.open(input_dir)
    manifest = read_manifest(hf.directory)
    if manifest is not None:
        check_files(hf.directory, manifest, contents=False)
    made = for_engine(hf)
    config, tensors = made.config, made.tensors
    facts = {
        **(manifest.facts if manifest else {}),
        "model_type": made.family.model_type,
        "vocab_size": config["vocab_size"],
        "tie_word_embeddings": hf.tie_word_embeddings,
        **({"was_quantized": "mxfp4"} if made.is_quantized else {}),
    }
    facts["tokenizer_digest"] = _tokenizer_digest(hf, manifest, config["vocab_size"])
    sentences = _sentences(hf, quantized=made.is_quantized)
    total = sum(tensor.nbytes for tensor in tensors)
    with staged_directory(output_dir, required_bytes=total) as staging:
        source_digest = Background(hf.digest, yields=True)  # reads the whole input, so it runs beside the conversion
        with Progress("converting", total=total, unit="B", is_bytes=True) as progress:

            def advance(nbytes: int) -> None:
                source_digest.raise_if_failed()
                progress.advance(nbytes)

            digests = write_nemo_checkpoint(
                staging,
                counted(tensors, advance),
                family=made.family,
                config=config,
                hf_dtype=tensors[0].dtype_name,
                hf_dir=hf.directory,
            )
        for sentence in sentences:
            tell(sentence)
        return write_manifest(
            staging,
            stage=STAGE,
            facts=facts,
            arguments={"input": str(input_dir)},
            inputs={"hf": source_digest.result()},
            known_digests=digests,
        )


def _tokenizer_digest(hf: HFCheckpoint, manifest: Manifest | None, rows: int) -> str | None:
    """Identity of the tokenizer in the folder, from its manifest where that knows it; None if there is no tokenizer.

    Raises:
        ValueError: if the tokenizer needs more rows than the model has.
    """
    from conversion.checkpoints.for_engine import require_rows
    from data_prep.tokenizers.files import tokenizer_files

    if manifest is not None and "tokenizer_digest" in manifest.facts:
        digest: Any = manifest.facts["tokenizer_digest"]
        return digest
    if not tokenizer_files(hf.directory):
        return None
    tokenizer = tokenizer_identity(hf.directory)
    require_rows(hf.directory, needed=tokenizer.rows_needed, rows=rows)
    return tokenizer.digest


def _sentences(hf: HFCheckpoint, *, quantized: bool) -> list[str]:
    """What is worth knowing of a checkpoint that is converted."""
    from conversion.checkpoints.hf_checkpoint import QUANTIZATION
    from conversion.checkpoints.untrained_rows import end_of_text_ids, end_of_text_sentences

    warnings = end_of_text_sentences(hf.token_matrices(), end_of_text_ids(hf.directory), hf.config)
    found = [f"warning: {sentence}" for sentence in warnings]
    if not quantized:
        return found
    method = hf.config[QUANTIZATION]["quant_method"].upper()
    sentence = (
        f"{hf.directory} is in {method}; each of its numbers is kept, in bfloat16, and so an export has them, about four times as large"
    )
    return [f"note: {sentence}", *found]


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and convert."""
    parser = command.parser(__doc__, example=f"python -m {STAGE} --input models/opt-125m --output work/nemo/opt-125m")
    add_option(parser, "--input", "Hugging Face checkpoint folder: config.json, weights, tokenizer", type=Path, required=True)
    add_option(parser, "--output", "folder to write", type=Path, required=True)
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    manifest = convert(arguments.input, arguments.output, tell=partial(print, file=sys.stderr))
    if manifest.facts["tokenizer_digest"] is None:
        print(f"note: {arguments.input} holds no tokenizer; add its files if the model is to be exported with one", file=sys.stderr)
    print(summary(arguments.output, manifest, seconds=time.monotonic() - start))
    return command.DONE


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
