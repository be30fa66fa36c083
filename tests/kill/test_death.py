"""Deaths of real processes, as survivors see them: watchdog, redelivery, restarts, keeper,
ownership."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import struct
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import gpuring
from gpuring.cli.inspect import describe
from tests.helpers.processes import open_files, poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import cpu_seconds_of, put
from tests.helpers.victim import Victim


def make(name, **options):
    return gpuring.create(name, slots=4, shape=(8,), dtype="i8", device="host", **options)


# ---- victims -----------------------------------------------------------------------------------


def hold_a_frame(pipe, name, options):
    consumer = gpuring.attach(name, timeout=10).consumer("shared", **options)
    pipe.send("joined")
    slot = consumer.acquire(10)
    pipe.ask(slot.seq)


def hold_a_claim(pipe, name):
    producer = gpuring.attach(name, timeout=10).producer()
    slot = producer.claim(10)
    pipe.ask(slot.seq)


# ---- the watchdog ------------------------------------------------------------------------------


def kill_and_wait(pipe, name, pid):
    """Kills the victim, and waits until it is cleared.  This process has only attached, so it
    clears nobody."""
    with gpuring.attach(name, timeout=10) as ring:
        pipe.receive()
        os.kill(pid, signal.SIGKILL)
        poll(lambda: ring.stats().reaps == 1)


@promise(
    "architecture.md",
    "Each process holds file locks in the rings that it has joined. The kernel drops them when the "
    "process dies, and the others notice that.",
)
@promise(
    "failure.md",
    "The watchdog is native, so it works while the main thread is inside a CUDA call.",
)
def test_the_dead_are_cleared_while_the_main_thread_holds_the_gil(name, children):
    with make(name) as ring, ring.producer():
        victim = up(children(hold_a_claim, name))
        killer = children(kill_and_wait, name, victim.pid)
        killer.send()
        # No Python runs in this process until the killer has sent its result.
        ctypes.PyDLL(None).poll(struct.pack("ihh", killer.pipe.fileno(), select.POLLIN, 0), 1, -1)
        killer.result()


@promise(
    "failure.md",
    "Each process that has a producer or a consumer runs a watchdog thread, which clears the dead.",
    "`gpuring inspect` shows the last eight deaths, and what was done about each.",
)
def test_nobody_has_to_wait_for_the_dead_to_be_cleared(name, children):
    with make(name) as ring, ring.consumer():
        victim = up(children(hold_a_claim, name))
        victim.kill()
        poll(lambda: ring.stats().reaps == 1)
        (death,) = ring.stats().deaths
        assert (death.pid, death.role, death.voided) == (victim.pid, "producer", 1)
        who = f"producer {death.number} ({death.label}, pid {victim.pid})"
        assert f"{who} died; 1 claim voided" in describe(ring.stats())


def test_a_dead_creator_of_host_memory_keeps_nobody_out(name):
    with make(name) as ring:
        dead = replace(ring.stats(), creator_alive=False)
        assert "nobody new can join" not in describe(dead)
        assert "(dead)" in describe(dead)
        assert "(dead: nobody new can join)" in describe(replace(dead, memory="ipc"))


def descriptors():
    """How many descriptors of each kind this process has open."""
    return sorted(open_files().values())


def join_and_leave(pipe, name):
    """Runs in a process of its own, where nothing else is opened or closed."""
    with make(name) as ring:
        for turn in range(201):
            with gpuring.attach(name) as other, other.producer() as producer, ring.consumer() as c:
                put(producer, value=1)
                c.acquire(10).release()
            if turn == 0:
                del other, producer, c
                poll(lambda: "anon_inode:[pidfd]" not in descriptors())  # the watchdog's next look
                before, threads = descriptors(), len(list(Path("/proc/self/task").iterdir()))
        del other, producer, c
        poll(lambda: descriptors() == before)
        assert len(list(Path("/proc/self/task").iterdir())) == threads
        assert not ring.stats().peers


def test_joining_and_leaving_costs_nothing_that_stays(name, children):
    children(join_and_leave, name).result()


def be_in_all(pipe, names):
    with contextlib.ExitStack() as stack:
        for name in names:
            ring = stack.enter_context(gpuring.attach(name))
            stack.enter_context(ring.consumer())
            stack.enter_context(ring.consumer())
        pipe.ask()


def watch_over_all(pipe, names):
    def pidfds():
        return descriptors().count("anon_inode:[pidfd]")

    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(make(name)) for name in names]
        for ring in rings:
            stack.enter_context(ring.producer())
        pipe.ask()
        assert [len(ring.stats().peers) for ring in rings] == [3, 3, 3]
        poll(pidfds)
        assert pidfds() == 1
        pipe.send()
        poll(lambda: [len(ring.stats().peers) for ring in rings] == [1, 1, 1])
        assert [ring.stats().reaps for ring in rings] == [2, 2, 2]
        poll(lambda: pidfds() == 0)


def test_one_descriptor_watches_over_all_peers_of_a_process(name, children):
    names = [f"{name}-{k}" for k in range(3)]
    watcher = up(children(watch_over_all, names))
    victim = up(children(be_in_all, names))
    watcher.ask()
    victim.kill()
    watcher.result()


# ---- what the dead held ------------------------------------------------------------------------


@promise(
    "failure.md",
    "The frames that it held go to another member with `slot.redelivered` set, which is the "
    "default. With `redeliver=False` they are dropped.",
)
@pytest.mark.parametrize("redeliver", [True, False])
def test_a_dead_members_frame_is_redelivered_or_dropped(name, children, redeliver):
    options = {"redeliver": redeliver}
    with make(name) as ring, ring.producer() as producer:
        victim = children(hold_a_frame, name, options)
        assert victim.receive() == "joined"
        other = ring.consumer("shared", **options)
        put(producer, value=1)
        seq = victim.receive()
        put(producer, value=2)
        victim.kill()
        poll(lambda: ring.stats().reaps == 1)
        with other.acquire(10) as slot:
            assert (slot.seq, slot.redelivered) == ((seq, True) if redeliver else (seq + 1, False))
        if redeliver:
            assert other.acquire(10).seq == seq + 1
        with pytest.raises(gpuring.RingTimeout):
            other.acquire(0)


def test_members_must_agree_on_redelivery(name):
    with (
        make(name) as ring,
        ring.consumer("shared"),
        pytest.raises(ValueError, match="`redeliver`"),
    ):
        ring.consumer("shared", redeliver=False)


# ---- loops that outlive more than they used to -------------------------------------------------


@pytest.mark.parametrize("told", ["by acquire", "on the move to the new ring"])
def test_a_torn_frame_does_not_end_a_reattaching_consumer(name, children, monkeypatch, told):
    with make(name) as ring, gpuring.attach(name) as other:
        consumer = other.consumer("recorder", start="oldest", reattach=True)
        victim = Victim(ring, children)
        frames = iter(consumer)
        slot = next(frames)
        assert not slot.restarted
        victim.stick(slot)
        slot.release()

        def successor(find=other._successor):
            if ring.stats().reaps == 0:
                victim.die()
            return find()

        if told == "by acquire":
            victim.die()
        else:
            monkeypatch.setattr(other, "_successor", successor)
        with make(name, replace=True) as second, second.producer() as producer:
            put(producer, value=5)
            with pytest.raises(gpuring.FrameTorn, match="sequence 4,"):
                next(frames)
            assert not consumer.closed
            frames = iter(consumer)
            slot = next(frames)
            assert (slot.array[0], slot.restarted) == (5, True)
            consumer.close()
            assert second.stats().subscriptions == ()


@pytest.mark.slow
def test_waiting_for_a_restart_costs_next_to_nothing(name):
    """It is compared with as many bare wake-ups, because the cost of those depends on the host."""
    with make(name) as ring, gpuring.attach(name) as other:
        consumer = other.consumer(reattach=True)
        with ring.producer() as producer:
            put(producer, value=1)
        seen = []

        def read():
            for slot in consumer:
                seen.append((int(slot.array[0]), slot.restarted))
                if slot.restarted:
                    break

        reader = threading.Thread(target=read)
        reader.start()
        poll(lambda: seen)
        used_s = cpu_seconds_of(1)
        with ring.producer() as producer:
            put(producer, value=2)
            reader.join()
        assert seen == [(1, False), (2, True)]
        assert used_s < 10 * cpu_seconds_of(*[0.02] * 50)


def forks_a_watcher(pipe, name):
    """Forks when it has a watchdog already.  The child attaches anew and does nothing else."""
    with gpuring.attach(name) as ring, ring.consumer():
        if os.fork() == 0:
            signal.alarm(60)
            mine = gpuring.attach(name)
            consumer = mine.consumer("forked")
            pipe.send((os.getpid(), consumer.peer))
            while True:  # only the watchdog works
                signal.pause()
    pipe.receive()


def test_a_forked_child_that_attaches_by_itself_clears_the_dead(name, children):
    with make(name) as ring:  # not joined here, so that only the child has a watchdog
        parent = children(forks_a_watcher, name)
        pid, peer = parent.receive()
        try:
            poll(lambda: ring._header.live_peers() == [peer])
            victim = up(children(hold_a_claim, name))
            victim.kill()
            poll(lambda: ring.stats().reaps == 1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
