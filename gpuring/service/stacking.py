"""The requests of a batch as one array for each field, and its answers out of one array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuring.arrays import tensors
from gpuring.memory import frameworks
from gpuring.memory.frameworks import Span
from gpuring.printable import counted
from gpuring.ring import inner
from gpuring.service.call import Batch
from gpuring.slot_layout import ARRAY

if TYPE_CHECKING:
    from gpuring.ring.ring import Ring
    from gpuring.service.call import Call
    from gpuring.slot_layout import Field, Spec


class Stack:
    """Stacks requests of one ring, at most `most` of them."""

    def __init__(self, ring: Ring, most: int) -> None:
        self._library: Any = np
        if inner.memory(ring).mapped:
            self._library = frameworks.cupy() or tensors.load_torch()
        self._fields, self._distance, self._most = ring.spec.fields, ring.spec.slot_nbytes, most
        self._all = {
            field.name: self._strided(
                field, inner.memory(ring).array(0, field, field.shape, writable=False), ring.slots
            )
            for field in self._fields
        }
        """By field: the array (slots, …) over all slots."""
        self._kept: dict[str, Any] = {}
        """By field: memory into which requests are copied that do not lie in a row."""

    def requests(self, calls: Sequence[Call]) -> dict[str, Any]:
        """The arrays (n, …) of the calls' requests by field.  All of them have one shape.

        Requests in successive slots are shown where they are.  Others are copied, on the current
        stream.  The arrays are valid until the next call of this method, or until the calls are
        answered.
        """
        slots = [call.slot for call in calls]
        first, n = slots[0].index, len(slots)
        if any(slot.index != first + k for k, slot in enumerate(slots)):
            return {
                field.name: self._copy(field, [inner.array(slot, field.name) for slot in slots])
                for field in self._fields
            }
        if inner.shape(slots[0]) is None:
            return {name: each[first : first + n] for name, each in self._all.items()}
        return {ARRAY: self._strided(self._fields[0], inner.array(slots[0], ARRAY), n)}

    def zeros(self) -> dict[str, Any]:
        """Arrays of zeros by field, as large as those of the largest batch."""
        shapes = {name: (self._most, *each.shape[1:]) for name, each in self._all.items()}
        return {name: self._new("zeros", shapes[name], each) for name, each in self._all.items()}

    def _new(self, how: str, shape: tuple[int, ...], like: Any) -> Any:
        where = {} if hasattr(like, "strides") else {"device": like.device}  # of a tensor
        return getattr(self._library, how)(shape, dtype=like.dtype, **where)

    def _strided(self, field: Field, array: Any, n: int) -> Any:
        """The array (n, …) of this one and of those in the slots behind it."""
        if isinstance(array, Span):
            return tensors.rows(array, field, n, self._distance)
        shape, strides = (n, *array.shape), (self._distance, *array.strides)
        strided = self._library.lib.stride_tricks.as_strided(array, shape, strides)
        return self._as_requests(strided)

    def _as_requests(self, array: Any) -> Any:
        if self._library is np:
            array.flags.writeable = False  # as requests are in their slots
        return array

    def _copy(self, field: Field, arrays: list[Any]) -> Any:
        if isinstance(arrays[0], Span):
            arrays = [tensors.rows(array, field, 1, self._distance)[0] for array in arrays]
        first, n = arrays[0], len(arrays)
        if field.name not in self._kept:
            elements = self._most * math.prod(field.shape)
            self._kept[field.name] = self._new("empty", (elements,), first)
        stacked = self._kept[field.name][: n * math.prod(first.shape)].reshape(n, *first.shape)
        for k, array in enumerate(arrays):
            stacked[k] = array
        return self._as_requests(stacked)


def of_one_shape(calls: Batch) -> Iterator[Batch]:
    """The calls of a batch whose requests have the same shape, together and in order.  A request
    may be smaller than its slot."""
    first = inner.shape(calls[0].slot)
    if all(inner.shape(call.slot) == first for call in calls):
        yield Batch(calls)
        return

    def shape(call: Call) -> tuple[int, ...]:
        return tuple(inner.array(call.slot, ARRAY).shape)

    for _, some in itertools.groupby(sorted(calls, key=shape), shape):
        yield Batch(some)


def answers(result: Any, n: int, spec: Spec) -> list[dict[str, Any]]:
    """What each of n calls is answered, by field, out of what the user's function returned.

    Raises TypeError and ValueError, which say what is wrong with it.
    """
    one = [field.name for field in spec.fields] == [ARRAY]
    arrays = {ARRAY: result} if one else result
    names = {field.name for field in spec.fields}
    if not isinstance(arrays, Mapping) or set(arrays) != names:
        given = sorted(arrays) if isinstance(arrays, Mapping) else type(result).__name__
        raise TypeError(
            f"answers have the fields {sorted(names)}: return a dict of them, not {given}"
        )
    for field in spec.fields:
        _check(arrays[field.name], n, field, "" if one else f" for field {field.name!r}")
    return [{name: array[k] for name, array in arrays.items()} for k in range(n)]


def _check(array: Any, n: int, field: Field, which: str) -> None:
    wanted = (n, *field.shape)
    shape = getattr(array, "shape", None)
    if shape is None:
        if not isinstance(array, Sequence) or isinstance(array, str | bytes):
            raise TypeError(
                f"the function returned {type(array).__name__}{which}, not an array of shape "
                f"{wanted} or a list of {n} arrays"
            )
        if len(array) != n:
            raise ValueError(
                f"the function returned {counted(len(array), 'answer')}{which} to "
                f"{counted(n, 'call')}"
            )
    elif tuple(shape) != wanted:
        raise ValueError(
            f"the function returned an array of shape {tuple(shape)}{which} for "
            f"{counted(n, 'call')}, whose answers have the shape {wanted}"
        )
    dtype = getattr(array, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype != field.dtype and not field.extended:
        raise TypeError(
            f"the function returned {dtype}{which}, and answers are {field.dtype}: convert them"
        )
