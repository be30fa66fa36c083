"""Show all rings of this host, live: their peers, rates, lag and losses, and what each peer holds.

It reads the rings' headers only.  It needs no GPU, joins nothing and changes nothing.  In a
terminal, g shows the graph of who waits for whom, and g again the tables.  Arrow keys, j, k, PgUp
and PgDn scroll, and q or Ctrl-C ends it.  If its output goes into a pipe, it prints the tables once
per interval.
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
from gpuring.registry import directory, segment

from .graph import graph
from .lines import window
from .rates import Look, look
from .rows import rows
from .view import Widths, missing, render, waited_for

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
    return show(args.command, args.names, args.interval, once=args.once)


def show(
    command: str, names: Collection[str], interval: float, *, once: bool, as_graph: bool = False
) -> int:
    """Shows these rings, or all, until it is ended: as tables, or as a graph."""
    for name in names:
        segment.check_name(name)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal is to be given back
    try:
        if once or not sys.stdout.isatty():
            return _print(command, names, interval, once, as_graph)
        need("rich")
        from rich.console import Console

        from .keys import Keys

        console = Console(highlight=False)
        if console.is_dumb_terminal:
            return _print(command, names, interval, once, as_graph)
        with Keys() as keys:
            return _show(console, keys, names, interval, as_graph)
    except KeyboardInterrupt:
        return 0


def _print(
    command: str, names: Collection[str], interval: float, once: bool, as_graph: bool
) -> int:
    before = look(names)
    while True:
        time.sleep(interval)
        now = look(names)
        if as_graph:
            lines = [] if once else waited_for(now, names)
            lines += rows(graph(before, now), columns()) if now.rings or not names else []
        else:
            lines = render(before, now, names, width=columns(), absent=not once)
        if lines:
            print("\n".join(line.text for line in lines), flush=True)
        if once:
            absent = missing(now, names)
            for name in absent:
                complain(f"gpuring {command}: {directory.not_found(name)}")
            return 1 if absent else 0
        print(flush=True)
        before = now


def _show(
    console: Console, keys: Keys, names: Collection[str], interval: float, as_graph: bool
) -> int:
    from rich.live import Live
    from rich.text import Text

    before: Look | None = None
    now: Look | None = None
    seen: tuple[int, Collection[str]] | None = None
    widths = Widths()
    first = 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            before, now = now, look(names)
            until = deadline_of(interval)
            width, height = console.size
            if seen != (width, now.rings.keys()):
                seen, widths = (width, now.rings.keys()), Widths()
            tables = render(before, now, names, width=width, height=height, widths=widths)
            picture = waited_for(now, names) + rows(graph(before, now), width)
            while True:
                lines = picture if as_graph else tables
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
                    if key == "graph":
                        as_graph, first = not as_graph, 0
                    else:
                        first = _moved(first, key, height, len(lines))


def _moved(first: int, key: str, height: int, lines: int) -> int:
    """The first line that a screen shows after a key.  `window` keeps it within the lines."""
    page = max(1, height - 2)
    steps = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -lines, "end": lines}
    return min(max(0, first + steps[key]), lines)
