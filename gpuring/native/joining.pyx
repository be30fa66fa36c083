"""How a peer joins.  One Python call is one whole transition of the C library.

Each call takes a new Peer, and returns it when it has joined, or a negative result.
"""
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from gpuring.native.c cimport *
from gpuring.native.device cimport Device
from gpuring.native.peer cimport Peer


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
    cdef int how = GR_START_AT
    cdef uint64_t seq = 0
    cdef unsigned mode = GR_LOSSLESS if lossless else GR_LOSSY
    cdef unsigned policy = GR_REDELIVER if redeliver else GR_DROP
    cdef gr_result result
    if len(name) > 64:
        raise ValueError("a subscription's name has at most 64 bytes")
    peer.header.to_write()
    memset(padded, 0, 64)
    memcpy(padded, <const char *>name, len(name))
    if start == "next":
        how = GR_START_NEXT
    elif start == "oldest":
        how = GR_START_OLDEST
    else:
        seq = start
    with nogil:
        result = gr_join_consumer(peer.header.ring, padded, mode, policy, how, seq, &peer.gd.core)
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
