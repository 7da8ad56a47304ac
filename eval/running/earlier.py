"""What of an evaluation was done before: a model's folder gathers what is asked of the model, and nothing is computed twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.lease import InUseError, take_lease, this_process
from conversion.checkpoints.hf_model import Checkpoint
from data_prep.reading.named_texts import Text
from eval.running.backends import Settings
from eval.running.evaluation import parts_of, parts_of_result, versions_of
from eval.running.results import RESULT_NAME, load_result
from eval.running.task_runs import FoundTask


@dataclass(frozen=True)
class Work:
    """What is left to do for one model.

    Attributes:
        earlier: the result that its folder holds; None where there is none yet.
    """

    earlier: dict[str, Any] | None
    texts: Sequence[Text]
    tasks: Mapping[str, FoundTask]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.earlier is not None and not self.texts and not self.tasks


def work_left(output_dir: Path, checkpoint: Checkpoint, texts: Sequence[Text], tasks: Mapping[str, FoundTask], settings: Settings) -> Work:
    """What a folder of results lacks of an evaluation: tasks that failed, were interrupted, or are asked for the first time.

    Raises:
        ValueError: if it holds the result of another model, of other settings or versions, or of another text or task of the same name.
    """
    if not output_dir.exists():
        return Work(None, texts, tasks)
    path = output_dir / RESULT_NAME
    if not path.is_file():
        raise ValueError(f"{output_dir} exists and holds no result; remove it or choose another --output")
    result = load_result(path)
    expected, held = parts_of(texts, tasks), parts_of_result(result)
    if not _is_of(result, checkpoint, settings) or any(held.get(part, digest) != digest for part, digest in expected.items()):
        raise ValueError(
            f"{output_dir} has the result of another model, text, task or setting;"
            " name the model with --model NAME=FOLDER, choose another --output, or remove it"
        )
    return Work(
        result,
        [text for text in texts if f"text {text.name}" not in held],
        {name: found for name, found in tasks.items() if f"task {name}" not in held},
    )


def earlier_result(output_dir: Path, checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What a folder of results holds of a model, of whatever settings; None where there is no folder.

    Raises:
        ValueError: if it holds no result, or that of another model or of other versions of the libraries.
    """
    if not output_dir.exists():
        return None
    path = output_dir / RESULT_NAME
    if not path.is_file():
        raise ValueError(f"{output_dir} exists and holds no result; remove it or choose another --output")
    result = load_result(path)
    if result["model"]["digest"] != checkpoint.digest or result["versions"] != versions_of("hf"):
        raise ValueError(
            f"{output_dir} holds the result of another model or of other versions of the libraries; name the model with --model NAME=FOLDER,"
            " choose another --output, or remove it"
        )
    return result


@contextlib.contextmanager
def folder_in_use(output_dir: Path) -> Iterator[None]:
    """Keep other commands out of a model's folder, of which each would else write what the other has not.

    The lease lies beside the folder, which is only there once complete.

    Raises:
        InUseError: if another command works in it.
    """
    leases = output_dir.parent / ".leases"
    try:
        with take_lease(leases / output_dir.name, this_process("eval.harness")):
            yield
    except InUseError as error:
        raise InUseError(str(error).replace(str(leases / output_dir.name), str(output_dir), 1)) from error
    finally:
        for directory in (leases / output_dir.name, leases, output_dir.parent):
            with contextlib.suppress(OSError):  # another one's lease, or results
                directory.rmdir()


def _is_of(result: Mapping[str, Any], checkpoint: Checkpoint, settings: Settings) -> bool:
    if result["model"]["digest"] != checkpoint.digest or result["versions"] != versions_of(settings.backend):
        return False
    held = asdict(Settings()) | result["settings"]  # an earlier version wrote fewer
    return all(held[name] == value for name, value in asdict(settings).items())
