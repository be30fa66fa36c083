"""The command by which an importer of a bridge is started again, as far as headers tell it."""

from __future__ import annotations

import socket

from gpuring.printable import command
from gpuring.registry import subscriptions
from gpuring.registry.stats import RingStats

_SLOTS = 16
"""What `gpuring bridge import` makes if nobody says how many."""


def of_far_ring(far: RingStats) -> str | None:
    """The importer that fills this ring.  None: no bridge does."""
    if far.link is None:
        return None
    options = [] if far.slots == _SLOTS else ["--slots", str(far.slots)]
    options += ["--device", "host"] if far.memory == "host" else []
    return _command(far.link.host, far.link.ring, far.name, options)


def of_near_ring(near: str, subscription: str) -> str:
    """The importer on another host that has this subscription of a ring of this host."""
    _, _, far = (subscriptions.elsewhere(subscription) or "").rpartition("/")
    return _command(socket.gethostname(), near, far or "NAME", [])


def _command(host: str, near: str, far: str, options: list[str]) -> str:
    renamed = [] if far == near else ["--as", far]
    words = ["gpuring", "bridge", "import", f"{host}:PORT/{near}", *renamed, *options]
    return command(*words)
