"""Frames in host memory: multiprocessing.Queue, multiprocessing.shared_memory, iceoryx2.

* **multiprocessing.Queue** of NumPy arrays, the library's first way to exchange objects
  (https://docs.python.org/3/library/multiprocessing.html#exchanging-objects-between-processes). A
  thread of the queue pickles after `put` has returned, so each message is a new array.  It lacks:
  shared memory; each frame is pickled, copied into a pipe and out of it.
* **multiprocessing.shared_memory** (https://docs.python.org/3/library/multiprocessing.shared_memory
  .html), which leaves synchronization to the synchronization primitives of the same library; here a
  Condition, a lock that can be waited for: a ring whose two counters are only touched under the
  lock, and whose slots are filled and read outside of it.  It lacks: recovery (a process that dies
  with the lock held stops everybody) and a hand-over without system calls.
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

from gpuring.cli.bench.peers.iox import Node, next_sample, service_name
from gpuring.cli.bench.peers.peer import SLOTS, Inlet, Outlet, Peer
from gpuring.cli.bench.peers.work import LARGE, HostWork, Words

_HEADER = 64
_SENT, _RETURNED = 0, 1


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
def ring() -> Iterator[tuple[str, Any]]:
    """(name of the shared memory, Condition)."""
    memory = SharedMemory(create=True, size=_HEADER + SLOTS * LARGE)
    try:
        yield memory.name, multiprocessing.get_context("spawn").Condition()
    finally:
        memory.close()
        memory.unlink()


class _Ring:
    def __init__(self, lane: Any) -> None:
        name, self.changed = lane
        self._memory = SharedMemory(name)
        assert self._memory.buf is not None
        self.counters = self._memory.buf[:16].cast("Q")
        words = np.frombuffer(self._memory.buf, np.uint64, SLOTS * LARGE // 8, _HEADER)
        self.slots: list[Words] = list(words.reshape(SLOTS, -1))

    def in_flight(self) -> int:
        return self.counters[_SENT] - self.counters[_RETURNED]

    def step(self, counter: int) -> None:
        with self.changed:
            self.counters[counter] += 1
            self.changed.notify()

    def close(self) -> None:
        self.counters.release()
        self.slots.clear()  # memory with views of it cannot be unmapped
        self._memory.close()


class RingOutlet(Outlet):
    def __init__(self, lane: Any, work: HostWork) -> None:
        self._ring = _Ring(lane)
        self._work = work

    def send(self, seq: int) -> None:
        ring = self._ring
        with ring.changed:
            while ring.in_flight() == SLOTS:
                ring.changed.wait()
        self._work.stamp(ring.slots[seq % SLOTS], seq)
        ring.step(_SENT)

    def close(self) -> None:
        self._ring.close()


class RingInlet(Inlet):
    def __init__(self, lane: Any, work: HostWork) -> None:
        self._ring = _Ring(lane)
        self._work = work

    def receive(self, seq: int) -> None:
        ring = self._ring
        with ring.changed:
            while not ring.in_flight():
                ring.changed.wait()
        self._work.check(ring.slots[seq % SLOTS], seq)
        ring.step(_RETURNED)

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


PEERS = (
    Peer(
        name="multiprocessing.Queue",
        memory="host",
        needs=(),
        work=HostWork,
        lane=queue,
        outlet=QueueOutlet,
        inlet=QueueInlet,
        inherits=True,
    ),
    Peer(
        name="multiprocessing.shared_memory",
        memory="host",
        needs=(),
        work=HostWork,
        lane=ring,
        outlet=RingOutlet,
        inlet=RingInlet,
        inherits=True,
    ),
    Peer(
        name="iceoryx2",
        memory="host",
        needs=(("iceoryx2", "iceoryx2"),),
        work=HostWork,
        lane=service_name,
        outlet=IceoryxOutlet,
        inlet=IceoryxInlet,
    ),
)
