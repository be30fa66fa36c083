"""The video, decoded with PyAV: by the producer into the ring, by the parent for the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SHIPPED = Path(__file__).with_name("bigbuckbunny.mp4")
SHIPPED_CREDIT = "Big Buck Bunny, (c) 2008 Blender Foundation / www.bigbuckbunny.org, CC BY 3.0"


class ClipError(Exception):
    """The file cannot be read as a video, or has too few pixels for an edge map."""


@dataclass(frozen=True)
class Clip:
    """One video file and how much of it is used."""

    path: Path
    width: int
    height: int
    rate: float
    """Frames per second that the file asks for."""
    seconds_per_pts: float
    codec: str
    limit: int | None
    """At most this many frames from the start."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a decoded frame: rows, columns, RGB."""
        return self.height, self.width, 3

    @property
    def credit(self) -> str:
        """Whose film it is, where the licence wants that said."""
        return SHIPPED_CREDIT if self.path == SHIPPED else ""

    def frames(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """(pts, image) of each frame; the image is a new RGB uint8 array of `shape`.

        The same on every call and in every process: the verdict rests on that.
        """
        import av

        with av.open(str(self.path)) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 2
            for index, frame in enumerate(container.decode(stream)):
                if index == self.limit:
                    return
                image = frame.to_ndarray(format="rgb24", width=self.width, height=self.height)
                yield index if frame.pts is None else frame.pts, image


def open_clip(path: Path, seconds: float | None) -> Clip:
    """Reads what the file says about itself; ClipError if it is no usable video.

    `seconds`: only so much of its beginning is used, one frame at least.
    """
    import av

    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ClipError(f"{path} has no video in it")
            stream = container.streams.video[0]
            codec = stream.codec_context
            rate = float(stream.average_rate or 25)
            clip = Clip(
                path=path,
                width=codec.width,
                height=codec.height,
                rate=rate,
                seconds_per_pts=float(stream.time_base or 0),
                codec=codec.name,
                limit=None if seconds is None else max(1, round(seconds * rate)),
            )
    except (OSError, av.error.FFmpegError) as error:
        why = error.strerror or str(error)
        raise ClipError(f"{path} cannot be opened as a video: {why}") from error
    if min(clip.width, clip.height) < 3:
        raise ClipError(f"{path} has {clip.width} × {clip.height} pixels; the demo needs 3 × 3")
    return clip
