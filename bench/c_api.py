"""What a hand-over of a frame costs the producer and the consumer in C, in nanoseconds.

    python -m bench.c_api
    python -m bench.c_api --gpu

c_api.c says what it compares.  Each way has its median and its 99th percentile, and the ratio of
its median to the core's.  With `--gpu` the ring is on a GPU, and c_api_gpu.c says what is measured.
Beside it stand Python, which does the same, and the floor: a ring without gpuring (floor.cu), whose
figure is of a burst of as many frames.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

import gpuring
from bench import floor, options
from gpuring.cli.measure.settings import ring_name

QUANTILES = ("50", "99")
PATIENCE_S = 200.0
LAP, ROUNDS, WARM_UP = 8, 2000, 200
Way = tuple[str, list[float]]


def build(folder: Path, source: str = "c_api.c") -> Path:
    """Compiles a program with the whole library.  Returns its path."""
    native = Path(gpuring.__file__).parent / "native"
    rooms = ("core", "host", "device", "memory", "api")
    sources = [each for room in rooms for each in native.glob(f"{room}/*.c")]
    program = folder / Path(source).stem
    command = ["cc", "-std=gnu11", "-O2", "-pthread", f"-I{native}", "-o", str(program)]
    command += [str(Path(__file__).with_name(source)), *map(str, sorted(sources)), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    return program


def ring_for(device: str, sync: Literal["auto", "event", "timeline"] = "auto") -> gpuring.Ring:
    return gpuring.create(
        ring_name(), slots=LAP, shape=64, dtype="u1", meta=[("pts", "i8")], device=device, sync=sync
    )


def found_by(program: Path, ring: gpuring.Ring) -> dict[str, Any]:
    done = subprocess.run(
        [program, ring.name, *QUANTILES], check=True, capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    return {way: ns for way, ns in json.loads(done.stdout).items() if way != "n"}


def of_sides(found: dict[str, dict[str, list[float]]]) -> Iterator[Way]:
    for way, sides in found.items():
        for side, ns in sides.items():
            yield f"{way}, {side}", ns


def measure(program: Path) -> Iterator[Way]:
    """The quantiles of each way and side on a host ring."""
    with ring_for("host") as ring:
        yield from of_sides(found_by(program, ring))


def by_python(ring: gpuring.Ring) -> Iterator[Way]:
    """Does in Python what c_api_gpu.c does."""
    from gpuring.memory import gpus
    from gpuring.native.gpu import Stream

    gpu = gpus.gpu(0)
    streams = Stream(gpu), Stream(gpu)  # kept, because streams end with their objects
    writes, reads = (stream.handle for stream in streams)
    ns = np.empty((2, ROUNDS))
    with ring.producer() as producer, ring.consumer() as consumer:
        for k in range(-WARM_UP, ROUNDS):
            begun = time.perf_counter_ns()
            for _ in range(LAP):
                producer.claim(0, stream=writes).publish()
            written = time.perf_counter_ns()
            for _ in range(LAP):
                consumer.acquire(0, stream=reads).release()
            done = time.perf_counter_ns()
            if k >= 0:
                ns[:, k] = (written - begun) / LAP, (done - written) / LAP
            gpu.finish()
    for side, each in zip(("producer", "consumer"), ns, strict=True):
        yield f"Python, {side}", [float(np.percentile(each, float(q))) for q in QUANTILES]


def by_floor(sync: str) -> Iterator[Way]:
    nvcc = floor.find_nvcc(os.environ)
    if nvcc is None:
        raise floor.FloorFailed(floor.NO_NVCC)
    of_burst = {"kernel": 0, "frames": 8000, "warmup": 400, "slots": LAP}
    asked: floor.Options = {"what": "burst", "sync": sync, **of_burst}
    for line in floor.measure(floor.build(nvcc), asked, os.environ):
        for side in ("producer", "consumer"):
            sample = line[f"{side}_ns"]
            yield f"floor, {side}", [float(np.percentile(sample, float(q))) for q in QUANTILES]


def measure_gpu(program: Path, sync: Literal["event", "timeline"]) -> Iterator[Way]:
    """The quantiles of each way and side on a GPU, for one synchroniser."""
    with ring_for("cuda", sync=sync) as ring:
        yield from of_sides(found_by(program, ring))
    with ring_for("cuda", sync=sync) as ring:
        yield from by_python(ring)


def main() -> None:
    parser = options.parser("python -m bench.c_api", __doc__)
    parser.add_argument("--gpu", action="store_true", help="on a GPU, with Python and the floor")
    on_gpu = parser.parse_args().gpu
    with tempfile.TemporaryDirectory() as folder:
        if not on_gpu:
            found = dict(measure(build(Path(folder))))
            for way, (median, late) in found.items():
                floor_ns = found[f"core, {way.split(', ')[1]}"][0]
                print(f"{way:<20}{median:8.1f} ns{late:8.1f} ns{median / floor_ns:7.2f} x")
            return
        program = build(Path(folder), "c_api_gpu.c")
        syncs: tuple[Literal["timeline", "event"], ...] = ("timeline", "event")
        for sync in syncs:
            print(sync)
            for way, (median, late) in measure_gpu(program, sync):
                print(f"  {way:<20}{median:9.1f} ns{late:10.1f} ns", flush=True)
            try:
                for way, (median, late) in by_floor(sync):
                    print(f"  {way:<20}{median:9.1f} ns{late:10.1f} ns", flush=True)
            except floor.FloorFailed as failure:
                print(f"  no floor: {failure}")


if __name__ == "__main__":
    options.run(main)
