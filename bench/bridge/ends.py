"""The two ends, the same for every carrier: a producer at the near ring, a reader at the far one.

Before anything is timed, frames are written and compared word for word.  While the clock runs, the
producer writes one word at the start and one at the end of each frame, and the reader compares
those.  So what is measured is the carrying, and not the making of frames.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import gpuring
from gpuring.cli.measure.crew import Pipe

META = [("k", "i8"), ("sent_ns", "i8"), ("last", "i8")]
PATIENCE_S = 60


def create(name: str, nbytes: int, slots: int) -> gpuring.Ring:
    """Makes a ring in host memory, and touches all of its pages."""
    ring = gpuring.create(
        name, slots=slots, shape=(nbytes // 8,), dtype="u8", meta=META, device="host"
    )
    with ring.producer() as producer:
        for _ in range(slots):
            with producer.claim() as slot:
                slot.array.fill(0)
    return ring


def produce(pipe: Pipe, name: str, nbytes: int, slots: int) -> None:
    """Makes the near ring, and writes frames as it is ordered.  An order is (kind, how many, the
    seconds between two frames).  If the kind is "until told", it writes until the next order comes.
    It sends back how many frames there were, and how many ns each took from its claim until it was
    published.  None ends it."""
    ramp = np.arange(nbytes // 8, dtype="u8")
    with create(name, nbytes, slots) as ring, ring.producer() as producer:
        pipe.send("up")
        while order := pipe.receive():
            kind, until, every_s = order
            if kind != "alone":
                _wait_for_a_carrier(ring)
            took: list[int] = []
            begun, k, last = time.monotonic(), 0, False
            while not last:
                if every_s:
                    time.sleep(max(0.0, begun + k * every_s - time.monotonic()))
                claimed_ns = time.monotonic_ns()
                with producer.claim(PATIENCE_S) as slot:
                    if kind == "until told":
                        last = pipe.told()
                    elif kind in ("timed", "alone"):
                        last = time.monotonic() - begun >= until
                    else:
                        last = k + 1 >= until
                    if kind in ("verify", "spoil"):
                        np.multiply(ramp, k + 3, out=slot.array)
                    if kind == "spoil":
                        slot.array[len(ramp) // 2] += 1
                    slot.array[0] = slot.array[-1] = k
                    slot.meta["k"], slot.meta["last"] = k, last
                    slot.meta["sent_ns"] = time.monotonic_ns()
                took.append(time.monotonic_ns() - claimed_ns)
                k += 1
            if kind == "until told":
                pipe.receive()
            pipe.send((k, took))


def _wait_for_a_carrier(ring: gpuring.Ring) -> None:
    """Waits until the ring has a subscription, because nobody would get the frames before."""
    patience = time.monotonic() + PATIENCE_S
    while not ring.stats().subscriptions:
        if time.monotonic() > patience:
            raise TimeoutError("nobody carries the frames")
        time.sleep(0.01)


def read(pipe: Pipe, name: str, nbytes: int, slots: int, make: bool) -> None:
    """Makes the far ring, or waits for it, and reads what comes.  For each part of the stream it
    sends back what was wrong and when its frames came: (wrong words, one-way ns, arrival in ns).
    If the kind is "until told", it also reports when the first frame has come."""
    ramp = np.arange(nbytes // 8, dtype="u8")
    ring = create(name, nbytes, slots) if make else gpuring.attach(name, timeout=PATIENCE_S)
    # In a ring that a bridge makes, slots are claimed before we join, for the first frames.
    with ring, ring.consumer(start="next" if make else "oldest") as frames:
        pipe.send("up")
        while kind := pipe.receive():
            wrong, k, last = 0, 0, False
            took: list[int] = []
            came: list[int] = []
            while not last:
                with _next(frames) as slot:
                    now = time.monotonic_ns()
                    took.append(now - int(slot.meta["sent_ns"]))
                    came.append(now)
                    if kind == "verify":
                        wrong += int(np.count_nonzero(slot.array[1:-1] != (ramp * (k + 3))[1:-1]))
                    wrong += int(slot.array[0] != k) + int(slot.array[-1] != k)
                    wrong += int(slot.meta["k"] != k)
                    last = bool(slot.meta["last"])
                if kind == "until told" and not k:
                    pipe.send("begun")
                k += 1
            pipe.send((wrong, took, came))


def read_lossy(_: Pipe, name: str) -> None:
    """Reads what it gets of a ring on this host, until the stream ends."""
    with (
        gpuring.attach(name, timeout=PATIENCE_S) as ring,
        ring.consumer(lossless=False) as frames,
    ):
        for _slot in frames:
            pass


def _next(frames: gpuring.Consumer) -> Any:
    """The next frame, over restarts of its producers."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return frames.acquire(PATIENCE_S)
        except (gpuring.PeerLost, gpuring.EndOfStream):
            if time.monotonic() > until:
                raise
            time.sleep(0.001)
