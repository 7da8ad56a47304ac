"""TensorBoard's files, forgotten from the step on at which a run is resumed: else its curves have points twice."""

from __future__ import annotations

import os
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter


def forget_points(directory: Path, *, last_step: int) -> None:
    """Remove what parts of a run that have ended wrote about later steps; what a crash cut off goes too."""
    for path in sorted(directory.glob("events.out.tfevents.*")):
        kept = [raw for raw in RawEventFileLoader(str(path)).Load() if _stays(Event.FromString(raw), last_step)]
        partial = directory / f".{os.getpid()}.partial"
        writer = RecordWriter(partial.open("wb"))
        for raw in kept:
            writer.write(raw)
        writer.close()
        partial.replace(path)


def _stays(event: Event, last_step: int) -> bool:
    return event.step <= last_step or not event.HasField("summary")
