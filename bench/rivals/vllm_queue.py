"""Frames in host memory by vLLM's MessageQueue, which hands work from its engine to its workers.

As in vLLM itself (vllm/v1/executor/multiproc_executor.py): the writer makes the queue and sends its
handle, both sides wait until the other is there, and objects are enqueued and dequeued.  It pickles
each object, and copies large arrays into and out of its ring of chunks beside the pickle.  Here the
ring has as many chunks as others have slots, and each holds the largest frame.  It lacks: frames
that are written or read in place, a reader that comes later, notice of a death, GPU memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.rivals.rival import RUN_S, SLOTS, Inlet, Outlet, Rival
from bench.rivals.work import LARGE, HostWork

_PICKLE_NBYTES = 4096
"""What a chunk has besides the words of a frame."""


def message_queue() -> Any:
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    return MessageQueue


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    """The writer's handle comes with what its end exports."""
    yield None


class VllmOutlet(Outlet):
    def __init__(self, _: Any, work: HostWork) -> None:
        self._queue = message_queue()(
            1, 1, max_chunk_bytes=LARGE + _PICKLE_NBYTES, max_chunks=SLOTS
        )
        self.exports = self._queue.export_handle()
        self._work = work
        self._ready = False

    def send(self, seq: int) -> None:
        if not self._ready:  # not in connect, where both sides would wait for each other
            self._queue.wait_until_ready()
            self._ready = True
        frame = np.empty(self._work.terms.nbytes // 8, np.uint64)
        self._work.stamp(frame, seq)
        self._queue.enqueue(frame, timeout=RUN_S)

    def close(self) -> None:
        self._queue.shutdown()


class VllmInlet(Inlet):
    def __init__(self, _: Any, work: HostWork) -> None:
        self._work = work
        self._ready = False

    def connect(self, theirs: Any) -> None:
        self._queue = message_queue().create_from_handle(theirs, 0)

    def receive(self, seq: int) -> None:
        if not self._ready:
            self._queue.wait_until_ready()
            self._ready = True
        self._work.check(self._queue.dequeue(timeout=RUN_S), seq)

    def close(self) -> None:
        self._queue.shutdown()


RIVALS = (
    Rival(
        name="vLLM MessageQueue",
        memory="host",
        needs=(("vllm", "vllm"),),
        work=HostWork,
        lane=nothing,
        outlet=VllmOutlet,
        inlet=VllmInlet,
    ),
)
