"""A client in C in a pinned ring has no GPU.  It hands its pidfd over, and gets the slots."""

from __future__ import annotations

import os
import signal
import socket
import struct
from pathlib import Path

import pytest

from tests.helpers.compiled import needs_compiler
from tests.helpers.processes import PATIENCE_S, poll
from tests.native.offer import hello
from tests.native.stranger import drain, make, produce

pytestmark = needs_compiler


def pinned(name, **more):
    return make(name, memory="pinned", **more)


def socket_of(ring):
    """The socket of this process, which is the creator."""
    (path,) = Path(f"/dev/shm/gpuring+{ring.stats().epoch}").glob(f"*-{os.getpid():x}-*")
    return path


def slots_of(name):
    (path,) = Path("/dev/shm").glob(f"gpuring.{name}+*")
    return path


def test_frames_go_both_ways(name, stranger):
    with pinned(name, producers=2) as ring:
        reader = stranger("consume", name, "stranger", "lossless", "next")
        reader.number()
        with ring.producer() as producer:
            made = produce(producer, 7, range(100))
        with ring.consumer("python") as consumer:
            writer = stranger("produce", name, 9, 100)
            assert drain(consumer) == writer.frames
            assert writer.end() == "done"
        assert reader.end() == "ended"
        assert reader.frames == made + writer.frames


def test_a_client_that_is_killed_is_cleared(name, stranger):
    with pinned(name) as ring, ring.producer() as producer:
        reader = stranger("consume", name, "stranger", "lossless", "next", paused=True)
        reader.number()
        made = produce(producer, 7, range(8))
        reader.has(1)
        with ring.consumer("stranger") as consumer:
            reader.kill()
            poll(lambda: ring.stats().reaps)
            producer.close()
            assert [frame._replace(again=False) for frame in drain(consumer)] == made


@pytest.fixture
def taken(name):
    """A ring, and a socket in the place of its creator's."""
    with pinned(name) as ring:
        path, aside = socket_of(ring), socket_of(ring).with_name("aside")
        path.rename(aside)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(path))
            listening.listen()
            listening.settimeout(PATIENCE_S)
            yield ring, listening
        path.unlink()
        aside.rename(path)


def test_a_client_says_who_it_is_and_sends_its_pidfd(name, stranger, taken):
    ring, listening = taken
    writer = stranger("produce", name, 9, 3)
    client, _ = listening.accept()
    with client, slots_of(name).open("rb+") as slots:
        said, fds, _, _ = socket.recv_fds(client, 100, 4)
        magic, pid, start, pidns, has = struct.unpack("<8s4Q", said)
        assert (magic, pid, has) == (b"\1offered", writer.pid, 2)
        stat = Path(f"/proc/{writer.pid}/stat").read_text().rpartition(") ")[2].split()
        assert start == int(stat[22 - 3])
        assert pidns == Path(f"/proc/{writer.pid}/ns/pid").stat().st_ino
        (pidfd,) = fds
        signal.pidfd_send_signal(pidfd, 0)
        assert f"\nPid:\t{writer.pid}\n" in Path(f"/proc/self/fdinfo/{pidfd}").read_text()
        os.close(pidfd)
        assert not ring.stats().peers  # it has not joined yet
        socket.send_fds(client, [hello(has=1)], [slots.fileno()])
    assert writer.end() == "done"
    assert ring.stats().cursor == 8 + 3


WRONG = {
    "no slots": hello(has=0),
    "fewer descriptors": hello(has=3),
    "other words": b"\1refused" + hello(has=1)[8:],
    "too short": hello(has=1)[:39],
}


@pytest.mark.parametrize("said", WRONG.values(), ids=WRONG)
def test_a_client_takes_no_slots_from_what_is_no_message(name, stranger, taken, said):
    _, listening = taken
    writer = stranger("produce", name, 9, 3)
    client, _ = listening.accept()
    with client, slots_of(name).open("rb+") as slots:
        socket.send_fds(client, [said], [slots.fileno()])
    assert "nobody hands the slots on" in writer.error()
