"""Plain copies and sockets, without gpuring."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.bridge_gpu.frames import NBYTES, PATIENCE_S, on
from gpuring.cli.measure.crew import Crew, Pipe

_PEER_ALREADY_ENABLED = 704  # cudaError_t


def copy(_: Pipe, near: str, far: str, seconds: float) -> dict[str, float]:
    """cudaMemcpyPeerAsync from one GPU to another one, or to itself; memcpy on the host."""
    if near != far:
        for one, other in itertools.permutations((near, far)):
            _reach(one, other)
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


def _reach(one: str, other: str) -> None:
    """Without peer access a copy goes through the host."""
    with on(other) as xp:
        ordinal = xp.cuda.Device().id
    with on(one) as xp:
        runtime = xp.cuda.runtime
        try:
            runtime.deviceEnablePeerAccess(ordinal)
        except runtime.CUDARuntimeError as error:
            if error.status != _PEER_ALREADY_ENABLED:
                raise


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


def sockets(crew: Crew, seconds: float) -> Any:
    with crew.start(hears, patience_s=PATIENCE_S) as hearing:
        crew.call(says, hearing.receive(), seconds, patience_s=PATIENCE_S)
        return hearing.result()
