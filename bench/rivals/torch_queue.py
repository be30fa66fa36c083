"""torch.multiprocessing: CUDA tensors through a queue.

The queue is multiprocessing's of the spawn context, which importing torch.multiprocessing teaches
to move tensors and events; "we recommend using multiprocessing.Queue for passing all kinds of
PyTorch objects between processes"
(https://docs.pytorch.org/docs/stable/notes/multiprocessing.html).  Work is enqueued on torch's
current stream, the default one in every thread: the queue's feeder thread, which does the sharing,
orders the reader after *its* current stream, so a producer on any other would race.

**fresh**: a new tensor from the caching allocator per message.  The consumer deletes it as soon as
it can, and the producer lives until the consumers have gone, both as "Sharing CUDA tensors" in
https://docs.pytorch.org/docs/stable/multiprocessing.html asks; the reference counts keep the
memory that the producer dropped.  The first message of a storage orders the reader by an event
(after 1,000 of those in flight by waiting); deleting waits for the reader's stream
(torch/csrc/StorageSharing.cpp). It lacks: a way to hand over without those waits, and a limit
other than the queue's.

**reused**: 8 tensors are sent once, then indices.  Nothing orders a later use of a tensor that was
already received (only its first rebuild waits: torch/multiprocessing/reductions.py), so the user
must; torch.cuda.Event(interprocess=True), "can be shared between processes"
(https://docs.pytorch.org/docs/stable/generated/torch.cuda.Event.html), goes through a queue as
well. One per tensor and side: record → index → wait.  It lacks: all that the programmer adds here,
and any notice of a dead process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from typing import Any

from bench.rivals.rival import SLOTS, Inlet, Outlet, Rival
from bench.rivals.work import LARGE, GpuWork


def torch_work() -> GpuWork:
    import torch
    import torch.multiprocessing  # lets queues carry tensors

    torch.cuda.init()
    return GpuWork(torch.cuda.current_stream().cuda_stream)


@contextlib.contextmanager
def queues() -> Iterator[tuple[Any, Any]]:
    """One side of a lane.  It sends tensors or indices, and gets indices back."""
    context = multiprocessing.get_context("spawn")
    yield context.Queue(SLOTS), context.Queue()


class FreshOutlet(Outlet):
    def __init__(self, lane: Any, work: GpuWork) -> None:
        self._queue = lane[0]
        self._work = work

    def send(self, seq: int) -> None:
        frame = _tensor(self._work.terms.nbytes)
        self._work.stamp(frame.data_ptr(), seq)
        self._queue.put(frame)


class FreshInlet(Inlet):
    def __init__(self, lane: Any, work: GpuWork) -> None:
        self._queue = lane[0]
        self._work = work

    def receive(self, seq: int) -> None:
        frame = self._queue.get()
        self._work.check(frame.data_ptr(), seq)
        del frame


class ReusedOutlet(Outlet):
    def __init__(self, lane: Any, work: GpuWork) -> None:
        self._full, self._free = lane
        self._work = work
        self._frames = [_tensor(LARGE) for _ in range(SLOTS)]
        self._written = _events()
        self._read: list[Any] = []
        self._unused = SLOTS
        self._full.put((self._frames, self._written))

    def connect(self, _: Any) -> None:
        self._read = self._free.get()

    def send(self, seq: int) -> None:
        if self._unused:
            self._unused -= 1
            index = self._unused
        else:
            index = self._free.get()
            self._read[index].wait()
        self._work.stamp(self._frames[index].data_ptr(), seq)
        self._written[index].record()
        self._full.put(index)

    def close(self) -> None:
        self._read.clear()


class ReusedInlet(Inlet):
    def __init__(self, lane: Any, work: GpuWork) -> None:
        self._full, self._free = lane
        self._work = work
        self._read = _events()
        self._frames: list[Any] = []
        self._written: list[Any] = []
        self._free.put(self._read)

    def connect(self, _: Any) -> None:
        self._frames, self._written = self._full.get()

    def receive(self, seq: int) -> None:
        index = self._full.get()
        self._written[index].wait()
        self._work.check(self._frames[index].data_ptr(), seq)
        self._read[index].record()
        self._free.put(index)

    def close(self) -> None:
        self._frames.clear()
        self._written.clear()


def _tensor(nbytes: int) -> Any:
    import torch

    return torch.empty(nbytes // 8, dtype=torch.int64, device="cuda")


def _events() -> list[Any]:
    import torch

    return [torch.cuda.Event(interprocess=True) for _ in range(SLOTS)]


_NEEDS = (("torch", "torch"), ("cupy", "cupy"))

RIVALS = (
    Rival(
        name="torch queue, fresh",
        memory="cuda",
        needs=_NEEDS,
        work=torch_work,
        lane=queues,
        outlet=FreshOutlet,
        inlet=FreshInlet,
        inherits=True,
    ),
    Rival(
        name="torch queue, reused",
        memory="cuda",
        needs=_NEEDS,
        work=torch_work,
        lane=queues,
        outlet=ReusedOutlet,
        inlet=ReusedInlet,
        inherits=True,
    ),
)
