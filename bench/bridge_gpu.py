"""What carries a GPU frame from ring to ring, and what is left when a bridge is killed: one or two
GPUs of one host.

    python -m bench.bridge_gpu [--out bridge-gpu.json] [--host]

Frames have 16 MiB, and every word of them is checked on the GPU.  There are three parts: the floors
(a plain copy between the two memories, and raw blocking sockets between two processes), the NIXL
engine alone, and whole bridges from ring to ring, also with their processes killed.  The engine
`auto` takes NIXL on one host, unless CUDA does not share the importer's slots again.

Where a second GPU is there, frames go across the two as well.  It takes less than two minutes.  A
part that fails does not stop the others, and the file says why it has no figure.  `--host` runs all
of it in host memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Client, Listener, wait
from pathlib import Path
from typing import Any

import numpy as np

import gpuring
from gpuring import bridge
from gpuring._core import Driver
from gpuring.bridge.engines import nixl, nixl_agent
from gpuring.bridge.slabs import slab_of
from gpuring.cli.bench.card import machine_card
from gpuring.cli.bench.crew import Crew, Pipe
from gpuring.cli.bench.settings import remove_rings, ring_name
from gpuring.memory.cuda import available, load_cupy

NBYTES = 16 << 20
SLOTS = 16
IN_FLIGHT = 8
PATIENCE_S = 20.0
KILLS = 4
LIMIT_S = 90.0
"""No part begins later than this."""

_ATTRIBUTES = {"GPU-direct RDMA": 116, "flush options": 117, "writes ordering": 118}


def make(name: str, device: str) -> gpuring.Ring:
    shape, meta = (NBYTES // 4,), [("n", "i8")]
    return gpuring.create(name, slots=SLOTS, shape=shape, dtype="u4", meta=meta, device=device)


def join(name: str, device: str) -> gpuring.Ring:
    where = None if device == "host" else device
    return gpuring.attach(name, timeout=PATIENCE_S, device=where)


@contextlib.contextmanager
def on(device: str) -> Iterator[Any]:
    """NumPy, or CuPy with the GPU current."""
    if device == "host":
        yield np
        return
    cupy = load_cupy()
    with cupy.cuda.Device(int(device.partition(":")[2] or 0)):
        yield cupy


class Content:
    """Frames whose every word follows from their number."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._ramp = xp.arange(NBYTES // 4, dtype="u4") * 2654435761
        self._wrong = xp.zeros((), "i8")

    def fill(self, frame: Any, n: int) -> None:
        self._xp.add(self._ramp, self._xp.uint32(n), out=frame)

    def check(self, frame: Any, n: int) -> None:
        self._wrong += self._xp.count_nonzero(frame != self._ramp + self._xp.uint32(n))

    @property
    def wrong(self) -> int:
        """How many words were wrong so far."""
        return int(self._wrong)


# ---- floors --------------------------------------------------------------------------------------


def copy(_: Pipe, near: str, far: str, seconds: float) -> dict[str, float]:
    """cudaMemcpyPeerAsync from one GPU to another one, or to itself; memcpy on the host."""
    with on(near) as xp:
        source = xp.zeros(NBYTES, "u1")
    with on(far) as xp:
        target = xp.zeros(NBYTES, "u1")
        if far == "host":
            return _rate(lambda: np.copyto(target, source), lambda: None, seconds)
        runtime, stream = xp.cuda.runtime, xp.cuda.Stream(non_blocking=True)
        args = target.data.ptr, target.device.id, source.data.ptr, source.device.id, NBYTES
        once = lambda: runtime.memcpyPeerAsync(*args, stream.ptr)  # noqa: E731
        return _rate(once, stream.synchronize, seconds)


def _rate(once: Callable[[], Any], finish: Callable[[], Any], seconds: float) -> dict[str, float]:
    for _ in range(10):
        once()
    finish()
    begun, n = time.perf_counter(), 0
    while (took := time.perf_counter() - begun) < seconds:
        for _ in range(10):
            once()
        finish()
        n += 10
    return {"GB/s": n * NBYTES / took / 1e9}


def hears(pipe: Pipe) -> dict[str, float]:
    buffer = memoryview(bytearray(NBYTES))
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            begun, total = time.perf_counter(), 0
            while n := connection.recv_into(buffer):
                total += n
            return {"GB/s": total / (time.perf_counter() - begun) / 1e9}


def says(_: Pipe, port: int, seconds: float) -> None:
    frame, end = bytes(NBYTES), time.perf_counter() + seconds
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while time.perf_counter() < end:
            connection.sendall(frame)


# ---- the engine alone ----------------------------------------------------------------------------


def far_end(pipe: Pipe, name: str, device: str, imported: bool) -> dict[str, Any]:
    """Receives into a ring of its own, or into one that another process has made."""
    with on(device) as xp, (join if imported else make)(name, device) as ring:
        slab, content = slab_of(ring, writable=True), Content(xp)
        receiver = nixl.receiver(slab)
        with Listener(family="AF_UNIX") as listener, contextlib.closing(receiver):
            pipe.send((listener.address, receiver.open(), nixl._can_be_exported(slab)))
            with listener.accept() as connection:
                while _takes(connection, receiver):
                    receiver.poll()
                for index in range(SLOTS):
                    content.check(_words(slab, xp, index), index)
        return {"words wrong": content.wrong}


