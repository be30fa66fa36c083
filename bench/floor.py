"""The baseline in C: figures of floor.cu, the leanest ring of two processes, on this machine.

It is compiled once a run by the nvcc found here.  Its settings are named as gpuring's own, so that
a figure and its baseline differ in `program` alone.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import VERIFICATION_FAILED, Distribution, Figure, Value
from gpuring.cli.measure.kernels import SOURCE as KERNELS

SOURCE = Path(__file__).with_name("floor.cu")
PROGRAM = "floor"

NO_NVCC = (
    "no nvcc on PATH, in $CUDA_HOME/bin or in /usr/local/cuda/bin: install the CUDA toolkit's "
    "compiler (with NVIDIA's apt repository: apt install cuda-nvcc-13-0) or set CUDA_HOME"
)
BUILD_S = 120.0
DEADLINE_S = 30
"""After this long the program's processes end themselves; GRACE_S later they are killed."""
GRACE_S = 10.0

Options = Mapping[str, str | int | float]
BOTH = {"sync": "event,timeline"}
GATES = {"gate": "stream,host"}


class FloorFailed(Exception):
    """The program could not be built, or did not run to its end.  The text says why."""


def run(settings: Any, crew: Crew) -> Iterator[Figure]:
    """Yields all figures that have a floor, or one that says why there are none.

    Reads `settings.mps`, `.quick`, `.environment` and `.device`; the processes are the program's
    own, so it needs nobody from the crew.
    """
    environment: Mapping[str, str] = getattr(settings, "environment", None) or os.environ
    common: dict[str, Value] = {"mps": bool(getattr(settings, "mps", False))}
    device = int(getattr(settings, "device", 0) or 0)
    nvcc = find_nvcc(environment)
    try:
        if nvcc is None:
            raise FloorFailed(NO_NVCC)
        program = build(nvcc)
    except FloorFailed as failure:
        yield Figure("throughput", "frames/s", PROGRAM, "frames/s", common, skipped=str(failure))
        return
    for options in plan(bool(getattr(settings, "quick", False))):
        try:
            for line in measure(program, {**options, "device": device}, environment):
                yield from figures_of(line, common)
        except FloorFailed as failure:
            group, name, unit = _HEADINGS[str(options["what"])]
            setting = {**common, **{key: options[key] for key in options if key != "what"}}
            yield Figure(group, name, PROGRAM, unit, setting, skipped=str(failure))


def plan(quick: bool) -> list[Options]:
    """The program's runs: as few as can be, since each begins with the making of CUDA contexts.

    A warm-up is long enough for the queues of the streams (about a thousand calls) to fill up:
    before that, the rate would be that of the hosts.
    """
    stream: Options = {
        "what": "throughput",
        **BOTH,
        "seconds": 0.1 if quick else 0.25,
        "warmup": 2500 if quick else 1500,
    }
    rounds: Options = {"frames": 400 if quick else 2000, "warmup": 50 if quick else 200}
    throughput: list[Options] = (
        [{**stream, "kernel": "0,1"}]
        if quick
        else [
            {**stream, "slots": "1,2,4,8,16,32,64"},
            {**stream, "kernel": 0, "warmup": 4000},
            {**stream, "consumers": 2},
            {**stream, "consumers": 4},
        ]
    )
    return [
        *throughput,
        {
            "what": "burst",
            **BOTH,
            "kernel": "0,1",
            "frames": 1600 if quick else 8000,
            "warmup": 400,
        },
        {"what": "roundtrip", **BOTH, **GATES, **rounds},
        {"what": "oneway", **BOTH, **GATES, **rounds},
        {"what": "wake", **rounds},
    ]


def find_nvcc(environment: Mapping[str, str]) -> Path | None:
    found = shutil.which("nvcc", path=environment.get("PATH", os.defpath))
    if found:
        return Path(found)
    homes = [environment.get("CUDA_HOME"), environment.get("CUDA_PATH"), "/usr/local/cuda"]
    for home in homes:
        if home and os.access(nvcc := Path(home, "bin", "nvcc"), os.X_OK):
            return nvcc
    return None


