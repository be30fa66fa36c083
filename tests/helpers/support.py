"""What the tests share: a header in a memfd with several "processes", and where rings may live.

Several `Header`s over one memfd are several processes as far as the core can tell: each has its own
open file description and so its own locks.  `Header.disown()` is the death of such a process.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gpuring
from gpuring import slot_layout
from gpuring.arrays import streams
from gpuring.memory import frameworks
from gpuring.native import Header, Peer
from gpuring.native.snapshot import SLOT_PHASES, TAKE_PHASES
from gpuring.ring.creation import create_of
from gpuring.ring.slot import Slot
from tests.helpers import raw_verbs
from tests.helpers.arrays import array_of, assign, to_host
from tests.helpers.layout import FIELDS, SIZES
from tests.helpers.processes import Child, Pipe, open_files, poll

__all__ = [
    "HOST", "ON_GPU", "PLACES", "STREAM_GATED", "Actor", "Child", "Pipe", "Place", "Segment",
    "create_far", "has_slot_without_gil", "lock", "locked", "one_thread_at_a_time", "open_files",
    "pack", "peek", "poke", "poll", "segments_of", "set_fence", "tear", "unpack",
    "written_by_gpu",
]  # fmt: skip

_PAGE = 4096
LOCK_BYTE = 256

WORD_PHASES = {"slot": SLOT_PHASES, "take": TAKE_PHASES}


def _tables(slots: int, max_peers: int, max_subscriptions: int) -> dict[str, int]:
    """Returns where each table of a header begins."""
    sub = _PAGE
    peer = sub + max_subscriptions * SIZES["sub"]
    slot = peer + max_peers * SIZES["peer"]
    take = slot + slots * SIZES["slot"]
    tear = -(-(take + slots * max_subscriptions * SIZES["take"]) // 64) * 64
    work = -(-(tear + slots * max_peers * SIZES["tear"]) // 64) * 64
    fence = -(-(work + 8 * slots * max_peers) // _PAGE) * _PAGE
    return {
        "head": 0, "sub": sub, "peer": peer, "slot": slot, "take": take, "tear": tear, "work": work,
        "fence": fence, "event": fence + -(-8 * slots * max_peers // _PAGE) * _PAGE,
    }  # fmt: skip


class Segment:
    """A header in a memfd, its raw words, and the processes that share it."""

    def __init__(
        self, slots: int = 4, max_peers: int = 8, max_subscriptions: int = 4, **more: Any
    ) -> None:
        self.slots, self.max_peers, self.max_subscriptions = slots, max_peers, max_subscriptions
        self.fd = os.memfd_create("gpuring-test")
        made: dict[str, Any] = {
            "memory": "host", "sync": "host", "gate": "stream", "slot_nbytes": 256,
            "meta_nbytes": 0, "spec": b"{}", "epoch": bytes(range(16)),
        }  # fmt: skip
        self.creator = Header.create(
            self.fd,
            slots=slots,
            max_peers=max_peers,
            max_subscriptions=max_subscriptions,
            **(made | more),
        )
        self.raw = mmap.mmap(self.fd, 0)
        self.actors: list[
            Actor
        ] = []  # kept, because a Header that nobody keeps counts as a dead process
        self._dead: list[int] = []
        self._lock = -1
        self.table = _tables(slots, max_peers, max_subscriptions)

    def close(self) -> None:
        self.unlock()
        self.actors.clear()
        self.raw.close()
        os.close(self.fd)

    @property
    def path(self) -> str:
        """The path at which another process can open the header."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def process(self) -> Header:
        """Returns another Header, which is another process as far as the locks can tell."""
        return Header.attach(self.fd)

    def producer(self, header: Header | None = None) -> Actor:
        return Actor(self, _joined(raw_verbs.join_producer(header or self.process())))

    def consumer(
        self, name: str = "x", lossless: bool = True, start: Any = "next", header: Any = None
    ) -> Actor:
        header = header or self.process()
        return Actor(self, _joined(raw_verbs.join_consumer(header, name.encode(), lossless, start)))

    # ---- death: LOCK keeps the watchdog from clearing it before the test has looked -------------

    def hold(self, byte: int) -> int:
        """Locks one byte as another process would.  Close the descriptor to unlock."""
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            lock(fd, byte)
        except OSError:
            os.close(fd)
            raise
        return fd

    def hold_lock(self) -> int:
        """Takes LOCK, which others have for microseconds only."""

        def take() -> int:
            try:
                return self.hold(LOCK_BYTE)
            except BlockingIOError:
                return 0

        return int(poll(take))

    def unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def reap(self) -> list[int]:
        """Waits until the dead are cleared, by us or by others.  Returns their numbers."""
        header, dead = self.process(), sorted(self._dead)
        self.unlock()

        def gone() -> bool:
            header.reap()
            return all(self.peek("peer", "word", number) == 0 for number in dead)

        poll(gone)
        self._dead.clear()
        return dead

    # ---- raw words ---------------------------------------------------------------------------

    def bytes(self) -> bytes:
        return self.raw[:]

    def at(self, table: str, field: str, row: int = 0) -> tuple[int, str]:
        """Returns the offset of a field, and how to unpack it.  If the field has several words, the
        offset is that of the first one.  The row of a take is slot * max_subscriptions + u."""
        if table in ("work", "fence"):
            return self.table[table] + 8 * row, "<Q"
        offset, nbytes, *_ = FIELDS[table, field]
        return self.table[table] + row * SIZES[table] + offset, "<I" if nbytes == 4 else "<Q"

    def peek(self, table: str, field: str, row: int = 0) -> int:
        offset, form = self.at(table, field, row)
        return int(struct.unpack_from(form, self.raw, offset)[0])

    def poke(self, table: str, field: str, value: int, row: int = 0) -> None:
        offset, form = self.at(table, field, row)
        struct.pack_into(form, self.raw, offset, value)

    def mask(self, field: str) -> int:
        """`sub_mask` or `peer_mask`, all words of it as one number."""
        offset, nbytes, *_ = FIELDS["head", field]
        return int.from_bytes(self.raw[offset : offset + nbytes], "little")

    def work_row(self, slot: int, peer: int) -> int:
        return slot * self.max_peers + peer

    def slot(self, i: int) -> tuple[int, int, str]:
        return unpack(self.peek("slot", "word", i), "slot")

    def take(self, u: int, i: int) -> tuple[int, int, str]:
        return unpack(self.peek("take", "word", i * self.max_subscriptions + u), "take")

    def tear(self, i: int, peer: int) -> tuple[int, int]:
        """Returns (the id of the owner that died, what its fence had reached)."""
        row = self.work_row(i, peer)
        return self.peek("tear", "id", row), self.peek("tear", "reached", row)

    def record(self, i: int) -> tuple[int, int, int]:
        """Returns (producer, id of the producer, value) of the frame in a slot, for Header.torn."""
        return self.slot(i)[1], self.peek("slot", "producer", i), self.peek("slot", "fence", i)

    def claims(self) -> dict[str, int]:
        """Returns every word that names a claim, a hold, a membership or GPU work.  None of them
        may change when a call fails.  (`claim_hint` and the bell may, because they are hints.)"""
        masks = {f"head.{field}": self.mask(field) for field in ("sub_mask", "peer_mask")}
        return masks | {
            f"{table}.{field}[{row}]": self.peek(table, field, row)
            for table, field, rows in (
                ("head", "closed", 1), ("head", "producers", 1),
                ("sub", "word", self.max_subscriptions),
                ("peer", "word", self.max_peers), ("slot", "word", self.slots),
                ("take", "word", self.slots * self.max_subscriptions),
                ("tear", "id", self.slots * self.max_peers),
                ("tear", "reached", self.slots * self.max_peers),
                ("work", "", self.slots * self.max_peers),
                ("fence", "", self.slots * self.max_peers),
            )
            for row in range(rows)
        }  # fmt: skip


