"""Kernels that show whether a wait was real and a frame was whole.

* `Latch` holds a stream until the test lets it go: what is behind it cannot have run before.
* `stamp` fills an array with words that follow from a sequence; `check` counts those that do not.

The first launch of a kernel loads it, which can hang while some stream is held.  So call
`warm_up()` first.
"""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

from gpuring.arrays import streams
from gpuring.memory import frameworks
from tests.gpu import library

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


def _launch(name: str, stream: Any, args: Any, **size: int) -> None:
    on = library.current_stream() if stream is None else streams.handle(stream)
    library.launch(_SOURCE, name, on, args, **size)


def _words(what: Any) -> tuple[int, int]:
    address, nbytes = library.span(what)
    if nbytes % 8 or address % 8:
        raise ValueError("stamp and check need whole, aligned 64-bit words")
    return address, nbytes // 8


def _size(n: int) -> dict[str, int]:
    return {"blocks": max(1, min(_MAX_BLOCKS, -(-n // _THREADS))), "threads": _THREADS}


def stamp(what: Any, seq: int, stream: Any) -> None:
    """Enqueues on `stream`: every 64-bit word of an array, or of a slot, becomes that of `seq`."""
    ptr, n = _words(what)
    _launch("stamp", stream, (ptr, n, seq), **_size(n))


def check(what: Any, seq: int, wrong: Any, stream: Any) -> None:
    """Enqueues on `stream`: adds to wrong[0] how many words of an array, or of a slot, are not
    those of `seq`.

    `wrong` is from `counter()`; read it after synchronising the stream.
    """
    ptr, n = _words(what)
    _launch("check", stream, (ptr, n, seq, _words(wrong)[0]), **_size(n))


def counter() -> Any:
    """A device counter for `check`, at 0: an array of one word."""
    return library.zeros(1)


def count(wrong: Any, stream: Any = None) -> int:
    """The value of a counter, read behind the work of a stream (None: the current one)."""
    return int(library.to_host(wrong, stream)[0])


class Latch:
    """Holds streams on this device until `open()`, or for `limit_s` seconds at the most.

    It is a context manager, whose end opens it.  Assert `not latch.expired` afterwards, to make
    sure that the test has let the streams go, and not the time limit.
    """

    def __init__(self, limit_s: float = 10.0) -> None:
        self._limit_ns = int(limit_s * 1e9)
        gc.collect()  # a later collection that frees GPU memory would wait for the held streams
        self._words = library.pinned_words(2)  # mapped: the GPU sees the CPU's stores

    def hold(self, stream: Any) -> None:
        """Enqueues the wait on `stream`.  The latch must outlive it."""
        _launch("latch", stream, (self._words.ctypes.data, self._limit_ns))

    def open(self) -> None:
        """Lets all held streams go on, also those that are held later."""
        self._words[0] = 1

    @property
    def expired(self) -> bool:
        """Whether a stream went on because the time was up."""
        return bool(self._words[1])

    def __enter__(self) -> Latch:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


def warm_up() -> None:
    """Compiles and loads all kernels on the current device and sees each of them work.

    A process does this once for each device.  While other processes use the GPU, each wait takes as
    long as their time slices.
    """
    _warm_up(frameworks.current_device())


@cache
def _warm_up(_device: int) -> None:
    stream, array, wrong = library.new_stream(), library.zeros(1024), counter()
    with Latch() as latch:
        latch.open()
        latch.hold(stream)
        stamp(array, 7, stream)
        check(array, 7, wrong, stream)
        right = count(wrong, stream)
        check(array, 8, wrong, stream)
        other = count(wrong, stream)
    if (right, other, latch.expired) != (0, 1024, False):
        raise RuntimeError(f"the test kernels do not work here: {right}, {other}, {latch.expired}")
