"""The GPU of a ring whose frames are copied to the host."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from gpuring.registry import directory, segment


def place_of(name: str, timeout_s: float) -> AbstractContextManager[Any]:
    """A context in which the GPU of the ring `name` is the current one, as often as it is entered:
    another GPU would need peer access and a second context.  For a host ring it is empty.

    Waits until the ring is there, without a touch of CUDA.  Raises RingNotFound, RingIncompatible,
    PermissionError, DeviceError.
    """
    header = directory.look(segment.check_name(name), timeout_s)
    if header.on_host:
        return contextlib.nullcontext()
    from gpuring.memory import cuda, gpus

    cuda.device_for(None)
    mine = cuda.ordinal_of(header.device_uuid)
    # None: attach says what is missing.
    return contextlib.nullcontext() if mine is None else gpus.current(mine)
