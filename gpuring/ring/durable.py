"""Durable subscriptions: those that stay when their last member leaves or dies.

The C library keeps them (native/core/subscriptions.c), and `Ring.subscribe` makes them.  Here is
how they go over from a ring to the one that takes its name.  registry/earlier.py has what becomes
of what somebody could still read in the earlier ring.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuring import native
from gpuring.native import seconds
from gpuring.registry import earlier
from gpuring.registry.subscriptions import FOREVER_NS

if TYPE_CHECKING:
    from gpuring.native import Header


def patience_ns(patience: float | None) -> int:
    """`Ring.subscribe(patience=)` in nanoseconds.  0 leaves it as it is, and at first that is for
    ever.  So the least patience is 1 ns."""
    if patience is None:
        return 0
    given = seconds(patience, "patience")
    return FOREVER_NS if math.isinf(given) else max(1, round(given * 1e9))


def carry_over(name: str, old: Header, new: Header) -> bool:
    """Makes the durable subscriptions of a ring that was closed in the one that takes its name.

    What nobody of a subscription has had is lost with the old ring, and is counted for whoever
    joins the subscription next.  But a member that lives can still read it.  Then it is counted
    when nobody of them lives any more (registry/earlier.py), and this returns True: the old ring
    has to stay findable.
    """
    reads = False
    for u in earlier.durable(old):
        lossless, redeliver = old.terms(u) or (True, True)
        read = native.is_read(old, u)
        reads |= read
        patience_ns, _ = old.patience(u) or (0, 0)
        native.subscribe(  # a table that is too small has no room for it: then it ends here
            new,
            old.subscription_name(u),
            lossless=lossless,
            redeliver=redeliver,
            start="oldest",
            patience_ns=patience_ns,
            owed=0 if read else native.owed(old, u),
            earlier=1 if read else earlier.number(old),
        )
    earlier.settle_up(name, old)  # it is closed, so nobody settles anything there any more
    return reads
