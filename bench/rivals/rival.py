"""The interface of a rival: lanes, their two ends, and the work that is done with its frames."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from bench.rivals.work import Work

SLOTS = 8
"""Frames in flight, for every rival."""
RUN_S = 60.0
"""How long anything but a start may take."""


class End:
    """One end of a lane.  Both sides make theirs, then both call `connect`, then they are used."""

    exports: Any = None
    """What the other end needs to know.  It is sent through the benchmark's own pipe."""

    def connect(self, theirs: Any) -> None:
        """`theirs` is what the other end of the lane exports."""

    def close(self) -> None:
        """Called when no frame is in flight: Inlets first, then Outlets, which own the memory."""


class Outlet(End):
    def send(self, seq: int) -> None:
        """Stamps the next frame and hands it over.  Waits while SLOTS frames are in flight."""
        raise NotImplementedError


class Inlet(End):
    def receive(self, seq: int) -> None:
        """Waits for the next frame, which must be `seq`, checks it and gives it back."""
        raise NotImplementedError


@dataclass(frozen=True)
class Rival:
    """One rival.  All callables are at module level, because other processes find them by name."""

    name: str
    memory: str
    """"cuda" or "host"."""
    needs: tuple[tuple[str, str], ...]
    """(module, distribution) without which this rival is left out."""
    work: Callable[[], Work]
    lane: Callable[[], AbstractContextManager[Any]]
    outlet: Callable[[Any, Any], Outlet]
    inlet: Callable[[Any, Any], Inlet]
    """Makes an end from (lane, work)."""
    inherits: bool = False
    """Whether the lane can only be inherited."""
