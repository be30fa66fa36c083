"""Show who is in a ring, what each one holds and for how long, and what was done about the dead.

A peer is a producer or a consumer.  It has a number in the ring, and a label: what it was called
when it joined (label=), or else the name of its program.  This command reads the ring's header, and
if the ring is full also the headers of others.  It needs no GPU, joins nothing and changes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
from collections.abc import Iterable, Sequence

from gpuring.cli.services import Service, deaths, of_dead, service, service_of
from gpuring.cli.text import columns, nbytes, of_memory, seconds, table, wrap
from gpuring.memory.kinds import ON_HOST, OUTLIVE
from gpuring.printable import counted, printable
from gpuring.registry import directory, processes, segment, survey
from gpuring.registry.diagnosis import whose
from gpuring.registry.jams import Jam, named, of_full_rings
from gpuring.registry.stats import Death, PeerStats, RingStats, SubscriptionStats

MOST_HOLDS = 4  # of a peer, spelled out
MOST_MEMBERS = 4  # of a subscription; the table of peers has them all
SUBSCRIPTIONS = ("SUBSCRIPTION", "KIND", "START", "LAG", "LOST", "REOPENED", "MEMBERS")
PEERS = (
    *("PEER", "ROLE", "SUBSCRIPTION", "LABEL", "PID", "STATE", "JOINED", "FRAMES"),
    *("LOST", "TORN", "GPU PENDING", "HOLDS"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the ring's name")
    parser.add_argument("--json", action="store_true", help="print everything known, as JSON")


def run(args: argparse.Namespace) -> int:
    one = survey.collect(args.name, directory.look(segment.check_name(args.name)))
    if args.json:
        print(json.dumps(dataclasses.asdict(one), indent=2))
    else:
        others = []
        with contextlib.suppress(PermissionError):  # then the chain is shorter
            others = survey.ls() if one.in_the_way else []
        rings = [one, *(each for each in others if each.name != one.name)]
        print(describe(one, columns(), of_full_rings(rings).get(one.name)))
    return 0


def describe(one: RingStats, width: int | None = None, chain: Jam | None = None) -> str:
    """Everything that people ask about a ring, in lines of at most `width` columns.  `chain` is
    what its producers wait for."""
    created = datetime.datetime.fromtimestamp(one.created_ns / 1e9).isoformat(" ", "seconds")
    joinable = one.memory in ON_HOST or (one.memory in OUTLIVE and one.peers)
    dead = "dead" if joinable else "dead: nobody new can join"
    creator = "alive" if one.creator_alive else dead
    creator = "dead: an importer that came later has taken it over" if one.taken_over else creator
    whole = service(one)
    head = [
        f"{'ring' if whole is None else 'service'} {one.name}: {counted(one.slots, 'slot')} of "
        f"{nbytes(one.slot_nbytes)} {of_memory(one.memory, one.sync, one.gate)}"
        f"{', closed' if one.closed else ''}",
        f"created {created} by "
        f"{processes.told(one.creator_pid, one.creator_elsewhere)} ({creator}), "
        f"epoch {one.epoch[:8]}",
        f"next sequence {one.cursor}, {one.cursor - one.slots} claimed so far, "
        f"{counted(one.reaps, 'dead peer')} cleared",
    ]
    head += [line for line in (_of_producers(one), gpus(one), link(one), clock(one)) if line]
    head += [unregistered(peer) for peer in one.peers if peer.unregistered]
    if whole is not None:
        calls = f"{whole.calls}, {whole.waiting} of them not taken yet by an engine"
        head.append(f"{whole.members}; {calls}")
    elif (name := service_of(one.name)) is not None:
        head.append(f"one of the clients of service {name} gets its answers here")
    parts = ["\n".join(wrap(line, width, "  ") for line in head)]
    if one.subscriptions:
        parts.append(_subscriptions(one, width))
    if held_up := [line for sub in one.subscriptions if (line := far(sub))]:
        parts.append("\n".join(wrap(line, width, "  ") for line in held_up))
    parts.append(_peers(one, whole, width) if one.peers else "No process is in it now.")
    if died := deaths(one):
        parts.append("\n".join(wrap(death(each, one), width, "  ") for each in died))
    if waits := waiting(one, chain):
        parts.append(wrap(waits, width, "  "))
    return "\n\n".join(parts)


def far(sub: SubscriptionStats) -> str:
    """Who holds it up on the host to which a bridge carries its frames.  Else nothing."""
    if not sub.far:
        return ""
    return f"subscription {printable(sub.far)} over there holds up {printable(sub.name)}"


def waiting(one: RingStats, chain: Jam | None = None, *, dropped: bool = False) -> str:
    """Whom the producers of a full ring wait for, and whom these wait for.  Else nothing.
    `dropped`: they have just dropped frames."""
    if one.in_the_way is None:
        return ""
    if one.held_up:
        state = f"{'clients' if one.is_service else 'producers'} wait"
    elif dropped:
        state = f"{'requests' if one.is_service else 'frames'} are dropped"
    else:
        state = "the ring is full"
    further = [step.why for step in chain.steps[1:]] if chain else []
    if chain and further and (to_blame := chain.culprits[0].peers):
        state += f" because of {named(to_blame[0])}"
    told = [f"{state}: {one.in_the_way.why}", *(further or [one.in_the_way.way_out])]
    return ". ".join(filter(None, told))


def unregistered(peer: PeerStats) -> str:
    """What to say of a peer whose GPU does not reach the slots of a pinned ring."""
    return (
        f"peer {peer.number} waits for each of its copies: the slots are not registered with its "
        f"GPU, {peer.unregistered}"
    )


def gpus(one: RingStats) -> str:
    """Who is on which GPU, if some peer is on another one than the slots.  Else nothing."""
    on: dict[str, list[str]] = {}
    for peer in one.peers:
        on.setdefault(peer.gpu or "", []).append(str(peer.number))
    if {*on} <= {one.gpu or ""}:
        return ""
    used = ", ".join(
        f"{_using(peers)} GPU {uuid[:8]}" for uuid, peers in sorted(on.items()) if uuid
    )
    where = "in host memory" if one.memory in ON_HOST else f"on GPU {(one.gpu or '?')[:8]}"
    return f"its slots are {where}; {used}" if used else ""


def _using(numbers: Sequence[str]) -> str:
    """["1", "2", "5"] -> "peers 1, 2 and 5 use"."""
    if len(numbers) == 1:
        return f"peer {numbers[0]} uses"
    return f"peers {', '.join(numbers[:-1])} and {numbers[-1]} use"


def _of_producers(one: RingStats) -> str:
    """How far a stream of several producers is, and what they have dropped.  Else nothing."""
    told = []
    if one.producers_in_all > 1:
        gone = f"so far {one.producers_left} left and {one.producers_died} died"
        told.append(f"stream of {one.producers_in_all} producers, {gone}")
    if one.dropped and one.is_service:
        told.append(f"{counted(one.dropped, 'request')} dropped by clients that do not wait")
    elif one.dropped:
        told.append(f"{counted(one.dropped, 'frame')} dropped, because no slot was free")
    return "; ".join(told)


def link(one: RingStats) -> str:
    """Where the frames of a ring come from that a bridge fills.  Else nothing."""
    if one.link is None:
        return ""
    near = f"its frames come from ring {printable(one.link.ring)} of {printable(one.link.host)}"
    if not one.link.epoch:
        return f"{near}, and none has come yet"
    lost = f"; {one.link.lost} before it were lost" if one.link.lost else ""
    return f"{near}, up to its sequence {one.link.seq}{lost}"


def clock(one: RingStats) -> str:
    """What a bridge has measured of the other host's clock.  Else nothing."""
    if one.link is None or (its := one.link.clock) is None:
        return ""
    host, way = printable(one.link.host), "ahead of" if its.ahead_ns >= 0 else "behind"
    if not one.link.connected:
        return f"no connection to {host} for {seconds(one.link.heard_s or 0)}"
    return (
        f"round trip to {host} {seconds(2 * its.error_ns / 1e9)}; CLOCK_MONOTONIC there is "
        f"{abs(its.ahead_ns) / 1e9:.6f} s {way} this host's, within {seconds(its.error_ns / 1e9)}"
    )


