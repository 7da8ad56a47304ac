"""Convert a Hugging Face checkpoint to GGUF with llama.cpp's convert_hf_to_gguf.py, and verify the file against the checkpoint.

The script comes with llama.cpp (--llama-cpp).  It does not know byte-level tokenizers that you trained: their pre-tokenization rule is found here
and passed to it.  Weights, sizes, token ids of adversarial texts and the chat template of the file are then compared with the checkpoint.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import command
from common.artifacts import Manifest, staged_directory, write_manifest
from common.options import add_option

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.gguf.file import GGUFFile

STAGE = "conversion.to_gguf"
SCRIPT_NAME = "convert_hf_to_gguf.py"
TYPES = ("f32", "bf16", "f16", "q8_0")  # those of the script that we read back; llama-quantize makes the others of them
_RUNNER = Path(__file__).with_name("gguf") / "run_converter.py"
_CARD = "README.md"
_LIMIT_SECONDS = 4 * 3600
_LAST_LINES = 6
_LAST_BIT = 2.0**-22  # of numbers about one in float32, twice
_ROPE_DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}  # YaRN's, in transformers and in llama.cpp


def export(input_dir: Path, output_dir: Path, *, llama_cpp: Path, kind: str = "bf16", texts: Iterable[str] = ()) -> Manifest:
    """Write the file into a new folder, with the checkpoint's card beside it.

    Args:
        llama_cpp: a checkout of llama.cpp, or the folder of its script.
        kind: one of TYPES, of all matrices.
        texts: on which the tokenizers are compared, beside adversarial ones.

    Raises:
        ValueError: if the script is not there or fails; if the tokenizer cuts words as llama.cpp cannot; if what is read back differs.
    """
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.checkpoints.hf_files import is_multimodal
    from conversion.gguf.file import GGUFFile
    from conversion.gguf.rounding import describe_quantization
    from data_prep.tokenizers.files import load_tokenizer, tokenizer_digest

    script = llama_cpp / SCRIPT_NAME
    if not script.is_file():
        raise ValueError(f"{script} does not exist; give the folder of llama.cpp (its sources, not its programs) by --llama-cpp")
    checkpoint = HFCheckpoint.open(input_dir)
    if is_multimodal(checkpoint.config):
        raise ValueError(
            f"{input_dir} has more than a language model, which llama.cpp has in a file of its own: save the language model alone"
            " (`python -m conversion.extract_language_model`) and give that"
        )
    tokenizer = load_tokenizer(input_dir)
    rule = _rule(tokenizer, input_dir)
    name = f"{Path(output_dir).name}-{kind}.gguf"
    with staged_directory(output_dir, required_bytes=checkpoint.nbytes) as staging:
        _run(script, rule, [str(input_dir.absolute()), "--outfile", str(staging / name), "--outtype", kind])
        file = GGUFFile.open(staging / name)
        checked = _compare(file, checkpoint, tokenizer, kind=kind, texts=texts)
        if (input_dir / _CARD).is_file():
            shutil.copyfile(input_dir / _CARD, staging / _CARD)
        return write_manifest(
            staging,
            stage=STAGE,
            facts={
                "model_type": checkpoint.model_type,
                "vocab_size": checkpoint.config["vocab_size"],
                "tie_word_embeddings": checkpoint.tie_word_embeddings,
                "tokenizer_digest": tokenizer_digest(tokenizer),
                "word_rule": file.metadata.get("tokenizer.ggml.pre"),
                "checked": checked,
                "quantization": describe_quantization(file),
            },
            arguments={"input": str(input_dir), "type": kind},
            inputs={"hf": checkpoint.digest()},
        )


def _rule(tokenizer: PreTrainedTokenizerBase, source: Path) -> str | None:
    """llama.cpp's name for how a byte-level tokenizer cuts words; None for the other kinds, of which it does not ask."""
    from conversion.gguf.tokenizer import is_byte_level, word_rule_of
    from data_prep.tokenizers.sentencepiece_backend import ADVERSARIAL_TEXTS

    backend = tokenizer.backend_tokenizer
    if type(backend.model).__name__ == "Unigram":
        raise ValueError(
            f"the tokenizer of {source} is a Unigram model, which llama.cpp would cut by the merges of a BPE model into other tokens; serve this"
            " checkpoint with vLLM or transformers, or train the tokenizer with --model bpe or byte-level"
        )
    return word_rule_of(backend, ADVERSARIAL_TEXTS) if is_byte_level(backend) else None


