"""Descriptors that the processes of a ring hand to each other (core/offer.c); slots in a memfd."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import Child, Pipe, Segment, open_files, poll

import gpuring
from gpuring._core import Header

NBYTES = 4096
PATIENCE_S = 30.0


@pytest.fixture
def ring(segment: Callable[..., Segment]) -> Iterator[Segment]:
    """A header as a ring on a GPU has it.  Nothing of its sockets may be left after the test."""
    made = segment(2, memory="vmm", sync="timeline", epoch=secrets.token_bytes(16))
    yield made
    made.unlock()
    made.creator.disown()
    left = sockets(made)
    shutil.rmtree(directory(made), ignore_errors=True)
    assert not left


def directory(ring: Segment) -> Path:
    return Path(f"/dev/shm/gpuring+{ring.creator.epoch.hex()}")


def sockets(ring: Segment) -> list[str]:
    there = directory(ring)
    return sorted(path.name for path in there.iterdir()) if there.exists() else []


def of(ring: Segment, pid: int) -> Path:
    """The one socket of a process."""
    (found,) = [name for name in sockets(ring) if name.split("-")[1] == f"{pid:x}"]
    return directory(ring) / found


def slots(first: bytes = b"") -> int:
    """The slots, which begin with these bytes."""
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
    """Fetches the slots, offers them, joins, and writes where it is told to."""
    header = opened(path)
    fd = header.fetch(PATIENCE_S)
    header.offer(fd)
    peer = header.join_producer()
    pipe.send((os.pread(fd, 8, 0), peer.number))
    at, what = pipe.receive()
    os.pwrite(fd, what, at)
    pipe.send()
    pipe.receive()


def test_the_slots_go_from_process_to_process_and_outlive_their_maker(ring, children):
    fd = slots(b"from me!")
    ring.creator.offer(fd)
    first = children(takes_part, ring.path)
    assert first.receive() == (b"from me!", 0)
    first.send((0, b"from it!"))
    first.receive()
    assert os.pread(fd, 8, 0) == b"from it!"  # it is the same memory
    os.close(fd)
    ring.creator.disown()  # as its death does
    second = children(takes_part, ring.path)
    assert second.receive() == (b"from it!", 1)
    for child in (first, second):
        child.kill()
    ring._dead += [0, 1]
    ring.reap()


def test_who_asks_first_need_not_offer(ring, children):
    ring.creator.offer(fd := slots(b"12345678"))
    mine = ring.process()
    got = mine.fetch(0)  # this process has it
    assert os.pread(got, 8, 0) == b"12345678"
    assert fcntl.fcntl(got, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    for each in (fd, got):
        os.close(each)
    child = children(asks, ring.path, 1)
    child.receive()
    child.send()
    assert child.result() == [b"12345678"]


def asks(pipe: Pipe, path: str, times: int) -> list[bytes]:
    header, got = opened(path), []
    pipe.send()
    pipe.receive()
    for _ in range(times):
        fd = header.fetch(PATIENCE_S)
        got.append(os.pread(fd, 8, 0))
        os.close(fd)
    return got


def test_the_offerer_may_be_in_a_call_that_does_not_return(ring, children):
    ring.creator.offer(fd := slots(b"12345678"))
    os.close(fd)
    child = children(asks, ring.path, 3)
    child.receive()
    child.send()
    # No Python runs in this process until the child is done.
    ctypes.PyDLL(None).poll(struct.pack("ihh", child.pipe.fileno(), select.POLLIN, 0), 1, -1)
    assert child.result() == [b"12345678"] * 3


def refused(pipe: Pipe, path: str, timeout: float) -> tuple[str, str]:
    try:
        os.close(opened(path).fetch(timeout))
    except gpuring.RingError as error:
        return type(error).__name__, str(error)
    return "", "got it"


def fetches_with(pipe: Pipe, path: str, more: int) -> str:
    """With so many descriptors that are left."""
    header, limit = opened(path), resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = [os.dup(0) for _ in range(20)]
    for fd in filled[-more:] if more else []:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled[-1] + 1, limit[1]))
    try:
        os.close(header.fetch(PATIENCE_S))
    except Exception as error:
        return repr(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    return "got it"


def test_who_has_no_descriptor_left_is_told_so(ring, children):
    ring.creator.offer(fd := slots())
    os.close(fd)
    told = [children(fetches_with, ring.path, more).result() for more in range(5)]
    assert told[0] == "OSError(24, 'Too many open files')"
    assert told[-1] == "got it"
    assert set(told) == {told[0], "got it"}


def test_who_offers_the_slots_itself_is_told_so_too(ring):
    ring.creator.offer(fd := slots())
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = [os.dup(fd)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled[0] + 1, limit[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                filled.append(os.dup(fd))
        with pytest.raises(OSError, match="Too many open files"):
            ring.creator.fetch(PATIENCE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for each in (fd, *filled):
            os.close(each)


def test_an_offer_without_descriptors_leaves_nothing(ring):
    fd, limit = slots(), resource.getrlimit(resource.RLIMIT_NOFILE)
    filled = [os.dup(fd)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled[0] + 10, limit[1]))
    refusals = 0
    try:
        with contextlib.suppress(OSError):
            while True:
                filled.append(os.dup(fd))
        while filled:
            try:
                ring.creator.offer(fd)
                break
            except OSError as error:
                assert error.errno == errno.EMFILE  # noqa: PT017
            assert not directory(ring).exists()
            refusals += 1
            os.close(filled.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for each in (fd, *filled):
            os.close(each)
    assert refusals > 1
    assert of(ring, os.getpid()).exists()


def test_nobody_has_it(ring, children):
    kind, told = children(refused, ring.path, PATIENCE_S).result()
    assert kind == "PeerLost"
    assert f"Not there: pid {os.getpid()}" in told
    assert not directory(ring).exists()


def test_who_has_it_is_stopped(ring, children):
    ring.creator.offer(fd := slots(b"12345678"))
    child = children(takes_part, ring.path)
    child.receive()
    os.kill(child.pid, signal.SIGSTOP)
    poll(child.stopped)
    # The creator still answers.
    asking = children(asks, ring.path, 1)
    asking.receive()
    asking.send()
    assert asking.result() == [b"12345678"]
    ring.creator.disown()
    kind, told = children(refused, ring.path, 0.2).result()
    assert kind == "RingTimeout"
    assert f"pid {child.pid}" in told
    os.kill(child.pid, signal.SIGCONT)
    again = children(asks, ring.path, 1)
    again.receive()
    again.send()
    assert again.result() == [b"12345678"]
    child.kill()
    ring._dead += [0]
    ring.reap()
    os.close(fd)


# ---- sockets -----------------------------------------------------------------------------------


def test_without_an_offer_there_is_no_socket(ring):
    ring.producer()
    ring.consumer()
    assert not directory(ring).exists()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_socket_has_the_mode_of_the_header(ring, mode):
    os.fchmod(ring.fd, mode)
    before = os.umask(0o077)
    try:
        ring.creator.offer(fd := slots())
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
    for _ in range(2):  # again changes nothing
        ring.creator.offer(fd)
        second.offer(fd)
    path = of(ring, os.getpid())
    ring.creator.disown()
    assert of(ring, os.getpid()) == path
    child = children(asks, ring.path, 1)
    child.receive()
    child.send()
    assert child.result() == [b"12345678"]
    second.disown()
    assert not directory(ring).exists()
    kinds = [kind for at, kind in open_files().items() if at not in before]
    assert not [kind for kind in kinds if "socket" in kind or "slots" in kind]
    with pytest.raises(OSError, match="Bad file"):
        second.offer(fd)
    os.close(fd)


def test_the_socket_of_the_dead_goes_with_what_it_had(ring, children):
    ring.creator.offer(fd := slots())
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
    header.offer(slots(b"12345678"))
    peer = header.join_producer()
    pid = os.fork()
    if pid == 0:
        refusals = []
        for call in (lambda: header.offer(0), lambda: header.fetch(0)):
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
        asking = children(asks, ring.path, 1)
        asking.receive()
        asking.send()
        assert asking.result() == [b"12345678"]
        path = of(ring, child.pid)
        child.kill()
        with pytest.raises(ConnectionRefusedError):  # though the forked child lives
            connect(path)
        ring.reap()
        poll(lambda: ring.creator.reap() or not path.exists())
    finally:
        os.kill(forked, signal.SIGKILL)


def listens_itself(_pipe: Pipe, path: str) -> int:
    """Its own socket gets the number of the ring's, as after a daemon has closed all its
    descriptors.  Returns how many of those who connect there it does not get to know."""
    before = set(open_files())
    header = opened(path)
    header.offer(slots())
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


def test_a_daemons_own_socket_is_not_taken_for_that_of_a_ring(ring, children):
    assert children(listens_itself, ring.path).result() == 0
    gpuring.clean()


def test_clean_removes_sockets_at_which_nobody_listens(ring, children):
    """Also where no header is any more.  It leaves others alone, whatever they are."""
    ring.creator.offer(fd := slots())
    os.close(fd)
    child = children(takes_part, ring.path)
    child.receive()
    lock = ring.hold_lock()  # so that no reaper comes first
    dead = of(ring, child.pid)
    child.kill()
    half_made = dead.with_name(f"{dead.name}~")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(str(half_made))
    (directory(ring) / "file").touch()
    before = set(sockets(ring))
    assert not [each for each in gpuring.clean() if ring.creator.epoch.hex() in each]
    assert before - set(sockets(ring)) == {dead.name, half_made.name}
    (directory(ring) / "file").unlink()
    os.close(lock)
    ring.creator.disown()
    assert not directory(ring).exists()
    directory(ring).mkdir()
    assert f"gpuring+{ring.creator.epoch.hex()}" in gpuring.clean()


def comes_and_goes(pipe: Pipe, path: str) -> None:
    pipe.send()
    while True:
        header = opened(path)
        fd = header.fetch(PATIENCE_S)
        header.offer(fd)
        os.close(fd)
        peer = header.join_producer()
        assert peer.leave() == 0
        header.disown()


@pytest.mark.slow
def test_who_is_killed_while_it_comes_or_goes_leaves_nothing_that_stays(ring, children):
    ring.creator.offer(fd := slots())
    ours = [of(ring, os.getpid()).name]
    for turn in range(60):
        child = children(comes_and_goes, ring.path)
        child.receive()
        still = ring.creator.joins
        poll(lambda still=still, turn=turn: ring.creator.joins >= still + turn % 3)
        child.kill()
        poll(lambda: ring.creator.reap() or ring.creator.live_peers() == [])
        gpuring.clean()
        assert sockets(ring) == ours
        kinds = list(open_files().values())
        assert sum("slots" in kind for kind in kinds) == 2  # ours, and what is offered
    os.close(fd)


# ---- clients that do as they like --------------------------------------------------------------


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        client.connect(str(path))  # it waits while there are too many to be answered
        client.settimeout(PATIENCE_S)
    except BaseException:
        client.close()
        raise
    return client


def hello(who: tuple[int, int, int] = (1, 2, 3), has: int = 0) -> bytes:
    return struct.pack("<8s4Q", b"\1offered", *who, has)


def still_answers(ring: Segment, children) -> None:
    child = children(asks, ring.path, 1)
    child.receive()
    child.send()
    assert child.result() == [b"12345678"]


def test_a_message_has_the_words_that_the_page_says(ring):
    ring.creator.offer(fd := slots(b"12345678"))
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


def test_rubbish_harms_nobody(ring, children):
    ring.creator.offer(fd := slots(b"12345678"))
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
        # It may have been answered and forgotten before it says anything.
        with connect(path) as client, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(client, [data], fds) if fds else client.send(data)
    still_answers(ring, children)

    def kept() -> tuple[int, int]:
        kinds = list(open_files().values())
        return sum("slots" in kind for kind in kinds), kinds.count(open_files()[end])

    poll(lambda: kept() == (2, 2))  # ours, and what is offered; the two ends
    for each in (fd, end, other):
        os.close(each)


def gives_its_locks_up(pipe: Pipe, path: str) -> None:
    """When it is told to, and lives on: as the kernel does it at a death."""
    header = opened(path)
    peer = header.join_producer()
    pipe.send(peer.number)
    pipe.receive()
    header.disown()
    pipe.send()
    pipe.receive()


def test_a_pidfd_tells_of_a_peer_of_another_namespace_and_nothing_else_does(ring, children):
    ring.creator.offer(fd := slots(b"12345678"))
    child = children(gives_its_locks_up, ring.path)
    number = child.receive()
    there = ring.peek("peer", "pidns", number) + 1
    ring.poke("peer", "pidns", there, number)
    who = (child.pid, ring.peek("peer", "start", number), there)
    child.send()
    child.receive()
    right = os.pidfd_open(child.pid)
    for wrong in (fd, ring.fd, right):  # a memfd is readable, as a pidfd is after the death
        says(of(ring, os.getpid()), hello(who, 2), wrong)
        for _ in range(2):  # so its watchdog has heard that, and has looked
            still_answers(ring, children)
        assert ring.creator.reaps == 0
    child.kill()
    poll(lambda: ring.creator.reaps == 1)
    for each in (fd, right):
        os.close(each)


def says(at: Path, data: bytes, fd: int) -> None:
    with connect(at) as client:
        socket.send_fds(client, [data], [fd])


def offers(pipe: Pipe, path: str) -> None:
    header = opened(path)
    header.offer(slots(b"12345678"))
    peer = header.join_producer()
    pipe.send(peer.number)
    pipe.receive()


@pytest.fixture
def stopped(ring: Segment, children: Callable[..., Child]) -> Child:
    """A process that offers the slots and is stopped."""
    child = children(offers, ring.path)
    ring._dead.append(child.receive())
    os.kill(child.pid, signal.SIGSTOP)
    poll(child.stopped)
    return child


def test_what_the_dead_have_said_before_is_heard(ring, stopped, children):
    """A stopped process hears who has come and gone meanwhile."""
    victim = children(gives_its_locks_up, ring.path)
    number = victim.receive()
    there = ring.peek("peer", "pidns", number) + 1
    ring.poke("peer", "pidns", there, number)
    pidfd = os.pidfd_open(victim.pid)
    says(
        of(ring, stopped.pid),
        hello((victim.pid, ring.peek("peer", "start", number), there), 2),
        pidfd,
    )
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
    asking = children(asks, ring.path, 1)
    asking.receive()
    asking.send()
    os.kill(stopped.pid, signal.SIGCONT)
    assert asking.result() == [b"12345678"]
    for each in crowd:
        each.close()
    stopped.kill()
    ring.reap()


def connects(pipe: Pipe, path: str, times: int, kept: int) -> int:
    """Connects and says nothing, so many times.  Keeps the last connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held: list[socket.socket] = []
    for _ in range(times):
        held.append(connect(Path(path)))
        if len(held) > kept:
            held.pop(0).close()
    pipe.send(len(held))
    pipe.receive()
    return len(held)


