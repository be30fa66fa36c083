"""Waits: time-outs, wake-ups and Ctrl-C.  None of them leaves anything behind."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time

import pytest

from gpuring import native
from gpuring.native import Header
from tests.helpers import raw_verbs
from tests.helpers.processes import Pipe, poll, up

VERBS = ("claim", "acquire", "latest")


def waiter(segment, verb: str):
    """(ring, an actor whose verb has to wait, what makes it go on)"""
    ring = segment(2)
    if verb == "claim":
        reader, actor = ring.consumer(), ring.producer()
        actor.put(2)
        return ring, actor, reader.get
    actor, producer = ring.consumer(lossless=verb == "acquire"), ring.producer()
    return ring, actor, producer.put


def asleep(ring, actor) -> bool:
    return ring.peek("peer", "waiting", actor.number) == 1 and ring.peek("head", "waiters") == 1


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("timeout", [0, 0.0, 1e-9, 0.001, 0.12])
def test_a_time_out_changes_nothing_but_the_bell(segment, verb, timeout):
    ring, actor, _ = waiter(segment, verb)
    before = ring.bytes()
    assert getattr(actor, verb)(timeout) == native.BLOCKED
    assert ring.peek("head", "waiters") == 0
    assert ring.bytes() == before


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("timeout", [None, 20])
def test_a_sleeper_is_woken(segment, verb, timeout):
    ring, actor, go_on = waiter(segment, verb)
    results = []
    thread = threading.Thread(target=lambda: results.append(getattr(actor, verb)(timeout)))
    thread.start()
    poll(lambda: asleep(ring, actor))
    go_on()
    thread.join()
    assert results[0] > 0
    assert ring.peek("head", "waiters") == 0
    assert ring.peek("peer", "waiting", actor.number) == 0


def test_the_doorbell_rings_for_sleepers_only(segment):
    ring = segment(2)
    producer, reader = ring.producer(), ring.consumer()
    producer.put(1)
    assert ring.peek("head", "bell") == 0
    ring.poke("head", "waiters", 1)
    bells = []
    for change in (
        lambda: producer.put(1),
        reader.get,
        lambda: producer.abandon(producer.claim()),
        lambda: reader.give_back(reader.acquire()),
        ring.creator.close_ring,
        reader.get,
        producer.peer.leave,
        reader.peer.leave,
    ):
        change()
        bells.append(ring.peek("head", "bell"))
    assert bells == sorted(set(bells)), "a change has not rung the bell"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("how", ["close", "leave"])
def test_a_change_of_membership_wakes_too(segment, verb, how):
    ring, actor, _ = waiter(segment, verb)
    extra = ring.producer()
    if verb != "claim":
        ring.actors[1].peer.leave()  # the producer of `waiter`: `extra` is the last one now
    results = []
    thread = threading.Thread(target=lambda: results.append(getattr(actor, verb)(None)))
    thread.start()
    poll(lambda: asleep(ring, actor))
    if verb == "claim":
        # close alone must wake it (C1), and so must the leaving of the subscription
        assert (ring.creator.close_ring() if how == "close" else ring.actors[0].peer.leave()) == 0
        expected = {native.CLOSED} if how == "close" else {4}
    else:
        assert (ring.creator.close_ring() if how == "close" else extra.peer.leave()) == 0
        expected = {native.ENDED}
    try:
        poll(lambda: results)
    finally:
        ring.actors[0].get()  # so that the thread ends in any case
        thread.join()
    assert set(results) == expected


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("timeout", [None, 20])
def test_ctrl_c_interrupts_a_wait_and_leaves_no_claim_and_no_hold(segment, verb, timeout):
    ring, actor, go_on = waiter(segment, verb)
    before = ring.claims()

    def interrupt() -> None:
        poll(lambda: asleep(ring, actor))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        getattr(actor, verb)(timeout)
    thread.join()
    assert ring.claims() == before
    assert actor.peer.holding() == []
    assert ring.peek("head", "waiters") == 0
    assert ring.peek("peer", "waiting", actor.number) == 0
    go_on()
    assert getattr(actor, verb)(0) > 0  # the peer can be used as before


@pytest.mark.parametrize("verb", ["claim", "acquire", "latest"])
def test_ctrl_c_interrupts_a_wait_for_a_fence(segment, verb):
    """There is a claim or a hold by then, which must be undone."""
    ring = segment(2)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(2)
    for slot in range(2):
        ring.poke("fence", "", 0, ring.work_row(slot, producer.number))
    actor = ring.producer() if verb == "claim" else reader
    held = "writing" if verb == "claim" else "held"

    def shown() -> list[str]:
        if verb == "claim":
            return [ring.slot(i)[2] for i in range(2)]
        return [ring.take(reader.subscription, i)[2] for i in range(2)]

    def interrupt() -> None:
        poll(lambda: held in shown())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        getattr(actor, verb)(None)
    thread.join()
    assert actor.peer.holding() == []
    assert held not in shown()
    assert ("void" if verb == "claim" else "open") in shown()


def test_a_signal_handler_that_does_not_raise_lets_the_wait_go_on(segment):
    ring, reader, publish = waiter(segment, "acquire")
    handled = []

    def handle(_signal: int, _frame: object) -> None:
        handled.append(publish())

    before = signal.signal(signal.SIGUSR1, handle)
    try:

        def poke() -> None:
            poll(lambda: asleep(ring, reader))
            os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=poke)
        thread.start()
        assert reader.acquire(None) == 2
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [[2]]


def test_a_peer_belongs_to_one_thread(segment):
    ring, actor, go_on = waiter(segment, "acquire")
    thread = threading.Thread(target=actor.acquire, args=(None,))
    thread.start()
    poll(lambda: asleep(ring, actor))
    with pytest.raises(RuntimeError, match="thread"):
        actor.acquire(0)
    go_on()
    thread.join()


def test_a_sleeper_does_not_spin(segment):
    _, actor, _ = waiter(segment, "acquire")
    wall, cpu = time.monotonic(), time.thread_time()
    assert actor.acquire(0.5) == native.BLOCKED
    assert time.thread_time() - cpu < (time.monotonic() - wall) / 4


@pytest.mark.slow
def test_who_waits_long_seldom_wakes_up(segment):
    """Slices grow: 50, 50, 100, … ms, so some seven of them.  A busy machine makes it fewer."""
    _, actor, _ = waiter(segment, "acquire")
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    assert actor.acquire(2.5) == native.BLOCKED
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 2.5 / 0.05 / 2


# ---- death during a wait: of a real process, since a watchdog may look at pidfds -----------------


def hold_until_killed(pipe: Pipe, path: str, role: str) -> None:
    """Joins, claims or acquires, and sends what it got."""
    header = Header.attach(os.open(path, os.O_RDWR))
    if role == "producer":
        peer = raw_verbs.join_producer(header)
        peer.claim(20)
    else:
        peer = raw_verbs.join_consumer(header, b"x", True, "next")
        pipe.send()
        peer.acquire(20)
    pipe.ask(peer.seq)


TIMEOUTS = pytest.mark.parametrize("timeout", [None, 20, 0.02, 0])


@TIMEOUTS
def test_a_claim_goes_on_after_the_death_of_the_reader_in_its_way(segment, children, timeout):
    """With a short time-out, or without waiting, the caller tries again.  Somebody must reap."""
    ring = segment(2)
    child = up(children(hold_until_killed, ring.path, "consumer"))
    producer = ring.producer()
    producer.put(2)
    assert child.receive() == 2
    assert producer.claim(0) == native.BLOCKED
    child.kill()
    assert poll(lambda: max(0, producer.claim(timeout))) == 4


@TIMEOUTS
def test_an_acquire_goes_on_after_the_death_of_the_producer_in_its_way(segment, children, timeout):
    ring = segment(2)
    reader, producer = ring.consumer(), ring.producer()
    child = children(hold_until_killed, ring.path, "producer")
    assert child.receive() == 2
    producer.put(1)
    assert reader.acquire(0) == native.BLOCKED
    child.kill()
    assert poll(lambda: max(0, reader.acquire(timeout))) == 3


@TIMEOUTS
def test_an_acquire_learns_of_the_death_of_the_last_producer(segment, children, timeout):
    ring = segment(2)
    reader = ring.consumer()
    child = children(hold_until_killed, ring.path, "producer")
    assert child.receive() == 2
    child.kill()

    def ended() -> bool:
        result = reader.acquire(timeout)
        assert result in (native.BLOCKED, native.PEER_LOST)
        return result == native.PEER_LOST

    poll(ended)


def test_a_wait_for_a_fence_goes_on_after_the_death_of_who_owes_it(segment):
    ring = segment(2)
    dead, producer = ring.producer(), ring.producer()
    dead.put(2)
    ring.poke("fence", "", 0, ring.work_row(0, dead.number))
    dead.die(unnoticed=False)
    assert producer.claim(20) == 4
    assert ring.tear(0, dead.number) == (dead.peer.id, 0)
