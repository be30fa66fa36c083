"""What a slot holds: named arrays at offsets, and the frame's metadata.  Pure."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuring._core import MAX_META_NBYTES, MAX_NDIM, MAX_SLOT_NBYTES, MAX_SPEC_NBYTES

SLOT_ALIGNMENT = 256
"""Slots and the fields in them start at multiples of this many bytes, as CUDA's allocations do."""

ARRAY = "array"
"""The name of the one field of a ring that was created with shape= and dtype=."""

EXTENDED = {"bfloat16": "u2", "float8_e4m3fn": "u1", "float8_e5m2": "u1"}
"""Dtypes that NumPy does not have, and the integers that hold their bits."""


@dataclass(frozen=True)
class Field:
    """One array of a slot."""

    name: str
    """By which slots give it, `slot[name]`; "array" if it is the only one."""
    shape: tuple[int, ...]
    """Of a whole slot; a frame may be smaller."""
    dtype: np.dtype[Any]
    """Of its elements."""
    offset: int
    """Bytes from the start of the slot."""
    extended: str = ""
    """ "bfloat16" and the like: `dtype` is then that of ml_dtypes, or without it, of the bits."""

    @property
    def bits(self) -> np.dtype[Any]:
        """The unsigned integer that holds an element of an extended dtype."""
        return np.dtype(EXTENDED[self.extended])

    @property
    def nbytes(self) -> int:
        """Of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def smaller(self, shape: Sequence[int]) -> tuple[int, ...]:
        """`shape` as a tuple, if a frame of it fits into this field.  Raises ValueError."""
        checked = _shape(shape)
        if not checked:
            raise ValueError("a smaller frame has at least one dimension")
        nbytes = math.prod(checked) * self.dtype.itemsize
        if nbytes > self.nbytes:
            raise ValueError(
                f"a frame of shape {checked} {self.dtype} has {nbytes} bytes, "
                f"the slot's {self.shape} has {self.nbytes}"
            )
        return checked


@dataclass(frozen=True)
class Spec:
    """All fields of a slot, and the dtype of its metadata."""

    fields: tuple[Field, ...]
    """In the order in which they lie in memory."""
    meta: np.dtype[Any] | None
    """A structured dtype, or None: no metadata."""
    canary_nbytes: int = 0
    """At the end of each slot, for who writes beyond it (gpuring.debug)."""
    about: Mapping[str, Any] | None = None
    """What else those who attach must know, as JSON; nothing here looks into it."""

    @property
    def slot_nbytes(self) -> int:
        """Distance of two slots in memory."""
        last = self.fields[-1]
        return _aligned(last.offset + last.nbytes) + self.canary_nbytes

    @property
    def meta_nbytes(self) -> int:
        """Bytes of metadata a frame, 0 if there is none."""
        return self.meta.itemsize if self.meta is not None else 0

    def to_bytes(self) -> bytes:
        """JSON for the header: names, shapes and dtypes; offsets follow from them."""
        described: dict[str, Any] = {
            "fields": [[f.name, f.shape, f.extended or _describe(f.dtype)] for f in self.fields],
            "meta": _describe(self.meta) if self.meta is not None else None,
            "canary": self.canary_nbytes,
        }
        if self.about is not None:
            described["about"] = self.about
        return json.dumps(described).encode()

    def with_about(self, about: Mapping[str, Any]) -> Spec:
        """The same slots with another `about`."""
        return _fits(replace(self, about=about))

    @classmethod
    def from_bytes(cls, text: bytes) -> Spec:
        """The inverse of to_bytes.  Raises ValueError for anything that to_bytes does not write."""
        try:
            read = json.loads(text)
            fields = {name: (shape, _restore(dtype)) for name, shape, dtype in read["fields"]}
            meta = _restore(read["meta"]) if read["meta"] is not None else None
            return make(
                fields=fields,
                meta=meta,
                canary_nbytes=read.get("canary", 0),
                about=read.get("about"),
            )
        except Exception as error:  # NumPy's dtype parser has many ways to refuse
            raise ValueError(f"the description of its slots cannot be read: {error}") from error


def make(
    *,
    shape: Sequence[int] | int | None = None,
    dtype: npt.DTypeLike | None = None,
    fields: Mapping[str, tuple[Sequence[int] | int, npt.DTypeLike]] | None = None,
    meta: npt.DTypeLike | None = None,
    canary_nbytes: int = 0,
    about: Mapping[str, Any] | None = None,
) -> Spec:
    """The spec of `shape=, dtype=` or of `fields={name: (shape, dtype)}`.

    Raises TypeError if it is not one of the two, ValueError for shapes and dtypes that cannot be.
    """
    if (fields is None) == (shape is None) or (fields is None) != (dtype is not None):
        raise TypeError("describe a slot by shape= and dtype=, or by fields={name: (shape, dtype)}")
    if fields is None:
        fields = {ARRAY: (shape, dtype)}  # type: ignore[dict-item]
    if not isinstance(fields, Mapping):
        raise TypeError(f"fields is a mapping {{name: (shape, dtype)}}, not {fields!r}")
    if not fields:
        raise ValueError("a slot needs at least one field")
    placed, offset = [], 0
    for name, (extent, kind) in fields.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"a field's name is a non-empty str, not {name!r}")
        plain, extended = _plain(kind, f"field {name!r}")
        placed.append(Field(name, _shape(extent), plain, offset, extended))
        offset = _aligned(offset + placed[-1].nbytes)
    if canary_nbytes not in (0, SLOT_ALIGNMENT):
        raise ValueError(f"a canary of {canary_nbytes} bytes")
    offset += canary_nbytes
    if offset > MAX_SLOT_NBYTES:
        raise ValueError(f"a slot has at most {MAX_SLOT_NBYTES} bytes (1 TiB), this one {offset}")
    return _fits(Spec(tuple(placed), _meta(meta), canary_nbytes, about))


def _fits(described: Spec) -> Spec:
    nbytes = len(described.to_bytes())
    if nbytes > MAX_SPEC_NBYTES:
        raise ValueError(
            f"the names, shapes and dtypes of a slot take at most {MAX_SPEC_NBYTES} bytes as JSON, "
            f"these take {nbytes}"
        )
    return described


def _aligned(nbytes: int) -> int:
    return -(-nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def _shape(shape: Sequence[int] | int) -> tuple[int, ...]:
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(n, int | np.integer) and n > 0 for n in extents):
        raise ValueError(f"a shape has positive integers, not {shape!r}")
    if len(extents) > MAX_NDIM:
        raise ValueError(
            f"an array has at most {MAX_NDIM} dimensions, {shape!r} has {len(extents)}"
        )
    return tuple(int(n) for n in extents)


def _plain(dtype: Any, what: str) -> tuple[np.dtype[Any], str]:
    """The dtype of arrays, and its name if NumPy does not have it."""
    if type(dtype).__module__ == "torch":
        dtype = str(dtype).removeprefix("torch.")
    if isinstance(dtype, str) and dtype in EXTENDED:
        return _extended(dtype), dtype
    checked = np.dtype(dtype)
    if checked.name in EXTENDED:
        return checked, checked.name
    if checked.hasobject:
        raise ValueError(f"{what}: {checked} holds Python objects, which no other process can read")
    if checked.itemsize == 0:
        raise ValueError(f"{what}: {checked} has no size")
    return checked, ""


def _extended(name: str) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError):
        return np.dtype(EXTENDED[name])
    return found


def _meta(meta: npt.DTypeLike | None) -> np.dtype[Any] | None:
    if meta is None:
        return None
    checked, _ = _plain(meta, "meta")
    if checked.names is None:
        raise ValueError(f"meta= is a structured dtype such as [('pts', 'i8')], not {checked}")
    if checked.itemsize > MAX_META_NBYTES:
        raise ValueError(
            f"metadata has at most {MAX_META_NBYTES} bytes, {checked} has {checked.itemsize}"
        )
    return checked


def _describe(dtype: np.dtype[Any]) -> Any:
    return np.lib.format.dtype_to_descr(dtype)


def _restore(descr: Any) -> np.dtype[Any] | str:
    if isinstance(descr, str) and descr in EXTENDED:
        return descr
    return np.lib.format.descr_to_dtype(_tuples(descr))


def _tuples(descr: Any) -> Any:
    """JSON has lists where a dtype description has tuples: [[name, dtype, shape], …]."""
    if not isinstance(descr, list):
        return descr
    if descr and all(isinstance(item, list) for item in descr):
        return [
            (item[0], _tuples(item[1]), *(tuple(extent) for extent in item[2:])) for item in descr
        ]
    return tuple(_tuples(item) for item in descr)
