"""Make a durable subscription of a ring: producers wait for its readers, also while none is there.

A consumer that joins it goes on at the frame after the last one that was released.  `gpuring
unsubscribe` ends it.
"""

from __future__ import annotations

import argparse

import gpuring
from gpuring.cli.options import positive


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


def run(args: argparse.Namespace) -> int:
    with gpuring.attach(args.name) as ring:
        ring.subscribe(
            args.subscription, lossless=not args.lossy, start=args.start, patience=args.patience
        )
    return 0
