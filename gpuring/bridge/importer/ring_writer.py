"""The far side of a bridge: slots of the far ring that are claimed, filled and published in order.

Nothing here knows the network.  A claimed slot is a credit.  Claims outlive a session; what a
session has written into them does not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuring import native
from gpuring.bridge import engines
from gpuring.bridge.engines.contract import Receiver, Slab
from gpuring.bridge.engines.slabs import extent_of, metas_of, nbytes_of, slab_of
from gpuring.bridge.network import wire
from gpuring.bridge.stats import LABEL, Counts
from gpuring.errors import RingFull
from gpuring.registry.diagnosis import blocking_subscription
from gpuring.ring import inner
from gpuring.ring.producer import Producer
from gpuring.ring.ring import Ring
from gpuring.ring.write_slot import WriteSlot

_FEWEST = 2
"""How many credits there are at least, if the ring has room: for the frame that is on its way and
for the next one."""
_CALM = 256
"""After so many frames in a row that had not to wait for a credit, there is one credit less."""
_TURNS = 3
"""How often the near side may speak of the end of the stream before it was answered: it begins,
ends, and goes on."""


@dataclass
class Session:
    """What there is for as long as one connection lasts."""

    receiver: Receiver
    post: Callable[[wire.Message], None]
    """Sends a message.  Raises EngineError."""
    credited: int = 0
    """The last far sequence that was given as a credit."""
    acked: int = 0
    """The last near sequence that was acknowledged."""
    finishing: deque[wire.Frame] = field(default_factory=deque)
    """Frames that were announced, and not published yet."""
    ready: set[int] = field(default_factory=set)
    """Indices of slots that the receiver is done with."""
    turns: deque[wire.End | wire.Begin] = field(default_factory=deque)
    """What the near side has said of the end of the stream, and nobody has asked for."""
    ended: bool = False
    """Whether it has reported an end that was not answered yet.  It takes no credits meanwhile."""
    is_over: bool = False
    """Whether `turn` has reported that end.  A stream that begins before an end needs no answer."""
    answer: bool = False
    """Whether it is to be answered."""


class RingWriter:
    """The far ring as its importer fills it."""

    def __init__(self, ring: Ring, in_flight: int, most: int | None = None) -> None:
        """`in_flight`: how many bytes of frames may be on their way.  `most`: how many frames."""
        self.ring = ring
        self.counts = Counts()
        self.blocked = self.blocked_by = ""
        """Who keeps us from claiming more slots, in words, and which subscription that is.  Empty:
        nobody."""
        self.waits_for_gpu = False
        """Whether that is GPU work.  Nobody tells us when it is done."""
        self.producer: Producer | None = None
        self.session: Session | None = None
        self._extent = extent_of(ring.spec)
        # A claim takes the oldest frame away from lossy readers, so half of the ring stays.
        limit = max(1, min(ring.slots // 2, in_flight // self._extent))
        self._most = limit if most is None else min(limit, most)
        # A reader that joins gets what is claimed after that.  So no more is claimed than is used.
        self.credits = min(_FEWEST, self._most)
        self._calm = 0
        self._claimed: deque[WriteSlot] = deque()
        self._slab: Slab = replace(slab_of(ring, writable=True), window=self._most)
        self._metas = metas_of(ring, writable=True)
        self._epoch, self._seq, self._lost = inner.link(ring)

    @property
    def mark(self) -> tuple[str, int]:
        """(epoch, sequence) of the near ring up to which everything is in the far ring."""
        return self._epoch.hex(), self._seq

    @property
    def wants_slots(self) -> bool:
        """Whether a free slot of the far ring could be claimed now."""
        return (
            self.producer is not None
            and self.session is not None
            and not self.session.ended
            and len(self._claimed) < self.credits
        )

    @property
    def in_flight(self) -> int:
        return len(self._claimed)

    # ---- joining and leaving -------------------------------------------------------------------

    def join(self) -> None:
        """Joins the far ring as its producer."""
        if self.producer is None:
            self.producer = self.ring.producer(gate="host", label=LABEL)

    def leave(self) -> None:
        """Leaves as a producer, cleanly.  The claims that nothing was written to are void."""
        producer, self.producer = self.producer, None
        self._claimed.clear()
        self.blocked, self.blocked_by, self.waits_for_gpu = "", "", False
        if producer is not None:
            producer.close()

    def close(self) -> None:
        """Ends the session, and leaves the far ring cleanly."""
        self.close_session()
        self.leave()
        self.ring.close()

    # ---- sessions ------------------------------------------------------------------------------

    def begin(
        self,
        wanted: str,
        near: Mapping[str, Mapping[str, Any]],
        post: Callable[[wire.Message], None],
    ) -> str:
        """Begins a session over the engine `wanted`.  Returns its name and why it was taken.

        Raises EngineError.
        """
        self.close_session()
        engine, reason = engines.choose(wanted, near, engines.facts(), self._slab)
        receiver = engine.receiver(self._slab)
        self.session = Session(receiver, post, acked=self._seq)
        offer = receiver.open()
        post(wire.Open(engine.NAME, self.ring.slots, offer))
        return f"{engine.NAME} ({reason})"

    def close_session(self) -> None:
        """Ends the session.  After that nothing of it is written into the slots any more."""
        session, self.session = self.session, None
        if session is not None:
            session.receiver.close()

    def take(self, message: wire.Message) -> None:
        """What the near side says in this session.  Raises EngineError, WireError."""
        session = self.session
        assert session is not None
        match message:
            case wire.Frame():
                self._announced(session, message)
            case wire.Data(to_seq, begin, part):
                slot = self._claimed_as(session, to_seq)
                if begin + len(part) > self._extent:
                    raise wire.WireError("data behind the end of a slot")
                session.receiver.write(slot.index, begin, part)
            case wire.End() | wire.Begin():
                if len(session.turns) == _TURNS:
                    raise wire.WireError("a stream that ends and begins again without an answer")
                session.turns.append(message)
                session.ended |= isinstance(message, wire.End)
            case _:
                raise wire.WireError(f"a {type(message).__name__} that does not belong here")

    def _claimed_as(self, session: Session, to_seq: int) -> WriteSlot:
        """The slot of a credit that was not used up."""
        for slot in list(self._claimed)[len(session.finishing) :]:
            if slot.seq == to_seq and to_seq <= session.credited:
                return slot
        raise wire.WireError(f"data for slot sequence {to_seq}, which was not given as a credit")

    def _announced(self, session: Session, frame: wire.Frame) -> None:
        at = len(session.finishing)
        if at >= len(self._claimed) or frame.to_seq != self._claimed[at].seq:
            raise wire.WireError(f"a frame for slot sequence {frame.to_seq} out of turn")
        last = session.finishing[-1].seq if session.finishing else self._seq
        if frame.to_seq > session.credited or frame.seq <= last:
            raise wire.WireError(f"frame {frame.seq} out of turn")
        spec = self.ring.spec
        try:
            fits = frame.nbytes == (nbytes_of(spec, frame.shape) if frame.shape else self._extent)
        except ValueError:
            fits = False
        if not fits or len(frame.meta) != spec.meta_nbytes:
            raise wire.WireError("a frame that is not like the slots of the ring")
        self._adapt(frame.starved)
        index = self._claimed[at].index
        if len(frame.part):
            session.receiver.write(index, frame.nbytes - len(frame.part), frame.part)
            frame.part = b""
        session.receiver.finish(index, frame.nbytes)
        session.finishing.append(frame)

    def _adapt(self, starved: bool) -> None:
        """Gives more credits when frames had to wait for them, and fewer when none had to."""
        if starved and not self.blocked:
            self.credits, self._calm = min(2 * self.credits, self._most), 0
        elif self.credits > _FEWEST:
            self._calm += 1
            if self._calm >= _CALM:
                self.credits, self._calm = self.credits - 1, 0

    # ---- frames --------------------------------------------------------------------------------

    def turn(self) -> wire.End | wire.Begin | None:
        """How the stream has ended, or that it has begun, in the order in which that was said, and
        after all frames before it were published.  None: it goes on as it is."""
        session = self.session
        if session is None or session.finishing or not session.turns:
            return None
        turn = session.turns.popleft()
        session.is_over |= isinstance(turn, wire.End)
        return turn

    def answer(self) -> None:
        """There is a producer again.  The next step says so, if the near side waits for it."""
        if self.session is not None:
            self.session.answer = self.session.is_over

    def step(self) -> None:
        """Does what can be done now.  Raises EngineError if the session is over."""
        session = self.session
        if session is None:
            return
        session.ready.update(session.receiver.poll())
        while session.finishing and self._claimed[0].index in session.ready:
            session.ready.discard(self._claimed[0].index)
            self._publish(self._claimed.popleft(), session.finishing.popleft())
        if session.answer:
            session.answer = session.ended = session.is_over = False
            session.post(wire.Begin())
        if self.producer is not None and not session.ended:
            self._claim(self.producer)
        self._tell(session)

    def _publish(self, slot: WriteSlot, frame: wire.Frame) -> None:
        if self._metas is not None:
            self._metas[slot.index] = np.void(frame.meta)
        inner.set_shape(slot, frame.shape or None)
        lost = self._lost + frame.lost
        inner.set_origin(slot, frame.seq, frame.time_ns, lost)
        slot.publish()
        self._seq, self._lost = frame.seq, lost
        inner.set_link(self.ring, self._epoch, self._seq, self._lost)
        self.counts.frames += 1
        self.counts.nbytes += frame.nbytes
        self.counts.lost += frame.lost

    def _claim(self, producer: Producer) -> None:
        self.blocked, self.blocked_by, self.waits_for_gpu = "", "", False
        while len(self._claimed) < self.credits:
            try:
                self._claimed.append(producer.claim(0))
            except RingFull as full:
                self.waits_for_gpu = inner.peer(producer).culprit[0] == native.BY_FENCE
                if not self._claimed:
                    self.blocked = str(full)
                    self.blocked_by = blocking_subscription(inner.peer(producer))
                return

    def _tell(self, session: Session) -> None:
        # A claim skips sequences that others have, and slots that a lossy reader holds.  What is
        # beyond the window then is reported when older claims are published.
        end = self._claimed[0].seq + self._slab.window if self._claimed else 0
        credits = tuple(slot.seq for slot in self._claimed if session.credited < slot.seq < end)
        if not credits and session.acked == self._seq:
            return
        session.post(wire.Flow(self._seq, credits))
        session.acked = self._seq
        if credits:
            session.credited = credits[-1]
