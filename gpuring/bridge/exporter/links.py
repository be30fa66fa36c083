"""The importers' subscriptions of the near ring, and for how long each of them is kept.

The supervisor is a member of each subscription as well, so the subscription outlives the worker.
That of a lossless importer is durable, so it outlives the whole exporter.  The ring then keeps it
for as long as the exporter would.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from gpuring.bridge.exporter.link import Link
from gpuring.bridge.network import wire
from gpuring.bridge.stats import LABEL
from gpuring.bridge.worker import SupervisorPipe
from gpuring.errors import RingError
from gpuring.registry.subscriptions import read_elsewhere
from gpuring.ring import inner
from gpuring.ring.attaching import attach
from gpuring.ring.consumer import Consumer
from gpuring.ring.ring import Ring

Start = Literal["next", "oldest"] | int
"""As Ring.consumer has it."""

_ENDED_S = 0.1
"""How often to look whether somebody has ended the subscription of an importer that is gone."""
_FOLLOW_S, _NO_ROOM_S = 0.05, 1.0
"""How often to look whether the ring was replaced, and when again if there is no room in that."""


class Links:
    """The links of one exporter, by the names of their importers."""

    def __init__(self, options: dict[str, Any], supervisor: SupervisorPipe) -> None:
        self._supervisor = supervisor
        self._ring_name: str = options["ring"]
        self._device, self._owner = options["device"], options["owner"]
        self._patience_s: float = options["patience_s"]
        self._by_name: dict[str, Link] = {}
        now = time.monotonic()
        self._kept: dict[str, tuple[str, int, int | None, float]] = {
            name: (*kept, now + self._patience_s) for name, kept in options["kept"].items()
        }
        """Subscriptions that the supervisor has kept from an earlier worker: the epoch of their
        ring, the sequence that they began with, what the importer had when it left (or when it
        came, if it had waited for the ring), and until when."""
        self._gone: dict[str, float] = {}
        """Until when the subscriptions of links without a caller are kept."""
        self._leaving: set[str] = set()
        """Importers whose subscriptions were given up here, and not by the supervisor yet.  Who
        joined one of them would not get the frames that were on their way."""
        self._ended_s = 0.0
        """When to look again whether subscriptions were ended."""
        self._follow_s = 0.0
        """When to look again whether the ring was replaced."""

    def __iter__(self) -> Iterator[Link]:
        """The links that there are now.  They may be dropped during the loop."""
        return iter(list(self._by_name.values()))

    def get(self, importer: str) -> Link | None:
        return self._by_name.get(importer)

    # ---- making and dropping -------------------------------------------------------------------

    def make(self, hello: wire.Hello, waited: bool) -> Link:
        """Joins a subscription of the near ring for an importer.  One that has waited for the ring
        is to have all of it.  Raises RingError, and RingNotFound or PeerLost if there is no ring,
        or none that can be used any more."""
        if hello.importer in self._leaving:
            raise RingError("its subscription is being given up")
        try:
            ring = attach(self._ring_name, owner=self._owner, device=self._device)
        except TypeError as error:  # a GPU was given for a ring in host memory
            raise RingError(str(error)) from None
        epoch = inner.epoch(ring)
        kept, begin, had, _ = self._kept.get(hello.importer, ("", 0, None, 0.0))
        if not hello.epoch and had is not None:  # it has no ring any more, or none yet
            hello = replace(hello, epoch=kept, seq=had)
        start = _next_of(ring)
        if hello.epoch == epoch:
            start = hello.seq + 1
        elif hello.epoch or waited:
            start = "oldest"
        try:
            link = self._join(hello, ring, start)
        except RingError:
            if self._kept.pop(hello.importer, None) is not None:  # perhaps of another policy
                self._leave(hello.importer)
            raise
        self._kept.pop(hello.importer, None)
        if kept != epoch:
            begin = inner.peer(link.consumer).position
        _begin(link, hello, begin, waited)
        return link

    def _join(
        self, hello: wire.Hello, ring: Ring, start: Start, place: Consumer | None = None
    ) -> Link:
        """Closes the ring if it refuses, and raises RingError then."""
        name, lossless = read_elsewhere(hello.importer), hello.policy == "lossless"
        consumer = place or self._place_in(ring, name, lossless, start)
        try:
            link = Link(hello, ring, consumer)
        except (ValueError, OSError) as error:
            ring.close()
            raise RingError(str(error)) from None
        self._by_name[hello.importer] = link
        self._share_slots()
        has = {"epoch": hello.epoch, "seq": hello.seq}
        self._supervisor.say(do="join", **_place_of(link.name, lossless, ring), has=has)
        return link

    def _place_in(
        self, ring: Ring, subscription: str, lossless: bool, start: Start = "oldest"
    ) -> Consumer:
        """Closes the ring if it refuses, and raises RingError then."""
        patience = self._patience_s if lossless else None
        try:
            if not lossless and any(
                each.name == subscription and each.durable for each in ring.stats().subscriptions
            ):  # the importer had another policy when the last exporter was killed
                ring.unsubscribe(subscription)
            consumer = ring.consumer(
                subscription, lossless=lossless, start=start, gate="host",
                durable=lossless, patience=patience, label=LABEL,
            )  # fmt: skip
            inner.expect_end(consumer)  # also the next worker has to send it to the far ring
            consumer.fileno()  # it is made now, when the importer can still be refused
        except (RingError, ValueError, OSError) as error:
            ring.close()
            raise RingError(str(error)) from None
        return consumer

    def drop(self, link: Link) -> None:
        """Gives a link up, and its subscription."""
        self._gone.pop(link.name, None)
        if self._by_name.get(link.name) is link:
            del self._by_name[link.name]
            self._share_slots()
            self._leave(link.name)
        link.close()

    def _leave(self, importer: str) -> None:
        self._leaving.add(importer)
        self._supervisor.say(do="leave", name=importer)

    def leave(self, *, stay: bool) -> None:
        """Leaves all rings, because the exporter ends.  `stay`: another one follows, and durable
        subscriptions wait for it."""
        for link in self:
            link.close(stay=stay)

    def supervisor_left(self, importer: str) -> None:
        """The supervisor has given up its place in the subscription, too."""
        self._leaving.discard(importer)

    def _share_slots(self) -> None:
        """Lossy importers together hold half of the near slots at most, but each may hold one.  So
        the producers have slots, however long the network takes."""
        lossy = [link for link in self if link.policy != "lossless"]
        for link in lossy:
            link.most = max(1, link.ring.slots // 2 // len(lossy))

    # ---- patience ------------------------------------------------------------------------------

    def importer_came(self, link: Link, waited: bool) -> None:
        """If it has waited for the ring, it may not know yet that it is to have all of that, and
        another worker has to know so if this one dies."""
        self._gone.pop(link.name, None)
        had = link.passed if waited else None
        self._supervisor.say(do="note", name=link.name, epoch=link.epoch, had=had)

    def importer_left(self, link: Link) -> None:
        """From now on the link is kept for a while, if it is not yet."""
        self._gone.setdefault(link.name, time.monotonic() + self._patience_s)
        self._supervisor.say(do="note", name=link.name, epoch=link.epoch, had=link.passed)

    def give_up(self) -> None:
        """Gives up the links and subscriptions whose importers have been gone for too long, and
        those that somebody has ended meanwhile."""
        now = time.monotonic()
        if self._gone and now >= self._ended_s:
            self._ended_s = now + _ENDED_S
            for link in [self._by_name[name] for name in self._gone]:
                if link.policy == "lossless" and _was_ended(link):
                    self._supervisor.log(f"{link.name} is given up: its subscription was ended")
                    self.drop(link)
        for name, until in list(self._gone.items()):
            if now > until:
                self._supervisor.log(
                    f"{name} has been gone for {self._patience_s:g} s: it is given up"
                )
                self.drop(self._by_name[name])
        for name, (_, _, _, until) in list(self._kept.items()):
            if now > until:
                del self._kept[name]
                self._leave(name)

    # ---- when the near ring is replaced --------------------------------------------------------

    def successor_of(self, link: Link) -> Ring | None:
        """The ring that has taken the place of one whose stream has ended, if there is one.  One in
        which the link has a place already comes first, though it may have been replaced, too."""
        if link.next is not None:
            return link.next[0]
        try:
            successor = inner.successor(link.ring)
            if successor is None:
                return None
            successor.close()
            return attach(self._ring_name, owner=self._owner, device=self._device)
        except (RingError, OSError):
            return None

    def follow(self) -> None:
        """Joins the ring that has taken the place of one of which a lossless importer still needs
        frames.  So the producers there wait for it from now on."""
        now = time.monotonic()
        if now < self._follow_s:
            return
        self._follow_s = now + _FOLLOW_S
        for link in self:
            if link.policy == "lossless" and link.next is None:
                ring = self.successor_of(link)
                if ring is None:
                    continue
                try:
                    link.next = ring, self._place_in(ring, read_elsewhere(link.name), True)
                except RingError:  # there may be room later
                    self._follow_s = now + _NO_ROOM_S
                else:
                    self._supervisor.say(do="follow", **_place_of(link.name, True, ring))

    def move(self, link: Link, ring: Ring) -> None:
        """Goes on in this ring.  If that refuses, the link is given up."""
        has = link.epoch, link.passed
        hello = wire.Hello(self._ring_name, link.name, link.run, link.policy, *has)
        place: Consumer | None = None
        if link.next is not None:
            (ring, place), link.next = link.next, None
        try:
            after = self._join(hello, ring, "oldest", place)
        except RingError as error:
            self._supervisor.log(f"{link.name}: {error}")
            self.drop(link)
            return
        _begin(after, hello, inner.peer(after.consumer).position, False)
        inner.count_on(link.consumer, after.consumer)  # if a bridge fills them, too
        after.counts = link.counts
        self.importer_left(after)
        link.close()
        self._supervisor.log(
            f"ring {self._ring_name!r} was replaced: {link.name} goes on in the new one"
        )


def _place_of(importer: str, lossless: bool, ring: Ring) -> dict[str, Any]:
    """What the supervisor has to know to join a subscription, too."""
    name, epoch = read_elsewhere(importer), inner.epoch(ring)
    return {"name": importer, "subscription": name, "lossless": lossless, "epoch": epoch}


def _was_ended(link: Link) -> bool:
    """Whether somebody has ended the subscription of a lossless importer, where producers wait for
    it now.  Then it is not durable any more, and goes when we leave it."""
    ring, name = link.next[0] if link.next else link.ring, read_elsewhere(link.name)
    return not any(sub.durable for sub in ring.stats().subscriptions if sub.name == name)


def _next_of(ring: Ring) -> Start:
    """Where an importer begins that has nothing of a ring yet: with the next frame that is
    published, which may be claimed already."""
    peers = ring.stats().peers
    claimed = [hold.seq for peer in peers if peer.role == "producer" for hold in peer.holding]
    return min(claimed, default="next")


def _begin(link: Link, hello: wire.Hello, begin: int, waited: bool) -> None:
    """Sets what counts as lost before the first frame of a link, whose subscription begins with the
    sequence `begin`.

    An importer that was at another ring before, or that has `waited` for this one, has had no frame
    of this ring.  The Welcome tells it so, and its next Hello says the same until it has had a
    frame.
    """
    if not hello.epoch and not waited:
        link.begin_behind(begin - 1, 0)
        return
    same = hello.epoch == link.epoch
    passed = hello.seq if same else link.ring.slots - 1
    if link.policy != "lossless":
        link.begin_behind(passed, None)
        return
    lost, peer = max(0, begin - 1 - passed), inner.peer(link.consumer).number
    (told,) = (each.lost for each in link.ring.stats().peers if each.number == peer)
    link.begin_behind(passed, lost, told if same else min(told, lost))
