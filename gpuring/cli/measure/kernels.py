"""Kernels of the benchmarks, and what else they need on a GPU: a stream and words.

CuPy compiles and allocates where it is installed.  Otherwise torch allocates, and NVRTC compiles.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuring.arrays.tensors import load_torch
from gpuring.memory import frameworks

from . import nvrtc
from .settings import FRAME_NBYTES

WORDS = FRAME_NBYTES // 8
THREADS = 256
_MAX_BLOCKS = 1024
SOURCE = Path(__file__).with_name("kernels.cu")


@dataclass(frozen=True)
class Words:
    """Words of 64 bits on the GPU."""

    ptr: int
    first: Callable[[], int]
    """The first of them, behind all that was enqueued."""


class OfCuPy:
    """By CuPy.  This process's benchmark stream is the current one."""

    launches = ("driver", "cupy")

    def __init__(self) -> None:
        self.cupy = frameworks.load_cupy()
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.use()
        self._query = self.cupy.cuda.runtime.streamQuery
        self._module = self.cupy.RawModule(code=SOURCE.read_text())

    def use(self) -> None:
        """Makes the stream the current one."""
        self.stream.use()

    def zeros(self, n: int) -> Words:
        array = self.cupy.zeros(n, self.cupy.uint64)
        return Words(int(array.data.ptr), lambda: int(array.get(stream=self.stream)[0]))

    def address(self, slot: Any) -> int:
        """Where the GPU finds the only field of a slot."""
        return int(slot.array.data.ptr)

    def busy(self) -> bool:
        """Whether something on the stream is not done yet."""
        return bool(self._query(self.stream.ptr))

    def finish(self) -> None:
        """Waits for all that is on the stream."""
        self.stream.synchronize()

    def kernel(self, name: str, launch: str, *arguments: int) -> Any:
        function = self._module.get_function(name)
        if launch == "cupy":
            return CupyKernel(function, self.stream, *arguments)
        return DriverKernel(function.kernel.ptr, self.stream.ptr, *arguments)


class OfTorch:
    """The same by torch, where CuPy is not installed."""

    launches = ("driver",)

    def __init__(self) -> None:
        self._torch = load_torch()
        self._stream = self._torch.cuda.Stream()
        self.use()
        self._device = int(self._torch.cuda.current_device())

    def use(self) -> None:
        self._torch.cuda.set_stream(self._stream)

    def zeros(self, n: int) -> Words:
        tensor = self._torch.zeros(n, dtype=self._torch.int64, device="cuda")
        return Words(int(tensor.data_ptr()), lambda: int(tensor.cpu()[0]))

    def address(self, slot: Any) -> int:
        return int(self._torch.from_dlpack(slot).data_ptr())

    def busy(self) -> bool:
        return not self._stream.query()

    def finish(self) -> None:
        self._stream.synchronize()

    def kernel(self, name: str, launch: str, *arguments: int) -> Any:
        function = nvrtc.function(SOURCE.read_text(), name, self._device)
        return DriverKernel(function, self._stream.cuda_stream, *arguments)


class DriverKernel:
    """One kernel, its arguments laid out once: a launch stores two of them and calls the driver.

    arguments: 64-bit each; 0 is the pointer, 1 the number of words, 2 the sequence.
    """

    def __init__(self, function: int, stream: int, *arguments: int) -> None:
        """`function`: a CUfunction, whose module stays loaded.  `stream`: a CUstream."""
        from cuda.bindings import driver

        n = len(arguments)
        self._values = (ctypes.c_uint64 * n)(*arguments)
        self.arguments = memoryview(self._values).cast("B").cast("Q")
        first = ctypes.addressof(self._values)
        self._parameters = (ctypes.c_void_p * n)(*(first + 8 * k for k in range(n)))
        self._address = ctypes.addressof(self._parameters)
        self._function = driver.CUfunction(function)
        self._stream = driver.CUstream(stream)
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


@functools.cache
def cuda_tools() -> OfCuPy | OfTorch:
    """This process's benchmark stream (made current), and kernels seen to tell right from wrong.
    The first launch of a kernel loads it, which no clock should see."""
    tools = OfTorch() if frameworks.cupy() is None else OfCuPy()
    for launch in tools.launches:
        words, wrong = tools.zeros(2 * WORDS), tools.zeros(1)
        tools.kernel("stamp", launch, 0, WORDS, 0).launch_over(words.ptr, 2 * WORDS, 7)
        counted = []
        for seq in (7, 8):
            tools.kernel("check", launch, 0, WORDS, 0, wrong.ptr).launch(words.ptr, seq)
            tools.finish()
            counted.append(wrong.first())
        if counted != [0, WORDS]:
            raise RuntimeError(f"the kernels do not check here: {counted}, not {[0, WORDS]}")
    return tools


def cupy_tools() -> OfCuPy:
    """The same where CuPy itself is needed.  Raises DeviceError without it."""
    frameworks.load_cupy()
    tools = cuda_tools()
    assert isinstance(tools, OfCuPy)
    return tools
