"""Kernels that make the GPU tell whether a wait was real and a frame whole.

* `Latch` holds a stream until the test lets it go: what is behind it cannot have run before.
* `stamp` fills an array with words that follow from a sequence; `check` counts those that do not.

A first launch loads its kernel, which can hang while some stream is held: call `warm_up()` before.
"""

from __future__ import annotations

import gc
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuring.arrays import streams

_THREADS = 256
_MAX_BLOCKS = 1024

_SOURCE = r"""
__device__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Spins until words[0] is not 0.  After limit_ns it gives up and says so in words[1]. */
extern "C" __global__ void latch(volatile unsigned int *words, unsigned long long limit_ns) {
    unsigned long long start = now_ns();
    while (words[0] == 0) {
        if (now_ns() - start > limit_ns) {
            words[1] = 1;
            __threadfence_system();
            return;
        }
        __nanosleep(500);
    }
}

/* Differs from that of any other sequence at every k: the factor is odd. */
__device__ unsigned long long word_of(unsigned long long seq, unsigned long long k) {
    return seq * 0x9E3779B97F4A7C15ull + k;
}

extern "C" __global__ void stamp(unsigned long long *words, unsigned long long n,
                                 unsigned long long seq) {
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long k = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; k < n;
         k += step)
        words[k] = word_of(seq, k);
}

/* volatile: each word is read from memory, at that moment. */
extern "C" __global__ void check(const volatile unsigned long long *words, unsigned long long n,
                                 unsigned long long seq, unsigned long long *wrong) {
    unsigned long long bad = 0, step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long k = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; k < n;
         k += step)
        bad += words[k] != word_of(seq, k);
    if (bad) atomicAdd(wrong, bad);
}
"""


@cache
def _kernel(name: str) -> Any:
    import cupy

    return cupy.RawKernel(_SOURCE, name)


def _launch(name: str, stream: Any, blocks: int, threads: int, *args: Any) -> None:
    given = _current() if stream is None else stream
    raw = SimpleNamespace(ptr=streams.handle(given))  # all that CuPy asks of a stream
    _kernel(name)((blocks,), (threads,), args, stream=raw)


def _current() -> Any:
    import cupy

    return cupy.cuda.get_current_stream()


def _words(array: Any) -> tuple[np.uint64, np.uint64]:
    if array.nbytes % 8 or array.data.ptr % 8 or not array.flags.c_contiguous:
        raise ValueError("stamp and check need C-contiguous arrays of whole, aligned 64-bit words")
    return np.uint64(array.data.ptr), np.uint64(array.nbytes // 8)


def _blocks(n: np.uint64) -> int:
    return max(1, min(_MAX_BLOCKS, -(-int(n) // _THREADS)))


def stamp(array: Any, seq: int, stream: Any) -> None:
    """Enqueues on `stream`: every 64-bit word of `array` becomes that of `seq`."""
    ptr, n = _words(array)
    _launch("stamp", stream, _blocks(n), _THREADS, ptr, n, np.uint64(seq))


def check(array: Any, seq: int, wrong: Any, stream: Any) -> None:
    """Enqueues on `stream`: adds the number of words of `array` that are not `seq`'s to wrong[0].

    `wrong` is from `counter()`; read it after synchronising the stream.
    """
    ptr, n = _words(array)
    _launch("check", stream, _blocks(n), _THREADS, ptr, n, np.uint64(seq), wrong)


def counter() -> Any:
    """A device counter for `check`, at 0: a cupy.ndarray of one uint64."""
    import cupy

    zero = cupy.zeros(1, cupy.uint64)
    cupy.cuda.get_current_stream().synchronize()  # whatever stream uses it next
    return zero


class Latch:
    """Holds streams on this device until `open()`, or for `limit_s` seconds at the most.

    A context manager that opens it.  Asserting `not latch.expired` afterwards makes sure that it
    was the test that let the streams go.
    """

    def __init__(self, limit_s: float = 10.0) -> None:
        import cupy

        self._limit_ns = int(limit_s * 1e9)
        gc.collect()  # what it frees on the GPU later would wait for the streams that we hold
        self._memory = cupy.cuda.alloc_pinned_memory(8)  # mapped: the GPU sees the CPU's stores
        self._words = np.frombuffer(self._memory, np.uint32, 2)
        self._words[:] = 0

    def hold(self, stream: Any) -> None:
        """Enqueues the wait on `stream`.  The latch must outlive it."""
        ptr = np.uint64(self._memory.ptr)
        _launch("latch", stream, 1, 1, ptr, np.uint64(self._limit_ns))

    def open(self) -> None:
        """Lets all held streams go, and those held later."""
        self._words[0] = 1

    @property
    def expired(self) -> bool:
        """Whether some stream went on because the time was up."""
        return bool(self._words[1])

    def __enter__(self) -> Latch:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


def warm_up() -> None:
    """Compiles and loads all kernels on the current device and sees each of them work.

    A process does that once for each device.  While other processes use the GPU, each of its waits
    takes as long as their turns.
    """
    import cupy

    _warm_up(cupy.cuda.Device().id)


@cache
def _warm_up(_device: int) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    array = cupy.zeros(1024, cupy.uint64)
    wrong = counter()
    with Latch() as latch:
        latch.open()
        latch.hold(stream)
        stamp(array, 7, stream)
        check(array, 7, wrong, stream)
        stream.synchronize()
        right = int(wrong.get(stream=stream)[0])
        check(array, 8, wrong, stream)
        stream.synchronize()
        other = int(wrong.get(stream=stream)[0])
    if (right, other, latch.expired) != (0, array.size, False):
        raise RuntimeError(f"the test kernels do not work here: {right}, {other}, {latch.expired}")
