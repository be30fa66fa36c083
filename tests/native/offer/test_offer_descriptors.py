"""Descriptors whose close waits, of which there are too many, or that a program has closed."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.processes import (
    SOMEBODY,
    Pipe,
    open_files,
    poll,
    up,
)
from tests.helpers.promise import promise
from tests.helpers.segment import Segment
from tests.native.offer import (
    PATIENCE_S,
    asking,
    connect,
    gives_its_locks_up,
    hello,
    of,
    offers,
    opened,
    refused,
    slots,
    still_answers,
    takes_part,
)  # fmt: skip

# ---- a close that waits ------------------------------------------------------------------------


class Lingering:
    """Makes sockets whose close waits until `end`."""

    def __init__(self) -> None:
        self.readers: list[socket.socket] = []

    def __call__(self) -> socket.socket:
        with socket.create_server(("127.0.0.1", 0)) as server:
            # The kernel does not let the buffer grow then, so there is never room for all that is
            # sent.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one = socket.create_connection(server.getsockname(), PATIENCE_S)
            self.readers.append(server.accept()[0])
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                one.send(bytes(1 << 20))  # nobody reads it
        return one

    def end(self) -> None:
        while self.readers:
            self.readers.pop().close()


@pytest.fixture
def lingering() -> Iterator[Lingering]:
    made = Lingering()
    yield made
    made.end()


def sends(client: socket.socket, data: bytes, *files: socket.socket) -> None:
    socket.send_fds(client, [data], [each.fileno() for each in files])
    for each in files:
        each.close()  # the last reference is the one under way


@contextlib.contextmanager
def found_by_nobody_else(ring: Segment, pid: int) -> Iterator[Path]:
    """The socket of a process, at a place where nobody looks who tidies up.  Each such look, as of
    another test, connects to it and takes the place of a client."""
    path = Path("/dev/shm", ring.creator.epoch.hex())
    of(ring, pid).rename(path)
    try:
        yield path
    finally:
        path.unlink()


ASIDE: dict[str, Callable[..., None]] = {
    "as slots": lambda client, make: sends(client, hello(has=1), make()),
    "as a pidfd": lambda client, make: sends(client, hello(has=2), make()),
    "more than there is room for": lambda client, make: sends(
        client, hello(has=3), *(make() for _ in range(3))
    ),
    "after what is read": lambda client, make: (client.send(hello()), sends(client, b"", make())),
}


@pytest.mark.parametrize("way", ASIDE)
def test_who_asks_does_not_wait_for_a_close(ring, children, lingering, way):
    """The creator of the ring answers with a descriptor whose close takes long."""
    native.offer(ring.creator, fd := slots())
    os.close(fd)
    path = of(ring, os.getpid())
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as liar:
        liar.bind(str(path))
        liar.listen()
        child = children(refused, ring.path, PATIENCE_S if way == "as slots" else 2)
        asking, _ = liar.accept()
        child.stop()  # so that it is the last one to close what is sent
        with asking:
            ASIDE[way](asking, lingering)
            os.kill(child.pid, signal.SIGCONT)
            error, told = child.result()
    path.unlink()
    assert (error, told) == ("", "got it") if way == "as slots" else error == "RingTimeout", told


@promise(
    "trust.md",
    "A thread of its own closes them, so this holds up neither the watchdog, nor who attaches, nor "
    "who closes the ring.",
)
def test_who_closes_does_not_wait_for_what_nobody_has_read(ring, stopped, lingering):
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(found_by_nobody_else(ring, stopped.pid))
        first = stack.enter_context(connect(path))
        sends(first, hello(has=1), lingering())
        os.kill(stopped.pid, signal.SIGCONT)
        for _ in range(64):
            assert stack.enter_context(connect(path)).recv(100)
        last = stack.enter_context(connect(path))
        sends(last, hello(has=1), lingering())
        # The hearer still closes what the first one has sent, and makes no room.  So nobody has
        # accepted the last one.
        stopped.send()
        assert stopped.result() == [2]
    ring.reap()


def test_nobody_connects_to_who_has_left(ring):
    """Connections are refused at once, and not only when the watchdog's poll on the socket has
    ended."""
    native.offer(ring.creator, fd := slots())
    os.close(fd)
    link = Path("/dev/shm", ring.creator.epoch.hex())  # a peer may keep the path like this
    os.link(of(ring, os.getpid()), link)
    try:
        ring.creator.disown()
        with pytest.raises(ConnectionRefusedError):
            connect(link)
    finally:
        link.unlink()


@promise(
    "trust.md",
    "The descriptors that they send may take long to close. A thread of its own closes them, so "
    "this holds up neither the watchdog, nor who attaches, nor who closes the ring.",
)
@pytest.mark.parametrize("way", ASIDE)
def test_who_sends_what_takes_long_to_close_holds_nobody_up(
    ring, children, stopped, lingering, way
):
    clients = [connect(of(ring, stopped.pid)) for _ in range(10)]
    for each in clients:
        ASIDE[way](each, lingering)
    os.kill(stopped.pid, signal.SIGCONT)
    victim = children(takes_part, ring.path)  # this one gets the slots
    assert victim.receive() == (b"12345678", 1)
    victim.kill()
    poll(lambda: ring.creator.reaps == 1)
    stopped.send()  # it goes on with other rings
    assert stopped.result() == [2]
    ring.reap()
    for each in clients:
        each.close()


@promise(
    "trust.md",
    "While a close lasts, the process answers 64 others, and then the next ones wait.",
)
def test_while_a_close_lasts_the_next_ones_are_answered_up_to_a_number(
    ring, children, stopped, lingering
):
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(found_by_nobody_else(ring, stopped.pid))
        first = stack.enter_context(connect(path))
        sends(first, hello(has=1), lingering())
        os.kill(stopped.pid, signal.SIGCONT)
        for _ in range(64):
            assert stack.enter_context(connect(path)).recv(100)
        next_one = stack.enter_context(connect(path))
        victim = up(children(gives_its_locks_up, ring.path))
        victim.kill()
        poll(lambda: ring.creator.reaps == 1)  # the watchdog has been there
        assert not select.select([next_one], [], [], 0)[0]
        lingering.end()
        assert next_one.recv(100)
    stopped.kill()
    ring.reap()


# ---- too many descriptors under way ------------------------------------------------------------


def becomes_somebody() -> None:
    """Becomes another user, because root's descriptors under way are not limited."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(SOMEBODY, SOMEBODY, SOMEBODY)
        os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)


