"""Who keeps the next claim of a ring waiting, as a look at its header shows it.

`gate` in native/core/claim.c decides that for a claim.  This module says the same to programs that
only look.  It may be a few transitions behind.
"""

from __future__ import annotations

from typing import Any

from gpuring import native
from gpuring.registry.diagnosis import Culprit


def of_next_claim(seen: dict[str, Any]) -> Culprit | None:
    """Who is in the way, as Peer.culprit has it.  None: the next slot is free, or the ring was
    closed.  `seen` is a snapshot of its header."""
    slots, claim = seen["slots"], seen["frontier"]
    index, before = claim % len(slots), claim - len(slots)
    slot = slots[index]
    if (
        seen["closed"] or slot["seq"] != before
    ):  # else there were claims since the slot was looked at
        return None
    if slot["phase"] == "writing":
        return native.BY_PRODUCER, slot["owner"], None, before, slot["since_ns"]
    holder: Culprit | None = None
    for number, subscription in seen["subscriptions"].items():
        take = subscription["takes"][index]
        held = take["phase"] == "held"
        by_holder = native.BY_HOLDER, take["member"], number, take["seq"], take["since_ns"]
        if subscription["lossless"] and subscription["start"] <= before:
            if held:
                return by_holder
            if slot["phase"] == "ready" and (take["seq"], take["phase"]) != (before, "done"):
                return native.BY_SUBSCRIPTION, None, number, before, slot["time_ns"]
        if held:
            holder = by_holder
    return holder if holder and _every_slot_is_held(seen) else None


def _every_slot_is_held(seen: dict[str, Any]) -> bool:
    """A claim passes over a slot that a lossy reader holds, unless there is no other one."""
    takes = [subscription["takes"] for subscription in seen["subscriptions"].values()]
    return all(
        any(take["phase"] == "held" for take in of_slot) for of_slot in zip(*takes, strict=True)
    )
