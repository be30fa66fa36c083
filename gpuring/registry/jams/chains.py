"""Which wait comes after which, and where a chain ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from gpuring.printable import printable
from gpuring.registry import importers
from gpuring.registry.jams.records import Culprit, Jam, Key, Step, key_of
from gpuring.registry.jams.waits import Waits
from gpuring.registry.stats import PeerStats, RingStats
from gpuring.registry.subscriptions import is_read_elsewhere

_NOBODY = {
    "slot": "no reader",
    "frame": "no producer",
    "answer": "no engine",
    "session": "no session",
    "life": "dead ring",
}
"""Who is missing where nobody could make the move."""
STUCK_S = 2.0
"""A chain in which nothing has moved for so long is a jam, unless somebody says otherwise."""
_RANK = {"dead": 0, "stopped": 1, "circle": 2, "itself": 2}
"""Of several culprits the one with the lowest rank is named first.  All others are alike, and then
the one with the longest chain comes first."""


def jams(rings: Iterable[RingStats], after_s: float = 0.0, name: str | None = None) -> list[Jam]:
    """What is stuck: the chains in which nothing has moved for `after_s` seconds, one for each
    culprit, the oldest first.  With a name, those that touch this ring."""
    waits = Waits(rings)
    found: dict[object, Jam] = {}
    for root in waits.all():
        jam = _Chain(waits).follow(root)
        if jam.age_s < after_s or (name is not None and name not in jam.rings):
            continue
        end = jam.culprits[0]
        who = frozenset(map(key_of, end.peers)) or (end.ring, end.subscription)
        other = found.get(who, jam)
        longer, shorter = (jam, other) if len(jam.steps) > len(other.steps) else (other, jam)
        found[who] = _together(longer, shorter)
    return sorted(found.values(), key=lambda jam: -jam.culprits[0].age_s)


def _together(longer: Jam, shorter: Jam) -> Jam:
    """Two jams of one culprit.  The steps of the longer one are told."""
    also = {*longer.also, *shorter.rings} - {step.ring for step in longer.steps}
    told = {key_of(peer) for step in longer.steps for peer in (*step.waiting, *step.by[:1])}
    waiting = (peer for step in shorter.steps for peer in step.waiting)
    others = {key_of(peer): peer for peer in (*longer.others, *shorter.others, *waiting)}
    return dataclasses.replace(
        longer,
        also=tuple(sorted(also)),
        others=tuple(peer for key, peer in others.items() if key not in told),
    )


def of_full_rings(rings: Iterable[RingStats]) -> dict[str, Jam]:
    """For each ring whose next claim would wait: the chain behind that, however young it is."""
    waits = Waits(rings)
    steps = {name: waits.slot(one) for name, one in waits.rings.items()}
    return {name: _Chain(waits).follow(step) for name, step in steps.items() if step is not None}


class _Chain:
    """The chain that begins with one wait."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._met: dict[Key, tuple[Culprit, ...]] = {}
        """Whom the processes wait for that were looked at already.  None is looked at twice."""

    def follow(self, step: Step, path: tuple[Step, ...] = ()) -> Jam:
        if not step.by:
            return self._nobody((*path, step))
        found = []
        for peer in step.by:
            others = tuple(each for each in step.by if each is not peer)
            chosen = dataclasses.replace(step, by=(peer, *others))
            found.append(self._beyond(peer, (*path, chosen)))
        found.sort(key=lambda jam: (_RANK.get(jam.culprits[0].reason, 9), -len(jam.steps)))
        ends: dict[object, Culprit] = {}
        for end in (each for jam in found for each in jam.culprits):
            who = () if end.reason == "far" else end.peers  # one of several members of a bridge
            ends.setdefault((end.reason, end.ring, end.subscription, who), end)
        return Jam(found[0].steps, tuple(ends.values()))

    def _nobody(self, path: tuple[Step, ...]) -> Jam:
        last, reason = path[-1], _NOBODY[path[-1].wants]
        if last.wants == "slot" and last.subscription is not None:
            names = dict.fromkeys([last.subscription, *self._waits.unread(last.ring)])
            return Jam(path, tuple(self._unread(last, name) for name in names))
        one = self._waits.rings[last.ring]
        if last.wants == "frame" and not one.creator_alive:
            reason = "no creator"
        elif last.wants == "frame" and one.link is not None:
            reason = "no near producer"
        command = None if one.creator_alive else importers.of_far_ring(one)
        # A producer is missing, whichever subscription waits for it.
        name = None if last.wants == "frame" else last.subscription
        origin = None
        if one.link is not None:
            origin = f"{printable(one.link.ring)} of {printable(one.link.host)}"
        nobody = Culprit(
            reason, last.ring, name, last.seq, (), last.age_s, origin=origin, command=command
        )
        return Jam(path, (nobody,))

    def _unread(self, last: Step, name: str) -> Culprit:
        left_s = self._waits.patience_left_s(last.ring, name)
        nobody = Culprit("no reader", last.ring, name, last.seq, (), last.age_s, left_s)
        if is_read_elsewhere(name):
            start = importers.of_near_ring(last.ring, name)
            nobody = dataclasses.replace(nobody, reason="no exporter", command=start)
        return nobody

    def _beyond(self, peer: PeerStats, path: tuple[Step, ...]) -> Jam:
        """What keeps a process waiting whose move it is in the last step."""
        if not peer.alive:
            return self._ended("dead", path, (peer,))
        if peer.stopped and path[-1].wants != "gpu":
            return self._ended("stopped", path, (peer,))
        if known := self._met.get(key_of(peer)):
            return Jam(path, known)
        jam = self._after(peer, path)
        self._met[key_of(peer)] = jam.culprits
        return jam

    def _after(self, peer: PeerStats, path: tuple[Step, ...]) -> Jam:
        for step in self._next(peer, path):
            begun = [n for n, each in enumerate(path) if _is_same(each, step)]
            if not begun:
                return self.follow(step, path)
            if len(path) - begun[0] > 1:
                return self._ended("circle", path, tuple(each.by[0] for each in path[begun[0] :]))
            return self._ended("itself", path, (peer,))
        return self._ended(_reason(path[-1], peer), path, (peer,))

    def _next(self, peer: PeerStats, path: tuple[Step, ...]) -> Iterator[Step]:
        """What its process waits for itself."""
        last, one = path[-1], self._waits.rings[path[-1].ring]
        found: list[Step | None] = []
        if last.wants == "gpu":
            found.append(self._waits.gpu_before(peer))
        else:
            if last.subscription and is_read_elsewhere(last.subscription):
                found.append(self._waits.far_slot(one))
            if last.wants == "slot" and last.subscription and last.seq is not None:
                found.append(self._waits.gpu(one, last.seq))
            found += self._waits.of_process(peer)
            if last.wants in ("answer", "slot"):
                found.append(self._waits.room(last, peer))
        return (step for step in found if step is not None)

    def _ended(self, reason: str, path: tuple[Step, ...], peers: tuple[PeerStats, ...]) -> Jam:
        last, command = path[-1], None
        if reason == "far" and last.subscription is not None:
            command = importers.of_near_ring(last.ring, last.subscription)
        alone = self._waits.is_alone(last.ring, peers[0])
        durable = self._waits.is_last_reader(last.ring, peers[0])
        left_s = self._waits.patience_left_s(last.ring, peers[0].subscription) if durable else None
        who = reason, last.ring, last.subscription, last.seq, peers, last.age_s, left_s
        return Jam(path, (Culprit(*who, command=command, alone=alone, durable=durable),))


def _reason(step: Step, peer: PeerStats) -> str:
    """What a process does, or does not do, that lives and waits for nobody."""
    if step.wants == "gpu":
        return "gpu"
    if step.subscription and is_read_elsewhere(step.subscription):
        return "far"
    if step.wants == "room":
        return "reads"
    holds = any(hold.seq == step.seq for hold in peer.holding)
    if step.wants == "answer":
        return "answers" if holds else "takes"
    if peer.role == "producer":
        return "writes"
    if not holds:
        return "takes"
    return "keeps" if peer.waiting else "holds"


def _is_same(one: Step, other: Step) -> bool:
    """Whether a chain that has one of them is back where it was with the other.  A wait for a GPU
    is another one than the wait of the program in that ring."""
    return one.ring == other.ring and (one.wants == "gpu") == (other.wants == "gpu")