def _takes(connection: Any, receiver: Any) -> bool:
    """Gives the receiver what the near end says.  Returns whether it is still there."""
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
    return (np.frombuffer(part, "u1") if xp is np else part).view("u4")


class _Channel:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def data(self, to_seq: int, begin: int, part: Any, *, track: bool = False) -> Any:
        self._connection.send(("data", to_seq))


def near_end(
    _: Pipe, name: str, device: str, address: str, offer: bytes, seconds: float
) -> dict[str, float]:
    """Sends slots of a ring that another process has made, several at once."""
    with on(device) as xp, join(name, device) as ring, Client(address) as connection:
        slab, content = slab_of(ring, writable=True), Content(xp)
        for index in range(SLOTS):
            content.fill(_words(slab, xp, index), index)
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
            n = done - first
    return {"GB/s": n * NBYTES / took / 1e9, "µs a frame": 1e6 * took / max(n, 1)}


def engine(crew: Crew, near: str, far: str, imported: bool, seconds: float) -> dict[str, Any]:
    """NIXL from an imported slab into the far process's own, or into an imported one."""
    name = ring_name()
    with contextlib.ExitStack() as stack:
        stack.enter_context(make(f"{name}.a", near))
        if imported:
            stack.enter_context(make(f"{name}.b", far))
        part = crew.start(far_end, f"{name}.b", far, imported, patience_s=PATIENCE_S)
        address, offer, exports = stack.enter_context(part).receive()
        told = f"{name}.a", near, address, offer, seconds
        figures: dict[str, Any] = crew.call(near_end, *told, patience_s=PATIENCE_S)
        return {**figures, **part.result(), "far memory can be exported": exports}


# ---- whole bridges -------------------------------------------------------------------------------


def camera(pipe: Pipe, name: str, device: str) -> int:
    """Publishes frames until it is told to end.  Returns how many there were."""
    with on(device) as xp, join(name, device) as ring, ring.producer() as producer:
        content, n = Content(xp), 0
        pipe.send()
        while not pipe.told():
            with producer.claim(PATIENCE_S) as slot:
                content.fill(slot.array, n)
                slot.meta["n"] = n
            n += 1
        pipe.receive()
        return n


def watch(pipe: Pipe, name: str, device: str) -> dict[str, Any]:
    """Checks every word of every frame, and that each comes once and in order."""
    n = out_of_order = 0
    total: int | None = None
    begun = last = 0.0
    with on(device) as xp, join(name, device) as ring, ring.consumer(start="oldest") as frames:
        content = Content(xp)
        pipe.send()
        while total is None or (n < total and time.perf_counter() < last + PATIENCE_S):
            if total is None and pipe.told():
                total, last = pipe.receive(), time.perf_counter()
            try:
                slot = frames.acquire(0.2)
            except (gpuring.RingTimeout, gpuring.PeerLost):
                continue
            except gpuring.EndOfStream:  # until another producer comes
                time.sleep(0.01)
                continue
            with slot:
                last = time.perf_counter()
                begun = begun or last
                out_of_order += int(slot.meta["n"]) != n
                content.check(slot.array, int(slot.meta["n"]))
                n += 1
        rate = (n - 1) * NBYTES / (last - begun) / 1e9 if n > 1 else 0.0
    return {
        "GB/s": rate, "frames": n, "frames missing": total - n, "out of order": out_of_order,
        "words wrong": content.wrong,
    }  # fmt: skip


def carried(
    crew: Crew, near: str, far: str, engine: str, seconds: float, kills: int = 0
) -> dict[str, Any]:
    """Ring → bridge → ring, with the worker of each side killed in turn."""
    name = ring_name()
    there, here = f"{name}.a", f"{name}.b"
    with contextlib.ExitStack() as stack:
        stack.enter_context(make(there, near))
        where = None if near == "host" else near
        out = stack.enter_context(bridge.export(there, listen="127.0.0.1:0", device=where))
        _until(lambda: out.address)
        into = stack.enter_context(
            bridge.import_(f"{out.address}/{there}", name=here, device=far, engine=engine)  # type: ignore[arg-type]
        )
        _until(lambda: _link(into).connected)
        watching = stack.enter_context(crew.start(watch, here, far, patience_s=4 * PATIENCE_S))
        watching.receive()
        filming = stack.enter_context(crew.start(camera, there, near, patience_s=2 * PATIENCE_S))
        filming.receive()
        time.sleep(seconds)
        back = [_killed((out, into)[number % 2], into) for number in range(kills)]
        filming.send()
        watching.send(filming.result())
        found: dict[str, Any] = watching.result()
        found["engine"] = _link(into).engine
        return found | ({"s until frames came again": back} if kills else {})