def unpack(word: int, table: str) -> tuple[int, int, str]:
    """Returns (sequence, owner, phase)."""
    return word >> 16, word >> 8 & 255, WORD_PHASES[table][word & 255]


def pack(seq: int, owner: int, phase: str, table: str) -> int:
    return seq << 16 | owner << 8 | WORD_PHASES[table].index(phase)


def _joined(peer: Peer | int) -> Peer:
    assert isinstance(peer, Peer), f"join refused: {peer}"
    return peer


class Actor:
    """A peer whose verbs take and return sequences.  A verb that is refused returns a negative
    number, and one without a sequence to return gives 0."""

    def __init__(self, segment: Segment, peer: Peer) -> None:
        self.segment, self.peer = segment, peer
        self.header = peer.header
        self.number, self.subscription = peer.number, peer.subscription
        segment.actors.append(self)

    def _seq(self, result: int) -> int:
        return result if result < 0 else self.peer.seq

    def claim(self, timeout: float | None = 0) -> int:
        return self._seq(self.peer.claim(timeout))

    def acquire(self, timeout: float | None = 0) -> int:
        return self._seq(self.peer.acquire(timeout))

    def latest(self, timeout: float | None = 0) -> int:
        return self._seq(self.peer.latest(timeout))

    def publish(self, seq: int, shape: Any = None) -> int:
        return self.peer.publish(seq % self.segment.slots, seq, shape)

    def abandon(self, seq: int) -> int:
        return self.peer.abandon(seq % self.segment.slots, seq)

    def release(self, seq: int) -> int:
        return self.peer.release(seq % self.segment.slots, seq)

    def give_back(self, seq: int) -> int:
        return self.peer.put_back(seq % self.segment.slots)

    def put(self, frames: int = 1) -> list[int]:
        """Claims and publishes.  Returns the sequences."""
        seqs = []
        for _ in range(frames):
            seqs.append(self.claim())
            assert seqs[-1] > 0, seqs
            assert self.publish(seqs[-1]) == 0
        return seqs

    def get(self) -> int:
        """Acquires and releases.  Returns the sequence, or the negative number of a refusal."""
        seq = self.acquire()
        if seq > 0:
            assert self.release(seq) == 0
        return seq

    def drain(self) -> tuple[list[int], int]:
        """Reads everything that can be read now.  Returns the sequences, and the final refusal."""
        seqs = []
        while (seq := self.get()) > 0:
            seqs.append(seq)
        return seqs, seq

    def die(self, *, unnoticed: bool = True) -> None:
        """The process dies: the kernel drops its locks, and nothing else happens.

        With `unnoticed` no process can clear it, join or leave until `Segment.reap` or `unlock`.
        """
        if unnoticed and self.segment._lock < 0:
            self.segment._lock = self.segment.hold_lock()
        self.segment._dead.append(self.number)
        self.header.disown()


