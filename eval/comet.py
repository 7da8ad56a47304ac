"""Score saved translations with COMET (Rei et al. 2020), beside chrF and BLEU, so that `eval.report` shows it like any other score.

Runs in an environment of its own (requirements-comet.txt), as unbabel-comet needs older libraries than lm-eval.  Nothing is downloaded:
fetch the checkpoint and its encoder's tokenizer beforehand, where there is a network:

  hf download Unbabel/wmt22-comet-da --local-dir comet-22
  hf download FacebookAI/xlm-roberta-large config.json tokenizer.json tokenizer_config.json sentencepiece.bpe.model \\
    --local-dir xlm-roberta-large

Each model's folder is written below --output with all its other scores unchanged.  After an interruption, the same command scores only
what is missing.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import combined_digest, digest_file
from common.options import add_option
from common.plain_files import read_yaml
from conversion.checkpoints.hf_model import default_device
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.pickle_names import LIGHTNING, refusal, unknown_names
from conversion.formats.torch_file import TorchFile, read_torch_file, tensors_of
from eval.scoring.learned_scores import COMET, Scorer, Triple, parser_of, score_folders

_PACKAGE = "unbabel-comet"
_FETCH = "`hf download Unbabel/wmt22-comet-da --local-dir comet-22`"
_FETCH_ENCODER = (
    "`hf download FacebookAI/xlm-roberta-large config.json tokenizer.json tokenizer_config.json sentencepiece.bpe.model"
    " --local-dir xlm-roberta-large`"
)


@dataclass(frozen=True)
class CometFiles:
    """A COMET model on disk.

    Attributes:
        settings: of its `hparams.yaml`, with the encoder's folder in place of its name.
    """

    checkpoint: Path
    settings: dict[str, Any]
    digest: str

    @property
    def name(self) -> str:
        """Name of the folder that was fetched."""
        return self.checkpoint.parents[1].name


def find_comet_files(path: Path, encoder: Path | None) -> CometFiles:
    """The files of a COMET model: a checkpoint, or the folder that was fetched, with `checkpoints/model.ckpt` and `hparams.yaml`.

    Args:
        encoder: folder with config and tokenizer of the encoder; None where `hparams.yaml` itself names one on disk.

    Raises:
        ValueError: if a file is missing, with how to fetch it.
    """
    checkpoint = (path / "checkpoints" / "model.ckpt" if path.is_dir() else path).resolve()
    if not checkpoint.is_file():
        raise ValueError(
            f"the COMET checkpoint {checkpoint} does not exist; download it where there is internet access, for example with {_FETCH}"
        )
    hparams = checkpoint.parents[1] / "hparams.yaml"
    if not hparams.is_file():
        raise ValueError(
            f"{hparams} is missing; COMET needs it beside the folder of its checkpoint; download both, for example with {_FETCH}"
        )
    try:
        settings = read_yaml(hparams, loader=_tuple_loader())
    except ValueError:
        settings = None
    if not isinstance(settings, dict) or "class_identifier" not in settings or "pretrained_model" not in settings:
        raise ValueError(f"{hparams} names no class_identifier and pretrained_model; it does not belong to a COMET checkpoint")
    folder = encoder or Path(str(settings["pretrained_model"]))
    if not (folder / "config.json").is_file():
        needed = f"the encoder {settings['pretrained_model']} of {checkpoint} needs its config and tokenizer"
        given = f"{encoder} has no config.json" if encoder is not None else "no --encoder names them"
        raise ValueError(f"{needed}, but {given}; download them where there is internet access, for example with {_FETCH_ENCODER}")
    digest = combined_digest({"checkpoint": digest_file(checkpoint), "hparams": digest_file(hparams)})
    return CometFiles(checkpoint, {**settings, "pretrained_model": str(folder.resolve())}, digest)


def _tuple_loader() -> type:
    """A loader that also knows tuples, which the package writes."""
    import yaml

    class TupleLoader(yaml.SafeLoader):
        """Makes nothing else of Python's."""

    TupleLoader.add_constructor("tag:yaml.org,2002:python/tuple", lambda loader, node: tuple(loader.construct_sequence(node, deep=True)))
    return TupleLoader


