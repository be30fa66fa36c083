"""How slots that were claimed or acquired together are ended (`_many` of endpoint.pyx takes them): together if one driver call
can record them all, otherwise slot by slot.

No Python code runs between the call of publish, abandon or release, or the end of a `with` block, and the C library.
"""
from libc.stdint cimport INT64_MAX, uint32_t

from gpuring.native.c cimport *
from gpuring.native.peer cimport *
from gpuring.ring.read_slot cimport ReadSlot
from gpuring.ring.slot cimport MAX_BATCH, Slot, current_stream
from gpuring.ring.write_slot cimport WriteSlot

from gpuring.ring.not_copyable import Unique


def still_open(batch):
    """The slots of a batch that were not ended one by one."""
    cdef Slot slot
    return [slot for slot in batch if slot.use.open]


cdef list end_all(batch, verb which, str name):
    """Ends the slots of one peer that are open.  Returns the sequences of those that are known to be torn.  If it raises, the
    next acquire, or close, raises the FrameTorn."""
    cdef uint32_t indices[MAX_BATCH]
    cdef gd_call call
    cdef Slot slot
    cdef Peer peer
    cdef uint32_t n = 0
    cdef int result
    cdef list slots = still_open(batch)
    if not slots:
        return []
    for slot in slots:
        indices[n] = slot.index
        n += 1
    peer = slot._peer
    gd_begin(&call, current_stream(slot), INT64_MAX, n, indices)
    result = peer.end(&call, which)
    if result:
        raise slot._refused(result, name)
    for slot in slots:
        slot._owner = None
    return [call.torn[n] for n in range(call.torns)]


cdef bint is_forked(batch):
    cdef Slot slot = batch[0]
    return slot._peer.is_forked()


class WriteBatch(Unique, tuple[WriteSlot, ...]):
    """Slots claimed together, in order of sequences.  As a context manager it publishes them; if
    the block raises, it abandons them.  Slots that were ended one by one are left alone."""

    def publish(self):
        """Publishes the slots that are still open, in stream order.  Never blocks.

        If one cannot be published, those behind it are abandoned.  Raises as WriteSlot.publish.
        """
        cdef Slot slot
        end_all(self, PUBLISH, "publish")
        for slot in self:
            if slot._cut:  # by the producer's close
                slot._check_open()

    def abandon(self):
        """Gives the slots that are still open back without frames.  Readers pass over their
        sequences."""
        end_all(self, ABANDON, "abandon")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.publish()
        elif not is_forked(self):
            self.abandon()


class ReadBatch(Unique, tuple[ReadSlot, ...]):
    """Frames acquired together, in order of sequences.  As a context manager it releases them;
    frames that were released one by one are left alone."""

    def release(self):
        """Releases the frames that are still open, in stream order.  Never blocks.

        Raises FrameTorn, which names all that are torn, when all are released.  Other errors are
        those of ReadSlot.release.  After one of them the next acquire, or close, raises the
        FrameTorn.
        """
        cdef Slot slot
        torn = end_all(self, RELEASE, "release")
        if torn:
            slot = self[0]
            raise slot._torn_of(torn)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        """Releases the frames, but for those that are to come again."""
        cdef ReadSlot slot
        if kind is not None and is_forked(self):
            return
        if kind is not None:
            for slot in reversed(self):
                if slot.use.open:
                    slot._goes_back(kind)
        self.release()
