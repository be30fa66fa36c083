"""Arrays of slots, on a GPU as on the host: CuPy's or, where CuPy is hidden, tensors of torch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from gpuring.memory import frameworks
from gpuring.memory.frameworks import Span
from gpuring.ring import inner
from gpuring.ring.slot import Slot
from gpuring.slot_layout import ARRAY


def array_of(slot: Slot, name: str = ARRAY) -> Any:
    """`slot.array`, or the array over a field.  Without CuPy torch imports the slots of a GPU."""
    if name == ARRAY:
        name = inner.only_field(slot)
    if isinstance(inner.array(slot, name), Span):
        return importlib.import_module("torch").from_dlpack(slot.field(name))
    return slot[name]


def to_host(array: Any) -> np.ndarray:
    """A copy on the host.  On a GPU it is made on the current stream and waited for."""
    if hasattr(array, "cpu"):
        return np.array(array.cpu().numpy())
    return np.array(array.get() if hasattr(array, "get") else array)


def assign(array: Any, value: Any) -> None:
    """Writes a scalar or a NumPy array into an array, on the current stream."""
    if isinstance(array, np.ndarray) or not isinstance(value, np.ndarray):
        array[...] = value
    elif frameworks.cupy():
        array.set(value)
    else:
        array.copy_(importlib.import_module("torch").from_numpy(value))
