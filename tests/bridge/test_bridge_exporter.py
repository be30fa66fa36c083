"""An exporter, while the test plays its importers."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuring
from tests.helpers.processes import poll

pytest.importorskip("zmq")

from gpuring import bridge
from gpuring.bridge import supervisor
from gpuring.bridge.network import wire
from tests.bridge.bridge_sides import EPOCH, WAIT_S, Far, importer
from tests.bridge.bridges import kill_worker


@contextlib.contextmanager
def slow_importer(
    name: str, policy: str, **options: Any
) -> Iterator[tuple[bridge.Export, gpuring.Ring, Far]]:
    """An importer that was sent 32 frames.  Most of their bytes wait in the exporter, while a
    producer goes round and round through the slots."""
    over, meta = threading.Event(), [("n", "i8")]

    def produce() -> None:
        with ring.producer() as producer:
            for n in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                with contextlib.suppress(gpuring.RingFull), producer.claim(0.1) as slot:
                    slot.array[...] = slot.meta["n"] = n

    def all_are_taken() -> bool:
        far.say(7, wire.Ping())  # so that it is not silent for too long
        links = out.stats().links
        return not links or links[0].lag == 32  # or it was given up already

    with (
        gpuring.create(name, slots=64, shape=1 << 17, dtype="i8", meta=meta, device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0", **options) as out,
        importer(name, out.address, rcvhwm=1, rcvbuf=1 << 16) as far,
    ):
        far.hello(policy, timeout_ms=60_000)
        far.heard(wire.Welcome)
        far.say(7, wire.Open("zmq", 64), wire.Flow(0, tuple(range(1, 33))))
        writing = threading.Thread(target=produce)
        writing.start()
        try:
            poll(all_are_taken, WAIT_S)
            yield out, ring, far
        finally:
            over.set()
            writing.join()


def whole(far: Far) -> list[bool]:
    """For each frame that still comes: whether it is whole."""
    found = []
    while far.socket.poll(500):
        message = far.next()
        if isinstance(message, wire.Frame):
            number = np.frombuffer(message.meta, "i8")[0]
            found.append(bool((np.frombuffer(message.part, "i8") == number).all()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("policy", wire.POLICIES[:2])
def test_an_importer_that_was_given_up_gets_no_bytes_of_later_frames(name, policy):
    """The exporter ends the session, and gives the slots back.  The importer goes on reading."""
    for silence_s in (0.1, 2.0, 20.0):  # a busy machine may be too slow for the first
        with slow_importer(name, policy, timeout=silence_s, patience=0) as (out, ring, far):
            poll(lambda out=out: not out.stats().links, WAIT_S)
            until = ring.stats().cursor + 80
            poll(lambda ring=ring, until=until: ring.stats().cursor >= until, WAIT_S)
            if found := whole(far):
                break
    assert all(found), f"{found.count(False)} of {len(found)} frames were torn"
    assert found


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    at = f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{int(port):04X}"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()]
    return any(row[1] == at and row[3] == "0A" for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("policy", wire.POLICIES[:2])
def test_an_exporter_that_ends_sends_nothing_from_slots_that_it_gave_back(name, policy):
    """Most of the bytes are sent after the exporter has stopped waiting for the importer."""
    with slow_importer(name, policy) as (out, _, far):
        address = out.address
        assert is_listening(address)
        ending = threading.Thread(target=out.close)
        ending.start()
        poll(lambda: not is_listening(address))  # it waits no more, and sends for 0.1 s
        found = whole(far)
        ending.join()
    assert found
    assert all(found)


@pytest.mark.slow
@pytest.mark.parametrize("policy", wire.POLICIES[1:])
def test_lossy_importers_that_take_nothing_leave_half_of_the_slots(name, policy):
    """The importers give many credits, and acknowledge nothing."""
    said = [0, 0]
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring,
        ring.producer() as producer,
        bridge.export(name, listen="127.0.0.1:0", timeout=WAIT_S) as out,
        importer(name, out.address) as one,
        importer(name, out.address) as other,
    ):
        for k, far in enumerate((one, other)):
            far.hello(policy, who=f"h/{k}", timeout_ms=1000)
            far.heard(wire.Welcome)
        for far in (one, other):
            far.say(7, wire.Open("zmq", 64), wire.Flow(0, tuple(range(1, 33))))
        more = 40  # rounds after both have got all that they get
        while more:
            with producer.claim(timeout=0):
                pass
            for k, far in enumerate((one, other)):
                while far.socket.poll(10):
                    said[k] += isinstance(far.next(), wire.Frame)
            more -= min(said) >= 2
        assert [link.lag for link in out.stats().links] == said == [2, 2]


@pytest.fixture
def exported(name: str) -> Iterator[tuple[Far, gpuring.Ring]]:
    """An exporter's importer, and the near ring."""
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0") as out,
        importer(name, out.address) as far,
    ):
        yield far, ring


