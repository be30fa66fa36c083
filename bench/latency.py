"""Latencies of all kinds of rings, on an idle GPU and on one that a third process fills.

busy=True: a third process keeps every multiprocessor filled with kernels of 200 µs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

from gpuring.cli.bench import latency
from gpuring.cli.measure.attempt import Wrong
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.figures import Figure
from gpuring.cli.measure.kernels import cupy_tools
from gpuring.cli.measure.settings import Settings

BUSY_NS = 200_000


def run(settings: Settings, crew: Crew) -> Iterator[Figure]:
    for place in settings.places:
        for kernel in (True,) if place.on_gpu else (False, True):
            yield from latency.run(settings, crew, place, kernel=kernel)
        if place.on_gpu and (place.gate == "stream" or not settings.quick):
            beside = partial(third_process, crew)
            yield from latency.run(
                settings, crew, place, kernel=True, names=("round trip",), busy=True, beside=beside
            )


@contextlib.contextmanager
def third_process(crew: Crew) -> Iterator[None]:
    """Raises Wrong if it did not get the GPU."""
    with crew.start(occupy) as part:
        part.receive()
        yield
        part.send("stop")
        launched, took_s = part.result()
    if launched * BUSY_NS / 1e9 < 0.01 * took_s:
        raise Wrong("the third process did not get the GPU at all")


def occupy(pipe: Pipe) -> tuple[int, float]:
    """Keeps the GPU busy until it is told to end, with at most two kernels in flight.  Sends how
    many there were, and for how long."""
    tools = cupy_tools()
    runtime = tools.cupy.cuda.runtime
    device = tools.cupy.cuda.Device()
    blocks = 2 * int(device.attributes["MultiProcessorCount"])  # fill it with 1024 threads each
    kernel = tools.kernel("busy", "driver", BUSY_NS)
    done = [runtime.eventCreateWithFlags(runtime.eventDisableTiming) for _ in range(2)]
    try:
        kernel.launch_grid(blocks, 1024)
        tools.stream.synchronize()
        pipe.send("busy")
        start, n = time.monotonic(), 0
        while not pipe.told():
            if n >= 2:
                runtime.eventSynchronize(done[n % 2])
            kernel.launch_grid(blocks, 1024)
            runtime.eventRecord(done[n % 2], tools.stream.ptr)
            n += 1
        pipe.receive()
        tools.stream.synchronize()
        return n, time.monotonic() - start
    finally:
        for event in done:
            runtime.eventDestroy(event)