def lock(fd: int, byte: int, kind: int = fcntl.F_WRLCK, *, wait: bool = False) -> None:
    """Takes a lock as another process would.  It is held as long as the file is open."""
    flock = struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, flock)


# ---- rings by their names, and in every kind of memory -----------------------------------------


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds LOCK of a ring, as a stopped process would for ever."""
    with Path(f"/dev/shm/gpuring.{name}").open("r+b") as file:
        lock(file.fileno(), LOCK_BYTE, wait=True)
        yield


def tear(ring: gpuring.Ring, seq: int, held: Slot | None = None) -> None:
    """Marks a frame as torn, as a reaper of its producer does.  Its record must still be there.

    `held`: the slot of a reader that has the frame already.  A frame that a CPU has written becomes
    one of a GPU.
    """
    header = ring._header
    index = seq % header.slots
    if peek(ring, "slot", "fence", index) == 0:
        written_by_gpu(ring, seq)
        if held is not None:
            raw_verbs.note_promise(held, seq << 16)
    by, value = peek(ring, "slot", "producer", index), peek(ring, "slot", "fence", index)
    assert value >> 16 == seq
    row = index * header.max_peers + _producer_of(ring, seq)
    for field, written in (("id", by), ("reached", value - 1)):
        poke(ring, "tear", field, written, row)


def written_by_gpu(ring: gpuring.Ring, seq: int) -> None:
    """As if a GPU had written the frame: its producer has promised that, and the GPU is done.

    Call it before the frame is acquired.
    """
    index, number = seq % ring._header.slots, _producer_of(ring, seq)
    for table in ("work", "fence"):
        _set(ring, table, number, index, seq << 16)
    poke(ring, "slot", "fence", seq << 16, index)


def _producer_of(ring: gpuring.Ring, seq: int) -> int:
    """The number of the frame's producer."""
    header = ring._header
    by = peek(ring, "slot", "producer", seq % header.slots)
    return [raw_verbs.peer_id(header, p) for p in range(header.max_peers)].index(by)


def peek(ring: gpuring.Ring, table: str, field: str, row: int = 0) -> int:
    """A word of a ring that has a name."""
    with _words(ring) as (words, tables):
        at = tables[table] + row * SIZES[table] + FIELDS[table, field].offset
        return int(struct.unpack_from("<Q", words, at)[0])


