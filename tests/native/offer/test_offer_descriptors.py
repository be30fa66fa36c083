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

import gpuring
from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.processes import (
    SOMEBODY,
    Pipe,
    open_files,
    other_threads_sleep,
    poll,
    replaces_its_files,
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
        victim = children(gives_its_locks_up, ring.path)
        victim.receive()
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
        pipe.send(peer.number)
        pipe.receive()
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


def listens_itself(_pipe: Pipe, path: str) -> int:
    """A program whose own socket gets the number of the ring's, as after a daemon has closed all
    its descriptors.  Returns how many of its clients it does not see."""
    before = set(open_files())
    header = opened(path)
    native.offer(header, slots())
    files = open_files()
    (at,) = [fd for fd in set(files) - before if files[fd].startswith("socket")]
    with socket.socket() as made:
        os.dup2(made.fileno(), at)
    mine = socket.socket(fileno=at)
    mine.bind(("127.0.0.1", 0))
    mine.listen()
    mine.setblocking(False)
    other = Segment(2)
    other.producer()
    missed = 0
    for turn in range(1, 9):
        with socket.create_connection(mine.getsockname(), PATIENCE_S):
            other.producer().header.disown()  # as its death does
            poll(lambda turn=turn: other.creator.reaps == turn)  # the watchdog has been there
            try:
                mine.accept()[0].close()
            except BlockingIOError:
                missed += 1
    return missed


@pytest.mark.slow
def test_a_daemons_own_socket_is_not_taken_for_that_of_a_ring(ring, children):
    assert children(listens_itself, ring.path).result() == 0
    gpuring.clean()


def closes_everything(pipe: Pipe, path: str) -> list[str]:
    """Closes all its descriptors, as a daemon does, and opens sockets of its own under their
    numbers.  Returns what has happened to those."""
    header, second = opened(path), opened(path)
    for each in (header, second):
        native.offer(each, slots(b"12345678"))
    raw_verbs.join_producer(header)
    pipe.send()
    pipe.receive()  # a client is there that says nothing
    poll(other_threads_sleep)  # a thread that uses a descriptor could not know that it is closed
    last = max(open_files())
    for fd in set(open_files()) - {0, 1, 2, pipe._connection.fileno()}:
        with contextlib.suppress(OSError):
            os.close(fd)
    mine: list[socket.socket] = []
    while not mine or mine[-1].fileno() <= last:
        mine += socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in mine:
        end.send(hello())
    other = Segment(2)  # it goes on with other rings
    other.producer()
    other.producer().header.disown()  # as its death does
    poll(lambda: other.creator.reaps == 1)  # the watchdog has been there
    wrong = []
    with contextlib.suppress(gpuring.RingError):
        native.fetch(second, 0)
        wrong.append("its own file was taken for the slots")
    for each in (header, second):
        each.disown()
    for n, end in enumerate(mine):
        try:
            if (said := end.recv(100, socket.MSG_DONTWAIT)) != hello():
                wrong.append(f"socket {n} got {said!r}")
            wrong.append(f"socket {n} got {end.recv(100, socket.MSG_DONTWAIT)!r} as well")
        except BlockingIOError:
            pass
        except OSError as error:
            wrong.append(f"socket {n}: {error}")
    for end in mine:
        with contextlib.suppress(OSError):
            end.close()
    return wrong


def test_what_a_program_opens_after_it_has_closed_everything_is_left_alone(ring, children):
    child = children(closes_everything, ring.path)
    child.receive()
    with connect(of(ring, child.pid)) as silent:
        assert silent.recv(100)
        child.send()
        assert child.result() == []
    gpuring.clean()


def notified(pipe: Pipe, name: str) -> list[str]:
    """Closes all its descriptors, opens files under their numbers, and forks.  Returns what has
    happened to those, there and in the forked child."""
    consumer = gpuring.attach(name).consumer()
    consumer.fileno()
    with pytest.raises(gpuring.RingTimeout):
        consumer.acquire(0)
    poll(lambda: any("pidfd" in kind for kind in open_files().values()))  # the producer's pidfd
    pipe.send()
    pipe.receive()
    mine = replaces_its_files(pipe)
    child = os.fork()  # at once, before the watchdog sees that its descriptors are gone
    if child == 0:
        os._exit(set(mine) - set(open_files()) != set())
    wrong = ["the forked child has lost some"] * os.waitpid(child, 0)[1]
    pipe.send()
    pipe.receive()  # a frame is there
    with (
        gpuring.create(f"{name}-2", slots=2, shape=(1,), dtype="u1", device="host") as second,
        second.producer() as producer,
        second.consumer() as other,
    ):
        other.fileno()
        with pytest.raises(gpuring.RingTimeout):
            other.acquire(0)
        producer.claim(0).publish()
        assert select.select([other], [], [], PATIENCE_S)[0]  # the notifier thread has been there
    wrong += [f"{fd} has {os.read(fd, 100)!r}" for fd in mine if os.fstat(fd).st_size]
    consumer.close()
    del consumer
    return wrong + [f"{fd} is closed" for fd in set(mine) - set(open_files())]


def test_files_of_a_program_that_has_closed_everything_get_no_news_of_frames(name, children):
    options = {"slots": 2, "shape": (1,), "dtype": "u1", "device": "host"}
    with gpuring.create(name, **options) as ring, ring.producer() as producer:
        child = children(notified, name)
        child.receive()
        child.send()
        child.receive()  # it has closed everything
        producer.claim(10).publish()
        child.send()
        assert child.result() == []
