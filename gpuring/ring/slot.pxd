"""The slot of slot.pyx, for compiled code that builds on it."""
from libc.stdint cimport uint32_t, uint64_t

from gpuring.native.c cimport gd_use
from gpuring.native.device cimport Device
from gpuring.native.peer cimport Peer
from gpuring.ring.exported cimport Exported

cdef enum:
    MAX_BATCH = 1024  # GR_MAX_SLOTS, which Cython does not take as the size of an array


cdef class Slot(Exported):
    cdef object __weakref__
    cdef gd_use *use
    cdef readonly uint64_t _seq
    cdef public bint _seen      # whether the object was asked for something of the frame
    cdef public bint _restarted  # whether it is the first one after a restart
    cdef public bint _cut       # whether the peer's close has ended the slot, because its user had not
    cdef readonly uint32_t index
    """Which slot of the ring this is, 0 … slots - 1."""
    cdef readonly Peer _peer
    cdef readonly Device _device
    cdef readonly str _ring     # its name
    cdef readonly object _memory
    cdef readonly dict _fields  # by name
    cdef public tuple _shape    # of a frame that is smaller than the slot, else None
    cdef public object _whole   # the array over the whole slot; None if it has several fields
    cdef public dict _views     # all arrays over it, by name or by shape
    cdef public object _meta
    # The producer or consumer that it belongs to, while it is open.  So whoever has the slot keeps that, too.
    cdef public object _owner
    cdef int _begin(self) except -1


cdef gd_use closed  # of objects whose slot has another object now


cdef inline size_t current_stream(Slot slot) except? 1:
    """The caller's current stream.  0 in host memory."""
    return 0 if slot._device is None else slot._device.current()
