"""What a wait is for, in words."""

from __future__ import annotations

from gpuring import native
from gpuring.tracing.state import RingState
from gpuring.tracing.tracks import Args

NONE = 0xFFFF
"""No peer, no subscription."""


def is_in_loop(about: list[int]) -> bool:
    """Whether a wait is in an event loop, so that its thread does other things meanwhile."""
    return bool(about[0] >> 40 & 1)


def culprit_of(ring: RingState, at: int, about: list[int]) -> tuple[str, Args, str]:
    """The words for a wait, who is in the way, and its kind (GR_DID_WAIT in core/trace.h)."""
    word, seq, who, *_ = about
    reason, number, subscription = word & 0xFF, word >> 8 & NONE, word >> 24 & NONE
    args: Args = {"ring": ring.name, "sequence": seq}
    if subscription != NONE:
        args["subscription"] = ring.subscription(subscription)
    name = ""
    if number != NONE:
        culprit = ring.who((number, who & 0xFFFFFFFF))
        name = culprit.name
        args |= {"culprit": name, "culprit's pid": culprit.pid}
    if reason == native.BY_PRODUCER and ring.is_far:  # it has slots for frames that are to come
        return f"waits for frame {seq} of {ring.name}", args, "idle"
    if reason == native.BY_PRODUCER:
        return f"waits for {name}, which writes {seq}", args, "waits"
    if reason == native.BY_HOLDER:
        return f"waits for {name}, which holds {seq}", args, "waits"
    if reason == native.BY_FENCE:
        return f"waits for GPU work of {name} on {seq}", args, "waits"
    # Whom all of a subscription, or all producers, keep waiting has no single culprit with a pid.
    args.pop("culprit's pid", None)
    if reason == native.BY_SUBSCRIPTION:
        unread = f"subscription {args['subscription']}, which nobody reads"
        args["culprit"] = "; ".join(ring.members(subscription, at)) or unread
        return f"waits for {args['subscription']}, which has not taken {seq}", args, "waits"
    args["culprit"] = "; ".join(ring.members(None, at)) or "a producer, which is not there"
    return f"waits for frame {seq} of {ring.name}", args, "idle"
