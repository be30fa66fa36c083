"""Frames per second through one ring.

Each producer and each consumer is a process of its own that does nothing else. With kernel=True
every frame's first 4 KiB are written and checked, by one small kernel on each side on a GPU and by
NumPy in host memory; with kernel=False frames are handed over untouched. Before the clock runs,
whole frames are written and checked; afterwards the books must balance: what a lossless
subscription read is what was published. Not shown: what real work on the frames costs, and what it
leaves of these rates.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import gpuring

from ..measure.attempt import Wrong, attempt, expect_right
from ..measure.crew import Crew, Pipe
from ..measure.figures import Distribution, Figure
from ..measure.patterns import pattern_for
from ..measure.settings import FRAME_NBYTES, SLOTS, Place, Settings, ring_name

GROUP = "throughput"
BINS = 40
STRIDE = 16
"""Frames between two looks at the clock."""


@dataclass(frozen=True)
class Load:
    """One run."""

    place: Place
    kernel: bool = True
    slots: int = SLOTS
    nbytes: int = FRAME_NBYTES
    consumers: int = 1
    """Subscriptions."""
    lossless: bool = True
    members: int = 1
    """Processes that share each subscription."""
    producers: int = 1
    seconds: float = 1.0
    spoil: bool = False
    ring: str = ""

    @property
    def boundary(self) -> int:
        """The first sequence that is not written and checked as a whole."""
        return self.slots + max(8, 2 * self.slots)

    @property
    def setting(self) -> dict[str, Any]:
        """The setting of a figure.  It has `batch`, because stored results may have figures of
        batches."""
        keys = ("kernel", "slots", "nbytes", "consumers", "lossless", "members", "producers")
        return {key: getattr(self, key) for key in keys} | {"batch": 1}


def run(settings: Settings, crew: Crew, loads: Iterable[Load]) -> Iterator[Figure]:
    """Each of them once."""
    for load in dict.fromkeys(loads):
        blank = Figure(
            GROUP, "frames/s", "gpuring", "frames/s", settings.where(load.place, **load.setting)
        )
        yield from attempt(blank, partial(_measure, crew, load, blank))


def timing(settings: Settings) -> dict[str, Any]:
    """The timing of a load: how long a run of these settings measures it."""
    return {"seconds": settings.seconds(0.3, 0.6), "spoil": settings.spoil}


def _measure(crew: Crew, load: Load, blank: Figure) -> list[Figure]:
    rates, frames = measure(crew, load)
    how = (
        f"{load.boundary - load.slots} whole frames before the clock, "
        f"{'4 KiB of every frame' if load.kernel else 'the count of frames'} during the run; "
        f"{frames} frames in all"
    )
    return [replace(blank, values=Distribution.of(rates), verified=how)]


def measure(crew: Crew, load: Load) -> tuple[np.ndarray[Any, Any], int]:
    """Rates in equal stretches of one run, and how many frames were published."""
    load = replace(load, ring=ring_name())
    with contextlib.ExitStack() as stack:
        producers = [stack.enter_context(crew.start(produce, load, True))]
        producers[0].receive()
        producers += [
            stack.enter_context(crew.start(produce, load, False)) for _ in range(1, load.producers)
        ]
        consumers = [
            stack.enter_context(crew.start(consume, load, subscription))
            for subscription in range(load.consumers)
            for _ in range(load.members)
        ]
        for part in (*producers[1:], *consumers):
            part.receive()
        for part in producers:
            part.send("go")
        for part in producers:
            part.receive()  # each has had its time; until all had, none stops
        for part in producers:
            part.send("enough")
        marks = [part.receive() for part in producers]
        read = [part.result() for part in consumers]
        published = 0
        for part in reversed(producers):  # the first one owns the memory
            part.send("close")
            published += part.result()
        _check_books(load, published, read)
        return rates_of(marks), published


def _check_books(load: Load, published: int, read: list[dict[str, int]]) -> None:
    expect_right(sum(each["wrong"] for each in read))
    for subscription in range(load.consumers):
        own = [each for each in read if each["subscription"] == subscription]
        frames = sum(each["frames"] for each in own)
        if not 0 < frames <= published or (load.lossless and frames != published):
            raise Wrong(f"{published} frames published, {frames} read")


def rates_of(marks: list[list[int]]) -> np.ndarray[Any, Any]:
    """marks: per producer, the times in ns at which each STRIDE of frames was published.

    The producers' counts are added on one grid.  The first third is left out, because queues fill
    and caches warm up in that time.  A stretch holds at least one stride of each producer on
    average.  So a producer that gets no core for a while does not prevent a measurement.
    """
    times = [np.asarray(each, float) for each in marks]
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    begin += (end - begin) / 3
    strides = sum(int(np.count_nonzero((t >= begin) & (t <= end))) for t in times) // len(times)
    if strides < 3:
        raise Wrong(f"only {strides} strides of {STRIDE} frames in the measured time")
    grid = np.linspace(begin, end, min(BINS, strides - 1) + 1)
    counts = sum(np.interp(grid, t, STRIDE * np.arange(len(t))) for t in times)
    return np.asarray(np.diff(counts) / (np.diff(grid) / 1e9))


# ---- the processes ------------------------------------------------------------------------------


def produce(pipe: Pipe, load: Load, first: bool) -> int:
    """Publishes for some time; answers with its marks.  The first one makes the ring."""
    with _open(load) if first else gpuring.attach(load.ring, timeout=30) as ring:
        with ring.producer() as producer:
            pattern = pattern_for(ring)
            pipe.send("ready")
            pipe.receive()
            frames, spoil = 1, load.spoil and first
            while (slot := producer.claim()).seq < load.boundary:
                pattern.stamp_all(slot)
                if spoil:
                    pattern.spoil(slot)
                    spoil = False
                slot.publish()
                frames += 1
            pattern.finish()
            pattern.stamp(slot)
            if spoil:  # another producer had all the frames before
                pattern.spoil(slot)
            slot.publish()
            marks = _publish(pipe, producer, pattern, load)
            pattern.finish()
        pipe.send(marks)
        pipe.receive()
        return frames + STRIDE * (len(marks) - 1)


def _open(load: Load) -> gpuring.Ring:
    return gpuring.create(
        load.ring,
        slots=load.slots,
        shape=(load.nbytes // 8,),
        dtype="u8",
        max_peers=64,
        max_subscriptions=load.consumers,
        **load.place.options,
    )


def _publish(pipe: Pipe, producer: Any, pattern: Any, load: Load) -> list[int]:
    """Publishes for load.seconds, and on while one of the producers was too slow to be measured."""
    clock, claim, stamp = time.monotonic_ns, producer.claim, pattern.stamp
    marks = [clock()]
    end = marks[0] + int(load.seconds * 1e9)
    had_its_time = False
    while not (had_its_time and pipe.told()):
        if load.kernel:
            for _ in range(STRIDE):
                slot = claim()
                stamp(slot)
                slot.publish()
        else:
            for _ in range(STRIDE):
                claim().publish()
        marks.append(clock())
        if not had_its_time and marks[-1] >= end and enough(marks):
            had_its_time = True
            pipe.send("had its time")
    pipe.receive()
    return marks


def enough(marks: list[int]) -> bool:
    """Whether what `rates_of` measures holds a few strides, on a starved machine too."""
    return len(marks) > 8 and marks[-5] - marks[0] > (marks[-1] - marks[0]) / 3


def consume(pipe: Pipe, load: Load, subscription: int) -> dict[str, int]:
    """Reads to the end of the stream."""
    with gpuring.attach(load.ring, timeout=30) as ring:
        name = f"subscription {subscription}"
        with ring.consumer(name, lossless=load.lossless) as consumer:
            pattern = pattern_for(ring)
            pipe.send("ready")
            books = {"subscription": subscription, "frames": 0}
            with contextlib.suppress(gpuring.EndOfStream):
                _read(consumer, pattern, load, books)
            return {**books, "wrong": pattern.wrong()}


def _read(consumer: Any, pattern: Any, load: Load, books: dict[str, int]) -> None:
    """Reads until EndOfStream is raised.  books["frames"] then says how many frames there were."""
    acquire, check, frames = consumer.acquire, pattern.check, 0
    try:
        whole = True
        while whole:
            slot = acquire()
            whole = slot.seq < load.boundary
            if whole:
                pattern.check_all(slot)
            elif load.kernel:
                check(slot)
            slot.release()
            frames += 1
        if load.kernel:
            while True:
                slot = acquire()
                check(slot)
                slot.release()
                frames += 1
        else:
            while True:
                acquire().release()
                frames += 1
    finally:
        books["frames"] = frames
