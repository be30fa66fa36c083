"""What the demo computes from a frame: the same lines for NumPy and for CuPy, exact on both.

Everything is integer arithmetic (modulo 2**64 where it may wrap), so that a GPU and a CPU give the
same bits and the verdict needs no tolerance.  A result is a small uint64 vector in the frame's own
memory: on a GPU nothing here waits for the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FRAME_COLUMNS = ("red", "green", "blue", "motion", "checksum")
EDGE_COLUMNS = ("strength", "strong", "checksum")
MOTION = FRAME_COLUMNS.index("motion")

STRONG_EDGE = 128


def weights(nbytes: int, xp: Any) -> Any:
    """Odd pseudo-random 64-bit weights, one a word of `nbytes` bytes and one a byte left over."""
    words, rest = divmod(nbytes, 8)
    x = (np.arange(words + rest, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return xp.asarray((x ^ (x >> np.uint64(31))) | np.uint64(1))


def checksum(array: Any, weight: Any, xp: Any) -> Any:
    """64-bit sum of weighted words of a contiguous uint8 array, as an array of one element.

    An odd weight is invertible modulo 2**64, so any change within one word shows for certain; each
    position has its own weight, so words that change places show too.  The shift makes high bits
    count in low ones as well: a weighted top bit alone would be the same for every position.
    """
    flat = array.reshape(-1)
    words = flat.size // 8
    word = flat[: words * 8].view(xp.uint64)
    terms = (word ^ (word >> xp.uint64(29))) * weight[:words]
    total = terms.sum(dtype=xp.uint64, keepdims=True)  # an array wraps in silence, a scalar warns
    if flat.size % 8:
        rest = flat[words * 8 :].astype(xp.uint64)
        total += (rest * weight[words:]).sum(dtype=xp.uint64, keepdims=True)
    return total


def luma(frame: Any, xp: Any) -> Any:
    """Brightness of each pixel, uint8 (H, W): ITU-R BT.601 weights in 256ths, rounded."""
    y = xp.multiply(frame[..., 0], 77, dtype=xp.uint16)
    y += xp.multiply(frame[..., 1], 150, dtype=xp.uint16)
    y += xp.multiply(frame[..., 2], 29, dtype=xp.uint16)
    y += xp.uint16(128)  # at most 65,408: no overflow
    y >>= xp.uint16(8)
    return y.astype(xp.uint8)


def sobel(y: Any, xp: Any) -> Any:
    """Edge strength |gx| + |gy|, clipped to 255, uint8 (H - 2, W - 2), of a uint8 image (H, W)."""
    y = y.astype(xp.int16)
    smooth = y[:-2] + y[2:]
    smooth += y[1:-1]
    smooth += y[1:-1]
    slope = y[2:] - y[:-2]
    strength = xp.abs(smooth[:, 2:] - smooth[:, :-2])
    gy = slope[:, :-2] + slope[:, 2:]
    gy += slope[:, 1:-1]
    gy += slope[:, 1:-1]
    strength += xp.abs(gy)
    return xp.minimum(strength, xp.int16(255)).astype(xp.uint8)


def thumbnail(image: Any, width: int) -> Any:
    """`image` shrunk by a whole factor to about `width` columns, each pixel the mean of its box."""
    factor = max(1, round(image.shape[1] / width))
    rows, columns = image.shape[0] // factor, image.shape[1] // factor
    boxes = image[: rows * factor, : columns * factor].reshape(
        (rows, factor, columns, factor, *image.shape[2:])
    )
    # Rows first: that sum runs over contiguous memory, and leaves little for the second.
    total = boxes.sum(axis=1, dtype=np.uint32).sum(axis=2, dtype=np.uint32)
    return (total // (factor * factor)).astype(np.uint8)


class FrameMeasure:
    """Colour sums, motion against the frame before, and checksum of each frame in turn."""

    def __init__(self, shape: tuple[int, int, int], xp: Any) -> None:
        self.xp = xp
        self.weight = weights(int(np.prod(shape)), xp)
        self.before: Any = None

    def __call__(self, frame: Any, y: Any = None) -> Any:
        """The values of FRAME_COLUMNS, uint64; `y` is the frame's luma where the caller has it."""
        xp = self.xp
        y = luma(frame, xp) if y is None else y
        before = y if self.before is None else self.before
        self.before = y
        # Two steps: a sum over rows first keeps NumPy's inner loop contiguous.
        sums = frame.sum(axis=0, dtype=xp.uint32).sum(axis=0, dtype=xp.uint64)
        motion = (xp.maximum(y, before) - xp.minimum(y, before)).sum(dtype=xp.uint64)
        return xp.concatenate((sums, motion.reshape(1), checksum(frame, self.weight, xp)))


class EdgeMeasure:
    """The edge map of a frame, its total strength, its strong pixels and its checksum."""

    def __init__(self, shape: tuple[int, int, int], xp: Any) -> None:
        self.xp = xp
        self.weight = weights((shape[0] - 2) * (shape[1] - 2), xp)

    def __call__(self, frame: Any, y: Any = None) -> tuple[Any, Any]:
        """The edge map, and the values of EDGE_COLUMNS, uint64."""
        xp = self.xp
        edges = sobel(luma(frame, xp) if y is None else y, xp)
        strength = edges.sum(dtype=xp.uint64)
        strong = (edges >= xp.uint8(STRONG_EDGE)).sum(dtype=xp.uint64)
        row = (strength.reshape(1), strong.reshape(1), checksum(edges, self.weight, xp))
        return edges, xp.concatenate(row)
