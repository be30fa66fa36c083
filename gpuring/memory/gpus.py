"""The GPUs that this process sees, and which of them is the current one of a thread.

`import gpuring` loads no driver, and neither does this module.
"""

from __future__ import annotations

import ctypes
import functools
from contextlib import AbstractContextManager

from gpuring.memory import driver
from gpuring.native import Driver
from gpuring.native.gpu import Gpu, current_gpu


def count() -> int:
    """How many GPUs this process sees.  Raises Refused, as all of these do."""
    number = ctypes.c_int()
    driver.call("cuDeviceGetCount", ctypes.byref(number))
    return number.value


def name(device: int) -> str:
    """The name of a GPU, such as "NVIDIA H200"."""
    text = ctypes.create_string_buffer(256)
    driver.call("cuDeviceGetName", text, ctypes.c_int(len(text)), ctypes.c_int(device))
    return text.value.decode()


@functools.cache
def gpu(device: int) -> Gpu:
    """GPU `device`, whose primary context is there from now on until the process ends."""
    return Gpu(device, Driver())


def current(device: int) -> AbstractContextManager[None]:
    """A block in which GPU `device` is the current one of this thread.  After it the one before is
    again."""
    return gpu(device).current()


def current_device() -> int | None:
    """The GPU whose context is current in this thread.  None: no context is."""
    return current_gpu(Driver())
