"""Show all rings of this host, live: their peers, rates, lag and losses, and what each peer holds.

It reads the rings' headers only.  It needs no GPU, joins nothing and changes nothing.  In a
terminal, arrow keys, j, k, PgUp and PgDn scroll, and q or Ctrl-C ends it.  Into a pipe it prints
its tables once per interval.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from gpuring.cli.options import positive
from gpuring.cli.text import columns, complain
from gpuring.cli.trouble import need
from gpuring.deadlines import deadline_of, left_s
from gpuring.registry import segment

from .rates import Look, look
from .view import Widths, missing, render, window

if TYPE_CHECKING:
    from rich.console import Console

    from .keys import Keys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these rings (default: all)")
    parser.add_argument(
        "--interval",
        type=positive,
        default=1.0,
        metavar="S",
        help="seconds between two looks, over which rates are taken (default: 1)",
    )
    parser.add_argument("--once", action="store_true", help="print the tables once and end")


def run(args: argparse.Namespace) -> int:
    for name in args.names:
        segment.check_name(name)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal is to be given back
    try:
        if args.once or not sys.stdout.isatty():
            return _print(args)
        need("rich")
        from rich.console import Console

        from .keys import Keys

        console = Console(highlight=False)
        if console.is_dumb_terminal:
            return _print(args)
        with Keys() as keys:
            return _show(console, keys, args)
    except KeyboardInterrupt:
        return 0


def _print(args: argparse.Namespace) -> int:
    before = look(args.names)
    while True:
        time.sleep(args.interval)
        now = look(args.names)
        lines = render(before, now, args.names, width=columns(), absent=not args.once)
        if lines:
            print("\n".join(line.text for line in lines), flush=True)
        if args.once:
            absent = missing(now, args.names)
            for name in absent:
                complain(f"gpuring top: {segment.not_found(name)}")
            return 1 if absent else 0
        print(flush=True)
        before = now


def _show(console: Console, keys: Keys, args: argparse.Namespace) -> int:
    from rich.live import Live
    from rich.text import Text

    before: Look | None = None
    seen: tuple[int, Collection[str]] | None = None
    widths = Widths()
    first = 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            now = look(args.names)
            width, height = console.size
            if seen != (width, now.rings.keys()):
                seen, widths = (width, now.rings.keys()), Widths()
            lines = render(before, now, args.names, width=width, height=height, widths=widths)
            before = now
            until = deadline_of(args.interval)
            while True:
                shown, first = window(lines, first, height)
                live.update(
                    Text("\n").join(Text(each.text, each.style) for each in shown), refresh=True
                )
                pressed = keys.within(left_s(until))
                if not pressed:
                    break
                if "quit" in pressed:
                    return 0
                for key in pressed:
                    first = _moved(first, key, height, len(lines))


def _moved(first: int, key: str, height: int, lines: int) -> int:
    """The first line that a screen shows after a key.  `window` keeps it within the lines."""
    page = max(1, height - 2)
    steps = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -lines, "end": lines}
    return min(max(0, first + steps[key]), lines)