def _run(script: Path, rule: str | None, arguments: Sequence[str]) -> None:
    from conversion.gguf.tokenizer import WORD_RULES

    words = [sys.executable, "-I", str(_RUNNER), str(script.absolute()), rule or "-", *arguments]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{script} did not end within {_LIMIT_SECONDS // 3600} hours") from None
    if done.returncode == 0:
        return
    if "BPE pre-tokenizer was not recognized" in done.stderr:
        raise ValueError(
            "the tokenizer has a pre-tokenization rule that is neither in llama.cpp's list nor one of those known here"
            f" ({', '.join(WORD_RULES)}); add it to llama.cpp first (see its convert_hf_to_gguf_update.py)"
        )
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()][-_LAST_LINES:]
    raise ValueError(f"{script.name} failed with exit code {done.returncode}:\n" + "\n".join(f"    {line}" for line in lines))


def _compare(file: GGUFFile, checkpoint: HFCheckpoint, tokenizer: PreTrainedTokenizerBase, *, kind: str, texts: Iterable[str]) -> list[str]:
    """Hold the file to the checkpoint and say what was compared.

    Raises:
        ValueError: naming the first difference.
    """
    from conversion.gguf.architectures import ARCHITECTURES
    from conversion.gguf.tokenizer import read_tokenizer
    from data_prep.tokenizers.sentencepiece_backend import ADVERSARIAL_TEXTS

    source = str(file.path)
    checked = []
    if file.metadata.get("general.architecture") in ARCHITECTURES:
        checked += _compare_model(file, checkpoint, kind)
    read = read_tokenizer(file.metadata, source)
    # Whether a text that spells a special token is that token, a caller of llama.cpp decides (parse_special); here the tokenizer does.
    plain = [text for text in (*ADVERSARIAL_TEXTS, *texts) if not any(token in text for token in tokenizer.all_special_tokens)]
    for text in plain:
        for with_special in (True, False):
            expected = tokenizer(text, add_special_tokens=with_special).input_ids
            found = read(text, add_special_tokens=with_special).input_ids
            if expected != found:
                raise ValueError(
                    f"{source} cuts {text[:60]!r} into the ids {found[:12]}, and {checkpoint.directory} into {expected[:12]}"
                    f" ({'with' if with_special else 'without'} special tokens); it would compute with other tokens than the model was trained with"
                )
    if read.chat_template != tokenizer.chat_template:
        raise ValueError(f"{source} has another chat template than {checkpoint.directory}")
    return [*checked, f"token ids of {len(plain)} texts", "chat template"]