def put(producer: gpuring.Producer, frames: int) -> None:
    for _ in range(frames):
        with producer.claim(WAIT_S) as slot:
            slot.array[...] = slot.seq


@pytest.mark.slow
def test_what_an_importer_says_in_an_earlier_session_is_not_heard(exported):
    far, ring = exported
    with ring.producer() as producer:
        far.begin(1, 8)
        far.begin(2, 8)
        far.say(1, wire.Bye("late", False))
        put(producer, 1)
        assert far.heard(wire.Frame, wire.Bye).to_seq == 8


def test_the_end_comes_after_all_frames_that_are_sent_again(exported):
    """The importer gives fewer credits than in the session before."""
    far, ring = exported
    with ring.producer() as producer:
        far.begin(1, 8, 9, 10, 11)
        put(producer, 3)
        first = [far.heard(wire.Frame).seq for _ in range(3)]
    far.heard(wire.End)
    far.begin(2, 8)
    again = []
    while isinstance(said := far.heard(wire.Frame, wire.End), wire.Frame):
        again.append(said.seq)
        far.say(2, wire.Flow(said.seq, (8 + len(again),)))
    assert again == first


def test_nobody_is_waited_for_longer_than_the_patience(name):
    """Otherwise an importer could ask for it, and hold up the producers for as long as it likes."""
    with (
        gpuring.create(name, slots=4, shape=4, dtype="i8", device="host"),
        bridge.export(name, listen="127.0.0.1:0", timeout=0.1, patience=0.1) as out,
        importer(name, out.address) as far,
    ):
        far.hello(timeout_ms=10**12)
        far.heard(wire.Welcome)
        poll(lambda: not out.stats().links, WAIT_S)


@pytest.mark.slow
def test_a_frame_that_has_arrived_is_not_lost_when_the_exporter_did_not_hear_of_it(name):
    """The importer's worker dies with the frame.  The next worker gets it again, and passes over
    it."""
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0") as out,
        ring.producer() as producer,
    ):

        def session(mark: tuple[str, int], credit: int, frames: int) -> tuple[wire.Frame, str]:
            with importer(name, out.address) as far:
                far.hello("latest", *mark)
                epoch = far.heard(wire.Welcome).epoch
                put(producer, frames)
                far.say(7, wire.Open("zmq", 4), wire.Flow(mark[1], (credit,)))
                frame = far.heard(wire.Frame)
                kill_worker(out)
                return frame, epoch

        first, epoch = session(("", 0), 1, 1)
        second, _ = session((epoch, first.seq), 2, 3)
    assert (second.seq - first.seq, second.lost) == (3, 2)


@pytest.mark.slow
@pytest.mark.parametrize("policy", wire.POLICIES)
def test_what_was_lost_while_there_was_no_exporter_counts_though_its_worker_dies(name, policy):
    """The worker dies before it has sent a frame, so the next worker has to know the count.  What
    producers abandon later is not lost to a lossless importer."""
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring,
        ring.producer() as producer,
        bridge.export(name, listen="127.0.0.1:0") as out,
    ):

        @contextlib.contextmanager
        def welcomed(seq: int) -> Iterator[Far]:
            with importer(name, out.address) as far:
                far.hello(policy, ring._epoch.hex(), seq)
                far.heard(wire.Welcome)
                yield far

        def frame_after(seq: int) -> tuple[int, int]:
            with welcomed(seq) as far:
                far.say(7, wire.Open("zmq", 4), wire.Flow(seq, (seq,)))
                frame = far.heard(wire.Frame)
                return frame.seq, frame.lost

        put(producer, 20)
        with welcomed(9):
            kill_worker(out)
        seq, lost = frame_after(9)
        assert lost == seq - 10 > 0
        if policy == "lossless":
            with welcomed(27) as far:  # it has every frame
                far.say(7, wire.Open("zmq", 4), wire.Flow(27, (4,)))
                for _ in range(20):
                    producer.claim(WAIT_S).abandon()
                kill_worker(out)
            put(producer, 1)
            assert frame_after(27) == (48, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "times"), [("lossless", 2), ("lossy", 1)])
