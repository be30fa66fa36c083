"""Light work: frames that are on the GPU already, a model that repeats pixels, and sums.

What is left of a request is the hand-over of a frame and of its answer.  The sums of the rows of an
answer are exact, and show any pixel that is not right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.frontends.transport import Setting


def frames(setting: Setting, count: int) -> list[Any]:
    """The frames, which are the same in each process."""
    return [np.random.default_rng(n).integers(0, 256, setting.request, "u1") for n in range(count)]


def codec(setting: Setting, count: int) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    """(a function from the number of a frame to the frame, one from an answer to the sums of its
    rows)"""
    import torch

    here: list[Any] = frames(setting, count)
    if setting.device == "cuda":
        here = [torch.from_numpy(each).to(setting.torch_device) for each in here]

    def encode(pixels: Any) -> bytes:
        rows = torch.utils.dlpack.from_dlpack(pixels).flatten(1).sum(1, dtype=torch.int32)
        return bytes(rows.cpu().numpy())  # waits for the GPU

    encode(
        torch.zeros(setting.response, dtype=torch.uint8, device=setting.torch_device)
    )  # loads the kernels
    return lambda number: here[int(number)], encode


def model(setting: Setting) -> Callable[[Any], Any]:
    """The model, which repeats each pixel in both directions."""
    height, width, colours = setting.request
    scale = setting.scale

    def enlarge(photo: Any) -> Any:
        wide = photo[:, None, :, None].expand(height, scale, width, scale, colours)
        return wide.reshape(setting.response)

    return enlarge


class Sums:
    """The right answers."""

    def __init__(self, setting: Setting, count: int) -> None:
        scale = setting.scale
        self._right = [
            bytes((scale * each.sum((1, 2), dtype="i4")).repeat(scale))
            for each in frames(setting, count)
        ]

    def is_right(self, n: int, answer: bytes) -> bool:
        return answer == self._right[n]
