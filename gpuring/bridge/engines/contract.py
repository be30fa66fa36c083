"""What a bridge needs of an engine: something that carries the bytes of frames to another host.

An engine has two ends.  The *sender* lives beside the near ring and the *receiver* beside the far
one, each in a process that does nothing else.  A pair of them serves one *session*, which is one
connection of an importer to an exporter.  A new connection is a new session and has new ends.

The bridge itself does all else: credits, order, metadata, what is sent again.  It talks over a
*channel*, which is one ZeroMQ connection.  Messages on it arrive in order, or the session is over.

    far                                              near
    receiver = engine.receiver(slab)
    offer = receiver.open()          --- offer -->   sender = engine.sender(slab, channel)
                                                     sender.open(offer)
    claims slots                     -- credits -->  acquires a frame for each credit
                                                     sender.send(seq, index, to_seq, to_index, n)
    receiver.write(…), if the        <--- data ----  channel.data(…)
    engine sends over the channel                    sender.poll() returns [seq]
    receiver.write(…), likewise      <-- frame ----  the bridge says which frame is in which slot,
    receiver.finish(to_index, n)                     and sends the part that send has returned
    receiver.poll() returns [to_index]
    publishes                        ---- ack ---->  releases the frame
    receiver.close()                                 sender.close()

Rules for both ends:

* One thread uses an end.  No call blocks for longer than some milliseconds, but for `open` and
  `close`, which may take a second.
* Whatever goes wrong with the transfer, the other end or the network raises EngineError.  The
  session is over then: the bridge calls `close` and makes a new session.  So an end never tries to
  repair itself, and keeps nothing beyond its session.
* `close` may be called at any time, also before `open`, after an error and twice.  It raises
  nothing.
* `fileno()` is a descriptor that becomes readable when `poll` may have news, or -1.  With -1 the
  bridge calls `poll` again and again, but only while `busy` is true.  An idle end costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpuring.errors import RingError


class EngineError(RingError):
    """A transfer failed, or the other end is gone.  The session is over."""


@dataclass(frozen=True)
class Slab:
    """All slots of a ring, as an engine sees them: one piece of memory."""

    pointer: int
    """The address of slot 0 in this process; on a GPU a device pointer."""
    slots: int
    """How many slots there are."""
    slot_nbytes: int
    """The distance of two slots in bytes."""
    memory: str
    """ "host", "ipc", "vmm" or "pool", as `Ring.memory`."""
    gpu: int | None
    """The ordinal of the GPU in this process.  None: host memory."""
    owner: Any
    """Keeps the memory mapped.  On the host it is a `memoryview` of all bytes, which may be written
    on the far side; on a GPU it is nothing that one can look into."""
    window: int
    """On the far side: the sequences of all slots that are written to at one time are less than
    this apart.  Slot `index` has the sequences that are `index` modulo `slots`."""

    def address(self, index: int) -> int:
        """The address of a slot."""
        return self.pointer + index * self.slot_nbytes

    def part(self, index: int, begin: int, nbytes: int) -> Any:
        """`nbytes` of a slot from `begin` on: a part of `owner`, without a copy."""
        at = index * self.slot_nbytes + begin
        return self.owner[at : at + nbytes]


class Channel(Protocol):
    """How a sender that has no network of its own sends bytes, in order with the bridge's messages.
    Those never wait behind a large frame, because it is sent in parts."""

    def data(self, to_seq: int, begin: int, part: Any, *, track: bool = False) -> Any:
        """Sends `part`, a contiguous buffer of at most `wire.MAX_PART` bytes, for the far slot that
        was claimed as sequence `to_seq`, where it belongs at `begin` bytes from the slot's start.

        Does not copy large parts and does not block.  It keeps the buffer alive for as long as it
        needs it.  With `track` it returns an object whose `done` says whether the buffer may be
        changed, and otherwise None.  Raises EngineError.
        """


class End(Protocol):
    """What both ends have."""

    @property
    def busy(self) -> bool:
        """Whether a frame was sent, or a slot was finished, that `poll` has not returned yet."""

    def fileno(self) -> int:
        """See above."""


class Sender(End, Protocol):
    """The near end of a session."""

    def open(self, offer: bytes) -> None:
        """Connects to the receiver that made this offer.  Raises EngineError, also for an offer
        that cannot be read: it came over the network."""

    def send(self, seq: int, index: int, to_seq: int, to_index: int, nbytes: int) -> Any:
        """Begins to carry the first `nbytes` of slot `index` of the near ring to slot `to_index` of
        the far ring, which the far side has claimed as its sequence `to_seq`.

        `seq` is the frame's sequence in the near ring and rises from call to call.  The bytes of
        the slot are written (no GPU work on them is pending), and do not change until `close`, or
        until the far side has published the frame.  `nbytes` is at least 1.  Several may be in
        flight.  Raises EngineError.

        Returns the frame's last bytes, a contiguous buffer of at most `wire.MAX_PART`, if the
        bridge shall send them over the channel with the announcement.  So a small frame is one
        message.  Otherwise it returns b"".
        """

    def poll(self) -> list[int]:
        """The sequences of frames whose bytes have arrived since the last call, in any order: what
        the bridge says from now on is read by the far side when it has the bytes in the far slot or
        from `Channel.data`.  The part that `send` has returned is not meant.  Never blocks.  Raises
        EngineError."""

    def close(self) -> None:
        """Ends the session.  When it returns, the engine writes no byte into the far memory any
        more, as far as this end can know, and gives up all that it had of the near memory.  (Parts
        that were given to the channel keep the memory mapped.)"""


class Receiver(End, Protocol):
    """The far end of a session."""

    def open(self) -> bytes:
        """Prepares to receive, and returns the offer: at most `wire.MAX_OFFER` bytes, which the
        sender gets.  Raises EngineError."""

    def write(self, index: int, begin: int, part: Any) -> None:
        """Takes a part that came over the channel for slot `index`, at `begin` bytes from its
        start.  The bridge has checked that the slot is claimed for this session, and that the part
        ends within it.  The buffer lasts as long as somebody refers to it.  Raises EngineError if
        this engine does not send over the channel."""

    def finish(self, index: int, nbytes: int) -> None:
        """The near side says that all `nbytes` for slot `index` have arrived, as `Sender.poll` has
        it.  Begins what is left to do until a producer may publish the slot, such as copies to a
        GPU or a flush.  Raises EngineError."""

    def poll(self) -> list[int]:
        """The indices of finished slots that may be published now, in any order: their bytes can be
        seen by every reader, on the GPU as well, without waiting for a stream.  Never blocks.
        Raises EngineError."""

    def close(self) -> None:
        """Ends the session.  When it returns, nothing of this session is written into the far
        memory any more, whatever the near side does, and no copy is pending.  Only then does the
        bridge use its claimed slots again."""


class Engine(Protocol):
    """A module of gpuring.bridge.engines."""

    NAME: str

    def facts(self) -> Mapping[str, Any] | None:
        """What the other side has to know of this machine to choose: JSON, below 4 KiB.  None if
        the engine cannot be used here.  It imports what it needs, and raises nothing."""

    def suits(
        self, near: Mapping[str, Any], far: Mapping[str, Any], slab: Slab
    ) -> tuple[bool, str]:
        """Whether `auto` should take this engine, and why or why not, in one line.  `near` and
        `far` are the facts of the two sides, and `slab` is that of the far side.  `near` came over
        the network."""

    def sender(self, slab: Slab, channel: Channel) -> Sender:
        """The near end of a new session.  Raises EngineError."""

    def receiver(self, slab: Slab) -> Receiver:
        """The far end of a new session.  Raises EngineError."""
