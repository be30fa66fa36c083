"""The main process's end of the rings of an iterator's workers.

The main process makes the rings, so they go when it closes them, whatever became of the workers.
How large the slots must be is known from the first batch of a worker.  A batch that is larger asks
for another ring, with larger slots.

A ring has a name only until its worker has joined.  So nothing stays in /dev/shm, not even if all
processes are killed at once.

A batch is copied out of its slot as soon as its parcel is there, also if its turn comes later.  So
a worker that is ahead never has a slot for which another one would have to wait, and users may keep
batches for as long as they like.
"""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from gpuring.errors import RingError
from gpuring.memory.pinned import RegisteredMemory
from gpuring.ring import caller, inner
from gpuring.ring.creation import create
from gpuring.torch.packing import ring_name
from gpuring.torch.parcel import Parcel, Pickled, inlets, over, put_together

if TYPE_CHECKING:
    from gpuring.ring.consumer import Consumer
    from gpuring.ring.ring import Ring
    from gpuring.torch.parcel import Layout, Leaf


@dataclass
class Need:
    """What a loader has learned of its batches.  Its next iterator begins with that."""

    nbytes: int = 0
    """Of the largest batch, with room for more if they differ."""


class _Ring(NamedTuple):
    generation: int
    ring: Ring
    consumer: Consumer
    slots: list[Any]
    """The bytes of each slot in host memory, as torch has them where it copies them to a GPU, and
    as NumPy has them elsewhere."""


class Inlet:
    """The rings by worker.  Two threads use it: the main one, and torch's for pinned memory."""

    def __init__(self, need: Need, workers: int, slots: int, device: torch.device | None) -> None:
        """`slots`: of each ring.  `device`: the GPU that batches go to; None: they stay in host
        memory."""
        self.name = f"loader-{os.getpid()}-{secrets.token_hex(4)}"
        self._need = need
        self._generations = [0] * workers
        """Which ring each has, or is to have."""
        self._count = slots
        self._device = device
        self._rings: dict[int, _Ring] = {}
        self._layouts: dict[int, Layout] = {}
        """Of the last frame of each worker."""
        self._lock = threading.RLock()  # reentrant: a signal handler may drop the iterator
        self._pid = os.getpid()
        self._closed = False
        self._refused = False
        """Whether a ring could not be made.  Then no other one is tried."""
        inlets[self.name] = self

    def prepare(self, worker: int) -> None:
        """Makes the ring of a worker that is about to be asked for a batch, if it has none that is
        large enough, and it is known how large that is.  The worker joins before it has done that
        batch, and takes the name away."""
        with self._lock:
            ring, generation = self._rings.get(worker), self._generations[worker]
            if self._need.nbytes and (ring is None or ring.generation < generation):
                self._make(worker, generation)

    def close(self) -> None:
        """Workers that wait for a slot go on without one."""
        if self._pid != os.getpid():  # a worker has inherited it
            return
        with self._lock:
            self._closed = True
            while self._rings:
                self._rings.popitem()[1].ring.close()

    def open(self, parcel: Parcel, *, pinned: bool) -> Any:
        """The batch, in memory of its own: on the GPU in order of torch's current stream, in pinned
        memory, or in ordinary memory."""
        leaves: list[Leaf]
        with self._lock:
            if parcel.seq:
                if parcel.layout is not None:
                    self._layouts[parcel.worker] = parcel.layout
                layout = self._layouts[parcel.worker]
                pieces = self._copied(parcel, layout, pinned)
                leaves = [over(pieces[piece], begin, kind) for piece, begin, kind in layout.places]
            else:
                assert parcel.layout is not None
                assert not isinstance(parcel.leaves, Pickled)  # it came out of the queue
                layout = parcel.layout
                leaves = [self._elsewhere(leaf, pinned) for leaf in parcel.leaves]
                self._make_room(parcel)
        batch = put_together(layout.rest, leaves)
        return pin_memory(batch, "cuda") if pinned else batch

    def _elsewhere(self, leaf: Leaf, pinned: bool) -> Leaf:
        """A leaf that had no slot."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if self._device is not None:
            return leaf.to(self._device, non_blocking=True)
        return leaf.pin_memory() if pinned else leaf

    def _copied(self, parcel: Parcel, layout: Layout, pinned: bool) -> list[torch.Tensor]:
        """The pieces of a parcel.  Its slot goes back behind the copy."""
        ring = self._rings[parcel.worker]
        stream = None if self._device is None else torch.cuda.current_stream(self._device)
        while True:  # frames before it are of parcels that were lost to a Ctrl-C
            with ring.consumer.acquire(0, stream=stream) as slot:
                if slot.seq != parcel.seq:
                    continue
                if self._device is not None:
                    whole = torch.empty(parcel.nbytes, dtype=torch.uint8, device=self._device)
                    # The slots are registered with CUDA, so this does not wait.  slot.copy_to would
                    # go by way of DLPack and an event, which `whole` does not need: torch orders
                    # its next use behind this stream.
                    whole.copy_(ring.slots[slot.index][: parcel.nbytes], non_blocking=True)
                    return [_on_its_own(whole, begin, end) for begin, end in layout.pieces]
                copies = []
                for begin, end in layout.pieces:
                    copy = torch.empty(end - begin, dtype=torch.uint8, pin_memory=pinned)
                    copy.numpy()[...] = ring.slots[slot.index][begin:end]  # by this thread alone
                    copies.append(copy)
                return copies

    def _make_room(self, parcel: Parcel) -> None:
        """The worker's next ring is to have room for this parcel.  All frames of its earlier one
        have come, because parcels of a worker come in order."""
        if self._need.nbytes < parcel.nbytes:
            self._need.nbytes = max(parcel.nbytes, self._need.nbytes * 3 // 2)
        self._generations[parcel.worker] = parcel.generation

    def _make(self, worker: int, generation: int) -> None:
        if self._closed or self._refused:
            return
        if worker in self._rings:
            self._rings.pop(worker).ring.close()
        on_gpu = self._device is not None
        try:
            ring = create(
                ring_name(self.name, worker, generation),
                slots=self._count,
                shape=self._need.nbytes,
                dtype="u1",
                memory="pinned" if on_gpu else "auto",
                device=self._device.index if self._device is not None else "host",
            )
        except (RingError, OSError) as error:
            self._refused = True
            caller.warn(
                f"batches of DataLoader travel as in torch.utils.data.DataLoader ({error})",
                RuntimeWarning,
            )
            return
        only = ring.spec.fields[0]
        memory = inner.memory(ring)
        if isinstance(memory, RegisteredMemory):
            memory = memory.host
        slots = [memory.array(k, only, only.shape, writable=on_gpu) for k in range(ring.slots)]
        if on_gpu:
            slots = [torch.from_numpy(slot) for slot in slots]
        self._rings[worker] = _Ring(generation, ring, ring.consumer(), slots)


def _on_its_own(whole: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """A piece of a batch on a GPU.  What is most of it stays in its place, and what is less gets
    memory of its own, so that who keeps it does not keep the whole."""
    piece = whole[begin:end]
    return piece if 2 * (end - begin) >= len(whole) else piece.clone()