@pytest.mark.parametrize(("times", "kept"), [(10_000, 1), (1_000, 1_000)])
def test_many_silent_clients_hold_nobody_up(ring, children, times, kept):
    ring.creator.offer(fd := slots(b"12345678"))
    os.close(fd)
    child = children(connects, str(of(ring, os.getpid())), times, kept)
    still_answers(ring, children)  # while it goes on
    assert child.receive() == kept
    still_answers(ring, children)
    talking = [kind for kind in open_files().values() if kind.startswith("socket")]
    assert len(talking) < 100  # it does not keep what others keep
    child.send()
    child.result()


def without_descriptors(pipe: Pipe, path: str) -> None:
    header = opened(path)
    header.offer(slots(b"12345678"))
    peer = header.join_producer()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_files()) + 1, limit[1]))
    filled = []
    try:
        while True:
            filled.append(os.dup(0))
    except OSError:
        pass
    pipe.send(peer.number)
    pipe.receive()
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    pipe.receive()


def test_a_process_without_descriptors_answers_when_it_has_some_again(ring, children):
    child = children(without_descriptors, ring.path)
    child.receive()
    asking = children(asks, ring.path, 1)
    asking.receive()
    asking.send()
    begun = cpu_s(child.pid)
    with pytest.raises(AssertionError):
        poll(asking.pipe.poll, 0.3)
    assert cpu_s(child.pid) - begun < 0.2  # it does not spin meanwhile
    child.send()
    assert asking.result() == [b"12345678"]
    child.kill()
    ring._dead += [0]
    ring.reap()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_for_the_dead_of_a_host_ring_nobody_looks_for_sockets(segment, children):
    """It has none.  The name of its slots tells the epoch to everybody, so a stranger may have made
    the directory, and what is in it would lead wherever he likes."""
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
