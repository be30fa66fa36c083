"""A consumer that changes streams waits for its own last read of the slot (G12).

With `order=False` that wait is taken away, and the test must notice: the fence of lap 2 is then
overwritten by that of lap 1.
"""

from __future__ import annotations

import contextlib

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import ORDER, Waits, tools
from tests.helpers import raw_verbs
from tests.helpers.processes import poll

pytestmark = pytest.mark.gpu
WORDS = 1 << 16
LIMIT_S = 40


def _killed_and_reaped(ring, child):
    header, reaps = ring._header, ring._header.reaps
    child.kill()
    poll(lambda: header.reap() or header.reaps > reaps)
    header.reap()  # all others have finished


def publish_and_die(pipe, name):
    """Publishes two frames and dies.  The second one waits for the reader of the first."""
    kernels = tools()
    stream = library.new_stream()
    producer = gpuring.attach(name, timeout=20).producer()
    with stream:
        for _ in range(2):
            with producer.claim(30) as slot:
                kernels.stamp(slot, slot.seq, stream)
            pipe.ask("published")


@ORDER
def test_a_consumer_that_changes_streams_keeps_its_order_and_its_fence_rises(name, children, order):
    """It reads lap 1 on one stream, behind a latch, and lap 2 on another.  Its producer dies, so
    that only its own fence is in the way."""
    kernels = tools()
    first, second = library.new_stream(), library.new_stream()
    wrong = kernels.counter()
    with gpuring.create(name, slots=1, shape=(WORDS,), dtype="u8", sync="timeline") as ring:
        if not order:  # the consumer is the first peer; the producer's word comes next to its own
            Waits(ring).leave_out(lambda address: address % 4096 != 0)
        header, consumer = ring._header, ring.consumer()
        assert consumer.peer == 0
        child = children(publish_and_die, name)
        assert child.receive() == "published"
        with kernels.Latch(limit_s=LIMIT_S) as latch:
            with first, consumer.acquire(30) as slot:
                latch.hold(first)
                kernels.check(slot, slot.seq, wrong, first)
            before = raw_verbs.work(header, consumer.peer, 0)
            child.send()
            assert child.receive() == "published"
            with second:
                slot = consumer.acquire(30)
                kernels.check(slot, slot.seq, wrong, second)
                _killed_and_reaped(ring, child)
                with pytest.raises(gpuring.FrameTorn):
                    slot.release()
            if not order:
                second.synchronize()
            early = library.done(second)
            latch.open()
            first.synchronize()
            after_first = raw_verbs.fence(header, consumer.peer, 0)
            second.synchronize()
        assert not latch.expired
        promised = raw_verbs.work(header, consumer.peer, 0)
        assert before < promised
        at_last = raw_verbs.fence(header, consumer.peer, 0)
        raw_verbs.raise_fence(header, consumer.peer, 0, promised)  # the mutant never pays it
        with contextlib.suppress(gpuring.FrameTorn):  # frame 1, if released too early
            consumer.close()
    assert after_first >= before
    assert (early, at_last == promised) == (not order, order)
