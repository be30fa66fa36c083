"""What rings tell of the services that are made of them: which belong together, and who is who."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuring.errors import RingError
from gpuring.printable import counted
from gpuring.registry import directory, segment, survey
from gpuring.registry.segment import ANSWERS
from gpuring.registry.stats import Death, PeerStats, RingStats


@dataclass(frozen=True)
class Service:
    """Who is in a ring of requests."""

    kinds: dict[int, str]
    """What each peer is: "client", "engine" or "keeper".  Or "presence", the second peer of an
    engine or a keeper, which sends nothing."""
    waiting: int
    """How many calls no engine has taken."""
    taken: int
    """How many calls engines have taken and not answered."""

    def count(self, kind: str) -> int:
        return sum(each == kind for each in self.kinds.values())

    @property
    def calls(self) -> str:
        """How many calls are in flight, in words."""
        return f"{counted(self.waiting + self.taken, 'call')} in flight"

    @property
    def members(self) -> str:
        """Who is there, in words."""
        kept = "a keeper, " if self.count("keeper") else ""
        return kept + " and ".join(counted(self.count(kind), kind) for kind in ("engine", "client"))


def service(one: RingStats) -> Service | None:
    """None if it is no ring of requests."""
    if not one.is_service:
        return None
    kinds = {peer.number: "client" for peer in one.producers}
    for peer in one.peers:
        if peer.role == "producer":
            continue
        keeps = bool(one.about and one.about.get("kept")) and peer.pid == one.creator_pid
        kinds[peer.number] = "keeper" if keeps and "keeper" not in kinds.values() else "engine"
        if (presence := _presence(peer, one, kinds)) is not None:
            kinds[presence] = "presence"
    waiting = sum(sub.untaken for sub in one.subscriptions)
    taken = sum(len(peer.holding) for peer in one.peers if peer.role == "consumer")
    return Service(kinds, waiting, taken)


def _presence(engine: PeerStats, one: RingStats, kinds: Mapping[int, str]) -> int | None:
    """The producer that an engine has joined as, just before it joined as an engine."""
    earlier = [
        (peer.age_s, peer.number)
        for peer in one.producers
        if peer.pid == engine.pid and peer.age_s >= engine.age_s and kinds[peer.number] == "client"
    ]
    return min(earlier)[1] if earlier else None


def of_dead(dead: Death, one: RingStats) -> str:
    """What a dead peer was.  Both peers of an engine, or of a keeper, have the same process."""
    if not one.is_service:
        return dead.role
    engines = {each.pid for each in one.deaths if each.role == "consumer"}
    engines |= {each.pid for each in one.peers if each.role == "consumer"}
    if dead.pid not in engines:
        return "client"
    return "keeper" if one.about and one.about["kept"] and dead.pid == one.creator_pid else "engine"


def deaths(one: RingStats) -> tuple[Death, ...]:
    """The deaths that people are told of.  An engine is told once, and not as its presence, too."""
    if not one.is_service:
        return one.deaths
    engines = {each.pid for each in one.deaths if each.role == "consumer"}
    return tuple(
        each
        for each in one.deaths
        if each.role == "consumer" or each.voided or each.pid not in engines
    )


def of_clients(found: Iterable[RingStats]) -> dict[str, str]:
    """The rings of living clients, in which their answers are, and the services of these."""
    rings = {one.name: one for one in found}
    services = {name for name, one in rings.items() if one.is_service}
    return {
        name: of[1]
        for name, one in rings.items()
        if (of := ANSWERS.fullmatch(name)) and of[1] in services and one.state != "dead"
    }


def gone_service(one: RingStats) -> str:
    """The service of which a living ring has answers, if no ring has its name any more."""
    of = ANSWERS.fullmatch(one.name)
    if of is None or one.state == "dead" or segment.owner(segment.header_name(of[1])) >= 0:
        return ""
    return of[1]


def service_of(name: str) -> str | None:
    """The service of whose clients' rings this is one; None if it is none of them."""
    if of := ANSWERS.fullmatch(name):
        with contextlib.suppress(RingError, OSError, ValueError):
            if survey.collect(of[1], directory.look(of[1])).is_service:
                return of[1]
    return None
