"""The supervisor of an exporter: a member of each importer's subscription that takes no frames.

So the frames of a worker that was killed are there for the next one.  All but `address` is used by
the supervisor's own thread (supervisor.py of the folder above).
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import Any

from gpuring.bridge.network.addresses import reserved
from gpuring.bridge.stats import LABEL_OF_SUPERVISOR
from gpuring.bridge.supervisor import Bridge, leave, log
from gpuring.errors import FrameTorn, RingError, RingNotFound
from gpuring.native.snapshot import snapshot
from gpuring.ring import inner
from gpuring.ring.attaching import attach
from gpuring.ring.consumer import Consumer
from gpuring.ring.ring import Ring

_LEFT_S = 0.1
"""How long to wait for the GPU work on a frame that is only counted."""


@dataclass
class _Subscription:
    """What the supervisor has of an importer: a ring, and a member of the subscription there."""

    ring: Ring
    consumer: Consumer
    missed: int = 0
    """How many frames the importer lost that only earlier rings had.  They count before the first
    frame of this one, so they are remembered until the importer has one."""
    had: int | None = None
    """Everything up to this sequence had arrived when the importer left.  None: it is there."""
    next: _Subscription | None = None
    """The same in the ring that has taken the place of this one, while this one is still needed."""

    @property
    def epoch(self) -> str:
        return inner.epoch(self.ring)

    @property
    def begin(self) -> int:
        """The sequence that the subscription began with: this member takes none."""
        return inner.peer(self.consumer).position

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
            slots = snapshot(inner.header(self.ring))["slots"]
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

    def close(self, *, stay: bool = False) -> None:
        """Raises RingTimeout, and can be called again.  `stay`: a durable subscription waits for
        another exporter, unless the ring was closed."""
        if not self.ring.closed and (not stay or inner.header(self.ring).closed):
            self.ring.unsubscribe(self.consumer.subscription)
        leave(self.ring)
        if self.next is not None:
            self.next.close(stay=stay)


class Export(Bridge):
    """The near side.  `gpuring.bridge.export` makes it."""

    def __init__(self, title: str, options: dict[str, Any]) -> None:
        super().__init__(title, options)
        self._kept: dict[str, _Subscription] = {}
        self._port: socket.socket | None = None
        """Keeps the port for the next worker.  Otherwise somebody may get it who connects or asks
        for any free port.  Even our importer, if it is on this host, would connect to itself."""

    @property
    def address(self) -> str:
        """Where it listens, "10.0.0.5:9760".  Waits until it does, and raises RingError if it
        cannot."""
        self._check_own()
        while not self._started.wait(0.05):
            if self._over.is_set():
                self._raise_if_over()
                break
        return str(self._options["listen"])

    def _known(self) -> dict[str, Any]:
        kept = self._kept.items()
        return {"kept": {name: (each.epoch, each.begin, each.had) for name, each in kept}}

    def _rings(self) -> list[Ring]:
        places = [each for kept in self._kept.values() for each in (kept, kept.next)]
        return [each.ring for each in places if each is not None]

    def _died(self) -> None:
        if self._port is None and self._started.is_set():
            self._port = reserved(self._options["listen"])

    def _asked_for(self, message: dict[str, Any]) -> None:
        if "listens" in message:
            self._options["listen"] = message["listens"]  # for the next worker, too
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

    def _joined(self, message: dict[str, Any]) -> _Subscription:
        of = self._options
        ring = attach(of["ring"], owner=of["owner"], device=of["device"])
        try:
            if inner.epoch(ring) != message["epoch"]:
                raise RingNotFound(f"ring {ring.name!r} was replaced meanwhile")
            options = {"lossless": message["lossless"], "gate": "host"}
            consumer = ring.consumer(message["subscription"], label=LABEL_OF_SUPERVISOR, **options)
        except (RingError, ValueError, OSError):
            ring.close()
            raise
        return _Subscription(ring, consumer)

    def _give_up(self, name: str, *, stay: bool = False) -> None:
        if name in self._kept:
            self._kept[name].close(stay=stay)
            del self._kept[name]

    def _leave(self) -> None:
        if self._port is not None:
            self._port.close()
        for name in [*self._kept]:
            self._give_up(name, stay=self._again)
