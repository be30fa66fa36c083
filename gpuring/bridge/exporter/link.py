"""The near side of one importer: its subscription, what it has not acknowledged, and its session.

Nothing here knows the network.  A frame that was acquired is held until the far side says that it
was published.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpuring import native
from gpuring.bridge import engines
from gpuring.bridge.engines.contract import Channel, Sender, Slab
from gpuring.bridge.engines.slabs import extent_of, metas_of, nbytes_of, slab_of
from gpuring.bridge.network import wire
from gpuring.bridge.stats import Counts
from gpuring.errors import EndOfStream, FrameTorn, PeerLost, RingError, RingTimeout
from gpuring.ring import inner
from gpuring.ring.consumer import Consumer
from gpuring.ring.read_slot import ReadSlot
from gpuring.ring.ring import Ring

BATCH = 32
"""How many frames one step acquires at most, so that what comes is heard meanwhile."""


@dataclass
class Held:
    """A frame that was acquired and not acknowledged."""

    slot: ReadSlot
    frame: wire.Frame
    """As it is announced.  What depends on the session is set when it is sent."""


@dataclass
class Session:
    """What there is for as long as one connection lasts."""

    number: int
    post: Callable[[wire.Message], None]
    """Sends a message.  Raises EngineError."""
    channel: Channel
    engine: str = ""
    sender: Sender | None = None
    to_slots: int = 0
    """How many slots the far ring has."""
    credits: deque[int] = field(default_factory=deque)
    """Far sequences that are claimed and not used."""
    flying: deque[wire.Frame] = field(default_factory=deque)
    """Frames that were given to the engine, and not announced yet."""
    arrived: set[int] = field(default_factory=set)
    announced: int = 0
    """The last near sequence that was announced."""
    starved: bool = False
    """Whether a frame waits for a credit."""
    ended: bool = False
    """Whether the end of the stream was sent to it, and it has not answered since that it goes on.
    Credits are void meanwhile."""
    asked: bool = False
    """Whether a Begin was sent to it after that end."""


class Link:
    """An importer, as the exporter knows it."""

    def __init__(self, hello: wire.Hello, ring: Ring, consumer: Consumer) -> None:
        self.name, self.policy, self.run = hello.importer, hello.policy, hello.run
        self.ring, self.consumer = ring, consumer
        self.epoch = inner.epoch(ring)
        self.counts = Counts()
        self.session: Session | None = None
        self.died: bool | None = None
        """How the stream has ended.  None: it has not."""
        self.blocked = ""
        """Who keeps the far ring from taking more, as it says."""
        self._set_blocked("", "")
        self.waits_for_gpu = False
        """Whether a frame is published whose GPU work is not done.  Nobody tells us when it is."""
        self.joined = False
        """Whether the supervisor has joined the subscription, too."""
        self.paused = False
        """Whether no frame is acquired any more."""
        self.most: int | None = None
        """How many slots of the near ring it may hold.  None: as many as it has credits."""
        self.next: tuple[Ring, Consumer] | None = None
        """Its place in the ring that has taken the place of this one."""
        self._slab: Slab = slab_of(ring, writable=False)
        self._metas = metas_of(ring, writable=False)
        self._extent = extent_of(ring.spec)
        self._held: deque[Held] = deque()
        self._unsent: deque[Held] = deque()
        self._dropped: list[tuple[int, int]] = []
        """(sequence, lost) of lossy frames that were given up with a session."""
        self._owed = 0
        """What the next frame is to count as lost before it, beside what the ring says."""
        self._counted = 0
        """How much of what the ring says with the first frame is in `_owed` already, or has
        arrived."""
        self._from_passed = False
        self._acked = 0
        self.passed = 0
        """Nothing up to this sequence is sent to a far ring that has nothing yet."""

    def begin_behind(self, passed: int, lost: int | None, counted: int = 0) -> None:
        """Nothing up to the sequence `passed` is sent, and `lost` sequences were lost before the
        first frame.  None: all between the two.  The ring says as well that `counted` of them were
        lost, if it has given up the subscription of an exporter that was killed."""
        self.passed, self._owed, self._from_passed = passed, lost or 0, lost is None
        self._counted = counted

    def missed(self, frames: int) -> None:
        """Adds to the frames that were lost before the first frame."""
        self._owed += frames

    @property
    def lag(self) -> int:
        """How many frames were acquired and not acknowledged."""
        return len(self._held)

    @property
    def wants_frames(self) -> bool:
        """Whether a frame of the near ring could be sent now."""
        session = self.session
        if session is None or not session.credits or self._unsent:
            return False
        return self._may_acquire

    @property
    def _may_acquire(self) -> bool:
        if self.died is not None or self.paused:
            return False
        return self.most is None or len(self._held) < self.most

    @property
    def is_polled(self) -> bool:
        """Whether the engine has frames on their way, and a descriptor that is readable as long as
        that is so."""
        sender = self.session.sender if self.session is not None else None
        return sender is not None and sender.busy and sender.fileno() >= 0

    @property
    def done(self) -> bool:
        """Whether the stream has ended and everything was acknowledged.  What was given up with a
        session may have arrived: the importer says so in the next one."""
        return self.died is not None and not self._held and not self._dropped

    # ---- sessions ------------------------------------------------------------------------------

    def begin(self, session: Session, hello: wire.Hello) -> None:
        """A new session, in which the far side begins with its watermark."""
        self.close_session()
        self.run = hello.run
        seq = hello.seq if hello.epoch == self.epoch else 0
        self._acknowledge(seq)
        self._owed += sum(1 + lost for dropped, lost in self._dropped if dropped > seq)
        self._dropped = []
        self._unsent = deque(self._held)
        self.session = session
        self.counts.sessions += 1

    def close_session(self) -> None:
        """Ends the session.  What was not acknowledged is sent again in the next one, or was lost
        if the importer is lossy."""
        session, self.session = self.session, None
        if session is not None and session.sender is not None:
            session.sender.close()
        self._set_blocked("", "")
        self.waits_for_gpu = False
        if self.policy != "lossless":
            self._dropped += [(held.frame.seq, held.frame.lost) for held in self._held]
            while self._held:
                _release(self._held.popleft().slot)
            self._unsent.clear()

    def close(self, *, stay: bool = False) -> None:
        """Leaves the near ring cleanly, and the next one.  `stay`: a durable subscription waits
        for somebody who joins it, unless the ring was closed."""
        self.close_session()
        self._held.clear()
        self._unsent.clear()
        places, self.next = [(self.ring, self.consumer), self.next], None
        for ring, consumer in filter(None, places):
            try:
                if not stay or inner.header(ring).closed:
                    ring.unsubscribe(consumer.subscription)
                consumer.close()
            finally:
                ring.close()

    def take(self, message: wire.Message) -> None:
        """What the far side says in this session.  Raises EngineError, WireError."""
        session = self.session
        assert session is not None
        match message:
            case wire.Open():
                if session.sender is not None:
                    raise wire.WireError("a session that is opened twice")
                session.engine, session.to_slots = message.engine, message.slots
                session.sender = engines.engine(message.engine).sender(self._slab, session.channel)
                session.sender.open(message.offer)
                if self.died is None:
                    session.post(wire.Begin())
            case wire.Flow(acked, credits):
                if session.sender is None:
                    raise wire.WireError("credits for a session that is not open")
                if acked > max(session.announced, self._acked, self.passed):
                    raise wire.WireError("a frame was acknowledged that was not sent")
                self._acknowledge(acked)
                if credits and session.credits and credits[0] <= session.credits[-1]:
                    raise wire.WireError("credits that do not rise")
                if not session.ended:
                    session.credits.extend(credits)
                if len(session.credits) > session.to_slots:
                    raise wire.WireError("more credits than slots")
            case wire.Begin() if session.asked:
                session.ended = session.asked = False
            case wire.Ping(blocked, by):
                self._set_blocked(blocked, by)
            case wire.AskTime(asked_ns):
                session.post(wire.Time(asked_ns, native.now_ns()))
            case _:
                raise wire.WireError(f"a {type(message).__name__} that does not belong here")

    def _set_blocked(self, blocked: str, by: str) -> None:
        """Who keeps the far ring from taking more.  Producers that wait here are told which
        subscription that is."""
        self.blocked = blocked
        far = by.encode()[: native.MAX_FAR_NBYTES].decode(errors="ignore").encode()
        peer = inner.peer(self.consumer)
        if peer.header.far(peer.subscription) != far:
            peer.header.set_far(peer.subscription, far)

    # ---- frames --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Does what can be done now.  Returns whether there may be more to do at once.

        Raises EngineError if the session is over.
        """
        if self.died is not None:
            self._look_for_more()
        session = self.session
        if session is None or session.sender is None:
            return False
        left = BATCH
        while left and session.credits and (held := self._next()):
            left -= 1
            frame, to_seq = held.frame, session.credits.popleft()
            frame.to_seq, frame.starved, session.starved = to_seq, session.starved, False
            at, to = held.slot.index, to_seq % session.to_slots
            frame.part = session.sender.send(frame.seq, at, to_seq, to, frame.nbytes)
            session.flying.append(frame)
            if len(frame.part):
                self._announce(session, session.sender)  # before the bytes of the next one
        if not session.credits and not session.starved and not session.ended:
            session.starved = bool(self._unsent) or native.ready(inner.peer(self.consumer))
        self._announce(session, session.sender)
        if self.died is not None and not session.ended and not self._unsent and not session.flying:
            session.ended = True
            session.credits.clear()
            session.post(wire.End(self.died))
        return not left

    def _announce(self, session: Session, sender: Sender) -> None:
        session.arrived.update(sender.poll())
        while session.flying and session.flying[0].seq in session.arrived:
            frame = session.flying.popleft()
            session.arrived.discard(frame.seq)
            session.post(frame)
            session.announced = frame.seq
            self.counts.frames += 1
            self.counts.nbytes += frame.nbytes

    def _next(self) -> Held | None:
        if self._unsent:
            return self._unsent.popleft()
        while self._may_acquire:
            slot = self._acquire()
            if slot is None:
                return None
            counted, self._counted = self._counted, 0
            if slot.seq <= self._acked:  # a worker that is dead had sent it
                _release(slot)
                continue
            held = Held(slot, self._described(slot, slot.lost - counted))
            if self._held and held.frame.seq < self._held[-1].frame.seq:
                raise RingError(f"frame {held.frame.seq} came back behind a later one")
            self._held.append(held)
            self.counts.lost += held.frame.lost
            return held
        return None

    def _acquire(self) -> ReadSlot | None:
        self.waits_for_gpu = False
        try:
            if self.policy == "latest":
                return self.consumer.latest(0)
            return self.consumer.acquire(0)
        except RingTimeout:
            self.waits_for_gpu = inner.peer(self.consumer).culprit[0] == native.BY_FENCE
        except EndOfStream:
            self.died = False
        except PeerLost:
            if native.look(inner.peer(self.consumer))[0] != native.PEER_LOST:
                raise  # not a producer, but this consumer was taken for dead
            self.died = True
        return None

    def _described(self, slot: ReadSlot, lost: int) -> wire.Frame:
        # The ring may count frames that have arrived: a dead worker had not learned that.
        lost = max(0, slot.seq - self.passed - 1) if self._from_passed else lost
        lost, self._owed, self._from_passed = lost + self._owed, 0, False
        shape = inner.shape(slot) or ()
        whole = shape == self.ring.spec.fields[0].shape or not shape
        origin = slot.origin
        return wire.Frame(
            seq=slot.seq,
            to_seq=0,
            nbytes=self._extent if whole else nbytes_of(self.ring.spec, shape),
            time_ns=origin.time_ns if origin else _wall_ns(slot.time_ns),
            lost=lost,
            shape=() if whole else shape,
            meta=b"" if self._metas is None else self._metas[slot.index].tobytes(),
        )

    def _acknowledge(self, seq: int) -> None:
        self._acked, self.passed = max(self._acked, seq), max(self.passed, seq)
        while self._held and self._held[0].frame.seq <= seq:
            _release(self._held.popleft().slot)

    # ---- the end of the stream -----------------------------------------------------------------

    def _look_for_more(self) -> None:
        """After the end: whether another producer has joined."""
        if native.look(inner.peer(self.consumer))[0] in (native.ENDED, native.PEER_LOST):
            return
        self.died = None
        if self.session is not None and self.session.ended:
            self.session.asked = True
            self.session.post(wire.Begin())


def _wall_ns(monotonic_ns: int) -> int:
    return time.time_ns() - (time.monotonic_ns() - monotonic_ns)


def _release(slot: ReadSlot) -> None:
    with contextlib.suppress(FrameTorn):  # it was whole when it was acquired: the gate is the host
        slot.release()
