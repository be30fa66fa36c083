"""CuPy or torch: whose arrays slots are shown as, and whose device and stream are the current ones.

CuPy decides where it is installed.  Without it torch does, if the program has imported it.  Nothing
here imports torch, and CuPy is imported when a ring on a GPU is made or opened.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gpuring.errors import DeviceError
from gpuring.memory import gpus

if TYPE_CHECKING:
    import numpy as np

INSTALL = "pip install 'gpuring[cuda12]' or, for a CUDA 13 driver, 'gpuring[cuda13]'"


@functools.cache  # to look for a package that is not there takes long
def cupy() -> Any:
    """The cupy package.  None: it is not installed.  Raises DeviceError if it is installed and
    cannot be used, because its user would not expect the streams of another library."""
    try:
        found = importlib.import_module("cupy")
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            return None
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" =")]
        why = f"CuPy cannot be imported ({lines[-1] if lines else 'no reason given'})"
        raise DeviceError(f"{why}: {INSTALL}; or use device='host'") from error
    if found.cuda.runtime.is_hip:
        raise DeviceError("this CuPy is built for ROCm; gpuring needs CUDA. Use device='host'")
    return found


def load_cupy() -> Any:
    """The cupy package.  Raises DeviceError if it is not installed or cannot be used."""
    found = cupy()
    if found is None:
        raise DeviceError(f"CuPy is not installed: {INSTALL}; or use device='host'")
    return found


def _torch(name: str) -> Any:
    """A function of torch's compiled module.  None if torch is not imported, or has no CUDA."""
    return getattr(sys.modules.get("torch._C"), name, None)


def current_device() -> int:
    """The GPU that is the current one of this thread: CuPy's, torch's, or that of the context that
    is current.  Raises DeviceError, Refused."""
    found = cupy()
    if found is not None:
        try:
            return int(found.cuda.runtime.getDevice())
        except RuntimeError as error:  # CuPy's CUDARuntimeError
            raise DeviceError(
                f"no usable GPU: CuPy does not start ({error}). Use device='host'"
            ) from error
    ask = _torch("_cuda_getDevice")
    if ask is not None and sys.modules["torch"].cuda.is_initialized():
        return int(ask())
    return gpus.current_device() or 0


def current_stream(device: int) -> tuple[Callable[[], Any], Any]:
    """A function that returns the current stream of this thread, as an object with `ptr` or as a
    handle, and a capsule.

    It is CuPy's for the current device, torch's for GPU `device`, or the legacy default stream.
    The capsule has the C function that CuPy's own Cython modules call for the handle, which is
    50 ns faster.  It is None for others.  Raises DeviceError.
    """
    found = cupy()
    if found is not None:
        return found.cuda.get_current_stream, _capsule_of_cupy()

    def current() -> int:
        # What torch's compiler takes, too.  torch.cuda.current_stream() makes an object first.
        ask = _torch("_cuda_getCurrentRawStream")
        return 0 if ask is None else int(ask(device))

    return current, None


def _capsule_of_cupy() -> Any:
    try:
        exported = importlib.import_module("cupy_backends.cuda.stream").__pyx_capi__
        capsule = exported["get_current_stream_ptr"]
    except (ImportError, AttributeError, KeyError):
        return None
    return capsule if '"intptr_t (void)"' in repr(capsule) else None


def on_gpu(array: Any, device: int) -> AbstractContextManager[Any]:
    """A block in which GPU `device`, where `array` lies, is the current one for its library.

    torch has to be told itself.  While the GPU that it was told to use has no context, torch only
    remembers it, and does not look which one is the current one.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and isinstance(array, tensor):
        block: AbstractContextManager[Any] = sys.modules["torch"].cuda.device(device)
        return block
    return gpus.current(device)


class Span:
    """A part of a slot on a GPU, where CuPy is not installed.

    It has as much of a cupy.ndarray as the package itself asks for, and users do not get it."""

    def __init__(
        self, ptr: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, owner: object
    ) -> None:
        """`owner` keeps the memory mapped."""
        self.shape, self.dtype = shape, dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.data, self.device = SimpleNamespace(ptr=ptr), SimpleNamespace(id=device)
        self._owner = owner
