"""What is done with each frame of a rival: the same stamp and the same check for everybody.

As for gpuring, the producer stamps 512 words and the consumer compares them; on a GPU that is one
small kernel per side, launched by CuPy whoever moved the frame.  While a rival is being verified,
the GPU is first slow on the producer's side, so that a frame handed over too soon shows, then slow
on the consumer's, so that a frame taken back too soon does.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpuring.cli.measure.kernels import SOURCE

SMALL = 4096
LARGE = 6 << 20
"""A 1080p RGB frame.  Slots are of this size; Terms.nbytes of it are handed over."""
WORDS = 512

_THREADS = 256
_MAX_BLOCKS = 1024

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Terms:
    """What both sides do with the frames of one run."""

    nbytes: int = SMALL
    words: int = WORDS
    """How many words at the beginning of each frame are stamped and compared.  With 1 only the
    sequence crosses."""
    stamp_after_ns: int = 0
    """How long the GPU is kept busy before each stamp."""
    check_after_ns: int = 0
    """How long the GPU is kept busy before each check."""


class Work(Protocol):
    terms: Terms

    def stamp(self, place: Any, seq: int) -> None:
        """Writes the words of `seq`, or enqueues that on a GPU.  `place` is an array or pointer."""

    def check(self, place: Any, seq: int) -> None:
        """Counts the words that are not those of `seq`, or enqueues that on a GPU."""

    def finish(self) -> None:
        """Waits until all that was enqueued is done."""

    def wrong(self) -> int:
        """The number of wrong words since the last call."""


class HostWork:
    """`place` is an array of words."""

    def __init__(self) -> None:
        self.terms = Terms()
        self._wrong = 0

    def stamp(self, place: Words, seq: int) -> None:
        if self.terms.words == 1:
            place[0] = seq
        else:
            place[: self.terms.words].fill(seq)

    def check(self, place: Words, seq: int) -> None:
        if self.terms.words == 1:
            self._wrong += int(place[0]) != seq
        else:
            self._wrong += int(np.count_nonzero(place[: self.terms.words] != seq))

    def finish(self) -> None:
        pass

    def wrong(self) -> int:
        wrong, self._wrong = self._wrong, 0
        return wrong


class GpuWork:
    """`place` is a device pointer, and all work is enqueued on one stream."""

    def __init__(self, stream: int | None = None) -> None:
        """`stream` belongs to another object.  Without it the work has a stream of its own."""
        import cupy

        self.terms = Terms()
        self.runtime = cupy.cuda.runtime
        if stream is None:
            self._own = cupy.cuda.Stream(non_blocking=True)
            stream = self._own.ptr
        self.stream: int = stream
        self._raw = SimpleNamespace(ptr=self.stream)  # a launch needs only this of a stream
        module = cupy.RawModule(code=SOURCE.read_text())
        self._stamp, self._check, self._busy = map(module.get_function, ("stamp", "check", "busy"))
        self._counter = cupy.zeros(1, np.uint64)
        self._seen = 0
        scratch = cupy.zeros(WORDS, np.uint64)
        cupy.cuda.Device().synchronize()
        self.terms = Terms(stamp_after_ns=1)  # the first launch of a kernel loads it
        self.stamp(scratch.data.ptr, 1)
        self.check(scratch.data.ptr, 1)
        self.finish()
        self.terms = Terms()

    def stamp(self, place: int, seq: int) -> None:
        self._keep_busy(self.terms.stamp_after_ns)
        words = self.terms.words
        args = (np.uint64(place), np.uint64(words), np.uint64(seq))
        self._stamp((_blocks(words),), (_THREADS,), args, stream=self._raw)

    def check(self, place: int, seq: int) -> None:
        self._keep_busy(self.terms.check_after_ns)
        words = self.terms.words
        args = (np.uint64(place), np.uint64(words), np.uint64(seq), self._counter)
        self._check((_blocks(words),), (_THREADS,), args, stream=self._raw)

    def finish(self) -> None:
        self.runtime.streamSynchronize(self.stream)

    def wrong(self) -> int:
        self.finish()
        seen, self._seen = self._seen, int(self._counter.get()[0])
        return self._seen - seen

    def _keep_busy(self, ns: int) -> None:
        if ns:
            self._busy((1,), (1,), (np.uint64(ns),), stream=self._raw)


def _blocks(words: int) -> int:
    return min(_MAX_BLOCKS, -(-words // _THREADS))
