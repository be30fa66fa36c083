"""The C library, libgpuring.so.0, and its binding.  Other folders import from this module.

core/, device/     the protocol between hosts and the order of GPU work, in C
host/              what a ring is to the operating system: its files, its description, its errors
memory/            slots on GPUs: which GPU, which kind, made, opened and given back
api/               the functions of gpuring.h, for programs in C
names, diagnosis   a ring by its name, its slots, its description, and errors, as host/ has them
memory             … and slots on GPUs, as memory/ has them
c.pxd              what Cython knows of their headers
header, device, gpu, peer, joining, waits, notifier, exchange, files, clock
                   the binding: one Python call is one transition of the C library
results            what a verb returns where it does not succeed
subscriptions      those that stay without a member
taking             who gets a name, which ring makes way, what the dead have left
blocked            what a wait that is blocked asks of the layers above
tracer             events of what peers do, for a tracer of a ring
ranges             verbs as ranges of NVTX, if a program asks for them
snapshot, dlpack, signals
                   a header for people, capsules, the end of a dropped object
streamed           copies past the caches
"""

from gpuring.native.blocked import on_blocked
from gpuring.native.clock import now_ns, seconds
from gpuring.native.device import Device, Driver
from gpuring.native.exchange import Descriptor, fetch, offer
from gpuring.native.files import File, MappedFile, NameWatch
from gpuring.native.header import (
    GATES,
    MAX_FAR_NBYTES,
    MAX_LABEL_NBYTES,
    MAX_META_NBYTES,
    MAX_NAME_NBYTES,
    MAX_NDIM,
    MAX_PEERS,
    MAX_PRODUCERS,
    MAX_SLOT_NBYTES,
    MAX_SLOTS,
    MAX_SPEC_NBYTES,
    MAX_SUBSCRIPTIONS,
    MEMORY_KINDS,
    SYNC_KINDS,
    VERSION,
    Damaged,
    Header,
    Retired,
)
from gpuring.native.joining import join_consumer, join_producer
from gpuring.native.names import (
    CREATOR_BYTE,
    ELSEWHERE,
    LOOK_S,
    NAME_BYTE,
    SETTLING_BYTE,
    SLOT_ALIGNMENT,
    SPEC_KEPT_FREE,
    Missing,
    Named,
    Pace,
    attach_header,
    check_label,
    check_living,
    check_name,
    check_sizes,
    check_subscription,
    find,
    give_name,
    header_path,
    in_use,
    is_name,
    lock,
    make_slots,
    name_is_locked,
    open_slots,
    read_header,
    read_spec,
    refuse_room,
    remove_file,
    slots_path,
    spin_ns,
    unlock,
    unnamed,
    unnamed_file,
)
from gpuring.native.notifier import Notifier
from gpuring.native.ranges import Peer, annotate
from gpuring.native.results import (
    BLOCKED,
    BY_FENCE,
    BY_HOLDER,
    BY_NO_FRAME,
    BY_PRODUCER,
    BY_SUBSCRIPTION,
    CLOSED,
    DAMAGED,
    ENDED,
    FORKED,
    FULL_PEERS,
    FULL_SUBSCRIPTIONS,
    LOCK_TIMEOUT,
    MODE_MISMATCH,
    PEER_LOST,
    PRODUCER_DIED,
    REAPED,
    TORN,
)
from gpuring.native.subscriptions import subscribe, unsubscribe
from gpuring.native.taking import (
    forget,
    goes_with_the_last,
    has_durable,
    has_successor,
    is_kept,
    is_kept_aside,
    is_left,
    make_way,
    may_owe,
    remove_dead,
    remove_left,
    remove_name,
    remove_own,
    settle,
    take_name,
    tidy_sockets,
)
from gpuring.native.tracer import Tracer
from gpuring.native.waits import MAX_WAITED, look, ready, select, show_waiting

__all__ = [
    "BLOCKED", "BY_FENCE", "BY_HOLDER", "BY_NO_FRAME", "BY_PRODUCER", "BY_SUBSCRIPTION", "CLOSED",
    "CREATOR_BYTE", "DAMAGED", "ELSEWHERE", "ENDED", "FORKED", "FULL_PEERS", "FULL_SUBSCRIPTIONS",
    "GATES", "LOCK_TIMEOUT", "LOOK_S", "MAX_FAR_NBYTES", "MAX_LABEL_NBYTES", "MAX_META_NBYTES",
    "MAX_NAME_NBYTES", "MAX_NDIM", "MAX_PEERS", "MAX_PRODUCERS", "MAX_SLOTS", "MAX_SLOT_NBYTES",
    "MAX_SPEC_NBYTES", "MAX_SUBSCRIPTIONS", "MAX_WAITED", "MEMORY_KINDS", "MODE_MISMATCH",
    "NAME_BYTE", "PEER_LOST", "PRODUCER_DIED", "REAPED", "SETTLING_BYTE", "SLOT_ALIGNMENT",
    "SPEC_KEPT_FREE", "SYNC_KINDS", "TORN", "VERSION", "Damaged", "Descriptor", "Device", "Driver",
    "File", "Header", "MappedFile", "Missing", "NameWatch", "Named", "Notifier", "Pace", "Peer",
    "Retired", "Tracer", "annotate", "attach_header", "check_label", "check_living", "check_name",
    "check_sizes", "check_subscription", "fetch", "find", "forget", "give_name",
    "goes_with_the_last", "has_durable", "has_successor", "header_path", "in_use",
    "is_kept", "is_kept_aside", "is_left", "is_name", "join_consumer", "join_producer", "lock",
    "look", "make_slots", "make_way", "may_owe", "name_is_locked", "now_ns", "offer", "on_blocked",
    "open_slots", "read_header", "read_spec", "ready", "refuse_room", "remove_dead", "remove_file",
    "remove_left", "remove_name", "remove_own", "seconds", "select", "settle", "show_waiting",
    "slots_path", "spin_ns", "subscribe", "take_name", "tidy_sockets", "unlock", "unnamed",
    "unnamed_file", "unsubscribe",
]  # fmt: skip
