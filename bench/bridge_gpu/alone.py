"""The NIXL engine without a bridge."""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Client, Listener, wait
from typing import Any

import numpy as np

from bench.bridge_gpu.frames import NBYTES, PATIENCE_S, SLOTS, content, join, make, on
from gpuring.bridge.engines import nixl
from gpuring.bridge.engines.slabs import slab_of
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.settings import ring_name

IN_FLIGHT = 8


def far_end(pipe: Pipe, name: str, device: str, imported: bool) -> dict[str, Any]:
    """The far end: receives into a ring of its own, or into one that another process has made."""
    with on(device) as xp, (join if imported else make)(name, device) as ring:
        slab, words = slab_of(ring, writable=True), content(xp)
        receiver = nixl.receiver(slab)
        with Listener(family="AF_UNIX") as listener, contextlib.closing(receiver):
            pipe.send((listener.address, receiver.open()))
            bounced = receiver.bounce is not None
            with listener.accept() as connection:
                while _takes(connection, receiver):
                    receiver.poll()
                while receiver.bounce is not None and receiver.bounce.copies.pending:
                    receiver.poll()
                for index in range(SLOTS):
                    words.check(_words(slab, xp, index), index)
        return {"words wrong": words.wrong, "far bounce buffer": bounced}


def _takes(connection: Any, receiver: Any) -> bool:
    """Passes the near end's messages to the receiver.  Returns whether the near end is still
    there."""
    wait([connection, receiver], PATIENCE_S)
    try:
        while connection.poll():
            said, what = connection.recv()
            if said == "data":
                receiver.write(what, 0, b"")
            for index in what if said == "arrived" else ():
                receiver.finish(index, NBYTES)
    except EOFError:
        return False
    return True


def _words(slab: Any, xp: Any, index: int) -> Any:
    part = slab.part(index, 0, NBYTES)
    return (np.frombuffer(part, "u1") if xp is np else part).view("u8")


class _Channel:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def data(self, to_seq: int, begin: int, part: Any, *, track: bool = False) -> Any:
        self._connection.send(("data", to_seq))


def near_end(
    _: Pipe, name: str, device: str, address: str, offer: bytes, seconds: float
) -> dict[str, float]:
    """The near end: sends slots of a ring that another process has made, several at once."""
    with on(device) as xp, join(name, device) as ring, Client(address) as connection:
        slab, words = slab_of(ring, writable=True), content(xp)
        for index in range(SLOTS):
            words.fill(_words(slab, xp, index), index)
        if xp is not np:
            xp.cuda.get_current_stream().synchronize()
        sender = nixl.sender(slab, _Channel(connection))
        with contextlib.closing(sender):
            sender.open(offer)
            sent = done = 0
            begun = deadline = time.perf_counter()
            while done < SLOTS or time.perf_counter() < deadline:
                while sent - done < IN_FLIGHT:
                    sender.send(sent, sent % SLOTS, sent % SLOTS, sent % SLOTS, NBYTES)
                    sent += 1
                before = done
                if arrived := sender.poll():
                    done += len(arrived)
                    connection.send(("arrived", [seq % SLOTS for seq in arrived]))
                if before < SLOTS <= done:  # connected, and every slot was written once
                    begun, first = time.perf_counter(), done
                    deadline = begun + seconds
                if time.perf_counter() > begun + PATIENCE_S:
                    raise TimeoutError(f"{done} of {sent} frames in {PATIENCE_S} s")
            took = time.perf_counter() - begun
            n, bounced = done - first, sender.bounce is not None
    return {
        "GB/s": n * NBYTES / took / 1e9, "µs a frame": 1e6 * took / max(n, 1),
        "near bounce buffer": bounced,
    }  # fmt: skip


def engine(crew: Crew, near: str, far: str, imported: bool, seconds: float) -> dict[str, Any]:
    """Measures NIXL from an imported slab into the far process's own slab, or into an imported
    one."""
    name = ring_name()
    with contextlib.ExitStack() as stack:
        stack.enter_context(make(f"{name}.a", near))
        if imported:
            stack.enter_context(make(f"{name}.b", far))
        part = crew.start(far_end, f"{name}.b", far, imported, patience_s=PATIENCE_S)
        address, offer = stack.enter_context(part).receive()
        told = f"{name}.a", near, address, offer, seconds
        figures: dict[str, Any] = crew.call(near_end, *told, patience_s=PATIENCE_S)
        return {**figures, **part.result()}
