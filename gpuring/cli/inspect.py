"""Show who is in a ring, what each holds and since when, lag and lost.

Reads the header only: it joins nothing, changes nothing and works without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json

from gpuring import directory, segment, stats
from gpuring.cli.text import nbytes, seconds, table
from gpuring.stats import Death, PeerStats, RingStats

MOST_HOLDS = 4  # of a peer, spelled out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the ring's name")
    parser.add_argument("--json", action="store_true", help="everything that is known, as JSON")


def run(args: argparse.Namespace) -> int:
    one = stats.collect(args.name, directory.look(segment.check_name(args.name)))
    print(json.dumps(dataclasses.asdict(one), indent=2) if args.json else describe(one))
    return 0


def describe(one: RingStats) -> str:
    created = datetime.datetime.fromtimestamp(one.created_ns / 1e9).isoformat(" ", "seconds")
    dead = "dead" if one.memory == "host" else "dead: nobody new can join"
    creator = "alive" if one.creator_alive else dead
    lines = [
        f"ring {one.name}: {one.slots} slots of {nbytes(one.slot_nbytes)} in {one.memory} memory, "
        f"sync {one.sync}, gate {one.gate}{', closed' if one.closed else ''}",
        f"created {created} by pid {one.creator_pid} ({creator}), epoch {one.epoch[:8]}",
        f"next sequence {one.cursor}, {one.cursor - one.slots} claimed so far, "
        f"{one.reaps} dead peers cleared",
        "",
    ]
    if one.subscriptions:
        lines += [_subscriptions(one), ""]
    lines.append(_peers(one) if one.peers else "no peers")
    if one.deaths:
        lines += ["", *map(death, one.deaths)]
    return "\n".join(lines)


def death(one: Death) -> str:
    done = [
        f"{count} {what}"
        for count, what in (
            (one.voided, "claims voided"),
            (one.torn, "frames marked torn"),
            (one.reopened, "frames taken from it"),
            (one.raised, "fences raised"),
        )
        if count
    ]
    return (
        f"{seconds(one.age_s)} ago: {one.role} {one.number} (pid {one.pid}) died; "
        f"{', '.join(done) or 'it held nothing'}"
    )


def _subscriptions(one: RingStats) -> str:
    rows = [
        (
            sub.name,
            "lossless" if sub.lossless else "lossy",
            str(sub.start),
            str(sub.lag),
            str(sub.lost),
            str(sub.opened),
            ", ".join(map(str, sub.members)) or "none",
        )
        for sub in one.subscriptions
    ]
    headings = ("SUBSCRIPTION", "KIND", "START", "LAG", "LOST", "REOPENED", "MEMBERS")
    return table(headings, rows, right={2, 3, 4, 5})


def _peers(one: RingStats) -> str:
    rows = [
        (
            str(peer.number),
            peer.role,
            peer.subscription or "",
            str(peer.pid),
            _state(peer),
            seconds(peer.age_s),
            str(peer.frames),
            str(peer.lost),
            str(peer.torn),
            str(peer.pending),
            holding(peer),
        )
        for peer in one.peers
    ]
    headings = (
        *("PEER", "ROLE", "SUBSCRIPTION", "PID", "STATE", "JOINED", "FRAMES"),
        *("LOST", "TORN", "GPU PENDING", "HOLDS"),
    )
    return table(headings, rows, right={0, 3, 5, 6, 7, 8, 9})


def _state(peer: PeerStats) -> str:
    if not peer.alive:
        return "DEAD, not cleared yet"
    return "waiting" if peer.waiting else "running"


def holding(peer: PeerStats) -> str:
    if not peer.holding:
        return "nothing"
    shown = [f"{hold.seq} for {seconds(hold.age_s)}" for hold in peer.holding[:MOST_HOLDS]]
    more = len(peer.holding) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
