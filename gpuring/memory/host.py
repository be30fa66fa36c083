"""Slots in a POSIX shared-memory segment, shown as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuring import native
from gpuring.errors import RingClosed
from gpuring.native import File
from gpuring.slot_layout import Field

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self


class HostMemory:
    """The slots of a host ring.  Arrays over it keep the mapping alive."""

    kind = "host"
    handle = bytes(64)
    descriptor = -1
    device_uuid = bytes(16)
    device: int | None = None
    mapped = False
    read_only = True

    def __init__(self, mapping: Buffer, slot_nbytes: int) -> None:
        self._mapping: memoryview | None = memoryview(mapping)
        self._slot_nbytes = slot_nbytes

    @classmethod
    def _opened(cls, mapping: Buffer, _file: File, slot_nbytes: int) -> Self:
        """The slots in an open segment that is mapped already."""
        return cls(mapping, slot_nbytes)

    @classmethod
    def create(
        cls, name: str, epoch: bytes, mode: int, slots: int, slot_nbytes: int
    ) -> tuple[Self, File]:
        """Makes a new segment.  Returns also a file, which keeps others from tidying it away.
        Close that file when the ring has its name.  Raises RingError (no room) and OSError, and
        leaves nothing behind then."""
        mapping, making = native.make_slots(name, epoch, mode, slots, slot_nbytes)
        return cls._opened(mapping, making, slot_nbytes), making

    @classmethod
    def open(cls, name: str, epoch: bytes, owner: int, slots: int, slot_nbytes: int) -> Self:
        """Opens the slots of a ring that another process created, if user `owner` made them.

        Raises native.Missing, RingIncompatible, RingError, OSError.
        """
        mapping, file = native.open_slots(name, epoch, owner, slots, slot_nbytes)
        with file:
            return cls._opened(mapping, file, slot_nbytes)

    def array(
        self, index: int, field: Field, shape: tuple[int, ...], *, writable: bool
    ) -> npt.NDArray[Any]:
        offset = index * self._slot_nbytes + field.offset
        if self._mapping is None:
            raise RingClosed("this handle of the ring was closed: its slots cannot be reached")
        view: npt.NDArray[Any] = np.ndarray(shape, field.dtype, self._mapping, offset)
        view.flags.writeable = writable
        return view

    def lend(self) -> None:
        """Does nothing: the kernel keeps the memory as long as anybody has it mapped."""

    def close(self, *, others: bool, then: Callable[[], None]) -> None:
        """Gives the mapping up, which goes with the last array over it.

        Nobody has to know when, because the kernel counts the mappings.
        """
        self._mapping = None
        then()
