"""What services, bridges and recordings may ask of a ring, beyond what users may.

They use rings as a user's program does, and no name of another folder that begins with an
underscore (tests/test_underscores.py).  Everything else that they need is in this module.  Three of
its functions return objects of the layers below, whose own functions may then be called: the
header, a peer, the memory.

A class of theirs that derives from a producer, a consumer or a slot may override `_slot_type`,
`_metas`, `_give_back`, `_finish` and `_end`, and call these of `super()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuring import native
from gpuring.ring import joining
from gpuring.ring.whose import nobody_has

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuring.memory import Memory
    from gpuring.native import Header, Peer
    from gpuring.ring.caller import Whole
    from gpuring.ring.consumer import Consumer
    from gpuring.ring.endpoint import Endpoint, JoinedRing
    from gpuring.ring.producer import Producer
    from gpuring.ring.read_slot import ReadSlot
    from gpuring.ring.ring import Ring
    from gpuring.ring.slot import Slot
    from gpuring.ring.write_slot import WriteSlot

# ---- a ring --------------------------------------------------------------------------------------


def header(ring: JoinedRing) -> Header:
    """The mapped header, of an open or a closed handle."""
    return ring._header


def memory(ring: JoinedRing) -> Memory:
    """The memory of all slots."""
    return ring._memory


def metadata(
    ring: JoinedRing, *, writable: bool, dtype: npt.DTypeLike | None = None
) -> npt.NDArray[Any]:
    """The metadata of all slots, over the header: as the ring has it, or as `dtype` of the same
    length."""
    stride, buffer = ring._header.meta_stride, memoryview(ring._header)
    table: npt.NDArray[Any] = np.ndarray(
        ring.slots, ring.spec.meta if dtype is None else dtype, buffer, 0, (stride,)
    )
    table.flags.writeable = writable
    return table


def check_open(ring: Ring) -> None:
    """Raises RingClosed, or RingError in a forked child."""
    ring._check_open()


def epoch(ring: Ring) -> str:
    """In hexadecimal digits, as `RingStats.epoch`.  It is known of a damaged header, too."""
    return ring._epoch.hex()


def take_over(ring: Ring) -> bool:
    """Makes this handle the creator's, who is dead.  False if another process was faster."""
    ring._created = native.lock(ring._header.lock_fd, native.CREATOR_BYTE)
    return ring._created


def successor(ring: Ring) -> Ring | None:
    """A handle on the ring that has the name now, if it is another one and was not closed."""
    return ring._successor()


def belongs_to(ring: Ring, whole: Whole) -> None:
    """If the handle and its endpoints are dropped, one warning names the whole."""
    ring._whole = whole


def link(ring: Ring) -> tuple[bytes, int, int]:
    """How far a bridge has come that fills this ring: (epoch of the near ring, near sequence up to
    which everything was published or skipped, frames lost upstream up to there).  The epoch is b""
    if no bridge was here.  An importer asks when it has joined as the producer."""
    ring._check_open()
    return ring._header.link()


def set_link(ring: Ring, epoch: bytes, seq: int, lost: int) -> None:
    """The importer of a bridge says how far it has come: after it has published, and before the
    first frame of another near ring, whose 16 bytes of epoch differ."""
    ring._check_open()
    ring._header.set_link(epoch, seq, lost)


def set_clock(ring: Ring, ahead_ns: int, error_ns: int, time_ns: int) -> None:
    """The importer of a bridge says how far the near host's CLOCK_MONOTONIC was ahead at `time_ns`,
    and by how much that may be wrong."""
    ring._check_open()
    ring._header.set_clock(ahead_ns, error_ns, time_ns)


# ---- a producer, a consumer ----------------------------------------------------------------------


def join_producer(ring: Ring, label: str | None) -> Peer:
    """A peer for an object of a class that derives from Producer."""
    return joining.AsProducer(label=label)(ring)


def join_consumer(
    ring: Ring, subscription: str, *, lossless: bool, redeliver: bool = True, label: str | None
) -> Peer:
    """A peer for an object of a class that derives from Consumer.  It begins with the next
    frame."""
    return joining.AsConsumer(subscription, lossless, redeliver, label=label)(ring, "next")


def peer(endpoint: Endpoint) -> Peer:
    return endpoint._peer


def slots(endpoint: Endpoint) -> list[Any]:
    """The slot objects by index, for `nobody_has`.  Do not change it."""
    return endpoint._slots


def expect_end(consumer: Consumer) -> None:
    """It gets the end of a stream also if it has joined behind that."""
    consumer._late = -1


def count_on(before: Consumer, after: Consumer) -> None:
    """`after`, in another ring, counts as lost what it missed since the last frame of `before`."""
    before._count_on(after._peer, after._ring)


def undo(consumer: Consumer, index: int) -> None:
    """Undoes an acquire, as if the frame had never been handed out."""
    consumer._peer.settle(index)  # else it could be released before this GPU has read it
    consumer._slots[index]._open = False
    consumer._put_back(index)


def claim_again(
    producer: Producer, begun: list[Any], stream: Any, shape: Sequence[int] | None
) -> Any:
    """Takes the first one out of a list of slots that are claimed and were handed out before, and
    returns it as `claim` would."""
    extents = None if shape is None else producer._smaller(shape)
    on = None if producer._device is None and stream is None else producer._handle(stream)
    slot = begun.pop(0)
    if not nobody_has(producer._slots, slot.index, 1):  # its holder would end this claim
        slot = producer._renew(slot.index)
    slot._open = True
    slot._reshape(extents)
    if on is not None:
        try:
            slot._import_on(on)  # behind the work that was begun
        except BaseException:
            slot._end()
            raise
        slot._stream = on
    if producer._watch is not None:
        producer._watch.took((slot,))
    return slot


# ---- a slot --------------------------------------------------------------------------------------


def only_field(slot: Slot) -> str:
    """The name of its only field.  Raises TypeError if there are several."""
    return slot._only()


def array(slot: Slot, name: str) -> Any:
    """The array over a field of its frame.  Without CuPy it is a Span on a GPU, which `slot[name]`
    does not give."""
    return slot._over(name)


def is_open(slot: Slot) -> bool:
    return slot._open


def check_slot(slot: Slot) -> None:
    """Raises RingError if the slot is no longer its user's."""
    if not slot._open:
        slot._check_open()


def end(slot: Slot) -> None:
    """Ends a claim or a hold that the peer has, also if the object was ended."""
    slot._open = True
    slot._end()


def shape(slot: ReadSlot) -> tuple[int, ...] | None:
    """The shape of a frame that is smaller than its slot.  None: it has the slot's own."""
    return slot._shape


def set_shape(slot: WriteSlot, shape: tuple[int, ...] | None) -> None:
    """As `claim(shape=)`, after the claim.  The shape was checked."""
    slot._reshape(shape)


def set_origin(slot: WriteSlot, seq: int, time_ns: int, lost: int) -> None:
    """For a bridge: the frame was `seq` of another ring, and was first published at `time_ns` of
    CLOCK_REALTIME.  `lost` is how many were lost upstream before it, in all.  Raises ValueError,
    RingError if the slot is no longer yours, PeerLost."""
    slot._set_origin(seq, time_ns, lost)
