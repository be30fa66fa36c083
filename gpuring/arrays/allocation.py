"""Results that are computed in a slot: CuPy takes their memory from there (WriteSlot.allocate).

It cannot be known beforehand which allocation of a computation becomes its result.  So the memory
of the slot is given to the first allocation of exactly as many bytes as the frame has.  If that was
a temporary array, the memory comes back when the array is dropped, and the next allocation of that
size gets it.  All other allocations go to the allocator that was there before.

torch is not served.  Its allocator asks a pool (torch.cuda.MemPool) for segments of 2 or 20 MiB, or
of a multiple of 2 MiB for tensors of 10 MiB and more, so few slots could be one.  All temporaries
of the block would stay in the pool of that slot, and no other code could use their memory.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from gpuring.memory.frameworks import load_cupy


class _Loan:
    """An array that CuPy has made in the slot."""

    def __init__(self, of: Any) -> None:
        self.of = of  # so that the slot's arrays are not used again before it is dropped


class _Room:
    """CuPy's allocator inside the block."""

    def __init__(self, array: Any, use_on: Callable[[int], object]) -> None:
        cuda = load_cupy().cuda
        self._array, self._use_on, self._cuda = array, use_on, cuda
        self._instead = cuda.get_allocator()
        self._loan: Any = lambda: None  # a weak reference
        self._stream: int | None = None

    def __call__(self, nbytes: int) -> Any:
        here = nbytes == self._array.nbytes and self._loan() is None
        if not here or self._cuda.runtime.getDevice() != self._array.device.id:
            return self._instead(nbytes)
        stream = self._cuda.get_current_stream().ptr
        if self._stream not in (None, stream):  # its last user works on another stream
            return self._instead(nbytes)
        self._use_on(stream)
        loan = _Loan(self._array)
        self._loan, self._stream = weakref.ref(loan), stream
        memory = self._cuda.UnownedMemory(self._array.data.ptr, nbytes, loan, self._array.device.id)
        return self._cuda.MemoryPointer(memory, 0)


@contextlib.contextmanager
def within(array: Any, use_on: Callable[[int], object]) -> Iterator[None]:
    """Inside the block CuPy's arrays of this thread lie where `array` does, which is the frame or a
    field of it, if they are as large.  `use_on` tells the slot of the stream.  Raises DeviceError
    without CuPy."""
    with load_cupy().cuda.using_allocator(_Room(array, use_on)):
        yield
