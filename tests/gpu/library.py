"""Streams, arrays and kernels of CuPy.  Where CuPy is hidden they are torch's, and kernels are
compiled by NVRTC and launched by the driver.

Arrays have 64-bit words.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuring.arrays import streams
from gpuring.cli.measure import nvrtc
from gpuring.memory import driver, frameworks, gpus
from gpuring.ring import inner
from gpuring.ring.slot import Slot

_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED, which CuPy takes


def _torch() -> Any:
    import torch

    torch.cuda.init()  # its current GPU and stream count from now on
    return torch


# ---- streams and GPUs ----------------------------------------------------------------------------


class _Stream:
    """A stream of torch that can be used like one of CuPy."""

    def __init__(self, handle: int | None = None) -> None:
        cuda = _torch().cuda
        if handle is None:
            self._stream = cuda.Stream()
        else:  # ExternalStream(0) would be a new stream
            self._stream = cuda.ExternalStream(handle) if handle else cuda.default_stream()
        self.ptr = self._stream.cuda_stream
        self._blocks: list[Any] = []

    def synchronize(self) -> None:
        self._stream.synchronize()

    def begin_capture(self) -> None:
        driver.call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.ptr), ctypes.c_int(_RELAXED))

    def end_capture(self) -> _Graph:
        graph = ctypes.c_void_p()
        driver.call("cuStreamEndCapture", ctypes.c_void_p(self.ptr), ctypes.byref(graph))
        return _Graph(graph)

    def __enter__(self) -> _Stream:
        self._blocks.append(_torch().cuda.stream(self._stream))
        self._blocks[-1].__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._blocks.pop().__exit__(*raised)


class _Graph:
    def __init__(self, graph: ctypes.c_void_p) -> None:
        self._ready = ctypes.c_void_p()
        flags = ctypes.c_ulonglong(0)
        driver.call("cuGraphInstantiateWithFlags", ctypes.byref(self._ready), graph, flags)

    def launch(self, stream: _Stream) -> None:
        driver.call("cuGraphLaunch", self._ready, ctypes.c_void_p(stream.ptr))


def new_stream() -> Any:
    """A stream for which the default stream does not wait.  It is the current one in a `with`
    block."""
    cupy = frameworks.cupy()
    return cupy.cuda.Stream(non_blocking=True) if cupy else _Stream()


def per_thread_stream() -> Any:
    """CUDA's default stream of this thread."""
    cupy = frameworks.cupy()
    return cupy.cuda.Stream.ptds if cupy else _Stream(streams.PER_THREAD)


def default_stream() -> Any:
    """The legacy default stream."""
    cupy = frameworks.cupy()
    return cupy.cuda.Stream.null if cupy else _Stream(0)


def done(stream: Any) -> bool:
    """Whether the GPU has done all that a stream was given."""
    status = driver.ask("cuStreamQuery", ctypes.c_void_p(stream.ptr))
    assert status in (0, _NOT_READY), status
    return status == 0


def current_stream() -> int:
    return streams.current(frameworks.current_device())


def use(device: int) -> None:
    """Makes a GPU the current one of this thread."""
    if cupy := frameworks.cupy():
        cupy.cuda.Device(device).use()
    else:
        _torch().cuda.set_device(device)


def on_gpu(device: int) -> Any:
    """A block in which a GPU is the current one."""
    cupy = frameworks.cupy()
    return cupy.cuda.Device(device) if cupy else _torch().cuda.device(device)


def synchronize() -> None:
    """Waits for all work of this process on the current GPU."""
    gpus.gpu(frameworks.current_device()).finish()


def free_nbytes() -> int:
    """How much memory is free on the current GPU."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with gpus.current(frameworks.current_device()):
        driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


# ---- arrays --------------------------------------------------------------------------------------


def empty(words: int) -> Any:
    if cupy := frameworks.cupy():
        return cupy.empty(words, cupy.uint64)
    return _torch().empty(words, dtype=_torch().uint64, device="cuda")


def zeros(words: int) -> Any:
    """An array of zeros that any stream may use next."""
    array, stream = empty(words), current_stream()
    gpu = gpus.gpu(frameworks.current_device())
    gpu.fill(span(array)[0], 0, 8 * words, stream)
    gpu.synchronize(stream)
    return array


def to_gpu(array: np.ndarray) -> Any:
    """A copy of an array on the current GPU."""
    if cupy := frameworks.cupy():
        return cupy.asarray(array)
    return _torch().from_numpy(array).cuda()


def pinned_words(n: int) -> np.ndarray:
    """32-bit words of the host, all 0, which the GPU sees at the same address."""
    if cupy := frameworks.cupy():
        words = np.frombuffer(cupy.cuda.alloc_pinned_memory(4 * n), np.uint32, n)
        words[:] = 0
        return words
    found: np.ndarray = _torch().zeros(n, dtype=_torch().int32, pin_memory=True).numpy()
    return found.view(np.uint32)


def to_host(array: Any, stream: Any = None) -> np.ndarray:
    """A copy of an array, behind the work of a stream (None: the current one)."""
    if frameworks.cupy():
        return np.array(array.get(stream=stream))
    with contextlib.nullcontext() if stream is None else stream:
        return np.array(array.cpu().numpy())


def span(what: Any) -> tuple[int, int]:
    """The address and the length of an array, or of the only field of a slot.  Like `slot.array`,
    this orders nothing."""
    array = inner.array(what, inner.only_field(what)) if isinstance(what, Slot) else what
    flags = getattr(array, "flags", None)
    if flags is not None and not flags.c_contiguous:
        raise ValueError("a C-contiguous array is needed")
    ptr = array.data_ptr() if hasattr(array, "data_ptr") else array.data.ptr
    return ptr, array.nbytes


# ---- kernels -------------------------------------------------------------------------------------


class _Kernel:
    """A kernel on one GPU that is launched like one of CuPy.  All its arguments are 64-bit
    words."""

    def __init__(self, source: str, name: str, device: int) -> None:
        self._device = device
        self._function = ctypes.c_void_p(nvrtc.function(source, name, device))

    def __call__(self, grid: Any, block: Any, args: Any, *, stream: Any) -> None:
        words = [ctypes.c_uint64(int(each)) for each in args]
        given = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
        sizes = [ctypes.c_uint(n) for n in (*grid, 1, 1, *block, 1, 1, 0)]  # no shared memory
        with gpus.current(self._device):
            on = ctypes.c_void_p(stream.ptr)
            driver.call("cuLaunchKernel", self._function, *sizes, on, given, None)


@cache
def _kernel_without_cupy(source: str, name: str, device: int) -> _Kernel:
    return _Kernel(source, name, device)


@cache
def _kernel_of_cupy(source: str, name: str) -> Any:
    return frameworks.load_cupy().RawKernel(source, name)


def launch(
    source: str, name: str, stream: int, args: Any, *, blocks: int = 1, threads: int = 1
) -> None:
    """Launches a kernel on a stream, by its handle.  The first launch on a GPU loads it."""
    if frameworks.cupy():
        kernel = _kernel_of_cupy(source, name)
    else:
        kernel = _kernel_without_cupy(source, name, frameworks.current_device())
    on = SimpleNamespace(ptr=stream)  # CuPy needs only this of a stream
    kernel((blocks,), (threads,), tuple(map(np.uint64, args)), stream=on)
