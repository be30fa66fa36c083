"""Clients that send and do what they like at the sockets at which slots are handed on."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from pathlib import Path

import pytest

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.processes import Pipe, open_files, poll, up
from tests.helpers.promise import promise
from tests.native.offer import (
    PATIENCE_S,
    asking,
    connect,
    directory,
    gives_its_locks_up,
    hello,
    of,
    offers,
    opened,
    refused,
    says,
    slots,
    still_answers,
)


def test_a_message_has_the_words_that_the_page_says(ring):
    native.offer(ring.creator, fd := slots(b"12345678"))
    with connect(of(ring, os.getpid())) as client:
        said, fds, _, _ = socket.recv_fds(client, 1000, 10)
    has = 3
    ours = Path("/proc/self/ns/pid").stat().st_ino
    start = int(Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19])
    assert said == hello((os.getpid(), start, ours), has)
    assert os.path.samestat(os.fstat(fds[0]), os.fstat(fd))
    signal.pidfd_send_signal(fds[1], 0)
    for each in (fd, *fds):
        os.close(each)


@promise(
    "trust.md",
    "Where slots are handed on, they get the slots. They can connect as often as they like, and "
    "say whatever they like. That holds nobody else up.",
)
def test_rubbish_harms_nobody(ring, children):
    native.offer(ring.creator, fd := slots(b"12345678"))
    path = of(ring, os.getpid())
    end, other = os.pipe()
    for data, fds in (
        (b"", []),
        (b"x", []),
        (b"GET / HTTP/1.1\r\n\r\n" * 100, []),
        (hello()[:-1], []),
        (hello() + b"x", []),
        (hello(has=1), []),
        (hello(has=3), [fd]),
        (hello(has=2), [fd]),  # no pidfd
        (hello(has=2), [end]),
        (hello(has=1), [fd, fd]),
        (hello(has=2**64 - 1), [fd] * 3),
        (hello(), [fd] * 200),
        (hello((2**64 - 1,) * 3, 1), [fd]),
    ):
        # The client may get its answer, and be forgotten, before it sends anything.
        with connect(path) as client, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(client, [data], fds) if fds else client.send(data)
    still_answers(ring, children)

    def kept() -> tuple[int, int]:
        kinds = list(open_files().values())
        return sum("slots" in kind for kind in kinds), kinds.count(open_files()[end])

    poll(lambda: kept() == (2, 2))  # ours, and what is offered; the two ends
    for each in (fd, end, other):
        os.close(each)


def elsewhere(ring, children):
    """A peer that seems to be of another pid namespace.  Gives its process and its number."""
    child = children(gives_its_locks_up, ring.path)
    number = child.receive()
    there = ring.peek("peer", "pidns", number) + 1
    ring.poke("peer", "pidns", there, number)
    return child, (child.pid, ring.peek("peer", "start", number), there)


@contextlib.contextmanager
def lost(ring, children):
    """A peer of another pid namespace that has given its locks up.  Gives its identity and its
    pidfd.  It dies in the end, which a holder of the pidfd must notice."""
    offers(ring)
    child, who = elsewhere(ring, children)
    child.ask()
    pidfd = os.pidfd_open(child.pid)
    yield who, pidfd
    child.kill()
    poll(lambda: ring.creator.reaps == 1)
    os.close(pidfd)


def test_a_pidfd_tells_of_a_peer_of_another_namespace_and_nothing_else_does(ring, children):
    with lost(ring, children) as (who, right):
        fd = slots()
        for each in (fd, ring.fd, right):  # a memfd is readable, as a pidfd is after the death
            says(of(ring, os.getpid()), hello(who, 2), each)
            for _ in range(2):  # so its watchdog has heard that, and has looked
                still_answers(ring, children)
            assert ring.creator.reaps == 0
        os.close(fd)


def test_a_peer_of_another_namespace_whose_pidfd_did_not_come_is_asked_for_it(ring, children):
    with lost(ring, children) as (who, right):
        pid, start, there = who
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.settimeout(PATIENCE_S)
            listener.bind(str(directory(ring) / f"{there:x}-{pid:x}-{start:x}"))
            listener.listen()
            asker, _ = listener.accept()
        with asker:
            socket.send_fds(asker, [hello(who, 2)], [right])


def test_who_dies_before_it_has_read_the_answer_is_heard(ring, children):
    """The kernel then tells of the reset of the connection first."""
    with lost(ring, children) as (who, right), connect(of(ring, os.getpid())) as client:
        client.recv(1, socket.MSG_PEEK)  # it is answered
        socket.send_fds(client, [hello(who, 2)], [right])


def test_what_the_dead_have_said_before_is_heard(ring, stopped, children):
    """A process that was stopped learns who has come and gone meanwhile."""
    victim, who = elsewhere(ring, children)
    pidfd = os.pidfd_open(victim.pid)
    says(of(ring, stopped.pid), hello(who, 2), pidfd)
    os.close(pidfd)
    victim.kill()
    os.kill(stopped.pid, signal.SIGCONT)
    poll(lambda: ring.creator.reaps == 1)
    assert ring.creator.live_peers() == ring._dead
    stopped.kill()
    ring.reap()


def test_who_finds_no_room_at_a_socket_asks_again(ring, stopped, children):
    crowd = []
    with contextlib.suppress(BlockingIOError):
        while True:
            crowd.append(
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            )
            crowd[-1].connect(str(of(ring, stopped.pid)))
    assert len(crowd) > 10
    error, told = children(refused, ring.path, 0.1).result()
    assert error == "RingTimeout", told
    assert f"pid {stopped.pid}" in told
    waits = asking(ring, children)
    os.kill(stopped.pid, signal.SIGCONT)
    assert waits.result() == [b"12345678"]
    for each in crowd:
        each.close()
    stopped.kill()
    ring.reap()


def connects(pipe: Pipe, path: str, times: int, kept: int) -> int:
    """Connects so many times, and sends nothing.  Keeps the last connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held: list[socket.socket] = []
    for _ in range(times):
        held.append(connect(Path(path)))
        if len(held) > kept:
            held.pop(0).close()
    pipe.ask(len(held))
    return len(held)


