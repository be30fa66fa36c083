"""What producers and consumers have in common: an entry in the peer table, verbs that hand out slots, and a close.

One thread at a time uses an endpoint.  Another one may close it, or look for slots that are lost.  No Python code runs between
the call of a verb and the C library, unless a slot needs another object or a verb waits.  So no signal handler comes there.
"""
import contextlib
import weakref
from types import MethodType
from typing import Literal

from libc.stdint cimport int64_t, uint32_t

from gpuring.native.c cimport *
from gpuring.native.clock cimport deadline_of
from gpuring.native.peer cimport *
from gpuring.ring.slot cimport Slot
from gpuring.ring.slot_owner cimport SlotOwner, remember

from gpuring import native
from gpuring.arguments import integer
from gpuring.arrays import streams
from gpuring.errors import RingClosed, RingError, RingTimeout, raise_first
from gpuring.registry import diagnosis
from gpuring.ring import caller, debug, following
from gpuring.ring.not_copyable import Unique

Gate = Literal["stream", "host"]


cdef class Endpoint(SlotOwner):
    """One peer of a ring in this process, with its slots.  Users do not make it.

    A role has `_role` (its name), `_slot_type`, `_batch` (the kind of its batches), `_takes` (the verbs that hand out slots),
    `_ends` (the results of a verb that mean that the stream is over) and `_give_back`."""

    __reduce_ex__ = Unique.__reduce_ex__  # no copies, no pickles

    def __init__(self, ring, Peer peer not None, again=None):
        self._made_at = caller.line() if debug.ON else ""
        self._again, self._home, self._late = again, ring, -1
        self._settle_in(ring, peer)

    def _settle_in(self, ring, Peer peer not None):
        """Makes `peer` of `ring` this endpoint's own, and prepares its slots."""
        self._ring = ring
        self._peer = peer
        self._device = peer.device
        self._closed = False  # after these, which _dropped needs where a Ctrl-C has come
        self._watch = debug.Watcher(self._put_back) if debug.ON else None
        self._make_slots()
        if self._watch is not None:
            self._have_watched(self._watch)
        ring._endpoints[id(self)] = weakref.ref(self)

    def _have_watched(self, watch):
        """In debug mode: gives this object verbs of its own, which call those of its class."""
        self._batch = debug.watched_batches(type(self)._batch)
        self._replaced = True
        for name in self._takes:
            setattr(self, name, MethodType(watch.verb(getattr(type(self), name)), self))

    @property
    def ring(self):
        """The ring that it has joined.  With `reattach=True` it is another one after a restart."""
        return self._ring

    @property
    def peer(self):
        """This peer's number in the ring's peer table, as `gpuring inspect` shows it."""
        return self._peer.number

    @property
    def closed(self):
        """Whether it was closed, by its own `close` or by that of the Ring that it came from."""
        return self._closed

    def _handle(self, stream):
        """The raw handle of a stream that the user gave.  None: the current one."""
        if self._device is None and self._ring._memory.device is None:
            raise TypeError(f"ring {self._ring.name!r} is in host memory: it takes no stream")
        if self._device is None:  # all GPU work on its slots is waited for
            return 0
        return self._device.current() if stream is None else streams.handle(stream)

    def _refused(self, result, verb, timeout):
        if self._answers_nothing():
            return RingClosed(f"ring {self._ring.name!r}: this {self._role} was closed")
        if self._polled and result == native.BLOCKED:
            self._notify().arm(self._peer)
        if self._waits_out(result):
            if self._polled:
                following.watch(self, self._notify())
            return diagnosis.resting(self._ring.name, self._ring._header, result, verb=verb, timeout=timeout)
        return diagnosis.refused(self._ring.name, self._peer, result, verb=verb, timeout=timeout)

    def fileno(self):
        """A descriptor for selectors, poll and event loops.

        It is readable when `acquire(0)` of a consumer, or `claim(0)` of a producer, may have an
        answer.  An answer is a slot, or an error other than RingTimeout.  (A FrameTorn of frames
        that were released comes with the next answer.)

        Wait until it is readable, call `acquire(timeout=0)`, and wait again after RingTimeout.  It
        stays readable until a call times out.  So a program may take one frame each time or all
        of them, and misses none.  Never read or close it.  After EndOfStream or PeerLost it stays
        readable: take it out of the loop.  It is the same number for the whole life of this object,
        also after a restart.  With gate="host" pass a short timeout instead of 0, because the GPU
        may not be done.

        With reattach=True it is not readable at the end of a stream.  It becomes readable when
        another producer joins, or when there may be a new ring.  A file that another program makes
        in /dev/shm looks like one, so it may become readable without reason, at most 40 times a
        second.

        The first call starts a native thread, one for the process.  Raises OSError if there can be
        no thread or no descriptor, RingError in a forked child.
        """
        if self._ring._header.forked:
            raise diagnosis.unusable(self._ring.name, native.FORKED)
        notifier = self._notify()
        if not self._polled and not self._closed:
            self._polled = True
            notifier.arm(self._peer)
        return notifier.fileno()

    def _notify(self):
        if self._notifier is None:
            if self._closed:
                raise RingClosed(f"ring {self._ring.name!r}: this {self._role} was closed")
            follows = self._again is not None
            self._notifier = following.NamesNotifier() if follows else native.Notifier()
        return self._notifier

    def _answers_nothing(self):
        """Whether it was closed, or another thread is about to close it."""
        return self._closed or self._peer.stopped

    def _answers_at_once(self):
        """Whether its verb has an answer that the core does not know of."""
        return self._answers_nothing()

    # ---- verbs, up to where their caller has the slot

    def _recover(self):
        """What a verb begins with, for a wait that begins with a look."""
        self._enter()

    cdef int _tell_first(self) except -1:
        """What a verb raises before it looks at the ring."""
        return 0

    # ---- over restarts: see following.py

    def _waits_out(self, result):
        """Whether `result` of a verb is an end that this endpoint waits out."""
        header = self._ring._header
        return result in self._ends and (
            self._again is not None
            or self._late == header.producers_gone and header.creator_alive and not header.closed)

    cdef bint _goes_on(self, int result, int64_t deadline_ns) except -1:
        """Whether a verb that was refused is to be tried again.  If it has met an end that this endpoint waits out, it waits."""
        if result == -<int>GR_BLOCKED:
            self._late = -1  # there is a producer; and the count stops at some time
            return False
        return self._waits_out(result) and following.wait(self, deadline_ns)

    cdef int _first(self, Slot slot) except -1:
        """Marks the first slot after a restart."""
        slot._restarted = self._restarted
        self._restarted, self._late = False, -1
        return 0

    def _move(self, successor):
        """Takes its place in another ring, and then leaves this one.  Returns False if the other ring refuses.

        Slots of this ring that are open stay their user's."""
        try:
            peer = self._again(successor)
            self._count_from(peer, successor)
        except RingError:  # it was closed or is full, and there may be another one soon
            successor.close()
            return False
        except BaseException:
            successor.close()
            raise
        try:
            self._give_back_lost()
            if self._peer.holding():
                self._leave_behind()
            else:
                self._leave()
        except BaseException:
            successor.close()
            raise
        self.moved = True
        self._settle_in(successor, peer)
        self._home._endpoints[id(self)] = weakref.ref(self)
        if self._home.closed:  # it was closed while we moved
            self.close()
        return True

    def _count_from(self, peer, successor):
        """Has `peer`, which has joined the next ring, count what this endpoint has missed."""

    def _leave_behind(self):
        """Makes an object that has this peer and its slots from now on.  The slots that are open keep it.  When the last one of
        them has ended, nobody has it any more, and it leaves the ring."""
        cdef Endpoint left = type(self).__new__(type(self))
        cdef Slot slot
        left._made_at, left._home, left._heir, left.moved = self._made_at, self._home, self, self.moved
        left._ring, left._peer, left._device, left._closed, left._late = self._ring, self._peer, self._device, False, -1
        left._kind, left._slots, left._spares, left._watch = self._kind, self._slots, self._spares, self._watch
        self._begin_left(left)
        for ring in (self._home, self._ring):
            ring._endpoints[id(left)] = weakref.ref(left)
        self._ring._endpoints.pop(id(self), None)
        if self._notifier is not None:
            self._notifier.set()  # whatever waits for us looks at the other ring
        for slot in left._slots:
            if slot.use.open:
                slot._owner = left

    def _begin_left(self, left):
        """What else an object that is left behind needs."""

    def _left_behind(self):
        """Those that this one has left behind, and that are still in their rings."""
        cdef Endpoint each
        return [each for found in list(self._home._endpoints.values()) if (each := found()) is not None and each._heir is self]

    cdef uint32_t _at_most(self, n) except 0:
        n = integer(n, "n")
        if n < 1:
            raise ValueError(f"at least one slot can be asked for, not {n!r}")
        return min(n, self._peer.header.ring.slots)

    cdef _many(self, verb which, n, timeout, stream, kind):
        """A batch, made by `kind` from the list of its slots.  The list itself if that is None, and then it is empty if nothing
        comes in time, unless fileno() was given out."""
        cdef Slot slot
        cdef gd_call call
        cdef uint32_t k
        cdef uint32_t *indices
        cdef list batch = []
        cdef int result
        cdef size_t handle
        cdef int64_t deadline_ns = deadline_of(timeout)
        cdef uint32_t most
        while True:
            handle, most = stream_of(self, stream), self._at_most(n)
            self._enter()
            self._tell_first()
            indices = &self.given[self.givens]
            gd_begin(&call, handle, deadline_ns, most, indices)
            result = self._peer.take(&call, which)
            if not result:
                break
            if kind is None and result == -<int>GR_BLOCKED and not self._polled:
                return batch
            if self._goes_on(result, deadline_ns):
                continue
            raise self._refused(result, "claim" if which == CLAIM else "acquire", timeout)
        self._peer.begin_wait()  # until somebody has them: see _another
        try:
            for k in range(call.got):
                slot = self._slot(&call, indices[k])
                slot._begin()
                batch.append(slot)
            remember(self, call.got)
            if self._restarted or self._late >= 0:
                self._first(batch[0])
            return batch if kind is None else kind(batch)
        except BaseException:  # Ctrl-C, no memory
            self._peer.cancel(&call)
            raise
        finally:
            self._peer.waiting_in = 0

    # ---- its end

    def _dropped(self):
        """Nobody has it any more.  Its slots were dropped, too, because an open slot keeps it.

        Does not wait for the membership lock.  May be called again after a Ctrl-C."""
        if self._closed is None or self._ring._header.forked:
            return
        try:
            if not self._closed and self._heir is None:
                what = f"ring {self._ring.name!r}: a {self._role}"
                caller.warn_not_closed(
                    what, self._made_at, "it leaves the ring", self, self._ring._whole
                )
        finally:  # warnings may be errors
            self._peer.drop()
            with contextlib.suppress(Exception):
                self.close()
            self._forget()

    def _forget(self):
        for ring in (self._ring, self._home):
            if ring is not None:  # a Ctrl-C may have come before it had one
                ring._forget(self)

    def close(self):
        """Leaves the ring cleanly: it abandons the claims and releases the frames that are open,
        waits until the GPU has done its work on the slots, and gives up its entry.

        A claim or acquire that waits in another thread ends with RingClosed.  May be called twice,
        and again after a Ctrl-C.

        Raises RingTimeout, and stays open, if the membership lock cannot be taken for 5 s (a
        stopped process has it), or if a verb of another thread does not end within 5 s.  Raises
        DeviceError if the GPU reports an error.  If everything that was open could be ended, it has
        left the ring even so; otherwise it stays open.  If there are several errors, it raises one,
        whose notes name the others.
        """
        if self._closed:
            return
        errors = []
        for leave in [self._leave, *(left.close for left in self._left_behind())]:
            try:
                leave()
            except Exception as error:
                errors.append(error)
        if errors:
            raise_first(errors)

    def _leave(self):
        """`close`, for what is in the ring that it has joined now."""
        errors = []
        if not self._ring._header.forked and not self._peer.left:
            try:
                errors = self._leave_ring()
            except BaseException:
                self._peer.resume()
                raise
        self._slots = []  # their arrays hold the memory
        self._closed = True
        self._look_back()
        self._forget()
        if self.moved:
            self.moved = False
            self._ring.close()
        if errors:
            raise_first(errors)

    def _look_back(self):
        """Called when it has left.  A consumer has to be told of frames that it has released."""

    def _leave_ring(self):
        """Leaves the ring, and returns the errors on the way.  Raises if it has not left."""
        stopped = self._peer.stop()
        if self._notifier is not None:
            self._notifier.set()  # whatever waits for us finds us closed
        at_end = self._at_end
        if at_end is not None:
            at_end.set()
        if not stopped:
            raise RingTimeout(
                f"ring {self._ring.name!r}: this {self._role} is still in a verb of another thread"
            )
        errors = self._finish()
        if errors and self._peer.holding():
            raise_first(errors)
        try:
            result = self._peer.leave()
            if result not in (0, native.REAPED):  # reaped: there is nothing to leave
                raise diagnosis.unusable(self._ring.name, result)
        except BaseException as error:  # why it is still open comes first
            raise_first([error, *errors])
        return errors

    def _described(self):
        return ""

    def __repr__(self):
        state = "closed" if self._closed else f"peer {self._peer.number}{self._described()}"
        return f"<{type(self).__name__} of {self._ring.name!r}: {state}>"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
