"""What a turn of claim, publish, acquire and release costs a program in C, in nanoseconds.

    python -m bench.c_api

c_api.c says what it compares.  Each way has its median and its 99th percentile.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import gpuring
from gpuring.cli.measure.settings import ring_name

QUANTILES = ("50", "99")
PATIENCE_S = 200.0


def build(folder: Path) -> Path:
    """c_api.c with all of the library."""
    native = Path(gpuring.__file__).parent / "native"
    rooms = ("core", "host", "device", "memory", "api")
    sources = [each for room in rooms for each in native.glob(f"{room}/*.c")]
    program = folder / "c_api"
    command = ["cc", "-std=gnu11", "-O2", "-pthread", f"-I{native}", "-o", str(program)]
    command += [str(Path(__file__).with_name("c_api.c")), *map(str, sorted(sources)), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    return program


def measure(program: Path) -> dict[str, list[float]]:
    """The quantiles of each way."""
    with gpuring.create(
        ring_name(), slots=8, shape=64, dtype="u1", meta=[("pts", "i8")], device="host"
    ) as ring:
        done = subprocess.run(
            [program, ring.name, *QUANTILES], check=True, capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
    found = json.loads(done.stdout)
    return {way: ns for way, ns in found.items() if way != "n"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for way, (median, late) in measure(build(Path(folder))).items():
            print(f"{way:<12}{median:8.1f} ns{late:8.1f} ns")


if __name__ == "__main__":
    main()
