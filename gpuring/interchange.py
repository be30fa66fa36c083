"""A slot's array as other libraries see it: DLPack, and the array interfaces of CUDA and NumPy.

An importer that names its stream (DLPack) is ordered behind everything done with the slot so far,
and publish or release waits for that stream.  One that does not (the CUDA array interface) orders
itself behind the slot's stream, but nobody learns where it works then: `Slot.use_on` says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuring import _core
from gpuring.errors import RingError
from gpuring.spec import ARRAY, EXTENDED, Field
from gpuring.streams import LEGACY_DEFAULT, as_cupy

if TYPE_CHECKING:
    from gpuring.slot import Slot

# DLDataTypeCode (dlpack.h), by NumPy's kind or by name.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_EXTENDED_CODES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
assert _EXTENDED_CODES.keys() == EXTENDED.keys()


def kind_of(field: Field) -> tuple[int, int] | None:
    """(DLPack's type code, bits) of a field's elements; None for what DLPack does not have."""
    dtype = field.dtype
    if field.extended:
        return _EXTENDED_CODES[field.extended], 8 * dtype.itemsize
    if dtype.kind not in _CODES or not dtype.isnative or dtype.char in "gG":
        return None  # long double is no IEEE format: 80 bits of 128
    return _CODES[dtype.kind], 8 * dtype.itemsize


class Exported:
    """The protocols, over one array of a slot."""

    def _exported(self) -> tuple[Slot, Field, Any]:
        """The slot, the field and its array now.  Raises RingError if the slot is not yours."""
        raise AssertionError("a slot and a field of it each have their own")

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's (device type, number): (1, 0) in host memory, (2, ordinal) on a GPU."""
        slot, _, array = self._exported()
        return (_core.DL_CPU, 0) if slot._sync is None else (_core.DL_CUDA, array.device.id)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule, so `torch.from_dlpack(slot)`: no copy unless copy=True.

        * `stream`: the importer's.  It is made to wait for all work on the slot so far, and publish
          or release waits for it.  None and 1 are the legacy default stream, 2 is the per-thread
          one, -1 asks for no order at all.
        * `max_version`: from (1, 0) on the capsule is versioned, and says if it is read-only.

        The tensor is valid as long as the slot is yours.  Raises BufferError for what cannot be
        exported (another device, a dtype that DLPack does not have, stream=0, which means nothing).
        """
        slot, field, array = self._exported()
        device = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"{slot!r} is on device {device}, not {tuple(dl_device)}")
        kind = kind_of(field)
        if kind is None:
            raise BufferError(f"DLPack has no {field.dtype}")
        flags = 0
        if slot._sync is None:
            if stream not in (None, -1):
                raise BufferError(f"{slot!r} is in host memory: stream is None, not {stream!r}")
            if copy:
                array = array.copy()
            pointer = array.ctypes.data
            if not array.flags.writeable:
                flags |= _core.DL_READ_ONLY
        else:
            if stream == 0:
                raise BufferError("stream=0 is ambiguous in DLPack: 1 is the legacy default stream")
            if stream != -1:
                slot._import_on(LEGACY_DEFAULT if stream is None else stream)
            if copy:
                array = _copy(array, slot._stream if stream == -1 else stream)
            pointer = array.data.ptr
        if copy:
            flags |= _core.DL_COPIED
        versioned = max_version is not None and max_version[0] >= 1
        return _core.dlpack_export(array, pointer, device, array.shape, kind, flags, versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3: `stream` is the slot's, behind all work on the slot so far."""
        slot, _, array = self._exported()
        if slot._sync is None:
            raise AttributeError("__cuda_array_interface__: this ring is in host memory")
        slot._import_on(slot._stream)
        return {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.data.ptr, False),
            "strides": None,
            "stream": slot._stream or LEGACY_DEFAULT,
            "version": 3,
        }

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's, version 3; host rings only."""
        slot, _, array = self._exported()
        if slot._sync is not None:
            raise AttributeError("__array_interface__: this ring is on a GPU")
        interface: dict[str, Any] = array.__array_interface__
        return interface


def _copy(array: Any, stream: int | None) -> Any:
    """Made on the importer's stream, which then also is where CuPy may use its memory again."""
    with as_cupy(LEGACY_DEFAULT if stream is None else stream):
        return array.copy()


class SlotField(Exported):
    """One field of a slot, for other libraries: `torch.from_dlpack(slot.field("y"))`."""

    def __init__(self, slot: Slot, name: str) -> None:
        self._slot, self._seq, self._name = slot, slot._seq, name

    def _exported(self) -> tuple[Slot, Field, Any]:
        slot = self._slot
        if slot._seq != self._seq:
            raise RingError(
                f"ring {slot._ring!r}: field {self._name!r} of frame {self._seq} was kept, but "
                f"slot {slot.index} has frame {slot._seq} now"
            )
        return slot, slot._fields[self._name], slot[self._name]


def field_name(slot: Slot, name: str | None) -> str:
    """`name`, or that of the only field.  Raises TypeError, KeyError."""
    if name is None:
        if ARRAY not in slot._fields:
            names = ", ".join(repr(each) for each in slot._fields)
            raise TypeError(f"ring {slot._ring!r} has the fields {names}: say which")
        return ARRAY
    if name not in slot._fields:
        raise KeyError(f"ring {slot._ring!r} has no field {name!r}")
    return name
