"""Copies to and from memory of a GPU, one behind the other, and which of them are done.

They are made on a stream of their own.  Only calls that say so wait for the GPU.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from gpuring.bridge.engines.contract import EngineError
from gpuring.memory import gpus
from gpuring.native.gpu import DONE, NOT_READY, Event, Gpu, Refused, Stream


@contextlib.contextmanager
def on_gpu(gpu: int) -> Iterator[Gpu]:
    """Calls to the driver, under this GPU.  Their errors become EngineErrors."""
    try:
        with gpus.current(gpu):
            yield gpus.gpu(gpu)
    except Refused as error:
        raise EngineError(f"GPU {gpu}: {error}") from error


class Copies:
    """Copies of one GPU.  Each has a name, which is anything that its user knows it by."""

    def __init__(self, gpu: int) -> None:
        """Raises EngineError."""
        self._gpu = gpu
        self._pending: deque[tuple[Any, Event]] = deque()
        """(name, event) in the order of the stream."""
        self._events: list[Event] = []
        """Events that are used again."""
        with on_gpu(gpu) as made:
            self._stream = Stream(made)

    def start(self, name: Any, to: int, source: int, nbytes: int) -> None:
        """Enqueues a copy from address to address.  Raises EngineError."""
        with on_gpu(self._gpu) as gpu:
            gpu.copy(to, source, nbytes, self._stream.handle)
            self._mark(name, gpu)

    def mark(self, name: Any) -> None:
        """Enqueues a copy of nothing: it is done when all those before it are.  Raises
        EngineError."""
        with on_gpu(self._gpu) as gpu:
            self._mark(name, gpu)

    def _mark(self, name: Any, gpu: Gpu) -> None:
        event = self._events.pop() if self._events else Event(gpu)
        event.record(self._stream.handle)
        self._pending.append((name, event))

    @property
    def pending(self) -> bool:
        """Whether there are copies that neither `done` nor `wait_for_one` has returned."""
        return bool(self._pending)

    def done(self) -> list[Any]:
        """The names of copies that were done since the last call, in order.  Raises EngineError if
        the GPU has failed."""
        names = []
        while self._pending:
            status = self._pending[0][1].query()
            if status == NOT_READY:
                break
            if status != DONE:
                raise EngineError(f"a copy on GPU {self._gpu} failed: CUresult {status}")
            names.append(self._next())
        return names

    def wait_for_one(self) -> Any:
        """Waits for the oldest of those that are pending, and returns its name.  Raises
        EngineError."""
        with on_gpu(self._gpu):
            self._pending[0][1].synchronize()
        return self._next()

    def _next(self) -> Any:
        name, event = self._pending.popleft()
        self._events.append(event)
        return name

    def close(self) -> None:
        """Waits for those that are pending, and forgets them.  Raises nothing: on a GPU that has
        failed nothing is copied any more."""
        with contextlib.suppress(EngineError), on_gpu(self._gpu) as gpu:
            gpu.synchronize(self._stream.handle)
        self._pending.clear()
