"""Frames that can be verified: words that follow from the sequence, counted where the frame is.

Of every frame its first words (4 KiB) are written and checked, with one small kernel on a GPU; all
of it where `_all` says so. A pattern belongs to one ring.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import gpuring
from gpuring.memory.frameworks import load_cupy

from .settings import FRAME_NBYTES

WORDS = FRAME_NBYTES // 8
THREADS = 256
_MAX_BLOCKS = 1024
SOURCE = Path(__file__).with_name("kernels.cu")


def pattern_for(ring: gpuring.Ring, launch: str = "driver") -> HostPattern | CudaPattern:
    """launch: how kernels are launched, "driver" (cuda-bindings) or "cupy"."""
    return HostPattern() if ring.memory == "host" else CudaPattern(launch)


class HostPattern:
    """A pattern of frames in host memory.  `CudaPattern` has the same methods, on this process's
    benchmark stream."""

    def __init__(self) -> None:
        self._wrong = 0
        self._views: dict[int, Any] = {}  # of each slot's first words: slots never move

    def _view(self, slot: Any) -> Any:
        view = self._views.get(slot.index)
        if view is None:
            view = self._views[slot.index] = slot.array[:WORDS]
        return view

    def stamp(self, slot: Any) -> None:
        """Writes the first words of the frame."""
        self._view(slot).fill(slot.seq)

    def check(self, slot: Any) -> None:
        """Counts those that are not of the frame's sequence."""
        same = self._view(slot) == slot.seq
        if not same.all():
            self._wrong += int(np.count_nonzero(~same))

    def stamp_all(self, slot: Any) -> None:
        """Writes the whole frame."""
        slot.array.fill(slot.seq)

    def check_all(self, slot: Any) -> None:
        """Checks the whole frame."""
        self._wrong += int(np.count_nonzero(slot.array != slot.seq))

    def spoil(self, slot: Any) -> None:
        """Damages one word."""
        slot.array[-1] += 1

    def pending(self) -> bool:
        """Whether something that was enqueued is not done yet."""
        return False

    def finish(self) -> None:
        """Waits until all that was enqueued is done."""

    def wrong(self) -> int:
        """The count so far."""
        return self._wrong


