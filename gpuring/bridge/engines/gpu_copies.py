"""Copies to and from memory of a GPU, one behind the other, and which of them are done.

They are made on a stream of their own.  Only calls that say so wait for the GPU.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from gpuring.bridge.engines.contract import EngineError
from gpuring.memory.cuda import load_cupy

_SUCCESS, _NOT_READY = 0, 600  # cudaError_t, which CuPy reports as plain numbers


@contextlib.contextmanager
def on_gpu(gpu: int) -> Iterator[None]:
    """Calls to the driver.  Their errors become EngineErrors."""
    cuda = load_cupy().cuda
    try:
        with cuda.Device(gpu):
            yield
    except cuda.runtime.CUDARuntimeError as error:
        raise EngineError(f"GPU {gpu}: {error}") from error


class Copies:
    """Copies of one GPU.  Each has a name, which is anything that its user knows it by."""

    def __init__(self, gpu: int) -> None:
        """Raises EngineError."""
        self._gpu = gpu
        self._cuda = load_cupy().cuda
        self._pending: deque[tuple[Any, Any]] = deque()
        """(name, event) in the order of the stream."""
        self._events: list[Any] = []
        """Events that are used again."""
        with on_gpu(gpu):
            self._stream = self._cuda.Stream(non_blocking=True)

    def start(self, name: Any, to: int, source: int, nbytes: int) -> None:
        """Enqueues a copy from address to address.  Raises EngineError."""
        runtime = self._cuda.runtime
        with on_gpu(self._gpu):
            runtime.memcpyAsync(to, source, nbytes, runtime.memcpyDefault, self._stream.ptr)
            self._mark(name)

    def mark(self, name: Any) -> None:
        """Enqueues a copy of nothing: it is done when all those before it are.  Raises
        EngineError."""
        with on_gpu(self._gpu):
            self._mark(name)

    def _mark(self, name: Any) -> None:
        event = self._events.pop() if self._events else self._cuda.Event(disable_timing=True)
        event.record(self._stream)
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
            status = self._cuda.runtime.eventQuery(self._pending[0][1].ptr)
            if status == _NOT_READY:
                break
            if status != _SUCCESS:
                raise EngineError(f"a copy on GPU {self._gpu} failed: cudaError {status}")
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
        with contextlib.suppress(EngineError), on_gpu(self._gpu):
            self._stream.synchronize()
        self._pending.clear()
