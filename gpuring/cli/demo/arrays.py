"""Whose arrays the demo computes with: NumPy's in host memory, CuPy's or torch's on a GPU.

arithmetic.py is the same over each of them.  Here is what they write in different ways.  A kind of
number is written as NumPy writes it ("u1", "i8").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuring.arrays.tensors import load_torch
from gpuring.memory import frameworks


class Arrays(Protocol):
    """A library, and a place for its arrays."""

    def from_host(self, values: NDArray[Any]) -> Any:
        """A copy of an array of NumPy, which may be that array."""

    def of(self, slot: Any) -> Any:
        """The frame of a slot, without a copy."""

    def cast(self, array: Any, kind: str) -> Any:
        """A copy with elements of another kind."""

    def words(self, flat: Any) -> Any:
        """Eight uint8 at a time as int64, without a copy."""

    def sum(self, array: Any, axis: int, kind: str) -> Any:
        """The sums along an axis, of numbers of that kind."""

    def concatenate(self, parts: Sequence[Any]) -> Any:
        """One vector of several."""

    def to_host(self, array: Any) -> NDArray[Any]:
        """An array of NumPy.  Waits for the GPU."""


class NumPy:
    """NumPy, or CuPy, which has the same names."""

    def __init__(self, xp: Any = np) -> None:
        self._xp = xp

    def from_host(self, values: NDArray[Any]) -> Any:
        return self._xp.asarray(values)

    def of(self, slot: Any) -> Any:
        return slot.array

    def cast(self, array: Any, kind: str) -> Any:
        return array.astype(kind)

    def words(self, flat: Any) -> Any:
        return flat.view("i8")

    def sum(self, array: Any, axis: int, kind: str) -> Any:
        return array.sum(axis=axis, dtype=kind)

    def concatenate(self, parts: Sequence[Any]) -> Any:
        return self._xp.concatenate(parts)

    def to_host(self, array: Any) -> NDArray[Any]:
        host: NDArray[Any] = array if self._xp is np else array.get()
        return host


class Torch:
    """torch, which computes with no unsigned numbers but bytes: larger signed ones take their
    place."""

    def __init__(self, torch: Any, device: str = "cuda") -> None:
        self._torch, self._device = torch, device
        self._kinds = {"u1": torch.uint8, "i2": torch.int16}
        self._kinds |= {"u4": torch.int64, "i8": torch.int64}

    def from_host(self, values: NDArray[Any]) -> Any:
        return self._torch.from_numpy(values).to(self._device)

    def of(self, slot: Any) -> Any:
        return self._torch.from_dlpack(slot)

    def cast(self, array: Any, kind: str) -> Any:
        return array.to(self._kinds[kind])

    def words(self, flat: Any) -> Any:
        return flat.view(self._torch.int64)

    def sum(self, array: Any, axis: int, kind: str) -> Any:
        return array.sum(axis, dtype=self._kinds[kind])

    def concatenate(self, parts: Sequence[Any]) -> Any:
        return self._torch.cat(tuple(parts))

    def to_host(self, array: Any) -> NDArray[Any]:
        host: NDArray[Any] = array.cpu().numpy()
        return host


def arrays(name: str) -> Arrays:
    """The arrays of the library "numpy", "cupy" or "torch"."""
    if name == "torch":
        return Torch(load_torch())
    return NumPy(np if name == "numpy" else frameworks.load_cupy())
