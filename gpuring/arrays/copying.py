"""Copying arrays of any library into slots, and frames into arrays of any library.

The copies are asynchronous where the memory allows it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuring.arrays.interchange import kind_of
from gpuring.arrays.streams import LEGACY_DEFAULT, PER_THREAD, current
from gpuring.errors import DeviceError
from gpuring.memory import Given, frameworks, gpus
from gpuring.native import dlpack
from gpuring.native.gpu import DONE, Event, Gpu, Refused
from gpuring.slot_layout import ARRAY, Field

Order = Callable[[int, Sequence[int]], None]
"""order(stream, others): `stream` waits for all work so far on `others`."""

OUT = "array to copy to"

_ON_HOST = (dlpack.DL_CPU, dlpack.DL_CUDA_HOST)
_ON_GPU = (dlpack.DL_CUDA, dlpack.DL_CUDA_MANAGED)
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}  # of DLPack


@dataclass
class _Other:
    """An array of another library, which this object keeps alive."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """The strides in bytes."""
    dtype: np.dtype[Any] | None
    kind: tuple[int, int] | None
    """The kind as in interchange.kind_of, for an array that came through DLPack and has no
    `dtype`."""
    gpu: int | None
    """The ordinal of its GPU.  None: it is in host memory."""
    owner: Any
    read_only: bool = False


def copy_into(
    target: Any, field: Field, source: Any, *, ring: str, stream: int | None, order: Order
) -> bool:
    """Copies into `target`, an array over a slot of `ring`; see WriteSlot.copy_from.

    * `stream`: where to copy; None: `target` is NumPy's, and the copy is waited for.
    * `order`: orders a stream behind others; without others it only raises DeviceError if the
      stream cannot be used now.
    """
    if stream is None and _is_on_gpu(source):
        _wait_for_copy(target, field, source, ring, "source", into_slot=True)
        return True
    home = None if stream is None else target.device.id
    found = _open(source, stream, home, order)
    _check(ring, field, target, found, "source")
    if _is_there(target, found):
        return False
    if stream is not None:
        _enqueue(target, found, stream, order, into_slot=True)
    else:
        _bits(target)[...] = np.asarray(_Bits(found, target.dtype.itemsize))
    return True


def _is_there(target: Any, found: _Other) -> bool:
    """Whether the elements lie where they are to be copied to."""
    at = target.ctypes.data if isinstance(target, np.ndarray) else target.data.ptr
    return found.pointer == at and found.strides == _packed(found.shape, target.dtype.itemsize)


def copy_out(
    frame: Any, field: Field, out: Any, *, ring: str, stream: int | None, order: Order
) -> None:
    """Copies `frame`, an array over a slot of `ring`, into `out`; see ReadSlot.copy_to.

    `stream` and `order` are those of copy_into.
    """
    if stream is None and _is_on_gpu(out):
        _wait_for_copy(frame, field, out, ring, OUT, into_slot=False)
        return
    home = None if stream is None else frame.device.id
    found = _open(out, stream, home, order)
    _check(ring, field, frame, found, OUT)
    if stream is not None:
        _enqueue(frame, found, stream, order, into_slot=False)
        return
    np.asarray(_Bits(found, frame.dtype.itemsize))[...] = _bits(frame)


def memory_of(array: Any) -> Given:
    """The memory of an array of any library.

    Raises TypeError if it is no array on a GPU, ValueError if it is not C-contiguous."""
    if not _is_on_gpu(array):
        raise TypeError(
            'memory= must be a kind, such as "auto", or an array on a GPU, not '
            f"{type(array).__name__}"
        )
    found = _open(array, 0, _gpu_of(array), lambda stream, others: None)
    itemsize = found.dtype.itemsize if found.dtype is not None else (found.kind or (0, 8))[1] // 8
    if found.strides != _packed(found.shape, itemsize) or found.gpu is None:
        raise ValueError("memory= is an array that is not C-contiguous")
    nbytes = math.prod(found.shape) * itemsize
    return Given(found.pointer, nbytes, found.gpu, found)


def _wait_for_copy(
    frame: Any, field: Field, other: Any, ring: str, what: str, *, into_slot: bool
) -> None:
    """Copies between a frame in host memory and an array on a GPU, and waits for that: the end of
    the slot waits for no stream."""
    gpu = _gpu_of(other)

    def behind(stream: int, others: Sequence[int]) -> None:
        for each in others:
            _follow(stream, gpu, each, gpu)

    stream = current(gpu)
    found = _open(other, stream, gpu, behind)
    _check(ring, field, frame, found, what)
    layout = _layout_of(found, frame.dtype.itemsize)
    slot, into = frame.ctypes.data, not into_slot
    try:
        _copy(gpus.gpu(gpu), found.pointer, slot, layout, stream, into=into)
        gpus.gpu(gpu).synchronize(stream)
    except Refused as error:
        where = "from" if into_slot else "to"
        raise DeviceError(f"ring {ring!r}: the copy {where} GPU {gpu} failed ({error})") from error


def _follow(stream: int, home: int, other: int, gpu: int) -> None:
    """Makes `stream` of GPU `home` wait for all work so far on `other` of GPU `gpu`."""
    event = Event(gpus.gpu(gpu))
    event.record(other)
    gpus.gpu(home).follow(stream, event)


def _is_on_gpu(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return False
    if hasattr(array, "__dlpack_device__"):
        return array.__dlpack_device__()[0] in _ON_GPU
    return hasattr(array, "__cuda_array_interface__")


def _gpu_of(array: Any) -> int:
    """The GPU of an array that is on one."""
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[1])
    pointer = array.__cuda_array_interface__["data"][0]
    return gpus.gpu(frameworks.current_device()).device_of(pointer)


def _open(source: Any, stream: int | None, home: int | None, order: Order) -> _Other:
    """The other library's array.  `stream` of GPU `home` is ordered behind the work on it."""
    if isinstance(source, np.ndarray):
        pointer: int = source.ctypes.data
        frozen = not source.flags.writeable
        shape, strides = source.shape, source.strides
        return _Other(pointer, shape, strides, source.dtype, None, None, source, frozen)
    if hasattr(source, "__dlpack_device__"):
        device, number = source.__dlpack_device__()
        if device not in (*_ON_HOST, *_ON_GPU):
            raise TypeError(f"an array of DLPack device type {device} cannot be copied")
        gpu = int(number) if device in _ON_GPU else None
        theirs = None if gpu is None else stream or LEGACY_DEFAULT
        opened = dlpack.DLPackImport(_capsule(source, theirs, gpu))
        if stream is not None and theirs is not None and theirs <= PER_THREAD and gpu != home:
            assert home is not None
            assert gpu is not None
            _follow(stream, home, theirs, gpu)
        code, bits, lanes = opened.kind
        if lanes != 1 or bits % 8:
            raise TypeError(f"elements of {lanes} × {bits} bits cannot be copied")
        if opened.strides is None:
            strides = _packed(opened.shape, bits // 8)
        else:
            strides = tuple(each * bits // 8 for each in opened.strides)
        kind = (code, bits)
        frozen = opened.read_only
        return _Other(opened.data, opened.shape, strides, None, kind, gpu, opened, frozen)
    interface = getattr(source, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_cuda_interface(source, interface, stream, home, order)
    if hasattr(source, "__array_interface__") or hasattr(source, "__array__"):
        viewed = _open(np.asarray(source), stream, home, order)
        viewed.read_only |= not hasattr(source, "__array_interface__")  # it may be a copy
        return viewed
    raise TypeError(
        f"only arrays can be copied (DLPack, or an array interface), not {type(source).__name__}; "
        "in host memory slot.array is an array of NumPy, for all that NumPy can do"
    )


def _capsule(source: Any, stream: int | None, gpu: int | None) -> Any:
    """Asks while the GPU of the array is the current one.  Else torch refuses, and CuPy orders
    `stream` behind the work of another GPU."""
    with nullcontext() if gpu is None else frameworks.on_gpu(source, gpu):
        try:
            return _exported(source, stream)
        except BufferError:
            if stream != PER_THREAD:
                raise
            # torch does not know that stream.  It waits for the legacy default stream by itself.
            return _exported(source, LEGACY_DEFAULT)


def _exported(source: Any, stream: int | None) -> Any:
    try:
        return source.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # older libraries do not know max_version
        return source.__dlpack__(stream=stream)


def _from_cuda_interface(
    source: Any,
    interface: dict[str, Any],
    stream: int | None,
    home: int | None,
    order: Order,
) -> _Other:
    assert stream is not None  # copies with the GPU have one
    assert home is not None
    theirs, gpu = interface.get("stream"), _gpu_of(source)
    if theirs is not None and theirs <= PER_THREAD and gpu != home:
        _follow(stream, home, theirs, gpu)
    elif theirs is not None and theirs != (stream or LEGACY_DEFAULT):
        with gpus.current(home):
            order(stream, (theirs,))
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = _packed(shape, dtype.itemsize)
    pointer, frozen = interface["data"]
    return _Other(pointer, shape, tuple(strides), dtype, None, gpu, source, bool(frozen))


def _packed(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _fits(shape: Sequence[int], whole: Sequence[int]) -> bool:
    return len(shape) == len(whole) and all(0 < n <= m for n, m in zip(shape, whole, strict=True))


def _check(ring: str, field: Field, frame: Any, other: _Other, what: str) -> None:
    """Raises TypeError or ValueError if the copy would have to cast or broadcast, or if it would
    write what is read-only."""
    if other.shape != frame.shape:
        raise ValueError(
            f"ring {ring!r}: the frame has shape {frame.shape}, the {what} {other.shape}"
            + f". A smaller frame is claimed with claim(shape={other.shape})"
            * (what == "source" and field.name == ARRAY and _fits(other.shape, frame.shape))
        )
    if other.kind is not None:
        code, bits = other.kind
        alike = other.kind == kind_of(field)
        theirs = f"{_KINDS.get(code, f'DLPack type {code} of ')}{bits}"
    else:
        alike, theirs = other.dtype == frame.dtype, str(other.dtype)
    if not alike:
        array = "slot.array" if field.name == ARRAY else f"slot[{field.name!r}]"
        raise TypeError(
            f"ring {ring!r}: the frame is {field.extended or frame.dtype}, the {what} {theirs}"
            + f". copy_from converts nothing, and in host memory {array}[...] = value does"
            * (what == "source")
        )
    if other.read_only and what != "source":
        raise ValueError(f"ring {ring!r}: the {what} is read-only")


class _Bits:
    """Host memory for NumPy: the elements have their size, and no type."""

    def __init__(self, source: _Other, itemsize: int) -> None:
        self._owner = source
        self.__array_interface__ = {
            "shape": source.shape,
            "typestr": f"|V{itemsize}",
            "data": (source.pointer, source.read_only),
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


Layout = tuple[int, int, int]
"""(bytes of a row, rows, pitch) of the other library's array"""


def _layout_of(other: _Other, itemsize: int) -> Layout:
    layout = _rows(other.shape, other.strides, itemsize)
    if layout is None:
        raise ValueError(
            f"an array of strides {other.strides} bytes is neither C-contiguous nor rows at a "
            "pitch: make it contiguous first, or use your library on the slot itself"
        )
    return layout


def _copy(gpu: Gpu, other: int, slot: int, layout: Layout, stream: int, *, into: bool) -> None:
    """Enqueues a copy between `other`, which has this layout, and a slot, which is contiguous.

    `into` says that it goes into `other`.
    """
    width, rows, pitch = layout
    if pitch == width or rows == 1:
        to, source = (other, slot) if into else (slot, other)
        gpu.copy(to, source, width * rows, stream)
    elif into:
        gpu.copy_rows(other, pitch, slot, width, width, rows, stream)
    else:
        gpu.copy_rows(slot, width, other, pitch, width, rows, stream)


def _enqueue(frame: Any, other: _Other, stream: int, order: Order, *, into_slot: bool) -> None:
    layout = _layout_of(other, frame.dtype.itemsize)
    home = frame.device.id
    try:
        gpu = gpus.gpu(home)
        with gpu.current():  # a default stream means that of the current device
            order(stream, ())
        if other.gpu is not None:
            gpu.reach(gpus.gpu(other.gpu))
        _copy(gpu, other.pointer, frame.data.ptr, layout, stream, into=not into_slot)
        after = _keep(gpu, stream, other)
        if other.gpu not in (None, home) and not into_slot:
            there = gpus.gpu(other.gpu)  # its library works there, and not on our stream
            there.follow(current(other.gpu), after)
    except Refused as error:
        what = "into" if into_slot else "out of"
        raise DeviceError(f"the copy {what} the slot cannot be enqueued ({error})") from error


_lock = threading.Lock()
_kept: list[tuple[Event, _Other]] = []
"""Arrays of copies that may be running, with an event after each copy.  A library that gets its
memory back orders the next use of it behind its own stream, not behind ours."""


def _keep(gpu: Gpu, stream: int, source: _Other) -> Event:
    """Keeps an array until the copy is done.  Returns the event after it."""
    with _lock:
        done = [each for each in _kept if each[0].query() == DONE]
        for each in done:
            _kept.remove(each)
        here = [event for event, _ in done if event.device == gpu.ordinal]
        event = here[0] if here else Event(gpu)
        event.record(stream)
        _kept.append((event, source))
    # What was done is dropped without the lock.  The end of a source may run any code, even another
    # copy.
    return event
