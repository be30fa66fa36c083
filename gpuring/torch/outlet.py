"""A worker's end of its rings.

It has a ring for each place in which tensors of its batches lie: host memory, and each GPU.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gpuring.errors import RingError
from gpuring.registry.directory import unlink
from gpuring.ring.attaching import attach
from gpuring.torch import places
from gpuring.torch.places import HOST

if TYPE_CHECKING:
    import torch

    from gpuring.ring.write_slot import WriteSlot


def ring_name(inlet: str, worker: int, place: int, generation: int) -> str:
    where = "" if place == HOST else f".gpu{place}"
    return f"{inlet}.{worker}{where}.{generation}"


class Outlet:
    """This worker's end of its ring for one place."""

    def __init__(self, name: str, place: int) -> None:
        """Raises RingError if there is no such ring, or none that is read already: what is
        published before the main process has joined, it would not get."""
        self.place = place
        self._ring = attach(name, device=None if place == HOST else place)
        if not any(each.members for each in self._ring.stats().subscriptions):
            self._ring.close()
            raise RingError(f"ring {name!r} has no reader yet")
        with places.on(place):
            self._producer = self._ring.producer()
        with contextlib.suppress(RingError, OSError):  # the main process has just removed it
            unlink(name)
        self.nbytes: int = self._ring.spec.fields[0].shape[0]
        self._slots = places.slots_of(self._ring, place)

    def claim(self) -> tuple[WriteSlot, torch.Tensor]:
        """A slot and its bytes.  Waits until the main process has released an earlier batch; that
        its GPU has copied it, torch's current stream waits for.  Raises RingError if the main
        process has gone."""
        with places.on(self.place):
            slot = self._producer.claim(stream=places.stream_of(self.place))
        return slot, self._slots[slot.index]

    def close(self) -> None:
        self._ring.close()
