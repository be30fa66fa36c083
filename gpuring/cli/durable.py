"""Durable subscriptions for which a ring that was closed keeps its name."""

from __future__ import annotations

from gpuring.cli.owners import listed
from gpuring.registry.stats import RingStats


def keeps_its_name(one: RingStats) -> str:
    """For which of them a ring keeps its name though it was closed.  Else nothing."""
    durable = [sub.name for sub in one.subscriptions if sub.durable]
    if not one.closed or not durable:
        return ""
    what = "subscription" if len(durable) == 1 else "subscriptions"
    return f"{one.name} was closed, and keeps its name for the durable {what} {listed(durable)}"
