"""Draw all rings and processes of this host as a graph: who writes which ring, and who reads it.

What is stuck is red, from the process that waits to the one that is to blame (`gpuring why`).  It
reads headers only, needs no GPU, joins nothing and changes nothing.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from gpuring.cli import top
from gpuring.cli.options import positive
from gpuring.cli.text import complain
from gpuring.cli.top.dot import svg
from gpuring.cli.top.graph import graph
from gpuring.cli.top.rates import look
from gpuring.cli.top.view import missing
from gpuring.registry import directory, segment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these rings (default: all)")
    parser.add_argument(
        "--interval",
        type=positive,
        default=1.0,
        metavar="S",
        help="seconds between two looks, over which rates are taken (default: 1)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--svg", metavar="FILE", help="write a picture (needs graphviz)")
    how.add_argument("--watch", action="store_true", help="stay, as `gpuring top` does after g")


def run(args: argparse.Namespace) -> int:
    if args.svg is None:
        once = not args.watch
        return top.show(args.command, args.names, args.interval, once=once, as_graph=True)
    for name in args.names:
        segment.check_name(name)
    before = look(args.names)
    time.sleep(args.interval)
    now = look(args.names)
    Path(args.svg).write_bytes(svg(graph(before, now)))
    absent = missing(now, args.names)
    for name in absent:
        complain(f"gpuring graph: {directory.not_found(name)}")
    return 1 if absent else 0
