"""The sockets at which slots are handed on, and what is left of them."""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import signal
import socket
import stat

import pytest

import gpuring
from gpuring import native
from gpuring.registry import segment
from gpuring.registry.sockets import remove_stale
from tests.helpers import raw_verbs
from tests.helpers.processes import Pipe, open_files, poll, up
from tests.helpers.promise import promise
from tests.native.offer import (
    PATIENCE_S,
    connect,
    directory,
    gives_its_locks_up,
    of,
    opened,
    slots,
    sockets,
    still_answers,
    takes_part,
    tidy,
)


@promise(
    "containers.md",
    'With `"ipc"` peers hand nothing over, so those in other pid namespaces are never cleared, '
    "and hold others up as if they lived.",
)
def test_without_an_offer_there_is_no_socket(ring):
    ring.producer()
    ring.consumer()
    assert not directory(ring).exists()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_socket_has_the_mode_of_the_header(ring, mode):
    os.fchmod(ring.fd, mode)
    before = os.umask(0o077)
    try:
        native.offer(ring.creator, fd := slots())
    finally:
        os.umask(before)
    os.close(fd)
    at = of(ring, os.getpid()).stat()
    assert stat.S_ISSOCK(at.st_mode)
    assert stat.S_IMODE(at.st_mode) == mode
    around = stat.S_IMODE(directory(ring).stat().st_mode)
    assert around == mode | (mode & 0o222) >> 1


def test_the_handles_of_a_process_share_a_socket(ring, children):
    fd, second = slots(b"12345678"), ring.process()
    before = set(open_files())
    for _ in range(2):  # a second time changes nothing
        native.offer(ring.creator, fd)
        native.offer(second, fd)
    path = of(ring, os.getpid())
    ring.creator.disown()
    assert of(ring, os.getpid()) == path
    still_answers(ring, children)
    second.disown()
    assert not directory(ring).exists()

    def kept() -> list[str]:
        kinds = [kind for at, kind in open_files().items() if at not in before]
        return [kind for kind in kinds if "socket" in kind or "slots" in kind]

    poll(lambda: not kept())  # of the child that has asked the last is heard later
    with pytest.raises(OSError, match="Bad file"):
        native.offer(second, fd)
    os.close(fd)


@promise(
    "failure.md",
    "A process that was killed leaves its socket in `/dev/shm` until its peers are cleared, or "
    "until the ring is removed.",
)
def test_the_socket_of_the_dead_goes_with_what_it_had(ring, children):
    native.offer(ring.creator, fd := slots())
    os.close(fd)
    ours = ring.producer()
    child = children(takes_part, ring.path)
    _, number = child.receive()
    path = of(ring, child.pid)
    child.kill()
    poll(lambda: number not in ours.header.members(0) + ours.header.producers())
    poll(lambda: not path.exists())
    assert of(ring, os.getpid()).exists()


def forks(pipe: Pipe, path: str) -> None:
    header = opened(path)
    native.offer(header, slots(b"12345678"))
    peer = raw_verbs.join_producer(header)
    pid = os.fork()
    if pid == 0:
        refusals = []
        for call in (lambda: native.offer(header, 0), lambda: native.fetch(header, 0)):
            try:
                call()
            except gpuring.RingError as error:
                refusals.append(str(error))
        kept = [kind for kind in open_files().values() if "socket" in kind and "gpuring" in kind]
        pipe.send((peer.number, os.getpid(), refusals, kept))
        signal.pause()
    pipe.receive()


def test_a_forked_child_keeps_no_socket(ring, children):
    child = children(forks, ring.path)
    _number, forked, refusals, _kept = child.receive()
    try:
        assert len(refusals) == 2
        assert all("forked child" in each for each in refusals)
        still_answers(ring, children)
        path = of(ring, child.pid)
        child.kill()
        with pytest.raises(ConnectionRefusedError):  # though the forked child lives
            connect(path)
        ring.reap()
        poll(lambda: ring.creator.reap() or not path.exists())
    finally:
        os.kill(forked, signal.SIGKILL)


