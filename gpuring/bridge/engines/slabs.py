"""The slots of an attached ring, and their metadata, as a bridge uses them: as plain bytes.

Only slots that are claimed or held may be used through these objects; nothing here checks it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuring.bridge.engines.contract import Slab
from gpuring.memory import gpus
from gpuring.ring import inner
from gpuring.ring.ring import Ring
from gpuring.slot_layout import Field, Spec


def slab_of(ring: Ring, *, writable: bool) -> Slab:
    """All slots of a ring that this process has attached to.

    Its GPU becomes the current one of this thread, because claims and acquires take the current
    stream.
    """
    nbytes = ring.slots * ring.spec.slot_nbytes
    whole = Field("bridge", (nbytes,), np.dtype("u1"), 0)
    array = inner.memory(ring).array(0, whole, (nbytes,), writable=writable)
    on_host = not inner.memory(ring).mapped
    if not on_host:
        gpus.gpu(array.device.id).use()
    return Slab(
        pointer=array.ctypes.data if on_host else int(array.data.ptr),
        slots=ring.slots,
        slot_nbytes=ring.spec.slot_nbytes,
        memory=ring.memory,
        gpu=None if on_host else int(array.device.id),
        owner=memoryview(array) if on_host else array,
        window=ring.slots,
    )


def metas_of(ring: Ring, *, writable: bool) -> Any:
    """The metadata of all slots as plain bytes, by index.  None without any."""
    nbytes = ring.spec.meta_nbytes
    return inner.metadata(ring, writable=writable, dtype=f"V{nbytes}") if nbytes else None


def extent_of(spec: Spec) -> int:
    """How many bytes of a slot hold a frame of the slot's own shape."""
    last = spec.fields[-1]
    return last.offset + last.nbytes


def nbytes_of(spec: Spec, shape: tuple[int, ...]) -> int:
    """How many bytes a frame has.  An empty shape is the slot's own.  Raises ValueError."""
    if not shape:
        return extent_of(spec)
    if len(spec.fields) != 1:
        raise ValueError("only a frame with one field may be smaller than its slot")
    field = spec.fields[0]
    return int(np.prod(field.smaller(shape), dtype=object)) * field.dtype.itemsize