def _killed(victim: Any, into: Any) -> float:
    """Kills a worker with transfers in flight.  Returns the seconds until frames come again."""
    frames, before = _link(into).frames, (into.pid, _link(into).sessions)
    _until(lambda: _link(into).frames > frames)
    begun, killed = time.perf_counter(), victim.pid
    os.kill(killed, signal.SIGKILL)
    _until(lambda: victim.pid not in (0, killed))
    _until(lambda: (into.pid, _link(into).sessions) != before and _link(into).connected)
    frames = _link(into).frames
    _until(lambda: _link(into).frames > frames)
    return round(time.perf_counter() - begun, 2)


def _link(into: Any) -> bridge.LinkStats:
    """What the importer says.  A worker that is being started says nothing yet."""
    with contextlib.suppress(gpuring.RingError):
        links: tuple[bridge.LinkStats, ...] = into.stats().links
        if links:
            return links[0]
    return _NO_LINK


_NO_LINK = bridge.LinkStats("", "", False, "", 0, 0, 0, 0, 0, 0, "")


def _until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {PATIENCE_S:g} s")
        time.sleep(0.005)


# ---- the whole -----------------------------------------------------------------------------------


def facts(_: Pipe, gpus: int) -> dict[str, Any]:
    found: dict[str, Any] = {"nixl": nixl.facts()}
    with contextlib.suppress(Exception):
        found["nixl package"] = nixl_agent.package().__name__
    for gpu in range(gpus):
        with on(f"cuda:{gpu}") as cupy:
            cupy.cuda.runtime.free(0)
            known: dict[str, Any] = {
                name: Driver().attribute(n, gpu) for name, n in _ATTRIBUTES.items()
            }
            can = cupy.cuda.runtime.deviceCanAccessPeer
            known["reaches"] = [other for other in range(gpus) if other != gpu and can(gpu, other)]
            found[f"GPU {gpu}"] = known
    return found


def gpus_here(_: Pipe) -> int:
    return int(load_cupy().cuda.runtime.getDeviceCount()) if available()[0] else 0


def parts(crew: Crew, places: list[str], seconds: float) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names of parts, the most wanted ones first, and what measures them."""
    pairs = [(places[0], places[0])]
    if len(places) > 1:
        pairs.insert(0, (places[0], places[1]))
    yield "raw sockets, host memory", partial(_sockets, crew, seconds)
    for near, far in pairs:
        to = f"{near} → {far}"
        yield f"copy, {to}", partial(crew.call, copy, near, far, seconds / 4)
        for which, imported in (("its own", False), ("imported", True)):
            measure = partial(engine, crew, near, far, imported, seconds)
            yield f"nixl alone, {to}, far memory {which}", measure
    near, far = pairs[0]
    for name in ("zmq", "auto"):
        yield f"bridge, {near} → {far}, {name}", partial(carried, crew, near, far, name, seconds)
    for name in ("zmq", "auto"):
        measure = partial(carried, crew, near, far, name, seconds, KILLS)
        yield f"kills, {near} → {far}, {name}", measure
    for near, far in pairs[1:]:
        yield f"bridge, {near} → {far}, auto", partial(carried, crew, near, far, "auto", seconds)


def _sockets(crew: Crew, seconds: float) -> Any:
    with crew.start(hears, patience_s=PATIENCE_S) as hearing:
        crew.call(says, hearing.receive(), seconds, patience_s=PATIENCE_S)
        return hearing.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes")
    parser.add_argument("--host", action="store_true", help="host memory instead of GPUs")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only parts with this in their name"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a part measures")
    args = parser.parse_args()
    begun = time.perf_counter()
    found: dict[str, Any] = {}
    with Crew() as crew:
        gpus = 0 if args.host else crew.call(gpus_here)
        places = [f"cuda:{gpu}" for gpu in range(min(gpus, 2))] or ["host"]
        found["facts"] = crew.call(facts, gpus)
        for name, measure in parts(crew, places, args.seconds):
            if args.only not in name:
                continue
            late = time.perf_counter() - begun > LIMIT_S
            try:
                found[name] = {"skipped": "no time is left"} if late else measure()
            except Exception as error:
                found[name] = {"failed": f"{type(error).__name__}: {error}"}
                remove_rings()
            print(f"{time.perf_counter() - begun:5.1f} s  {name}: {found[name]}", flush=True)
            if args.out is not None:  # what there is, in case that somebody ends the run
                args.out.write_text(
                    json.dumps({"machine": machine_card()} | found, indent=1) + "\n"
                )
    failed = [name for name, figures in found.items() if "failed" in figures]
    wrong = [n for n, f in found.items() if any(f.get(k) for k in _FAULTS)]
    print(f"{len(failed)} parts failed: {failed}" if failed else "no part failed")
    print(f"wrong frames in: {wrong}" if wrong else "every frame was right")
    return 1 if wrong else 0


_FAULTS = ("words wrong", "out of order", "frames missing")


if __name__ == "__main__":
    raise SystemExit(main())
