"""What `gpuring top` shows, as rich tables."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpuring.cli.inspect import death, holding
from gpuring.cli.ls import state
from gpuring.cli.text import nbytes, printable
from gpuring.stats import PeerStats, RingStats, SubscriptionStats

from .rates import Look, claimed_per_s, peer_per_s

NONE = "–"
RINGS = ("RING", "MEMORY", "SYNC", "SLOTS", "SLOT", "CLAIMED", "1/S", "BYTES/S", "PEERS", "STATE")
PEERS = (
    *("RING", "PEER", "ROLE", "SUBSCRIPTION", "KIND", "PID", "STATE", "FRAMES", "1/S"),
    *("LAG", "LOST", "LOST/S", "TORN", "GPU", "HOLDS"),
)
DEATHS_SHOWN = 4  # of each ring


def render(before: Look | None, now: Look) -> RenderableType:
    """Rings, their peers, the last deaths.  Rates need a look before."""
    if not now.rings and not now.unreadable:
        return Text("no rings")
    parts: list[RenderableType] = [_rings(before, now)]
    peers = _table(
        PEERS, right={"PEER", "PID", "FRAMES", "1/S", "LAG", "LOST", "LOST/S", "TORN", "GPU"}
    )
    for name, one in now.rings.items():
        for row, style in _peers(before, now, name, one):
            peers.add_row(*map(Text, row), style=style)
    if peers.row_count:
        parts += [Text(), peers]
    deaths = [
        Text(f"{name}: {death(one_death)}", style="red" if one_death.age_s < 60 else "dim")
        for name, one in now.rings.items()
        for one_death in one.deaths[:DEATHS_SHOWN]
    ]
    if deaths:
        parts += [Text(), *deaths]
    return Group(*parts)


def _rings(before: Look | None, now: Look) -> Table:
    table = _table(RINGS, right={"SLOTS", "SLOT", "CLAIMED", "1/S", "BYTES/S", "PEERS"})
    for name, one in now.rings.items():
        rate = claimed_per_s(before, now, name)
        row: tuple[str, ...] = (
            *(name, one.memory, one.sync, str(one.slots), nbytes(one.slot_nbytes)),
            *(str(one.cursor - one.slots), _rate(rate)),
            NONE if rate is None else nbytes(round(rate * one.slot_nbytes)),
            *(str(len(one.peers)), state(one)),
        )
        table.add_row(*map(Text, row), style="" if one.creator_alive else "red")
    for name, why in now.unreadable.items():
        row = (printable(name), *["?"] * 8, f"unreadable: {_reason(why)}")
        table.add_row(*map(Text, row), style="red")
    return table


def _reason(why: str) -> str:
    """The first clause, without the path that the name has told already."""
    return printable(why.split("gpuring: ", 1)[-1].split(". ", 1)[0])


def _peers(
    before: Look | None, now: Look, name: str, one: RingStats
) -> list[tuple[tuple[str, ...], str]]:
    subscriptions = {sub.name: sub for sub in one.subscriptions}
    rows: list[tuple[tuple[str, ...], str]] = []
    for peer in one.peers:
        paces = peer_per_s(before, now, name, peer)
        sub = subscriptions.get(peer.subscription or "")
        row: tuple[str, ...] = (
            *(name, str(peer.number), peer.role),
            *_subscription(one, sub),
            *(str(peer.pid), _state(peer), str(peer.frames), _rate(paces and paces[0])),
            _lag(one, sub),
            *(str(peer.lost), _rate(paces and paces[1]), str(peer.torn), str(peer.pending)),
            holding(peer),
        )
        rows.append((row, "" if peer.alive else "red"))
    for sub in one.subscriptions:
        if not sub.members:
            row = (name, NONE, "nobody", *_subscription(one, sub), *[NONE] * 4)
            row += (_lag(one, sub), str(sub.lost), *[NONE] * 3, "nothing")
            rows.append((row, "yellow"))
    return rows


def _subscription(one: RingStats, sub: SubscriptionStats | None) -> tuple[str, str]:
    if sub is None:
        return NONE, NONE
    return printable(sub.name), "lossless" if sub.lossless else "lossy"


def _lag(one: RingStats, sub: SubscriptionStats | None) -> str:
    """Of a lossless subscription N/N means: the producers wait for it."""
    return NONE if sub is None else f"{sub.lag}/{one.slots}"


def _state(peer: PeerStats) -> str:
    if not peer.alive:
        return "DEAD"
    return "waiting" if peer.waiting else "running"


def _rate(per_s: float | None) -> str:
    if per_s is None:
        return NONE
    return f"{per_s:.1f}" if per_s < 10 else f"{per_s:.0f}"


def _table(headings: tuple[str, ...], right: set[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(
            heading, justify="right" if heading in right else "left", no_wrap=heading != "HOLDS"
        )
    return table
