"""End a durable subscription of a ring.

If it has readers, it goes with the last of them.  If it has none, it goes at once, and producers no
longer wait for it.  That of a bridge goes as soon as its importer is gone.
"""

from __future__ import annotations

import argparse

import gpuring
from gpuring.cli.options import add_owner
from gpuring.cli.subscribe import find
from gpuring.cli.text import counted
from gpuring.cli.trouble import CommandError
from gpuring.registry.subscriptions import is_read_elsewhere


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the ring's name")
    parser.add_argument("subscription", help="the name of the subscription")
    add_owner(parser)


def run(args: argparse.Namespace) -> int:
    with gpuring.attach(args.name, owner=args.owner) as ring:
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
    print(f"subscription {args.subscription} of {args.name} {done}")
    return 0
