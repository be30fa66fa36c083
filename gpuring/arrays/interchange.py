"""A slot's array as other libraries see it: DLPack, and the array interfaces of CUDA and NumPy.

gpuring/ring/exported.pyx has the protocols, and here is what they answer.

An importer that names its stream (DLPack) is ordered behind everything done with the slot so far,
and publish or release waits for that stream.  An importer that does not (the CUDA array interface)
orders itself behind the slot's stream.  We do not learn on which stream it works then, so its user
has to call `Slot.use_on`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpuring.arrays.streams import LEGACY_DEFAULT, as_cupy
from gpuring.memory import gpus
from gpuring.memory.frameworks import Span
from gpuring.native import dlpack
from gpuring.slot_layout import EXTENDED, Field

# DLDataTypeCode (dlpack.h), by NumPy's kind or by name.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_EXTENDED_CODES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
assert _EXTENDED_CODES.keys() == EXTENDED.keys()


def kind_of(field: Field) -> tuple[int, int] | None:
    """(DLPack's type code, bits) of a field's elements.  None if DLPack does not have them."""
    dtype = field.dtype
    if field.extended:
        return _EXTENDED_CODES[field.extended], 8 * dtype.itemsize
    if dtype.kind not in _CODES or not dtype.isnative or dtype.char in "gG":
        return None  # a long double has no IEEE format: it uses 80 bits of 128
    return _CODES[dtype.kind], 8 * dtype.itemsize


class View(NamedTuple):
    """An array of a slot, and the streams that an importer of it has to deal with."""

    owner: object
    """The object that messages name."""
    field: Field
    array: Any
    """An array of CuPy or NumPy, or a Span."""
    read_only: bool
    """Whether it cannot be written."""
    stream: int | None
    """The stream on which the slot is used.  None in host memory."""
    use_on: Callable[[int], None]
    """Orders a stream behind all work on the slot so far.  The slot's end waits for that stream."""


def device_of(view: View) -> tuple[int, int]:
    """DLPack's (device type, number)."""
    return (dlpack.DL_CPU, 0) if view.stream is None else (dlpack.DL_CUDA, view.array.device.id)


def capsule(
    view: View,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """What `__dlpack__` of the view's owner returns.  Raises BufferError."""
    owner, field, array, read_only, home, use_on = view
    device = device_of(view)
    if dl_device is not None and tuple(dl_device) != device:
        raise BufferError(f"{owner!r} is on device {device}, not {tuple(dl_device)}")
    kind = kind_of(field)
    if kind is None:
        raise BufferError(f"DLPack has no {field.dtype}")
    flags = dlpack.DL_READ_ONLY if read_only and not copy else 0
    if home is None:
        if stream not in (None, -1):
            raise BufferError(f"{owner!r} is in host memory: stream is None, not {stream!r}")
        if copy:
            array = array.copy()
        pointer = array.ctypes.data
    else:
        if stream == 0:
            raise BufferError("stream=0 is ambiguous in DLPack: 1 is the legacy default stream")
        if stream != -1:
            use_on(LEGACY_DEFAULT if stream is None else stream)
        if copy:
            array = _copy(array, home if stream == -1 else stream)
        pointer = array.data.ptr
    if copy:
        flags |= dlpack.DL_COPIED
    versioned = max_version is not None and max_version[0] >= 1
    return dlpack.dlpack_export(array, pointer, device, array.shape, kind, flags, versioned)


def cuda_interface(view: View) -> dict[str, Any]:
    """Version 3 of CUDA's array interface.  Raises AttributeError in host memory."""
    _, _, array, read_only, home, use_on = view
    if home is None:
        raise AttributeError("__cuda_array_interface__: this ring is in host memory")
    use_on(home)
    return {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "data": (array.data.ptr, read_only),
        "strides": None,
        "stream": home or LEGACY_DEFAULT,
        "version": 3,
    }


def numpy_interface(view: View) -> dict[str, Any]:
    """Version 3 of NumPy's array interface.  Raises AttributeError on a GPU, and for a dtype that
    would come as "V2", without its meaning."""
    if view.stream is not None:
        raise AttributeError("__array_interface__: this ring is on a GPU")
    if view.field.extended:
        raise AttributeError(f"__array_interface__ has no {view.field.extended}")
    interface: dict[str, Any] = view.array.__array_interface__
    return interface


def numpy_array(view: View) -> Callable[..., Any]:
    """NumPy's `__array__`, which takes the place of an interface that has no such dtype.  Raises
    AttributeError for others and on a GPU."""
    if view.stream is not None or not view.field.extended:
        raise AttributeError("__array__: this slot has an array interface")
    return functools.partial(np.array, view.array, copy=None)


def _copy(array: Any, stream: int | None) -> Any:
    """A copy, made on the importer's stream.  CuPy uses its memory again on that stream, too."""
    on = LEGACY_DEFAULT if stream is None else stream
    if not isinstance(array, Span):
        with as_cupy(on):
            return array.copy()
    from gpuring.memory import cuda

    device, nbytes = array.device.id, array.nbytes
    made = cuda.uninterrupted(device, functools.partial(cuda.plain, nbytes, device))
    gpus.gpu(device).copy(made.ptr, array.data.ptr, nbytes, on)
    return Span(made.ptr, array.shape, array.dtype, device, made)
