"""Mappings of slots in host memory: when they are refused, and what they keep open."""

from __future__ import annotations

import gc
from typing import Any

import gpuring
from tests.helpers import raw_verbs
from tests.helpers.processes import Pipe, open_files, replaces_its_files
from tests.helpers.rings import small_ring, tidied
from tests.helpers.words import peek


def closes_rings(pipe: Pipe, name: str) -> set[int]:
    """Which of this process's files are closed when it closes rings."""
    rings = [gpuring.attach(name), small_ring(f"{name}-2")]
    arrays: list[Any] = [ring.consumer() for ring in rings]
    with rings[0].producer() as producer:
        arrays.append(producer.claim(0).array)
    mine = replaces_its_files(pipe)
    while rings:
        rings.pop().close()
    arrays.clear()
    gc.collect()
    return set(mine) - set(open_files())


def test_who_has_closed_everything_loses_no_file_of_its_own_with_a_ring(name, children):
    with small_ring(name):
        assert children(closes_rings, name).result() == set()
    tidied(name)


def test_nothing_is_promised_for_what_a_cpu_has_done(name):
    """So no claim and no acquire has to read such a word, which another process has just
    written."""
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer() as frames:
        slots = ring._header.slots
        producer.claim(0).abandon()
        for _ in range(2 * slots):
            producer.claim(0).publish()
            frames.acquire(0).release()
        producer.claim_many(slots, 0).publish()
        frames.acquire_many(slots, 0).release()
        assert [peek(ring, "slot", "fence", i) for i in range(slots)] == [0] * slots
        for peer in (producer.peer, frames.peer):
            for i in range(slots):
                assert raw_verbs.work(ring._header, peer, i) == 0
                assert raw_verbs.fence(ring._header, peer, i) == 0
