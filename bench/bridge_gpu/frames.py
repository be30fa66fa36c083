"""The rings and the frames of this benchmark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

import gpuring
from gpuring.cli.measure import kernels
from gpuring.memory.frameworks import load_cupy

NBYTES = 16 << 20
WORDS = NBYTES // 8
SLOTS, SLOTS_ON_GPU = 16, 64
"""Half of them may be on their way, which on a GPU has to last for the time until the importer has
answered.  /dev/shm is small."""
PATIENCE_S = 20.0

_GRID = (1024,), (256,)
_FACTOR = 0x9E3779B97F4A7C15  # as in the kernels


Memory = Literal["auto", "ipc", "vmm", "pool"]


def make(name: str, device: str, memory: Memory = "auto", slots: int = 0) -> gpuring.Ring:
    return gpuring.create(
        name,
        slots=slots or usual_slots(device),
        shape=(WORDS,),
        dtype="u8",
        meta=[("n", "i8")],
        device=device,
        memory=memory,
    )


def usual_slots(device: str) -> int:
    return SLOTS if device == "host" else SLOTS_ON_GPU


def join(name: str, device: str) -> gpuring.Ring:
    where = None if device == "host" else device
    return gpuring.attach(name, timeout=PATIENCE_S, device=where)


@contextlib.contextmanager
def on(device: str) -> Iterator[Any]:
    """NumPy on the host, or CuPy, with this GPU the current one during the block."""
    if device == "host":
        yield np
        return
    cupy = load_cupy()
    with cupy.cuda.Device(int(device.partition(":")[2] or 0)):
        yield cupy


def content(xp: Any) -> HostContent | GpuContent:
    """Frames whose every word follows from their number.  On a GPU it is the current one."""
    return HostContent() if xp is np else GpuContent(xp)


class HostContent:
    def __init__(self) -> None:
        self._ramp = np.arange(WORDS, dtype="u8")
        self.wrong = 0
        """How many words were wrong so far."""

    def _words(self, n: int) -> Any:
        return self._ramp + np.uint64(n * _FACTOR % (1 << 64))

    def fill(self, frame: Any, n: int) -> None:
        frame[:] = self._words(n)

    def check(self, frame: Any, n: int) -> None:
        self.wrong += int(np.count_nonzero(frame != self._words(n)))


class GpuContent:
    def __init__(self, cupy: Any) -> None:
        source = kernels.SOURCE.read_text()
        self._stamp, self._check = (cupy.RawKernel(source, each) for each in ("stamp", "check"))
        self._wrong = cupy.zeros(1, "u8")
        self._try(cupy.empty(WORDS, "u8"))

    def _try(self, frame: Any) -> None:
        """Loads the kernels, and checks that they find wrong words."""
        self.fill(frame, 1)
        counts = []
        for n in (1, 2):
            self.check(frame, n)
            counts.append(self.wrong)
            self._wrong.fill(0)
        if counts != [0, WORDS]:
            raise RuntimeError(f"the kernels do not check here: {counts}, not {[0, WORDS]}")

    def fill(self, frame: Any, n: int) -> None:
        self._stamp(*_GRID, (frame, np.uint64(WORDS), np.uint64(n)))

    def check(self, frame: Any, n: int) -> None:
        self._check(*_GRID, (frame, np.uint64(WORDS), np.uint64(n), self._wrong))

    @property
    def wrong(self) -> int:
        return int(self._wrong[0])
