"""An importer that asks before the near ring is there waits for it, and gets it from the start."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import gpuring
from gpuring.errors import RingError
from tests.helpers.processes import poll

pytest.importorskip("zmq")

from gpuring import bridge
from gpuring.bridge.exporter import worker
from gpuring.bridge.network import wire
from tests.bridge.bridge_sides import SPEC, WAIT_S, exporter, importer
from tests.bridge.bridges import bridged, kill_worker, put, ring_of, take

MISSING = "No ring or service named"


@pytest.mark.slow
def test_a_bridge_that_is_up_before_the_camera_carries_the_first_frame(near, far, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    with bridged(near, far, slots=32) as (out, into):
        told = f"connected to {out.address}, and waits: the exporter says: {MISSING}"
        poll(lambda: told in caplog.text, WAIT_S)
        assert not into.stats().links[0].connected
        with ring_of(near) as ring, ring.producer() as producer:
            for n in range(ring.slots - 1):  # one more would overwrite the first
                put(producer, n)
            with (
                gpuring.attach(far, timeout=WAIT_S) as there,
                there.consumer(start="oldest") as frames,
            ):
                with frames.acquire(timeout=WAIT_S) as slot:
                    assert (slot.origin.seq, slot.lost, slot.meta["n"]) == (ring.slots, 0, 0)
                assert [take(frames) for _ in range(6)] == [*range(1, 7)]
    assert f"/{far} is connected, and waits for the ring" in caplog.text  # the exporter's log
    assert caplog.text.count(told) == 1


@contextlib.contextmanager
def exporting(name: str) -> Iterator[tuple[Any, Any]]:
    """An exporter without a ring, and a function that makes importers."""
    with (
        bridge.export(name, listen="127.0.0.1:0", timeout=WAIT_S / 2) as out,
        contextlib.ExitStack() as stack,
    ):
        yield out, lambda: stack.enter_context(importer(name, out.address))


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True], ids=["", "its worker dies"])
@pytest.mark.parametrize("policy", wire.POLICIES)
def test_what_was_overwritten_before_an_importer_was_served_that_waits_is_counted(
    name, policy, dies
):
    """The exporter is stopped while the ring comes, and ten frames go into its four slots.  If its
    worker dies then, the importer has no far ring yet."""
    with exporting(name) as (out, connect):
        far = connect()
        far.hello(policy)
        assert MISSING in far.heard(wire.Ping).blocked
        os.kill(out.pid, signal.SIGSTOP)
        with (
            gpuring.create(name, slots=4, shape=4, dtype="i8", device="host") as ring,
            ring.producer() as producer,
        ):
            for _ in range(10):
                producer.claim().publish()
            os.kill(out.pid, signal.SIGCONT)
            assert far.heard(wire.Welcome).seq == 3  # a ring of four slots begins with 4
            if dies:
                kill_worker(out)
                far = connect()
                far.hello(policy)
                assert far.heard(wire.Welcome).seq == 3
            far.say(7, wire.Open("zmq", 4), wire.Flow(0, (4,)))
            frame = far.heard(wire.Frame)
            assert frame.lost >= 6
            assert frame.seq - frame.lost == 4


@pytest.mark.slow
def test_who_reads_the_far_ring_from_its_beginning_is_told_what_was_overwritten(near, far, caplog):
    """Another member of the subscription does not get this count again."""
    caplog.set_level("INFO", "gpuring.bridge")
    with bridged(near, far, slots=64, timeout=WAIT_S) as (out, _), contextlib.ExitStack() as stack:
        poll(lambda: "and waits: the exporter says" in caplog.text, WAIT_S)
        os.kill(out.pid, signal.SIGSTOP)
        ring = stack.enter_context(ring_of(near))
        producer = stack.enter_context(ring.producer())
        for n in range(20):
            put(producer, n)
        os.kill(out.pid, signal.SIGCONT)
        there = stack.enter_context(gpuring.attach(far, timeout=WAIT_S))
        one = stack.enter_context(there.consumer("detectors", start="oldest"))
        with one.acquire(timeout=WAIT_S) as slot:
            assert slot.lost == slot.meta["n"] == slot.origin.seq - ring.slots > 0
        other = stack.enter_context(there.consumer("detectors", start="oldest"))
        with other.acquire(timeout=WAIT_S) as slot:
            assert slot.lost == 0


def test_who_asks_when_the_ring_is_there_begins_with_the_next_frame(name):
    with (
        exporting(name) as (_, connect),
        gpuring.create(name, slots=4, shape=4, dtype="i8", device="host") as ring,
        ring.producer() as producer,
    ):
        producer.claim().publish()
        far = connect()
        far.begin(7, 4)
        producer.claim().publish()
        frame = far.heard(wire.Frame)
        assert (frame.seq, frame.lost) == (5, 0)


@pytest.mark.slow
def test_an_importer_that_waits_says_that_it_lives_and_logs_once_why_it_waits(far, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    with (
        exporter() as near,
        bridge.import_(f"{near.address}/x", name=far, device="host", timeout=WAIT_S / 6),
    ):
        near.heard(wire.Hello)
        for _ in range(2):
            near.say(wire.Ping("the ring is not there"))
            near.heard(wire.Ping)
        near.say(wire.Welcome("h", "0" * 32, 0, SPEC, {"zmq": {}}))
        near.heard(wire.Open)
        poll(lambda: ", engine zmq" in caplog.text, WAIT_S)
    told = f"connected to {near.address}, and waits: the exporter says: the ring is not there"
    assert caplog.text.count(told) == 1


def test_an_importer_that_waits_in_silence_is_given_up(name):
    with (
        bridge.export(name, listen="127.0.0.1:0", timeout=0.1, patience=0.1) as out,
        importer(name, out.address) as far,
    ):
        far.hello()
        assert "said nothing for 0.1 s" in far.heard(wire.Bye).reason


def test_those_who_wait_exclude_others_of_their_name(name):
    with exporting(name) as (_, connect):
        first, again, other = connect(), connect(), connect()
        first.hello()
        first.heard(wire.Ping)
        other.hello(run="1" * 16)
        refused = other.heard(wire.Refuse)
        assert ("from another process" in refused.reason, refused.again) == (True, True)
        again.hello(session=8)
        assert first.heard(wire.Bye).reason == "there is a newer session"
        again.heard(wire.Ping)


def test_no_more_than_so_many_wait(name):
    with exporting(name) as (_, connect):
        waiting = [connect() for _ in range(worker._WAITING)]
        for n, far in enumerate(waiting):
            far.hello(who=f"far/{n}")
        for far in waiting:
            far.heard(wire.Ping)
        one_more = connect()
        one_more.hello(who="far/one-more")
        refused = one_more.heard(wire.Refuse)
        assert (MISSING in refused.reason, refused.again) == (True, True)
        waiting[0].say(7, wire.Bye("it was a test", False))
        waiting[0].heard(wire.Bye)
        one_more.hello(who="far/one-more")
        one_more.heard(wire.Ping)


@pytest.mark.slow
def test_an_importer_gives_up_though_it_is_connected_while_there_is_no_ring(near, far):
    with (
        bridge.export(near, listen="127.0.0.1:0") as out,
        bridge.import_(f"{out.address}/{near}", name=far, device="host", give_up=3) as into,
        pytest.raises(RingError, match=f"no session for 3 s: the exporter says: {MISSING}"),
    ):
        into.wait(WAIT_S)


@pytest.mark.slow
def test_an_importer_that_gives_up_before_it_was_answered_says_what_it_waits_for(far):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}/cam0"
        options = {"name": far, "device": "host", "timeout": WAIT_S / 5}
        with (
            bridge.import_(where, give_up=0.2, **options) as into,
            pytest.raises(RingError, match=r"no session for 0\.2 s: there was no answer yet"),
        ):
            into.wait(WAIT_S)
