"""Fences that are about to be reached: comes_soon looks at them for a while before a stream must
wait.

With events each look is a query: its decisions are seen one by one.
"""

from __future__ import annotations

import re
import sys
import threading

from tests import ROOT
from tests.helpers import raw_verbs
from tests.helpers.fake_driver import C, event_of
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.promise import promise


def consulted(ring, consumer, own):
    """Acquires a frame whose fence is open, with patience.  Returns whether the look has also asked
    for our own work."""
    ring.driver.queries.clear()
    consumer.acquire(PATIENCE_S).release()
    return own in ring.driver.queries


@promise(
    "streams.md",
    "Before that, the call may look at the fences for some tens of microseconds, but only while "
    "its own GPU work is pending anyway.",
)
def test_a_look_is_as_long_as_the_protocol_says():
    """It lasts 50 µs, of which 30 go to our own work.  A clock is not exact enough to test that."""
    source = (ROOT / "gpuring/native/device/order.c").read_text()
    (own_us,) = re.findall(r"define GD_LAP_NS \(INT64_C\((\d+)\) \* 1000\)", source)
    (rest_us,) = re.findall(r"GD_PATIENCE_NS = (\d+) \* 1000,", source)
    said = " ".join((ROOT / "docs/protocol.md").read_text().split())
    assert f"for {int(own_us) + int(rest_us)} µs at the most" in said
    assert f"up to {own_us} µs are for its own work" in said
    assert int(own_us) + int(rest_us) < 100  # some tens, says docs/failure.md


@promise(
    "streams.md",
    "Before that, the call may look at the fences for some tens of microseconds, but only while "
    "its own GPU work is pending anyway.",
)
def test_while_nothing_of_ours_is_pending_a_wait_is_enqueued_at_once(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(3, 0).publish()
    ring.told()
    consumer.acquire(PATIENCE_S).release()  # nothing was ever promised
    assert ring.told()[0] == ("wait", C, event_of(producer, 0))
    ring.finish(consumer)
    ring.driver.queries.clear()
    slot = consumer.acquire(PATIENCE_S)
    assert ring.told() == [("wait", C, event_of(producer, 1))]
    theirs, own = event_of(producer, 1), event_of(consumer, 0)
    assert ring.driver.queries == [theirs, theirs, own]  # one look
    slot.release()
    consumer.acquire(PATIENCE_S).release()  # the next look is not skipped
    assert event_of(consumer, 1) in ring.driver.queries


@promise(
    "streams.md",
    "With `timeout=0` it does not look at all.",
)
def test_a_call_that_may_not_block_has_no_patience(rig):
    ring = rig("event", slots=8)
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(8, 0).publish()
    consumer.acquire(0).release()
    ring.driver.queries.clear()
    slot = consumer.acquire(0)
    assert ring.driver.queries == [event_of(producer, 1)]
    slot.release()
    ring.driver.queries.clear()
    consumer.acquire_many(4, PATIENCE_S)  # only for the first frame
    queries = ring.driver.queries
    assert event_of(consumer, 1) in queries
    last_own = max(k for k, each in enumerate(queries) if each == event_of(consumer, 1))
    assert queries[last_own + 1 :].count(event_of(producer, 3)) == 1
    assert queries[-2:] == [event_of(producer, 4), event_of(producer, 5)]


def test_a_fence_that_is_paid_while_we_look_needs_no_wait(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(4, 0).publish()
    consumer.acquire(0).release()
    theirs = event_of(producer, 1)

    def pay(event):
        if event == theirs and ring.driver.queries.count(theirs) == 2:  # the first look
            ring.driver.pending.discard(theirs)

    ring.driver.on_query = pay
    ring.driver.queries.clear()
    ring.told()
    consumer.acquire(PATIENCE_S)
    assert ring.told() == []
    assert ring.driver.queries == [theirs, theirs]
    reached = raw_verbs.fence(ring.segment.creator, producer.peer, 1)
    assert reached == ring.work(producer, 1)[producer.peer, 1]


def test_it_looks_again_while_our_own_work_is_pending(rig):
    """The look that finds our own event pending is followed by another one, at theirs.

    Unless this process was stopped meanwhile for longer than its patience: hence several tries."""

    def sees_it():
        ring = rig("event")
        producer, consumer = ring.producer(), ring.consumer()
        producer.claim_many(4, 0).publish()
        consumer.acquire(0).release()

        def pay(event):
            if event == event_of(consumer, 0):
                ring.driver.pending.discard(event_of(producer, 1))

        ring.driver.on_query = pay
        ring.told()
        consumer.acquire(PATIENCE_S)
        return ring.told() == []

    assert any(sees_it() for _ in range(100))


def test_looks_in_vain_make_it_blind_for_longer_and_longer(rig):
    ring = rig("event", slots=64)
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(64, 0).publish()
    consumer.acquire(0).release()
    pattern = ""
    for slot in range(1, 32):
        pattern += "C" if consulted(ring, consumer, event_of(consumer, slot - 1)) else "-"
    assert pattern == "C-" + "C---" + "C-------" + "C---------------" + "C"
    assert len([call for call in ring.told() if call[0] == "wait"]) == 32  # none was left out


def test_a_look_that_was_worth_it_ends_the_blindness(rig):
    ring = rig("event", slots=64)
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(64, 0).publish()
    consumer.acquire(0).release()
    for slot, expected in enumerate("C-C---", 1):
        assert consulted(ring, consumer, event_of(consumer, slot - 1)) == (expected == "C")
    theirs = event_of(producer, 7)

    def pay(event):
        if event == theirs and ring.driver.queries.count(theirs) == 2:
            ring.driver.pending.discard(theirs)

    ring.driver.on_query = pay
    ring.told()
    consulted(ring, consumer, None)
    assert [name for name, *_ in ring.told()] == ["record"]
    for slot, expected in enumerate("C-C---", 8):
        assert consulted(ring, consumer, event_of(consumer, slot - 1)) == (expected == "C")


def test_with_a_timeline_another_threads_store_is_seen(rig):
    """The other thread waits for the GIL, which is free while comes_soon looks and not before.

    Whether it is fast enough is up to the machine: hence as many tries as the deadline allows."""
    ring = rig()
    producer = ring.producer()
    go, stop, job = threading.Event(), [], []

    def store():
        while go.wait() and not stop:
            go.clear()
            raw_verbs.raise_fence(ring.segment.creator, *job[0])
            job.clear()

    def sees_it():
        consumer = ring.consumer()  # a consumer that has not looked in vain yet
        producer.claim_many(2, 0).publish()
        consumer.acquire(0).release()
        ring.told()
        slot = (consumer._peer.seq + 1) % 4
        job.append((producer.peer, slot, ring.work(producer, slot)[producer.peer, slot]))
        go.set()
        sum(range(20_000))  # until that thread waits for the GIL
        too_early = not job  # it got it, while the lock of `go` was taken
        consumer.acquire(PATIENCE_S).release()
        seen = [name for name, *_ in ring.told()] == ["write"]
        poll(lambda: not job)
        ring.finish()
        consumer.close()
        ring.peers.remove(consumer)
        return seen and not too_early

    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    thread = threading.Thread(target=store, daemon=True)
    thread.start()
    try:
        while not sees_it():
            pass
    finally:
        stop.append(True)
        go.set()
        sys.setswitchinterval(before)
        thread.join(PATIENCE_S)
