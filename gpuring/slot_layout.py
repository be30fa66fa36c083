"""What a slot holds: named arrays at offsets, and the frame's metadata.

Nothing here touches a ring or shared memory.  The C library computes the offsets from the
description (native/host/spec.h), when a ring is created and when a process attaches to it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuring import native
from gpuring.arguments import integer
from gpuring.native import MAX_META_NBYTES, MAX_NDIM, MAX_SPEC_NBYTES, SPEC_KEPT_FREE

SLOT_ALIGNMENT = native.SLOT_ALIGNMENT
"""Slots and the fields in them start at multiples of this many bytes, as CUDA's allocations do."""

ARRAY = "array"
"""The name of the one field of a ring that was created with shape= and dtype=."""

EXTENDED = {"bfloat16": "u2", "float8_e4m3fn": "u1", "float8_e5m2": "u1"}
"""Dtypes that NumPy does not have, and the integers that hold their bits.  native/host/spec.c has
their sizes."""


@dataclass(frozen=True)
class Field:
    """One array of a slot."""

    name: str
    """The name in `slot[name]`.  It is "array" if the ring was created with shape= and dtype=."""
    shape: tuple[int, ...]
    """The shape of a whole slot.  A frame may be smaller."""
    dtype: np.dtype[Any]
    """The dtype of its elements."""
    offset: int
    """Bytes from the start of the slot."""
    extended: str = ""
    """The name of a dtype that NumPy does not have, such as "bfloat16"; empty for all others.
    `dtype` is then that of ml_dtypes.  Where ml_dtypes is not installed, it is the integer that
    holds the bits."""

    @property
    def bits(self) -> np.dtype[Any]:
        """The dtype of the unsigned integer that holds an element of an extended dtype."""
        return np.dtype(EXTENDED[self.extended])

    @property
    def nbytes(self) -> int:
        """The size of the whole array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """In words: "(3, 4) float32", or "y (1080, 1920) uint8"."""
        name = "" if self.name == ARRAY else f"{self.name} "
        return f"{name}{self.shape} {self.extended or self.dtype}"

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
    """A structured dtype.  None if frames have no metadata."""
    canary_nbytes: int = 0
    """Bytes at the end of each slot that show whether somebody wrote there (gpuring.ring.debug)."""
    origin: Mapping[str, str] | None = None
    """The "host" and the "ring" that a bridge carries the frames from.  None for other rings."""
    about: Mapping[str, Any] | None = None
    """What else those who attach must know, as JSON."""
    slot_nbytes: int = field(default=0, compare=False)
    """The distance of two slots in memory, in bytes."""

    @property
    def meta_nbytes(self) -> int:
        """The bytes of metadata of a frame.  0 if there is none."""
        return self.meta.itemsize if self.meta is not None else 0

    def __str__(self) -> str:
        """In words: "(3, 4) float32, meta pts"."""
        meta = [f"meta {' '.join(self.meta.names or ())}"] if self.meta is not None else []
        return ", ".join([*map(str, self.fields), *meta])

    @property
    def lost_before(self) -> int | None:
        """How many frames a bridge had lost in all when its importer made the ring.  None if no
        bridge fills it, or if that is damaged."""
        found = self.about.get("lost") if isinstance(self.about, Mapping) else None
        return found if type(found) is int else None

    def to_bytes(self) -> bytes:
        """JSON for the header: names, shapes and dtypes.  The offsets follow from them."""
        described: dict[str, Any] = {
            "fields": [[f.name, f.shape, f.extended or _describe(f.dtype)] for f in self.fields],
            "meta": None if self.meta is None else _describe(self.meta),
            "canary": self.canary_nbytes,
        }
        if self.origin is not None:
            described["origin"] = self.origin
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
            placed, slot_nbytes, _ = native.read_spec(text)
            read = json.loads(text)
            return _fits(
                cls(
                    tuple(_field(*each) for each in placed),
                    _meta(None if read["meta"] is None else _restore(read["meta"])),
                    read.get("canary", 0),
                    _origin(read.get("origin")),
                    read.get("about"),
                    slot_nbytes,
                )
            )
        except Exception as error:  # NumPy refuses with many kinds of error
            raise ValueError(f"the description of its slots cannot be read: {error}") from error


def _field(name: str, shape: tuple[int, ...], dtype: str, offset: int) -> Field:
    """A field as the C library describes it.  Raises many kinds of error."""
    if dtype in EXTENDED:
        return Field(name, shape, _extended(dtype), offset, dtype)
    return Field(
        name, shape, _restore(json.loads(dtype) if dtype.startswith("[") else dtype), offset
    )


def about(text: bytes) -> dict[str, Any] | None:
    """The `about` of what to_bytes has written.  None if there is none, or if that is damaged."""
    with contextlib.suppress(ValueError, AttributeError):
        found = json.loads(text).get("about")
        return found if isinstance(found, dict) else None
    return None


def origin(text: bytes) -> dict[str, str] | None:
    """The `origin` of what to_bytes has written.  None if there is none, or if that is damaged."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        return _origin(json.loads(text).get("origin"))
    return None


