"""Programs that have opened or closed descriptors that they do not know."""

from __future__ import annotations

import contextlib
import os
import select
import socket

import pytest

import gpuring
from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.processes import (
    Pipe,
    open_files,
    other_threads_sleep,
    poll,
    replaces_its_files,
    up,
)
from tests.helpers.segment import Segment
from tests.native.offer import (
    PATIENCE_S,
    connect,
    hello,
    of,
    opened,
    slots,
    tidy,
)  # fmt: skip


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
    tidy(ring)


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
    child = up(children(closes_everything, ring.path))
    with connect(of(ring, child.pid)) as silent:
        assert silent.recv(100)
        child.send()
        assert child.result() == []
    tidy(ring)


def notified(pipe: Pipe, name: str) -> list[str]:
    """Closes all its descriptors, opens files under their numbers, and forks.  Returns what has
    happened to those, there and in the forked child."""
    consumer = gpuring.attach(name).consumer()
    consumer.fileno()
    with pytest.raises(gpuring.RingTimeout):
        consumer.acquire(0)
    poll(lambda: any("pidfd" in kind for kind in open_files().values()))  # the producer's pidfd
    pipe.ask()
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
        child = up(children(notified, name))
        child.send()
        child.receive()  # it has closed everything
        producer.claim(10).publish()
        child.send()
        assert child.result() == []
