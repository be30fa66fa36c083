"""Whatever dies, ends or is replaced at either end of a bridge, each frame comes or counts as lost.

Both "hosts" are this one, so the two rings have different names.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import gpuring
from gpuring import native
from gpuring.errors import EndOfStream, PeerLost, RingFull
from tests.helpers.processes import Pipe, poll
from tests.helpers.words import locked

zmq = pytest.importorskip("zmq")

from gpuring import bridge  # noqa: E402
from gpuring.bridge import supervisor  # noqa: E402
from gpuring.bridge.network import wire  # noqa: E402
from tests.bridge.bridges import (  # noqa: E402
    WAIT_S,
    both_ends,
    bridged,
    connected,
    got,
    kill_worker,
    put,
    put_all,
    ring_of,
    take,
)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("victims", [("into", "out"), ("into",), ("out",)], ids="+".join)
def test_workers_that_are_killed_cost_nothing(near, far, victims):
    with both_ends(near, far) as ends:
        thread = put_all(ends.producer, 300)
        sides = [getattr(ends, victim) for victim in victims]
        for n in range(300):
            with ends.frames.acquire(timeout=WAIT_S) as slot:
                assert (got(slot), slot.lost) == (n, 0)
            if n in (50, 200):
                for pid in [poll(lambda side=side: side.pid) for side in sides]:
                    os.kill(pid, signal.SIGKILL)
        thread.join()
        assert [side.stats().restarts for side in sides] == [2] * len(sides)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_nobody_else_gets_the_port_of_a_worker_that_is_dead(near, host):
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    with bridge.export(near, listen=f"{host}:0") as out:
        port = int(out.address.rpartition(":")[2])
        for _ in range(2):
            kill_worker(out)
            with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
                other.bind((host.strip("[]"), port))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["out", "into"])
def test_a_bridge_waits_for_who_keeps_the_dead_from_being_cleared(
    near, far, victim, monkeypatch, caplog
):
    """A stopped process that has the lock of a ring does so.  The bridge goes on afterwards."""
    monkeypatch.setattr(supervisor, "_CLEARED_S", 0.1)
    with both_ends(near, far) as ends:
        put(ends.producer, 0)
        assert take(ends.frames) == 0
        side = getattr(ends, victim)
        with locked(near if victim == "out" else far):
            os.kill(side.pid, signal.SIGKILL)
            poll(lambda: "cannot be cleared from ring" in caplog.text, WAIT_S)
        put(ends.producer, 1)
        assert take(ends.frames) == 1


def drained(frames: gpuring.Consumer, seq: int) -> int:
    """Takes what is there.  Returns the last near sequence.  All after `seq` have come or were
    counted as lost."""
    with contextlib.suppress(TimeoutError):
        while True:
            with frames.acquire(timeout=0) as slot:
                got(slot)
                seq += 1 + slot.lost
                assert slot.origin.seq == seq
    return seq


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["out", "into"])
def test_what_a_lossy_importer_loses_by_a_death_is_counted(near, far, victim):
    with both_ends(near, far, slots=4, policy="lossy") as ends:
        put(ends.producer, 0)
        with ends.frames.acquire(timeout=WAIT_S) as slot:
            first = seq = slot.origin.seq
        side = getattr(ends, victim)
        for n in range(1, 60):
            put(ends.producer, n)
        os.kill(poll(lambda: side.pid), signal.SIGKILL)
        for n in range(60, 90):
            put(ends.producer, n)
        poll(lambda: side.pid and connected(side))
        n = 90
        while n < 95 or seq < first + 95:
            put(ends.producer, n)
            n += 1
            seq = drained(ends.frames, seq)


@pytest.mark.slow
def test_an_importer_that_is_given_up_comes_back_and_counts_what_it_missed(near, far):
    with (
        ring_of(near, slots=4) as ring,
        bridge.export(near, listen="127.0.0.1:0", timeout=0.3, patience=0.1) as out,
        bridge.import_(f"{out.address}/{near}", name=far, device="host", timeout=0.3) as into,
        ring.producer() as producer,
        gpuring.attach(far, timeout=WAIT_S) as there,
        there.consumer(start="oldest") as frames,
    ):
        put(producer, 0)
        with frames.acquire(timeout=WAIT_S) as slot:
            first = seq = slot.origin.seq
        os.kill(pid := poll(lambda: into.pid), signal.SIGSTOP)
        for n in range(1, 20):  # more than 4 slots: the importer was given up
            put(producer, n)
        os.kill(pid, signal.SIGCONT)
        poll(lambda: connected(into) and out.stats().links)
        n = 20
        while n < 25 or seq < first + 25:
            put(producer, n)
            n += 1
            seq = drained(frames, seq)


@pytest.mark.slow
@pytest.mark.parametrize(("until", "come"), [(7, [6]), (12, [9, 10, 11])])
def test_an_importer_without_a_frame_begins_where_it_began_though_the_exporter_restarts(
    near, far, until, come
):
    """The importer gets no frame from before.  Frames that it misses since then are counted."""
    with ring_of(near, slots=4) as ring, ring.producer() as producer:
        for n in range(6):
            put(producer, n)
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(bridge.export(near, listen="127.0.0.1:0"))
            where = first.address
            into = bridge.import_(f"{where}/{near}", name=far, device="host")
            stack.enter_context(into)
            there = stack.enter_context(gpuring.attach(far, timeout=WAIT_S))
            frames = stack.enter_context(there.consumer(start="oldest"))
            poll(lambda: connected(into))
            first.close()
            for n in range(6, until):
                put(producer, n)
            stack.enter_context(bridge.export(near, listen=where))
            assert [take(frames) for _ in come] == come
            assert there.stats().link.lost == come[0] - 6


@pytest.mark.slow
def test_the_end_of_the_stream_is_its_end_over_there_and_it_goes_on(near, far):
    with both_ends(near, far) as ends:
        put(ends.producer, 0)
        ends.producer.close()
        assert take(ends.frames) == 0
        with pytest.raises(EndOfStream):
            ends.frames.acquire(timeout=WAIT_S)
        with ends.ring.producer() as producer:
            poll(lambda: native.look(ends.frames._peer)[0] != native.ENDED)
            put(producer, 1)
            assert take(ends.frames) == 1


@pytest.mark.slow
def test_streams_that_end_and_go_on_stay_in_one_session(near, far):
    """At the end the far side gives its claimed slots back, so the near side must not use them."""
    with both_ends(near, far, timeout=WAIT_S) as ends:
        ends.producer.close()
        poll(lambda: native.look(ends.frames._peer)[0] == native.ENDED, WAIT_S)
        for n in range(0, 8, 2):
            with ends.ring.producer() as producer:
                put(producer, n)
                put(producer, n + 1)
            poll(lambda: native.look(ends.frames._peer)[0] != native.ENDED, WAIT_S)
            assert [take(ends.frames), take(ends.frames)] == [n, n + 1]
            poll(lambda: native.look(ends.frames._peer)[0] == native.ENDED, WAIT_S)
        assert [side.stats().links[0].sessions for side in (ends.out, ends.into)] == [1, 1]


def produce(pipe: Pipe, near: str) -> None:
    """A producer in a process of its own: puts as many frames as it is told to, again and again."""
    with gpuring.attach(near, timeout=WAIT_S) as ring, ring.producer() as producer:
        n = 0
        while frames := pipe.receive():
            for _ in range(frames):
                put(producer, n)
                n += 1
            pipe.send(n)


@pytest.mark.slow
def test_a_killed_producer_is_a_lost_one_over_there(near, far, children, caplog):
    """The log of each side says that the worker has not ended by itself."""
    caplog.set_level("INFO", "gpuring.bridge")
    with (
        ring_of(near),
        bridged(near, far),
        gpuring.attach(far, timeout=WAIT_S) as there,
        there.consumer(start="oldest", reattach=True) as frames,
        there.consumer(lossless=False, start="oldest") as watching,
    ):
        child = children(produce, near)
        child.ask(3)
        assert [take(frames) for _ in range(3)] == [0, 1, 2]
        child.kill()
        with pytest.raises(PeerLost):
            list(watching)
        assert "last producer was killed, and so is the worker here, on purpose" in caplog.text
        poll(lambda: "is gone: the near producer was killed, and so is the imp" in caplog.text)
        child = children(produce, near)
        child.send(2)
        loop = iter(frames)
        slot = next(loop)
        assert (got(slot), slot.restarted) == (0, True)
        assert got(next(loop)) == 1
        loop.close()


def carried(stack: contextlib.ExitStack, near: str, far: str, **options: Any) -> Any:
    """A near ring and its producer, both sides of a bridge, and a loop over the far ring.  The ring
    and the producer may be replaced.  The loop goes on then.  Its subscription is durable, so that
    each far ring waits for it."""
    first = ring_of(near)
    producer = stack.enter_context(first.producer())
    out, into = stack.enter_context(bridged(near, far, **options))
    there = stack.enter_context(gpuring.attach(far, timeout=WAIT_S))
    frames = stack.enter_context(
        there.consumer("reader", durable=True, start="oldest", reattach=True)
    )
    loop = iter(frames)
    stack.callback(loop.close)
    return first, producer, out, into, loop


@pytest.mark.slow
def test_a_ring_that_is_replaced_is_replaced_over_there(near, far):
    with contextlib.ExitStack() as stack:
        first, producer, _, _, loop = carried(stack, near, far)
        put(producer, 0)
        assert got(next(loop)) == 0
        first.close()
        again = stack.enter_context(ring_of(near, shape=32))
        producer = stack.enter_context(again.producer())
        for n in range(1, 5):
            put(producer, n)
        slot = next(loop)
        assert (got(slot), slot.restarted, slot.array.shape) == (1, True, (32,))
        assert [got(next(loop)) for _ in range(3)] == [2, 3, 4]


@pytest.mark.slow
def test_producers_of_a_new_ring_wait_for_an_importer_that_needs_the_old_one(near, far):
    with contextlib.ExitStack() as stack:
        first, producer, _, into, loop = carried(stack, near, far)
        put(producer, 0)
        assert got(next(loop)) == 0
        os.kill(stopped := into.pid, signal.SIGSTOP)
        for n in range(1, 4):
            put(producer, n)
        first.close()
        again = stack.enter_context(ring_of(near))
        producer = stack.enter_context(again.producer())
        poll(lambda: again.stats().subscriptions, WAIT_S)
        for n in range(4, 12):
            put(producer, n)
        with pytest.raises(RingFull, match=far):
            producer.claim(0.1)
        os.kill(stopped, signal.SIGCONT)
        thread = threading.Thread(target=lambda: [put(producer, n) for n in range(12, 40)])
        thread.start()
        for n in range(1, 40):
            slot = next(loop)
            assert (got(slot), slot.lost) == (n, 0)
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("policy", wire.POLICIES[:2])
def test_what_a_new_ring_lost_before_the_exporter_came_is_counted(near, far, policy):
    """The exporter's worker is stopped while the ring is replaced and goes round three times.  With
    a lossless importer the new ring waits, because the subscription is durable."""
    with contextlib.ExitStack() as stack:
        first, producer, out, _, loop = carried(stack, near, far, policy=policy)
        put(producer, 0)
        assert got(next(loop)) == 0
        poll(lambda: out.stats().links[0].lag == 0, WAIT_S)
        os.kill(out.pid, signal.SIGSTOP)
        first.close()
        again = stack.enter_context(ring_of(near))
        producer = stack.enter_context(again.producer())
        thread = threading.Thread(target=lambda: [put(producer, n) for n in range(1, 25)])
        thread.start()
        poll(lambda: again.stats().held_up if policy == "lossless" else not thread.is_alive())
        os.kill(out.pid, signal.SIGCONT)
        slot = next(loop)
        assert slot.restarted
        assert slot.lost == got(slot) - 1
        assert (slot.lost == 0) if policy == "lossless" else (slot.lost > 8)
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("policy", wire.POLICIES[:2])
def test_frames_that_only_a_replaced_ring_has_are_lost_and_counted(near, far, policy):
    """The near ring is replaced while the exporter has no worker that could send the frames."""
    with contextlib.ExitStack() as stack:
        first, producer, out, into, loop = carried(stack, near, far, slots=4, policy=policy)
        for n in range(7):  # the far ring has room for four of them
            put(producer, n)
        with gpuring.attach(far) as there:
            poll(lambda: there.stats().link.seq == 11)
        os.kill(stopped := poll(lambda: into.pid), signal.SIGSTOP)
        os.kill(out.pid, signal.SIGKILL)
        first.close()
        producer = stack.enter_context(stack.enter_context(ring_of(near)).producer())
        os.kill(stopped, signal.SIGCONT)
        put(producer, 7)
        assert [got(next(loop)) for _ in range(4)] == [0, 1, 2, 3]
        slot = next(loop)
        assert (got(slot), slot.restarted, slot.lost) == (7, True, 3)


FORKS = """
import os, signal, sys
from gpuring import bridge
into = bridge.import_("127.0.0.1:1/x", name=sys.argv[1], device="host")
print(into.stats().pid, flush=True)
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


def test_a_worker_ends_with_its_supervisor_even_if_a_fork_of_that_lives(far):
    command = [sys.executable, "-W", "ignore", "-c", FORKS, far]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as maker:
        try:
            pid = int(maker.stdout.readline())
            poll(lambda: not Path(f"/proc/{pid}").exists(), WAIT_S)
        finally:
            maker.stdin.close()  # this ends the forked child
