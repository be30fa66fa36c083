"""What the slot of a producer (write_slot.pyx) and that of a consumer (read_slot.pyx) have in common.

A slot is yours from claim to publish, or from acquire to release.  After that every access to its
frame raises an error, so copy what you need.  Slot objects and the arrays over them are used again
for later frames, but only when nobody has them any more.  A slot that is dropped before its end is
given back by slot_owner.pyx, and a ResourceWarning says so.

slot_owner.pyx hands the objects out and uses them again, and whose.pyx says when.  Between a user's call of publish, abandon or
release and the C library no Python code runs, and none between the begin or end of a `with` block and its frame's.  So no signal
handler does.  The arrays, copies and refusals may run Python code.
"""
from libc.stdint cimport uint32_t
from libc.string cimport memset

from gpuring.native.c cimport *
from gpuring.native.peer cimport *
from gpuring.ring.exported cimport Exported

from gpuring.arrays.interchange import View
from gpuring.arrays.streams import current, handle, synchronize
from gpuring.errors import DeviceError, RingClosed, RingError
from gpuring.memory.frameworks import INSTALL, Span
from gpuring.registry import diagnosis
from gpuring.ring.exported import SlotField
from gpuring.ring.not_copyable import Unique
from gpuring.slot_layout import ARRAY

cdef gd_stream no_streams[1]
memset(&closed, 0, sizeof(closed))
closed.stream = no_streams

cdef enum:
    MAX_VIEWS = 64  # so many arrays of smaller frames a slot remembers


