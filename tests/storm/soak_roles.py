"""The processes of soak.py, which produce or consume until they are told to end, and log each
step."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from pathlib import Path
from typing import Any

import gpuring
from tests.helpers.places import Place
from tests.helpers.processes import Pipe, die_with
from tests.storm.paper import Sheet, content

HELD = 2  # frames that a member holds at once, at most


def begin(deadline_s: float, parent: int) -> None:
    """Lets this process end with its parent, and at its deadline whatever happens."""
    die_with(parent)
    signal.alarm(int(deadline_s))


def produce(pipe: Pipe, name: str, place: Place, me: int, path: str, *limits: Any) -> None:
    begin(*limits)
    log, chance, k = Sheet(Path(path)), random.Random(me), 0
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
                place.fill(slot, content(me, k))
                slot.meta["producer"], slot.meta["k"] = me, k
                log("p", producer=me, k=k, seq=slot.seq)
                slot.publish()
                log("P", producer=me, k=k, seq=slot.seq)
                k += 1
            time.sleep(chance.random() * 0.012)


def frame_of(slot: Any) -> dict[str, int]:
    return {"producer": int(slot.meta["producer"]), "k": int(slot.meta["k"])}


def consume(
    pipe: Pipe, name: str, place: Place, me: int, path: str, group: str, *limits: Any
) -> int:
    """Reads until the end of the stream, or until it is told to end.  Returns how many frames were
    torn."""
    begin(*limits)
    log, chance, torn = Sheet(Path(path)), random.Random(me), 0
    lossy = group == "lossy"
    with (
        gpuring.attach(name) as ring,
        contextlib.suppress(gpuring.FrameTorn),  # raised when it leaves
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
                    found = frame_of(slot)
                    log("A", again=slot.redelivered, lost=slot.lost, seq=slot.seq, **found)
                    got = place.read(slot)
                    with contextlib.suppress(gpuring.FrameTorn):
                        slot.check()
                        assert (got == content(**found)).all(), f"frame {slot.seq}: {found}"
                    if chance.random() < 0.3:
                        time.sleep(chance.random() * 0.004)
            except gpuring.RingTimeout:
                pass
            except gpuring.FrameTorn:
                torn += 1
            except (gpuring.EndOfStream, gpuring.PeerLost):
                return torn
            for slot in held:
                log("R", seq=slot.seq, **frame_of(slot))
                try:
                    slot.release()
                except gpuring.FrameTorn:
                    torn += 1
    return torn
