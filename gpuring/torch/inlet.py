"""The main process's end of the rings of an iterator's workers.

A worker has a ring for each place in which tensors of its batches lie: host memory, and each GPU.

The main process makes the rings, so they go when it closes them, whatever became of the workers,
and a worker that is killed takes no memory along.  Which places there are, and how large the slots
must be, is known from the first batch of a worker.  A batch that is larger asks for another ring,
with larger slots.

A ring has a name only until its worker has joined, which it does before it loads its next batch.
Only if all processes are killed at once before that, it stays in /dev/shm.

A batch is copied out of its slot as soon as its parcel is there, also if its turn comes later.  So
a worker that is ahead never has a slot for which another one would have to wait, and users may keep
batches for as long as they like.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from gpuring.errors import DeviceError, FrameTorn, RingError
from gpuring.memory.kinds import ON_GPU
from gpuring.ring import caller, kept_memory
from gpuring.ring.creation import create
from gpuring.torch import places
from gpuring.torch.outlet import ring_name
from gpuring.torch.parcel import Parcel, Pickled, inlets, over, put_together
from gpuring.torch.places import HOST

if TYPE_CHECKING:
    from gpuring.ring.consumer import Consumer
    from gpuring.ring.read_slot import ReadSlot
    from gpuring.ring.ring import Ring
    from gpuring.torch.parcel import Layout, Leaf, Part


@dataclass
class Need:
    """What a loader has learned of its batches.  Its next iterator begins with that."""

    nbytes: dict[int, int] = field(default_factory=dict)
    """By place, of the largest batch there, with room for more if they differ."""

    def known(self) -> set[int]:
        """The places for which a ring is made before a worker has asked for it."""
        return {HOST, *self.nbytes}


@dataclass
class _Ring:
    generation: int
    ring: Ring
    consumer: Consumer
    slots: list[torch.Tensor]
    """The bytes of each slot."""
    _layout: Layout | None = None
    """Of the last frame …"""
    _pieces: dict[int, list[Any]] = field(default_factory=dict)
    """… and its pieces, by slot.  The next frames there mostly have the same."""

    def close(self) -> None:  # by a method, which has the consumer until it is closed
        self.ring.close()

    def pieces(self, slot: int, layout: Layout, frame: int) -> list[torch.Tensor]:
        """Where the pieces of a frame lie.  `frame`: its number among those of its batch."""
        if layout is not self._layout:
            self._layout, self._pieces = layout, {}
        if slot not in self._pieces:
            memory = self.slots[slot]
            pieces = (piece for piece in layout.pieces if piece.frame == frame)
            self._pieces[slot] = [over(memory, piece.begin, piece.kind) for piece in pieces]
        return self._pieces[slot]


class Inlet:
    """The rings by worker and place.  Two threads use it: the main one, and torch's for pinned
    memory."""

    def __init__(self, need: Need, workers: int, slots: int, device: torch.device | None) -> None:
        """`slots`: of each ring.  `device`: the GPU that batches go to; None: they stay where they
        are."""
        self.name = f"loader-{os.getpid()}-{secrets.token_hex(4)}"
        self._need = need
        self._generations = [dict.fromkeys(need.known(), 0) for _ in range(workers)]
        """Which rings each has, or is to have, by place."""
        self._count = slots
        self._device = device
        self._rings: dict[tuple[int, int], _Ring] = {}
        self._layouts: dict[int, Layout] = {}
        """The layout of each worker's last batch."""
        self._lock = threading.RLock()  # reentrant: a signal handler may drop the iterator
        self._pid = os.getpid()
        self._closed = False
        self._refused: set[int] = set()
        """Places for which a ring could not be made.  Then no other one is tried there."""
        inlets[self.name] = self

    def prepare(self, worker: int) -> None:
        """Makes the rings of a worker that is about to be asked for a batch, where it has none that
        is large enough, and it is known how large that is.  The worker joins when it begins with
        its next batch, and takes the names away."""
        with self._lock:
            for place, generation in self._generations[worker].items():
                ring = self._rings.get((worker, place))
                missing = ring is None or ring.generation < generation
                if missing and place in self._need.nbytes:
                    self._make(worker, place, generation)

    def close(self) -> None:
        """Workers that wait for a slot go on without one."""
        if self._pid != os.getpid():  # a worker has inherited it
            return
        with self._lock:
            self._closed = True
            while self._rings:
                # FrameTorn: a worker was killed, and the loop says so.
                with contextlib.suppress(FrameTorn):
                    self._rings.popitem()[1].close()

    def torn(self, worker: int) -> set[tuple[int, int]]:
        """For a worker that was killed: the frames that were copied although its GPU had not
        written them, by place and sequence.  Waits for the copies."""
        torn: set[tuple[int, int]] = set()
        with self._lock:
            for (of, place), ring in self._rings.items():
                if of == worker and place != HOST:
                    try:
                        ring.consumer.close()
                    except FrameTorn as error:
                        torn.update((place, seq) for seq in error.seqs)
                    except RingError:  # that of the GPU: the worker's death is what is told
                        pass
        return torn

    def give_memory_back(self) -> None:
        """Called when no worker has the rings any more.  Memory of a GPU is kept until then."""
        if self._pid == os.getpid():
            kept_memory.free()

    def open(self, parcel: Parcel, *, pinned: bool) -> Any:
        """The batch, in memory of its own: on the GPU in order of torch's current stream, in pinned
        memory, or in ordinary memory."""
        leaves: list[Leaf]
        with self._lock:
            if parcel.leaves is None:
                if parcel.layout is not None:
                    self._layouts[parcel.worker] = parcel.layout
                layout = self._layouts[parcel.worker]
                pieces = self._copied(parcel, layout, pinned)
                leaves = [
                    pieces[piece] if kind is None else over(pieces[piece], begin, kind)
                    for piece, begin, kind in layout.places
                ]
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
        if self._device is not None and leaf.device != self._device:
            return leaf.to(self._device, non_blocking=True)
        if places.place_of(leaf) != HOST:
            return leaf.clone()  # the worker has that memory
        return leaf.pin_memory() if pinned else leaf

    def _target(self, place: int) -> int:
        """Where what lies in a place goes."""
        return place if self._device is None else int(self._device.index)

    def _copied(self, parcel: Parcel, layout: Layout, pinned: bool) -> list[torch.Tensor]:
        """The pieces of a parcel.  Its slots go back behind the copies."""
        copies: list[torch.Tensor] = []
        for number, part in enumerate(parcel.parts):
            ring, target = self._rings[parcel.worker, part.place], self._target(part.place)
            here = target if part.place == HOST else part.place  # where the ring is used
            with places.on(here), _frame(ring, part, places.stream_of(here)) as slot:
                pieces = ring.pieces(slot.index, layout, number)
                if target == HOST:
                    copies += [_on_host(piece, pinned) for piece in pieces]
                else:
                    # Memory of a GPU, or registered with CUDA, so this does not wait.
                    # slot.copy_to would go by way of DLPack and an event, which a new tensor does
                    # not need: torch orders its next use behind this stream.
                    copies += [places.copy_of(piece, target) for piece in pieces]
        return copies

    def _make_room(self, parcel: Parcel) -> None:
        """The worker's next rings are to have room for this parcel.  All frames of its earlier ones
        have come, because parcels of a worker come in order."""
        need = self._need.nbytes
        for part in parcel.parts:
            largest = need.get(part.place, 0)
            if largest < part.nbytes:
                need[part.place] = max(part.nbytes, largest * 3 // 2)
            self._generations[parcel.worker][part.place] = part.generation

    def _make(self, worker: int, place: int, generation: int) -> None:
        if self._closed or place in self._refused:
            return
        if (worker, place) in self._rings:
            self._rings.pop((worker, place)).close()
        target = self._target(place)
        try:
            ring = create(
                ring_name(self.name, worker, place, generation),
                slots=self._count,
                shape=self._need.nbytes[place],
                dtype="u1",
                memory="pinned" if place == HOST != target else "auto",
                device="host" if target == HOST else target if place == HOST else place,
            )
            if place != HOST and ring.memory not in ON_GPU:
                ring.close()
                raise DeviceError(f"GPU {place} cannot share its memory between processes")
        except (RingError, OSError) as error:
            self._refused.add(place)
            where = "" if place == HOST else f" on GPU {place}"
            caller.warn(
                f"batches{where} of DataLoader travel as in torch.utils.data.DataLoader ({error})",
                RuntimeWarning,
            )
            return
        with places.on(target if place == HOST else place):
            consumer = ring.consumer()
        slots = places.slots_of(ring, place)
        self._rings[worker, place] = _Ring(generation, ring, consumer, slots)


def _frame(ring: _Ring, part: Part, stream: Any) -> ReadSlot:
    """The slot with the frame of a part."""
    while True:
        slot = ring.consumer.acquire(0, stream=stream)
        if slot.seq == part.seq:
            return slot
        slot.release()  # it is of a parcel that was lost to a Ctrl-C


def _on_host(piece: torch.Tensor, pinned: bool) -> torch.Tensor:
    copy = torch.empty_like(piece, pin_memory=pinned)
    ctypes.memmove(copy.data_ptr(), piece.data_ptr(), piece.nbytes)  # by this thread alone
    return copy