def test_what_only_replaced_rings_had_counts_until_a_frame_of_the_new_one_has_arrived(
    name, policy, times, monkeypatch
):
    """Each time the worker dies before it has sent a frame.  The supervisor has counted what was
    lost, and keeps the count.  Only three frames of the first ring had arrived."""
    monkeypatch.setattr(supervisor, "_QUICK_S", 0.0)  # no rest before another worker
    with contextlib.ExitStack() as stack, bridge.export(name, listen="127.0.0.1:0") as out:

        def replaced(*before: Any) -> tuple[gpuring.Ring, gpuring.Producer]:
            for each in before:
                each.close()
            options = {"slots": 8, "shape": 4, "dtype": "i8", "device": "host"}
            ring = stack.enter_context(gpuring.create(name, **options))
            return ring, stack.enter_context(ring.producer())

        @contextlib.contextmanager
        def welcomed(epoch: str, seq: int) -> Iterator[tuple[Far, wire.Welcome]]:
            with importer(name, out.address) as far:
                far.hello(policy, epoch, seq)
                yield far, far.heard(wire.Welcome)

        def frame_after(epoch: str, seq: int) -> tuple[int, int]:
            with welcomed(epoch, seq) as (far, near):
                passed = seq if epoch == near.epoch else near.seq
                far.say(7, wire.Open("zmq", 4), wire.Flow(passed, (9,)))
                frame = far.heard(wire.Frame, wire.Bye)
                return frame.seq, frame.lost

        ring, producer = replaced()
        with welcomed("", 0) as (_, near):
            has = near.epoch, near.seq + 3
            put(producer, 7)
            kill_worker(out)
        for _ in range(times):
            ring, producer = replaced(producer, ring)
            put(producer, 2)
            with welcomed(*has) as (_, near):
                kill_worker(out)
        lost = 4 + 2 * (times - 1)
        assert frame_after(*has) == (8, lost)  # as if the importer had no ring yet
        kill_worker(out)
        assert frame_after(near.epoch, near.seq) == (8, lost)
        kill_worker(out)
        assert frame_after(near.epoch, 8) == (9, 0)  # it had the first frame already


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("told", [False, True])
def test_what_a_lossy_importer_lost_with_its_session_counts_though_the_ring_is_replaced(name, told):
    """The importer has the first of three frames when its session ends.  The stream ends before
    that or after it."""
    options: dict[str, Any] = {"slots": 8, "shape": 4, "dtype": "i8", "device": "host"}
    with bridge.export(name, listen="127.0.0.1:0") as out, contextlib.ExitStack() as stack:

        def session(*hello: Any, credit: int) -> tuple[Far, wire.Welcome]:
            far = stack.enter_context(importer(name, out.address))
            far.hello("lossy", *hello)
            welcome = far.heard(wire.Welcome)
            passed = hello[1] if hello[0] == welcome.epoch else welcome.seq
            credits = tuple(range(credit, credit + 4))
            far.say(7, wire.Open("zmq", 8), wire.Flow(passed, credits))
            return far, welcome

        with gpuring.create(name, **options) as ring, ring.producer() as producer:
            far, welcome = session("", 0, credit=8)
            put(producer, 3)
            first, *_ = [far.heard(wire.Frame).seq for _ in range(3)]
            if not told:
                far.say(7, wire.Bye("it goes on with another connection", True))
                poll(lambda: not out.stats().links[0].connected, WAIT_S)
            producer.claim(WAIT_S).abandon()  # it was no frame, so it is not lost
        if told:
            far.heard(wire.End)
            far.say(7, wire.Bye("it goes on with another connection", True))
        with gpuring.create(name, **options) as ring, ring.producer() as producer:
            put(producer, 1)
            while not isinstance(said := far.heard(wire.Frame, wire.Bye), wire.Frame):
                far, _ = session(welcome.epoch, first, credit=9)
            assert (said.seq, said.lost) == (8, 2)


def test_an_importer_that_has_said_more_than_was_heard_can_be_hung_up_on(name):
    """Most bytes for the importer wait in the exporter.  So does what it has sent after the wrong
    message."""
    with (
        gpuring.create(name, slots=8, shape=1 << 20, dtype="i8", device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0") as out,
        importer(name, out.address, rcvhwm=1, rcvbuf=1 << 16) as far,
        ring.producer() as producer,
    ):
        far.begin(1, *range(8, 16))
        put(producer, 8)
        poll(lambda: out.stats().links[0].lag == 8, WAIT_S)
        pid = out.pid
        os.kill(pid, signal.SIGSTOP)  # so that it hears all of it together
        far.say(1, wire.Welcome("h", EPOCH, 0, "", {}), *[wire.Ping()] * 20)
        os.kill(pid, signal.SIGCONT)
        poll(lambda: not out.stats().links[0].connected, WAIT_S)
        assert (out.pid, out.stats().restarts) == (pid, 0)
