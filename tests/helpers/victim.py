"""A producer in another process that dies while its GPU is stuck.  The ring is in host memory."""

from __future__ import annotations

import gpuring
from tests.helpers.processes import poll
from tests.helpers.words import set_fence, written_by_gpu


def publishes(pipe, name, frames):
    producer = gpuring.attach(name, timeout=10).producer()
    seqs = []
    for _ in range(frames):
        slot = producer.claim(10)
        seqs.append(slot.seq)
        slot.publish()
    pipe.ask((producer.peer, seqs))


def unpay(ring, peer, index):
    """Makes the peer's GPU work on the slot look undone."""
    set_fence(ring, peer, index, 1)


class Victim:
    """A producer in another process whose GPU is stuck, as far as the header tells."""

    def __init__(self, ring, children, frames=1):
        self.ring = ring
        self.child = children(publishes, ring.name, frames)
        self.number, seqs = self.child.receive()
        for seq in seqs:
            written_by_gpu(ring, seq)

    def stick(self, slot):
        """Makes the producer's GPU work on the slot look undone."""
        unpay(self.ring, self.number, slot.index)

    def die(self):
        reaps = self.ring._header.reaps
        self.child.kill()
        poll(lambda: self.ring._header.reap() or self.ring._header.reaps > reaps)
