"""All rings of this host, live: peers, rates, lag, lost, who holds what for how long.

Reads headers only: it joins nothing, changes nothing and works without a GPU.  q or Ctrl-C ends it.
Into a pipe it prints one table an interval.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import TYPE_CHECKING

from gpuring.cli.options import positive
from gpuring.cli.trouble import need

if TYPE_CHECKING:
    from rich.console import Console

    from .keys import Keys
    from .rates import Look

WIDE = 400
"""Columns of a table that nobody has to fit on a screen."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these rings (default: all)")
    parser.add_argument(
        "--interval",
        type=positive,
        default=1.0,
        metavar="S",
        help="seconds between two looks, over which rates are taken (default: 1)",
    )
    parser.add_argument("--once", action="store_true", help="print one table and end")


def run(args: argparse.Namespace) -> int:
    need("rich")
    from rich.console import Console

    from .keys import Keys

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal is to be given back
    console = Console(highlight=False)
    live = console.is_terminal and not console.is_dumb_terminal
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDE)
    try:
        if args.once or not live:
            return _print(console, args)
        with Keys() as keys:
            return _show(console, keys, args)
    except KeyboardInterrupt:
        return 0


def _print(console: Console, args: argparse.Namespace) -> int:
    from .rates import look
    from .view import render

    before = look(args.names)
    while True:
        time.sleep(args.interval)
        now = look(args.names)
        console.print(render(before, now))
        sys.stdout.flush()
        if args.once:
            return 0
        console.print()
        before = now


def _show(console: Console, keys: Keys, args: argparse.Namespace) -> int:
    from rich.live import Live

    from .rates import look
    from .view import render

    before: Look | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            now = look(args.names)
            live.update(render(before, now), refresh=True)
            before = now
            if keys.quit_within(args.interval):
                return 0
