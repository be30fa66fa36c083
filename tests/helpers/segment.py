"""A header in a memfd with several "processes".

Several `Header`s over one memfd are several processes as far as the core can tell: each has its own
open file description and so its own locks.  `Header.disown()` is the death of such a process.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any

from gpuring.native import Header, Peer
from gpuring.native.snapshot import SLOT_PHASES, TAKE_PHASES
from tests.helpers import raw_verbs
from tests.helpers.layout import FIELDS, place, tables
from tests.helpers.processes import poll
from tests.helpers.words import LOCK_BYTE, lock

WORD_PHASES = {"slot": SLOT_PHASES, "take": TAKE_PHASES}


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
        self.table = tables(slots, max_peers, max_subscriptions)

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

    def peek(self, table: str, field: str, row: int = 0) -> int:
        offset, form = place(self.table, table, field, row)
        return int(struct.unpack_from(form, self.raw, offset)[0])

    def poke(self, table: str, field: str, value: int, row: int = 0) -> None:
        offset, form = place(self.table, table, field, row)
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
