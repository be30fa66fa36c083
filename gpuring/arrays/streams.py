"""The objects that can be given as a stream, and the raw handles that CUDA knows them by."""

from __future__ import annotations

from typing import Any

from gpuring.memory import frameworks, gpus

LEGACY_DEFAULT = 1
"""How DLPack and the CUDA array interface write CUDA's legacy default stream.  Its handle is 0, and
here it is 0, too, so that there is one stream and not two."""

PER_THREAD = 2
"""Handles up to this one mean a stream of the device that is current (0 and 1: the legacy default
stream, 2: the per-thread one).  All others belong to one device."""


def current(device: int) -> int:
    """The handle of the current stream for GPU `device`, which need not be the current GPU
    (frameworks.py).  Raises DeviceError."""
    ask, _ = frameworks.current_stream(device)
    with gpus.current(device):  # CuPy has one for each GPU, and tells that of the current one
        return handle(ask())


def handle(stream: Any) -> int:
    """The raw handle (a CUstream as int) of `stream`.

    An int is a handle already.  Everything else is an object with `__cuda_stream__` (CUDA stream
    protocol, version 0), a CuPy stream or a torch stream.  The caller keeps it alive until its work
    is done.  Raises TypeError, ValueError for a handle that cannot be.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        raw: Any = stream
    elif (protocol := getattr(stream, "__cuda_stream__", None)) is not None:
        # Numba and older libraries have it as a plain tuple.
        version, raw = protocol() if callable(protocol) else protocol
        if version != 0:
            raise TypeError(f"{stream!r} has version {version} of the CUDA stream protocol, not 0")
    else:
        raw = getattr(stream, "ptr", None)
        if raw is None:
            raw = getattr(stream, "cuda_stream", None)
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise TypeError(
            "a stream is None, an int handle, a CuPy or torch stream, or has __cuda_stream__; "
            f"{stream!r} is none of these"
        )
    if raw < 0:
        raise ValueError(f"{raw} is not a stream handle")
    return 0 if raw == LEGACY_DEFAULT else raw


def synchronize(device: int, stream: int) -> None:
    """Waits for all work so far on a stream of GPU `device`.  Raises DeviceError."""
    gpus.gpu(device).synchronize(stream)


class _Handle:
    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


def as_cupy(stream: int) -> Any:
    """CuPy's stream object for a handle."""
    cuda = frameworks.load_cupy().cuda
    if hasattr(cuda.Stream, "from_external"):  # from CuPy 14 on
        return cuda.Stream.from_external(_Handle(stream))
    return cuda.ExternalStream(stream)
