"""Handle 2 is the per-thread default stream: another stream in each thread that uses it.

If one thread claims a slot and another one publishes it, the record comes behind the streams of
both.  The stream of a thread other than the caller cannot be named.  The legacy default stream
takes its place, because that waits for the work of all threads.
"""

from __future__ import annotations

import threading

import pytest

from tests.helpers.fake_driver import PER_THREAD, C, P, follows
from tests.helpers.processes import PATIENCE_S

LEGACY = 0


class Elsewhere:
    """A thread that does what it is told, one thing after the other."""

    def __init__(self):
        self._job = self._result = None
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while self._go.acquire() and self._job is not None:
            self._result = self._job()
            self._done.release()

    def __call__(self, job):
        self._job = job
        self._go.release()
        assert self._done.acquire(timeout=PATIENCE_S)
        return self._result

    def end(self):
        self._job = None
        self._go.release()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def elsewhere():
    thread = Elsewhere()
    yield thread
    thread.end()


def recorded_on(ring):
    return [(name, stream) for name, stream, _ in ring.told()]


def behind(ring, stream, other):
    """How many fences were recorded on `stream`, each behind all work on the other one."""
    calls = ring.told()
    before = follows(stream, other) if other != stream else []
    fences = [call for call in calls if call not in before]
    assert all(name in ("write", "writes", "record") for name, *_ in fences)
    assert {where for _, where, _ in fences} == {stream}
    if before:
        assert calls == [each for fence in fences for each in (*before, fence)]
    return sum(len(what) if name == "writes" else 1 for name, _, what in fences)


@pytest.mark.parametrize("kind", ["timeline", "event"])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("verb", ["publish", "abandon", "release"])
@pytest.mark.parametrize("current", [PER_THREAD, P, LEGACY])
def test_what_another_thread_has_claimed_is_recorded_behind_its_stream(
    rig, elsewhere, kind, many, verb, current
):
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer()
    peer, take = producer, lambda: producer.claim_many(2, 0, stream=PER_THREAD)
    if verb == "release":
        producer.claim_many(2, 0).publish()
        ring.finish()
        peer, take = consumer, lambda: consumer.acquire_many(2, 0, stream=PER_THREAD)
    slots = elsewhere(take)
    ring.told()
    peer._ring.current.ptr = current
    getattr(slots if many else slots[0], verb)()
    assert behind(ring, LEGACY, current) == (2 if many else 1)
    if not many:
        getattr(slots[1], verb)()


@pytest.mark.parametrize("many", [False, True])
def test_in_one_thread_it_is_one_stream(rig, elsewhere, many):
    ring = rig()
    producer = ring.producer(stream=PER_THREAD)

    def lap():
        (producer.claim_many(2, 0) if many else producer.claim(0)).publish()

    for run in (lambda lap: lap(), elsewhere):
        ring.told()
        run(lap)
        assert recorded_on(ring) == [("writes" if many else "write", PER_THREAD)]


def test_a_thread_that_has_ended_is_not_the_next_one(rig):
    """The system uses the identity of a thread again at once."""
    ring = rig()
    producer = ring.producer(stream=PER_THREAD)
    first, second = Elsewhere(), None
    slot = first(lambda: producer.claim(0))
    identity = first(threading.get_ident)
    first.end()
    try:
        for _ in range(100):
            second = Elsewhere()
            if second(threading.get_ident) == identity:
                break
            second.end()
        ring.told()
        second(slot.publish)
        assert behind(ring, LEGACY, PER_THREAD) == 1
    finally:
        second.end()


def test_a_batch_of_two_threads_is_recorded_behind_both(rig, elsewhere):
    ring = rig()
    producer = ring.producer(stream=PER_THREAD)
    batch = elsewhere(lambda: producer.claim_many(3, 0))
    elsewhere(batch[0].publish)
    ring.told()
    batch.publish()
    assert behind(ring, LEGACY, PER_THREAD) == 2


def test_a_stream_that_uses_a_slot_again_follows_those_between(rig):
    ring = rig("timeline")
    with ring.producer().claim(0) as slot:  # on P
        slot.use_on(C)
        ring.told()
        slot.use_on(P)
        assert ring.told() == follows(P, C)


@pytest.mark.parametrize("first", [PER_THREAD, C])
def test_an_importer_in_another_thread_follows(rig, elsewhere, first):
    """`use_on`, DLPack, and a service's answer that another thread of its client has received."""
    ring = rig()
    slot = elsewhere(lambda: ring.producer(stream=first).claim(0, stream=first))
    before = LEGACY if first == PER_THREAD else first
    ring.told()
    slot.use_on(PER_THREAD)
    assert ring.told() == follows(PER_THREAD, before)
    assert slot._streams == (before, PER_THREAD)
    slot.use_on(PER_THREAD)  # waits again, because work may have been added
    assert ring.told() == follows(PER_THREAD, before)
    seen = elsewhere(lambda: slot._streams)  # there our per-thread stream is another thread's
    assert PER_THREAD not in seen
    assert set(seen) == {before, LEGACY}


def test_the_other_name_of_the_legacy_default_stream_is_no_second_one(rig):
    """DLPack calls the legacy default stream 1."""
    ring = rig()
    slot = ring.producer().claim(0, stream=LEGACY)
    slot._import_on(1)
    assert ring.told() == []
    assert slot._streams == (LEGACY,)


def test_a_copy_from_another_thread_goes_where_it_is_ordered(rig, elsewhere):
    ring = rig()
    producer = ring.producer(stream=PER_THREAD)
    slot = elsewhere(lambda: producer.claim(0))
    assert elsewhere(lambda: slot._stream) == PER_THREAD
    assert slot._stream == LEGACY  # copy_from and the CUDA array interface use this one


def test_the_next_claim_of_the_slot_begins_anew(rig, elsewhere):
    ring = rig(slots=1)
    producer = ring.producer(stream=PER_THREAD)
    elsewhere(lambda: producer.claim(0)).publish()
    for stream in (P, PER_THREAD):
        ring.finish()
        producer._ring.current.ptr = stream
        slot = producer.claim(0)
        ring.told()
        slot.publish()
        assert recorded_on(ring) == [("write", stream)]
