"""Score saved translations and summaries with BLEURT (Sellam et al. 2020), beside chrF and ROUGE-L, so that `eval.report` shows it too.

Runs in COMET's environment (requirements-comet.txt), with the PyTorch form of BLEURT-20 by bleurt-pytorch.  Nothing is downloaded: fetch the
checkpoint beforehand, where there is a network:

  hf download lucadiliello/BLEURT-20 --local-dir bleurt-20

Each model's folder is written below --output with all its other scores unchanged.  After an interruption, the same command scores only
what is missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import digest_files
from common.quiet_library import quiet_transformers
from conversion.checkpoints.hf_files import CONFIG_NAME, find_weights, read_json
from conversion.checkpoints.hf_model import default_device, require_device
from eval.scoring.learned_scores import BLEURT, Scorer, Triple, parser_of, score_folders

_PACKAGE = "bleurt-pytorch"
_FETCH = "`hf download lucadiliello/BLEURT-20 --local-dir bleurt-20`"
_VOCABULARIES = ("spm.model", "vocab.txt")  # of BLEURT-20 and its distilled forms; of the older ones


def find_bleurt(folder: Path) -> dict[str, str]:
    """Name and digest of a BLEURT model on disk, and the version of the package.

    Raises:
        ValueError: if the folder is no such model, with how to fetch one, or this environment has no bleurt-pytorch.
    """
    config: dict[str, Any] = read_json(folder / CONFIG_NAME, expected=f"expected BLEURT in its PyTorch form, for example from {_FETCH}")
    if config.get("model_type") != "bleurt":
        raise ValueError(f"{folder} holds a model of the type {config.get('model_type')}; expected bleurt, for example from {_FETCH}")
    vocabulary = [name for name in _VOCABULARIES if (folder / name).is_file()]
    if not vocabulary:
        raise ValueError(f"{folder} has no {' or '.join(_VOCABULARIES)}; download all of it, for example with {_FETCH}")
    digest = digest_files(folder, [CONFIG_NAME, *vocabulary, *find_weights(folder).names])
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise ValueError(
            f"{_PACKAGE} is not installed in this environment; make one with `make comet-environment` and run"
            " `.venv-comet/bin/python -m eval.bleurt ...`"
        ) from None
    return {"name": folder.resolve().name, "digest": digest, "package": f"{_PACKAGE} {version}"}


def open_bleurt(folder: Path, *, device: str, batch_size: int) -> Scorer:
    """The model, loaded, as a function of answers with their references; longer ones than it has positions for lose their end.

    Raises:
        ValueError: if the device is not there, or the checkpoint cannot be read or lacks tensors, which would be filled with random numbers.
    """
    warnings.filterwarnings("ignore")
    import torch
    from bleurt_pytorch import BleurtForSequenceClassification
    from bleurt_pytorch.bleurt.tokenization_bleurt_fast import BleurtTokenizerFast
    from bleurt_pytorch.bleurt.tokenization_bleurt_sp import BleurtSPTokenizer

    require_device(device)
    quiet_transformers()
    kind = BleurtSPTokenizer if (folder / _VOCABULARIES[0]).is_file() else BleurtTokenizerFast
    try:
        tokenizer = kind.from_pretrained(str(folder), local_files_only=True)
        loaded = BleurtForSequenceClassification.from_pretrained(str(folder), local_files_only=True, output_loading_info=True)
    except Exception as error:  # from OSError to SafetensorError and RuntimeError, by what is wrong
        raise ValueError(f"BLEURT in {folder} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    model, loading = loaded
    if missing := sorted(loading["missing_keys"]):
        raise ValueError(
            f"{folder} lacks {len(missing)} tensors of the model, first {missing[0]}; download it again, for example with {_FETCH}"
        )
    model = model.to(device).eval()
    positions = int(model.config.max_position_embeddings)

    def score(triples: Sequence[Triple]) -> list[float]:
        found: list[float] = []
        for start in range(0, len(triples), batch_size):
            piece = triples[start : start + batch_size]
            # As the library's authors: the reference comes first.
            asked = [triple.reference for triple in piece], [triple.output for triple in piece]
            inputs = tokenizer(*asked, padding="longest", truncation=True, max_length=positions, return_tensors="pt").to(device)
            with torch.inference_mode():
                found += model(**inputs).logits.flatten().float().tolist()
        return found

    return score


def main(argv: Sequence[str] | None = None) -> int:
    """Score all models given and print chrF or ROUGE-L, and BLEURT, of each task."""
    checkpoint = "folder of the BLEURT checkpoint in PyTorch form"
    arguments = parser_of(BLEURT, __doc__, example="--checkpoint bleurt-20/", checkpoint=checkpoint).parse_args(argv)
    command.require_at_least(1, arguments, "batch_size")

    def find() -> dict[str, str]:
        return find_bleurt(arguments.checkpoint)

    def open_it() -> Scorer:
        return open_bleurt(arguments.checkpoint, device=arguments.device or default_device(), batch_size=arguments.batch_size)

    print(score_folders(arguments.results, arguments.output, BLEURT, tasks=arguments.tasks, find=find, open_scorer=open_it))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
