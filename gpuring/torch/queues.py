"""The queues of an iterator: requests to each worker, and results from all of them.

They are those of multiprocessing, with three differences.

* `put` itself writes a small object, if no other thread is writing and the pipe has room.
  Otherwise a thread of the queue writes it, until all that was put before is written.  That costs
  more than the copy of a small batch, because the thread takes the interpreter's lock.
* If an object cannot be fetched because its worker has died, `get` raises in the program's thread,
  also if torch's thread for pinned memory has read the queue.
* A `get` with a timeout waits first, and then takes an object.  If a Ctrl-C comes while it waits,
  nothing was taken.  If it comes elsewhere, it is not known whether something was taken, and an
  iterator that went on might wait for ever.
"""

from __future__ import annotations

import collections
import copy
import functools
import pickle
import queue
import select
from multiprocessing import get_context, queues
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from torch._utils import ExceptionWrapper

from gpuring.torch.parcel import Pickled

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

_ROOM = 4096 - 4
"""Bytes.  A pipe that can be written to takes PIPE_BUF bytes, with the length in front."""


class Queue(queues.Queue):  # type: ignore[type-arg]
    """Has one reader."""

    waits = False
    """Whether all that its reader has done since it set this to False is a wait."""
    passes_errors_on = False
    """Whether a result that cannot be fetched is given to its reader as `Unfetched`."""
    _closed: bool
    _sem: Any
    _wlock: Any
    _reader: Any
    _writer: Any
    """These are multiprocessing's."""
    _to_read: select.poll | None = None
    _to_write: select.poll | None = None

    def _reset(self, after_fork: bool = False) -> None:
        super()._reset(after_fork)  # type: ignore[misc]
        self._unwritten = collections.deque[None]()
        """An entry for each message that the thread has still to write."""
        self._send_bytes = functools.partial(_write, self._writer, self._unwritten)

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Raises what pickle raises."""
        data = _pickled(obj)
        if not self._written(data):
            self._unwritten.append(None)
            super().put(Pickled(bytes(data)), block, timeout)

    def _written(self, data: Any) -> bool:
        # Behind what the thread has still to write it must stay.
        if self._unwritten or len(data) > _ROOM or self._closed:
            return False
        if self._to_write is None:
            self._to_write = select.poll()
            self._to_write.register(self._writer.fileno(), select.POLLOUT)
        if not self._sem.acquire(False):
            return False
        if self._wlock.acquire(False):  # else another process may be writing something large
            try:
                if self._to_write.poll(0):
                    self._writer.send_bytes(data)
                    return True
            finally:
                self._wlock.release()
        self._sem.release()
        return False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not block or timeout is None:
            return super().get(block, timeout)
        if self._to_read is None:
            self._to_read = select.poll()
            self._to_read.register(self._reader.fileno(), select.POLLIN)
        self.waits = True
        there = self._to_read.poll(1e3 * timeout)
        self.waits = False
        if not there:
            raise queue.Empty
        try:
            return super().get()
        except (OSError, EOFError) as error:
            if not self.passes_errors_on:
                raise
            return None, Unfetched(error)


class Unfetched:
    """Takes the place of a batch, and torch's thread lets it pass."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class FromThread:
    """The queue of torch's thread for pinned memory, to be read in the same way."""

    def __init__(self, source: queue.Queue[Any]) -> None:
        self._source = source
        self.waits = False

    def get(self, timeout: float) -> Any:
        self.waits = True
        with self._source.not_empty:
            there = self._source.not_empty.wait_for(self._source._qsize, timeout)
        self.waits = False
        if not there:
            raise queue.Empty
        number, batch = self._source.get()
        if isinstance(batch, Unfetched):
            raise batch.error
        return number, batch


def _write(writer: Any, unwritten: collections.deque[None], data: Any) -> None:
    """What a queue's thread does with a message.  It knows nothing of the queue, which ends it."""
    writer.send_bytes(data)
    unwritten.pop()


def _pickled(obj: Any) -> Any:
    """An exception of a worker that cannot be pickled becomes a RuntimeError with its text."""
    if type(obj) is tuple and getattr(obj[-1], "is_simple", False):
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)  # in a third of the time
    try:
        return ForkingPickler.dumps(obj)
    except Exception:
        if not (isinstance(obj, tuple) and isinstance(obj[-1], ExceptionWrapper)):
            raise
        obj[-1].exc_type = RuntimeError
        return ForkingPickler.dumps(obj)


def with_queues(context: BaseContext | None) -> BaseContext:
    """A context whose queues are these.  None: of the default start method."""
    ours = copy.copy(get_context() if context is None else context.get_context())
    ours.Queue = functools.partial(Queue, ctx=ours)  # type: ignore[method-assign]
    return ours
