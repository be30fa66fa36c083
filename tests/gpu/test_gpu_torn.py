"""After a producer's death those frames are called torn that its GPU had not written, and no
others.  Every frame that is read is checked on the GPU, and compared with that verdict."""

from __future__ import annotations

import os

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.helpers import raw_verbs
from tests.helpers.processes import poll
from tests.helpers.promise import promise

pytestmark = pytest.mark.gpu

WORDS = 1 << 14
SLOTS = 8
HELD = 3
FRAMES = 300


def _publish(producer, kernels, stream, who):
    with stream, producer.claim(30) as slot:
        slot.meta["who"] = who
        kernels.stamp(slot, slot.seq, stream)
    return slot.seq


def healthy(pipe, name):
    """Publishes until it is told to stop."""
    kernels = tools()
    stream = library.new_stream()
    with gpuring.attach(name, timeout=20) as ring, ring.producer() as producer:
        pipe.send("joined")
        while not pipe.told():
            try:
                _publish(producer, kernels, stream, 1)
            except gpuring.RingFull:  # its reader has stopped
                break
        stream.synchronize()


def doomed(pipe, name):
    """Publishes some frames that its GPU finishes, then some that it never does."""
    kernels = tools()
    stream = library.new_stream()
    latch = kernels.Latch(limit_s=150)
    producer = gpuring.attach(name, timeout=20).producer()
    whole = [_publish(producer, kernels, stream, 2) for _ in range(SLOTS - 2)]
    stream.synchronize()
    pipe.ask(whole)
    latch.hold(stream)
    pipe.ask([_publish(producer, kernels, stream, 2) for _ in range(HELD)])


class Reader:
    """Reads, checks and releases frames, and notes which are called torn."""

    def __init__(self, consumer, at_most=4000):
        self.kernels = tools()
        self.consumer, self.stream = consumer, library.new_stream()
        self.wrong = library.zeros(at_most)
        self.frames, self.told, self.remembered = {}, [], []

    def read(self, *, synchronise=False):
        try:
            with self.stream:
                slot = self.consumer.acquire(30)
        except gpuring.FrameTorn as torn:
            self.told += torn.seqs
            return None
        count = self.wrong[len(self.frames) : len(self.frames) + 1]
        self.kernels.check(slot, slot.seq, count, self.stream)
        who = None if self.consumer.ring.spec.meta is None else int(slot.meta["who"])
        self.frames[slot.seq] = len(self.frames), who
        try:
            with self.stream:
                slot.release()
        except gpuring.FrameTorn as torn:
            self.told += torn.seqs
        if synchronise:
            self.stream.synchronize()
        self.remembered.append(raw_verbs.remembered(self.consumer._peer))
        return slot.seq

    def close(self):
        """Returns {sequence: wrong words} of all frames."""
        self.stream.synchronize()
        try:
            self.consumer.close()
        except gpuring.FrameTorn as torn:
            self.told += torn.seqs
        wrong = library.to_host(self.wrong, self.stream)
        return {seq: int(wrong[k]) for seq, (k, _) in self.frames.items()}


@promise(
    "failure.md",
    "No reader gets a torn frame without being told.",
    "The frame is torn. That reader gets `FrameTorn`, which names the sequences, from its next "
    "acquire or at close.",
    "A reader of a torn frame is always told.",
    "A death does not tear frames of other producers, apart from the first case below.",
)
def test_only_frames_that_were_not_written_are_called_torn(name, children):
    """Two producers share the slots, and one is killed with work pending.  No frame of the other
    one is called torn, and none that the dead one had finished."""
    with gpuring.create(
        name, slots=SLOTS, shape=(WORDS,), dtype="u8", meta=[("who", "i4")], sync="timeline"
    ) as ring:
        reader = Reader(ring.consumer())
        dying = children(doomed, name)
        whole = dying.receive()
        for _ in whole:
            reader.read()
        other = children(healthy, name)
        assert other.receive() == "joined"
        for _ in range(5 * SLOTS):
            reader.read()
        dying.send("hold")
        held = []
        while not held or max(reader.frames) < held[-1] + 3 * SLOTS:  # laps behind the held work
            reader.read()
            if not held and dying.pipe.poll():
                held = dying.receive()
        dying.process.kill()
        poll(lambda: ring.stats().deaths)
        for _ in range(5 * SLOTS):
            reader.read()
        other.send("stop")
        while ring.stats().subscriptions[0].lag:
            reader.read()
        wrong = reader.close()
        other.result()
    assert sorted(reader.told) == held
    assert {seq for seq, words in wrong.items() if words} == set(held)
    assert {who for _, who in reader.frames.values()} == {1, 2}
    assert all(reader.frames[seq][1] == 2 for seq in [*whole, *held])


def finish_and_vanish(pipe, name, unread):
    """Ends without leaving, long after its GPU is done."""
    kernels = tools()
    stream = library.new_stream()
    producer = gpuring.attach(name, timeout=20).producer()
    pipe.send("joined")
    for _ in range(FRAMES - unread):
        with stream, producer.claim(30) as slot:
            kernels.stamp(slot, slot.seq, stream)
    pipe.ask("read now")
    for _ in range(unread):
        with stream, producer.claim(30) as slot:
            kernels.stamp(slot, slot.seq, stream)
    stream.synchronize()
    pipe.ask("done")
    os._exit(0)


@promise(
    "failure.md",
    "The frames are read as usual, with [three exceptions](#torn-frames).",
    "A finished frame is called torn in three cases only:",
    "It also asks its own, so frames that were read and released long before are not called torn.",
)
@pytest.mark.parametrize("place", [{"gate": "stream"}, {"gate": "host"}], ids=["stream", "host"])
@pytest.mark.parametrize("synchronise", [True, False])
def test_with_events_no_frame_is_torn_whose_work_was_done(name, children, place, synchronise):
    """The word of an event rises only when somebody looks at the event, so the event itself has to
    be asked."""
    unread = SLOTS - 2
    with gpuring.create(
        name, slots=SLOTS, shape=(WORDS,), dtype="u8", sync="event", **place
    ) as ring:
        reader = Reader(ring.consumer())
        child = children(finish_and_vanish, name, unread)
        assert child.receive() == "joined"  # to start CUDA may take long
        for _ in range(FRAMES - unread):
            reader.read(synchronise=synchronise)
        reader.stream.synchronize()
        assert child.receive() == "read now"
        child.send("go on")
        assert child.receive() == "done"
        child.send("end")
        poll(lambda: ring.stats().deaths)
        for _ in range(unread):
            assert reader.read() is not None
        torn = [peer.torn for peer in ring.stats().peers]
        wrong = reader.close()
    assert reader.told == []
    assert torn == [0]
    assert len(wrong) == FRAMES
    assert not any(wrong.values())
    if synchronise:
        assert max(reader.remembered) <= 4 * SLOTS
