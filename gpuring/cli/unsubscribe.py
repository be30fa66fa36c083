"""End a durable subscription of a ring.

If it has readers, it goes with the last of them.  If it has none, it goes at once, and producers no
longer wait for it.
"""

from __future__ import annotations

import argparse

import gpuring
from gpuring.cli.trouble import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the ring's name")
    parser.add_argument("subscription", help="the name of the subscription")


def run(args: argparse.Namespace) -> int:
    with gpuring.attach(args.name) as ring:
        if not ring.unsubscribe(args.subscription):
            raise CommandError(f"ring {args.name!r} has no subscription {args.subscription!r}")
    return 0