def death(dead: Death, one: RingStats) -> str:
    """Who died in a ring, and what was done about it."""
    done = [
        f"{counted(count, noun)} {what}"
        for count, noun, what in (
            (dead.voided, "claim", "voided"),
            (dead.torn, "frame", "marked torn"),
            (dead.reopened, "frame", "taken from it"),
            (dead.raised, "fence", "raised"),
        )
        if count
    ]
    who = f"{of_dead(dead, one)} {dead.number} ({whose(dead.label, dead.pid)})"
    return f"{seconds(dead.age_s)} ago: {who} died; {', '.join(done) or 'it held nothing'}"


def _subscriptions(one: RingStats, width: int | None) -> str:
    rows = [
        (
            printable(sub.name),
            f"{'lossless' if sub.lossless else 'lossy'}{', durable' if sub.durable else ''}",
            "–" if sub.given_up else str(sub.start),
            str(sub.lag),
            str(sub.lost),
            str(sub.opened),
            _members(sub, one) if sub.members else _without_members(sub, one),
        )
        for sub in one.subscriptions
    ]
    right, drop = ("START", "LAG", "LOST", "REOPENED"), ("REOPENED", "START")
    return str(table(SUBSCRIPTIONS, rows, right=right, drop=drop, width=width))


def _members(sub: SubscriptionStats, one: RingStats) -> str:
    """ "peer 1 (recorder.py, pid 4711), peer 2 (recorder.py, pid 4712)"."""
    peers = {peer.number: peer for peer in one.peers}
    shown = [peers[number] for number in sub.members[:MOST_MEMBERS]]
    names = ", ".join(f"peer {peer.number} ({whose(peer.label, pid(peer))})" for peer in shown)
    more = len(sub.members) - len(shown)
    return f"{names} and {more} more" if more else names


