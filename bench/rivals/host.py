"""Frames in host memory: multiprocessing.Queue, multiprocessing.shared_memory, iceoryx2.

* **multiprocessing.Queue** of NumPy arrays, the library's first way to exchange objects
  (https://docs.python.org/3/library/multiprocessing.html#exchanging-objects-between-processes). A
  thread of the queue pickles after `put` has returned, so each message is a new array.  It lacks:
  shared memory; each frame is pickled, copied into a pipe and out of it.
* **multiprocessing.shared_memory** (https://docs.python.org/3/library/multiprocessing.shared_memory.html)
  leaves the synchronization to the locks of the same library: here two Semaphores, which count the
  slots that are free and those that are full.  A lock and a Condition around two counters do the
  same, but hold both sides up: a third of the frames/s where we tried it.  It lacks: recovery (who
  dies with a slot keeps it, and the other waits for ever), a second reader, any notice of loss.
* **iceoryx2**: samples are loaned from shared memory, filled in place, sent and read in place; see
  `iox`.  It lacks: GPU memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from bench.rivals.iox import Node, next_sample, service_name
from bench.rivals.rival import SLOTS, Inlet, Outlet, Rival
from bench.rivals.work import LARGE, HostWork, Words


@contextlib.contextmanager
def queue() -> Iterator[Any]:
    yield multiprocessing.get_context("spawn").Queue(SLOTS)


class QueueOutlet(Outlet):
    def __init__(self, lane: Any, work: HostWork) -> None:
        self._put = lane.put
        self._work = work

    def send(self, seq: int) -> None:
        frame = np.empty(self._work.terms.nbytes // 8, np.uint64)
        self._work.stamp(frame, seq)
        self._put(frame)


class QueueInlet(Inlet):
    def __init__(self, lane: Any, work: HostWork) -> None:
        self._get = lane.get
        self._work = work

    def receive(self, seq: int) -> None:
        self._work.check(self._get(), seq)


@contextlib.contextmanager
def ring() -> Iterator[tuple[str, Any, Any]]:
    """Holds (name of the shared memory, Semaphore of free slots, Semaphore of full ones)."""
    context = multiprocessing.get_context("spawn")
    memory = SharedMemory(create=True, size=SLOTS * LARGE)
    try:
        yield memory.name, context.Semaphore(SLOTS), context.Semaphore(0)
    finally:
        memory.close()
        memory.unlink()


class _Slots:
    def __init__(self, name: str) -> None:
        self._memory = SharedMemory(name)
        assert self._memory.buf is not None
        words = np.frombuffer(self._memory.buf, np.uint64, SLOTS * LARGE // 8)
        self.slots: list[Words] = list(words.reshape(SLOTS, -1))

    def close(self) -> None:
        self.slots.clear()  # memory with views of it cannot be unmapped
        self._memory.close()


class RingOutlet(Outlet):
    def __init__(self, lane: Any, work: HostWork) -> None:
        name, self._free, self._full = lane
        self._ring = _Slots(name)
        self._work = work

    def send(self, seq: int) -> None:
        self._free.acquire()
        self._work.stamp(self._ring.slots[seq % SLOTS], seq)
        self._full.release()

    def close(self) -> None:
        self._ring.close()


class RingInlet(Inlet):
    def __init__(self, lane: Any, work: HostWork) -> None:
        name, self._free, self._full = lane
        self._ring = _Slots(name)
        self._work = work

    def receive(self, seq: int) -> None:
        self._full.acquire()
        self._work.check(self._ring.slots[seq % SLOTS], seq)
        self._free.release()

    def close(self) -> None:
        self._ring.close()


class IceoryxOutlet(Outlet):
    def __init__(self, name: str, work: HostWork) -> None:
        self._node = Node()
        self._publisher = self._node.frames_out(name, LARGE // 8)
        self._work = work

    def send(self, seq: int) -> None:
        words = self._work.terms.nbytes // 8
        sample = self._publisher.loan_slice_uninit(words)
        self._work.stamp(_array(sample.payload()), seq)
        sample.assume_init().send()

    def close(self) -> None:
        self._publisher.delete()


class IceoryxInlet(Inlet):
    def __init__(self, name: str, work: HostWork) -> None:
        self._node = Node()
        self._subscriber = self._node.frames_in(name)
        self._work = work

    def receive(self, seq: int) -> None:
        sample = next_sample(self._subscriber.receive)
        self._work.check(_array(sample.payload()), seq)
        sample.delete()

    def close(self) -> None:
        self._subscriber.delete()


def _array(payload: Any) -> Words:
    size = payload.len() * ctypes.sizeof(ctypes.c_uint64)
    return np.frombuffer((ctypes.c_char * size).from_address(payload.as_ptr()), np.uint64)


RIVALS = (
    Rival(
        name="multiprocessing.Queue",
        memory="host",
        needs=(),
        work=HostWork,
        lane=queue,
        outlet=QueueOutlet,
        inlet=QueueInlet,
        inherits=True,
    ),
    Rival(
        name="multiprocessing.shared_memory",
        memory="host",
        needs=(),
        work=HostWork,
        lane=ring,
        outlet=RingOutlet,
        inlet=RingInlet,
        inherits=True,
    ),
    Rival(
        name="iceoryx2",
        memory="host",
        needs=(("iceoryx2", "iceoryx2"),),
        work=HostWork,
        lane=service_name,
        outlet=IceoryxOutlet,
        inlet=IceoryxInlet,
    ),
)