@functools.cache
def build(nvcc: Path) -> Path:
    """Compiles the program for the GPU of this machine.  Returns its path.  Raises FloorFailed."""
    directory = tempfile.TemporaryDirectory(prefix="gpuring-floor-")
    atexit.register(directory.cleanup)
    program = Path(directory.name, "floor")
    options = ["-O2", "-std=c++17", "-arch=native", f"-I{KERNELS.parent}"]
    command = [str(nvcc), *options, str(SOURCE), "-o", str(program)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FloorFailed(f"{nvcc} could not compile floor.cu: {error}") from error
    if done.returncode:
        raise FloorFailed(f"{nvcc} could not compile floor.cu: {_tail(done.stderr or done.stdout)}")
    return program


def measure(
    program: Path, options: Options, environment: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yields what one run of the program prints, line by line.  Raises FloorFailed after the
    complete lines."""
    command = [str(program), "--deadline", str(DEADLINE_S)]
    for key, value in options.items():
        command += [f"--{key}", str(value)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S + GRACE_S,
            env=dict(environment),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FloorFailed(f"{' '.join(command)}: {error}") from error
    for line in done.stdout.splitlines(keepends=True):
        if line.endswith("}\n"):
            yield json.loads(line)
    if done.returncode:
        raise FloorFailed(f"{' '.join(command)} ended with {done.returncode}: {_tail(done.stderr)}")


_HEADINGS = {
    "throughput": ("throughput", "frames/s", "frames/s"),
    "burst": ("transitions", "host time per frame", "µs"),
    "roundtrip": ("latency", "round trip", "µs"),
    "oneway": ("latency", "one-way", "µs"),
    "wake": ("latency", "wake-up", "µs"),
}


def figures_of(line: Mapping[str, Any], common: Mapping[str, Value]) -> Iterator[Figure]:
    """The figures of one measurement.  None of them has values if a single word was wrong."""
    group, name, unit = _HEADINGS[line["what"]]
    kernel = {"sync": line["sync"], "kernel": line["kernel"]}
    found: list[tuple[str, str, dict[str, Value], list[float]]]
    if line["what"] == "throughput":
        setting: dict[str, Value] = {
            **kernel,
            "gate": line["gate"],
            "slots": line["slots"],
            "nbytes": line["nbytes"],
            "consumers": line["consumers"],
            "lossless": True,
            "members": 1,
            "producers": 1,
        }
        found = [(name, unit, setting, line["frames_per_s"])]
    elif line["what"] == "burst":
        found = [
            (name, unit, {**kernel, "side": side}, [ns / 1e3 for ns in line[f"{side}_ns"]])
            for side in ("producer", "consumer")
        ]
    elif line["what"] == "wake":
        found = [(name, unit, {}, line["us"])]
    else:
        setting = {"sync": line["sync"], "gate": line["gate"], "busy": False}
        found = [(name, unit, setting, line["us"])]
    for each, its_unit, distinct, sample in found:
        figure = functools.partial(Figure, group, each, PROGRAM, its_unit, {**distinct, **common})
        if line["wrong"]:
            wrong = f"{line['wrong']} wrong words in {line['frames']} frames"
            yield figure(skipped=f"{VERIFICATION_FAILED}: {wrong}")
        elif not sample:
            yield figure(skipped="no samples")
        else:
            yield figure(values=Distribution.of(sample), verified=_verified(line))


def _verified(line: Mapping[str, Any]) -> str:
    if line["what"] == "wake":
        return "only a sleeper that the futex woke was counted"
    if not line["kernel"]:
        return "no kernels, so nothing to check: the same hand-over with kernels was checked"
    return f"every word of {line['frames']} frames, stamped and checked on the GPU: 0 wrong"


def _tail(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "without a word"
