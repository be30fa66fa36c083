"""List the rings of this host.  Reads headers only: it needs no GPU and joins nothing."""

from __future__ import annotations

import argparse
import dataclasses
import json

from gpuring import directory, segment
from gpuring.cli.text import nbytes, table
from gpuring.stats import RingStats

HEADINGS = ("NAME", "MEMORY", "SYNC", "SLOTS", "SLOT", "CURSOR", "PRODUCERS", "READERS", "STATE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="everything that is known, as JSON")


def run(args: argparse.Namespace) -> int:
    found, unreadable = directory.survey()
    if args.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
        return 0
    rows = [_row(one) for one in found]
    rows += [(name, *["?"] * 7, "unreadable") for name in unreadable]
    if rows:
        print(table(HEADINGS, rows, right={3, 4, 5, 6, 7}))
    else:
        print(f"no rings in {segment.SHM}")
    return 0


def _row(one: RingStats) -> tuple[str, ...]:
    producers = len(one.producers)
    return (
        one.name,
        one.memory,
        one.sync,
        str(one.slots),
        nbytes(one.slot_nbytes),
        str(one.cursor),
        str(producers),
        str(len(one.peers) - producers),
        state(one),
    )


def state(one: RingStats) -> str:
    """In a word or two, what a person wants to know first."""
    alive = any(peer.alive for peer in one.peers)
    if not one.creator_alive:
        return "creator dead" if alive else "all dead: gpuring clean"
    return "closed" if one.closed else "open"
