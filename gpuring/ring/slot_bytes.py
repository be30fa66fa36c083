"""Slots as plain bytes, which debug mode fills and reads: a frame, and the canary behind it.

They are arrays of NumPy or CuPy, or Spans.  What is done with those on a GPU is done on a stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuring.memory import Memory, gpus
from gpuring.slot_layout import Field, Spec


def frame(memory: Memory, spec: Spec, index: int) -> Any:
    """The bytes of a slot without its canary."""
    whole = Field("", (_end(spec),), np.dtype("u1"), 0)
    return memory.array(index, whole, whole.shape, writable=True)


def canary(memory: Memory, spec: Spec, index: int) -> Any:
    """The bytes of a slot's canary.  A reader, too, restores a canary that it found overwritten."""
    behind = Field("", (spec.slot_nbytes - _end(spec),), np.dtype("u1"), _end(spec))
    return memory.array(index, behind, behind.shape, writable=True)


def _end(spec: Spec) -> int:
    return spec.fields[-1].offset + spec.fields[-1].nbytes


def fill(array: Any, value: int, stream: int) -> None:
    if isinstance(array, np.ndarray):
        array[...] = value
    else:
        gpus.gpu(array.device.id).fill(array.data.ptr, value, array.nbytes, stream)


def read(array: Any, stream: int) -> Any:
    """A copy in host memory.  Waits for the stream."""
    if isinstance(array, np.ndarray):
        return array.copy()
    now = np.empty(array.shape, array.dtype)
    gpu = gpus.gpu(array.device.id)
    gpu.copy(now.ctypes.data, array.data.ptr, now.nbytes, stream)
    gpu.synchronize(stream)
    return now
