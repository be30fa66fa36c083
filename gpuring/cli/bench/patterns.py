"""Frames that can be verified: a pattern of the sequence, counted where the frame is."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

import gpuring


class Pattern(Protocol):
    def stamp(self, array: Any, seq: int) -> None:
        """Fills the frame, on the current stream."""

    def check(self, array: Any, seq: int) -> None:
        """Counts words that are not those of `seq`, on the current stream."""

    def finish(self) -> None:
        """Waits until all that was enqueued is done."""

    def wrong(self) -> int:
        """The count so far."""


def pattern_for(ring: gpuring.Ring) -> Pattern:
    return HostPattern() if ring.memory == "host" else CudaPattern()


class HostPattern:
    def __init__(self) -> None:
        self._wrong = 0

    def stamp(self, array: Any, seq: int) -> None:
        array.fill(seq)

    def check(self, array: Any, seq: int) -> None:
        self._wrong += int(np.count_nonzero(array != seq))

    def finish(self) -> None:
        pass

    def wrong(self) -> int:
        return self._wrong


class CudaPattern:
    def __init__(self) -> None:
        import cupy

        from tests.gpu import kernels

        kernels.warm_up()
        self._kernels = kernels
        self._current = cupy.cuda.get_current_stream
        self._counter = kernels.counter()

    def stamp(self, array: Any, seq: int) -> None:
        self._kernels.stamp(array, seq, None)

    def check(self, array: Any, seq: int) -> None:
        self._kernels.check(array, seq, self._counter, None)

    def finish(self) -> None:
        self._current().synchronize()

    def wrong(self) -> int:
        self.finish()
        return int(self._counter.get()[0])