class CudaPattern:
    def __init__(self, launch: str) -> None:
        tools = cuda_tools()
        self._stream = tools.stream
        self._query = tools.cupy.cuda.runtime.streamQuery
        self._stream.use()  # as at first; `with` would leave the default stream current
        self._counter = tools.cupy.zeros(1, tools.cupy.uint64)
        self.finish()
        counter = int(self._counter.data.ptr)
        self._stamp = tools.kernel("stamp", launch, 0, WORDS, 0)
        self._check = tools.kernel("check", launch, 0, WORDS, 0, counter)
        self._stamp_all = tools.kernel("stamp", launch, 0, 0, 0)
        self._check_all = tools.kernel("check", launch, 0, 0, 0, counter)
        self._pointers: dict[int, int] = {}  # of each slot: slots never move

    def _pointer(self, slot: Any) -> int:
        pointer = self._pointers.get(slot.index)
        if pointer is None:
            pointer = self._pointers[slot.index] = int(slot.array.data.ptr)
        return pointer

    def stamp(self, slot: Any) -> None:
        self._stamp.launch(self._pointer(slot), slot.seq)

    def check(self, slot: Any) -> None:
        self._check.launch(self._pointer(slot), slot.seq)

    def stamp_all(self, slot: Any) -> None:
        self._stamp_all.launch_over(self._pointer(slot), slot.array.nbytes // 8, slot.seq)

    def check_all(self, slot: Any) -> None:
        self._check_all.launch_over(self._pointer(slot), slot.array.nbytes // 8, slot.seq)

    def spoil(self, slot: Any) -> None:
        """The last word becomes that of another sequence."""
        last = self._pointer(slot) + slot.array.nbytes - 8
        self._stamp_all.launch_over(last, 1, slot.seq + 1)

    def pending(self) -> bool:
        return bool(self._query(self._stream.ptr))

    def finish(self) -> None:
        self._stream.synchronize()

    def wrong(self) -> int:
        self.finish()
        return int(self._counter.get(stream=self._stream)[0])


class DriverKernel:
    """One kernel, its arguments laid out once: a launch stores two of them and calls the driver.

    arguments: 64-bit each; 0 is the pointer, 1 the number of words, 2 the sequence.
    """

    def __init__(self, function: Any, stream: Any, *arguments: int) -> None:
        from cuda.bindings import driver

        n = len(arguments)
        self._values = (ctypes.c_uint64 * n)(*arguments)
        self.arguments = memoryview(self._values).cast("B").cast("Q")
        first = ctypes.addressof(self._values)
        self._parameters = (ctypes.c_void_p * n)(*(first + 8 * k for k in range(n)))
        self._address = ctypes.addressof(self._parameters)
        self._function = driver.CUfunction(function.kernel.ptr)
        self._keep = function
        self._stream = driver.CUstream(stream.ptr)
        self._launch = driver.cuLaunchKernel

    def launch(self, pointer: int, seq: int) -> None:
        arguments = self.arguments
        arguments[0] = pointer
        arguments[2] = seq
        (status,) = self._launch(
            self._function, 1, 1, 1, THREADS, 1, 1, 0, self._stream, self._address, 0
        )
        if status:
            raise RuntimeError(f"cuLaunchKernel: {status!r}")

    def launch_over(self, pointer: int, n: int, seq: int) -> None:
        """With the number of words and as many blocks as they want."""
        self.arguments[0], self.arguments[1], self.arguments[2] = pointer, n, seq
        self.launch_grid(_blocks(n), THREADS)

    def launch_grid(self, blocks: int, threads: int) -> None:
        (status,) = self._launch(
            self._function, blocks, 1, 1, threads, 1, 1, 0, self._stream, self._address, 0
        )
        if status:
            raise RuntimeError(f"cuLaunchKernel: {status!r}")


class CupyKernel:
    """The same through CuPy, as most programs launch theirs."""

    def __init__(self, function: Any, stream: Any, *arguments: int) -> None:
        self._function = function
        self._stream = stream
        self._arguments = [np.uint64(value) for value in arguments]

    def launch(self, pointer: int, seq: int) -> None:
        self._arguments[0] = np.uint64(pointer)
        self._arguments[2] = np.uint64(seq)
        self._function((1,), (THREADS,), tuple(self._arguments), stream=self._stream)

    def launch_over(self, pointer: int, n: int, seq: int) -> None:
        self._arguments[:3] = np.uint64(pointer), np.uint64(n), np.uint64(seq)
        self._function((_blocks(n),), (THREADS,), tuple(self._arguments), stream=self._stream)


def _blocks(n: int) -> int:
    return max(1, min(_MAX_BLOCKS, -(-n // THREADS)))


@cache
def cuda_tools() -> SimpleNamespace:
    """This process's CuPy, its benchmark stream (made current), and kernels seen to tell right from
    wrong.  The first launch of a kernel loads it, which no clock should see."""
    cupy = load_cupy()
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    module = cupy.RawModule(code=SOURCE.read_text())
    functions = {name: module.get_function(name) for name in ("stamp", "check", "busy")}
    kinds: dict[str, Callable[..., Any]] = {"driver": DriverKernel, "cupy": CupyKernel}

    def kernel(name: str, launch: str, *arguments: int) -> Any:
        return kinds[launch](functions[name], stream, *arguments)

    for launch in kinds:
        words, wrong = cupy.zeros(2 * WORDS, cupy.uint64), cupy.zeros(1, cupy.uint64)
        kernel("stamp", launch, 0, WORDS, 0).launch_over(words.data.ptr, words.size, 7)
        counted = []
        for seq in (7, 8):
            kernel("check", launch, 0, WORDS, 0, wrong.data.ptr).launch(words.data.ptr, seq)
            stream.synchronize()
            counted.append(int(wrong.get(stream=stream)[0]))
        if counted != [0, WORDS]:
            raise RuntimeError(f"the kernels do not check here: {counted}, not {[0, WORDS]}")
    return SimpleNamespace(cupy=cupy, stream=stream, kernel=kernel)
