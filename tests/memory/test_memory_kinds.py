"""What a process keeps of the memory of a GPU ring, for how long, and what it finds again.

The GPU is made up: it only counts what it has.  test_gpu_memory.py has a real one.
"""

from __future__ import annotations

import gc
import os
import sys
import uuid
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuring.errors import DeviceError, RingIncompatible
from gpuring.memory import cuda, cuda_ipc, cuda_pool, cuda_vmm, driver
from gpuring.memory.cuda import CudaMemory, Slots
from gpuring.native import Descriptor
from gpuring.slot_layout import Field

UUIDS = [uuid.UUID(int=k).bytes for k in range(1, 3)]
EPOCH = bytes(range(16))
SLOTS, NBYTES = 4, 1 << 20
FIELD = Field("array", (NBYTES,), np.dtype("u1"), 0)
KINDS: dict[str, Any] = {
    "ipc": cuda_ipc.IpcMemory,
    "vmm": cuda_vmm.VmmMemory,
    "pool": cuda_pool.PoolMemory,
}


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
        )
        return SimpleNamespace(
            cuda=SimpleNamespace(
                Device=Device,
                runtime=runtime,
                UnownedMemory=UnownedMemory,
                MemoryPointer=lambda memory, offset: SimpleNamespace(memory=memory, offset=offset),
            ),
            ndarray=lambda shape, dtype, pointer: SimpleNamespace(shape=shape, data=pointer),
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

    def open_fds(self) -> int:
        return sum(os.path.exists(f"/proc/self/fd/{fd}") for fd in self.fds)  # noqa: PTH110


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    made = Gpu()
    monkeypatch.setitem(sys.modules, "cupy", made.cupy())
    for module in (cuda, cuda_ipc, cuda_pool, cuda_vmm):
        monkeypatch.setattr(module, "Driver", lambda: SimpleNamespace(uuid=UUIDS.__getitem__))
    for name in (
        *("granularity", "allocate", "map_memory", "unmap_memory"),
        *("allocate_in_pool", "import_pool", "let_reach_pool", "free_in_pool"),
    ):
        monkeypatch.setattr(driver, name, getattr(made, name))
    yield made
    cuda._owned.clear()
    gc.collect()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def create(kind: str) -> CudaMemory:
    epoch = () if kind == "ipc" else (EPOCH,)
    memory: CudaMemory = KINDS[kind].create(*epoch, SLOTS, NBYTES, 0)
    memory.lend()
    return memory


def attach(kind: str, memory: CudaMemory, gpu: Gpu, device: int = 0, **other: Any) -> CudaMemory:
    wanted = Slots(other.get("handle", memory.handle), UUIDS[0], SLOTS, NBYTES, EPOCH)
    more: dict[str, Any] = {} if kind == "ipc" else {"fetch": gpu.descriptor}
    opened: CudaMemory = KINDS[kind].open(wanted, device, ring="cam0", **more)
    return opened


def close(memory: CudaMemory, *, others: bool = False) -> list[str]:
    """Returns what `then` has noted: once the last array of the handle is gone."""
    ended: list[str] = []
    memory.close(others=others, then=lambda: ended.append("ended"))
    return ended


def test_the_creator_gives_back_all_that_it_has(gpu: Gpu, kind: str) -> None:
    memory = create(kind)
    assert (memory.descriptor >= 0) is (kind != "ipc")
    array = memory.array(1, FIELD, (NBYTES,), writable=True)
    ended = close(memory)
    assert memory.descriptor == -1
    del memory
    assert gpu.has, "the array keeps the memory"
    assert not ended
    del array
    gc.collect()
    assert (gpu.has, gpu.open_fds(), ended) == ({}, 0, ["ended"])


def test_the_creator_keeps_what_may_not_be_freed_while_others_have_it(gpu: Gpu, kind: str) -> None:
    memory = create(kind)
    assert close(memory, others=True) == ["ended"]
    del memory
    gc.collect()
    assert list(gpu.has.values()) == ([] if kind == "vmm" else ["allocated"])
    assert gpu.open_fds() == (kind == "pool")


def test_whoever_attaches_in_the_creators_process_has_the_same_memory(gpu: Gpu, kind: str) -> None:
    memory = create(kind)
    again = attach(kind, memory, gpu)
    assert again.descriptor == memory.descriptor
    close(memory)
    array = again.array(0, FIELD, (NBYTES,), writable=True)
    assert gpu.has[array.data.memory.ptr] == ("mapped to write" if kind == "vmm" else "allocated")
    assert "opened" not in gpu.has.values()
    close(again)
    del array, memory, again
    gc.collect()
    assert (gpu.has, gpu.open_fds()) == ({}, 0)


def test_only_the_creators_own_handle_decides_that_the_memory_goes(gpu: Gpu, kind: str) -> None:
    memory = create(kind)
    close(attach(kind, memory, gpu), others=False)
    close(memory, others=True)
    del memory
    gc.collect()
    assert list(gpu.has.values()) == ([] if kind == "vmm" else ["allocated"])


def test_under_another_gpu_the_same_memory_is_reached(gpu: Gpu, kind: str) -> None:
    memory = create(kind)
    other = attach(kind, memory, gpu, device=1)
    array = other.array(0, FIELD, (NBYTES,), writable=False)
    assert (memory.device, other.device, array.data.memory.device) == (0, 1, 1)
    assert gpu.reached == ([] if kind == "vmm" else [1])
    close(memory)
    assert gpu.has, "the array keeps the memory"
    close(other)
    del array, memory, other
    gc.collect()
    assert (gpu.has, gpu.open_fds()) == ({}, 0)


def test_who_has_no_such_memory_opens_it_once(gpu: Gpu, kind: str) -> None:
    handle = (SLOTS * NBYTES).to_bytes(8, "little").ljust(64, b"\0")
    first = attach(kind, create(kind), gpu, handle=handle) if kind == "ipc" else None
    if first is None:
        wanted = Slots(handle, UUIDS[0], SLOTS, NBYTES, EPOCH)
        first = KINDS[kind].open(wanted, 0, ring="cam0", fetch=gpu.descriptor)
    second = attach(kind, first, gpu)
    arrays = [each.array(0, FIELD, (NBYTES,), writable=False) for each in (first, second)]
    assert len({array.data.memory.ptr for array in arrays}) == 1
    assert len(gpu.fds) == (kind != "ipc")
    assert close(first, others=True) == []
    assert close(second, others=True) == []
    del first, second, arrays
    gc.collect()
    opened = [what for what in gpu.has.values() if what != "allocated"]
    assert (opened, gpu.open_fds()) == ([], 0)


def test_the_error_says_what_to_do_where_there_is_no_room(gpu: Gpu, kind: str) -> None:
    gpu.full = True
    with pytest.raises(DeviceError, match="allocating 4 MiB for the slots on GPU 0") as caught:
        create(kind)
    fix = "or stop who else uses that GPU"
    if kind != "ipc":
        fix = 'stop who else uses that GPU, or take memory="ipc"'
    assert str(caught.value).endswith(f"Use fewer or smaller slots, {fix}")
    assert (gpu.has, gpu.open_fds()) == ({}, 0)


def test_a_size_that_does_not_fit_the_slots_is_refused(gpu: Gpu) -> None:
    memory = create("vmm")
    with pytest.raises(RingIncompatible, match="its memory has 4194303 bytes, not 4 × 1048576"):
        attach("vmm", memory, gpu, handle=(4194303).to_bytes(64, "little"))