@promise(
    "trust.md",
    "Where slots are handed on, they get the slots. They can connect as often as they like, and "
    "say whatever they like. That holds nobody else up.",
)
@pytest.mark.parametrize(("times", "kept"), [(10_000, 1), (1_000, 1_000)])
def test_many_silent_clients_hold_nobody_up(ring, children, times, kept):
    offers(ring)
    child = children(connects, str(of(ring, os.getpid())), times, kept)
    still_answers(ring, children)  # meanwhile others are answered
    assert child.receive() == kept
    still_answers(ring, children)
    talking = [kind for kind in open_files().values() if kind.startswith("socket")]
    assert len(talking) < 100  # it does not keep what others keep
    child.finish()


def without_descriptors(pipe: Pipe, path: str) -> None:
    header = opened(path)
    native.offer(header, slots(b"12345678"))
    peer = raw_verbs.join_producer(header)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_files()) + 1, limit[1]))
    filled = []
    try:
        while True:
            filled.append(os.dup(0))
    except OSError:
        pass
    pipe.ask(peer.number)
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    pipe.receive()


def test_a_process_without_descriptors_answers_when_it_has_some_again(ring, children):
    child = up(children(without_descriptors, ring.path))
    waits = asking(ring, children)
    begun = reads(child.pid)
    with pytest.raises(AssertionError):
        poll(waits.pipe.poll, 0.3)
    assert reads(child.pid) - begun < 100, "the watchdog spins meanwhile"
    child.send()
    assert waits.result() == [b"12345678"]
    child.kill()
    ring._dead += [0]
    ring.reap()


def reads(pid: int) -> int:
    """How often a process has called read.  Its watchdog does so after each sleep."""
    return int(Path(f"/proc/{pid}/io").read_text().split("syscr: ")[1].split()[0])
