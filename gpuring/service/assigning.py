"""What `client.call(value)` and `call.reply(value)` put into a slot.

NumPy's assignment broadcasts and casts in silence: half of a request may be missing, and a float
may lose its fraction.  So this refuses another shape, and what cannot be cast as "same_kind".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuring.memory.frameworks import Span
from gpuring.ring import inner

if TYPE_CHECKING:
    from gpuring.ring.write_slot import WriteSlot
    from gpuring.service.pending import PendingCall, RequestSlot

_NUMBERS = "biufc"
_BY_FIELDS = {
    "the request": "give call() a function, which gets the slot and writes them",
    "the answer": "write them in the block of `with call.answer() as slot:`",
}


def filled(slot: RequestSlot, fill: Callable[[RequestSlot], object] | Any) -> PendingCall:
    """The call of a request into which `fill` writes, or which gets it as its value."""
    call = slot.call
    if fill is None:
        raise TypeError(
            "call() takes a function that writes the request, or what is assigned to its array, "
            "not None"
        )
    if callable(fill):
        fill(slot)
    else:
        assign(slot, fill, "the request")
    return call


def assign(slot: WriteSlot, value: Any, what: str) -> None:
    """`slot.array[...] = value`.  Raises ValueError for another shape, and TypeError for a dtype
    that cannot be cast to that of the array under NumPy's rule "same_kind".

    Without CuPy a value of NumPy, or of numbers, is cast on the host, and one of another library is
    not cast on the GPU.
    """
    try:
        field = inner.only_field(slot)
    except TypeError as error:
        raise TypeError(f"{error}. For {what} {_BY_FIELDS[what]}") from None
    array = inner.array(slot, field)
    if type(value) is not np.ndarray or value.dtype != array.dtype or value.shape != array.shape:
        _check(array, value, what)
    if isinstance(array, Span):
        plain = not hasattr(value, "__dlpack__") or isinstance(value, np.ndarray)
        slot.copy_from(np.asarray(value, array.dtype, order="C") if plain else value)
    else:
        array[...] = value


def _check(array: Any, value: Any, what: str) -> None:
    shape = tuple(np.shape(value))
    if shape != array.shape:
        raise ValueError(f"{what} has the shape {array.shape}, not {shape}")
    has = getattr(value, "dtype", None)
    plain = has is None  # numbers and lists of them, whose own integers fit into all integers
    dtype = np.asarray(value).dtype if plain else has
    if not isinstance(dtype, np.dtype) or {dtype.kind, array.dtype.kind} - {*_NUMBERS}:
        return  # of another library, or no number: the assignment itself knows
    if plain and {dtype.kind, array.dtype.kind} <= {*"iu"}:
        return
    if not np.can_cast(dtype, array.dtype, "same_kind"):
        raise TypeError(
            f"{what} is {array.dtype}, and NumPy does not cast {dtype} to that by its rule "
            '"same_kind": convert it first'
        )
