"""The two kinds of bridge, as their supervisor has them: what each holds in its ring."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from gpuring import slot_layout
from gpuring.bridge.supervisor import Bridge, log
from gpuring.errors import (
    FrameTorn,
    PeerLost,
    RingError,
    RingExists,
    RingIncompatible,
    RingNotFound,
)
from gpuring.native.snapshot import snapshot
from gpuring.registry import directory, segment, stats
from gpuring.ring.consumer import Consumer
from gpuring.ring.creation import create_of
from gpuring.ring.producer import Producer
from gpuring.ring.ring import Ring, attach
from gpuring.slot_layout import Spec

_LEFT_S = 0.1
"""How long to wait for the GPU work on a frame that is only counted."""


@dataclass
class _Kept:
    """What the supervisor has of an importer: a ring, and a member of the subscription there."""

    ring: Ring
    consumer: Consumer
    missed: int = 0
    """How many frames the importer lost that only earlier rings had.  They count before the first
    frame of this one, so they are remembered until the importer has one."""
    had: int | None = None
    """Everything up to this sequence had arrived when the importer left.  None: it is there."""
    next: _Kept | None = None
    """The same in the ring that has taken the place of this one, while this one is still needed."""

    @property
    def epoch(self) -> str:
        return self.ring._epoch.hex()

    @property
    def begin(self) -> int:
        """The sequence that the subscription began with: this member takes none."""
        return self.consumer._peer.position

    def has_some(self, epoch: str, seq: int) -> bool:
        """Whether an importer with this watermark has a frame of the subscription, or wants none
        that was before."""
        return not epoch or (epoch == self.epoch and seq >= self.begin)

    def missing(self, epoch: str, seq: int) -> int:
        """How many frames an importer with this watermark does not have, while nobody sends it any
        more of this ring.  To a lossy importer each sequence up to the last frame is one."""
        if not epoch:
            return 0
        missed = 0 if self.has_some(epoch, seq) else self.missed
        passed = seq if epoch == self.epoch else self.ring.slots - 1
        if not self.consumer.lossless:
            slots = snapshot(self.ring._header)["slots"]
            last = max((each["seq"] for each in slots if each["phase"] == "ready"), default=0)
            return missed + max(0, last - passed)
        left = max(0, self.begin - 1 - passed)
        for _ in range(self.ring.slots):  # no more, if somebody still writes frames
            try:
                slot = self.consumer.acquire(_LEFT_S)
            except FrameTorn:
                continue
            except RingError:
                break
            left += slot.seq > passed
            with contextlib.suppress(FrameTorn):
                slot.release()
        return missed + left

    def close(self) -> None:
        with contextlib.suppress(RingError):
            self.consumer.close()
        self.ring.close()
        if self.next is not None:
            self.next.close()


class Export(Bridge):
    """The near side.  It is a member of each importer's subscription that takes no frames, so the
    frames of a worker that was killed are there for the next one."""

    def __init__(self, title: str, told: dict[str, Any]) -> None:
        super().__init__(title, told)
        self._kept: dict[str, _Kept] = {}

    @property
    def address(self) -> str:
        """Where it listens, "10.0.0.5:9760".  Waits until it does, and raises RingError if it
        cannot."""
        while not self._started.wait(0.05):
            if self._over.is_set():
                self._raise_if_over()
                break
        return str(self._told["listen"])

    def _known(self) -> dict[str, Any]:
        kept = self._kept.items()
        return {"kept": {name: (each.epoch, each.begin, each.had) for name, each in kept}}

    def _rings(self) -> list[Ring]:
        places = [each for kept in self._kept.values() for each in (kept, kept.next)]
        return [each.ring for each in places if each is not None]

    def _asked_for(self, message: dict[str, Any]) -> None:
        if "listens" in message:
            self._told["listen"] = message["listens"]  # for the next worker, too
            if not self._started.is_set():
                log.info("%s: listens at %s", self._title, message["listens"])
            self._started.set()
        elif message["do"] == "leave":
            self._give_up(message["name"])
            self._say(left=message["name"])
        elif message["do"] == "note":
            self._note(**message)
        elif message["do"] == "follow":
            self._follow(message)
        else:
            self._keep(message)

    def _keep(self, message: dict[str, Any]) -> None:
        name, epoch, has = message["name"], message["epoch"], message["has"]
        kept, error = self._kept.get(name), None
        if kept is None or kept.epoch != epoch:
            following, missed = None, 0
            if kept is not None:
                missed = kept.missing(**has)
                following, kept.next = kept.next, None
            self._give_up(name)
            if following is not None and following.epoch != epoch:  # it was replaced, too
                missed += following.missing(**has)
                following.close()
                following = None
            try:
                kept = self._kept[name] = following or self._joined(message)
                kept.missed = missed
            except RingNotFound:  # it was replaced meanwhile: the worker alone has its frames
                self._say(joined=name, epoch=epoch, error=None, missed=missed)
                return
            except (RingError, ValueError, OSError) as refused:
                error, kept = str(refused), None
        elif kept.has_some(**has):
            kept.missed = 0  # they were counted before what it has
        missed = 0 if kept is None else kept.missed
        self._say(joined=name, epoch=epoch, error=error, missed=missed)

    def _follow(self, message: dict[str, Any]) -> None:
        """Joins the ring that has taken the place of one that is still needed.  So the worker can
        go on there when that ring has no name any more."""
        kept = self._kept.get(message["name"])
        if kept is not None and kept.next is None:
            with contextlib.suppress(RingError, ValueError, OSError):  # `_keep` tries again
                kept.next = self._joined(message)

    def _note(self, do: str, name: str, epoch: str, had: int | None) -> None:
        kept = self._kept.get(name)
        if kept is not None and kept.epoch == epoch:
            kept.had = had

    def _joined(self, message: dict[str, Any]) -> _Kept:
        ring = attach(self._told["ring"], device=self._told["device"])
        try:
            if ring._epoch.hex() != message["epoch"]:
                raise RingNotFound(f"ring {ring.name!r} was replaced meanwhile")
            options = {"lossless": message["lossless"], "gate": "host"}
            consumer = ring.consumer(message["subscription"], **options)
        except (RingError, ValueError, OSError):
            ring.close()
            raise
        return _Kept(ring, consumer)

    def _give_up(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            kept.close()

    def _leave(self) -> None:
        for name in [*self._kept]:
            self._give_up(name)


class Import(Bridge):
    """The far side.  It owns the far ring, and is a producer there that publishes nothing, so the
    death of a worker is not the end of the stream."""

    def __init__(self, title: str, told: dict[str, Any], slots: int) -> None:
        super().__init__(title, told)
        self._slots = slots
        self._left: stats.Link | None = None
        """How far the ring had come that an importer has left, if it cannot be gone on with."""
        self._ring: Ring | None = self._found()
        self._producer: Producer | None = None
        self._ended = False
        if self._ring is not None:
            self._settle(self._ring)

    def _found(self) -> Ring | None:
        """The ring that an importer which was killed has left, to go on with.  Raises RingExists if
        the ring is in use."""
        name, device = self._told["as"], self._told["device"]
        try:
            _check_unused(name)
            left = stats.collect(name, directory.look(name)).link  # now that nobody writes it
        except (RingNotFound, RingIncompatible):
            return None
        if left is not None and left.epoch and left.ring == self._told["near"]:
            self._left = left
        try:
            ring = attach(name, device=None if device == "host" else device)
        except (RingError, OSError, TypeError):
            return None
        fits = (ring.memory == "host") == (device == "host") and ring.slots == self._slots
        if fits and ring._link()[0]:
            if not segment.lock_creator(ring._header.lock_fd):
                ring.close()
                raise _in_use(name)
            ring._created = True  # so that closing it closes the ring
            return ring
        ring.close()
        return None

    def _known(self) -> dict[str, Any]:
        left = self._left
        mark = ("", 0) if left is None else (left.epoch, left.seq)
        return {"ring": self._ring is not None, "ended": self._ended, "mark": mark}

    def _rings(self) -> list[Ring]:
        return [] if self._ring is None else [self._ring]

    def _asked_for(self, message: dict[str, Any]) -> None:
        if message["do"] == "ring":
            self._make(message)
            self._say(ring=True)
        elif message["do"] == "end":
            self._ended = True
            if self._producer is not None:
                self._producer.close()
                self._producer = None
            self._say(left=message["died"])
        else:
            self._ended = False
            if self._ring is not None and self._producer is None:
                self._producer = self._ring.producer()
            self._say(begun=True)

    def _make(self, message: dict[str, Any]) -> None:
        """Makes the far ring, for the ring that the near side has now."""
        name, before, epoch = self._told["as"], self._ring, bytes.fromhex(message["epoch"])
        mark = before._link() if before is not None else (b"", 0, 0)
        if mark[0] == epoch:
            return
        left, seq, lost = self._left, message["seq"], mark[2]
        if before is None:
            _check_other(name, epoch)
            if left is not None and left.epoch == message["epoch"]:
                seq = left.seq  # what comes next counts what was lost since then
            if left is not None and left.host == message["host"]:
                lost = left.lost
        try:
            near = Spec.from_bytes(message["spec"].encode())
        except ValueError as error:
            raise RingIncompatible(f"the exporter's ring: {error}") from None
        described = slot_layout.make(
            fields={each.name: (each.shape, each.extended or each.dtype) for each in near.fields},
            meta=near.meta,
            origin={"host": message["host"], "ring": self._told["near"]},
            about={"lost": lost},  # for readers that come from another ring
        )
        try:
            ring = create_of(
                described,
                name,
                slots=self._slots,
                device=self._told["device"],
                replace=None if before is None else True,
            )
        except RingExists:  # somebody has made it since we began
            _check_unused(name)
            raise
        ring._set_link(epoch, seq, lost)
        self._ring, self._ended = ring, False
        self._leave_old(before)
        self._settle(ring)
        log.info(
            "%s: ring %r has %d slot%s in %s memory",
            self._title, name, ring.slots, "s"[: ring.slots != 1], ring.memory,
        )  # fmt: skip

    def _settle(self, ring: Ring) -> None:
        ring.watch()
        self._producer = ring.producer()

    def _leave_old(self, before: Ring | None) -> None:
        if self._producer is not None:
            with contextlib.suppress(RingError):
                self._producer.close()
            self._producer = None
        if before is not None:
            before.close()

    def _leave(self) -> None:
        ring, self._ring = self._ring, None
        with contextlib.suppress(RingError, PeerLost):
            self._leave_old(ring)


def _check_unused(name: str) -> None:
    """Raises RingExists if a ring of this host is in use, RingNotFound, RingIncompatible."""
    header = directory.look(name)
    alive = set(header.live_peers())
    if header.creator_alive or alive & set(header.producers()):
        raise _in_use(name)


def _in_use(name: str) -> RingExists:
    return RingExists(
        f"ring {name!r} exists on this host and is in use. If that is another importer, "
        "one is enough; otherwise choose another name with --as (name in Python)"
    )


def _check_other(name: str, near_epoch: bytes) -> None:
    """Raises RingExists if this name has the near ring itself, as where exporter and importer are
    on one host.  The creator of that ring may be dead, and it must not make way for its copy."""
    with contextlib.suppress(RingNotFound, RingIncompatible, PermissionError):
        if directory.look(name).epoch == near_epoch:
            raise RingExists(
                f"ring {name!r} of this host is the one that is to be imported. "
                "Choose another name with --as (name in Python)"
            )
