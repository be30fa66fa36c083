"""What `gpuring top` shows: lines of text, some of them in a colour."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from gpuring.cli.inspect import death, elsewhere, gpus, peer_state, pid, waiting
from gpuring.cli.ls import state
from gpuring.cli.owners import explained, myself
from gpuring.cli.services import deaths, service
from gpuring.cli.text import nbytes, seconds, table, wrap
from gpuring.printable import counted, printable
from gpuring.registry.stats import PeerStats, RingStats, SubscriptionStats

from .lines import Line, single
from .rates import NONE, Look, drops, frames_per_s, peer_per_s, rate

RINGS = (
    *("RING", "OWNER", "MEMORY", "SYNC", "SLOTS", "SLOT", "CLAIMED", "1/S", "BYTES/S", "DROPPED"),
    *("PEERS", "STATE"),
)
RINGS_RIGHT = ("SLOTS", "SLOT", "CLAIMED", "1/S", "BYTES/S", "DROPPED", "PEERS")
RINGS_DROP = ("SYNC", "MEMORY", "CLAIMED", "SLOT", "SLOTS", "BYTES/S")
"""Where there is too little room, the first of these go first."""
PEERS = (
    *("PEER", "KIND", "PID", "LABEL", "SUBSCRIPTION", "STATE", "FRAMES", "1/S"),
    *("LAG", "LOST", "LOST/S", "TORN", "GPU", "HOLDS"),
)
PEERS_RIGHT = ("PEER", "PID", "FRAMES", "1/S", "LAG", "LOST", "LOST/S", "TORN", "GPU")
PEERS_DROP = ("TORN", "PEER", "LOST/S", "GPU", "FRAMES", "HOLDS", "STATE", "LABEL", "LOST")
TROUBLE_DROP = ("TORN", "PEER", "LOST/S", "GPU", "FRAMES", "HOLDS", "1/S", "LABEL", "LOST")
"""Where a peer is stopped or dead, its state stays.  What is held and waited for is told in the
line of its ring, too."""
_HOLDS_WIDTH = 18  # as it mostly is: columns shall not come and go with what a peer holds
DEATHS_SHOWN = 4  # of each ring
_LATELY_S = 60.0
"""Deaths within this time are shown above the peers."""


@dataclass
class Widths:
    """How wide the columns have been so far.  They become no narrower on the same screen."""

    rings: dict[str, int] = field(default_factory=dict)
    peers: dict[str, int] = field(default_factory=dict)


def render(
    before: Look | None,
    now: Look,
    names: Collection[str] = (),
    *,
    width: int | None = None,
    absent: bool = True,
    height: int | None = None,
    widths: Widths | None = None,
) -> list[Line]:
    """Rings, who died lately in them, their peers, earlier deaths, and, if `absent`, which of the
    rings that were asked for by `names` are not there and will be looked for again.  Rates need a
    look before.

    Where that takes more than `height` lines, rings that nobody has joined are only counted."""
    widths = widths or Widths()
    lines = single(_rendered(before, now, names, width, absent, widths))
    if height is None or len(lines) <= height:
        return lines
    idle = [name for name, one in now.rings.items() if not (one.peers or one.subscriptions)]
    if len(idle) > 1:
        lines = single(_rendered(before, now, names, width, absent, widths, idle))
    return lines


def _rendered(
    before: Look | None,
    now: Look,
    names: Collection[str],
    width: int | None,
    absent: bool,
    widths: Widths,
    idle: Collection[str] = (),
) -> list[Line]:
    lines = waited_for(now, names) if absent else []
    if now.rings or now.unreadable:
        lines += [Line("")] if lines else []
        lines += _rings(before, now, width, widths, idle)
    elif not names:
        lines.append(Line("No rings on this host"))
    lately, earlier = _deaths(before, now, width)
    lines += lately
    if any(one.peers or one.subscriptions for one in now.rings.values()):
        lines += [Line(""), *_peers(before, now, width, widths)]
    return [*lines, Line(""), *earlier] if earlier else lines


def _deaths(before: Look | None, now: Look, width: int | None) -> tuple[list[Line], list[Line]]:
    """The last deaths in each ring: those of lately, and earlier ones."""
    lately, earlier = [], []
    for name, one in _in_order(before, now):
        for dead in deaths(one)[:DEATHS_SHOWN]:
            told = wrap(f"{name}: {death(dead, one)}", width, "  ")
            if dead.age_s < _LATELY_S:
                lately.append(Line(told, "red"))
            else:
                earlier.append(Line(told))
    return lately, earlier


def _lacks_slots(before: Look | None, now: Look, name: str) -> bool:
    """Whether producers wait for a slot, or drop frames for want of one."""
    return now.rings[name].held_up or drops(before, now, name)


def _in_order(before: Look | None, now: Look) -> list[tuple[str, RingStats]]:
    """Rings whose producers wait or drop frames come first, then those with the stopped or dead."""

    def rank(each: tuple[str, RingStats]) -> int:
        name, one = each
        if _lacks_slots(before, now, name):
            return 0
        gone = one.state in ("creator dead", "dead")
        return 1 if gone or any(peer.stopped or not peer.alive for peer in one.peers) else 2

    return sorted(now.rings.items(), key=rank)


def _peers_in_order(one: RingStats, lacks_slots: bool) -> list[PeerStats]:
    """First those that others wait for, and the stopped and the dead, then producers that wait."""
    waited_for = one.in_the_way.peers if one.in_the_way and lacks_slots else ()

    def rank(peer: PeerStats) -> int:
        if peer.number in waited_for or peer.stopped or not peer.alive:
            return 0
        return 1 if one.held_up and peer.role == "producer" and peer.waiting else 2

    return sorted(one.peers, key=rank)


def missing(now: Look, names: Collection[str]) -> list[str]:
    """The rings that were asked for and are not there."""
    return [name for name in names if name not in now.rings and name not in now.unreadable]


def waited_for(now: Look, names: Collection[str]) -> list[Line]:
    """The same in lines."""
    told = "No ring named {!r} on this host; waiting for it"
    return [Line(told.format(name), "yellow") for name in missing(now, names)]


def _rings(
    before: Look | None,
    now: Look,
    width: int | None,
    widths: Widths,
    idle: Collection[str],
) -> list[Line]:
    rows: list[tuple[str, ...]] = []
    styles: list[str] = []
    for name, one in _in_order(before, now):
        if name in idle:
            continue
        pace = frames_per_s(before, now, name)
        speed = NONE if pace is None else nbytes(round(pace * one.slot_nbytes))
        rows.append(
            (
                *(name, now.owners[name], one.memory, one.sync, str(one.slots)),
                *(nbytes(one.slot_nbytes), str(one.cursor - one.slots), rate(pace), speed),
                *(str(one.dropped), str(len(one.peers)), state(one)),
            )
        )
        styles.append("" if one.creator_alive else "red")
    for name in now.unreadable:
        rows.append((printable(name), now.owners[name], *["?"] * (len(RINGS) - 3), "unreadable"))
        styles.append("red")
    drop = RINGS_DROP if set(now.owners.values()) - {myself()} else ("OWNER", *RINGS_DROP)
    laid = table(RINGS, rows, right=RINGS_RIGHT, drop=drop, width=width, least=widths.rings)
    left_out = [f"{counted(len(idle), 'ring')} that nobody has joined"] if idle else []
    if now.clients:
        left_out += [f"{counted(now.clients, 'ring')} in which clients of services get answers"]
    reasons = [Line(wrap(why, width, "  "), "red") for why in explained(now.unreadable)]
    return [
        Line(laid.head, "bold"),
        *map(Line, laid.rows, styles),
        *(Line(wrap(f"({each})", width, "  "), "dim") for each in left_out),
        *(Line(note, "dim") for note in laid.note()),
        *reasons,
    ]


def _peers(before: Look | None, now: Look, width: int | None, widths: Widths) -> list[Line]:
    """One table for all, so that its columns stand under each other; a line names each ring."""
    rows: list[tuple[str, ...]] = []
    styles: list[str] = []
    starts: dict[int, str] = {}
    for name, one in _in_order(before, now):
        if of_ring := _peers_of(before, now, name, one):
            dropped = drops(before, now, name)
            chain = now.chains.get(name)
            why = waiting(one, chain, dropped=dropped) if one.held_up or dropped else ""
            starts[len(rows)] = f"{name}: {why or _members(one)}"
        rows += [row for row, _ in of_ring]
        styles += [style for _, style in of_ring]
    drop = TROUBLE_DROP if "red" in styles else PEERS_DROP
    laid = table(PEERS, rows, right=PEERS_RIGHT, drop=drop, width=width, least=widths.peers)
    lines = [Line(laid.head, "bold")]
    for at, (text, style) in enumerate(zip(laid.rows, styles, strict=True)):
        if at in starts:
            lines.append(Line(wrap(starts[at], width, "  "), "bold"))
        lines.append(Line(text, style))
    on_gpus = [f"{name}: {told}" for name, one in now.rings.items() if (told := gpus(one))]
    lines += [Line(wrap(told, width, "  "), "dim") for told in on_gpus]
    notes = [*laid.note(), *elsewhere(peer for one in now.rings.values() for peer in one.peers)]
    return [*lines, *(Line(note, "dim") for note in notes)]


def _peers_of(
    before: Look | None, now: Look, name: str, one: RingStats
) -> list[tuple[tuple[str, ...], str]]:
    subscriptions = {sub.name: sub for sub in one.subscriptions}
    rows: list[tuple[tuple[str, ...], str]] = []
    whole = service(one)
    kinds = whole.kinds if whole else {}
    for peer in _peers_in_order(one, _lacks_slots(before, now, name)):
        if kinds.get(peer.number) == "presence":
            continue
        paces = peer_per_s(before, now, name, peer)
        sub = subscriptions.get(peer.subscription or "")
        row: tuple[str, ...] = (
            *(
                str(peer.number),
                kinds.get(peer.number) or _kind(peer, sub),
                pid(peer),
                printable(peer.label),
                printable(sub.name) if sub else NONE,
            ),
            *(peer_state(peer), str(peer.frames), rate(paces and paces[0]), _lag(one, sub)),
            *(str(peer.lost), rate(paces and paces[1]), str(peer.torn), str(peer.pending)),
            _holds(peer),
        )
        rows.append((row, "red" if peer.stopped or not peer.alive else ""))
    for sub in one.subscriptions:
        if not sub.members:
            row = (NONE, _kind(None, sub), NONE, NONE, printable(sub.name), "nobody", NONE, NONE)
            row += (_lag(one, sub), str(sub.lost), *[NONE] * 3, "nothing")
            rows.append((row, "yellow"))
    return rows


def _members(one: RingStats) -> str:
    """Who is there, in words."""
    if (whole := service(one)) is not None:
        return whole.members
    consumers = len(one.peers) - len(one.producers)
    told = [(len(one.producers), "producer"), (consumers, "consumer")]
    return " and ".join(counted(n, what) if n else f"no {what}" for n, what in told)


def _kind(peer: PeerStats | None, sub: SubscriptionStats | None) -> str:
    if sub is not None:
        return "lossless" if sub.lossless else "lossy"
    return peer.role if peer else NONE


def _lag(one: RingStats, sub: SubscriptionStats | None) -> str:
    """For a lossless subscription N/N means that producers wait for it."""
    return NONE if sub is None else f"{sub.lag}/{one.slots}"


def _holds(peer: PeerStats) -> str:
    """The oldest; `gpuring inspect` spells out more."""
    if not peer.holding:
        return "nothing".ljust(_HOLDS_WIDTH)
    oldest = max(peer.holding, key=lambda hold: hold.age_s)
    more = len(peer.holding) - 1
    text = f"{oldest.seq} for {seconds(oldest.age_s)}" + (f" and {more} more" if more else "")
    return text.ljust(_HOLDS_WIDTH)
