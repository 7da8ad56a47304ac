"""TensorBoard's files of a run that went on from an earlier step."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from torch.utils.tensorboard import SummaryWriter

from recipes.training.loggers import forget_points


def points_of(directory: Path) -> dict[str, list[int]]:
    """Steps of the points of each curve, over all files, in their order."""
    found: dict[str, list[int]] = {}
    for path in sorted(directory.glob("events*")):
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    return found


def test_points_behind_the_step_are_forgotten_and_what_was_cut_off_too(tmp_path: Path) -> None:
    for first in (1, 5):
        writer = SummaryWriter(str(tmp_path), filename_suffix=f".{first}")
        for step in range(first, 10):
            writer.add_scalar("loss", 1 / step, step)
        writer.close()
    for path in tmp_path.glob("events*"):
        path.write_bytes(path.read_bytes()[:-3])
    assert points_of(tmp_path)["loss"] == [*range(1, 9), *range(5, 9)]
    forget_points(tmp_path, last_step=6)
    assert points_of(tmp_path)["loss"] == [*range(1, 7), 5, 6]
    assert all(path.name.startswith("events.out.tfevents.") for path in tmp_path.iterdir())
    forget_points(tmp_path, last_step=0)
    assert points_of(tmp_path) == {}
    forget_points(tmp_path / "not there", last_step=0)
