"""A camera without a GPU and a consumer that uploads, over a pinned ring, and plain copies.

    python -m bench.pinned [--rounds 5] [--json FILE] [--host]

The camera writes eight bytes at both ends of each frame, so that the figures are those of the
hand-over and the copy.  The consumer uploads each frame in stream order (slot.upload).  The plain
copies are `cudaMemcpyAsync` without a ring, from the same registered slots and from pageable
memory.  They take turns with the ring in each round.

* `rate`: frames follow each other, through up to eight slots.
* `latency`: from publish until the frame is on the GPU, with one frame under way.  Of a plain copy
  it is the time until the stream is idle.
* `attach`: the process registers all slots.

Before a clock runs, whole frames are compared.  A run with a wrong byte has no result.  It takes
about a minute.  --host tries the processes without a GPU, with copies of the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import gpuring
from bench import options
from gpuring.cli.measure import stored
from gpuring.cli.measure.crew import Crew, Pipe, RoleFailed
from gpuring.cli.measure.figures import VERIFICATION_FAILED, Distribution, Figure
from gpuring.cli.measure.settings import SLOTS, remove_rings, ring_name
from gpuring.memory.cuda import available
from gpuring.memory.frameworks import load_cupy
from gpuring.native import now_ns
from gpuring.ring import inner
from gpuring.slot_layout import Field

GROUP = "pinned"
SIZES = {"4 KiB": 4 << 10, "1080p NV12": 1920 * 1080 * 3 // 2, "64 MiB": 64 << 20}
FRAMES = {"4 KiB": 20_000, "1080p NV12": 2000, "64 MiB": 100}
"""How many make one figure of `rate`."""
TURNS = {"4 KiB": 2000, "1080p NV12": 500, "64 MiB": 40}
"""How many make one figure of `latency`."""
ON_HOST = 100
"""With --host there are so many times fewer."""
SLAB_NBYTES = 256 << 20
"""A ring has fewer than eight slots if they would be larger."""
PATIENCE_S = 20.0
WHOLE = 2
"""So many laps of whole frames are compared."""
BESIDE = ("same memory", "pageable")


def content(seq: int, nbytes: int) -> npt.NDArray[Any]:
    """The content of a whole frame."""
    block = np.random.default_rng(0).integers(0, 256, 4099, "u1")
    whole: npt.NDArray[Any] = np.resize(block, nbytes) ^ np.uint8(seq & 255)
    return whole


def ends(array: Any) -> tuple[Any, Any]:
    """The eight bytes at each end of a frame."""
    return array[:8], array[-8:]


# ---- where frames go -----------------------------------------------------------------------------


class Gpu:
    """The current GPU with a stream, and its copies."""

    device = "cuda"

    def __init__(self) -> None:
        self._cupy = load_cupy()
        self.stream = self._cupy.cuda.Stream(non_blocking=True)

    def empty(self, nbytes: int) -> Any:
        return self._cupy.empty(nbytes, "u1")

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def upload(self, slot: Any, out: Any) -> None:
        slot.upload(out)

    def copy(self, out: Any, source: int) -> None:
        """Enqueues a plain copy from host memory."""
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(
            out.data.ptr, source, out.nbytes, runtime.memcpyHostToDevice, self.stream.ptr
        )

    def wait(self) -> None:
        self.stream.synchronize()

    def on_host(self, array: Any) -> npt.NDArray[Any]:
        copy: npt.NDArray[Any] = array.get()
        return copy


class Cpu:
    """The same without a GPU."""

    device = None
    stream = None

    def empty(self, nbytes: int) -> Any:
        return np.empty(nbytes, "u1")

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def upload(self, slot: Any, out: Any) -> None:
        slot.copy_to(out)

    def copy(self, out: Any, source: int) -> None:
        ctypes.memmove(out.ctypes.data, source, out.nbytes)

    def wait(self) -> None:
        """Does nothing, because each copy is done at once."""

    def on_host(self, array: Any) -> npt.NDArray[Any]:
        return np.array(array)


# ---- the processes -------------------------------------------------------------------------------


def stamp(slot: gpuring.WriteSlot) -> None:
    for end in ends(slot.array):
        end.view("u8")[0] = slot.seq


def camera(pipe: Pipe, name: str, nbytes: int, slots: int) -> None:
    """Owns the ring.  It publishes as many frames as each order says, until one says 0.  The first
    frames are written whole."""
    with (
        gpuring.create(name, slots=slots, shape=nbytes, dtype="u1", memory="pinned") as ring,
        ring.producer() as producer,
    ):
        pipe.send()
        for _ in range(pipe.receive()):
            with producer.claim(PATIENCE_S) as slot:
                slot.array[...] = content(slot.seq, nbytes)
        while frames := pipe.receive():
            for _ in range(frames):
                with producer.claim(PATIENCE_S) as slot:
                    stamp(slot)


def consumer(
    pipe: Pipe, name: str, nbytes: int, frames: int, turns: int, rounds: int, on_gpu: bool
) -> dict[tuple[str, str], list[float]]:
    """Uploads frames, and copies without the ring.  Returns figures by what and by whom.  It sends
    how many frames it wants."""
    place: Any = Gpu() if on_gpu else Cpu()
    found: dict[tuple[str, str], list[float]] = {}

    def note(what: str, whose: str, values: Sequence[float]) -> None:
        found.setdefault((what, whose), []).extend(values)

    ready = np.zeros(64, "u1")
    place.copy(place.empty(64), ready.ctypes.data)  # makes the context, no cost of the ring
    place.wait()
    begun = time.perf_counter()
    with (
        gpuring.attach(name, device=place.device) as ring,
        ring.consumer() as reader,
    ):
        note("attach", "gpuring", [1e3 * (time.perf_counter() - begun)])
        if unregistered := [peer.unregistered for peer in ring.stats().peers if peer.unregistered]:
            raise RuntimeError(f"the slots are not registered: {unregistered[0]}")
        outs = [place.empty(nbytes) for _ in range(ring.slots)]
        whole = Field("bench", (nbytes,), np.dtype("u1"), 0)
        same = [
            place.address(inner.memory(ring).array(k, whole, whole.shape, writable=False))
            for k in range(ring.slots)
        ]
        own = np.zeros((ring.slots, nbytes), "u1")
        pageable = [int(own[k].ctypes.data) for k in range(ring.slots)]
        _verify(pipe, place, reader, outs)
        for kept in [False] + [True] * rounds:  # the first one warms up
            rates = {"gpuring": _rate_of_ring(pipe, place, reader, outs, frames)}
            for whose, sources in zip(BESIDE, (same, pageable), strict=True):
                rates[whose] = _rate_of_copies(place, outs, sources, frames)
            times = {"gpuring": _latency_of_ring(pipe, place, reader, outs[0], turns)}
            for whose, sources in zip(BESIDE, (same, pageable), strict=True):
                times[whose] = _latency_of_copies(place, outs[0], sources[0], turns)
            for whose in rates if kept else ():
                note("rate", whose, [rates[whose]])
                note("latency", whose, times[whose])
        pipe.send(0)
    return found


def _verify(pipe: Pipe, place: Any, reader: gpuring.Consumer, outs: list[Any]) -> None:
    frames = WHOLE * len(outs)
    pipe.send(frames)
    for _ in range(frames):
        with reader.acquire(PATIENCE_S, stream=place.stream) as slot:
            out = outs[slot.index]
            place.upload(slot, out)
        place.wait()
        _check((place.on_host(out) == content(slot.seq, len(out))).all())


def _check(right: Any) -> None:
    if not right:
        raise RuntimeError(f"{VERIFICATION_FAILED}: a frame arrived damaged")


def _rate_of_ring(
    pipe: Pipe, place: Any, reader: gpuring.Consumer, outs: list[Any], frames: int
) -> float:
    """GB/s from the first frame on."""
    last: dict[int, int] = {}
    begun = 0.0
    pipe.send(frames + 1)
    for _ in range(frames + 1):
        with reader.acquire(PATIENCE_S, stream=place.stream) as slot:
            place.upload(slot, outs[slot.index])
        last[slot.index] = slot.seq
        if not begun:
            place.wait()
            begun = time.perf_counter()
    place.wait()
    took = time.perf_counter() - begun
    for index, seq in last.items():
        for end in ends(place.on_host(outs[index])):
            _check(int(end.view("u8")[0]) == seq)
    return frames * len(outs[0]) / took / 1e9


def _rate_of_copies(place: Any, outs: list[Any], sources: list[int], frames: int) -> float:
    place.wait()
    begun = time.perf_counter()
    for k in range(frames):
        place.copy(outs[k % len(outs)], sources[k % len(outs)])
    place.wait()
    return frames * len(outs[0]) / (time.perf_counter() - begun) / 1e9


def _latency_of_ring(
    pipe: Pipe, place: Any, reader: gpuring.Consumer, out: Any, turns: int
) -> list[float]:
    """The microseconds of each frame.  The next frame is asked for when this one has come."""
    taken = []
    for _ in range(turns):
        pipe.send(1)
        with reader.acquire(PATIENCE_S, stream=place.stream) as slot:
            place.upload(slot, out)
            place.wait()
            taken.append((now_ns() - slot.time_ns) / 1e3)
    return taken


def _latency_of_copies(place: Any, out: Any, source: int, turns: int) -> list[float]:
    taken = []
    for _ in range(turns):
        begun = time.perf_counter()
        place.copy(out, source)
        place.wait()
        taken.append(1e6 * (time.perf_counter() - begun))
    return taken


# ---- the run -------------------------------------------------------------------------------------


def measure(crew: Crew, size: str, rounds: int, on_gpu: bool) -> dict[tuple[str, str], list[float]]:
    name, nbytes, less = ring_name(), SIZES[size], 1 if on_gpu else ON_HOST
    slots = min(SLOTS, SLAB_NBYTES // nbytes)
    counts = max(1, FRAMES[size] // less), max(1, TURNS[size] // less), rounds
    with crew.start(camera, name, nbytes, slots) as source:
        source.receive()
        with crew.start(consumer, name, nbytes, *counts, on_gpu) as sink:
            while wanted := sink.receive():
                source.send(wanted)
            found: dict[tuple[str, str], list[float]] = sink.result()
        source.send(0)
        source.result()
    return found


UNITS = {"rate": "GB/s", "latency": "µs", "attach": "ms"}


def figures(rounds: int, on_gpu: bool) -> Iterator[Figure]:
    able, reason = available() if on_gpu else (True, "")
    if not able:
        yield Figure(GROUP, "all", "gpuring", "", skipped=reason)
        return
    verified = f"{WHOLE} laps of whole frames"
    with Crew() as crew, contextlib.ExitStack() as stack:
        stack.callback(remove_rings)
        for size in SIZES:
            setting = {"size": size}
            try:
                found = measure(crew, size, rounds, on_gpu)
            except RoleFailed as error:
                yield Figure(GROUP, "all", "gpuring", "", setting, skipped=error.last_line)
                continue
            for (what, whose), values in found.items():
                kept = Distribution.of(values)
                yield Figure(GROUP, what, whose, UNITS[what], setting, kept, verified)
            for whose in BESIDE:
                pairs = zip(found["rate", "gpuring"], found["rate", whose], strict=True)
                ratios = Distribution.of([ring / copy for ring, copy in pairs])
                yield Figure(GROUP, "rate beside", whose, "×", setting, ratios, verified)


def main() -> int:
    parser = options.parser("python -m bench.pinned", __doc__)
    options.add_rounds(parser, 5)
    options.add_json(parser)
    parser.add_argument("--host", action="store_true", help="try it without a GPU")
    args = parser.parse_args()
    return stored.run(figures(args.rounds, not args.host), sys.argv[1:], args.json).status


if __name__ == "__main__":
    options.run(main)
