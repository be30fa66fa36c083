"""Functions that use the peers of a ring, or read its header."""

from __future__ import annotations

import random
import selectors
import time
from pathlib import Path
from typing import Any

import gpuring
from gpuring import slot_layout
from gpuring.registry import leftovers, segment
from gpuring.ring.creation import create_of
from tests.helpers.arrays import array_of, assign
from tests.helpers.processes import Pipe, poll
from tests.helpers.words import peek

SMALL = {"slots": 4, "shape": 4, "dtype": "u1"}


def small_ring(name: str, slots: int = 4, **options: Any) -> gpuring.Ring:
    """Makes a ring in host memory.  A frame has four bytes."""
    return gpuring.create(name, **SMALL | {"slots": slots, "device": "host"} | options)


def create_far(
    name: str, origin: Any, *, slots: int, device: str, memory: str = "auto", **described: Any
) -> gpuring.Ring:
    """A ring as the importer of a bridge makes it."""
    slot = slot_layout.make(**described, origin=origin)
    return create_of(slot, name, slots=slots, device=device, memory=memory)


def segments_of(name: str) -> list[str]:
    """Returns the files in shared memory of rings whose names begin with this name."""
    return sorted(path.name for path in Path("/dev/shm").glob(f"gpuring.{name}*"))


def publish(producer: gpuring.Producer, *values: Any) -> None:
    """Publishes frames, each full of one of the values."""
    for value in values:
        put(producer, 1, value)


def put(producer: gpuring.Producer, frames: int = 1, value: Any = None) -> list[int]:
    """Publishes frames, full of the value.  Returns their sequences."""
    seqs = []
    for _ in range(frames):
        with producer.claim(timeout=20) as slot:
            if value is not None:
                assign(array_of(slot), value)
        seqs.append(slot.seq)
    return seqs


def drain(consumer: gpuring.Consumer) -> list[int]:
    """Reads everything that can be read now.  Returns the sequences."""
    seqs = []
    while True:
        try:
            with consumer.acquire(0) as slot:
                seqs.append(slot.seq)
        except (gpuring.RingTimeout, gpuring.EndOfStream):
            return seqs


def publish_at_random(pipe: Pipe, names: list[str], rounds: int, seed: int) -> None:
    """Publishes frames, each in any of the rings, a little after the last one was read."""
    dice = random.Random(seed)
    rings = [gpuring.attach(name) for name in names]
    producers = [ring.producer() for ring in rings]
    for _ in range(rounds):
        producer = dice.choice(producers)
        while waiters(producer.ring) == 0 and dice.random() < 0.999:
            pass
        for _ in range(dice.randrange(300)):
            pass
        producer.claim(timeout=20).publish()
        for ring in rings:  # every frame is read
            poll(lambda ring=ring: ring.stats().subscriptions[0].lag == 0)
    pipe.receive()


def publish_and_wait(pipe: Pipe, name: str, frames: int) -> None:
    with gpuring.attach(name) as ring, ring.producer() as producer:
        put(producer, frames)
        pipe.ask()


def tidied(name: str) -> None:
    """Removes what the dead have left of rings whose names begin with this name.

    gpuring.clean() would also end what tests in other processes still look at: a closed ring
    with a durable subscription, or the socket of a dead process, for example.  So only
    tests/registry, which runs alone, calls it.
    """
    leftovers.tidy(lambda each: each.startswith(name))


def damage(name: str) -> Path:
    """Makes a file under a ring's name that is no ring."""
    path = Path("/dev/shm", segment.header_name(name)[1:])
    path.write_bytes(b"\1" * 8192)
    return path


def is_whole_or_gone(name: str) -> bool:
    """Whether there is a ring that one can attach to.  There is never half a ring."""
    try:
        gpuring.attach(name).close()
    except gpuring.RingNotFound:
        return False
    return True


def waiters(ring: gpuring.Ring) -> int:
    """head.waiters: how many are counted as waiting in this ring."""
    return peek(ring, "head", "waiters")


def bells(ring: gpuring.Ring) -> int:
    return peek(ring, "head", "bell")


def readable(endpoint: Any, timeout: float = 0) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(endpoint, selectors.EVENT_READ)
        return bool(selector.select(timeout))


def cpu_seconds_of(*sleeps_s):
    """The CPU seconds that this process uses during these sleeps."""
    before = time.process_time()
    for each in sleeps_s:
        time.sleep(each)  # the time that is measured.  This synchronises nothing.
    return time.process_time() - before
