"""The ways to read a ring, each of which hands every slot to has()."""

from __future__ import annotations

import asyncio

import gpuring
from tests.helpers.durable import make


def made(name):
    """A ring whose frames can be aligned."""
    return make(name, meta=[("pts", "i8")])


def publish_times(producer, *values):
    """Publishes frames whose `pts` is their value."""
    for value in values:
        with producer.claim(timeout=10) as slot:
            slot.array[...] = value
            slot.meta["pts"] = value


def loops(reader, has):
    for slot in reader:
        has(slot)


def loops_over_batches(reader, has):
    while True:
        with reader.acquire_many(1) as batch:
            has(batch[0])


def loops_in_asyncio(reader, has):
    async def main():
        async for slot in reader:
            has(slot)

    asyncio.run(main())


def loops_over_tuples(reader, has):
    for (slot,) in gpuring.align([reader], by="pts"):
        has(slot)


def loops_over_partial_tuples(reader, has):
    for (slot,) in gpuring.align([reader], by="pts", partial=True, depth=4):
        has(slot)


def has_a_block(reader, has):
    with reader:
        while True:
            slot = reader.acquire()
            has(slot)
            slot.release()


def loops_in_a_block(reader, has):
    frames = iter(reader)  # kept, so that the end of the loop does not drop it
    with reader:
        for slot in frames:
            has(slot)


def keeps_the_slot(reader, has):
    while True:
        slot = reader.acquire()
        has(slot)
        slot.release()