def make(
    *,
    shape: Sequence[int] | int | None = None,
    dtype: npt.DTypeLike | None = None,
    fields: Mapping[str, tuple[Sequence[int] | int, npt.DTypeLike]] | None = None,
    meta: npt.DTypeLike | None = None,
    canary_nbytes: int = 0,
    origin: Mapping[str, str] | None = None,
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
        raise TypeError(f"fields must be a mapping {{name: (shape, dtype)}}, not {fields!r}")
    if not fields:
        raise ValueError("a slot needs at least one field")
    placed = []
    for name, described in fields.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"a field's name must be a non-empty str, not {name!r}")
        what = "" if name == ARRAY else f"field {name!r}: "
        if not isinstance(described, tuple | list) or len(described) != 2:
            raise TypeError(
                f'{what}a field is described by (shape, dtype), such as ((1080, 1920), "u1"), '
                f"not by {described!r}"
            )
        extent, kind = described
        _shape(extent, what=what)  # first: the two may have changed places
        plain, inner, extended = _plain(kind, f"{what}dtype")
        placed.append(Field(name, _shape(extent, inner, what), plain, 0, extended))
    if canary_nbytes not in (0, SLOT_ALIGNMENT):
        raise ValueError(f"a canary of {canary_nbytes} bytes")
    spec = Spec(tuple(placed), _meta(meta), canary_nbytes, _origin(origin), about)
    found, slot_nbytes, _ = native.read_spec(_fits(spec).to_bytes())
    at = [offset for *_, offset in found]
    fields_at = (replace(each, offset=offset) for each, offset in zip(placed, at, strict=True))
    return replace(spec, fields=tuple(fields_at), slot_nbytes=slot_nbytes)


def _origin(origin: Mapping[str, str] | None) -> dict[str, str] | None:
    if origin is None:
        return None
    names = {**origin}
    if {*names} != {"host", "ring"} or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"an origin has a host and a ring, unlike {origin!r}")
    return names


def _fits(described: Spec) -> Spec:
    nbytes = len(described.to_bytes())
    most = MAX_SPEC_NBYTES - SPEC_KEPT_FREE * (described.origin is None)
    if nbytes > most:
        raise ValueError(
            f"the names, shapes and dtypes of a slot take at most {most} bytes as JSON, "
            f"these take {nbytes}"
        )
    return described


def _shape(
    shape: Sequence[int] | int, inner: tuple[int, ...] = (), what: str = ""
) -> tuple[int, ...]:
    """`shape`, checked, followed by `inner`: the shape of elements that are arrays themselves."""
    given: Iterable[Any] = (shape,)
    if isinstance(shape, Sequence | np.ndarray) and not isinstance(shape, str | bytes):
        given = shape
    try:
        extents = (*(integer(n, "an extent") for n in given), *inner)
    except TypeError:
        extents = (-1,)
    if not all(n > 0 for n in extents):
        raise ValueError(
            f"{what}a shape must be a positive integer or a sequence of them, such as "
            f"(1080, 1920, 3), not {shape!r}"
            + ". No frame is empty: its metadata can say that it holds nothing"
            * (0 in extents)
        )
    if len(extents) > MAX_NDIM:
        raise ValueError(
            f"{what}an array has at most {MAX_NDIM} dimensions, one of shape {extents} has "
            f"{len(extents)}"
        )
    return extents


