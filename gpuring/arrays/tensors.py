"""New arrays on a GPU, and torch's tensors in place of CuPy's arrays where CuPy is missing."""

from __future__ import annotations

import contextlib
import importlib
import math
from typing import Any

from gpuring.arrays.streams import as_cupy, current
from gpuring.errors import DeviceError
from gpuring.memory import frameworks, gpus
from gpuring.memory.frameworks import Span
from gpuring.native import dlpack
from gpuring.slot_layout import Field

_BYTES = (1, 8)  # DLPack's (type code, bits) of uint8


def empty(shape: tuple[int, ...], field: Field, device: int, stream: int | None) -> Any:
    """An array of CuPy, or without CuPy a tensor of torch, on GPU `device`, for elements of
    `field`.

    Its library uses the memory again behind `stream`; None is the current one.  Raises DeviceError
    if neither is installed.
    """
    cupy = frameworks.cupy()
    if cupy is not None:
        on = contextlib.nullcontext() if stream is None else as_cupy(stream)
        with gpus.current(device), on:
            return cupy.empty(shape, field.dtype)
    torch = load_torch()
    raw = current(device) if stream is None else stream
    cuda = torch.cuda
    # ExternalStream(0) would be a new stream, and not the default one.
    on = cuda.ExternalStream(raw, device=device) if raw else cuda.default_stream(device)
    # A block with a stream of another GPU than the current one would make a context on that one.
    with cuda.device(device), cuda.stream(on):
        return torch.empty(shape, dtype=dtype_of(field), device=f"cuda:{device}")


def load_torch() -> Any:
    """The torch package.  Raises DeviceError if it cannot be imported, or has no CUDA."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise _no_arrays("torch") from error
    if torch.version.cuda is None:
        raise _no_arrays("torch with CUDA")
    return torch


def _no_arrays(missing: str) -> DeviceError:
    return DeviceError(
        f"neither CuPy nor {missing} is installed to make an array on a GPU: "
        f"{frameworks.INSTALL}, or pip install 'gpuring[torch]'"
    )


def dtype_of(field: Field) -> Any:
    """torch's dtype for the elements of a field.  Raises DeviceError if it has none."""
    name = field.extended or field.dtype.name
    found = getattr(load_torch(), name, None)
    if found is None:
        raise DeviceError(f"torch has no {name}: {frameworks.INSTALL}")
    return found


def rows(span: Span, field: Field, n: int, distance: int) -> Any:
    """A tensor (n, …) over this part of a slot and those of n - 1 slots behind it, which are
    `distance` bytes apart.  Nothing is ordered, and the end of a slot does not wait for it."""
    flat = _bytes_at(span, (n - 1) * distance + span.nbytes).view(dtype_of(field))
    steps = [math.prod(span.shape[k:]) for k in range(1, len(span.shape) + 1)]
    return flat.as_strided((n, *span.shape), (distance // field.dtype.itemsize, *steps))


def bytes_of(array: Any) -> Any:
    """A tensor over the bytes of an array or a Span that is on a GPU.  Nothing is ordered, and the
    end of a slot does not wait for it."""
    return _bytes_at(array, array.nbytes)


def _bytes_at(array: Any, nbytes: int) -> Any:
    """The first `nbytes` bytes of `array`."""
    device = (dlpack.DL_CUDA, array.device.id)
    capsule = dlpack.dlpack_export(array, array.data.ptr, device, (nbytes,), _BYTES, 0, False)
    return load_torch().from_dlpack(capsule)
