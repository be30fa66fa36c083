"""A reader on another GPU than its ring, compared with a plain copy between the GPUs, in one run.

    python -m bench.two_gpus [--rounds 3] [--json FILE] [--host]

A writer on one GPU stamps whole frames, and a reader on the other GPU takes each one over the link.
It copies the frame to its own GPU (`copy`, by slot.copy_to, and checks the first 4 KiB) or reads it
where it is (`kernel`, which checks every word).  The plain figures come from one process without a
ring: memcpyPeerAsync and the same kernel over eight buffers of the other GPU.  All kinds of memory
take turns in each round, in both directions.

A run with a wrong word has no result.  It takes about a minute.  --host tries the processes over
host memory, without a GPU.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

import gpuring
from bench import options
from gpuring.cli.measure import stored
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.figures import Distribution, Figure
from gpuring.cli.measure.kernels import cupy_tools
from gpuring.cli.measure.patterns import pattern_for
from gpuring.cli.measure.settings import SLOTS, remove_rings, ring_name
from gpuring.memory import kinds
from gpuring.memory.cuda import device_for
from gpuring.memory.frameworks import load_cupy

GROUP = "two GPUs"
FRAMES = {64 << 10: 8000, 6 << 20: 4000, 64 << 20: 800}
"""How many frames of each size, in bytes, one figure is made of."""
FRAMES_ON_HOST = {64 << 10: 40, 1 << 20: 20}
HOWS = ("copy", "kernel")
PATIENCE_S = 20.0
_PEER_ALREADY_ENABLED = 704  # cudaError_t
HOST = -1
"""The number of no GPU."""

What = tuple[str, int, str, str]
"""The direction, the bytes of a frame, the kind of memory, and what was done with each frame."""


def use(device: int) -> None:
    """Makes a GPU this process's current one."""
    if device != HOST:
        load_cupy().cuda.Device(device).use()


# ---- over a ring ---------------------------------------------------------------------------------


