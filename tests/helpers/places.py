"""Rings in every kind of memory, with every synchroniser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import gpuring
from gpuring.arrays import streams
from gpuring.memory import frameworks
from gpuring.ring.slot import Slot
from tests.helpers.arrays import array_of, assign, to_host


@dataclass(frozen=True)
class Place:
    """A kind of memory and synchroniser of a ring.  It can be pickled, for child processes."""

    name: str
    options: tuple[tuple[str, Any], ...]

    @property
    def on_gpu(self) -> bool:
        return dict(self.options)["device"] != "host"

    @property
    def memory(self) -> str:
        return str(dict(self.options).get("memory", "host"))

    def create(self, ring: str, **options: Any) -> gpuring.Ring:
        return gpuring.create(ring, **(dict(self.options) | options))

    def fill(self, what: Any, value: Any) -> None:
        """Writes a scalar or a NumPy array into a slot or an array, on the current stream."""
        assign(array_of(what) if isinstance(what, Slot) else what, value)

    def read(self, what: Any) -> np.ndarray:
        """Returns a copy of a slot or an array.  On a GPU it waits for the current stream."""
        return to_host(array_of(what) if isinstance(what, Slot) else what)

    def wait(self) -> None:
        """Waits until a GPU has done what the current stream was given."""
        if self.on_gpu:
            device = frameworks.current_device()
            streams.synchronize(device, streams.current(device))


def _gpu(name: str, **options: str) -> Place:
    return Place(name, (("device", "cuda"), *options.items()))


PLACES = (
    Place("host", (("device", "host"),)),
    Place("pinned", (("device", "host"), ("memory", "pinned"))),
    _gpu("cuda-timeline", memory="ipc", sync="timeline"),
    _gpu("cuda-event", memory="ipc", sync="event"),
    _gpu("cuda-event-hostgate", memory="ipc", sync="event", gate="host"),
    _gpu("cuda-vmm-timeline", memory="vmm", sync="timeline"),
    _gpu("cuda-pool-timeline", memory="pool", sync="timeline"),
)
HOST, PINNED, *ON_GPU = PLACES
"""PINNED: used by the CPU."""
STREAM_GATED = [
    *(place for place in ON_GPU if dict(place.options).get("gate") != "host"),
    _gpu("cuda-vmm-event", memory="vmm", sync="event"),
    _gpu("cuda-pool-event", memory="pool", sync="event"),
]
