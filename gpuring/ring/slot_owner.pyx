"""The slots that a peer has: an object for each, and which of them were handed out.

whose.pyx says whether anybody still has an object.  One that nobody has is used again.  If it is open then, its slot is lost,
and is given back here.
"""
import contextlib

from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint32_t

from gpuring.native.c cimport *
from gpuring.native.peer cimport *
from gpuring.native.signals cimport Dropped
from gpuring.ring.slot cimport Slot, closed
from gpuring.ring.whose cimport is_free

import numpy as np

from gpuring.ring import caller, debug

cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(PyObject *, Py_ssize_t)
    Py_ssize_t PyList_GET_SIZE(PyObject *)

cdef enum:
    LOOKS = 4  # at slots of earlier verbs


cdef inline bint look_at(SlotOwner owner, uint32_t at) noexcept:
    """Whether a slot in `given` is lost.  One that was ended leaves the list, and the last one takes its place."""
    cdef uint32_t index = owner.given[at]
    cdef PyObject *slots = <PyObject *>owner._slots
    if index < PyList_GET_SIZE(slots) and (<Slot>PyList_GET_ITEM(slots, index)).use.open:
        return owner._is_lost(index)
    owner.listed[index] = False
    owner.givens -= 1
    owner.given[at] = owner.given[owner.givens]
    return False


