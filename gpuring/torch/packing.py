"""A worker lays its batches into slots.

torch's worker calls a `Packing` in place of the collate_fn.  It collates, lays what it got into a
slot, publishes that, and returns a parcel.  torch's default collate stacks the samples straight
into the slot.

A batch for which there is no ring, or one that is too small, travels as in torch.  The main process
then makes a ring in which it would have had room, and the worker joins that before a later batch.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils import collate

from gpuring.errors import RingError
from gpuring.registry.directory import unlink
from gpuring.ring import inner
from gpuring.ring.attaching import attach
from gpuring.torch import progress, stacking
from gpuring.torch.parcel import (
    SMALL_NBYTES,
    Kind,
    Layout,
    Leaf,
    Parcel,
    Pickled,
    aligned,
    is_laid,
    is_laid_with_arrays,
    over,
    take_apart,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuring.ring.write_slot import WriteSlot


def ring_name(inlet: str, worker: int, generation: int) -> str:
    return f"{inlet}.{worker}.{generation}"


class _Outlet:
    """This worker's end of its ring."""

    def __init__(self, name: str) -> None:
        """Raises RingError if there is no such ring, or none that is read already: what is
        published before the main process has joined, it would not get."""
        self._ring = attach(name)
        if not any(each.members for each in self._ring.stats().subscriptions):
            self._ring.close()
            raise RingError(f"ring {name!r} has no reader yet")
        self._producer = self._ring.producer()
        with contextlib.suppress(RingError, OSError):  # the main process has just removed it
            unlink(name)
        only = self._ring.spec.fields[0]
        memory = inner.memory(self._ring)
        self.nbytes: int = only.shape[0]
        self._slots = [
            torch.from_numpy(memory.array(k, only, only.shape, writable=True))
            for k in range(self._ring.slots)
        ]

    def claim(self) -> tuple[WriteSlot, torch.Tensor]:
        """A slot and its bytes.  Waits until the main process has copied an earlier batch.  Raises
        RingError if that has gone."""
        slot = self._producer.claim()
        return slot, self._slots[slot.index]

    def close(self) -> None:
        self._ring.close()


class _Draft:
    """A batch that is being laid into a slot.  The slot is claimed when it is needed."""

    def __init__(self, outlet: _Outlet | None) -> None:
        self._outlet = outlet
        self._slot: WriteSlot | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._end = 0
        """Bytes of the slot that are given out."""

    def place(self, kind: Kind) -> tuple[int, Leaf] | None:
        """Room for a leaf: its first byte, and the leaf there.  None: there is no slot, or no room
        in it."""
        begin = aligned(self._end)
        end = begin + kind.nbytes
        if self._outlet is None or end > self._outlet.nbytes:
            return None
        if self._slot is None:
            try:
                self._slot, self._bytes = self._outlet.claim()
            except RingError:  # the iterator, or the main process, is about to end
                self._outlet = None
                return None
        self._end = end
        return begin, over(self._bytes, begin, kind)

    def _offset(self, leaf: Leaf) -> int | None:
        """Where a tensor begins in the slot.  None: it lies elsewhere."""
        if self._slot is None or isinstance(leaf, np.ndarray):
            return None
        begin = leaf.data_ptr() - self._bytes.data_ptr()
        return begin if leaf.numel() and 0 <= begin < self._end else None

    def where(self, leaf: Leaf) -> int | None:
        """The first byte of a tensor that lies in this slot as its kind says.  None: it lies
        elsewhere, or has gaps there."""
        begin = self._offset(leaf)
        if begin is None or isinstance(leaf, np.ndarray):
            return None
        plain = leaf.is_contiguous() and not leaf.is_conj() and not leaf.is_neg()
        return begin if plain else None

    def needed(self, leaves: list[Leaf]) -> int:
        """So many bytes the slot must have, also for what was collated there and left out."""
        missing = sum(aligned(leaf.nbytes) for leaf in leaves if self.where(leaf) is None)
        return aligned(self._end) + missing

    def kept(self, leaf: Leaf) -> Leaf:
        """A leaf that does not need the slot."""
        if isinstance(leaf, np.ndarray):
            return leaf
        if self._offset(leaf) is not None:
            leaf = leaf.clone()
        # torch forgets on the way that a tensor is the conjugate, or the negative, of its memory.
        return leaf.resolve_conj().resolve_neg()

    def publish(self) -> tuple[int, int] | None:
        """Returns the sequence of the frame, and how many bytes it has.  None: the main process has
        left."""
        assert self._slot is not None
        inner.set_shape(self._slot, (self._end,))
        seq: int = self._slot.seq
        try:
            self._slot.publish()
        except RingError:
            return None
        self._slot = None
        return seq, self._end

    def abandon(self) -> None:
        if self._slot is not None:
            with contextlib.suppress(RingError):  # the main process has left, and nobody reads it
                self._slot.abandon()
            self._slot = None


