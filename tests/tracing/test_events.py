"""The events that verbs write in a traced ring, and what is left when somebody is killed."""

from __future__ import annotations

import os
import resource
import time

import numpy as np
import pytest

import gpuring
from gpuring import native
from gpuring.native.tracer import EVENT_NBYTES, KINDS, TRACE_EVENTS, TRACE_NS
from gpuring.registry import leftovers
from tests.helpers.processes import poll, up
from tests.helpers.rings import drain, put, segments_of, small_ring
from tests.tracing.traced import events, header, nbytes, tracer_of, until_ns

PAGE = 4096
TABLE_NBYTES = PAGE + TRACE_EVENTS * EVENT_NBYTES


def test_verbs_write_what_they_do_while_it_is_on(name):
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer() as consumer:
        put(producer)
        drain(consumer)
        tracer = tracer_of(name)
        first = put(producer, 2)[0]
        drain(consumer)
        assert events(tracer, producer._peer.number) == [
            ("claim", first), ("publish", first), ("claim", first + 1), ("publish", first + 1),
        ]  # fmt: skip
        assert events(tracer, consumer._peer.number) == [
            ("acquire", first), ("release", first), ("acquire", first + 1), ("release", first + 1),
        ]  # fmt: skip
        tracer.off()
        put(producer, 2)
        drain(consumer)
        assert events(tracer, producer._peer.number) == []
        assert tracer.go_on() is False  # it was off before
        assert tracer.go_on() is True
        put(producer)
        assert [kind for kind, _ in events(tracer, producer._peer.number)] == ["claim", "publish"]


def test_a_ring_that_was_never_traced_is_as_long_as_ever_and_can_be_attached_when_it_was(name):
    with small_ring(name) as ring:
        before = nbytes(name)
        tracer = tracer_of(name)
        assert nbytes(name) > before
        with gpuring.attach(name) as again, again.producer() as producer:
            put(producer)
            assert events(tracer, producer._peer.number)
        assert gpuring.ls()
        del tracer
        with gpuring.attach(name):
            assert ring.stats().name == name


def test_what_was_overwritten_is_counted(name):
    with small_ring(name) as ring, ring.producer() as producer:
        tracer, number = tracer_of(name), producer._peer.number
        put(producer, TRACE_EVENTS)
        got = events(tracer, number)
        assert len(got) == TRACE_EVENTS
        assert tracer.missed(number) == TRACE_EVENTS  # there are two events for each frame
        assert got[-1] == ("publish", ring.stats().cursor - 1)


def test_each_event_that_is_being_written_is_waited_for(name):
    """Also if another one was found half written long before."""
    with small_ring(name) as ring, ring.producer() as producer:
        tracer, number = tracer_of(name), producer._peer.number
        with header(name, os.O_RDWR) as file:
            tables = nbytes(name) - TABLE_NBYTES * ring._header.max_peers
            for turn in (1, 3):
                put(producer)  # two events
                at = tables + TABLE_NBYTES * number + PAGE + EVENT_NBYTES * (turn - 1)
                os.pwrite(file.fd, bytes(8), at)
                assert events(tracer, number) == []
                os.pwrite(file.fd, turn.to_bytes(8, "little"), at)
                assert [kind for kind, _ in events(tracer, number)] == ["claim", "publish"]
                over = time.monotonic() + 0.2  # a writer that takes longer counts as dead
                poll(lambda over=over: time.monotonic() > over)
        assert tracer.missed(number) == 0


def test_one_process_traces_a_ring_at_a_time(name):
    with small_ring(name):
        tracer = tracer_of(name)
        with pytest.raises(BlockingIOError):
            tracer_of(name)
        del tracer
        tracer_of(name)


def creates(pipe, name):
    with small_ring(name):
        pipe.ask()


def test_a_tracer_does_not_count_as_one_who_uses_the_ring(children, name):
    child = up(children(creates, name))
    tracer = tracer_of(name)
    child.kill()
    assert leftovers.remove_dead(name)
    assert not segments_of(name)
    assert events(tracer, 0) == []


def publishes_until_killed(pipe, name, frames):
    with gpuring.attach(name) as ring, ring.producer() as producer:
        pipe.send(producer._peer.number)
        put(producer, frames)
        with producer.claim():
            pipe.ask()


