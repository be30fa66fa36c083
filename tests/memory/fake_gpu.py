"""GPUs that are made up: they only count what they have, and copy at once."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import uuid
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuring.memory import driver
from gpuring.native import Descriptor

UUIDS = [uuid.UUID(int=k).bytes for k in range(1, 3)]


class GpuArray:
    """An array on a GPU, as far as copies ask.  Its memory is the host's."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.values.__array_interface__ | {"stream": 1}


class Error(RuntimeError):
    """As cupy.cuda.runtime.CUDARuntimeError."""

    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


class Gpu:
    """Two GPUs: what is allocated and mapped, by address, and which device is current."""

    def __init__(self) -> None:
        self.has: dict[int, str] = {}
        self.reached: list[int] = []
        """Devices that were let into memory of another one."""
        self.fds: list[int] = []
        self.full = False
        self.refuses_to_register = 0
        """The CUresult of `register`; 0: it locks the pages."""
        self.lacks = ""
        """Why it has no timeline."""
        self.waited_for: list[int] = []
        """Streams that the host has waited for."""
        self._addresses = count(1 << 21, 1 << 21)
        self._stack = [0]

    @property
    def device(self) -> int:
        return self._stack[-1]

    def cupy(self) -> Any:
        gpu = self

        class Device:
            def __init__(self, ordinal: int) -> None:
                self.id = ordinal

            def __enter__(self) -> None:
                gpu._stack.append(self.id)

            def __exit__(self, *_: object) -> None:
                gpu._stack.pop()

        class UnownedMemory:
            def __init__(self, ptr: int, nbytes: int, owner: object, device: int) -> None:
                self.ptr, self.nbytes, self.owner, self.device = ptr, nbytes, owner, device

        runtime = SimpleNamespace(
            CUDARuntimeError=Error,
            malloc=lambda nbytes: self.add("allocated", nbytes),
            free=lambda ptr: ptr and self.has.pop(ptr),
            ipcGetMemHandle=lambda ptr: ptr.to_bytes(64, "little"),
            ipcOpenMemHandle=lambda handle: self.add("opened"),
            ipcCloseMemHandle=self.has.pop,
            getDeviceCount=lambda: 2,
            deviceCanAccessPeer=lambda device, peer: True,
            deviceEnablePeerAccess=lambda peer: self.reached.append(self.device),
            deviceSynchronize=lambda: None,
            is_hip=False,
            getDevice=lambda: self.device,
            memcpyDefault=4,
            memcpyAsync=lambda to, source, nbytes, *_: ctypes.memmove(to, source, nbytes),
            streamSynchronize=self.waited_for.append,
            pointerGetAttributes=lambda _: SimpleNamespace(device=0),
        )
        return SimpleNamespace(
            cuda=SimpleNamespace(
                Device=Device,
                runtime=runtime,
                UnownedMemory=UnownedMemory,
                MemoryPointer=lambda memory, offset: SimpleNamespace(memory=memory, offset=offset),
                get_current_stream=lambda: SimpleNamespace(ptr=0),
                ExternalStream=lambda _: contextlib.nullcontext(),
                Stream=None,
            ),
            ndarray=lambda shape, dtype, pointer: SimpleNamespace(shape=shape, data=pointer),
            empty=lambda shape, dtype: GpuArray(np.empty(shape, dtype)),
        )

    def add(self, what: str, nbytes: int = 0) -> int:
        if self.full:
            raise Error(2)
        address = next(self._addresses)
        self.has[address] = what
        return address

    # ---- gpuring.memory.driver -----------------------------------------------------------------

    def granularity(self, device: int) -> int:
        return 2 << 20

    def descriptor(self) -> Descriptor:
        if self.full:
            raise driver.Refused("full")
        self.fds.append(os.memfd_create("gpuring-test"))
        return Descriptor(self.fds[-1])

    def allocate(self, nbytes: int, device: int) -> Descriptor:
        return self.descriptor()

    def map_memory(self, fd: int, nbytes: int, device: int, *, writable: bool) -> int:
        assert device == self.device
        return self.add("mapped to write" if writable else "mapped to read")

    def unmap_memory(self, ptr: int, nbytes: int) -> None:
        del self.has[ptr]

    def allocate_in_pool(self, nbytes: int, device: int) -> tuple[int, int, Descriptor, bytes]:
        descriptor = self.descriptor()
        return 7, self.add("allocated"), descriptor, b"export".ljust(64, b"\0")

    def import_pool(self, fd: int, exported: bytes, device: int) -> tuple[int, int]:
        return 8, self.add("opened")

    def let_reach_pool(self, pool: int, device: int) -> None:
        assert device == self.device
        self.reached.append(device)

    def free_in_pool(self, pool: int, ptr: int) -> None:
        del self.has[ptr]

    def register(self, address: int, nbytes: int) -> int:
        assert address % mmap.PAGESIZE == nbytes % mmap.PAGESIZE == 0
        if self.refuses_to_register:
            raise driver.Refused("cuMemHostRegister_v2: no", self.refuses_to_register)
        self.has[address] = "registered"
        return address

    def unregister(self, address: int) -> None:
        del self.has[address]

    def open_fds(self) -> int:
        return sum(os.path.exists(f"/proc/self/fd/{fd}") for fd in self.fds)  # noqa: PTH110
