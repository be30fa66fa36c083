"""A peer that is dropped leaves its ring, also if Ctrl-C comes first or the lock is taken."""

from __future__ import annotations

import _thread
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

import pytest

import gpuring
from tests.helpers import raw_verbs
from tests.helpers.commands import python
from tests.helpers.interrupted import Interrupt, at_each_place
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.helpers.rings import small_ring
from tests.helpers.words import locked, names

pytestmark = pytest.mark.filterwarnings("ignore:ring .* was not closed:ResourceWarning")


@pytest.fixture
def ring(name) -> Iterator[gpuring.Ring]:
    with small_ring(name, 2) as made:
        yield made


def in_one_step(*calls: Any) -> list[Any]:
    """Calls functions of C.  Python looks for no signals between them, and runs no other thread."""
    return list(map(methodcaller("__call__"), calls))


@contextmanager
def told() -> Iterator[list[type[BaseException] | None]]:
    """What Python prints of exceptions that it cannot raise.  The exceptions are not kept, because
    their frames would keep what was dropped."""
    kinds: list[type[BaseException] | None] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: kinds.append(unraisable.exc_type)
    try:
        yield kinds
    finally:
        sys.unraisablehook = before


def a_producer(ring: gpuring.Ring) -> gpuring.Producer:
    producer = ring.producer()
    producer.claim(0)
    return producer


def a_consumer(ring: gpuring.Ring) -> gpuring.Consumer:
    consumer = ring.consumer("dropped")
    with ring.producer() as producer:
        producer.claim(0).publish()
    consumer.acquire(0)
    return consumer


def without_the_collector(endpoint: Any) -> None:
    """Cuts the cycle of an endpoint and its open slots, so that it goes without the garbage
    collector."""
    for slot in endpoint._slots:
        slot._owner = None


PEERS = pytest.mark.parametrize("make", [a_producer, a_consumer])


@promise("failure.md", "It leaves even if a Ctrl-C comes while Python drops it.")
@PEERS
@pytest.mark.parametrize("collected", [False, True], ids=["", "collected"])
def test_a_ctrl_c_that_comes_first_keeps_nobody_in_the_ring(ring, make, collected):
    """Python looks for signals where a `__del__` in Python begins, and prints what a handler
    raises."""
    last = [make(ring)]
    number = last[0].peer
    if not collected:
        without_the_collector(last[0])
    gc.collect()
    with told() as kinds:
        in_one_step(_thread.interrupt_main, last.clear, gc.collect if collected else int)
    assert kinds == [KeyboardInterrupt]
    assert names(ring, number) == []
    assert ring._endpoints == {}


class InADrop(Interrupt):
    IN_DROPS = True


@pytest.mark.slow(keep=1)
@PEERS
def test_a_ctrl_c_that_comes_meanwhile_keeps_nobody_in_the_ring(name, make, traces):
    for interrupt in at_each_place(InADrop, 3):
        with small_ring(name, 2) as ring:
            dropped = make(ring)
            number = dropped.peer
            without_the_collector(dropped)
            with told(), interrupt:
                del dropped
            assert names(ring, number) == [], interrupt.where
            header = ring._header
        assert ring.closed, interrupt.where
        assert header.live_peers() == [], interrupt.where
        assert header.reaps == 0, interrupt.where
        del ring
        assert traces(name) == [], interrupt.where


@pytest.fixture
def two_more(monkeypatch) -> None:
    """Two of them come, one after the other, where a consumer is about to leave."""
    left = [KeyboardInterrupt, KeyboardInterrupt]

    class Interrupted(gpuring.Consumer):
        def _dropped(self) -> None:
            if left:
                raise left.pop()
            super()._dropped()

    monkeypatch.setattr("gpuring.ring.ring.Consumer", Interrupted)


def drop(last: list[Any]) -> None:
    with told() as kinds:
        last.clear()
        gc.collect()
    assert kinds == [KeyboardInterrupt]


@promise(
    "failure.md",
    "After a second Ctrl-C it leaves when the process next opens or closes a ring, waits for "
    "itself or ends.",
)
@pytest.mark.usefixtures("two_more")
def test_what_two_ctrl_cs_have_kept_leaves_when_a_wait_needs_it(ring):
    with ring.producer() as producer:
        last = [a_consumer(ring)]
        producer.claim(0).publish()
        drop(last)
        assert len(ring.stats().peers) == 2
        producer.claim(20).abandon()
        assert len(ring.stats().peers) == 1


@promise(
    "failure.md",
    "After a second Ctrl-C it leaves when the process next opens or closes a ring, waits for "
    "itself or ends.",
)
@pytest.mark.usefixtures("two_more")
@pytest.mark.parametrize("by", ["closed", "opened"])
def test_what_two_ctrl_cs_have_kept_leaves_when_a_ring_is_opened_or_closed(name, ring, by):
    with gpuring.attach(name) as other:
        last = [a_consumer(ring)]
        number = last[0].peer
        drop(last)
        assert names(ring, number) != []
        if by == "opened":
            gpuring.attach(name).close()
        else:
            other.close()
        assert names(ring, number) == []


