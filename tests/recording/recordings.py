"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gpuring
from gpuring.recording import Frame, Recording, read
from gpuring.recording.files import Files
from gpuring.recording.recorder import Recorder, Source
from gpuring.slot_layout import Spec


def record(sources: Sequence[Source], path: Path, **options: Any) -> Recording:
    """Records what the rings still have, to the ends of their streams."""
    files = Files(path, **options)
    Recorder(sources, files).run()
    return read(*files.written)


def put(producer: gpuring.Producer, values: Iterable[int]) -> None:
    """Publishes frames, each full of one value.  Raises if a reader is in the way."""
    for value in values:
        with producer.claim(0) as slot:
            slot.array[...] = value


def values(frames: Iterable[Frame]) -> list[int]:
    return [int(frame.array.flat[0]) for frame in frames]


def bits(frame: Frame | gpuring.ReadSlot, spec: Spec) -> tuple[Any, ...]:
    """All that a producer has written, and the shapes."""
    arrays = [np.asarray(frame[field.name]) for field in spec.fields]
    shapes = [(array.shape, array.dtype) for array in arrays]
    meta = None if spec.meta is None else frame.meta.tobytes()
    return shapes, [array.tobytes() for array in arrays], meta
