"""A million frames through one reader that never synchronises: whole, and its memory stays flat.

The host runs as far ahead of the GPU as it can, so each event is recorded again before it is seen
complete.  So events do not tell when a released frame can be forgotten, and a checkpoint has to.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.survivor import report
from tests.helpers import raw_verbs

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.deadline(300)]

FRAMES = 1_000_000
SLOTS, WORDS = 32, 64
SAMPLES = 20


def publish(pipe, name, frames):
    kernels = tools()
    stream = library.new_stream()
    with gpuring.attach(name, timeout=20) as ring, ring.producer() as producer, stream:
        pipe.ask("joined")
        for _ in range(frames):
            slot = producer.claim(60)
            kernels.stamp(slot, slot.seq, stream)
            slot.publish()
        stream.synchronize()


def rss_nbytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read(pipe, name, frames):
    """Reads all frames.  Returns (wrong words, resident bytes at each sample, frames remembered at
    each)."""
    kernels = tools()
    stream, wrong = library.new_stream(), kernels.counter()
    memory, remembered = [], []
    with gpuring.attach(name, timeout=20) as ring, ring.consumer() as consumer, stream:
        pipe.send("joined")
        for k in range(frames):
            slot = consumer.acquire(60)
            kernels.check(slot, slot.seq, wrong, stream)
            slot.release()
            if (k + 1) % (frames // SAMPLES) == 0:
                memory.append(rss_nbytes())
                remembered.append(raw_verbs.remembered(consumer._peer))
        stream.synchronize()
        return kernels.count(wrong, stream), memory, remembered


@pytest.mark.parametrize("sync", ["timeline", "event"])
def test_a_million_frames_leave_nothing_behind(name, children, sync):
    with gpuring.create(name, slots=SLOTS, shape=(WORDS,), dtype="u8", sync=sync) as ring:
        reader, writer = children(read, name, FRAMES), children(publish, name, FRAMES)
        assert reader.receive() == writer.receive() == "joined"
        reader.patience_s = writer.patience_s = 200
        writer.send("go")
        wrong, memory, remembered = reader.result()
        writer.result()
        assert ring.stats().reaps == 0
    report({"sync": sync, "frames": FRAMES, "rss": memory, "remembered": remembered})
    assert wrong == 0
    assert memory[-1] - memory[SAMPLES // 4] <= 4 << 20  # allocators settle for a while
    assert max(remembered) <= 8192  # in flight, at the most what a stream's queue holds
