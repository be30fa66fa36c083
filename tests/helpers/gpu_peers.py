"""Peers over a driver whose GPU finishes what they have enqueued when a test says so."""

from __future__ import annotations

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.fake_driver import Driver
from tests.helpers.segment import Actor


def make_ring(segment, kind, slots=2):
    ring = segment(slots, memory="ipc", sync=kind)
    ring.driver = Driver(ring)
    return ring


class OnGpu(Actor):
    def die(self, **options):
        """The process dies, and the peer's entry names one that is gone.  On a GPU the locks alone
        do not show a death."""
        self.segment.poke("peer", "start", 1, self.number)
        super().die(**options)

    def dies(self):
        """The process dies, and the peer is cleared."""
        self.die()
        self.segment.reap()


def _joined(ring, join):
    header = ring.process()
    device = native.Device(header, 0, None, None, ring.driver.table)
    actor = OnGpu(ring, join(header, device))
    ring.driver.meet(actor)
    return actor


def producer_of(ring):
    return _joined(ring, raw_verbs.join_producer)


def consumer_of(ring):
    return _joined(ring, lambda header, device: raw_verbs.join_consumer(
        header, b"x", True, "next", True, device
    ))  # fmt: skip


def get(reader, frames):
    """Acquires and releases frames.  Returns their sequences.  The consumer's GPU waits for the
    producers' GPU."""
    return [reader.get() for _ in range(frames)]


def pay(ring, *actors):
    """Lets the GPU finish what these actors have recorded."""
    ring.driver.finish(*actors)


def told(reader):
    """The sequences of released frames that the next acquire calls torn."""
    result = reader.peer.acquire(0)
    return reader.peer.take_torn() if result == native.TORN else result
