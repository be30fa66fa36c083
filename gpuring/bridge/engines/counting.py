"""What the receivers of the ZeroMQ engine share."""

from __future__ import annotations

from gpuring.bridge.engine import EngineError, Slab


class Counting:
    """Counts the bytes that have come for each slot.  They come in order."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._come: dict[int, int] = {}

    def open(self) -> bytes:
        return b""

    def _count(self, index: int, begin: int, nbytes: int) -> None:
        come = 0 if begin == 0 else self._come.get(index, 0)
        if begin != come:
            raise EngineError(f"bytes {begin} … came where {come} … were next")
        self._come[index] = come + nbytes

    def _check(self, index: int, nbytes: int) -> None:
        if self._come.pop(index, 0) != nbytes:
            raise EngineError(f"not all of the {nbytes} bytes of a frame have come")

    def fileno(self) -> int:
        return -1