def write(pipe: Pipe, name: str, kind: str, device: int, nbytes: int, frames: int) -> None:
    """Creates the ring on its GPU, and publishes the frames once for each way to read them."""
    use(device)
    placed = "host" if device == HOST else f"cuda:{device}"
    spec: Any = {"slots": SLOTS, "shape": nbytes // 8, "dtype": "u8", "memory": kind}
    with (
        gpuring.create(name, **spec, device=placed) as ring,
        ring.producer() as producer,
    ):
        pattern = pattern_for(ring, "cupy")
        pipe.send()
        for _ in HOWS:
            pipe.receive()  # the reader waits for the first one
            for _ in range(frames):
                with producer.claim(PATIENCE_S) as slot:
                    pattern.stamp_all(slot)
            pattern.finish()
        pipe.receive()  # the reader has left


def read(pipe: Pipe, name: str, device: int, nbytes: int, frames: int) -> dict[str, float]:
    """Takes the frames on its own GPU.  Returns how many it took in a second, for each way to
    read."""
    use(device)
    under: Any = {} if device == HOST else {"device": device}
    figures = {}
    with gpuring.attach(name, **under) as ring, ring.consumer() as consumer:
        pattern = pattern_for(ring, "cupy")
        own = (
            np.empty(nbytes // 8, "u8") if device == HOST else load_cupy().empty(nbytes // 8, "u8")
        )
        for how in HOWS:
            pipe.send()
            begun = 0.0
            for _ in range(frames):
                with consumer.acquire(PATIENCE_S) as slot:
                    begun = begun or time.perf_counter()
                    if how == "copy":
                        slot.copy_to(own)
                        pattern.check(SimpleNamespace(index="own", array=own, seq=slot.seq))
                    else:
                        pattern.check_all(slot)
            pattern.finish()
            figures[how] = (frames - 1) / (time.perf_counter() - begun)
        if pattern.wrong():
            raise RuntimeError(f"{pattern.wrong()} words were wrong")
    return figures


def over_ring(
    crews: dict[int, Crew], kind: str, owner: int, reader: int, nbytes: int, frames: int
) -> dict[str, float]:
    """Measures over a ring.  Each GPU has a crew, because a process keeps the stream and the
    kernels of its first GPU."""
    name, job = ring_name(), (nbytes, frames)
    with crews[owner].start(write, name, kind, owner, *job) as writer:
        writer.receive()
        with crews[reader].start(read, name, reader, *job) as other:
            for _ in HOWS:
                other.receive()
                writer.send()
            figures: dict[str, float] = other.result()
        writer.send()
        writer.result()
    return figures


# ---- without a ring ------------------------------------------------------------------------------


def per_second(stream: Any, frames: int, enqueue: Callable[[int], None]) -> float:
    stream.synchronize()
    begun = time.perf_counter()
    for k in range(frames):
        enqueue(k % SLOTS)
    stream.synchronize()
    return frames / (time.perf_counter() - begun)


def plain(_: Pipe, owner: int, reader: int, nbytes: int, frames: int) -> dict[str, float]:
    """Does what the reader does, with buffers of the other GPU that are mapped already."""
    use(reader)
    tools = cupy_tools()
    cupy, runtime, words = tools.cupy, tools.cupy.cuda.runtime, nbytes // 8
    try:
        runtime.deviceEnablePeerAccess(owner)
    except runtime.CUDARuntimeError as error:
        if error.status != _PEER_ALREADY_ENABLED:
            raise
    own, wrong = cupy.empty(words, "u8"), cupy.zeros(1, "u8")
    stamp = tools.kernel("stamp", "cupy", 0, 0, 0)
    check = tools.kernel("check", "cupy", 0, 0, 0, wrong.data.ptr)
    with cupy.cuda.Device(owner):
        theirs = [cupy.empty(words, "u8") for _ in range(SLOTS)]
    for k, buffer in enumerate(theirs):  # over the link
        stamp.launch_over(buffer.data.ptr, words, k)

    def copy(k: int) -> None:
        source = theirs[k].data.ptr
        runtime.memcpyPeerAsync(own.data.ptr, reader, source, owner, nbytes, tools.stream.ptr)

    def kernel(k: int) -> None:
        check.launch_over(theirs[k].data.ptr, words, k)

    figures = {
        "copy": per_second(tools.stream, frames, copy),
        "kernel": per_second(tools.stream, frames, kernel),
    }
    check.launch_over(own.data.ptr, words, (frames - 1) % SLOTS)
    tools.stream.synchronize()
    if counted := int(wrong.get(stream=tools.stream)[0]):
        raise RuntimeError(f"{counted} words were wrong without a ring")
    return figures


# ---- the run -------------------------------------------------------------------------------------


def two_gpus() -> dict[str, str]:
    """The kinds of memory that the first two GPUs do not have, and why.  Ends the program without
    two GPUs that reach each other."""
    device_for(1)  # raises DeviceError
    runtime = load_cupy().cuda.runtime
    if not (runtime.deviceCanAccessPeer(0, 1) and runtime.deviceCanAccessPeer(1, 0)):
        raise SystemExit("GPU 0 and GPU 1 have no peer access to each other")
    skipped = {}
    for kind in kinds.ON_GPU:
        for device in (0, 1):
            able, reason = kinds.supported(kind, device)
            if not able:
                skipped[kind] = reason
    return skipped


def one_round(
    crews: dict[int, Crew], ways: list[tuple[int, int]], able: list[str], sizes: dict[int, int]
) -> list[tuple[What, float]]:
    """One round: what was measured, and how many frames it made in a second."""
    found = []
    for owner, reader in ways:
        for nbytes, frames in sizes.items():
            job = (nbytes, frames)
            runs = {kind: over_ring(crews, kind, owner, reader, *job) for kind in able}
            if owner != HOST:
                runs["none"] = crews[reader].call(plain, owner, reader, *job)
            found += [
                ((f"{owner} to {reader}", nbytes, memory, how), value)
                for memory, figures in runs.items()
                for how, value in figures.items()
            ]
    return found


def figures(rounds: int, host: bool) -> Iterator[Figure]:
    if host:
        able, ways, sizes = ["auto"], [(HOST, HOST)], FRAMES_ON_HOST
    else:
        skipped, ways, sizes = two_gpus(), [(0, 1), (1, 0)], FRAMES
        able = [kind for kind in kinds.ON_GPU if kind not in skipped]
        for kind, reason in skipped.items():
            yield Figure(GROUP, "all", kind, "", skipped=reason)
    rates: dict[What, list[float]] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(remove_rings)
        crews = {number: stack.enter_context(Crew()) for number in sorted({*sum(ways, ())})}
        for _ in range(rounds + 1):
            for what, value in one_round(crews, ways, able, sizes):
                rates.setdefault(what, []).append(value)
    for (way, nbytes, memory, how), values in sorted(rates.items()):
        kept = Distribution.of([nbytes * value / 1e9 for value in values[1:]])  # one warms up
        yield Figure(GROUP, how, memory, "GB/s", {"gpus": way, "nbytes": nbytes}, kept)


def main() -> int:
    parser = options.parser("python -m bench.two_gpus", __doc__)
    options.add_rounds(parser, 3)
    options.add_json(parser)
    parser.add_argument("--host", action="store_true", help="try it over host memory")
    args = parser.parse_args()
    return stored.run(figures(args.rounds, args.host), sys.argv[1:], args.json).status


if __name__ == "__main__":
    options.run(main)
