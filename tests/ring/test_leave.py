"""Leaving while the membership lock cannot be had, and leaving twice."""

from __future__ import annotations

import os
import threading

import pytest

import gpuring
from gpuring import native
from tests.helpers.processes import poll, up
from tests.helpers.rings import cpu_seconds_of, small_ring
from tests.helpers.words import locked


def errors_of(calls):
    """What each of the calls raises.  They run at the same time, because each waits for its whole
    patience."""
    caught = [None] * len(calls)

    def run(k):
        try:
            calls[k]()
        except Exception as error:
            caught[k] = error

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return caught


@pytest.mark.slow
def test_who_cannot_leave_stays_and_leaves_later(name):
    with small_ring(name, 2) as ring, gpuring.attach(name) as other:
        endpoints = [ring.producer(), ring.consumer("x"), other.consumer("x")]
        producer, reader, other_member = endpoints
        slot = producer.claim(0)
        slot.publish()
        held = reader.acquire(0)
        with locked(name):
            for error in errors_of([endpoint.close for endpoint in endpoints]):
                assert isinstance(error, gpuring.RingTimeout), error
                assert "5 s" in str(error)
            assert [endpoint.closed for endpoint in endpoints] == [False] * 3
            assert len(ring._header.live_peers()) == 3
        reader.close()
        with pytest.raises(gpuring.RingError):
            held.release()
        with pytest.raises(gpuring.RingTimeout):
            other_member.acquire(0)  # what the peer held is released, and nobody else gets it
        for endpoint in endpoints:
            endpoint.close()
            assert endpoint.closed
        assert ring._header.live_peers() == []
        assert ring._header.reaps == 0
        with ring.consumer() as late, ring.producer() as again:  # and it holds up no producer
            for _ in range(4):
                again.claim(0).publish()
                late.acquire(0).release()


@pytest.mark.slow
def test_a_peer_that_cannot_leave_still_works(segment):
    ring = segment(2)
    producer, reader = ring.producer(), ring.consumer()
    lock = ring.hold_lock()
    assert producer.peer.leave() == native.LOCK_TIMEOUT
    assert not producer.peer.left
    assert producer.put(2) == [2, 3]
    os.close(lock)
    assert producer.peer.leave() == 0
    assert producer.peer.left
    assert reader.drain() == ([2, 3], native.ENDED)


@pytest.mark.parametrize("heir", ["producer", "consumer"])
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_leaving_twice_does_not_disturb_the_numbers_next_owner(segment, role, heir):
    ring = segment(4)
    header = ring.process()
    first = getattr(ring, role)(header=header)
    assert first.peer.leave() == 0
    second = getattr(ring, heir)(header=header)
    assert second.number == first.number
    before = ring.bytes()
    assert first.peer.leave() == native.REAPED
    assert ring.bytes() == before
    assert ring.process().reap() == []
    assert header.live_peers() == [second.number]
    assert (second.claim() if heir == "producer" else second.acquire()) != native.REAPED
    assert second.peer.leave() == 0
    assert ring.creator.reaps == 0


@pytest.mark.slow
def test_a_slot_that_a_close_in_vain_has_ended_is_as_good_as_any_later(name):
    """The producer is still open then, and its slots are used again."""
    with small_ring(name, 2) as ring, ring.producer() as producer, ring.consumer() as frames:
        slots = [producer.claim(0), producer.claim(0)]
        with locked(name), pytest.raises(gpuring.RingTimeout):
            producer.close()
        del slots
        for _ in range(2):
            with producer.claim(0) as slot:
                slot.publish()
            frames.acquire(0).release()


def joins(pipe, name):
    with gpuring.attach(name) as ring, ring.consumer():
        pipe.ask()


@pytest.mark.slow
def test_while_the_lock_is_held_the_dead_cost_the_watchdog_next_to_nothing(name, children):
    """The pidfd of a process that nobody has waited for stays readable."""
    with small_ring(name, 2) as ring, ring.producer():
        victim = up(children(joins, name, method="spawn"))
        with locked(name):
            victim.process.kill()
            os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
            used_s = cpu_seconds_of(1)
            assert len(ring._header.live_peers()) == 1
            assert len(ring.stats().peers) == 2
        poll(lambda: len(ring.stats().peers) == 1)
    assert used_s < 10 * cpu_seconds_of(*[0.02] * 50)
