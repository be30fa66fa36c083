"""End a durable subscription of a ring.

If it has readers, it goes with the last of them.  If it has none, it goes at once, and producers no
longer wait for it.  That of a bridge goes as soon as its importer is gone.  A ring that was closed
keeps its name for its durable subscriptions, and this ends those, too.
"""

from __future__ import annotations

import argparse
import contextlib

import gpuring
from gpuring import native
from gpuring.cli.options import add_owner
from gpuring.cli.subscribe import find
from gpuring.cli.trouble import CommandError
from gpuring.printable import counted, printable
from gpuring.registry import directory
from gpuring.registry.subscriptions import encode, is_read_elsewhere


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the ring's name")
    parser.add_argument("subscription", help="the name of the subscription")
    add_owner(parser)


def run(args: argparse.Namespace) -> int:
    named = printable(args.subscription)
    try:
        ring = gpuring.attach(args.name, owner=args.owner)
    except gpuring.RingNotFound:
        if not _has_ended_it_in_a_closed_ring(args):
            if _is_closed(args.name):
                raise CommandError(
                    f"ring {args.name!r}, which was closed, has no subscription "
                    f"{args.subscription!r}"
                ) from None
            raise
        print(f"subscription {named} of {args.name}, which was closed, has ended")
        return 0
    with ring:
        before = find(ring, args.subscription)
        if not ring.unsubscribe(args.subscription):
            raise CommandError(f"ring {args.name!r} has no subscription {args.subscription!r}")
        now = find(ring, args.subscription)
    if now is not None and is_read_elsewhere(args.subscription):
        done = "ends as soon as its importer is gone"
    elif now is not None:
        one = len(now.members) == 1
        done = f"ends when its {'' if one else 'last '}reader has left"
    elif before is not None and before.untaken:
        done = f"has ended, with {counted(before.untaken, 'frame')} that nobody has read for it"
    else:
        done = "has ended"
    print(f"subscription {named} of {args.name} {done}")
    return 0


def _has_ended_it_in_a_closed_ring(args: argparse.Namespace) -> bool:
    with contextlib.suppress(native.Missing):
        return directory.unsubscribe_closed(args.name, encode(args.subscription))
    return False


def _is_closed(name: str) -> bool:
    with contextlib.suppress(gpuring.RingError, native.Missing, OSError):
        return directory.read(name).closed
    return False
