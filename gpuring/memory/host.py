"""Slots in a POSIX shared-memory segment, shown as NumPy arrays."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuring import segment
from gpuring.errors import RingClosed, RingIncompatible
from gpuring.spec import Field


class HostMemory:
    """The slots of a host ring.  Arrays over it keep the mapping alive."""

    handle = bytes(64)
    device_uuid = bytes(16)

    def __init__(self, mapping: mmap.mmap, slot_nbytes: int, owned: str | None) -> None:
        self._mapping: mmap.mmap | None = mapping
        self._slot_nbytes = slot_nbytes
        self._owned = owned

    @classmethod
    def create(cls, name: str, epoch: bytes, mode: int, slots: int, slot_nbytes: int) -> HostMemory:
        """A new segment.  Raises RingError if /dev/shm has no room; nothing is left behind then."""
        path = segment.slots_name(name, epoch)
        fd = segment.create(path, mode)
        try:
            os.posix_fallocate(fd, 0, slots * slot_nbytes)
            return cls(mmap.mmap(fd, slots * slot_nbytes), slot_nbytes, path)
        except BaseException as error:  # a Ctrl-C in the middle of posix_fallocate too
            segment.unlink(path)
            no_room = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG)
            if isinstance(error, OSError) and error.errno in no_room:
                raise segment.no_space(name, slots * slot_nbytes, "the slots") from error
            raise
        finally:
            os.close(fd)

    @classmethod
    def open(cls, name: str, epoch: bytes, owner: int, slots: int, slot_nbytes: int) -> HostMemory:
        """The segment of a ring that another process created, if it is what user `owner` made.

        Its epoch is in its name, which whoever may list /dev/shm can read: so if the real one is
        gone, anybody may put another one there.  Raises RingIncompatible.
        """
        path = segment.slots_name(name, epoch)
        try:
            fd = segment.open_fd(path)
        except FileNotFoundError:
            raise RingIncompatible(
                f"ring {name!r}: its slots {path} are gone; was it removed just now?"
            ) from None
        try:
            found = os.fstat(fd)
            if found.st_uid != owner:
                raise RingIncompatible(
                    f"ring {name!r} belongs to user {owner}, its slots {path} to user "
                    f"{found.st_uid}: somebody else put them there"
                )
            if found.st_size != slots * slot_nbytes:
                raise RingIncompatible(
                    f"ring {name!r}: its slots {path} have {found.st_size} bytes, not "
                    f"{slots} × {slot_nbytes}"
                )
            return cls(mmap.mmap(fd, slots * slot_nbytes), slot_nbytes, None)
        finally:
            os.close(fd)

    def array(self, index: int, field: Field, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        offset = index * self._slot_nbytes + field.offset
        if self._mapping is None:
            raise RingClosed("this handle of the ring was closed: its slots cannot be reached")
        view: npt.NDArray[Any] = np.ndarray(shape, field.dtype, self._mapping, offset)
        return view

    def close(self, *, others: bool, then: Callable[[], None]) -> None:
        """Removes the name if we made it; the mapping goes with the last array over it.

        Nobody has to know when: the kernel counts the mappings.
        """
        if self._owned is not None:
            segment.unlink(self._owned)
            self._owned = None
        self._mapping = None
        then()
