"""A process that is stopped (SIGSTOP) is not dead: what it keeps, and whom that holds up.

Each is continued in the end, and finishes what it had begun.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import gpuring
from gpuring import cli
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import drain, put, small_ring

SLOTS = 4


def go_on(child):
    os.kill(child.pid, signal.SIGCONT)
    child.send()


def claims(pipe, name):
    with gpuring.attach(name, timeout=10) as ring, ring.producer() as producer:
        slot = producer.claim(10)
        pipe.ask(slot.seq)
        slot.publish()


def holds(pipe, name, subscription, lossless):
    with (
        gpuring.attach(name, timeout=10) as ring,
        ring.consumer(subscription, lossless=lossless) as frames,
    ):
        pipe.send("joined")
        slot = frames.acquire(20)
        pipe.ask(slot.seq)
        slot.release()


def waits(pipe, name, role, lossless):
    """Waits in a verb that gets no slot."""
    with gpuring.attach(name, timeout=10) as ring:
        endpoint = ring.producer() if role == "producer" else ring.consumer(lossless=lossless)
        verb = endpoint.claim if role == "producer" else endpoint.acquire
        pipe.send(endpoint.peer)
        slot = verb(60)
        pipe.receive()
        return slot.seq


def is_asleep(ring, number):
    return any(peer.waiting for peer in ring.stats().peers if peer.number == number)


@promise(
    "failure.md",
    "A process that is stopped (by SIGSTOP or a debugger) keeps what it holds. Nobody takes it "
    "away.",
    "readers that come to that frame, and producers a lap later; `latest` does not wait",
    "If the process is continued, it goes on where it was.",
)
def test_a_stopped_producer_with_a_claim_holds_up_readers_and_a_lap_later_producers(name, children):
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("all") as reader:
        newest = ring.consumer(lossless=False)
        child = children(claims, name)
        seq = child.receive()
        child.stop()
        behind = put(producer, SLOTS - 1)
        assert drain(reader) == []
        with pytest.raises(
            gpuring.RingTimeout, match=rf"{child.pid}, stopped.*has been writing sequence {seq} "
        ):
            reader.acquire(0.001)
        assert newest.latest(0).seq == behind[-1]
        newest.close()
        with pytest.raises(gpuring.RingFull, match=rf"{child.pid}, stopped"):
            producer.claim(0)
        assert ring.stats().reaps == 0
        go_on(child)
        assert child.result() is None
        assert drain(reader) == [seq, *behind]


@promise("failure.md", "producers, a lap later")
def test_a_stopped_holder_of_a_lossless_subscription_holds_up_producers_a_lap_later(name, children):
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("other") as other:
        child = up(children(holds, name, "mine", True))
        (seq,) = put(producer)
        assert child.receive() == seq
        child.stop()
        put(producer, SLOTS - 1)
        assert len(drain(other)) == SLOTS
        with pytest.raises(gpuring.RingFull, match=rf"{child.pid}, stopped.* held sequence {seq} "):
            producer.claim(0.001)
        assert ring.stats().reaps == 0
        go_on(child)
        child.result()
        assert put(producer) == [seq + SLOTS]


@promise("failure.md", "If it is killed, it is cleared like any other.")
def test_another_member_reads_on_beside_a_stopped_one(name, children):
    """It reads up to one lap after the frame that the stopped member holds."""
    with small_ring(name) as ring, ring.producer() as producer:
        child = up(children(holds, name, "shared", True))
        (seq,) = put(producer)
        assert child.receive() == seq
        other = ring.consumer("shared")
        child.stop()
        assert put(producer, SLOTS - 1) == drain(other)
        with pytest.raises(gpuring.RingFull, match=rf"has held sequence {seq} "):
            producer.claim(0)
        child.kill()
        with other.acquire(10) as slot:
            assert (slot.seq, slot.redelivered) == (seq, True)


@promise("failure.md", "nobody; the ring has one slot less")
def test_a_stopped_holder_of_a_lossy_subscription_costs_one_slot(name, children):
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("all") as reader:
        child = up(children(holds, name, "some", False))
        (seq,) = put(producer)
        assert child.receive() == seq
        child.stop()
        read = drain(reader)
        for _ in range(5):
            put(producer, SLOTS - 1)
            read += drain(reader)
        first = seq % SLOTS
        assert read == [seq, *(s for s in range(seq, seq + 5 * SLOTS) if s % SLOTS != first)]
        go_on(child)
        child.result()
        put(producer, SLOTS)
        assert any(s % SLOTS == first for s in drain(reader))


@promise("failure.md", "nobody")
@pytest.mark.parametrize(("role", "lossless"), [("producer", True), ("consumer", False)])
def test_a_stopped_producer_or_lossy_reader_that_waits_costs_nothing(
    name, children, role, lossless
):
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("all") as reader:
        if role == "producer":
            put(producer, SLOTS)  # nobody has read these frames, so the next claim has to wait
        child = children(waits, name, role, lossless)
        number = child.receive()
        poll(lambda: is_asleep(ring, number))
        child.stop()
        drain(reader)
        for _ in range(5 * SLOTS):
            assert put(producer) == drain(reader)
        assert ring.stats().reaps == 0
        go_on(child)
        if role == "consumer":
            put(producer)
        assert child.result() > SLOTS


@promise("failure.md", "producers, a lap after the last frame that it has read")
def test_a_stopped_reader_of_a_lossless_subscription_gates_though_it_holds_nothing(name, children):
    """The stopped reader does not take the frames that are there for it."""
    with small_ring(name) as ring, ring.producer() as producer:
        child = children(waits, name, "consumer", True)
        number = child.receive()
        poll(lambda: is_asleep(ring, number))
        child.stop()
        put(producer, SLOTS)
        members = rf"\(its members: peer {number} \(\S+, pid {child.pid}, stopped\)\)"
        with pytest.raises(gpuring.RingFull, match=rf"has not taken sequence {SLOTS},.*{members}"):
            producer.claim(0.001)
        go_on(child)
        assert child.result() == SLOTS


@promise(
    "failure.md",
    "`gpuring inspect`, `top` and `ls` say that it is stopped, and so do the errors of those that "
    "have waited for it until a time-out.",
)
@pytest.mark.parametrize("width", [80, 300])
def test_the_tools_say_who_is_stopped(name, children, width, capsys, monkeypatch):
    """They do so in a narrow terminal, too, where top leaves out columns."""
    monkeypatch.setenv("COLUMNS", str(width))
    with small_ring(name) as ring, ring.producer() as producer:
        child = up(children(holds, name, "object-detection-workers", True))
        put(producer)
        child.receive()
        shown = {}
        for state in ("running", "stopped"):
            if state == "stopped":
                child.stop()
            (peer,) = (peer for peer in ring.stats().peers if peer.role == "consumer")
            assert (peer.stopped, peer.alive) == (state == "stopped", True)
            for tool, *options in (
                ("inspect", name),
                ("top", "--once", "--interval", "0.01", name),
                ("ls", name),
            ):
                assert cli.main([tool, *options]) == 0
                shown[tool, state] = capsys.readouterr().out
                assert all(len(line) <= width for line in shown[tool, state].splitlines())
        go_on(child)
        child.result()
    for tool in ("inspect", "top"):
        assert "stopped" not in shown[tool, "running"]
        *_, row = (row for row in shown[tool, "stopped"].splitlines() if str(child.pid) in row)
        assert " stopped " in row, shown[tool, "stopped"]  # in the table of peers
    (row,) = (row for row in shown["ls", "stopped"].splitlines() if row.startswith(name))
    assert row.endswith("open, 1 stopped"), row


def produces(pipe, name):
    with gpuring.attach(name) as ring, ring.producer() as producer:
        pipe.ask(producer.peer)


@promise(
    "failure.md",
    "`gpuring inspect`, `top` and `ls` say that it is stopped, and so do the errors of those that "
    "have waited for it until a time-out.",
)
def test_who_waits_for_a_frame_is_told_that_the_producer_is_stopped(name, children):
    with small_ring(name) as ring, ring.consumer() as reader, ring.producer():
        child = children(produces, name)
        number = child.receive()
        with pytest.raises(gpuring.RingTimeout, match=r"has not been published yet$"):
            reader.acquire(0.001)
        child.stop()
        told = rf"not been published yet. Producer {number} \(\S+, pid {child.pid}\) is stopped$"
        for timeout in (0.001, 0):
            with pytest.raises(gpuring.RingTimeout, match=told):
                reader.acquire(timeout)
        child.kill()


def sleeps(pipe):
    pipe.ask(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def test_only_the_process_that_joined_is_looked_up(segment, children):
    """A later process may have the same pid, and so may one of another pid namespace."""
    ring = segment()
    number = ring.producer().number
    child = children(sleeps)
    start = int(child.receive())
    ring.poke("peer", "pid", child.pid, number)
    ring.poke("peer", "start", start, number)
    assert not ring.creator.is_stopped(number)
    child.stop()
    assert ring.creator.is_stopped(number)
    for field in ("start", "pidns"):
        there = ring.peek("peer", field, number)
        ring.poke("peer", field, there + 1, number)
        assert not ring.creator.is_stopped(number), field
        ring.poke("peer", field, there, number)
    assert ring.creator.is_stopped(number)
    assert not ring.creator.is_stopped(ring.max_peers)
