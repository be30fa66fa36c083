"""A worker lays its batches into slots.

torch's worker calls a `Packing` in place of the collate_fn.  It collates, lays what it got into
slots, publishes these, and returns a parcel.  torch's default collate stacks the samples straight
into a slot.

A batch for which a ring is missing, or is too small, travels as in torch.  The main process then
makes rings in which it would have had room, and the worker joins them before a later batch.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils import collate

from gpuring.errors import DeviceError, RingError
from gpuring.torch import places, progress, stacking
from gpuring.torch.draft import Draft, Drafts, layout_of
from gpuring.torch.outlet import Outlet, ring_name
from gpuring.torch.parcel import (
    Kind,
    Layout,
    Parcel,
    Part,
    Pickled,
    is_laid,
    is_laid_with_arrays,
    take_apart,
)
from gpuring.torch.places import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def _worker() -> int:
    """The number of the worker that this process is."""
    info = get_worker_info()
    assert info is not None
    return info.id


class Packing:
    """The collate_fn of a worker."""

    def __init__(
        self,
        collate_fn: Callable[[Any], Any],
        inlet: str,
        *,
        arrays: bool,
        known: Iterable[int] = (HOST,),
    ) -> None:
        """`arrays`: NumPy's lie in slots, too.  `known`: the places for which the main process may
        make rings before a batch has asked for them."""
        self._collate_fn = collate_fn
        self._inlet = inlet
        self._is_leaf = is_laid_with_arrays if arrays else is_laid
        self._generations = dict.fromkeys(known, 0)
        """Which ring this worker has for a place, or is to have."""
        self._outlets: dict[int, Outlet | None] = {}
        """None: this process cannot use that GPU."""
        self._contents: tuple[Any, ...] = ()
        """What the layout of the last batch in slots is made of."""

    def __call__(self, samples: Any) -> Any:
        progress.enter(progress.COLLATES)
        packed = self._packed(samples)
        progress.enter(progress.DONE)
        return packed

    def _packed(self, samples: Any) -> Any:
        self.join()
        drafts = Drafts(self._outlets)
        try:
            batch = self._collated(samples, drafts)
            rest, leaves = take_apart(batch, self._is_leaf)
            if not leaves:
                return Pickled(rest)
            used = drafts.add(leaves)
            parcel = self._laid(rest, used)
            if parcel is not None:
                return parcel
            kept = [drafts[places.place_of(leaf)].kept(leaf) for leaf in leaves]
            for place in drafts:  # torch sends events, and who waits for that of a killed process
                places.wait(place)  # waits for ever, unless its work was done
            loose = Pickled.of(kept)
            drafts.abandon()
            parts = map(self._asks_for_room, used)
            return Parcel(self._inlet, _worker(), tuple(parts), Layout(rest), loose)
        finally:
            drafts.abandon()

    def _laid(self, rest: bytes, drafts: list[Draft]) -> Parcel | None:
        """The batch in slots.  None: there are none, they are too small, or the main process has
        left."""
        if not all(draft.lay() for draft in drafts):
            return None
        parts = []
        for draft in drafts:
            frame = draft.publish()
            if frame is None:
                return None
            parts.append(Part(draft.place, self._generations[draft.place], *frame))
        contents = rest, [draft.contents() for draft in drafts]
        layout = None if contents == self._contents else layout_of(rest, drafts)
        self._contents = contents
        return Parcel(self._inlet, _worker(), tuple(parts), layout)

    def join(self) -> None:
        """Joins those of this worker's rings that are there."""
        for place, generation in self._generations.items():
            if place in self._outlets:
                continue
            name = ring_name(self._inlet, _worker(), place, generation)
            try:
                self._outlets[place] = Outlet(name, place)
            except (DeviceError, RuntimeError) as error:  # the latter is torch's after a fork
                self._outlets[place] = None
                warnings.warn(
                    f"batches on GPU {place} travel as in torch.utils.data.DataLoader ({error})",
                    RuntimeWarning,
                    stacklevel=1,
                )
            except RingError:  # there is none yet
                pass

    def _asks_for_room(self, draft: Draft) -> Part:
        """What the main process is told of a draft that had no room."""
        place, outlet, nbytes = draft.place, self._outlets.get(draft.place), draft.needed()
        self._generations.setdefault(place, 0)
        if outlet is not None and outlet.nbytes < nbytes:
            outlet.close()
            del self._outlets[place]
            self._generations[place] += 1
        return Part(place, self._generations[place], nbytes)

    def _collated(self, samples: Any, drafts: Drafts) -> Any:
        if self._collate_fn is not default_collate:
            return self._collate_fn(samples)
        known = collate.default_collate_fn_map
        if known.get(torch.Tensor) is not collate.collate_tensor_fn:  # it is the user's own
            return default_collate(samples)

        def stack(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
            if stacking.alike(batch):
                kind = Kind(batch[0].dtype, (len(batch), *batch[0].shape))
                room = drafts[places.place_of(batch[0])].room(kind)
                if room is not None:
                    return stacking.stack(batch, room[1])
            stacked: torch.Tensor = collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
            return stacked

        def number(batch: Any, *, collate_fn_map: Any = None) -> Any:
            if {*map(type, batch)} == {int} and torch.empty(0).is_cpu:  # torch's default device
                room = drafts[HOST].room(Kind(torch.int64, (len(batch),)))
                if room is not None and stacking.fill(batch, room[1]):
                    return room[1]
            return collate.collate_int_fn(batch, collate_fn_map=collate_fn_map)

        ours: dict[Any, Any] = {torch.Tensor: stack}
        if known.get(int) is collate.collate_int_fn:
            ours[int] = number
        return collate.collate(samples, collate_fn_map={**known, **ours})
