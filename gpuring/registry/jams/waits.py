"""The waits of one look, each with whose move it is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from gpuring.printable import printable
from gpuring.registry import processes
from gpuring.registry.jams.records import Key, Step, all_wait, key_of, named
from gpuring.registry.segment import ANSWERS
from gpuring.registry.stats import PeerStats, RingStats, SubscriptionStats
from gpuring.registry.subscriptions import is_read_elsewhere

_FOREVER_S = float("inf")


class Waits:
    """The waits in one look at all rings."""

    def __init__(self, rings: Iterable[RingStats]) -> None:
        self.rings = {one.name: one for one in rings}
        self.places: dict[Key, list[tuple[RingStats, PeerStats]]] = {}
        for one in self.rings.values():
            for peer in one.peers:
                self.places.setdefault(key_of(peer), []).append((one, peer))
        self._known: dict[tuple[str, int], Step | None] = {}

    def all(self) -> Iterator[Step]:
        """Every wait that may be the first step of a jam."""
        for one in self.rings.values():
            if one.state == "dead":
                if not ANSWERS.fullmatch(one.name):  # the service is shown in its place
                    yield self._dead(one)
                continue
            wanted = any(peer.alive for peer in one.producers)
            found = [self.slot(one) if wanted else None, self.gpu(one), self.importer(one)]
            if one.is_service:
                found += [
                    self._held_call(one, hold.by, engine)
                    for engine in one.peers
                    for hold in engine.holding
                    if engine.role == "consumer"
                ]
                found.append(self._untaken(one))
            else:
                found += self._sleepers(one)
            yield from (step for step in found if step is not None)

    def _dead(self, one: RingStats) -> Step:
        """Nobody is in the ring any more, and its name is left."""
        signs = [one.published_s, *(sub.taken_s for sub in one.subscriptions)]
        signs += [peer.age_s for peer in one.peers] + [death.age_s for death in one.deaths]
        signs.append(max(0, time.time_ns() - one.created_ns) / 1e9)
        age_s = min(sign for sign in signs if sign is not None)
        creator = _creator(one)
        others = [named(p) for p in one.peers if p.elsewhere or p.pid != one.creator_pid]
        who = ", ".join(dict.fromkeys([creator, *others]))  # a process may have been several peers
        why = f"All processes of ring {one.name} are dead: {who}"
        return Step(one.name, "life", (), (), None, None, age_s, why)

    def _sleepers(self, one: RingStats) -> list[Step | None]:
        """What the peers of a ring wait for, each that sleeps in a verb."""
        return [self._wait(one, peer) for peer in one.peers if peer.waiting and peer.alive]

    def _wait(self, one: RingStats, peer: PeerStats) -> Step | None:
        """What a peer waits for that sleeps in a verb.  None: for nothing that somebody owes it."""
        place = one.name, peer.number
        if place not in self._known:
            self._known[place] = None  # to come here again meanwhile is a circle of waits
            if peer.role == "producer":
                self._known[place] = self.slot(one)
            elif (service := self._service_of(one)) is not None:
                self._known[place] = self._answer(service, peer)
            elif not one.is_service:
                self._known[place] = self._frame(one, peer)
        return self._known[place]

    def slot(self, one: RingStats) -> Step | None:
        """What keeps the next claim waiting."""
        way = one.in_the_way
        if way is None:
            return None
        waiting = tuple(peer for peer in one.producers if peer.waiting)
        by = tuple(peer for peer in one.peers if peer.number in way.peers)
        age_s = way.age_s
        if way.subscription is None and (one.link is not None or not by):
            return None  # an importer has slots for frames that are to come; the writer has left
        if way.subscription is not None:
            holders = tuple(p for p in by if any(hold.seq == way.seq for hold in p.holding))
            if not holders:
                age_s = min(age_s, _taken_s(_subscription(one, way.subscription)))
            by = holders or tuple(peer for peer in by if not _keeps_only(one, peer))
            if is_read_elsewhere(way.subscription):  # its members are the processes of one exporter
                by = tuple(peer for peer in by if peer.stopped or not peer.alive) or by
        who = f"{all_wait(waiting)} for a free slot of " if waiting else "No slot is free in "
        what = "service" if one.is_service else "ring"
        why = f"{who}{what} {one.name}: {way.why}"
        return Step(one.name, "slot", waiting, by, way.subscription, way.seq, age_s, why)

    def _frame(self, one: RingStats, peer: PeerStats) -> Step | None:
        """What keeps a reader waiting that has read everything.  None also if its producers could
        publish, and have nothing to say."""
        sub = _subscription(one, peer.subscription)
        if one.closed or sub is None:
            return None
        if sub.untaken:
            return None  # it is about to take one
        age_s = min(peer.age_s, _taken_s(sub))
        waits = f"{named(peer)} waits for a frame of ring {one.name}"

        def step(by: tuple[PeerStats, ...], seq: int | None, age_s: float, why: str) -> Step:
            return Step(one.name, "frame", (peer,), by, sub.name, seq, age_s, f"{waits}: {why}")

        if (down := self.importer(one)) is not None:
            return down
        claims = [(hold.seq, hold.age_s, each) for each in one.producers for hold in each.holding]
        if claims and one.link is None:
            seq, age_s, writer = min(claims, key=lambda claim: claim[0])
            why = f"{named(writer)} has been writing sequence {seq} for {age_s:.3f} s"
            return step((writer,), seq, age_s, why)
        if not one.producers:
            return step((), None, age_s, f"it has no producer{_and_no_creator(one)}")
        if all(self._is_hindered(one, each) for each in one.producers):
            why = f"{', '.join(map(named, one.producers))} publishes nothing"
            return step(one.producers, None, age_s, why)
        return None

    def of_process(self, peer: PeerStats, but: str = "") -> list[Step]:
        """What the process of a peer waits for, in all rings but one.  A slot comes first.  Where
        it sleeps for frames of several rings, each of them has to keep it waiting."""
        places = [
            (one, each)
            for one, each in self.places[key_of(peer)]
            if each.waiting and one.name != but
        ]
        steps = [self._wait(one, each) for one, each in places]
        sure = [step for step in steps if step is not None and step.wants == "slot"]
        rest = [step for step in steps if step is None or step.wants != "slot"]
        return sure + ([] if None in rest else [step for step in rest if step is not None])

    def _is_hindered(self, one: RingStats, producer: PeerStats) -> bool:
        """Whether it could not publish even if it had something to say."""
        if producer.stopped or not producer.alive:
            return True
        return bool(self.of_process(producer, one.name))

    def _service_of(self, one: RingStats) -> RingStats | None:
        """The service of a client in whose ring this is."""
        of = ANSWERS.fullmatch(one.name)
        service = self.rings.get(of[1]) if of else None
        return service if service is not None and service.is_service else None

    def _answer(self, service: RingStats, reader: PeerStats) -> Step | None:
        """What keeps a client waiting that reads its answers."""
        mine = {p.number for p in service.producers if key_of(p) == key_of(reader)}
        held = [
            (hold.age_s, hold.by, engine)
            for engine in service.peers
            for hold in engine.holding
            if engine.role == "consumer" and hold.by in mine
        ]
        if not held:
            return self._untaken(service)
        _, client, engine = max(held, key=lambda call: call[0])
        return self._held_call(service, client, engine)

    def _held_call(self, service: RingStats, client: int, engine: PeerStats) -> Step:
        """An engine has taken a call of a client, who waits for the answer."""
        had_s, seq = max((hold.age_s, hold.seq) for hold in engine.holding if hold.by == client)
        asking = tuple(peer for peer in service.producers if peer.number == client)
        inboxes = [self._inbox(service, peer) for peer in asking]
        age_s = min([had_s, *(_taken_s(inbox[2]) for inbox in inboxes if inbox)])  # by parts
        who = named(asking[0]) if asking else "a client"
        why = (
            f"{who} waits for an answer of service {service.name}: {named(engine)} has had its "
            f"call for {had_s:.3f} s"
        )
        return Step(service.name, "answer", asking, (engine,), engine.subscription, seq, age_s, why)

    def _untaken(self, service: RingStats) -> Step | None:
        """Calls that no engine takes.  Without an engine a client does not even send one."""
        sub = service.subscriptions[0] if service.subscriptions else None
        if service.closed:
            return None
        members = [peer for peer in service.peers if sub and peer.number in sub.members]
        engines = tuple(peer for peer in members if not _keeps_only(service, peer))
        inside = {*map(key_of, members)}
        clients = tuple(peer for peer in service.producers if key_of(peer) not in inside)
        untaken = sub.untaken if sub else 0
        ages = [sub.oldest_s] if sub and untaken else [p.age_s for p in clients if not engines]
        if not ages:
            return None
        age_s = min(max(ages), _taken_s(sub))
        asking = all_wait(clients) if clients else "Nobody waits"
        calls = f"{untaken} {'call is' if untaken == 1 else 'calls are'} not taken"
        if engines:
            who = f"{calls}: its engines: {', '.join(map(named, engines))}"
        else:
            died = [each for each in service.deaths if each.role == "consumer"][:1]  # the last one
            age_s = min([age_s, *(each.age_s for each in died)])
            who = f"{calls if untaken else 'nobody takes calls'}: it has no engine"
            who += "".join(
                f" since {printable(each.label)} (pid {each.pid}) died {each.age_s:.1f} s ago"
                for each in died
            )
            who += _and_no_creator(service)
        why = f"{asking} for service {service.name}, and {who}"
        name = sub.name if sub else None
        return Step(service.name, "answer", clients, engines, name, None, age_s, why)

    def _inbox(
        self, service: RingStats, client: PeerStats
    ) -> tuple[RingStats, PeerStats, SubscriptionStats] | None:
        """The ring of a client in which it gets its answers, and who reads them there."""
        for one, reader in self.places[key_of(client)]:
            sub = _subscription(one, reader.subscription)
            if sub is not None and self._service_of(one) is service:
                return one, reader, sub
        return None

    def room(self, last: Step, engine: PeerStats) -> Step | None:
        """A client does not read what an engine has sent, so the engine may have no room for the
        next part of an answer."""
        service, clients = self.rings[last.ring], last.waiting
        if last.wants == "slot":  # they wait for the slot of that client's request
            asked = {hold.by for hold in engine.holding if hold.seq == last.seq}
            clients = tuple(peer for peer in service.producers if peer.number in asked)
        for client in clients:
            if (inbox := self._inbox(service, client)) is None:
                continue
            one, reader, sub = inbox
            ages = [*([sub.oldest_s] if sub.untaken else []), *(h.age_s for h in reader.holding)]
            if ages and not reader.waiting:
                writers = tuple(p for p in one.producers if key_of(p) == key_of(engine))
                why = f"{named(reader)} does not read the answers that {named(engine)} has sent it"
                age_s = min(max(ages), _taken_s(sub))
                return Step(one.name, "room", writers, (reader,), sub.name, None, age_s, why)
        return None

    def gpu(self, one: RingStats, seq: int | None = None) -> Step | None:
        """GPU work that is not done: the oldest of the ring, or what a sequence has to wait for.

        None with events: a fence rises only when some process asks the event, and none may have
        done so.
        """
        work = [
            (hold.seq, peer.role == "consumer", hold.age_s, peer.number)
            for peer in one.peers
            for hold in peer.unfinished
            if seq is None or (hold.seq <= seq and (seq - hold.seq) % one.slots == 0)
        ]
        if not work or one.sync == "event":
            return None
        first, _, age_s, number = min(work)
        peer = next(peer for peer in one.peers if peer.number == number)
        why = (
            f"The GPU work of {named(peer)} on sequence {first} of ring {one.name} has not "
            f"finished for {age_s:.3f} s"
        )
        return Step(one.name, "gpu", (), (peer,), peer.subscription, first, age_s, why)

    def gpu_before(self, peer: PeerStats) -> Step | None:
        """GPU work of others that the work of its process comes after."""
        for one, mine in self.places[key_of(peer)]:
            for hold in (*mine.unfinished, *mine.holding):
                step = self.gpu(one, hold.seq)
                if step is not None and key_of(step.by[0]) != key_of(peer):
                    return step
        return None

    def importer(self, one: RingStats) -> Step | None:
        """What keeps a bridge from filling this ring that lies on this host or between the two."""
        if one.link is None or one.closed or not one.producers:
            return None
        readers = tuple(peer for peer in one.peers if peer.role == "consumer" and peer.waiting)
        waits = f"{all_wait(readers)} for" if readers else "Nobody waits for"
        waits = f"{waits} a frame of ring {one.name}, which a bridge fills"
        for peer in one.producers:
            if peer.stopped and peer.holding:
                age_s = min(hold.age_s for hold in peer.holding)
                why = f"{waits}: {named(peer)} of the bridge is stopped"
                return Step(one.name, "frame", readers, (peer,), None, None, age_s, why)
        if one.link.heard_s is None or one.link.connected:
            return None
        why = f"{waits}: it has had no session with {printable(one.link.host)}"
        return Step(one.name, "session", readers, (), None, None, one.link.heard_s, why)

    def is_alone(self, ring: str, peer: PeerStats) -> bool:
        """Whether only its process fills the ring, or takes calls of the service."""
        one = self.rings[ring]
        if peer.role != ("consumer" if one.is_service else "producer"):
            return False
        same = (each for each in one.peers if each.role == peer.role and each.alive)
        return all(key_of(each) == key_of(peer) or _keeps_only(one, each) for each in same)

    def is_last_reader(self, ring: str, peer: PeerStats) -> bool:
        """Whether only its process reads a durable subscription for which producers wait."""
        one = self.rings[ring]
        sub = _subscription(one, peer.subscription)
        if sub is None or not sub.durable or not sub.lossless:
            return False
        members = (each for each in one.peers if each.number in sub.members and each.alive)
        return all(key_of(each) == key_of(peer) for each in members)

    def unread(self, ring: str) -> list[str]:
        """The subscriptions without a reader for which producers wait."""
        one = self.rings[ring]
        unread = (sub for sub in one.subscriptions if sub.lossless and sub.unread_s is not None)
        return [sub.name for sub in unread if sub.lag >= one.slots and not sub.given_up]

    def patience_left_s(self, ring: str, subscription: str | None) -> float | None:
        """For how many more seconds producers wait for a durable subscription that nobody reads.
        None: for ever."""
        sub = _subscription(self.rings[ring], subscription)
        if sub is None or sub.patience_s is None:
            return None
        return max(0.0, sub.patience_s - (sub.unread_s or 0.0))

    def far_slot(self, near: RingStats) -> Step | None:
        """What keeps the far ring of a bridge waiting, if it is on this host, too."""
        for one in self.rings.values():
            if one.link and (one.link.ring, one.link.epoch) == (near.name, near.epoch):
                found = [self.slot(one), self.importer(one)]
                found += [self._dead(one)] if one.state == "dead" else self._sleepers(one)
                return next((step for step in found if step is not None), None)
        return None


def _and_no_creator(one: RingStats) -> str:
    return "" if one.creator_alive else f", and {_creator(one)} is dead"


def _creator(one: RingStats) -> str:
    return f"its creator ({processes.told(one.creator_pid, one.creator_elsewhere)})"


def _keeps_only(service: RingStats, peer: PeerStats) -> bool:
    """Whether it only keeps a service open and takes no calls."""
    kept = service.about is not None and service.about.get("kept")
    return bool(kept) and peer.pid == service.creator_pid and peer.asked_s is None


def _subscription(one: RingStats, name: str | None) -> SubscriptionStats | None:
    return next((sub for sub in one.subscriptions if sub.name == name), None)


def _taken_s(sub: SubscriptionStats | None) -> float:
    return _FOREVER_S if sub is None or sub.taken_s is None else sub.taken_s
