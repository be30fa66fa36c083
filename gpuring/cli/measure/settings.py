"""Where and how long a run of the benchmarks measures."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gpuring

from .figures import Value

SLOTS = 8
"""Frames in flight, where a benchmark does not vary them."""
FRAME_NBYTES = 4096
"""What is written and checked of every frame, and the size of a frame that is not varied."""


@dataclass(frozen=True)
class Place:
    """A kind of memory with its way of ordering GPU work."""

    sync: str
    """ "host", "timeline" or "event"."""
    gate: str = "host"
    """Who waits for pending GPU work: "stream" or "host".  Host memory has none to wait for."""

    @property
    def on_gpu(self) -> bool:
        return self.sync != "host"

    @property
    def name(self) -> str:
        return f"{self.sync}, {self.gate} gate" if self.on_gpu else "host memory"

    @property
    def options(self) -> dict[str, Any]:
        """For gpuring.create."""
        return {"sync": self.sync, "gate": self.gate} if self.on_gpu else {"device": "host"}


HOST = Place("host")
ON_GPU = tuple(Place(sync, gate) for sync in ("timeline", "event") for gate in ("stream", "host"))


@dataclass(frozen=True)
class Settings:
    """One run, or its part with MPS off or on."""

    quick: bool = False
    places: tuple[Place, ...] = (HOST,)
    mps: bool = False
    """Whether the workers' GPU work goes through a CUDA Multi-Process Service."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The workers' whole environment, for programs that are no workers; empty: ours."""
    spoil: bool = False
    """Damage one frame before the clock runs: every benchmark must notice."""
    scale: float = 1.0
    """Factor for all durations and counts; tests make it small."""

    @property
    def gpu_places(self) -> tuple[Place, ...]:
        return tuple(place for place in self.places if place.on_gpu)

    @property
    def one_per_sync(self) -> tuple[Place, ...]:
        """Host memory, and each synchroniser with its fastest gate: streams wait."""
        return tuple(p for p in self.places if not p.on_gpu or p.gate == "stream")

    def where(self, place: Place, **more: Value) -> dict[str, Value]:
        """A figure's setting."""
        if not place.on_gpu:
            return {"sync": place.sync, **more}
        if more.get("kernel"):
            more["launch"] = "cuda-bindings"  # what it costs by itself: "kernel launch"
        return {"sync": place.sync, "gate": place.gate, "mps": self.mps, **more}

    def seconds(self, quick: float, full: float) -> float:
        return (quick if self.quick else full) * self.scale

    def rounds(self, quick: int, full: int) -> int:
        return max(5, int((quick if self.quick else full) * self.scale))


_numbers = itertools.count()


def ring_name() -> str:
    """A name that no other run has."""
    return f"bench-{os.getpid()}-{next(_numbers)}"


def create(name: str, place: Place, **more: Any) -> gpuring.Ring:
    """A ring of frames that are not varied."""
    kept = {"slots": SLOTS, "shape": FRAME_NBYTES // 8, "dtype": "u8", **place.options, **more}
    return gpuring.create(name, **kept)


def remove_rings() -> None:
    """Removes what killed workers have left under such names."""
    for ring in gpuring.ls():
        if ring.name.startswith(f"bench-{os.getpid()}-"):
            with contextlib.suppress(gpuring.RingNotFound):
                gpuring.unlink(ring.name)