def _without_members(sub: SubscriptionStats, one: RingStats) -> str:
    if one.closed and sub.durable:
        anew = ", with all of its patience" if sub.patience_s is not None else ""
        return f"none; the next ring takes it over{anew}"
    since = "" if sub.unread_s is None else f" for {seconds(sub.unread_s)}"
    if sub.patience_s is not None:
        since += f" (patience {seconds(sub.patience_s)})"
    return f"none{since}{', given up' if sub.given_up else ''}"


def _peers(one: RingStats, whole: Service | None, width: int | None) -> str:
    rows = [
        (
            str(peer.number),
            whole.kinds.get(peer.number, peer.role) if whole else peer.role,
            printable(peer.subscription or ""),
            printable(peer.label),
            pid(peer),
            peer_state(peer) if peer.alive else "DEAD, not cleared yet",
            seconds(peer.age_s),
            str(peer.frames),
            str(peer.lost),
            str(peer.torn),
            str(peer.pending),
            holding(peer),
        )
        for peer in one.peers
    ]
    right = ("PEER", "PID", "JOINED", "FRAMES", "LOST", "TORN", "GPU PENDING")
    drop = ("TORN", "JOINED", "GPU PENDING", "LOST", "FRAMES", "SUBSCRIPTION")
    shown = str(table(PEERS, rows, right=right, drop=drop, width=width))
    return "\n".join([shown, *elsewhere(one.peers)])


def pid(peer: PeerStats) -> str:
    """The pid that its process has here, or its own with a star, which `elsewhere` explains."""
    return f"{peer.pid}*" if peer.pid_here is None else str(peer.pid_here)


def elsewhere(peers: Iterable[PeerStats]) -> list[str]:
    """What the star of a pid says, if there is one."""
    return ["* of another pid namespace"] * any(peer.pid_here is None for peer in peers)


def peer_state(peer: PeerStats) -> str:
    """What its process does, in a word."""
    if not peer.alive:
        return "DEAD"
    if peer.stopped:
        return "stopped"
    return "waiting" if peer.waiting else "running"


def holding(peer: PeerStats) -> str:
    if not peer.holding:
        return "nothing"
    shown = [f"{hold.seq} for {seconds(hold.age_s)}" for hold in peer.holding[:MOST_HOLDS]]
    more = len(peer.holding) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