def is_listening(fd: int, kind: str) -> bool:
    if not kind.startswith("socket"):
        return False
    with socket.socket(fileno=os.dup(fd)) as found:
        return found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


def forks_while_it_leaves(pipe: Pipe, path: str) -> int:
    """Returns at how many sockets the forked child listens.  A thread of its parent cannot close
    the ring's socket yet.  A client waits there, and there is no descriptor left to accept it."""
    header = opened(path)
    native.offer(header, slots())
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
    pipe.send()
    pipe.receive()  # the client is there
    header.disown()
    pid = os.fork()
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    if pid == 0:
        os._exit(sum(is_listening(*each) for each in open_files().items()))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_that_is_forked_while_a_socket_is_closed_does_not_keep_it(ring, children):
    child = up(children(forks_while_it_leaves, ring.path))
    with connect(of(ring, child.pid)):
        child.send()
        assert child.result() == 0


@promise(
    "failure.md",
    "It removes rings whose processes are all dead, slots that have no ring, and sockets of the "
    "dead.",
)
def test_clean_removes_sockets_at_which_nobody_listens(ring, children, monkeypatch, tmp_path):
    """It removes them also where there is no header any more, and leaves all other files alone."""
    native.offer(ring.creator, fd := slots())
    os.close(fd)
    child = up(children(takes_part, ring.path))
    lock = ring.hold_lock()  # so that no reaper is quicker
    ours, dead = of(ring, os.getpid()), of(ring, child.pid)
    child.kill()
    half_made = dead.with_name(f"{dead.name}~")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(str(half_made))
    (directory(ring) / "file").touch()
    assert not tidy(ring)
    assert set(sockets(ring)) == {"file", ours.name}
    (directory(ring) / "file").unlink()
    os.close(lock)
    ring.creator.disown()
    assert not directory(ring).exists()
    monkeypatch.setattr(segment, "SHM", tmp_path)
    gone = directory(ring).name
    (tmp_path / gone).mkdir()
    assert remove_stale(only_look=True) == [gone]
    assert (tmp_path / gone).exists()
    assert remove_stale() == [gone]
    assert not (tmp_path / gone).exists()


def comes_and_goes(pipe: Pipe, path: str) -> None:
    pipe.send()
    while True:
        header = opened(path)
        got = native.fetch(header, PATIENCE_S)
        native.offer(header, got.fd)
        got.close()
        peer = raw_verbs.join_producer(header)
        assert peer.leave() == 0
        header.disown()


@pytest.mark.slow
def test_who_is_killed_while_it_comes_or_goes_leaves_nothing_that_stays(ring, children):
    native.offer(ring.creator, fd := slots())
    ours = [of(ring, os.getpid()).name]
    for turn in range(60):
        child = up(children(comes_and_goes, ring.path))
        still = raw_verbs.joins(ring.creator)
        poll(lambda still=still, turn=turn: raw_verbs.joins(ring.creator) >= still + turn % 3)
        child.kill()
        poll(lambda: ring.creator.reap() or ring.creator.live_peers() == [])
        tidy(ring)
        assert sockets(ring) == ours
        kinds = list(open_files().values())
        assert sum("slots" in kind for kind in kinds) == 2  # ours, and what is offered
    os.close(fd)


def test_for_the_dead_of_a_host_ring_nobody_looks_for_sockets(segment, children):
    """A host ring has no sockets.  The name of its slots shows everybody the epoch, so a stranger
    could have made the directory, with links to wherever he likes."""
    host = segment(2, epoch=secrets.token_bytes(16))
    where = directory(host)
    where.mkdir()
    try:
        child = children(gives_its_locks_up, host.path)
        number = child.receive()
        who = [host.peek("peer", field, number) for field in ("pidns", "pid", "start")]
        left = where / "-".join(f"{each:x}" for each in who)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.bind(str(left))
        child.kill()
        poll(lambda: host.creator.reap() or host.creator.reaps == 1)
        assert left.exists()
    finally:
        shutil.rmtree(where, ignore_errors=True)
