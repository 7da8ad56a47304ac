"""Extract the language model of a multimodal checkpoint as a checkpoint of its own, which every command reads.

Its tensors are copied bit for bit under the names of a causal model, with `text_config` as configuration; vision and audio parts are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import Manifest, staged_directory, write_manifest
from common.options import add_option
from common.progress import show

STAGE = "conversion.extract_language_model"
# The names of transformers 4 in published files, those that later versions write, and those of Idefics 3 and SmolVLM; the longer first.
PREFIXES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("lm_head.", "lm_head."),
)
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def extract(input_dir: Path, output_dir: Path) -> Manifest:
    """Write the checkpoint.

    Raises:
        ValueError: if the input is missing or corrupt, is not a multimodal model, or its language model is none that predicts the next token or
            lacks a matrix; if the output exists or the disk is full.
    """
    from dataclasses import replace

    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from conversion.checkpoints.hf_checkpoint import HFCheckpoint, copy_companions, write_hf_checkpoint
    from conversion.checkpoints.hf_files import PROCESSOR_NAMES, language_part, tied_by_config
    from conversion.checkpoints.token_names import input_names, shared_matrix_names

    hf = HFCheckpoint.open(input_dir)
    part = language_part(hf.config)
    if part is None:
        raise ValueError(
            f"{input_dir} has no text_config in its config.json: it is not a multimodal model, or has nothing but its language model"
        )
    # Of which transformers 4 has no class.
    classes = {"ministral3": "Ministral3ForCausalLM", **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    architecture = classes.get(part.get("model_type", ""))
    if architecture is None:
        raise ValueError(
            f"{input_dir} has a text_config of the type {part.get('model_type')!r}, of which transformers has no causal model; expected one such as"
            " mistral, llama or qwen2"
        )
    tensors = [tensor.renamed(new) for name, tensor in hf.tensors.items() if (new := _own_name(name)) is not None]
    if not input_names([tensor.name for tensor in tensors]) and not shared_matrix_names([tensor.name for tensor in tensors]):
        raise ValueError(f"{input_dir} has no input embeddings whose names begin with {', '.join(old for old, _ in PREFIXES[:-1])}")
    whole: dict[str, Any] = {key: hf.config[key] for key in (*_IDS, "torch_dtype", "dtype") if key in hf.config}
    config = {**whole, **part, "architectures": [architecture], "tie_word_embeddings": tied_by_config(hf.config)}
    alone = replace(hf, config=config, tensors={tensor.name: tensor for tensor in tensors}, renamed={})
    facts = {"model_type": part["model_type"], "tie_word_embeddings": alone.tie_word_embeddings, "extracted_from": hf.model_type}
    with staged_directory(output_dir, required_bytes=alone.nbytes) as staging:
        copy_companions(hf.directory, staging)
        for name in PROCESSOR_NAMES:
            (staging / name).unlink(missing_ok=True)
        digests = write_hf_checkpoint(staging, config, alone.untied_tensors().values())
        return write_manifest(
            staging, stage=STAGE, facts=facts, arguments={"input": str(input_dir)}, inputs={"hf": hf.digest()}, known_digests=digests
        )


def _own_name(name: str) -> str | None:
    """A tensor's name in the language model alone; None for what is not of it."""
    return next((new + name.removeprefix(old) for old, new in PREFIXES if name.startswith(old)), None)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and extract."""
    parser = command.parser(__doc__, example=f"python -m {STAGE} --input mistral-small-3.1/ --output work/mistral-small")
    add_option(parser, "--input", "Hugging Face checkpoint folder of the multimodal model", type=Path, required=True)
    add_option(parser, "--output", "folder to write", type=Path, required=True)
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    show(f"{arguments.input}: reading")
    manifest = extract(arguments.input, arguments.output)
    facts = manifest.facts
    print(
        f"{arguments.output}: {facts['model_type']}, the language model of {facts['extracted_from']}, in {time.monotonic() - start:.1f} s"
    )
    return command.DONE


if __name__ == "__main__":
    command.run(main)
