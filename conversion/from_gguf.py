"""Convert a GGUF file (llama.cpp) to a Hugging Face checkpoint: dequantized weights, config, tokenizer and chat template.

For models that are available only as GGUF.  Precision lost to quantization is not restored: the manifest records the types of the tensors and the
quantization step relative to the weights.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import command
from common.artifacts import Manifest, digest_file, staged_directory, write_manifest
from common.options import add_option
from common.progress import show

if TYPE_CHECKING:
    from conversion.gguf.file import GGUFFile

STAGE = "conversion.from_gguf"
DTYPES = ("bfloat16", "float16", "float32")


def convert(gguf_path: Path, output_dir: Path, *, dtype_name: str, tokenizer_dir: Path | None = None) -> Manifest:
    """Write the checkpoint, holding one tensor at a time.

    Args:
        dtype_name: of the weights that are written.
        tokenizer_dir: folder of a Hugging Face tokenizer to take instead of the one in the file.

    Raises:
        ValueError: if the file is damaged or holds what is not supported, if the tokenizer needs more rows than the model has, or the output exists.
    """
    from common.progress import Progress
    from conversion.checkpoints.hf_checkpoint import write_hf_checkpoint
    from conversion.families import family_of
    from conversion.formats.lazy_tensor import counted
    from conversion.gguf.file import GGUFFile
    from conversion.gguf.model import model_of
    from conversion.gguf.rounding import describe_quantization
    from data_prep.tokenizers.files import rows_needed, save_tokenizer, tokenizer_digest

    file = GGUFFile.open(gguf_path)
    architecture, config, tensors = model_of(file, dtype_name)
    family = family_of(architecture.model_type, source=str(gguf_path))
    family.megatron_config(config, tied=config["tie_word_embeddings"], source=str(gguf_path))
    tokenizer = _tokenizer(file, tokenizer_dir)
    if (needed := rows_needed(tokenizer)) > config["vocab_size"]:
        raise ValueError(f"the tokenizer needs {needed} rows, but {gguf_path} has {config['vocab_size']}; give another --tokenizer")
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad")}
    required = sum(tensor.nbytes for tensor in tensors)
    with staged_directory(output_dir, required_bytes=required) as staging:
        save_tokenizer(tokenizer, staging)
        with Progress("dequantizing", total=required, unit="B", is_bytes=True) as progress:
            digests = write_hf_checkpoint(staging, {**config, **ids}, counted(tensors, progress.advance))
        _write_generation_config(staging, ids)
        return write_manifest(
            staging,
            stage=STAGE,
            facts={
                "model_type": architecture.model_type,
                "vocab_size": config["vocab_size"],
                "tie_word_embeddings": config["tie_word_embeddings"],
                "tokenizer_digest": tokenizer_digest(tokenizer),
                "name": file.metadata.get("general.name"),
                "license": file.metadata.get("general.license"),
                "quantization": describe_quantization(file),
            },
            arguments={"input": str(gguf_path), "dtype": dtype_name, "tokenizer": str(tokenizer_dir) if tokenizer_dir else None},
            inputs={path.name if len(file.paths) > 1 else "gguf": digest_file(path) for path in file.paths},
            known_digests=digests,
        )


def _tokenizer(file: GGUFFile, tokenizer_dir: Path | None) -> Any:
    from conversion.gguf.tokenizer import read_tokenizer
    from data_prep.tokenizers.files import load_tokenizer

    return load_tokenizer(tokenizer_dir) if tokenizer_dir else read_tokenizer(file.metadata, str(file.path))


def _write_generation_config(directory: Path, ids: dict[str, int | None]) -> None:
    from transformers import GenerationConfig

    GenerationConfig(**{key: value for key, value in ids.items() if value is not None}).save_pretrained(directory)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and convert."""
    parser = command.parser(__doc__, example=f"python -m {STAGE} --input smollm2-135m.Q8_0.gguf --dtype float32 --output work/smollm2")
    add_option(parser, "--input", ".gguf file; of a split file, any part", type=Path, required=True)
    add_option(parser, "--dtype", "dtype of the weights to write", "bfloat16", choices=DTYPES)
    add_option(parser, "--tokenizer", "folder of a Hugging Face tokenizer to use instead of the one in the file", type=Path)
    add_option(parser, "--output", "folder to write", type=Path, required=True)
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    show(f"{arguments.input}: reading")
    manifest = convert(arguments.input, arguments.output, dtype_name=arguments.dtype, tokenizer_dir=arguments.tokenizer)
    from conversion.checkpoints.summary import summary

    print(summary(arguments.output, manifest, seconds=time.monotonic() - start))
    for kind, figures in manifest.facts["quantization"].items():
        print(f"  {kind}: {figures['tensors']} tensors, {figures['bits_per_weight']:.1f} bits a weight{_rounding_note(figures)}")
    return command.DONE


def _rounding_note(figures: dict[str, Any]) -> str:
    share = figures["rounding_share"]
    return "" if not share else f", steps of rounding about {share:.1%} of the weights' size"


if __name__ == "__main__":
    command.run(main)
