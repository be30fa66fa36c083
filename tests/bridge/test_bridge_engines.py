"""What a bridge relies on, with every engine that can be used here."""

from __future__ import annotations

import logging
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import gpuring
from gpuring.bridge.engines import engine
from gpuring.bridge.engines.contract import EngineError
from gpuring.bridge.engines.nixl import mapped_memory
from gpuring.bridge.engines.nixl.write_permits import WritePermit, WritePermits
from tests.bridge.bridge_engines import Session, content, slab, use_bounce_buffers
from tests.helpers.processes import open_files, poll

NAMES = (
    "zmq",
    "local",
    "nixl",
    pytest.param("nixl with bounce buffers", marks=pytest.mark.slow),
    pytest.param("nixl over tcp", marks=pytest.mark.slow),
)
MIB = 1 << 20


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An engine that can be used here."""
    name, _, how = request.param.partition(" ")  # the child inherits the environment
    if how == "over tcp":
        monkeypatch.setenv("UCX_TLS", "tcp,cuda_copy")
    elif how:
        use_bounce_buffers(monkeypatch, tmp_path)
    return usable(name)


def usable(name: str) -> str:
    if name != "local" and engine(name).facts() is None:
        pytest.skip(f"what engine {name!r} needs is not installed")
    return name


@pytest.fixture
def session(name: str, children: Callable[..., Any]) -> Iterator[Callable[..., Session]]:
    """A function that opens sessions of the engine.  Their receivers are closed after the test."""
    made: list[Session] = []

    def start(slots: int = 4, slot_nbytes: int = 1 << 16, **options: Any) -> Session:
        memory = options.pop("memory", None) or slab(slots, slot_nbytes)
        made.append(Session(name, children, memory, **options))
        return made[-1].open()

    yield start
    for each in made:
        if each.child is not None:
            each.child.kill()
            each.pipe.close()
        each.receiver.close()


def check(session: Session, seq: int) -> None:
    index, nbytes = session.sent[seq]
    np.testing.assert_array_equal(session.frame(index, nbytes), content(seq, nbytes))


@pytest.mark.parametrize(
    "nbytes", [1, 65537, 6 * MIB + 3, pytest.param(64 * MIB, marks=pytest.mark.slow)]
)
def test_a_frame_arrives_as_it_was_sent_and_nothing_beside_it(session, nbytes):
    over = session(2, nbytes + 64, near_slots=2)
    beside = over.memory.part(1, 0, nbytes + 64)
    beside[:] = b"\xa5" * (nbytes + 64)
    over.memory.part(0, nbytes, 64)[:] = b"\xa5" * 64
    over.send(3, 0, nbytes)
    over.until(lambda: over.published == [0])
    check(over, 3)
    assert bytes(over.memory.part(0, nbytes, 64)) == b"\xa5" * 64
    assert bytes(beside) == b"\xa5" * (nbytes + 64)
    assert not over.receiver.busy
    over.end()


def test_frames_of_many_lengths_come_into_the_slots_that_were_claimed(session):
    over = session(5, 1 << 17, near_slots=5)
    lengths = [1 << 17, 1, 4097, 1 << 17, 65536, 3, 1 << 16, 99999]
    for seq, nbytes in enumerate(lengths, 10):
        before = len(over.published)
        over.send(seq, 4 - seq % 5, nbytes)
        over.until(lambda before=before: len(over.published) > before)
        check(over, seq)
    assert over.arrived == list(range(10, 10 + len(lengths)))
    over.end()


@pytest.mark.slow
def test_several_frames_are_in_flight_and_each_is_told_once(session):
    over = session(8, MIB, near_slots=8)
    free, seq, frames = list(range(8)), 0, 200
    taken = 0
    while taken < frames:
        while free and seq < frames:
            over.send(seq, free.pop(0), MIB - seq % 3)
            seq += 1
        over.until(lambda: over.published)
        for index in over.published:
            sent = next(n for n in over.arrived if over.sent[n][0] == index and n >= taken - 8)
            over.arrived.remove(sent)
            check(over, sent)
            free.append(index)
            taken += 1
        over.published.clear()
    assert not over.arrived
    over.end()


@pytest.mark.slow(keep=1)
def test_a_session_closes_with_frames_in_flight_and_nothing_is_written_later(session):
    """The slots are used again after close, while the near end still sends."""
    over = session(4, 8 * MIB, near_slots=4)
    over.send(0, 0, 8 * MIB)
    over.until(lambda: over.published)
    for seq in range(1, 4):
        over.send(seq, seq, 8 * MIB)
    over.receiver.close()
    for index in range(4):
        over.memory.part(index, 0, 8 * MIB)[:] = bytes([index]) * (8 * MIB)
    over.command("close")
    ended = over.drain()
    assert ended in ("closed", "failed", "gone"), ended
    for index in range(4):
        assert (over.frame(index, 8 * MIB) == index).all(), "an old session wrote into a slot"


@pytest.mark.slow(keep=1)
def test_a_session_closes_in_the_middle_of_a_frame(session):
    """The end of the slot is used again when its beginning has just come."""
    nbytes = 64 * MIB
    over = session(1, nbytes, near_slots=1)
    over.send(1, 0, nbytes, "fill")
    over.until(lambda: "filled" in over.said)
    over.send(1, 0, nbytes, "send again")
    begin, last = over.frame(0, 4096), over.memory.part(0, nbytes - MIB, MIB)
    over.until(begin.any)
    over.receiver.close()
    last[:] = bytes(MIB)
    over.command("close")
    assert over.drain() in ("closed", "failed", "gone")
    assert not any(last), "an old session wrote into a slot"


@pytest.mark.slow
def test_a_new_session_over_the_same_slots_has_only_its_own_frames(session):
    first = session(4, 4 * MIB)
    for seq in range(4):
        first.send(seq, seq, 4 * MIB)
    first.until(lambda: first.arrived)
    first.receiver.close()
    second = session(memory=first.memory)
    for seq in range(100, 104):
        second.send(seq, seq % 4, 4 * MIB)
    second.until(lambda: len(second.published) == 4)
    first.command("close")
    first.drain()
    for seq in range(100, 104):
        check(second, seq)
    second.end()


@pytest.mark.slow
def test_the_near_end_dies_with_frames_in_flight(session):
    over = session(4, 16 * MIB)
    if over.child is None:
        pytest.skip("this engine has no other process")
    for seq in range(4):
        over.send(seq, seq, 16 * MIB)
    over.until(lambda: over.said or over.arrived or over.receiver.busy or over.published)
    over.child.kill()
    over.receiver.close()
    for index in range(4):
        over.memory.part(index, 0, 16 * MIB)[:] = bytes([index]) * (16 * MIB)
    after = session(memory=over.memory)
    after.send(50, 0, 16 * MIB)
    after.until(lambda: after.published)
    check(after, 50)
    for index in range(1, 4):
        assert (over.frame(index, 16 * MIB) == index).all()
    after.end()


def test_closing_is_always_possible(name):
    memory = slab(2, 4096)
    for end in (engine(name).receiver(memory), engine(name).sender(memory, None)):
        end.close()
        end.close()
    receiver = engine(name).receiver(memory)
    receiver.open()
    receiver.close()
    receiver.close()


def test_a_closed_end_leaves_nothing_open(name):
    """A session of NIXL has sockets and descriptors of its own, which end with it."""
    memory = slab(2, 4096)

    def session() -> None:
        receiver, sender = engine(name).receiver(memory), engine(name).sender(memory, None)
        sender.open(receiver.open())
        sender.close()
        receiver.close()

    session()
    before = open_files()
    session()
    assert len(open_files()) == len(before), set(open_files().items()) - set(before.items())


@pytest.mark.parametrize(
    "offer", [b"rubbish", b"{}\n", b'{"pointer": 1}\nx', b"\xff\xfe\n", b"[" * 5000]
)
def test_an_offer_that_cannot_be_read_is_an_error(name, offer):
    sender = engine(name).sender(slab(2, 4096), None)
    with pytest.raises(EngineError):
        sender.open(offer)
    sender.close()


@pytest.mark.slow(keep=1)
def test_an_idle_end_has_nothing_to_poll(session):
    over = session()
    over.send(1, 1, 100)
    over.until(lambda: over.published)
    over.until(lambda: not over.receiver.busy)
    fd = over.receiver.fileno()
    if fd >= 0:
        assert not select.select([fd], [], [], 0)[0]
    over.end()


# ---- NIXL, where both ends are on one host -----------------------------------------------------


@pytest.mark.parametrize("name", ["nixl"])
def test_the_far_end_waits_for_a_near_end_that_was_stopped(name, session, caplog):
    """UCX writes into the far process without its help, also when the near one is continued."""
    usable(name)
    over = session(4, 8 * MIB)
    over.send(0, 0, 8 * MIB)
    over.until(lambda: over.published)
    over.child.stop()
    for seq in range(1, 4):
        over.send(seq, seq, 8 * MIB)
    closing = Thread(target=over.receiver.close)
    with caplog.at_level(logging.WARNING, "gpuring"):
        closing.start()
        poll(lambda: "has not let go of the slots yet" in caplog.text)
    assert f"pid {over.child.pid}" in caplog.text
    assert closing.is_alive()
    os.kill(over.child.pid, signal.SIGCONT)
    closing.join(60)
    assert not closing.is_alive()
    for index in range(4):
        over.memory.part(index, 0, 8 * MIB)[:] = bytes([index]) * (8 * MIB)
    over.command("close")
    over.drain()
    for index in range(4):
        assert (over.frame(index, 8 * MIB) == index).all()


@pytest.mark.parametrize("name", ["nixl"])
def test_a_near_end_that_is_idle_hears_that_the_far_end_has_closed(name, session):
    usable(name)
    over = session()
    over.send(1, 1, 100)
    over.until(lambda: over.published)
    over.receiver.close()  # it waits for the near end, which only this wakes
    with pytest.raises(EngineError, match="far end of the bridge is gone"):
        over.until(lambda: False)


def test_the_hold_on_far_slots_ends_with_the_near_process(children):
    permits = WritePermits()
    child = children(hold_and_wait, permits.name)
    poll(lambda: permits.admit() or child.pipe.poll())
    assert child.receive() == "admitted"
    closing = Thread(target=permits.end)
    closing.start()
    child.kill()
    closing.join(60)
    assert not closing.is_alive()


def hold_and_wait(pipe: Any, name: str) -> None:
    hold = WritePermit(name)
    poll(hold.admitted)
    pipe.ask("admitted")


def test_a_hold_that_comes_too_late_is_never_admitted():
    permits = WritePermits()
    late = WritePermit(permits.name)
    permits._listener.close()
    permits.end()
    with pytest.raises(ConnectionResetError):
        late.admitted()
    with pytest.raises(ConnectionRefusedError):
        WritePermit(permits.name)
    late.let_go()


def test_only_one_near_end_holds_the_slots():
    permits = WritePermits()
    one, other = WritePermit(permits.name), WritePermit(permits.name)
    permits.admit()
    assert one.admitted()
    with pytest.raises(OSError, match="ended the session"):
        other.admitted()
    one.let_go()
    permits.end()
    permits.end()


def wait_for_the_end(pipe: Any) -> None:
    pipe.receive()


def test_a_worker_ends_when_the_dead_have_left_too_much_memory_mapped_in_it(children, monkeypatch):
    """Each of the dead leaves 600 MiB, and more than 1,024 MiB are too much."""
    monkeypatch.setattr(mapped_memory, "_alive", {})
    monkeypatch.setattr(mapped_memory, "_left", 0)
    far = [children(wait_for_the_end) for _ in range(3)]
    for child in far:
        for _ in range(2):  # a process that comes again has the same memory
            mapped_memory.note(child.pid, 600 * MIB)
    for child in far[:2]:
        mapped_memory.note(far[2].pid, 600 * MIB)
        child.kill()
    with pytest.raises(gpuring.RingError, match="1200 MiB of GPU memory") as caught:
        mapped_memory.note(far[2].pid, 600 * MIB)
    assert not isinstance(caught.value, EngineError), "that would end the session only"
    os.close(mapped_memory._alive[far[2].pid][0])


# ---- bounce buffers ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nixl with bounce buffers"], indirect=True)
def test_frames_wait_for_a_place_in_the_buffer_beside_the_near_ring(session, monkeypatch):
    """The buffer has room for four frames."""
    monkeypatch.setenv("UCX_TLS", "tcp,cuda_copy")  # otherwise a frame arrives while it is sent
    nbytes = 33 * MIB
    over = session(5, nbytes, near_slots=5)
    for seq in range(5):
        over.send(seq, seq, nbytes, "fill")
    for seq in range(5):
        over.send(seq, seq, nbytes, "send again")
    over.until(lambda: len(over.published) == 5)
    for seq in range(5):
        check(over, seq)
    over.end()


@pytest.mark.parametrize("name", ["nixl with bounce buffers"], indirect=True)
def test_the_buffer_beside_the_far_ring_has_room_for_what_is_in_flight(session):
    over = session(memory=slab(9, 1 << 16, window=2))
    for seq in range(40):
        over.send(seq, seq % 9, 1 << 16)
        over.until(lambda seq=seq: len(over.published) >= seq)
    over.until(lambda: len(over.published) == 40)
    assert over.receiver.bounce.slab.slots == 3
    for seq in range(31, 40):
        check(over, seq)
    over.end()


# ---- which engine ------------------------------------------------------------------------------
