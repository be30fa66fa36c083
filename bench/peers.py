"""Frames per second between two processes in C++, between two in Python, and of the floor.

    python -m bench.peers [--rounds 2] [--seconds 0.6] [--mps off|on|both] [--json FILE] [--host]

Is it Python that costs frames where hosts are the limit?  Both sides launch one small kernel for
each frame: C++ by nvcc's `<<<>>>` (peers.cu), Python by cuda-bindings, as `python -m bench` does.
The floor is a ring without gpuring (floor.cu).  They take turns in each round.

The first third of a run is left out.  A run with a wrong word, or with a frame that was not read,
has no result.  It takes two minutes.  --host tries the processes in Python over host memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gpuring
from bench import floor, mps, options
from gpuring import config
from gpuring.cli.measure import stored
from gpuring.cli.measure.figures import VERIFICATION_FAILED, Distribution, Figure
from gpuring.cli.measure.kernels import SOURCE as KERNELS
from gpuring.cli.measure.patterns import pattern_for
from gpuring.cli.measure.settings import FRAME_NBYTES, SLOTS, ring_name
from gpuring.memory.cuda import device_for

GROUP = "peers"
STRIDE = 16
"""Frames between two looks at the clock."""
DEADLINE_S = 60.0
SYNCS = ("timeline", "event")
IN_PYTHON = (sys.executable, "-m", "bench.peers", "--as")

Command = tuple[str, ...]
"""Of a program that takes the roles of peers.cu."""


class Failed(Exception):
    """A run has no result.  The text says why."""


# ---- the processes -------------------------------------------------------------------------------


def produce(name: str, seconds: float) -> None:
    with gpuring.attach(name, timeout=30) as ring, ring.producer() as producer:
        pattern = pattern_for(ring)
        clock, claim, stamp = time.monotonic_ns, producer.claim, pattern.stamp
        print("joined", flush=True)
        sys.stdin.readline()
        marks = [clock()]
        while marks[-1] - marks[0] < seconds * 1e9:
            for _ in range(STRIDE):
                slot = claim()
                stamp(slot)
                slot.publish()
            marks.append(clock())
        pattern.finish()
    print(json.dumps(marks))


def consume(name: str, _: float) -> None:
    with gpuring.attach(name, timeout=30) as ring, ring.consumer() as consumer:
        pattern, frames = pattern_for(ring), 0
        acquire, check = consumer.acquire, pattern.check
        print("joined", flush=True)
        with contextlib.suppress(gpuring.EndOfStream):
            while True:
                slot = acquire()
                check(slot)
                slot.release()
                frames += 1
        print(json.dumps({"frames": frames, "wrong": pattern.wrong()}))


def keep(name: str, _: float) -> None:
    """Creates the ring, and keeps it until the input ends.  `name` has the synchroniser behind a
    colon."""
    name, sync = name.rsplit(":", 1)
    place: dict[str, Any] = {"device": "host"} if sync == "host" else {"sync": sync}
    with gpuring.create(name, slots=SLOTS, shape=FRAME_NBYTES // 8, dtype="u8", **place):
        print("joined", flush=True)
        sys.stdin.readline()


ROLES: dict[str, Callable[[str, float], None]] = {
    "produce": produce,
    "consume": consume,
    "keep": keep,
}


# ---- one run -------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(command: Command, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Starts a process, and waits until it has joined.  It is killed after DEADLINE_S."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)
    ) as process:
        deadline = threading.Timer(DEADLINE_S, process.kill)
        deadline.start()
        try:
            yield process
        finally:
            deadline.cancel()
            process.kill()


def told(process: subprocess.Popen[str]) -> Any:
    """The next line of a process, decoded from JSON."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith("\n"):
        raise Failed(f"{process.args!r} ended, or said nothing for {DEADLINE_S:g} s")
    return None if line == "joined\n" else json.loads(line)


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def rate(program: Command, sync: str, seconds: float, environment: Mapping[str, str]) -> float:
    """Frames per second of two such processes.  Raises Failed."""
    name = ring_name()

    def role(which: str, of: Command = program, ring: str = name) -> Any:
        return started((*of, which, ring, str(seconds)), environment)

    with role("keep", IN_PYTHON, f"{name}:{sync}") as keeper:
        told(keeper)
        with role("consume") as consumer, role("produce") as producer:
            told(consumer)
            told(producer)
            go(producer)
            marks, books = told(producer), told(consumer)
        go(keeper)
        keeper.wait()
    published = STRIDE * (len(marks) - 1)
    if books["wrong"] or books["frames"] != published:
        raise Failed(f"{VERIFICATION_FAILED}: {published} frames published, found {books}")
    marks = marks[len(marks) // 3 :]
    return float(STRIDE * (len(marks) - 1) / (marks[-1] - marks[0]) * 1e9)


def rate_of_floor(sync: str, seconds: float, environment: Mapping[str, str]) -> float:
    nvcc = floor.find_nvcc(environment)
    if nvcc is None:
        raise Failed(floor.NO_NVCC)
    asked: floor.Options = {
        "what": "throughput", "sync": sync, "slots": SLOTS, "seconds": seconds, "warmup": 1500
    }  # fmt: skip
    try:
        (found,) = floor.measure(floor.build(nvcc), asked, environment)
    except floor.FloorFailed as failure:
        raise Failed(str(failure)) from None
    if found["wrong"]:
        raise Failed(f"{VERIFICATION_FAILED}: {found['wrong']} words of the floor")
    rates = found["frames_per_s"]
    return float(len(rates) / sum(1 / each for each in rates))


def build(folder: Path) -> Command:
    """Compiles the program of peers.cu.  Raises Failed."""
    nvcc, source = floor.find_nvcc(os.environ), Path(__file__).with_name("peers.cu")
    if nvcc is None:
        raise Failed(floor.NO_NVCC)
    program = folder / "peers"
    command = [str(nvcc), "-O2", "-std=c++17", "-arch=native", f"-I{KERNELS.parent}"]
    command += [str(source), "-o", str(program), *config.nvcc()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        raise Failed(f"{nvcc} could not compile peers.cu: {done.stderr[-300:]}")
    return (str(program),)


# ---- the run -------------------------------------------------------------------------------------


def figures(rounds: int, seconds: float, on: tuple[bool, ...], host: bool) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            in_cpp = None if host else build(Path(folder))
            for with_mps in on:
                with mps.environment(with_mps) as environment:
                    for sync in ("host",) if host else SYNCS:
                        ways = {"C++": in_cpp, "Python": IN_PYTHON}
                        found = turns(ways, sync, rounds, seconds, environment)
                        setting = {} if host else {"mps": with_mps}
                        yield from compared(found, {"sync": sync, **setting})
        except (Failed, mps.NoMps) as failure:
            yield Figure(GROUP, "frames/s", "C++", "frames/s", skipped=str(failure))


def turns(
    ways: Mapping[str, Command | None], sync: str, rounds: int, seconds: float, environment: Any
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for way, program in ways.items():
            if program is not None:
                value = rate(program, sync, seconds, environment)
                found.setdefault(way, []).append(value)
        if sync != "host":
            found.setdefault("floor", []).append(rate_of_floor(sync, seconds, environment))
    return found


def compared(found: Mapping[str, list[float]], setting: dict[str, Any]) -> Iterator[Figure]:
    setting |= {"slots": SLOTS, "nbytes": FRAME_NBYTES, "kernel": True}
    verified = "4 KiB of every frame, and the count of frames"
    for way, rates in found.items():
        values = Distribution.of(rates)
        yield Figure(GROUP, "frames/s", way, "frames/s", setting, values, verified)
        if way != "floor" and "floor" in found:
            ratios = [a / b for a, b in zip(rates, found["floor"], strict=True)]
            values = Distribution.of(ratios)
            yield Figure(GROUP, "frames/s beside the floor", way, "×", setting, values, verified)


def main() -> int:
    parser = options.parser("python -m bench.peers", __doc__)
    options.add_rounds(parser, 2)
    options.add_seconds(parser, 0.6)
    options.add_mps(parser, None, "MPS (default: as it is, and on as well where it is installed)")
    options.add_json(parser)
    parser.add_argument("--host", action="store_true", help="use host memory, without a GPU")
    parser.add_argument("--as", nargs=3, dest="role", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        which, name, seconds = args.role
        ROLES[which](name, float(seconds))
        return 0
    if not args.host:
        device_for(0)  # raises DeviceError
    on = (False,) if args.host else mps.modes(args.mps)
    run = figures(args.rounds, args.seconds, on, args.host)
    return stored.run(run, sys.argv[1:], args.json).status


if __name__ == "__main__":
    options.run(main)
