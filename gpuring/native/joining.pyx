"""How a peer joins.  One Python call is one whole transition of the C library.

Each call takes a new Peer, and returns it when it has joined, or a negative result.
"""
from cpython.exc cimport PyErr_SetFromErrno

from gpuring.native.c cimport *
from gpuring.native.device cimport Device
from gpuring.native.peer cimport Peer
from gpuring.native.subscriptions cimport pad, set_start


def join_producer(Peer peer not None, Device device, bint gate_host):
    """Raises DeviceError, OSError."""
    cdef gr_result result
    peer.header.to_write()
    with nogil:
        result = gr_join_producer(peer.header.ring, &peer.gd.core)
    return _joined(peer, result, device, gate_host)


def join_consumer(Peer peer not None, bytes name, bint lossless, start, bint redeliver, Device device, bint gate_host):
    """`start` is "next", "oldest" or a sequence.  Raises DeviceError, OSError."""
    cdef char padded[64]
    cdef gr_terms terms
    cdef unsigned mode = GR_LOSSLESS if lossless else GR_LOSSY
    cdef unsigned policy = GR_REDELIVER if redeliver else GR_DROP
    cdef gr_result result
    peer.header.to_write()
    pad(padded, name)
    terms.start = 0
    set_start(&terms, start)
    with nogil:
        result = gr_join_consumer(peer.header.ring, padded, mode, policy, terms.start_from, terms.start, &peer.gd.core)
    return _joined(peer, result, device, gate_host)


cdef object _joined(Peer peer, gr_result result, Device device, bint gate_host):
    cdef gd_trouble trouble
    if result == GR_SYSTEM:
        PyErr_SetFromErrno(OSError)
    if result != GR_OK:
        return -<int>result
    gr_watch(peer.header.ring)
    peer.device = device
    result = gd_prepare(&peer.gd, NULL if device is None else &device.gd, gate_host, &trouble)
    if result != GR_OK:
        peer.leave()
        raise device.refused(&trouble) if result == GR_DEVICE else MemoryError()
    return peer