cdef class Slot(Exported):
    """What both kinds of slot have: whose slot it is, which frame it has, and on which streams it was used.

    A kind has `_writable` (whether its arrays may be written) and `_end`.  Users do not make it."""

    __reduce_ex__ = Unique.__reduce_ex__  # no copies, no pickles

    def __cinit__(self):
        self.use = &closed  # until it is bound

    def _prepare(self, uint32_t index, ring, Peer peer not None, memory, fields, meta):
        """Makes the views, and binds the slot to its peer.  It is called once for each object."""
        self._ring, self._memory = ring, memory
        self._fields = {field.name: field for field in fields}
        self._views = {field.name: memory.array(index, field, field.shape, writable=self._writable) for field in fields}
        self.index, self._peer, self._device = index, peer, peer.device
        self.use = &peer.gd.use[index]
        whole = self._views.get(ARRAY)
        self._whole, self._meta = None if isinstance(whole, Span) else whole, meta
        return self

    @property
    def _open(self):
        return self.use.open

    @_open.setter
    def _open(self, bint value):
        if self.use != &closed:
            self.use.open = value

    @property
    def _streams(self):
        """The handles of the streams that it was used on.  The stream that it was claimed or acquired for comes first."""
        cdef uint32_t k
        gd_leave_thread(self.use)
        return tuple([<size_t>self.use.stream[k] for k in range(self.use.streams)])

    @property
    def _stream(self):
        gd_leave_thread(self.use)
        return <size_t>self.use.stream[0]

    @_stream.setter
    def _stream(self, size_t stream):
        """Puts one of _streams first."""
        cdef uint32_t k
        for k in range(self.use.streams):
            if self.use.stream[k] == stream:
                self.use.stream[k], self.use.stream[0] = self.use.stream[0], stream

    def _import_on(self, size_t stream):
        """Orders a stream behind all streams that were used so far, and remembers it.  Raises DeviceError."""
        self._peer.use_on(self.index, stream)

    @property
    def seq(self):
        """The frame's sequence.  A ring of N slots begins with N."""
        self._seen = True
        return self._seq

    @property
    def restarted(self):
        """Whether the stream began again with this frame (`reattach=True`).  This peer has waited for
        another producer or has moved to another ring, `ring` of the consumer or producer.

        In another ring the sequences start over, and slots have other addresses and maybe another
        shape.  A reader may have missed frames before this one.  `lost` counts those that were in
        the same ring as this one.
        """
        return self._restarted

    @property
    def array(self):
        """The frame as an array over the slot: `cupy.ndarray` on a GPU, `numpy.ndarray` on the host.
        Where CuPy is not installed, a GPU's slots have none: use `torch.from_dlpack(slot)`.

        A pinned ring that was attached with a device has CuPy's arrays, over the slot in host memory.
        Each access of the GPU then goes over the bus, so upload what it reads more than once.

        On the host the array of a reader is read-only.  On a GPU the stream of claim or acquire
        already waits for the work of those who used the slot before.  If you use the array on
        another stream, call `slot.use_on(stream)`, or order that stream yourself.

        Raises TypeError if the slot has several fields (use `slot[name]`), RingError if the slot is no
        longer yours, DeviceError on a GPU without CuPy.
        """
        self._seen = True
        if self.use.open and self._shape is None and self._whole is not None:
            return self._whole
        return self._shown(ARRAY, self._over(self._only()))

    @array.setter
    def array(self, value):
        raise AttributeError("the array of a slot is written in place: slot.array[...] = value, or slot.copy_from(value)")

    @property
    def meta(self):
        """The frame's metadata: a `numpy.void` over the header, `slot.meta["pts"]`.

        It is a view: what you write here is in the ring at once, and what you keep needs a `.copy()`.  Raises
        TypeError if the ring has no metadata (`ring.spec.meta` is None then), RingError if the slot is no longer yours.
        """
        self._seen = True
        if not self.use.open:
            self._check_open()
        if self._meta is None:
            raise self._has_no_meta()
        return self._meta

    @meta.setter
    def meta(self, value):
        raise AttributeError('metadata is written in place: slot.meta["pts"] = value')

    cdef int _begin(self) except -1:
        """Called when the slot has been claimed or acquired."""
        self._seq = self.use.seq
        self._restarted = False
        self._cut = False  # of an earlier frame, by a close that did not succeed
        self._shape = None
        return 0

    def _array_over(self, field, shape):
        """An array over a field, or over its beginning, as this kind of slot may be used."""
        return self._memory.array(self.index, field, shape, writable=self._writable)

    def _succeed(self, before):
        """Called when this object takes the place of another one, which somebody still has."""

    def _check_open(self):
        self._seen = True
        if self._open:
            return
        what = f"ring {self._ring!r}: slot {self.index} (sequence {self._seq})"
        if self._cut:
            role = "producer" if self._writable else "consumer"
            raise RingClosed(f"{what} was given back when this {role} was closed")
        raise RingError(
            f"{what} is no longer yours; "
            "a slot is valid from claim to publish and from acquire to release. "
            "A loop over frames releases each one when it moves on"
        )

    def _only(self):
        """The name of the only field.  Raises TypeError if there are several."""
        self._check_open()
        if ARRAY not in self._fields:
            names = ", ".join(repr(name) for name in self._fields)
            raise TypeError(
                f"ring {self._ring!r} has the fields {names}: "
                "use slot[name], not slot.array, and slot.field(name) for other libraries"
            )
        return ARRAY

    def _over(self, name):
        """The array over a field of the frame, for the package itself: a Span on a GPU without CuPy."""
        self._check_open()
        shape = self._shape
        if shape is None or name != ARRAY:
            return self._views[name]
        view = self._views.get(shape)
        if view is None:
            if len(self._views) > MAX_VIEWS:
                self._views = {name: self._views[name] for name in self._fields}
            field = self._fields[ARRAY]
            view = self._views[shape] = self._array_over(field, field.smaller(shape))
        return view

    def _shown(self, name, array):
        """An array of `_over` for the user.  Raises DeviceError for a Span."""
        if isinstance(array, Span):
            own, other = ("array", "slot") if name == ARRAY else (f"[{name!r}]", f"slot.field({name!r})")
            raise DeviceError(
                f"ring {self._ring!r}: slot{'.' * (name == ARRAY)}{own} is an array of CuPy, which is not installed: "
                f"use torch.from_dlpack({other}), or {INSTALL}"
            )
        return array

    def _has_no_meta(self):
        return TypeError(
            f"ring {self._ring!r} has no metadata: give create() what frames carry, such as "
            'meta=[("pts", "i8")], and give it to serve() as request_meta= and response_meta='
        )

    def __getitem__(self, name):
        """The array over the field `name` of the slot, as `array` is for a slot with one field.

        Raises KeyError if there is no such field, RingError if the slot is no longer yours, DeviceError
        on a GPU without CuPy (use `slot.field(name)`).
        """
        self._check_open()
        if not isinstance(name, str) or name not in self._fields:
            raise self._has_no_field(name)
        return self._shown(name, self._over(name))

    def __setitem__(self, name, value):
        """Raises TypeError: what a slot holds is written in place."""
        how = f"slot[{name!r}][...] = value, or slot.copy_from(value, field={name!r})"
        if ARRAY in self._fields:
            how = "slot.array[...] = value, or slot.copy_from(value)"
        raise TypeError(f"a field of a slot is written in place: {how}")

    def __iter__(self):
        """Raises TypeError: a slot is one frame, and a loop over it would ask for a field 0."""
        raise TypeError("a slot is one frame and cannot be looped over: call latest() or acquire() for each frame")

    # ---- interchange with other libraries ------------------------------------------------------

    def field(self, name):
        """The field `name` of the slot, for other libraries: `torch.from_dlpack(slot.field("y"))`.

        On a GPU do not use `slot["y"]` for this.  It is a plain array, so the slot does not learn
        of the importer's stream.  Raises KeyError if there is no such field.
        """
        return SlotField(self, self._field_name(name))

    def _field_name(self, name):
        """`name`, or that of the only field.  Raises TypeError, KeyError."""
        if name is None:
            if ARRAY not in self._fields:
                names = ", ".join(repr(each) for each in self._fields)
                raise TypeError(f"ring {self._ring!r} has the fields {names}: say which with field=")
            return ARRAY
        if not isinstance(name, str) or name not in self._fields:
            raise self._has_no_field(name)
        return name

    def _has_no_field(self, name):
        names = ", ".join(map(repr, self._fields))
        told = "; its elements are those of slot.array[...]" if ARRAY in self._fields else ""
        return KeyError(f"ring {self._ring!r} has no field {name!r}; its fields: {names}{told}")

    def _exported(self):
        return self._exported_as(self._only())

    def _exported_as(self, name):
        array = self._over(name)
        stream = None if self._device is None else self._stream
        read_only = self._memory.read_only and not self._writable
        return View(self, self._fields[name], array, read_only, stream, self._import_on)

    def use_on(self, stream):
        """Call this before you use the slot on a further stream.  Returns the slot.

        That stream is made to wait for all work on the slot so far.  What it does until publish or
        release is ordered before the next use of the slot by others.  An import through DLPack does
        this by itself.  Does not block.  Raises TypeError if the CPU uses the ring or `stream` is
        not a stream, RingError if the slot is no longer yours, DeviceError.
        """
        self._check_open()
        if self._device is None and self._memory.device is None:
            raise TypeError(f"ring {self._ring!r} is in host memory: it takes no stream")
        on = current(self._memory.device) if stream is None else handle(stream)
        if self._device is not None:  # else no GPU reaches the slot
            self._import_on(on)
        return self

    def _copies_on(self, stream):
        """The handle of the stream for a copy.  None: the CPU copies, or waits for the copy."""
        if stream is not None:
            self.use_on(stream)
        if self._device is None:
            if stream is not None:
                synchronize(self._memory.device, handle(stream))
            return None
        return self._stream if stream is None else handle(stream)

    def _order(self, stream, others):
        """Orders `stream` behind all work so far on `others`.  Raises DeviceError if it cannot be
        used now, even if there are no others."""
        assert self._device is not None
        self._device.follow(stream, others)

    def _check_stream(self, stream):
        """Raises DeviceError if `stream` cannot be used now: captured, or of another GPU."""
        if self._device is not None:
            self._device.check_stream(stream)

    # ---- the end of its use --------------------------------------------------------------------

    def _end(self):
        """Abandons a claim, or releases a frame."""
        raise AssertionError("each kind of slot has its own")

    def _refused(self, result, verb):
        return diagnosis.refused(self._ring, self._peer, result, verb=verb, timeout=None)

    def __repr__(self):
        state = "open" if self._open else "closed"
        return f"<{type(self).__name__} {self.index} of {self._ring!r}, sequence {self._seq}, {state}>"
