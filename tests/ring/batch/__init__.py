"""What the tests of batches do with a ring, and what they ask of it."""

from __future__ import annotations


def put(place, producer, frames=1):
    """Publishes frames that are filled with their sequences.  Returns the sequences."""
    seqs = []
    for _ in range(frames):
        with producer.claim(0) as slot:
            place.fill(slot, slot.seq)
            seqs.append(slot.seq)
    return seqs


def seqs_of(batch):
    return [slot.seq for slot in batch]


def idle(*endpoints):
    """Whether nobody has claimed or holds anything, by the header's words."""
    return [each._peer.holding() for each in endpoints] == [[] for _ in endpoints]
