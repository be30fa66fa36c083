"""GPU work in traces: how long it was pending.  A fake GPU stores the same words as a real one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuring import native
from gpuring.native import Header, Tracer
from gpuring.tracing.collector import TracedRing
from gpuring.tracing.fences import Fences
from gpuring.tracing.timeline import Timeline
from tests.helpers.fake_driver import C


class Watched:
    """A tracer of a rig's ring, which looks when it is told to."""

    def __init__(self, rig):
        file = SimpleNamespace(fd=rig.segment.fd)
        self.tracer, self.fences = Tracer(file.fd), None
        if rig.segment.creator.sync != "host":
            self.fences = Fences(self.tracer)
        self.ring = TracedRing(
            "cam0", file, self.tracer, Header.read(file.fd), native.now_ns(), self.fences, "cam0"
        )

    def look(self):
        self.fences.look()
        return native.now_ns()

    def draw(self):
        self.ring.collect()
        self.ring.look()
        return Timeline([self.ring], native.now_ns()).draw()


def gpu_slices(picture):
    return [each for each in picture.slices if each.kind == "gpu"]


def apart(slices):
    """Checks that slices of one track do not overlap."""
    for a in slices:
        for b in slices:
            if a is not b and a.track is b.track:
                assert a.end_ns <= b.begin_ns or b.end_ns <= a.begin_ns


@pytest.fixture
def ring(rig):
    return rig("timeline")


def test_what_is_pending_lasts_from_the_verb_to_the_last_look_that_found_it_so(ring):
    producer, consumer = ring.producer(), ring.consumer()
    watched = Watched(ring)
    slot = producer.claim(0)
    before = native.now_ns()
    slot.publish()
    published = native.now_ns()
    consumer.acquire(0).release()
    released = native.now_ns()
    pending = watched.look()
    ring.finish(producer)
    reader_pending = watched.look()
    ring.finish()
    done = watched.look()
    writes, reads = gpu_slices(watched.draw())
    assert (writes.name, reads.name) == (
        "GPU: writes 4",
        "GPU: reads 4",
    )  # the first frame that is traced
    assert writes.track.name == reads.track.name == "cam0: GPU"
    assert writes.track is not reads.track
    assert before <= writes.begin_ns <= published
    assert released <= writes.end_ns <= pending
    assert published <= reads.begin_ns <= released
    assert pending <= reads.end_ns <= reader_pending
    late_us = "was done at most so many µs later"
    assert 0 < writes.args[late_us] * 1000 <= reader_pending - writes.end_ns + 1000
    assert 0 < reads.args[late_us] * 1000 <= done - reads.end_ns + 1000


def test_what_is_done_at_the_next_look_has_no_slice(ring):
    """Nobody knows how much earlier the work was done."""
    producer = ring.producer()
    watched = Watched(ring)
    watched.look()
    producer.claim(0).publish()
    ring.finish()
    watched.look()
    assert gpu_slices(watched.draw()) == []


def test_several_frames_are_pending_at_a_time_on_tracks_of_their_own(ring):
    producer = ring.producer()
    ring.consumer()
    watched = Watched(ring)
    for _ in range(3):
        producer.claim(0).publish()
        watched.look()
    ring.finish()
    watched.look()
    producer.claim(0).publish()
    watched.look()
    slices = gpu_slices(watched.draw())
    assert [each.name for each in slices] == [f"GPU: writes {seq}" for seq in range(4, 8)]
    apart(slices)
    assert len({each.track for each in slices}) == 3
    assert slices[3].args["end"] == "still pending"


def test_the_end_of_a_lap_does_not_end_the_next_one(ring):
    """One word holds the fence of all frames of a slot."""
    producer = ring.producer()
    watched = Watched(ring)
    ends = []
    for _lap in range(3):
        for _ in range(ring.segment.slots):
            producer.claim(0).publish()
        watched.look()
        ring.finish()
        ends.append(watched.look())
    slices = gpu_slices(watched.draw())
    assert len(slices) == 3 * ring.segment.slots
    for seq, each in enumerate(slices):
        lap = seq // ring.segment.slots
        assert (0 if lap == 0 else ends[lap - 1]) <= each.begin_ns <= each.end_ns <= ends[lap]


def test_what_a_killed_peer_had_pending_ends_with_its_death(ring):
    producer = ring.producer()
    ring.consumer()
    watched = Watched(ring)
    producer.claim(0).publish()
    watched.look()
    ring.kill(producer)
    watched.look()
    (pending,) = gpu_slices(watched.draw())
    assert pending.args["end"] == "it died"


def test_with_events_it_is_shown_when_somebody_has_seen_that_it_was_done(rig):
    """Nobody knows when the work was done, so there is no slice."""
    ring = rig("event")
    producer = ring.producer()
    watched = Watched(ring)
    ring.lap(producer)
    ring.finish()
    watched.look()
    before = native.now_ns()
    ring.lap(producer)  # its claims look at the events
    watched.look()
    picture = watched.draw()
    assert gpu_slices(picture) == []
    seen = [each for each in picture.instants if each.name.startswith("GPU: ")]
    assert {each.name for each in seen} <= {
        f"GPU: writes {seq} was seen to be done" for seq in range(4, 8)
    }
    assert seen
    assert all(each.time_ns >= before for each in seen)


def test_who_uses_the_slots_by_the_cpu_has_nothing_pending(rig):
    ring = rig("pinned")
    on_gpu = ring.producer(ring=ring.ring(C))
    by_cpu = ring.consumer(ring=ring.by_cpu())
    watched = Watched(ring)
    on_gpu.claim(0).publish()
    watched.look()
    ring.finish()
    watched.look()
    by_cpu.acquire(0).release()
    watched.look()
    assert [each.name for each in gpu_slices(watched.draw())] == ["GPU: writes 4"]
