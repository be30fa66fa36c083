"""All rings and processes of a look as one graph.  Pure.

A process and a ring are joined by an edge for each peer: it writes the ring, or reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gpuring.cli.services import service
from gpuring.printable import counted, printable
from gpuring.registry.jams import Jam, key_of
from gpuring.registry.stats import PeerStats, RingStats

from .rates import Look, frames_per_s, peer_per_s, rate

Key = tuple[int, int]


@dataclass(frozen=True)
class Edge:
    """What one peer of a ring does."""

    ring: str
    process: Key
    peer: PeerStats
    writes: bool
    subscription: str
    """The subscription of a reader.  Empty for a producer."""
    figures: str
    """Its rate, what it has lost, and how far a reader is behind of how many slots."""
    stuck: bool
    """Whether it is on the way from who waits to the culprit."""


@dataclass(frozen=True)
class Graph:
    rings: dict[str, RingStats]
    """The first ones are those that no process fills from another ring."""
    layers: dict[str, int]
    """For each ring: through how many other rings its frames have come at most."""
    figures: dict[str, str]
    """For each ring: how full it is, its rate, and what was dropped."""
    nobody: dict[str, tuple[str, ...]]
    """For each ring: its subscriptions that have no member."""
    edges: tuple[Edge, ...]
    culprits: frozenset[Key]
    stuck: frozenset[str]
    """The rings in which somebody waits for one of them."""
    jams: tuple[Jam, ...]
    unreadable: dict[str, str]
    """The rings that are not drawn, and why."""

    def of_ring(self, name: str, *, writes: bool) -> Iterator[Edge]:
        return (each for each in self.edges if each.ring == name and each.writes == writes)

    def of_process(self, key: Key, *, writes: bool) -> Iterator[Edge]:
        return (each for each in self.edges if each.process == key and each.writes == writes)


def graph(before: Look | None, now: Look) -> Graph:
    """The rings of a look, with what is stuck there in red.  Rates need a look before."""
    touched = tuple(jam for jam in now.jams if not now.rings.keys().isdisjoint(jam.rings))
    steps = [step for jam in touched for step in jam.steps]
    stuck = {(step.ring, peer.number) for step in steps for peer in (*step.waiting, *step.by[:1])}
    edges = [
        _edge(before, now, one, peer, (one.name, peer.number) in stuck)
        for one in now.rings.values()
        for peer in one.peers
        if not _is_presence(one, peer)
    ]
    layers = _layers(edges, now.rings)
    return Graph(
        rings={name: now.rings[name] for name in _in_order(edges, layers)},
        layers=layers,
        figures={name: _of_ring(before, now, name) for name in now.rings},
        nobody={
            name: tuple(sub.name for sub in one.subscriptions if not sub.members)
            for name, one in now.rings.items()
        },
        edges=tuple(edges),
        culprits=frozenset(
            key_of(peer) for jam in touched for end in jam.culprits for peer in end.peers
        ),
        stuck=frozenset(step.ring for step in steps),
        jams=touched,
        unreadable=now.unreadable,
    )


def _is_presence(one: RingStats, peer: PeerStats) -> bool:
    whole = service(one)
    return whole is not None and whole.kinds.get(peer.number) == "presence"


def _edge(before: Look | None, now: Look, one: RingStats, peer: PeerStats, stuck: bool) -> Edge:
    paces = peer_per_s(before, now, one.name, peer)
    sub = next((each for each in one.subscriptions if each.name == peer.subscription), None)
    behind = [] if sub is None else [f"{sub.lag}/{one.slots}"]
    lost = [f"{peer.lost} lost"] if peer.lost else []
    figures = ", ".join((*behind, f"{rate(paces and paces[0])}/s", *lost))
    name = printable(peer.subscription or "")
    return Edge(one.name, key_of(peer), peer, peer.role == "producer", name, figures, stuck)


def _of_ring(before: Look | None, now: Look, name: str) -> str:
    one = now.rings[name]
    full = "closed, " if one.closed else "full, " if one.in_the_way else ""
    dropped = f", {one.dropped} dropped" if one.dropped else ""
    return f"{counted(one.slots, 'slot')}, {full}{rate(frames_per_s(before, now, name))}/s{dropped}"


def _next(edges: Collection[Edge], name: str) -> list[str]:
    """The rings that are filled by processes which read this one."""
    readers = {each.process for each in edges if each.ring == name and not each.writes}
    filled = (each.ring for each in edges if each.writes and each.process in readers)
    return [ring for ring in dict.fromkeys(filled) if ring != name]


def _layers(edges: Collection[Edge], rings: Collection[str]) -> dict[str, int]:
    """By the longest way.  A circle is cut where it would begin again."""
    before: dict[str, list[str]] = {name: [] for name in rings}
    for name in rings:
        for other in _next(edges, name):
            before[other].append(name)
    layers: dict[str, int] = {}

    def layer(name: str, path: tuple[str, ...]) -> int:
        if name not in layers:
            earlier = [each for each in before[name] if each not in path]
            layers[name] = max((1 + layer(each, (*path, name)) for each in earlier), default=0)
        return layers[name]

    for name in rings:
        layer(name, (name,))
    return layers


def _in_order(edges: Collection[Edge], layers: dict[str, int]) -> list[str]:
    """Each ring is followed by those that are filled from it and from no later one."""
    order: list[str] = []

    def add(name: str) -> None:
        if name not in order:
            order.append(name)
            for other in _next(edges, name):
                if layers[other] == layers[name] + 1:
                    add(other)

    for name in sorted(layers, key=lambda each: (layers[each], each)):
        add(name)
    return order