def poke(ring: gpuring.Ring, table: str, field: str, value: int, row: int = 0) -> None:
    with _words(ring) as (words, tables):
        at = tables[table] + row * SIZES[table] + FIELDS[table, field].offset
        struct.pack_into("<Q", words, at, value)


def set_fence(ring: gpuring.Ring, peer: int, index: int, value: int) -> None:
    """Writes the word of a peer's fence on a slot."""
    _set(ring, "fence", peer, index, value)


def _set(ring: gpuring.Ring, table: str, peer: int, index: int, value: int) -> None:
    with _words(ring) as (words, tables):
        at = tables[table] + 8 * (index * ring._header.max_peers + peer)
        struct.pack_into("<Q", words, at, value)


@contextlib.contextmanager
def _words(ring: gpuring.Ring) -> Iterator[tuple[mmap.mmap, dict[str, int]]]:
    header = ring._header
    tables = _tables(header.slots, header.max_peers, header.max_subscriptions)
    path = Path(f"/dev/shm/gpuring.{ring.name}")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as words:
        yield words, tables


@contextlib.contextmanager
def one_thread_at_a_time() -> Iterator[None]:
    """A thread of Python that runs keeps the GIL until it waits for something."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def has_slot_without_gil(peer: Peer) -> bool:
    """Whether a thread that sleeps in a verb of this peer gets a slot while the caller keeps the
    GIL.  False if that thread needs the GIL first, because its slice is over."""
    until = time.monotonic() + 0.2
    while not peer.holding():
        if time.monotonic() > until:
            return False
    sum(range(20_000))  # long enough for the thread to wait for the GIL
    return True


def create_far(
    name: str, origin: Any, *, slots: int, device: str, memory: str = "auto", **described: Any
) -> gpuring.Ring:
    """A ring as the importer of a bridge makes it."""
    slot = slot_layout.make(**described, origin=origin)
    return create_of(slot, name, slots=slots, device=device, memory=memory)


def segments_of(name: str) -> list[str]:
    """Returns the files in shared memory of rings whose names begin with this name."""
    return sorted(path.name for path in Path("/dev/shm").glob(f"gpuring.{name}*"))


@dataclass(frozen=True)
class Place:
    """A kind of memory and synchroniser of a ring.  It can be pickled, for child processes."""

    name: str
    options: tuple[tuple[str, Any], ...]

    @property
    def on_gpu(self) -> bool:
        return dict(self.options)["device"] != "host"

    @property
    def memory(self) -> str:
        return str(dict(self.options).get("memory", "host"))

    def create(self, ring: str, **options: Any) -> gpuring.Ring:
        return gpuring.create(ring, **(dict(self.options) | options))

    def fill(self, what: Any, value: Any) -> None:
        """Writes a scalar or a NumPy array into a slot or an array, on the current stream."""
        assign(array_of(what) if isinstance(what, Slot) else what, value)

    def read(self, what: Any) -> np.ndarray:
        """Returns a copy of a slot or an array.  On a GPU it waits for the current stream."""
        return to_host(array_of(what) if isinstance(what, Slot) else what)

    def wait(self) -> None:
        """Waits until a GPU has done what the current stream was given."""
        if self.on_gpu:
            device = frameworks.current_device()
            streams.synchronize(device, streams.current(device))


def _gpu(name: str, **options: str) -> Place:
    return Place(name, (("device", "cuda"), *options.items()))


PLACES = (
    Place("host", (("device", "host"),)),
    Place("pinned", (("device", "host"), ("memory", "pinned"))),
    _gpu("cuda-timeline", memory="ipc", sync="timeline"),
    _gpu("cuda-event", memory="ipc", sync="event"),
    _gpu("cuda-event-hostgate", memory="ipc", sync="event", gate="host"),
    _gpu("cuda-vmm-timeline", memory="vmm", sync="timeline"),
    _gpu("cuda-pool-timeline", memory="pool", sync="timeline"),
)
HOST, PINNED, *ON_GPU = PLACES
"""PINNED: used by the CPU."""
STREAM_GATED = [
    *(place for place in ON_GPU if dict(place.options).get("gate") != "host"),
    _gpu("cuda-vmm-event", memory="vmm", sync="event"),
    _gpu("cuda-pool-event", memory="pool", sync="event"),
]
