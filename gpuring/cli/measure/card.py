"""The machine card: on what a figure was measured.  Every file under bench/results has one."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import gpuring

PACKAGES = ("numpy", "cupy-cuda12x", "cupy-cuda13x", "cuda-bindings", "torch", "av", "posix_ipc")
GPU_FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "clocks.sm",
    "clocks.max.sm",
    "compute_mode",
)


def machine_card() -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpuring": gpuring.__version__,
        "revision": _revision(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "gpus": _gpus(),
        "mps": bool(_output("pgrep", "-f", "nvidia-cuda-mps-control")),
        "packages": {name: version for name in PACKAGES if (version := version_of(name))},
    }


def _revision() -> str:
    """What GPURING_REVISION says, and else that of the checkout that gpuring is run from."""
    if said := os.environ.get("GPURING_REVISION"):
        return said
    root = Path(gpuring.__file__).parents[1]
    here = _output("git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD").splitlines()
    return here[1] if len(here) == 2 and Path(here[0]).resolve() == root.resolve() else "unknown"


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _gpus() -> list[dict[str, str]]:
    listed = _output("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader")
    return [
        dict(zip(GPU_FIELDS, (cell.strip() for cell in line.split(",")), strict=False))
        for line in listed.splitlines()
    ]


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def version_of(package: str) -> str:
    """Empty: it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
