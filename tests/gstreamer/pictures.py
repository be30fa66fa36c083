"""Raw video as GStreamer writes it to files, and as slots have it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


def up(value: int, to: int) -> int:
    return -(-value // to) * to


@dataclass(frozen=True)
class Plane:
    name: str
    """Of its field."""
    shape: tuple[int, ...]
    stride: int
    """Bytes from row to row in a file."""
    rows: int
    """Rows that it takes there."""
    dtype: str = "u1"

    @property
    def row_nbytes(self) -> int:
        return int(np.prod(self.shape[1:])) * np.dtype(self.dtype).itemsize


def planes_of(form: str, width: int, height: int) -> list[Plane]:
    """The planes of a format, as gst-plugins-base has them in `fill_planes` of video-info.c."""
    w, h = up(width, 2) // 2, up(height, 2) // 2
    y = Plane("y", (height, width), up(width, 4), 2 * h)
    if form in ("NV12", "NV21"):
        return [y, Plane("uv", (h, w, 2), up(width, 4), h)]
    if form in ("I420", "YV12"):
        names = "uv" if form == "I420" else "vu"
        return [y, *(Plane(each, (h, w), up(w, 4), h) for each in names)]
    if form == "GRAY8":
        return [Plane("array", (height, width), up(width, 4), height)]
    if form == "GRAY16_LE":
        return [Plane("array", (height, width), up(2 * width, 4), height, "<u2")]
    channels = 3 if form in ("RGB", "BGR") else 4
    shape = (height, width, channels)
    return [Plane("array", shape, up(channels * width, 4), height)]


def pictures(raw: bytes, planes: list[Plane]) -> Iterator[dict[str, Any]]:
    """The pictures of a file.  Each has a field for each plane."""
    start = 0
    while start < len(raw):
        picture = {}
        for plane in planes:
            nbytes = plane.stride * plane.rows
            rows = np.frombuffer(raw, "u1", nbytes, start).reshape(plane.rows, plane.stride)
            seen = rows[: plane.shape[0], : plane.row_nbytes].tobytes()
            picture[plane.name] = np.frombuffer(seen, plane.dtype).reshape(plane.shape)
            start += nbytes
        yield picture
