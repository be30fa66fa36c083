"""What the processes of soak.py do: produce or consume until told, and log each step.

A log is written with write(2), so that of a killed process tells how far it came.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import time
from typing import Any

import numpy as np

import gpuring
from tests.helpers.support import Pipe, Place

WORDS = 64
HELD = 2  # frames that a member has at once, at the most
META = [("producer", "i4"), ("k", "i8")]
ENTRY = np.dtype([("mark", "S1"), ("again", "?"), ("producer", "<i4"), ("k", "<i8"), ("seq", "<i8"),
                  ("lost", "<i8")])  # fmt: skip
_RAMP = np.arange(WORDS, dtype="u4")


def content(producer: int, k: int) -> np.ndarray:
    step, start = 2 * k + 1, producer * 0x9E3779B1 + k
    return _RAMP * np.uint32(step & 0xFFFFFFFF) + np.uint32(start & 0xFFFFFFFF)


def begin(deadline_s: float, parent: int) -> None:
    """This process ends with its parent, and at its deadline whatever happens."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
    signal.alarm(int(deadline_s))


class Log:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._row = np.zeros(1, ENTRY)

    def __call__(self, *entry: Any) -> None:
        """mark, again, producer, k, seq, lost"""
        self._row[0] = entry
        os.write(self._fd, self._row.tobytes())


def produce(pipe: Pipe, name: str, place: Place, me: int, path: str, *limits: Any) -> None:
    begin(*limits)
    log, chance, k = Log(path), random.Random(me), 0
    with gpuring.attach(name) as ring, ring.producer() as producer:
        pipe.send()
        pipe.receive()
        while not pipe.told():
            for _ in range(chance.randrange(1, 8)):
                try:
                    slot = producer.claim(1)
                except gpuring.RingFull:
                    break
                if chance.random() < 0.05:
                    slot.abandon()
                    continue
                place.fill(slot.array, content(me, k))
                slot.meta["producer"], slot.meta["k"] = me, k
                log(b"p", False, me, k, slot.seq, 0)
                slot.publish()
                log(b"P", False, me, k, slot.seq, 0)
                k += 1
            time.sleep(chance.random() * 0.012)


def consume(
    pipe: Pipe, name: str, place: Place, me: int, path: str, group: str, *limits: Any
) -> int:
    """Until the end or until told.  The number of frames that turned out torn."""
    begin(*limits)
    log, chance, torn = Log(path), random.Random(me), 0
    lossy = group == "lossy"
    with (
        gpuring.attach(name) as ring,
        contextlib.suppress(gpuring.FrameTorn),  # told when it leaves
        ring.consumer(None if lossy else group, lossless=not lossy) as frames,
    ):
        pipe.send()
        while not pipe.told():
            held: list[Any] = []
            try:
                for timeout in (0.25, 0)[: 1 + (chance.random() < 0.25)]:
                    newest = lossy and chance.random() < 0.5
                    slot = frames.latest(timeout) if newest else frames.acquire(timeout)
                    held.append(slot)
                    found = slot.redelivered, int(slot.meta["producer"]), int(slot.meta["k"])
                    log(b"A", *found, slot.seq, slot.lost)
                    got = place.read(slot.array)
                    with contextlib.suppress(gpuring.FrameTorn):
                        slot.check()
                        assert (got == content(*found[1:])).all(), f"frame {slot.seq}: {found}"
                    if chance.random() < 0.3:
                        time.sleep(chance.random() * 0.004)
            except gpuring.RingTimeout:
                pass
            except gpuring.FrameTorn:
                torn += 1
            except (gpuring.EndOfStream, gpuring.PeerLost):
                return torn
            for slot in held:
                log(b"R", False, int(slot.meta["producer"]), int(slot.meta["k"]), slot.seq, 0)
                try:
                    slot.release()
                except gpuring.FrameTorn:
                    torn += 1
    return torn
