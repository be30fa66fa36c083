# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
# cython: auto_pickle=False
"""Thin binding of core/: one Python call is one whole transition.

Nothing is decided here but three things: when the GIL is released (to wait, and to call the driver), when
signals are looked at (between two slices of a wait), and that a verb whose device order could not be
arranged is undone before the exception leaves.  Refusals come back as negative results; the callers word
them.

    _header.pxi    Header: the mapped header; membership, snapshots
    _device.pxi    DeviceOrder: the driver's functions; the base of gpuring.sync's classes
    _released.pxi  Released: frames that may still turn out torn
    _recorded.pxi  Recorded: on which stream a fence operation is
    _peer.pxi      Peer: the transitions, each with its device order
    _dlpack.pxi    DLPack capsules
    _verbs.pxi     the verbs as users call them, on slot objects: no Python between the call and the core
    _batch.pxi     how batches end
    _waiting.pxi   several peers at once, and event loops
"""
import os

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_Occurred, PyErr_SetFromErrno
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer
from libc.stdint cimport INT64_MAX, int64_t, intptr_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

# What a verb returns when it is refused (the negative of the C result).
BLOCKED = -<int>GR_BLOCKED
CLOSED = -<int>GR_CLOSED
ENDED = -<int>GR_ENDED
PEER_LOST = -<int>GR_PEER_LOST
REAPED = -<int>GR_REAPED
FORKED = -<int>GR_FORKED
DAMAGED = -<int>GR_DAMAGED
FULL_PEERS = -<int>GR_FULL_PEERS
FULL_SUBSCRIPTIONS = -<int>GR_FULL_SUBS
MODE_MISMATCH = -<int>GR_MODE_MISMATCH
LOCK_TIMEOUT = -<int>GR_LOCK_TIMEOUT
TORN = -100  # frames that this consumer has released turned out torn: Peer.released.torn names them
cdef enum:
    BLOCKED_ = -<int>GR_BLOCKED
    DAMAGED_ = -<int>GR_DAMAGED
    TORN_ = -100

# Why a verb is blocked (Peer.culprit[0]).
BY_PRODUCER = <int>GR_BY_PRODUCER
BY_HOLDER = <int>GR_BY_HOLDER
BY_SUBSCRIPTION = <int>GR_BY_SUBSCRIPTION
BY_NO_FRAME = <int>GR_BY_NO_FRAME
BY_FENCE = <int>GR_BY_FENCE

VERSION = GR_VERSION_
MAX_SLOTS = GR_MAX_SLOTS_
MAX_PEERS = GR_MAX_PEERS_
MAX_SUBSCRIPTIONS = GR_MAX_SUBSCRIPTIONS_
MAX_META_NBYTES = GR_MAX_META_
MAX_NDIM = GR_MAX_NDIM
MAX_SPEC_NBYTES = GR_MAX_SPEC
MAX_SLOT_NBYTES = GR_MAX_SLOT_NBYTES
MAX_NAME_NBYTES = 8 * GR_NAME_WORDS

MEMORY_KINDS = ("host", "cuda")
SYNC_KINDS = ("host", "event", "timeline")
GATES = ("stream", "host")
SLOT_PHASES = ("void", "writing", "ready", "torn")
TAKE_PHASES = ("done", "open", "held")


class Damaged(Exception):
    """The segment is no header of this build; the text says what was found."""


def now_ns() -> int:
    """CLOCK_MONOTONIC in nanoseconds: the clock of every time in a header."""
    return gr_now_ns()


def layout_fields():
    """(table, field, offset, nbytes) of every field of the header, for the layout test."""
    fields, k = [], 0
    while gr_fields[k].table != NULL:
        fields.append((gr_fields[k].table.decode(), gr_fields[k].name.decode(),
                       gr_fields[k].offset, gr_fields[k].nbytes))
        k += 1
    return fields


include "_header.pxi"
include "_device.pxi"
include "_released.pxi"
include "_recorded.pxi"
include "_peer.pxi"
include "_dlpack.pxi"
include "_verbs.pxi"
include "_batch.pxi"
include "_waiting.pxi"
