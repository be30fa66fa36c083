"""Whether the GPU has done what is behind a wait, also in mutants that leave a wait out."""

from __future__ import annotations

import ctypes

import pytest

from gpuring import native
from gpuring.memory import frameworks
from tests.helpers import raw_verbs

ORDER = pytest.mark.parametrize("order", [True, False], ids=["ordered", "mutant"])
"""With the waits, and without them, where a test has to see that they are missing."""
WAIT_64 = 4  # CU_STREAM_MEM_OP_WAIT_VALUE_64
_KINDS = {
    "cuStreamWaitValue64_v2": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint),
    "cuStreamBatchMemOp_v2": (ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint),
    "cuStreamWaitEvent": (ctypes.c_void_p, ctypes.c_uint),
}


def tools():
    """The kernels of the tests, which are loaded."""
    from tests.gpu import kernels

    kernels.warm_up()
    return kernels


class Waits:
    """A ring's driver, in which waits may be left out from some moment on.

    Made before anybody joins through `ring`."""

    def __init__(self, ring):
        self.wanted = lambda address: True
        """Whether there is a wait for the word at this address of the GPU, or for an event (0)."""
        self._library = ctypes.CDLL("libcuda.so.1")
        self._kept = {name: self._made(name) for name in _KINDS}
        table = {}
        for symbol in raw_verbs.driver_symbols():
            function = self._kept.get(symbol) or getattr(self._library, symbol)
            table[symbol] = ctypes.cast(function, ctypes.c_void_p).value
        ordinal = ring._device.ordinal
        ring._device.close()
        ring._device = native.Device(
            ring._header, ordinal, *frameworks.current_stream(ordinal), native.Driver(table)
        )
        ring.waits = self  # its functions live as long as the ring

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wanted = lambda address: True

    def leave_out(self, wanted=lambda address: False):
        """The mutant: leaves out all waits except those that are wanted."""
        self.wanted = wanted

    def _made(self, name):
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *_KINDS[name])
        real = prototype((name, self._library))

        def called(stream, *arguments):
            addresses = [0]
            if name == "cuStreamWaitValue64_v2":
                addresses = [arguments[0]]
            elif name == "cuStreamBatchMemOp_v2":  # its operations are all waits, or all writes
                words = ctypes.cast(arguments[1], ctypes.POINTER(ctypes.c_uint64))
                waits = words[0] & 0xFFFFFFFF == WAIT_64
                addresses = [words[6 * k + 1] for k in range(arguments[0])] if waits else []
            return real(stream, *arguments) if all(map(self.wanted, addresses)) else 0

        return prototype(called)