def require_package() -> str:
    """The version of unbabel-comet.

    Raises:
        ValueError: if this environment has none.
    """
    try:
        return metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise ValueError(
            f"{_PACKAGE} is not installed in this environment ({sys.prefix}); make one with `make comet-environment` and run"
            " `.venv-comet/bin/python -m eval.comet ...`"
        ) from None


def open_scorer(files: CometFiles, *, device: str, batch_size: int) -> Scorer:
    """The model, loaded, as a function of triples.

    Raises:
        ValueError: if the checkpoint cannot be read or lacks tensors, which COMET itself would fill with random numbers.
    """

    warnings.filterwarnings("ignore")
    from comet.models import str2model

    for name in ("pytorch_lightning", "lightning_fabric", "comet"):  # which set their own levels when they are imported
        logging.getLogger(name).setLevel(logging.ERROR)
    saved = _require_whole(files.checkpoint)
    # The package's own loader calls whatever the checkpoint names; what it would do else is to make the model by its settings.
    kind = str2model.get(files.settings["class_identifier"])
    if kind is None:
        raise ValueError(f"COMET has no class {files.settings['class_identifier']!r}; it has {', '.join(str2model)}")
    known = {name: value for name, value in files.settings.items() if name in inspect.signature(kind).parameters}
    try:
        model = kind(**{**known, "load_pretrained_weights": False, "local_files_only": True})
        lacking = sorted(set(model.state_dict()) - set(saved))
        model.load_state_dict({name: tensor.read() for name, tensor in saved.items()}, strict=False)
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"COMET cannot load {files.checkpoint}: {' '.join(str(error).split())[:300]}") from error
    if lacking:
        raise ValueError(f"{files.checkpoint} lacks {len(lacking)} tensors of the model, first {lacking[0]}; fetch it again")
    num_gpus = int(device.startswith("cuda"))
    chosen = [int(device.partition(":")[2] or 0)] if num_gpus else None

    def score(triples: Sequence[Triple]) -> list[float]:
        rows = [{"src": triple.source, "mt": triple.output, "ref": triple.reference} for triple in triples]
        output = model.predict(rows, batch_size=batch_size, gpus=num_gpus, devices=chosen, num_workers=0, progress_bar=False)
        return [float(value) for value in output.scores]

    return score


def require_safe_checkpoint(checkpoint: Path) -> TorchFile:
    """The checkpoint, of which nothing has run; refused if it would run something where another program loads it.

    Raises:
        ValueError: naming what it would run, or if it cannot be looked at.
    """
    try:
        file = read_torch_file(checkpoint)
        if file is None:
            raise ValueError("no zip archive, the format of torch since 2020")
    except ValueError as error:
        raise ValueError(f"{checkpoint} is not a readable checkpoint ({error}); download it again, for example with {_FETCH}") from error
    if unknown := unknown_names(file.names, LIGHTNING):
        raise ValueError(refusal(checkpoint, unknown))
    return file


def _require_whole(checkpoint: Path) -> dict[str, LazyTensor]:
    """The tensors of a checkpoint, which are read without its loader."""
    file = require_safe_checkpoint(checkpoint)
    try:
        return {tensor.name: tensor for tensor in tensors_of(file, file.content["state_dict"])}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{checkpoint} is not a readable checkpoint ({error}); download it again, for example with {_FETCH}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Score all models given and print chrF and COMET of each task."""
    checkpoint = "folder of the COMET model, or its checkpoint file"
    parser = parser_of(COMET, __doc__, example="--checkpoint comet-22/ --encoder xlm-roberta-large/", checkpoint=checkpoint)
    add_option(parser, "--encoder DIR", "folder with the config and tokenizer of COMET's encoder", type=Path)
    arguments = parser.parse_args(argv)
    command.require_at_least(1, arguments, "batch_size")
    files: CometFiles | None = None

    def find() -> dict[str, str]:
        nonlocal files
        files = find_comet_files(arguments.checkpoint, arguments.encoder)
        return {"name": files.name, "digest": files.digest, "package": f"{_PACKAGE} {require_package()}"}

    def open_it() -> Scorer:
        assert files is not None, "found before"
        return open_scorer(files, device=arguments.device or default_device(), batch_size=arguments.batch_size)

    print(score_folders(arguments.results, arguments.output, COMET, tasks=arguments.tasks, find=find, open_scorer=open_it))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
