"""List the rings of this host.

It reads the rings' headers only.  It needs no GPU and joins no ring.  Rings of other users are
listed, too, where they may be read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from gpuring import directory, segment
from gpuring.cli.owners import explained, myself, owner
from gpuring.cli.text import columns, nbytes, printable, table, wrap
from gpuring.stats import RingStats

HEADINGS = (
    *("NAME", "OWNER", "MEMORY", "SYNC", "SLOTS", "SLOT", "CLAIMED", "PRODUCERS", "CONSUMERS"),
    "STATE",
)
RIGHT = ("SLOTS", "SLOT", "CLAIMED", "PRODUCERS", "CONSUMERS")
DROP = ("SYNC", "MEMORY", "SLOT", "CLAIMED", "SLOTS", "CONSUMERS", "PRODUCERS")
"""Where the table is too wide, the first of these go first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print everything known, as JSON")


def run(args: argparse.Namespace) -> int:
    found, unreadable = directory.survey()
    if args.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
        return 0
    if not found and not unreadable:
        print(f"No rings on this host (in {segment.SHM})")
        return 0
    owners = {name: owner(name) for name in (*(one.name for one in found), *unreadable)}
    rows = [_row(one, owners[one.name]) for one in found]
    rows += [(printable(name), owners[name], *["?"] * 7, "unreadable") for name in unreadable]
    width = columns()
    drop = DROP if set(owners.values()) - {myself()} else ("OWNER", *DROP)
    print(table(HEADINGS, rows, right=RIGHT, drop=drop, width=width))
    for line in explained(unreadable):
        print(wrap(line, width, "  "))
    if any(one.state == "dead" for one in found):
        note = "No process uses a dead ring any more: `gpuring clean` removes your own."
        print(wrap(note, width, "  "))
    return 0


def _row(one: RingStats, owner: str) -> tuple[str, ...]:
    producers = len(one.producers)
    return (
        one.name,
        owner,
        one.memory,
        one.sync,
        str(one.slots),
        nbytes(one.slot_nbytes),
        str(one.cursor - one.slots),
        str(producers),
        str(len(one.peers) - producers),
        state(one),
    )


def state(one: RingStats) -> str:
    """In a few words, what a person wants to know first."""
    stopped = sum(peer.stopped for peer in one.peers)
    return f"{one.state}, {stopped} stopped" if stopped else one.state
