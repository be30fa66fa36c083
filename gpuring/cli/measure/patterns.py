"""Frames that can be verified: words that follow from the sequence, counted where the frame is.

The first words of every frame (4 KiB) are written and checked, with one small kernel on a GPU.
Functions whose names end in `_all` do that with the whole frame. A pattern belongs to one ring.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuring

from .kernels import WORDS, cuda_tools


def pattern_for(ring: gpuring.Ring, launch: str = "driver") -> HostPattern | CudaPattern:
    """launch: how kernels are launched, "driver" (cuda-bindings) or "cupy"."""
    if ring.memory == "host":
        return HostPattern()
    (field,) = ring.spec.fields
    return CudaPattern(launch, field.nbytes // 8)


class HostPattern:
    """A pattern of frames in host memory.  `CudaPattern` has the same methods, on this process's
    benchmark stream."""

    def __init__(self) -> None:
        self._wrong = 0
        self._views: dict[int, Any] = {}  # of each slot's first words: slots never move

    def _view(self, slot: Any) -> Any:
        view = self._views.get(slot.index)
        if view is None:
            view = self._views[slot.index] = slot.array[:WORDS]
        return view

    def stamp(self, slot: Any) -> None:
        """Writes the first words of the frame."""
        self._view(slot).fill(slot.seq)

    def check(self, slot: Any) -> None:
        """Counts those that are not of the frame's sequence."""
        same = self._view(slot) == slot.seq
        if not same.all():
            self._wrong += int(np.count_nonzero(~same))

    def stamp_all(self, slot: Any) -> None:
        """Writes the whole frame."""
        slot.array.fill(slot.seq)

    def check_all(self, slot: Any) -> None:
        """Checks the whole frame."""
        self._wrong += int(np.count_nonzero(slot.array != slot.seq))

    def spoil(self, slot: Any) -> None:
        """Damages one word."""
        slot.array[-1] += 1

    def pending(self) -> bool:
        """Whether something that was enqueued is not done yet."""
        return False

    def finish(self) -> None:
        """Waits until all that was enqueued is done."""

    def wrong(self) -> int:
        """The count so far."""
        return self._wrong


class CudaPattern:
    def __init__(self, launch: str, words: int) -> None:
        """`words` of 64 bits in each frame."""
        self._words = words
        self._tools = tools = cuda_tools()
        tools.use()  # as at first; `with` would leave the default stream current
        self._counter = tools.zeros(1)
        self.finish()
        counter = self._counter.ptr
        self._stamp = tools.kernel("stamp", launch, 0, WORDS, 0)
        self._check = tools.kernel("check", launch, 0, WORDS, 0, counter)
        self._stamp_all = tools.kernel("stamp", launch, 0, 0, 0)
        self._check_all = tools.kernel("check", launch, 0, 0, 0, counter)
        self._pointers: dict[int, int] = {}  # of each slot: slots never move

    def _pointer(self, slot: Any) -> int:
        pointer = self._pointers.get(slot.index)
        if pointer is None:
            pointer = self._pointers[slot.index] = self._tools.address(slot)
        return pointer

    def stamp(self, slot: Any) -> None:
        self._stamp.launch(self._pointer(slot), slot.seq)

    def check(self, slot: Any) -> None:
        self._check.launch(self._pointer(slot), slot.seq)

    def stamp_all(self, slot: Any) -> None:
        self._stamp_all.launch_over(self._pointer(slot), self._words, slot.seq)

    def check_all(self, slot: Any) -> None:
        self._check_all.launch_over(self._pointer(slot), self._words, slot.seq)

    def spoil(self, slot: Any) -> None:
        """The last word becomes that of another sequence."""
        last = self._pointer(slot) + 8 * (self._words - 1)
        self._stamp_all.launch_over(last, 1, slot.seq + 1)

    def pending(self) -> bool:
        return self._tools.busy()

    def finish(self) -> None:
        self._tools.finish()

    def wrong(self) -> int:
        self.finish()
        return self._counter.first()