def _compare_model(file: GGUFFile, checkpoint: HFCheckpoint, kind: str) -> list[str]:
    import torch

    from conversion.gguf.architectures import Change, places
    from conversion.gguf.model import model_of

    architecture, config, listed = model_of(file, "float32")
    tensors = {tensor.name: tensor for tensor in listed}
    changes = {place.hf: place.change for place in places(architecture, list(file.tensors), config, str(file.path))}
    facts_of_loading = ("architectures", "torch_dtype", "use_cache")
    if different := [
        key
        for key, value in config.items()
        if key in checkpoint.config and key not in facts_of_loading and not _same(value, checkpoint.config[key])
    ]:
        differences = ", ".join(f"{key} is {config[key]} and not {checkpoint.config[key]}" for key in different)
        raise ValueError(f"{file.path}: {differences}")
    expected = [name for name in checkpoint.names() if not (checkpoint.tie_word_embeddings and name == checkpoint.output_name)]
    if left := set(tensors) ^ set(expected):
        raise ValueError(f"{file.path} and {checkpoint.directory} do not both have {', '.join(sorted(left)[:5])}")
    num_rounded = 0
    stored = {"bf16": torch.bfloat16, "f16": torch.float16}.get(kind, torch.float32)
    for name in expected:
        ours, theirs = checkpoint.tensor(name).float(), tensors[name].read()
        is_same = torch.equal(ours, theirs) or (ours.dim() > 1 and torch.equal(ours.to(stored).float(), theirs))
        if not is_same and changes.get(name) is Change.PLUS_ONE:  # which cost its last bits
            num_rounded += 1
            is_same = torch.allclose(ours + 1, theirs + 1, rtol=_LAST_BIT, atol=_LAST_BIT)
        if not is_same and kind == "q8_0" and ours.dim() > 1:
            num_rounded += 1
            is_same = _within_a_step(ours, theirs)
        if not is_same:
            raise ValueError(f"{file.path}: {name} differs from that of {checkpoint.directory} by more than {kind} rounds")
    step = "a step of q8_0" if kind == "q8_0" else "a step of float32"
    how = f"{len(expected) - num_rounded} tensors bit for bit" + (f", {num_rounded} within {step}" if num_rounded else "")
    return [how if kind in ("f32", "q8_0") else f"{how} after rounding to {kind}", "sizes and constants"]


def _within_a_step(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether no number is farther off than a step of its block of 32, as q8_0 rounds (rows, columns); matrices of experts lie transposed."""
    rows, rounded = (tensor.mT if tensor.dim() > 2 else tensor for tensor in (ours, theirs))
    step = rows.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True) / 127
    return bool(((rows - rounded).unflatten(-1, (-1, 32)).abs() <= step).all())


def _same(first: Any, second: Any) -> bool:
    """Equal, or as near as a 32-bit float of the file can be; rotary scalings with what they mean where they are silent."""
    if isinstance(first, dict) and isinstance(second, dict):
        first, second = ({**_ROPE_DEFAULTS, **{key: value for key, value in rope.items() if key != "type"}} for rope in (first, second))
        return first.keys() == second.keys() and all(_same(value, second[key]) for key, value in first.items())
    if isinstance(first, float) or isinstance(second, float):
        return isinstance(second, int | float) and math.isclose(first, second, rel_tol=1e-6)
    return bool(first == second)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments, convert and say what was compared."""
    parser = command.parser(
        __doc__, example=f"python -m {STAGE} --input work/hf/gams --llama-cpp ~/llama.cpp --type bf16 --output work/gguf/gams"
    )
    add_option(parser, "--input", "Hugging Face checkpoint folder, for example of conversion.nemo_to_hf", type=Path, required=True)
    add_option(parser, "--llama-cpp DIR", f"source folder of llama.cpp, with {SCRIPT_NAME}", type=Path, required=True)
    add_option(parser, "--type", "type of the matrices (default: bf16); quantize further with llama-quantize", "bf16", choices=TYPES)
    add_option(parser, "--text", "UTF-8 file with one text per line, on which the tokenizers are compared too", type=Path)
    add_option(parser, "--output", "folder to write", type=Path, required=True)
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    texts = arguments.text.read_text(encoding="utf-8").splitlines() if arguments.text else []
    manifest = export(arguments.input, arguments.output, llama_cpp=arguments.llama_cpp, kind=arguments.type, texts=texts)
    from conversion.checkpoints.summary import summary

    print(summary(arguments.output, manifest, seconds=time.monotonic() - start))
    print(f"  read back and equal: {', '.join(manifest.facts['checked'])}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