def test_who_is_killed_leaves_its_events(children, name):
    with small_ring(name):
        tracer = tracer_of(name)
        child = children(publishes_until_killed, name, 3)
        number = child.receive()
        child.receive()
        child.kill()
        kinds = [kind for kind, _ in events(tracer, number)]
        assert kinds == ["join", *["claim", "publish"] * 3, "claim"]


def traces(pipe, name):
    tracer = tracer_of(name)
    pipe.ask()
    del tracer


def test_a_tracer_that_is_killed_leaves_nothing_running(children, name):
    """The first verb after the tracer's time is over turns tracing off.  Another process can then
    trace the ring."""
    with small_ring(name) as ring, ring.producer() as producer:
        before = native.now_ns()
        child = up(children(traces, name))
        assert until_ns(name) > before + TRACE_NS
        put(producer)
        child.kill()
        assert until_ns(name) <= native.now_ns() + TRACE_NS
        poll(lambda: native.now_ns() > until_ns(name) or time.sleep(0.05))
        put(producer)
        assert until_ns(name) == 0
        tracer = tracer_of(name)
        assert events(tracer, producer._peer.number) == []  # the earlier events are gone
        put(producer)
        assert [kind for kind, _ in events(tracer, producer._peer.number)] == ["claim", "publish"]
    assert not segments_of(name)


def publishes_without_descriptors(pipe, name):
    with gpuring.attach(name) as ring, ring.producer() as producer:
        pipe.ask(producer._peer.number)
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, allowed[1]))
        put(producer, 3)
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
        pipe.send(ring.stats().cursor)
        while not pipe.told():
            put(producer)


def test_who_cannot_make_room_for_its_events_goes_on_without_until_there_is_some(children, name):
    with small_ring(name) as ring, ring.producer():
        child = children(publishes_without_descriptors, name)
        number = child.receive()
        tracer = tracer_of(name)
        before = ring.stats().cursor
        child.send()
        assert child.receive() == before + 3
        tracer.go_on()
        poll(lambda: tracer.go_on() and events(tracer, number))
        child.send()
        child.result()


def test_own_slices_are_written_once_for_each_ring_that_is_traced(name):
    with small_ring(name) as ring, ring.producer() as producer:
        with gpuring.annotate("not traced"):
            pass
        tracer = tracer_of(name)
        put(producer)
        with gpuring.annotate("größer" * 9), gpuring.annotate("no UTF-8: \udce9"):
            put(producer)
        rows = np.frombuffer(tracer.read(producer._peer.number), np.uint64).reshape(-1, 8)
        kinds = [KINDS[int(row[2]) & 0xFFFFFFFF] for row in rows]
        assert kinds == ["claim", "publish", "begin", "begin", "claim", "publish", "end", "end"]
        assert rows[2, 4:].tobytes() == ("größer" * 9).encode()[:32]
        assert rows[3, 4:].tobytes().rstrip(b"\0") == b"no UTF-8: ?"
        tracer.off()
        with gpuring.annotate("not traced"):
            pass
        assert tracer.read(producer._peer.number) == b""


def churns(pipe, name):
    """Publishes and reads until it is killed."""
    with (
        gpuring.attach(name) as ring,
        ring.producer() as producer,
        ring.consumer("any", lossless=False) as consumer,
    ):
        pipe.send()
        while True:
            producer.claim().publish()
            with gpuring.annotate("reads"):
                consumer.latest(timeout=0)


@pytest.mark.slow
@pytest.mark.deadline(600)
def test_tracing_goes_on_and_off_while_traced_processes_are_killed(children, name):
    """This happens a thousand times.  The events that are read are always whole, and the ring goes
    on."""
    with small_ring(name, slots=8) as ring:
        lives = [children(churns, name) for _ in range(2)]
        for child in lives:
            child.receive()
        read = 0
        for k in range(1000):
            tracer = tracer_of(name)
            if k % 50 == 49:
                lives.pop(0).kill()
                lives.append(children(churns, name))
                lives[-1].receive()
            for number in range(tracer.peers):
                rows = np.frombuffer(tracer.read(number), np.uint64).reshape(-1, 8)
                rows = rows[rows[:, 0] != 0]
                assert (np.diff(rows[:, 0]) == 1).all() or tracer.missed(number)
                assert {int(what) & 0xFFFFFFFF for what in rows[:, 2]} <= KINDS.keys()
                read += len(rows)
            del tracer
        assert until_ns(name) == 0
        assert read > 1000
        with ring.producer() as producer:
            put(producer)
