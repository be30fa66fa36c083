"""Make a durable subscription of a ring: producers wait for its readers, also while none is there.

A consumer that joins it goes on at the frame after the last one that was released.  `gpuring
unsubscribe` ends it.
"""

from __future__ import annotations

import argparse

import gpuring
from gpuring.cli.options import add_owner, positive
from gpuring.cli.text import seconds
from gpuring.cli.trouble import CommandError
from gpuring.printable import printable
from gpuring.registry.stats import SubscriptionStats


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the ring's name")
    parser.add_argument("subscription", help="the name of the subscription")
    parser.add_argument(
        "--lossy", action="store_true", help="producers may pass it; what it misses is counted"
    )
    parser.add_argument(
        "--start",
        choices=("next", "oldest"),
        default="next",
        help="its first frame (default: next)",
    )
    parser.add_argument(
        "--patience",
        type=positive,
        metavar="S",
        help="how long producers wait while nobody reads (default: for ever)",
    )
    add_owner(parser)


def run(args: argparse.Namespace) -> int:
    name = args.subscription
    with gpuring.attach(args.name, owner=args.owner) as ring:
        before = find(ring, name)
        ring.subscribe(name, lossless=not args.lossy, start=args.start, patience=args.patience)
        now = find(ring, name)
    if now is None:  # somebody has ended it since
        raise CommandError(f"ring {args.name!r} has no subscription {name!r} any more")
    kind = "lossless" if now.lossless else "lossy"
    if before is None:
        done = f"subscribed {printable(name)} to {args.name}, {kind}, from sequence {now.start} on"
    else:
        since = "was durable already" if before.durable else "is durable now"
        done = f"subscription {printable(name)} of {args.name} {since}"
    print(f"{done}; {_who_waits(now)}")
    return 0


def find(ring: gpuring.Ring, subscription: str) -> SubscriptionStats | None:
    """The subscription of that name, if the ring has it."""
    return next((one for one in ring.stats().subscriptions if one.name == subscription), None)


def _who_waits(sub: SubscriptionStats) -> str:
    if not sub.lossless:
        return "producers do not wait for it"
    if sub.given_up:
        return "its patience is over, and producers wait again when somebody reads it"
    patience = "" if sub.patience_s is None else f" for up to {seconds(sub.patience_s)}"
    return f"producers wait{patience} while nobody reads it"