def _plain(dtype: Any, what: str) -> tuple[np.dtype[Any], tuple[int, ...], str]:
    """The dtype of arrays as everybody will see it, the shape of an element that is an array
    itself, and the dtype's name if NumPy does not have it.

    The creator, too, makes its dtype from the description.  So its dtype also lacks what a
    description leaves out: metadata, the note that NumPy has aligned the fields, np.record.  A
    dtype that would become another one is refused.
    """
    if type(dtype).__module__ == "torch":
        dtype = str(dtype).removeprefix("torch.")
    if isinstance(dtype, str) and dtype in EXTENDED:
        return _extended(dtype), (), dtype
    wanted = _dtype(dtype, what)
    if wanted.hasobject:
        raise ValueError(f"{what}: {wanted} holds Python objects, which no other process can read")
    if wanted.itemsize == 0:
        raise ValueError(f"{what}: {wanted} has no size")
    element, inner = wanted.subdtype or (wanted, ())
    extended = element.name if element.name in EXTENDED else ""
    try:
        described = json.loads(json.dumps(_describe(element)))
        seen = _extended(extended) if extended else _restore(described)
    except Exception as error:  # NumPy refuses with many kinds of error
        raise _indescribable(wanted, what, str(error)) from error
    if seen != element:
        raise _indescribable(wanted, what, f"they would see {seen}")
    return seen, inner, extended


def _dtype(dtype: Any, what: str) -> np.dtype[Any]:
    """Returns np.dtype(dtype).  Raises TypeError for whatever NumPy refuses, and names the
    argument."""
    if dtype is None:  # NumPy would take it for float64
        raise TypeError(f"{what}: None is not a dtype")
    try:
        made: np.dtype[Any] = np.dtype(dtype)
    except Exception as error:  # NumPy refuses with many kinds of error
        raise TypeError(f"{what}: NumPy makes no dtype of {dtype!r} ({error})") from error
    return made


def _indescribable(dtype: np.dtype[Any], what: str, reason: str) -> ValueError:
    return ValueError(
        f"{what}: {dtype} cannot be described to other processes ({reason}). Structures have "
        "NumPy's own types, one behind the other; of ml_dtypes arrays can have "
        f"{', '.join(EXTENDED)}. Take unsigned integers of the same size for others, and view the "
        'array as what it is on both sides: dtype="u1" and slot.array.view(ml_dtypes.int4)'
    )


def _extended(name: str) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError):
        return np.dtype(EXTENDED[name])
    return found


def _meta(meta: npt.DTypeLike | None) -> np.dtype[Any] | None:
    if meta is None:
        return None
    told = "meta must be a structured dtype such as [('pts', 'i8')]"
    try:
        checked, inner, _ = _plain(meta, "meta")
    except TypeError as error:
        raise TypeError(f"{error}. {told}") from error
    if checked.names is None or inner:
        raise ValueError(f"{told}, not {checked}")
    if checked.itemsize > MAX_META_NBYTES:
        raise ValueError(
            f"metadata has at most {MAX_META_NBYTES} bytes, {checked} has {checked.itemsize}"
        )
    return checked


def _describe(dtype: np.dtype[Any]) -> Any:
    """Describes a dtype for JSON: a str, or [[name or [title, name], dtype, shape], …] with a field
    "" for each gap.  It is like dtype.descr, which also has the metadata of fields."""
    if dtype.names is None:
        return dtype.str
    fields: list[Any] = []
    end = 0
    for name in dtype.names:
        part, offset, *title = dtype.fields[name]  # type: ignore[index]
        element, shape = part.subdtype or (part, ())
        if offset > end:
            fields.append(["", f"|V{offset - end}"])
        fields.append(
            [[*title, name] if title else name, _describe(element), *([shape] if shape else [])]
        )
        end = offset + part.itemsize
    if dtype.itemsize > end:
        fields.append(["", f"|V{dtype.itemsize - end}"])
    return fields


def _restore(description: Any) -> np.dtype[Any]:
    """The inverse of _describe, from JSON."""
    return np.lib.format.descr_to_dtype(_tuples(description))


def _tuples(description: Any) -> Any:
    """Turns the lists of JSON into the tuples that NumPy wants."""
    if isinstance(description, str):
        return description
    return [
        (tuple(name) if isinstance(name, list) else name, _tuples(kind), *map(tuple, shape))
        for name, kind, *shape in description
    ]
