"""Copying arrays of any library into slots, asynchronously where the memory allows it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuring import _dlpack
from gpuring.errors import DeviceError
from gpuring.interchange import kind_of
from gpuring.memory.cuda_ipc import load_cupy
from gpuring.spec import Field
from gpuring.streams import LEGACY_DEFAULT

Order = Callable[[int, Sequence[int]], None]
"""order(stream, others): `stream` waits for all work so far on `others`."""

_ON_HOST = (_dlpack.DL_CPU, _dlpack.DL_CUDA_HOST)
_ON_GPU = (_dlpack.DL_CUDA, _dlpack.DL_CUDA_MANAGED)


@dataclass
class _Source:
    """An array of another library, which this object keeps alive."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """The strides in bytes."""
    dtype: np.dtype[Any] | None
    kind: tuple[int, int] | None
    """The kind as in interchange.kind_of, for an array that came through DLPack and has no
    `dtype`."""
    on_gpu: bool
    owner: Any


def copy_into(
    target: Any, field: Field, source: Any, *, ring: str, stream: int | None, order: Order
) -> None:
    """Copies into `target`, an array over a slot of `ring`; see WriteSlot.copy_from.

    * `stream`: where to copy; None: `target` is in host memory, and this is a copy by the CPU.
    * `order`: orders a stream behind others; without others it only raises DeviceError if the
      stream cannot be used now.
    """
    found = _open(source, ring, stream, order)
    _check(ring, field, target, found)
    if stream is not None:
        _enqueue(target, found, stream, order)
        return
    if found.on_gpu:
        raise TypeError(f"ring {ring!r} is in host memory: copy the source to the host first")
    _bits(target)[...] = np.asarray(_Bits(found, target.dtype.itemsize))


def _open(source: Any, ring: str, stream: int | None, order: Order) -> _Source:
    """The source.  `stream` is ordered behind the work on it."""
    if isinstance(source, np.ndarray):
        pointer: int = source.ctypes.data
        return _Source(pointer, source.shape, source.strides, source.dtype, None, False, source)
    if hasattr(source, "__dlpack_device__"):
        device, _ = source.__dlpack_device__()
        if device not in (*_ON_HOST, *_ON_GPU):
            raise TypeError(f"a source of DLPack device type {device} cannot be copied")
        on_gpu = device in _ON_GPU
        if on_gpu and stream is None:
            raise TypeError(f"ring {ring!r} is in host memory: move the source there first")
        opened = _dlpack.DLPackImport(
            _capsule(source, (stream or LEGACY_DEFAULT) if on_gpu else None)
        )
        code, bits, lanes = opened.kind
        if lanes != 1 or bits % 8:
            raise TypeError(f"elements of {lanes} × {bits} bits cannot be copied")
        strides = tuple(each * bits // 8 for each in opened.strides)
        kind = (code, bits)
        return _Source(opened.data, opened.shape, strides, None, kind, on_gpu, opened)
    interface = getattr(source, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_cuda_interface(source, interface, ring, stream, order)
    if hasattr(source, "__array_interface__") or hasattr(source, "__array__"):
        return _open(np.asarray(source), ring, stream, order)
    raise TypeError(
        f"copy_from takes an array (DLPack, or an array interface), not {type(source).__name__}"
    )


def _capsule(source: Any, stream: int | None) -> Any:
    with contextlib.suppress(TypeError):  # older libraries do not know max_version
        return source.__dlpack__(stream=stream, max_version=(1, 0))
    return source.__dlpack__(stream=stream)


def _from_cuda_interface(
    source: Any, interface: dict[str, Any], ring: str, stream: int | None, order: Order
) -> _Source:
    if stream is None:
        raise TypeError(f"ring {ring!r} is in host memory: move the source there first")
    theirs = interface.get("stream")
    if theirs is not None and theirs != (stream or LEGACY_DEFAULT):
        order(stream, (theirs,))
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = _packed(shape, dtype.itemsize)
    return _Source(interface["data"][0], shape, tuple(strides), dtype, None, True, source)


def _packed(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _check(ring: str, field: Field, target: Any, source: _Source) -> None:
    """Raises TypeError or ValueError if the source would have to be cast or broadcast."""
    if source.shape != target.shape:
        raise ValueError(
            f"ring {ring!r}: the frame has shape {target.shape}, the source {source.shape}"
        )
    wanted = field.extended or str(target.dtype)
    if source.kind is not None:
        if source.kind != kind_of(field):
            raise TypeError(
                f"ring {ring!r}: the frame is {wanted}, the source has DLPack type code "
                f"{source.kind[0]} of {source.kind[1]} bits"
            )
    elif source.dtype != target.dtype:
        raise TypeError(f"ring {ring!r}: the frame is {wanted}, the source {source.dtype}")


class _Bits:
    """Host memory for NumPy: the elements have their size, and no type."""

    def __init__(self, source: _Source, itemsize: int) -> None:
        self._owner = source
        self.__array_interface__ = {
            "shape": source.shape,
            "typestr": f"|V{itemsize}",
            "data": (source.pointer, True),
            "strides": source.strides,
            "version": 3,
        }


def _bits(array: Any) -> Any:
    return array.view(f"V{array.dtype.itemsize}")


def _rows(
    shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, int, int] | None:
    """Returns (bytes of a row, rows, pitch) of memory that is rows at a fixed pitch, or None if it
    is not."""
    axis, width = len(shape), itemsize
    while axis and (shape[axis - 1] == 1 or strides[axis - 1] == width):
        width *= shape[axis - 1]
        axis -= 1
    rows, pitch = 1, width
    if axis:
        pitch = step = strides[axis - 1]
        for extent, stride in zip(reversed(shape[:axis]), reversed(strides[:axis]), strict=True):
            if extent != 1 and stride != step:
                return None
            rows, step = rows * extent, step * extent
    return (width, rows, pitch) if pitch >= width else None


def _enqueue(target: Any, source: _Source, stream: int, order: Order) -> None:
    layout = _rows(source.shape, source.strides, target.dtype.itemsize)
    if layout is None:
        raise ValueError(
            f"a source of strides {source.strides} bytes is neither C-contiguous nor rows at a "
            "pitch: make it contiguous first, or write with your library into the slot itself"
        )
    width, rows, pitch = layout
    cuda = load_cupy().cuda
    runtime = cuda.runtime
    to, kind = target.data.ptr, runtime.memcpyDefault
    order(stream, ())
    try:
        if pitch == width or rows == 1:
            runtime.memcpyAsync(to, source.pointer, width * rows, kind, stream)
        else:
            runtime.memcpy2DAsync(to, width, source.pointer, pitch, width, rows, kind, stream)
        _keep(cuda, target.data.device_id, stream, source)
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"the copy into the slot cannot be enqueued ({error})") from error


DONE = 0
"""Any other status of an event, also while another thread's capture forbids to ask, is no proof."""

_lock = threading.Lock()
_kept: list[tuple[Any, _Source]] = []
"""Sources of copies that may be running, with an event after each copy.  A library that gets its
memory back orders the next use of it behind its own stream, not behind ours."""


def _keep(cuda: Any, device: int, stream: int, source: _Source) -> None:
    query = cuda.runtime.eventQuery
    with cuda.Device(device):
        event = cuda.Event(disable_timing=True)
        cuda.runtime.eventRecord(event.ptr, stream)
    with _lock:
        before = list(_kept)
        _kept[:] = [each for each in before if query(each[0].ptr) != DONE]
        _kept.append((event, source))
    del before  # without the lock, because the end of a source may run any code, even another copy
