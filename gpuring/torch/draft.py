"""A batch that is being laid into slots, one for each place in which its leaves lie."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gpuring.errors import RingError
from gpuring.ring import inner
from gpuring.torch import places
from gpuring.torch.parcel import (
    ALIGNMENT,
    SMALL_NBYTES,
    Kind,
    Layout,
    Leaf,
    Piece,
    aligned,
    over,
)
from gpuring.torch.places import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuring.ring.write_slot import WriteSlot
    from gpuring.torch.outlet import Outlet


class Draft:
    """What goes into one slot.  The slot is claimed when it is needed."""

    def __init__(self, place: int, outlet: Outlet | None) -> None:
        self.place = place
        self._outlet = outlet
        self._slot: WriteSlot | None = None
        self._bytes = _NOWHERE
        self._end = 0
        """Bytes of the slot that are given out."""
        self.numbers: list[int] = []
        """The leaves that are to lie here, by their numbers in the batch …"""
        self._leaves: list[Leaf] = []
        self.kinds: list[Kind] = []
        self.begins: list[int] = []
        """… and where each begins in the slot.  -1: it does not lie there yet."""

    def room(self, kind: Kind) -> tuple[int, Leaf] | None:
        """Room for a leaf: its first byte, and the leaf there.  None: there is no slot, or no room
        in it."""
        begin = aligned(self._end)
        end = begin + _nbytes(kind)
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

    def add(self, number: int, leaf: Leaf) -> None:
        """That leaf of the batch is to lie here."""
        self.numbers.append(number)
        self._leaves.append(leaf)
        self.kinds.append(Kind.of(leaf))
        self.begins.append(self._where(leaf))

    def _offset(self, leaf: Leaf) -> int:
        """Where a tensor begins in the slot.  -1: it lies elsewhere."""
        if self._slot is None or isinstance(leaf, np.ndarray):
            return -1
        begin = leaf.data_ptr() - self._bytes.data_ptr()
        return begin if leaf.numel() and 0 <= begin < self._end else -1

    def _where(self, leaf: Leaf) -> int:
        """The first byte of a tensor that lies in this slot as its kind says.  -1: it lies
        elsewhere, is not aligned, or has gaps."""
        begin = self._offset(leaf)
        if begin < 0 or begin % ALIGNMENT or isinstance(leaf, np.ndarray):
            return -1
        plain = leaf.is_contiguous() and not leaf.is_conj() and not leaf.is_neg()
        return begin if plain else -1

    def needed(self) -> int:
        """How many bytes the slot must have, even if some of the leaves lie there already.  What
        was collated there and left out counts, too."""
        each = zip(self.kinds, self.begins, strict=True)
        missing = sum(aligned(_nbytes(kind)) for kind, begin in each if begin < 0)
        return aligned(self._end) + missing

    def lay(self) -> bool:
        """Copies into the slot what does not lie there yet.  False: there is no slot, or no room in
        it."""
        missing = [k for k, begin in enumerate(self.begins) if begin < 0]
        missing.sort(key=lambda k: self.kinds[k].nbytes < SMALL_NBYTES)  # large ones first
        for k in missing:
            room = self.room(self.kinds[k])
            if room is None:
                return False
            self.begins[k], target = room
            if isinstance(target, np.ndarray):
                target[...] = self._leaves[k]
            else:
                target.copy_(self._leaves[k])  # type: ignore[arg-type]
        return True

    def contents(self) -> tuple[Any, ...]:
        """All that its part of the layout is made of."""
        return self.place, self.numbers, self.begins, self.kinds

    def pieces(self) -> list[list[int]]:
        """The leaves that share a piece, in order of their first bytes, by piece."""
        pieces: list[list[int]] = []
        goes_on = False
        for k in sorted(range(len(self.begins)), key=self.begins.__getitem__):
            small = self.kinds[k].nbytes < SMALL_NBYTES
            if small and goes_on:
                pieces[-1].append(k)
            else:
                pieces.append([k])
            goes_on = small
        return pieces

    def kept(self, leaf: Leaf) -> Leaf:
        """A leaf that does not need the slot.  On a GPU it has memory of torch's own, because torch
        shares no other."""
        if isinstance(leaf, np.ndarray):
            return leaf
        if self.place != HOST or self._offset(leaf) >= 0:
            leaf = leaf.clone()
        # torch forgets on the way that a tensor is the conjugate, or the negative, of its memory.
        return leaf.resolve_conj().resolve_neg()

    def publish(self) -> tuple[int, int] | None:
        """Returns how many bytes the frame has, and its sequence.  None: the main process has
        left."""
        assert self._slot is not None
        inner.set_shape(self._slot, (self._end,))
        seq: int = self._slot.seq
        try:
            with places.on(self.place):
                self._slot.publish()
        except RingError:
            return None
        self._slot = None
        return self._end, seq

    def abandon(self) -> None:
        if self._slot is not None:
            # RingError: the main process has left, and nobody reads it.
            with contextlib.suppress(RingError), places.on(self.place):
                self._slot.abandon()
            self._slot = None


_NOWHERE = torch.empty(0, dtype=torch.uint8)


def _nbytes(kind: Kind) -> int:
    """How many bytes it takes in a slot.  An empty tensor takes some, too, so that no frame is
    empty."""
    return kind.nbytes or 1


class Drafts(dict[int, Draft]):
    """The drafts of a batch, by place."""

    def __init__(self, outlets: Mapping[int, Outlet | None]) -> None:
        super().__init__()
        self._outlets = outlets

    def __missing__(self, place: int) -> Draft:
        draft = self[place] = Draft(place, self._outlets.get(place))
        return draft

    def add(self, leaves: Iterable[Leaf]) -> list[Draft]:
        """All leaves of the batch.  Returns the drafts that have some, in the order of their
        frames."""
        for number, leaf in enumerate(leaves):
            self[places.place_of(leaf)].add(number, leaf)
        return [draft for draft in self.values() if draft.numbers]

    def abandon(self) -> None:
        """Abandons the claims of drafts that were not published."""
        for draft in self.values():
            draft.abandon()


def layout_of(rest: bytes, drafts: list[Draft]) -> Layout:
    """The layout of a batch that lies in slots."""
    pieces: list[Piece] = []
    places: dict[int, tuple[int, int, Kind | None]] = {}
    for frame, draft in enumerate(drafts):
        numbers, begins, kinds = draft.numbers, draft.begins, draft.kinds
        for first, *others in draft.pieces():
            begin, kind = begins[first], kinds[first]
            if others or not isinstance(kind.dtype, torch.dtype):
                for k in (first, *others):
                    places[numbers[k]] = len(pieces), begins[k] - begin, kinds[k]
                end = max(begins[k] + kinds[k].nbytes for k in (first, *others))
                kind = Kind(torch.uint8, (end - begin,))
            else:
                places[numbers[first]] = len(pieces), 0, None
            pieces.append(Piece(frame, begin, kind))
    return Layout(rest, tuple(pieces), tuple(places[k] for k in range(len(places))))
