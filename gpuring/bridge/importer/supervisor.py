"""The supervisor of an importer: it makes and owns the far ring, and is a producer there that
publishes nothing.

So the death of a worker is not the end of the stream.  All but the constructor is used by the
supervisor's own thread (supervisor.py of the folder above).
"""

from __future__ import annotations

import contextlib
from typing import Any

from gpuring import slot_layout
from gpuring.bridge.stats import LABEL_OF_SUPERVISOR
from gpuring.bridge.supervisor import Bridge, leave, log
from gpuring.errors import RingError, RingExists, RingIncompatible, RingNotFound
from gpuring.printable import counted
from gpuring.registry import directory, segment, stats, survey
from gpuring.ring import inner
from gpuring.ring.attaching import attach
from gpuring.ring.creation import create_of
from gpuring.ring.producer import Producer
from gpuring.ring.ring import Ring
from gpuring.slot_layout import Spec


class Import(Bridge):
    """The far side.  `gpuring.bridge.import_` makes it."""

    def __init__(self, title: str, options: dict[str, Any], slots: int) -> None:
        super().__init__(title, options)
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
        name, device = self._options["as"], self._options["device"]
        try:
            _check_unused(name)
            left = survey.collect(name, directory.look(name)).link  # nobody writes it any more
        except (RingNotFound, RingIncompatible):
            return None
        if left is not None and left.epoch and left.ring == self._options["near"]:
            self._left = left
        try:
            ring = attach(name, device=None if device == "host" else device)
        except (RingError, OSError, TypeError):
            return None
        fits = (ring.memory == "host") == (device == "host") and ring.slots == self._slots
        fits = fits and segment.mode(segment.header_name(name)) == self._options["mode"]
        if fits and inner.link(ring)[0]:
            if not inner.take_over(ring):
                ring.close()
                raise _in_use(name)
            return ring
        ring.close()
        return None

    def _known(self) -> dict[str, Any]:
        left = self._left
        mark = (left.epoch, left.seq) if left is not None else ("", 0)
        return {"ring": self._ring is not None, "ended": self._ended, "mark": mark}

    def _rings(self) -> list[Ring]:
        return [] if self._ring is None else [self._ring]

    def _asked_for(self, message: dict[str, Any]) -> None:
        if message["do"] == "ring":
            self._make(message)
            self._say(ring=message["epoch"])
        elif message["do"] == "end":
            self._ended = True
            if self._producer is not None:
                self._producer.close()
                self._producer = None
            self._say(left=message["died"])
        else:
            self._ended = False
            if self._ring is not None and self._producer is None:
                self._producer = self._ring.producer(label=LABEL_OF_SUPERVISOR)
            self._say(begun=True)

    def _make(self, message: dict[str, Any]) -> None:
        """Makes the far ring, for the ring that the near side has now."""
        name, before, epoch = self._options["as"], self._ring, bytes.fromhex(message["epoch"])
        mark = inner.link(before) if before is not None else (b"", 0, 0)
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
            origin={"host": message["host"], "ring": self._options["near"]},
            about={"lost": lost},  # for readers that come from another ring
        )
        try:
            ring = create_of(
                described,
                name,
                slots=self._slots,
                device=self._options["device"],
                mode=self._options["mode"],
                replace=None if before is None else True,
            )
        except RingExists:  # somebody has made it since we began
            _check_unused(name)
            raise
        inner.set_link(ring, epoch, seq, lost)
        self._ring, self._ended = ring, False
        if before is not None:
            leave(before)
        self._settle(ring)
        slots = counted(ring.slots, "slot")
        log.info("%s: ring %r has %s in %s memory", self._title, name, slots, ring.memory)

    def _settle(self, ring: Ring) -> None:
        ring.watch()
        self._producer = ring.producer(label=LABEL_OF_SUPERVISOR)

    def _leave(self) -> None:
        if self._ring is not None:
            leave(self._ring)
            self._ring = None


def _check_unused(name: str) -> None:
    """Raises RingExists if a ring of this host is in use, RingNotFound, RingIncompatible."""
    header = directory.look(name)
    alive = set(header.live_peers())
    if not header.closed and (header.creator_alive or alive & set(header.producers())):
        raise _in_use(name)


def _in_use(name: str) -> RingExists:
    return RingExists(
        f"ring {name!r} exists on this host and is in use. If that is another importer, "
        "one is enough; otherwise choose another name (the argument name, or --as of the command)"
    )


def _check_other(name: str, near_epoch: bytes) -> None:
    """Raises RingExists if this name has the near ring itself, as where exporter and importer are
    on one host.  The creator of that ring may be dead, and it must not make way for its copy."""
    with contextlib.suppress(RingNotFound, RingIncompatible, PermissionError):
        if directory.look(name).epoch == near_epoch:
            raise RingExists(
                f"ring {name!r} of this host is the one that is to be imported. "
                "Choose another name (the argument name, or --as of the command)"
            )
