"""Whether the GPU has come to what stands behind a wait; the mutant in which nothing waits."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAIT_64 = 4
_kept = []


def tools():
    """CuPy and our kernels, which are loaded."""
    import cupy
    import kernels

    kernels.warm_up()
    return cupy, kernels


def done(cupy, stream):
    return cupy.cuda.runtime.streamQuery(stream.ptr) == 0


def unordered(ring, own_only=False, at_once=True):
    """The mutant: nothing waits.  own_only: only for one's own fences nothing does (timeline).

    For peers that join from now on; the real driver, but for its waits.  What it returns begins
    with it if not at_once."""
    on = [at_once]
    from gpuring import _core, streams

    library = ctypes.CDLL("libcuda.so.1")
    addresses = {}
    for line in (ROOT / "gpuring/device/driver.h").read_text().splitlines():
        if found := re.search(r'"(cu\w+)"', line):
            addresses[found[1]] = ctypes.cast(getattr(library, found[1]), ctypes.c_void_p).value
    pointer, u64, u32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
    really = library.cuStreamWaitValue64_v2
    really.argtypes = [pointer, u64, u64, u32]

    def wait_value(stream, address, value, flags):
        header, at = ring._header, (address - base[0]) // 8 if base else 0
        if not on[0] or (own_only and not own(header, at % header.max_peers)):
            return really(stream, address, value, flags)
        return 0

    def device_pointer(place, host, flags):
        status = real_pointer(place, host, flags)
        base.append(ctypes.cast(place, ctypes.POINTER(u64))[0])
        return status

    def own(header, number):
        return any(endpoint.peer == number for endpoint in ring._endpoints)

    base = []
    real_pointer = library.cuMemHostGetDevicePointer_v2
    real_pointer.argtypes = [pointer, pointer, u32]
    made = {
        "cuStreamWaitValue64_v2": ctypes.CFUNCTYPE(ctypes.c_int, pointer, u64, u64, u32)(
            wait_value
        ),
        "cuMemHostGetDevicePointer_v2": ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, u32)(
            device_pointer
        ),
        "cuStreamWaitEvent": ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, u32)(
            lambda *wait: 0 if on[0] else really_event(*wait)
        ),
    }
    really_event = library.cuStreamWaitEvent
    really_event.argtypes = [pointer, pointer, u32]
    really_batch = library.cuStreamBatchMemOp_v2
    really_batch.argtypes = [pointer, u32, pointer, u32]

    def batch(stream, n, ops, flags):
        kind = ctypes.cast(ops, ctypes.POINTER(u32))[0]
        if kind == WAIT_64 and on[0] and not own_only:
            return 0
        return really_batch(stream, n, ops, flags)

    made["cuStreamBatchMemOp_v2"] = ctypes.CFUNCTYPE(ctypes.c_int, pointer, u32, pointer, u32)(
        batch
    )
    _kept.append(made)  # for as long as somebody may call them
    addresses |= {name: ctypes.cast(call, pointer).value for name, call in made.items()}
    ordinal = ring._device.ordinal
    ring._device.close()
    current, capsule = streams.current_of_cupy()
    ring._device = _core.Device(ring._header, ordinal, current, capsule, _core.Driver(addresses))
    return lambda: on.__setitem__(0, True)
