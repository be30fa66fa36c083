"""Descriptors that processes of a ring hand to each other (core/exchange_*.c): what tests share."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import gpuring
from gpuring import native
from gpuring.native import Header
from tests.helpers import raw_verbs
from tests.helpers.processes import PATIENCE_S, Child, Pipe, up
from tests.helpers.segment import Segment

NBYTES = 4096


def directory(ring: Segment) -> Path:
    return Path(f"/dev/shm/gpuring+{ring.creator.epoch.hex()}")


def sockets(ring: Segment) -> list[str]:
    there = directory(ring)
    return sorted(path.name for path in there.iterdir()) if there.exists() else []


def tidy(ring: Segment) -> bool:
    """Removes the sockets of this ring at which nobody listens.  Tests that run at the same time
    look at those of their rings.  Returns whether no socket is left."""
    return native.tidy_sockets(directory(ring), only_look=False)


def of(ring: Segment, pid: int) -> Path:
    """The path of a process's only socket."""
    (found,) = [name for name in sockets(ring) if name.split("-")[1] == f"{pid:x}"]
    return directory(ring) / found


def slots(first: bytes = b"") -> int:
    """A descriptor of slots that begin with these bytes."""
    fd = os.memfd_create("slots")
    os.truncate(fd, NBYTES)
    os.pwrite(fd, first, 0)
    return fd


def opened(path: str) -> Header:
    fd = os.open(path, os.O_RDWR)
    try:
        return Header.attach(fd)
    finally:
        os.close(fd)


def takes_part(pipe: Pipe, path: str) -> None:
    """Fetches the slots, offers them, joins, and writes into them what it receives."""
    header = opened(path)
    got = native.fetch(header, PATIENCE_S)
    native.offer(header, got.fd)
    peer = raw_verbs.join_producer(header)
    pipe.send((os.pread(got.fd, 8, 0), peer.number))
    at, what = pipe.receive()
    os.pwrite(got.fd, what, at)
    pipe.ask()


def asks(pipe: Pipe, path: str, times: int) -> list[bytes]:
    header, found = opened(path), []
    pipe.ask()
    for _ in range(times):
        got = native.fetch(header, PATIENCE_S)
        found.append(os.pread(got.fd, 8, 0))
        got.close()
    return found


def refused(pipe: Pipe, path: str, timeout: float) -> tuple[str, str]:
    try:
        native.fetch(opened(path), timeout).close()
    except gpuring.RingError as error:
        return type(error).__name__, str(error)
    return "", "got it"


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        client.connect(str(path))  # blocks while too many clients wait
        client.settimeout(PATIENCE_S)
    except BaseException:
        client.close()
        raise
    return client


def hello(who: tuple[int, int, int] = (1, 2, 3), has: int = 0) -> bytes:
    return struct.pack("<8s4Q", b"\1offered", *who, has)


def offers(ring: Segment) -> None:
    """Lets the ring's creator offer its slots."""
    native.offer(ring.creator, fd := slots(b"12345678"))
    os.close(fd)


def asking(ring: Segment, children: Callable[..., Child]) -> Child:
    """A process that has begun to ask."""
    child = up(children(asks, ring.path, 1))
    child.send()
    return child


def still_answers(ring: Segment, children: Callable[..., Child]) -> None:
    assert asking(ring, children).result() == [b"12345678"]


def gives_its_locks_up(pipe: Pipe, path: str) -> None:
    """Gives its locks up when it is told to, as the kernel does at a death, and lives on."""
    header = opened(path)
    peer = raw_verbs.join_producer(header)
    pipe.ask(peer.number)
    header.disown()
    pipe.ask()


def says(at: Path, data: bytes, fd: int) -> None:
    with connect(at) as client:
        socket.send_fds(client, [data], [fd])