@contextlib.contextmanager
def too_many_under_way():
    """Puts so many descriptors under way as after hundreds of answers that nobody reads."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_files()) + 30, limit[1]))
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        socket.send_fds(one, [b"x"], [0] * 250)
        with pytest.raises(OSError, match=os.strerror(errno.ETOOMANYREFS)):
            socket.send_fds(one, [b"x"], [0])
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def asks_with_too_many(_pipe: Pipe, path: str) -> bytes:
    header = opened(path)
    becomes_somebody()
    with too_many_under_way():
        got = native.fetch(header, PATIENCE_S)
    return os.pread(got.fd, 8, 0)


def test_who_asks_while_too_many_descriptors_are_under_way_gets_the_slots(ring, children):
    os.fchmod(ring.fd, 0o666)
    offers(ring)
    assert children(asks_with_too_many, ring.path).result() == b"12345678"
    still_answers(ring, children)


def hands_on_with_too_many(pipe: Pipe, path: str) -> None:
    header = opened(path)
    becomes_somebody()
    got = native.fetch(header, PATIENCE_S)
    native.offer(header, got.fd)
    peer = raw_verbs.join_producer(header)
    with too_many_under_way():
        pipe.ask(peer.number)
    pipe.receive()


@promise(
    "failure.md",
    "If a user has too many descriptors in messages that nobody has read yet, those who ask wait.",
)
def test_while_too_many_descriptors_are_under_way_those_who_ask_wait(ring, children):
    os.fchmod(ring.fd, 0o666)
    offers(ring)
    child = children(hands_on_with_too_many, ring.path)
    ring._dead.append(child.receive())
    ring.creator.disown()
    error, told = children(refused, ring.path, 0.3).result()
    assert error == "RingTimeout", told
    assert f"Answered without it: pid {child.pid}. Too many descriptors" in told
    waits = asking(ring, children)
    child.send()
    assert waits.result() == [b"12345678"]
    child.kill()
    ring.reap()


# ---- a program that closes its descriptors -----------------------------------------------------