ENDS = """
import gc, sys, gpuring
from gpuring.ring import ring as module
name, left = sys.argv[1], [KeyboardInterrupt, KeyboardInterrupt]
class Interrupted(gpuring.Consumer):
    def _dropped(self):
        if left:
            raise left.pop()
        super()._dropped()
module.Consumer = Interrupted
ring = gpuring.attach(name)
frames = ring.consumer("dropped")
with ring.producer() as producer:
    producer.claim(0).publish()
frames.acquire(0)  # the open slot keeps it until the collector comes
del frames
gc.collect()
print(len(left), len(ring.stats().peers), flush=True)
"""


@promise(
    "failure.md",
    "After a second Ctrl-C it leaves when the process next opens or closes a ring, waits for "
    "itself or ends.",
)
def test_what_two_ctrl_cs_have_kept_leaves_when_the_process_ends(name, ring):
    ended = python(ENDS, name)
    assert ended.stdout == "0 1\n", ended.stderr
    assert ended.returncode in (0, -signal.SIGINT)  # by the signal since CPython 3.14
    assert ring.stats().peers == ()
    assert ring._header.reaps == 0


KEPT = """
import sys, gpuring
ring = gpuring.create(sys.argv[1], slots=2, shape=4, dtype="u1", device="host")
sys.kept = [ring, ring.producer(), ring.consumer()]  # sys goes last, when builtins are gone, too
sys.kept.append(sys.kept)
"""


def test_what_is_kept_to_the_very_end_of_the_interpreter_ends_quietly(name):
    """pytest, for example, keeps the source of a warning that long."""
    ended = python(KEPT, name)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_ring_that_is_dropped_at_a_ctrl_c_leaves_nothing(name, traces):
    last = [small_ring(name, 2)]
    with told():
        in_one_step(_thread.interrupt_main, last.clear)
    assert traces(name) == []


# ---- while somebody else has the membership lock -------------------------------------------------


@promise(
    "failure.md",
    "If another process keeps the membership lock, for example because it is stopped, the thread "
    "does not wait. The watchdog of its own process leaves for it as soon as the lock is free.",
)
@PEERS
def test_who_drops_waits_for_nobody_and_the_watchdog_leaves(name, ring, make):
    dropped = make(ring)
    number = dropped.peer
    with locked(name):
        del dropped
        gc.collect()
        assert ring._endpoints == {}
        assert number in ring._header.live_peers()
    poll(lambda: number not in ring._header.live_peers())
    assert names(ring, number) == []
    assert ring._header.reaps == 0  # it left, and did not die


@PEERS
def test_who_left_late_has_not_died_though_its_ring_was_closed_first(name, ring, make):
    """Its handle stays until the peer has left, and is freed when the next ring is closed."""
    there = gpuring.attach(name)
    dropped = make(there)
    number, fd = dropped.peer, there._header.lock_fd
    with locked(name):
        del dropped
        gc.collect()
        there.close()
        assert number in ring._header.live_peers()
    poll(lambda: number not in ring._header.live_peers())
    assert ring._header.reap() == []
    assert ring._header.reaps == 0
    assert there._header.lock_fd == fd
    gpuring.attach(name).close()
    assert there._header.lock_fd < 0


def test_the_last_producer_that_left_late_is_the_end_of_the_stream(name, ring):
    with ring.consumer() as frames:
        producer = ring.producer()
        with locked(name):
            del producer
            with pytest.raises(gpuring.RingTimeout):
                frames.acquire(0)
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(20)


def test_a_drop_lets_the_other_threads_run(name, ring):
    """Only the core's peer is dropped, as after a join that was interrupted.  There are several,
    because a busy scheduler may keep the other thread off the CPU while one of them is dropped."""
    peers = [[raw_verbs.join_producer(ring._header)] for _ in range(16)]
    turns, over = [0], threading.Event()

    def runs() -> None:
        while not over.is_set():
            turns[0] += 1

    thread = threading.Thread(target=runs)
    with locked(name):
        thread.start()
        try:
            seen = [in_one_step(turns.copy, last.clear, turns.copy) for last in peers]
        finally:
            over.set()
            thread.join()
    assert any(before != after for before, _, after in seen)
    poll(lambda: ring._header.live_peers() == [])


SIGTERM = """
import signal
import gpuring

class Dropped:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

gpuring.exit_on_sigterm()
Dropped()
print("goes on")
"""


def test_a_sigterm_that_comes_while_an_object_is_dropped_ends_the_program():
    """Python drops what a handler raises there.  It also does so in imports, where it drops its
    locks."""
    done = python(SIGTERM)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