cdef class SlotOwner(Dropped):
    """Whoever has slots: a peer of a ring in this process.  Users do not make it.

    Endpoint derives from it and has `_refused`.  A role has `_role` (its name), `_slot_type` and `_give_back`."""

    def _make_slots(self):
        """Makes an object for each slot of the ring that its peer has joined."""
        kind = self._slot_type if self._watch is None else debug.watched_slots(self._slot_type)
        metas = self._metas()
        self._kind = kind
        self._slots = [self._prepared(index, metas[index]) for index in range(self._ring.slots)]
        self._spares = {}

    def _prepared(self, index, meta):
        ring = self._ring
        slot = self._kind()
        slot._prepare(index, ring.name, self._peer, ring._memory, ring.spec.fields, meta)
        if self._watch is not None:
            slot._begin_watch(ring.spec)
        return slot

    def _make_slot(self, index):
        """Another object for a slot.  Somebody still has its object, though the frame is over."""
        return self._prepared(index, self._metas()[index])

    def _metas(self):
        """A view of each slot's metadata.  The views keep the header mapped."""
        ring = self._ring
        if ring.spec.meta is None:
            return [None] * ring.slots
        header = ring._header
        table = np.ndarray(ring.slots, ring.spec.meta, memoryview(header), 0, (header.meta_stride,))
        table.flags.writeable = self._role == "producer"
        return [table[index] for index in range(ring.slots)]

    cdef Slot _slot(self, gd_call *call, uint32_t index):
        """The object for a slot that `call` has claimed or acquired just now.  Nobody else has it.  If this raises, nothing is
        claimed or held.

        The slot is open from here on, and not from when the C library had it, which was without the GIL.  Until here another
        thread may run that has just ended the slot's last frame and still has its object.  To that thread it is not open."""
        cdef PyObject *slot
        if index < PyList_GET_SIZE(<PyObject *>self._slots):  # else closed, while the one before was made
            slot = PyList_GET_ITEM(<PyObject *>self._slots, index)
            if is_free(slot, 1):
                (<Slot>slot)._owner = self
                (<Slot>slot).use.open = True
                return <Slot>slot
        return self._another(call, index)

    cdef Slot _another(self, gd_call *call, uint32_t index):
        """Another object for a slot whose own somebody still has.

        Python code runs here: signal handlers, which may raise or close us, and other threads, which may close us or look for
        lost slots.  To them the verb is still in progress, and nothing is changed before its end."""
        cdef long busy = self._peer.waiting_in
        cdef Slot slot
        self._peer.waiting_in = PyThread_get_thread_ident()
        try:
            slot = self._renew(index)
            slot.use.open = True
            return slot
        except BaseException:
            self._peer.cancel(call)
            raise
        finally:
            self._peer.waiting_in = busy

    cpdef Slot _renew(self, uint32_t index):
        """Puts another object in the place of one that somebody still has.  The slot is claimed or acquired."""
        cdef Slot before, slot, spare
        if index < PyList_GET_SIZE(<PyObject *>self._slots):
            before, spare = self._slots[index], self._spares.get(index)
            slot = spare if spare is not None and is_free(<PyObject *>spare, 2) else self._make_slot(index)
            slot._succeed(before)
            self._spares[index] = before
        if index >= PyList_GET_SIZE(<PyObject *>self._slots):
            raise self._refused(-<int>GR_REAPED, "claim", None)  # a signal handler has closed us
        slot.use, before.use = before.use, &closed
        self._slots[index] = slot
        slot._owner, before._owner = self, None
        return slot

    cdef int _enter(self) except -1:
        """Before a verb: gives back the slots that were handed out and that nobody has any more.  It looks at those of the last
        verb and at a few of the others, so that a user with many slots does not pay for all of them each time.

        Raises RuntimeError, and has touched nothing, while another verb of this peer is in progress.  The list is that verb's."""
        cdef uint32_t k, last = self.givens, before = last - self.recent
        cdef bint lost = False
        check_idle(self._peer)
        while last > before:
            last -= 1
            lost |= look_at(self, last)
        self.recent = 0
        for k in range(LOOKS):
            if not self.givens:
                break
            self.turn += 1
            lost |= look_at(self, self.turn % self.givens)
        if lost:
            self._give_back_lost()
        return 0

    # ---- slots that nobody has

    cdef bint _is_lost(self, uint32_t index) noexcept:
        cdef PyObject *slot
        if index >= PyList_GET_SIZE(<PyObject *>self._slots):
            return False  # closed
        slot = PyList_GET_ITEM(<PyObject *>self._slots, index)
        return (<Slot>slot).use.open and is_free(slot, 1) and not self._peer.is_forked()

    def _lost(self):
        """The indices of the slots that are open and that nobody has."""
        cdef uint32_t index
        return [index for index in range(len(self._slots)) if self._is_lost(index)]

    def _give_back_if_lost(self, uint32_t index):
        """Whether a slot was lost and has been given back.  Meanwhile a verb is in progress: a signal handler or another thread
        would find the slot lost as well, give it back, and claim or acquire the next frame in it."""
        if self._peer.is_busy() or not self._is_lost(index):
            return False
        self._peer.begin_wait()
        try:
            self._give_back(index)
        finally:
            self._peer.waiting_in = 0
        return True

    def _put_back(self, index):
        """Undoes a claim or a hold that the user has never seen."""
        self._peer.put_back(index)

    def _give_back_lost(self):
        """Gives back the slots that are open and that nobody has.  A Ctrl-C came before their
        caller had them, or they were dropped."""
        lost = sorted(((self._slots[index]._seq, index) for index in self._lost()), reverse=True)
        for seq, index in lost:  # the last first: a consumer goes back step by step
            if not self._give_back_if_lost(index):
                continue
            caller.warn(
                f"ring {self._ring.name!r}: sequence {seq} was "
                f"{'claimed' if self._role == 'producer' else 'acquired'}, and nobody has its slot "
                "any more: it is given back. Keep the slot until you end it",
                ResourceWarning,
            )

    def _give_back(self, index):
        """Ends a slot that nobody has.  If nobody ever had it, this undoes the claim or acquire."""
        raise AssertionError("each role has its own")

    def _finish(self):
        """Ends every claim or hold that is left, also one whose end was interrupted.  Returns the
        errors."""
        errors = []
        with contextlib.suppress(Exception):  # it is tried again below, which returns the error
            self._give_back_lost()
        for index, seq in self._peer.holding():
            slot = self._slots[index]
            try:
                if slot._seq == seq:  # the user had it: its streams may be at work
                    slot._open = slot._cut = True
                    try:
                        slot._end()
                    finally:
                        slot._cut = not slot._open
                else:
                    self._put_back(index)
            except Exception as error:  # the others go back all the same
                errors.append(error)
        return errors
