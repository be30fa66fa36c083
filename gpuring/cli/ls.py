"""List the rings and services of this host.

It reads the rings' headers only.  It needs no GPU and joins no ring.  Rings of other users are
listed, too, where they may be read.  A service is listed as its ring of requests: its producers are
the clients, and its consumers the engines.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuring.cli.durable import keeps_its_name
from gpuring.cli.owners import explained, listed, myself, owner
from gpuring.cli.services import gone_service, of_clients, service
from gpuring.cli.text import columns, complain, nbytes, table, wrap
from gpuring.printable import counted, printable
from gpuring.registry import directory, segment, survey
from gpuring.registry.jams import key_of, named
from gpuring.registry.stats import PeerStats, RingStats
from gpuring.registry.users import told, users

HEADINGS = (
    *("NAME", "OWNER", "MEMORY", "SYNC", "SLOTS", "SLOT", "CLAIMED", "PRODUCERS", "CONSUMERS"),
    "STATE",
)
RIGHT = ("SLOTS", "SLOT", "CLAIMED", "PRODUCERS", "CONSUMERS")
DROP = ("SYNC", "MEMORY", "SLOT", "CLAIMED", "SLOTS", "CONSUMERS", "PRODUCERS")
"""Where the table is too wide, the first of these go first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these rings (default: all)")
    parser.add_argument(
        "--all", action="store_true", help="also list the rings in which clients get answers"
    )
    parser.add_argument("--json", action="store_true", help="print everything known, as JSON")


def run(args: argparse.Namespace) -> int:
    asked = {segment.check_name(name) for name in args.names}
    found, unreadable = survey.all_rings()
    if asked:
        found = [one for one in found if one.name in asked]
        unreadable = {name: why for name, why in unreadable.items() if name in asked}
    if args.json:
        print(json.dumps([*map(dataclasses.asdict, found), *_unreadable(unreadable)], indent=2))
    elif found or unreadable:
        _show(found, unreadable, all_of_them=args.all or bool(asked))
    elif not asked:
        print(f"No rings on this host (in {segment.SHM})")
    absent = asked - {one.name for one in found} - unreadable.keys()
    for name in sorted(absent):
        complain(f"gpuring ls: {directory.not_found(name)}")
    return 1 if absent else 0


def _show(found: Sequence[RingStats], unreadable: Mapping[str, str], *, all_of_them: bool) -> None:
    clients = of_clients(found)
    owners = {name: owner(name) for name in (*(one.name for one in found), *unreadable)}
    shown = [one for one in found if all_of_them or one.name not in clients]
    rows = [_row(one, owners[one.name], clients.get(one.name)) for one in shown]
    unknown = ["?"] * (len(HEADINGS) - 3)  # as in top
    rows += [(printable(name), owners[name], *unknown, "unreadable") for name in unreadable]
    width = columns()
    drop = DROP if set(owners.values()) - {myself()} else ("OWNER", *DROP)
    print(table(HEADINGS, rows, right=RIGHT, drop=drop, width=width))
    if len(shown) < len(found):
        rings = counted(len(clients), "ring")
        note = f"Not listed: {rings} in which clients of services get answers (--all)."
        print(wrap(note, width, "  "))
    for line in explained(unreadable):
        print(wrap(line, width, "  "))
    for name, known in users(unreadable).items():
        print(wrap(f"{printable(name)} is used by {told(known)}.", width, "  "))
    for together, processes in _where_stopped(shown).items():
        print(wrap(f"Stopped in {listed(together)}: {listed(processes)}.", width, "  "))
    for kept in filter(None, map(keeps_its_name, found)):
        print(wrap(f"{kept}.", width, "  "))
    if any(one.state == "dead" for one in found):
        note = "No process uses a dead ring any more: `gpuring clean NAME` removes one of yours."
        print(wrap(note, width, "  "))


def _unreadable(reasons: Mapping[str, str]) -> Iterator[dict[str, object]]:
    """What is known of rings that cannot be read.  Scripts wait until none is there."""
    known = users(reasons)
    for name, why in reasons.items():
        pids = [*known.get(name, ())]
        yield {"name": name, "owner": owner(name), "unreadable": why, "used_by": pids}


def _row(one: RingStats, owner: str, of: str | None) -> tuple[str, ...]:
    producers, consumers = len(one.producers), len(one.peers) - len(one.producers)
    if (whole := service(one)) is not None:
        producers, consumers = whole.count("client"), whole.count("engine")
    return (
        one.name,
        owner,
        one.memory,
        one.sync,
        str(one.slots),
        nbytes(one.slot_nbytes),
        str(one.cursor - one.slots),
        str(producers),
        str(consumers),
        state(one) + (f", answers of {of}" if of else _of_gone(one)),
    )


def _of_gone(one: RingStats) -> str:
    of = gone_service(one)
    return f", answers of {of}, which is gone" if of else ""


def state(one: RingStats) -> str:
    """In a few words, what a person wants to know first."""
    whole, stopped = service(one), _stopped(one)
    parts = [one.state, *([f"{len(stopped)} stopped"] if stopped else [])]
    if whole is not None:
        parts.append(f"service, {whole.calls}")
    return ", ".join(parts)


def _stopped(one: RingStats) -> list[PeerStats]:
    """Its processes that are stopped.  An engine is two peers."""
    whole = service(one)
    second = [number for number, kind in whole.kinds.items() if kind == "presence"] if whole else []
    return [peer for peer in one.peers if peer.stopped and peer.number not in second]


def _where_stopped(shown: Iterable[RingStats]) -> dict[tuple[str, ...], list[str]]:
    """Stopped processes, by the rings in which they are."""
    places: dict[object, list[tuple[str, PeerStats]]] = {}
    for one in shown:
        for peer in _stopped(one):
            places.setdefault(key_of(peer), []).append((one.name, peer))
    alike: dict[tuple[str, ...], list[str]] = {}
    for found in places.values():
        rings = tuple(dict.fromkeys(name for name, _ in found))
        alike.setdefault(rings, []).append(named(found[0][1]))
    return alike
