"""The words and locks of a ring's header: tests read them, and write what the dead, a GPU or a
stranger would have written."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import gpuring
from gpuring.native.snapshot import snapshot
from gpuring.ring.slot import Slot
from tests.helpers import raw_verbs
from tests.helpers.layout import place, tables

LOCK_BYTE = 256


def lock(fd: int, byte: int, kind: int = fcntl.F_WRLCK, *, wait: bool = False) -> None:
    """Takes a lock as another process would.  It is held as long as the file is open."""
    flock = struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, flock)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds LOCK of a ring, as a stopped process would for ever."""
    with Path(f"/dev/shm/gpuring.{name}").open("r+b") as file:
        lock(file.fileno(), LOCK_BYTE, wait=True)
        yield


def peek(ring: gpuring.Ring, table: str, field: str, row: int = 0) -> int:
    offset, form = _place(ring, table, field, row)
    return int(struct.unpack(form, os.pread(_file(ring), struct.calcsize(form), offset))[0])


def poke(ring: gpuring.Ring, table: str, field: str, value: int, row: int = 0) -> None:
    offset, form = _place(ring, table, field, row)
    os.pwrite(_file(ring), struct.pack(form, value), offset)


def _file(ring: gpuring.Ring) -> int:
    return int(ring._header.lock_fd)


def _place(ring: gpuring.Ring, table: str, field: str, row: int) -> tuple[int, str]:
    header = ring._header
    lengths = header.slots, header.max_peers, header.max_subscriptions
    return place(tables(*lengths), table, field, row)


def set_fence(ring: gpuring.Ring, peer: int, index: int, value: int) -> None:
    """Writes the word of a peer's fence on a slot."""
    poke(ring, "fence", "", value, index * ring._header.max_peers + peer)


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
        poke(ring, table, "", seq << 16, index * ring._header.max_peers + number)
    poke(ring, "slot", "fence", seq << 16, index)


def _producer_of(ring: gpuring.Ring, seq: int) -> int:
    """The number of the frame's producer."""
    header = ring._header
    by = peek(ring, "slot", "producer", seq % header.slots)
    return [raw_verbs.peer_id(header, p) for p in range(header.max_peers)].index(by)


def names(ring: gpuring.Ring, number: int) -> list[str]:
    """The words of a ring that name a peer: "peer" if its entry is there, and its slots."""
    seen = snapshot(ring._header)
    found = ["peer"] if number in seen["peers"] else []
    found += [f"{s}" for s in seen["slots"] if (s["owner"], s["phase"]) == (number, "writing")]
    for subscription in seen["subscriptions"].values():
        takes = subscription["takes"]
        found += [f"{t}" for t in takes if (t["member"], t["phase"]) == (number, "held")]
    return found
