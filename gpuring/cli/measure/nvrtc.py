"""Kernels without CuPy: NVRTC compiles them (cuda-bindings), and the driver loads them."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from gpuring.memory import driver, gpus
from gpuring.native import Driver

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


def function(source: str, name: str, device: int) -> int:
    """The CUfunction of a kernel on GPU `device`.  Its module stays loaded."""
    found = ctypes.c_void_p()
    with gpus.current(device):
        module = _module(source, device)
        driver.call("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
    return found.value or 0


@functools.cache
def _module(source: str, device: int) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), _cubin(source, device))
    return module


def _cubin(source: str, device: int) -> bytes:
    from cuda.bindings import nvrtc

    def answer(status: Any, *found: Any) -> Any:
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"NVRTC: {status}")
        return found[0] if found else None

    major, minor = (Driver().attribute(number, device) for number in (_MAJOR, _MINOR))
    program = answer(*nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], []))
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    answer(*nvrtc.nvrtcCompileProgram(program, len(options), options))
    cubin = bytes(answer(*nvrtc.nvrtcGetCUBINSize(program)))
    answer(*nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin
