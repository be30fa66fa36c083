"""What the GPUs and NIXL of this machine say of themselves."""

from __future__ import annotations

import contextlib
from typing import Any

from bench.bridge_gpu.frames import on
from gpuring.bridge.engines import nixl
from gpuring.bridge.engines.nixl import agent
from gpuring.cli.measure.crew import Pipe
from gpuring.memory.cuda import available
from gpuring.memory.frameworks import load_cupy
from gpuring.native import Driver

_ATTRIBUTES = {"GPU-direct RDMA": 116, "flush options": 117, "writes ordering": 118}


def facts(_: Pipe, gpus: int) -> dict[str, Any]:
    found: dict[str, Any] = {"nixl": nixl.facts()}
    with contextlib.suppress(Exception):
        found["nixl package"] = agent.package().__name__
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
