"""Rings whose frames are aligned, and the tuples that this gives."""

from __future__ import annotations

import math
from contextlib import ExitStack

import gpuring
from tests.helpers.places import Place

SPEC = {"slots": 8, "shape": 4, "dtype": "u1", "meta": [("pts", "f8")]}


class Streams:
    """Rings with a producer and a consumer each; `put(0, 1, 2)` publishes pts 1 and 2 in ring 0."""

    def __init__(self, stack: ExitStack, place: Place, name: str, n: int = 2, **options) -> None:
        how = {each: options.pop(each) for each in ("lossless", "reattach") if each in options}
        spec = SPEC | options
        self.place = place
        self.rings = [stack.enter_context(place.create(f"{name}-{k}", **spec)) for k in range(n)]
        self.producers = [ring.producer() for ring in self.rings]
        self.consumers = [ring.consumer(**how) for ring in self.rings]

    def put(self, k: int, *pts: float) -> None:
        for each in pts:
            with self.producers[k].claim(20) as slot:
                slot.meta["pts"] = each
                self.place.fill(slot, int(each) % 251 if math.isfinite(each) else 0)

    def end(self, *which: int) -> None:
        for k in which or range(len(self.producers)):
            self.producers[k].close()

    def held(self) -> list[int]:
        """How many frames of each ring this process holds."""
        return [len(consumer._peer.holding()) for consumer in self.consumers]

    def align(self, *args, **options) -> gpuring.Aligned:
        return gpuring.align(self.consumers, *args, **({"timeout": 0} | options))


def pts(slots: tuple) -> tuple:
    """The `pts` of each slot of a tuple."""
    return tuple(None if slot is None else float(slot.meta["pts"]) for slot in slots)


def now(aligned: gpuring.Aligned) -> list[tuple]:
    """All tuples that come without waiting."""
    found = []
    try:
        for slots in aligned:
            found.append(pts(slots))
    except gpuring.RingTimeout:
        return found
    return [*found, "end"]
