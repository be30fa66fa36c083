"""Windows of a few nanoseconds, hammered on by processes that do nothing else.

Through the core alone, so that a turn takes less than a microsecond and an unlucky moment comes
thousands of times a second.  The data are one word a slot in the unused end of the first page.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from gpuring import native
from gpuring.native import Header
from tests.helpers import raw_verbs
from tests.helpers.processes import Pipe

DATA_AT, PAGE = 3584, 4096
SECONDS = 0.6


def opened(path: str) -> tuple[Header, np.ndarray]:
    fd = os.open(path, os.O_RDWR)
    return Header.attach(fd), np.frombuffer(mmap.mmap(fd, PAGE), "u8", 32, DATA_AT)


def turns(pipe: Pipe) -> Iterator[None]:
    """Rounds of many turns until it is told to end."""
    pipe.send()
    while not pipe.told():
        yield from (None for _ in range(2000))


def write(pipe: Pipe, path: str) -> int:
    header, data = opened(path)
    producer = raw_verbs.join_producer(header)
    written = 0
    for _ in turns(pipe):
        index = producer.claim(0)
        if index < 0:
            continue
        data[index] = producer.seq
        assert producer.publish(index, producer.seq) == 0
        written += 1
    return written


def read_lossy(pipe: Pipe, path: str, verb: str) -> tuple[int, list[tuple[int, int]]]:
    """Reads until it is told to end.  Returns (frames read, [(sequence, what its slot said
    instead)])."""
    header, data = opened(path)
    reader = raw_verbs.join_consumer(header, verb.encode(), False, "next")
    take, frames, wrong, last = getattr(reader, verb), 0, [], 0
    for _ in turns(pipe):
        index = take(0)
        if index < 0:
            assert index in (
                native.BLOCKED,
                native.ENDED,
            )  # what the slot has to say
            continue
        seen = (int(data[index]), int(data[index]))
        frames += 1
        if seen != (reader.seq, reader.seq) or reader.seq <= last:
            wrong.append((reader.seq, seen[1]))
        last = reader.seq
        if reader.release(index, reader.seq):
            wrong.append((reader.seq, -1))
    return frames, wrong


def join_and_read(pipe: Pipe, path: str) -> tuple[int, list[tuple[int, int]]]:
    """Joins again and again.  Returns (joins, [(where the subscription starts, its first frame)])
    if the two differ."""
    header, _ = opened(path)
    joins, wrong = 0, []
    for _ in turns(pipe):
        reader = raw_verbs.join_consumer(header, b"late", True, "oldest")
        start = reader.position
        index = reader.acquire(20)
        if index >= 0:
            joins += 1
            if reader.seq != start:
                wrong.append((start, reader.seq))
            reader.release(index, reader.seq)
        assert reader.leave() == 0
        if pipe.told():
            break
    return joins, wrong


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("verb", ["acquire", "latest"])
def test_a_lossy_reader_never_has_a_frame_that_is_being_overwritten(segment, children, slots, verb):
    """Edge H: claim looks at the take word after its swap, and acquire at the slot word after its
    own."""
    ring = segment(slots)
    writer, reader = children(write, ring.path), children(read_lossy, ring.path, verb)
    for child in (writer, reader):
        child.receive()
    time.sleep(SECONDS)  # the time of the race.  This synchronises nothing.
    for child in (reader, writer):
        child.send()
    frames, wrong = reader.result()
    assert writer.result() > 0
    assert frames > 0
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 4])
def test_a_new_lossless_subscription_loses_nothing_from_its_start_on(segment, children, slots):
    """Edge J, H5: a claim that was past its gate may have taken one frame from the newcomer."""
    ring = segment(slots)
    writer, joiner = children(write, ring.path), children(join_and_read, ring.path)
    for child in (writer, joiner):
        child.receive()
    time.sleep(SECONDS)
    joiner.send()
    joins, wrong = joiner.result()
    writer.send()
    assert writer.result() > 0
    assert joins > 0
    assert wrong == []
