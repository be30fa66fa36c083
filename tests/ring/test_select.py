"""select waits for several rings at once: who is ready, in which order, how it sleeps, and
deaths."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import threading
import time

import pytest

import gpuring
from gpuring import native
from tests.helpers.processes import Pipe, poll, up
from tests.helpers.rings import SMALL, publish_and_wait, publish_at_random, put, small_ring, waiters

ROUNDS = 10_000


@pytest.fixture
def pair(place, name):
    """Two rings with a producer and a consumer each."""
    with place.create(f"{name}-0", **SMALL) as one, place.create(f"{name}-1", **SMALL) as other:
        yield one, other


# ---- who is ready --------------------------------------------------------------------------------


def test_those_are_returned_whose_verb_has_an_answer(pair):
    with pair[0].producer() as one, pair[1].producer() as other:
        a, b = pair[0].consumer(), pair[1].consumer()
        both = [a, b]
        assert gpuring.select(both, 0) == []
        put(other)
        assert gpuring.select(both, 0) == [b]
        put(one)
        assert sorted(map(id, gpuring.select(both, 0))) == sorted(map(id, both))
        held = a.acquire(timeout=20)
        assert held.seq == 4
        assert gpuring.select(both, 0) == [b]
        assert gpuring.select([one, other], 0) in ([one, other], [other, one])
        put(one, 3)  # frame 4 is held
        assert gpuring.select([one], 0.01) == []
        assert gpuring.select([one, a], 0) == [a]


def test_a_look_changes_nothing(segment):
    ring = segment(2)
    producer, lossless, lossy = ring.producer(), ring.consumer(), ring.consumer("y", lossless=False)
    peers = [producer.peer, lossless.peer, lossy.peer]

    def look() -> list[bool]:
        before = ring.bytes(), [peer.position for peer in peers], [peer.lost for peer in peers]
        answer = native.select(peers, 0)
        assert (ring.bytes(), [p.position for p in peers], [p.lost for p in peers]) == before
        assert answer == [native.ready(peer) for peer in peers]
        return answer

    assert look() == [True, False, False]
    producer.put()
    assert look() == [True, True, True]
    producer.put()
    assert look() == [False, True, True]
    assert [lossless.get(), lossless.get()] == [2, 3]
    producer.put(2)
    assert look() == [
        False,
        True,
        True,
    ]  # the lossy reader has been passed, and has lost nothing yet
    lossless.get()
    assert (lossy.acquire(), lossy.peer.lost) == (4, 2)


@pytest.mark.parametrize("end", ["left", "closed ring", "closed consumer"])
def test_an_end_is_an_answer(name, end):
    with small_ring(name) as ring, gpuring.attach(name) as mine:
        producer, consumer = ring.producer(), mine.consumer()
        assert gpuring.select([consumer], 0) == []
        if end == "left":
            producer.close()
        elif end == "closed ring":
            ring.close()
            assert gpuring.select([producer], 0) == [producer]
        else:
            consumer.close()
        assert gpuring.select([consumer], 0) == [consumer]
        with pytest.raises(gpuring.RingClosed if "consumer" in end else gpuring.EndOfStream):
            consumer.acquire(0)


def test_one_may_be_named_twice_and_somebody_has_to_be(ring):
    consumer = ring.consumer()
    with pytest.raises(ValueError, match="to wait for"):
        gpuring.select([])
    assert gpuring.select([consumer, consumer], 0.001) == []


def test_the_one_who_was_not_first_lately_comes_first(pair):
    """A program that serves only the first one of each answer serves a busy ring and a quiet one in
    turn."""
    with pair[0].producer() as busy, pair[1].producer() as quiet:
        a, b = pair[0].consumer(), pair[1].consumer()
        put(busy, 4)
        put(quiet, 4)
        served = []
        for _ in range(8):
            first = gpuring.select([a, b], 20)[0]
            served.append(first)
            with first.acquire(timeout=20):
                pass
            put(busy if first is a else quiet)  # neither ever runs dry
        assert served in ([a, b] * 4, [b, a] * 4)


# ---- asleep, and woken ---------------------------------------------------------------------------


@pytest.mark.slow
def test_select_loses_no_wake_up(name, children):
    """A lost wake-up shows as a wait of a whole slice.  (native/programs/stress.c has no
    slices.)"""
    names = [f"{name}-{k}" for k in range(3)]
    rings = [small_ring(each) for each in names]
    consumers = [ring.consumer() for ring in rings]
    child = children(publish_at_random, names, ROUNDS, 1)
    late, seqs = 0, [0] * 3
    for _ in range(ROUNDS):
        began = time.monotonic()
        (ready,) = gpuring.select(consumers, 20)
        late += time.monotonic() - began > 0.045
        with ready.acquire(0):
            seqs[consumers.index(ready)] += 1
    assert sum(seqs) == ROUNDS
    assert late < ROUNDS / 100, f"{late} of {ROUNDS} woke at the end of a slice"
    child.finish()
    for ring in rings:
        ring.close()


def test_who_waits_in_select_sleeps(pair):
    consumers = [ring.consumer() for ring in pair]
    wall, cpu = time.monotonic(), time.process_time()
    assert gpuring.select(consumers, 0.3) == []
    assert time.process_time() - cpu < (time.monotonic() - wall) / 5
    assert [waiters(ring) for ring in pair] == [0, 0]


def test_a_sleeper_is_counted_in_every_ring_and_woken_by_any(segment):
    rings = [segment(2), segment(2)]
    actors = [ring.consumer() for ring in rings]
    producers = [ring.producer() for ring in rings]
    for which in (0, 1):
        answers = []
        thread = threading.Thread(
            target=lambda answers=answers: answers.append(
                native.select([actor.peer for actor in actors], 20)
            )
        )
        thread.start()
        poll(lambda: all(ring.peek("head", "waiters") == 1 for ring in rings))
        with pytest.raises(RuntimeError, match="thread"):
            native.select([actors[0].peer], 0)
        producers[which].put()
        thread.join()
        assert answers == [[which == 0, which == 1]]
        assert [ring.peek("head", "waiters") for ring in rings] == [0, 0]
        actors[which].get()


def test_ctrl_c_interrupts_and_leaves_nobody_counted(segment):
    rings = [segment(2), segment(2)]
    actors = [ring.consumer() for ring in rings]

    def interrupt() -> None:
        poll(lambda: all(ring.peek("head", "waiters") == 1 for ring in rings))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        native.select([actor.peer for actor in actors], None)
    thread.join()
    assert [ring.peek("head", "waiters") for ring in rings] == [0, 0]
    assert native.select([actor.peer for actor in actors], 0) == [False, False]


def test_as_many_rings_as_the_kernel_takes_and_no_more(segment):
    rings = [segment(1) for _ in range(native.MAX_WAITED + 1)]
    peers = [ring.consumer().peer for ring in rings]
    assert native.select(peers[:-1], 0.01) == [False] * native.MAX_WAITED
    with pytest.raises(ValueError, match=r"128 .*not 129\. An event loop waits for more"):
        native.select(peers, 0)


# ---- death ---------------------------------------------------------------------------------------


def test_a_producer_that_is_killed_is_an_answer(place, pair, children):
    consumers = [ring.consumer() for ring in pair]
    child = up(children(publish_and_wait, pair[1].name, 1))
    with consumers[1].acquire(timeout=20) as slot:
        place.read(slot)
    killer = threading.Timer(0.2, child.kill)  # select most likely sleeps by then
    killer.start()
    assert gpuring.select(consumers, 20) == [consumers[1]]
    killer.join()
    with pytest.raises(gpuring.PeerLost):
        consumers[1].acquire(0)


def select_until_killed(pipe: Pipe, name: str, fileno: bool) -> None:
    with gpuring.attach(name) as ring, ring.consumer() as consumer:
        if fileno:
            consumer.fileno()
        pipe.send()
        gpuring.select([consumer], None)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("fileno", [False, True])
def test_a_dead_sleeper_is_no_waiter_any_more(name, children, fileno):
    """It may have slept, armed a descriptor, or both."""
    with small_ring(name) as ring, ring.producer():
        child = up(children(select_until_killed, name, fileno))
        poll(lambda: waiters(ring) == 1 + fileno)
        child.kill()
        poll(lambda: waiters(ring) == 0)


# ---- an old kernel -------------------------------------------------------------------------------


def without_futex_waitv(pipe: Pipe, name: str, errno: int) -> tuple[list[int], float, bool]:
    """Refuses futex_waitv by a seccomp filter, as a container does that does not know the call."""
    load_number, jump, answer = 0x20, 0x15, 0x06
    program = b"".join(
        struct.pack("HBBI", *line)
        for line in (
            (load_number, 0, 0, 0),
            (jump, 0, 1, 449),
            (answer, 0, 0, 0x00050000 | errno),
            (answer, 0, 0, 0x7FFF0000),
        )
    )
    buffer = ctypes.create_string_buffer(program)
    filters = ctypes.create_string_buffer(struct.pack("H6xQ", 4, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(filters)) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    with gpuring.attach(f"{name}-0") as one, gpuring.attach(f"{name}-1") as other:
        consumers = [one.consumer(), other.consumer()]
        pipe.send()
        seqs = []
        for _ in range(2):
            (ready,) = gpuring.select(consumers, 20)
            with ready.acquire(0) as slot:
                seqs.append(slot.seq)
            pipe.send()
        wall, cpu = time.monotonic(), time.process_time()
        assert gpuring.select(consumers, 0.5) == []
        busy = (time.process_time() - cpu) / (time.monotonic() - wall)
        pipe.send()
        return seqs, busy, bool(gpuring.select([consumers[0]], 20))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("errno", [38, 1])  # ENOSYS, EPERM
def test_a_kernel_without_futex_waitv(name, children, errno):
    with (
        small_ring(f"{name}-0") as one,
        small_ring(f"{name}-1") as other,
        one.producer() as first,
        other.producer() as second,
    ):
        child = up(children(without_futex_waitv, name, errno))
        for producer in (second, first):
            poll(lambda: waiters(one) == waiters(other) == 1)
            put(producer)
            child.receive()
        child.receive()
        poll(lambda: waiters(one) == 1)
        put(first)
        seqs, busy, woken = child.result()
    assert seqs == [4, 4]
    assert woken
    assert busy < 0.25


def test_select_of_one_that_is_in_no_list_is_refused(pair):
    """select would take that consumer's frames."""
    with pair[0].consumer() as reader, pytest.raises(TypeError, match=r"select\(\[consumer\]\)"):
        gpuring.select(reader, 0)
