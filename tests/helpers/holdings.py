"""What a program may have of a ring when it forks, or when its closing is interrupted.

Each yields what it has to close, in order, and goes on when nothing of it was closed.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterator
from typing import Any

import gpuring
from tests.helpers.rings import drain, put, small_ring

Enter = Callable[[Any], Any]
Has = Iterator[list[Any]]


def has_a_ring(ring: gpuring.Ring, name: str, enter: Enter) -> Has:
    """Has a ring with peers, and the memory of a closed ring that others still read."""
    mine, old = enter(small_ring(f"{name}.mine")), small_ring(f"{name}.old")
    peers = [mine.producer(), mine.producer(), mine.consumer("x"), mine.consumer("x")]
    put(peers[0])
    slots = [peers[0].claim(), peers[2].acquire()]
    others = enter(gpuring.attach(f"{name}.old"))
    old.close()
    yield [mine, others]
    gpuring.attach(f"{name}.mine").close()
    mine.close()
    others.close()
    del slots  # only now: the rings were closed while the slots were in use


def has_attached(ring: gpuring.Ring, name: str, enter: Enter) -> Has:
    handles = [enter(gpuring.attach(name)) for _ in range(2)]  # of one, 3.13 would trace no opcode
    for each in handles:
        each.watch()
    yield handles
    assert [each.stats().name for each in handles] == [name, name]


def has_claimed(ring: gpuring.Ring, name: str, enter: Enter) -> Has:
    producer = enter(ring.producer())
    reader = enter(ring.consumer())
    slot = enter(producer.claim())
    yield [producer, reader]
    slot.publish()
    assert drain(reader) == [slot.seq]


def has_acquired(ring: gpuring.Ring, name: str, enter: Enter) -> Has:
    producer, reader = enter(ring.producer()), enter(ring.consumer())
    put(producer)
    slot = enter(reader.acquire())
    yield [reader, producer]
    slot.release()
    assert drain(reader) == []


def has_batches(ring: gpuring.Ring, name: str, enter: Enter) -> Has:
    producer, reader = enter(ring.producer()), enter(ring.consumer())
    put(producer)
    frames, claims = enter(reader.acquire_many(2)), enter(producer.claim_many(1))
    yield [reader, producer]
    frames.release()
    claims.publish()
    assert drain(reader) == [claims[0].seq]


def loops(ring: gpuring.Ring, name: str, enter: Enter) -> Has:
    producer, reader = enter(ring.producer()), enter(ring.consumer())
    before = put(producer)
    frames = iter(reader)
    slot = next(frames)
    yield [frames, reader, producer]
    assert [slot.seq] == before
    del slot
    after = put(producer)
    assert [next(frames).seq] == after


def aligns(ring: gpuring.Ring, name: str, enter: Enter) -> Has:
    producer = enter(ring.producer())
    reader, other = enter(ring.consumer()), enter(ring.consumer())
    frames = enter(gpuring.align([reader, other]))
    put(producer)
    left, right = next(frames)
    yield [frames, reader, other, producer]
    assert left.seq == right.seq
    del left, right
    seqs = put(producer)
    assert [each.seq for each in next(frames)] == seqs * 2


def polls(ring: gpuring.Ring, name: str, enter: Enter) -> Has:
    producer, reader = enter(ring.producer()), enter(ring.consumer())
    descriptor = reader.fileno()
    assert not select.select([descriptor], [], [], 0)[0]
    yield [reader, producer]
    put(producer)
    assert select.select([descriptor], [], [], 20)[0]


def awaits(ring: gpuring.Ring, name: str, enter: Enter) -> Has:
    producer, reader = enter(ring.producer()), enter(ring.consumer())
    loop = asyncio.new_event_loop()
    task = loop.create_task(reader.acquire_async())
    task._log_destroy_pending = False  # most drop it while it waits
    while reader._notifier is None:
        loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    yield [reader, producer]
    seqs = put(producer)
    assert [loop.run_until_complete(task).seq] == seqs
    loop.close()


HOLDINGS: list[Callable[[gpuring.Ring, str, Enter], Has]] = [
    has_a_ring, has_attached, has_claimed, has_acquired, has_batches, loops, aligns, polls, awaits,
]  # fmt: skip
