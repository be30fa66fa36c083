"""What the demo computes from a frame: the same lines over NumPy, CuPy and torch, exact on each.

Everything is integer arithmetic (modulo 2**64 where it may wrap), so that a GPU and a CPU give the
same bits and the verdict needs no tolerance.  A result is a small int64 vector in the frame's own
memory: on a GPU nothing here waits for the device.  Its bits are those of a uint64, and torch does
not compute with these.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Arrays

FRAME_COLUMNS = ("red", "green", "blue", "motion", "checksum")
EDGE_COLUMNS = ("strength", "strong", "checksum")
MOTION = FRAME_COLUMNS.index("motion")

STRONG_EDGE = 128


_LOW_35_BITS = (1 << 35) - 1
"""A signed word that is shifted right by 29 gets copies of its sign in the upper bits; this removes
them."""


def weights(nbytes: int, kind: Arrays) -> Any:
    """Odd pseudo-random 64-bit weights, one a word of `nbytes` bytes and one a byte left over."""
    words, rest = divmod(nbytes, 8)
    x = (np.arange(words + rest, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return kind.from_host(((x ^ (x >> np.uint64(31))) | np.uint64(1)).view(np.int64))


def checksum(array: Any, weight: Any, kind: Arrays) -> Any:
    """64-bit sum of weighted words of a contiguous uint8 array, as an array of one element.

    An odd weight is invertible modulo 2**64, so any change within one word shows for certain; each
    position has its own weight, so words that change places show too.  The shift makes high bits
    count in low ones as well: a weighted top bit alone would be the same for every position.
    """
    flat = array.reshape(-1)
    words = len(flat) // 8
    word = kind.words(flat[: words * 8])
    terms = (word ^ ((word >> 29) & _LOW_35_BITS)) * weight[:words]
    total = kind.sum(terms.reshape(1, -1), 1, "i8")  # an array wraps in silence, a scalar warns
    if len(flat) % 8:
        rest = kind.cast(flat[words * 8 :], "i8") * weight[words:]
        total += kind.sum(rest.reshape(1, -1), 1, "i8")
    return total


def luma(frame: Any, kind: Arrays) -> Any:
    """Brightness of each pixel, uint8 (H, W): ITU-R BT.601 weights in 256ths, rounded."""
    y = kind.cast(frame[..., 0], "i2")
    y *= 77
    for colour, weight in ((1, 150), (2, 29)):
        part = kind.cast(frame[..., colour], "i2")
        part *= weight
        y += part
    y += 128  # at most 65,408: it may be a negative number here, with the same bits
    y >>= 8
    return kind.cast(y, "u1")


def sobel(y: Any, kind: Arrays) -> Any:
    """Edge strength |gx| + |gy|, clipped to 255, uint8 (H - 2, W - 2), of a uint8 image (H, W)."""
    y = kind.cast(y, "i2")
    smooth = y[:-2] + y[2:]
    smooth += y[1:-1]
    smooth += y[1:-1]
    slope = y[2:] - y[:-2]
    strength = abs(smooth[:, 2:] - smooth[:, :-2])
    gy = slope[:, :-2] + slope[:, 2:]
    gy += slope[:, 1:-1]
    gy += slope[:, 1:-1]
    strength += abs(gy)
    return kind.cast(strength.clip(0, 255), "u1")


def thumbnail(image: Any, width: int, kind: Arrays) -> Any:
    """`image` shrunk by a whole factor to about `width` columns, each pixel the mean of its box."""
    factor = max(1, round(image.shape[1] / width))
    rows, columns = image.shape[0] // factor, image.shape[1] // factor
    boxes = image[: rows * factor, : columns * factor].reshape(
        (rows, factor, columns, factor, *image.shape[2:])
    )
    # Rows first: that sum runs over contiguous memory, and leaves little for the second.
    total = kind.sum(kind.sum(boxes, 1, "u4"), 2, "u4")
    return kind.cast(total // (factor * factor), "u1")


class FrameMeasure:
    """Colour sums, motion against the frame before, and checksum of each frame in turn."""

    def __init__(self, shape: tuple[int, int, int], kind: Arrays) -> None:
        self.kind = kind
        self.weight = weights(int(np.prod(shape)), kind)
        self.before: Any = None

    def __call__(self, frame: Any, y: Any = None) -> Any:
        """The values of FRAME_COLUMNS; `y` is the frame's luma where the caller has it."""
        kind = self.kind
        y = luma(frame, kind) if y is None else y
        before = y if self.before is None else self.before
        self.before = y
        # Two steps: a sum over rows first keeps NumPy's inner loop contiguous.
        sums = kind.sum(kind.sum(frame, 0, "u4"), 0, "i8")
        moved = abs(kind.cast(y, "i2") - kind.cast(before, "i2"))
        motion = kind.sum(moved.reshape(1, -1), 1, "i8")
        return kind.concatenate((sums, motion, checksum(frame, self.weight, kind)))


class EdgeMeasure:
    """The edge map of a frame, its total strength, its strong pixels and its checksum."""

    def __init__(self, shape: tuple[int, int, int], kind: Arrays) -> None:
        self.kind = kind
        self.weight = weights((shape[0] - 2) * (shape[1] - 2), kind)

    def __call__(self, frame: Any, y: Any = None) -> tuple[Any, Any]:
        """The edge map, and the values of EDGE_COLUMNS."""
        kind = self.kind
        edges = sobel(luma(frame, kind) if y is None else y, kind)
        flat = edges.reshape(1, -1)
        strength, strong = kind.sum(flat, 1, "i8"), kind.sum(flat >= STRONG_EDGE, 1, "i8")
        return edges, kind.concatenate((strength, strong, checksum(edges, self.weight, kind)))