class Packing:
    """The collate_fn of a worker."""

    def __init__(self, collate_fn: Callable[[Any], Any], inlet: str, *, arrays: bool) -> None:
        """`arrays`: NumPy's lie in slots, too."""
        self._collate_fn = collate_fn
        self._inlet = inlet
        self._is_leaf = is_laid_with_arrays if arrays else is_laid
        self._generation = 0
        self._outlet: _Outlet | None = None
        self._layout: Layout | None = None
        """Of the last frame."""

    def __call__(self, samples: Any) -> Any:
        progress.enter(progress.COLLATES)
        packed = self._packed(samples)
        progress.enter(progress.DONE)
        return packed

    def _packed(self, samples: Any) -> Any:
        info = get_worker_info()
        assert info is not None
        draft = _Draft(self._joined(info.id))
        try:
            batch = self._collated(samples, draft)
            rest, leaves = take_apart(batch, self._is_leaf)
            if not leaves:
                return Pickled(rest)
            nbytes = draft.needed(leaves)
            layout = _lay(rest, leaves, draft, self._layout) if nbytes else None
            published = None if layout is None else draft.publish()
            if layout is not None and published is not None:
                sent, self._layout = layout if layout is not self._layout else None, layout
                seq, nbytes = published
                return Parcel(self._inlet, info.id, self._generation, nbytes, seq, sent)
            loose = Pickled.of([draft.kept(leaf) for leaf in leaves])
            draft.abandon()
            if nbytes:  # else a larger slot would not help
                self._leave()
            return Parcel(self._inlet, info.id, self._generation, nbytes, 0, Layout(rest), loose)
        finally:
            draft.abandon()

    def _joined(self, worker: int) -> _Outlet | None:
        if self._outlet is None:
            with contextlib.suppress(RingError):
                self._outlet = _Outlet(ring_name(self._inlet, worker, self._generation))
        return self._outlet

    def _leave(self) -> None:
        """The next ring is to be larger."""
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None
            self._generation += 1

    def _collated(self, samples: Any, draft: _Draft) -> Any:
        if self._collate_fn is not default_collate:
            return self._collate_fn(samples)
        known = collate.default_collate_fn_map
        if known.get(torch.Tensor) is not collate.collate_tensor_fn:  # it is the user's own
            return default_collate(samples)

        def stack(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
            if stacking.alike(batch):
                room = draft.place(Kind(batch[0].dtype, (len(batch), *batch[0].shape)))
                if room is not None:
                    return stacking.stack(batch, room[1])
            stacked: torch.Tensor = collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
            return stacked

        return collate.collate(samples, collate_fn_map={**known, torch.Tensor: stack})


def _lay(rest: bytes, leaves: list[Leaf], draft: _Draft, before: Layout | None) -> Layout | None:
    """Copies into the slot what does not lie there yet.  Returns how it lies there, which is the
    layout `before` if it is the same.  None: there is no slot, or no room in it."""
    kinds = [Kind.of(leaf) for leaf in leaves]
    begins = [draft.where(leaf) for leaf in leaves]
    large_ones_first = sorted(range(len(leaves)), key=lambda k: kinds[k].nbytes < SMALL_NBYTES)
    for k in large_ones_first:
        if begins[k] is None:
            room = draft.place(kinds[k])
            if room is None:
                return None
            begins[k], target = room
            if isinstance(target, np.ndarray):
                target[...] = leaves[k]
            else:
                target.copy_(leaves[k])  # type: ignore[arg-type]
    laid = [begin for begin in begins if begin is not None]
    pieces, numbers = _pieces(laid, kinds)
    places = (
        (number, begin - pieces[number][0], kind)
        for number, begin, kind in zip(numbers, laid, kinds, strict=True)
    )
    layout = Layout(rest, tuple(pieces), tuple(places))
    return before if layout == before else layout


def _pieces(begins: list[int], kinds: list[Kind]) -> tuple[list[tuple[int, int]], list[int]]:
    """The pieces (from, to) in order, and the number of that which each leaf is in."""
    pieces: list[tuple[int, int]] = []
    numbers = [0] * len(begins)
    goes_on = False
    for k in sorted(range(len(begins)), key=begins.__getitem__):
        begin, end = begins[k], begins[k] + kinds[k].nbytes
        small = kinds[k].nbytes < SMALL_NBYTES
        if small and goes_on:
            pieces[-1] = pieces[-1][0], max(pieces[-1][1], end)
        else:
            pieces.append((begin, end))
        goes_on = small
        numbers[k] = len(pieces) - 1
    return pieces, numbers
