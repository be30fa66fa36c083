"""Whoever allocates or opens GPU memory has it whole, or nothing is left: also after a Ctrl-C.

The driver is made up, and counts what it has given out.  fake_gpu.py has the rest of that GPU.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from gpuring.errors import DeviceError
from gpuring.memory import cuda, cuda_ipc, cuda_pool, cuda_vmm, driver
from gpuring.memory.cuda import CudaMemory, Slots
from gpuring.memory.pinned import PinnedMemory, RegisteredMemory, UnregisteredMemory
from gpuring.native import Descriptor
from tests.helpers.interrupted import interrupts
from tests.memory.fake_gpu import UUIDS, Error, Gpu
from tests.memory.test_memory_kinds import EPOCH, KINDS, NBYTES, SLOTS

HANDLE = (SLOTS * NBYTES).to_bytes(8, "little").ljust(64, b"\0")


class Cuda(Gpu):
    """libcuda.so.1, and cupy.  `refuses`: how many calls succeed before one is refused.  What gives
    back is not refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = -1

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def called(*args: Any) -> int:
            if name not in self.GIVE_BACK:
                self.refuses -= 1
                if self.refuses == -1:
                    return 2
            return self.CALLS.get(name, Cuda._nothing)(self, *args) or 0

        return called

    def add(self, what: str, nbytes: int = 0) -> int:
        self.refuses -= 1
        if self.refuses == -1:
            raise Error(2)
        return super().add(what, nbytes)

    def _nothing(self, *_: Any) -> None:
        pass

    def _gives(self, out: Any, *_: Any) -> None:
        out._obj.value = address = next(self._addresses)
        self.has[address] = "given"

    def _takes(self, value: Any, *_: Any) -> None:
        del self.has[value.value]

    def _maps(self, ptr: Any, *_: Any) -> None:
        self.has[ptr.value + 1] = "mapped"

    def _unmaps(self, ptr: Any, *_: Any) -> None:
        del self.has[ptr.value + 1]

    def _exports(self, out: Any, *_: Any) -> None:
        out._obj.value = fd = os.memfd_create("gpuring-test")
        self.fds.append(fd)

    def _grains(self, out: Any, *_: Any) -> None:
        out._obj.value = 2 << 20

    def _registers(self, address: Any, *_: Any) -> None:
        self.has[address.value] = "registered"

    GIVE_BACK: ClassVar[dict[str, Callable[..., int | None]]] = {
        "cuMemRelease": _takes,
        "cuMemAddressFree": _takes,
        "cuMemFreeAsync": _takes,
        "cuMemPoolDestroy": _takes,
        "cuMemUnmap": _unmaps,
        "cuMemHostUnregister": _takes,
    }
    CALLS: ClassVar[dict[str, Callable[..., int | None]]] = {
        "cuMemGetAllocationGranularity": _grains,
        "cuMemExportToShareableHandle": _exports,
        "cuMemPoolExportToShareableHandle": _exports,
        "cuMemCreate": _gives,
        "cuMemImportFromShareableHandle": _gives,
        "cuMemAddressReserve": _gives,
        "cuMemPoolCreate": _gives,
        "cuMemAllocFromPoolAsync": _gives,
        "cuMemPoolImportFromShareableHandle": _gives,
        "cuMemPoolImportPointer": _gives,
        "cuMemMap": _maps,
        "cuMemHostRegister_v2": _registers,
        **GIVE_BACK,
    }

    def hands_over(self) -> Descriptor:
        """As somebody who is in the ring."""
        self.fds.append(os.memfd_create("gpuring-test"))
        return Descriptor(self.fds[-1])

    def left(self) -> tuple[dict[int, str], int]:
        gc.collect()
        return self.has, self.open_fds()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    made = Cuda()
    monkeypatch.setitem(sys.modules, "cupy", made.cupy())
    for module in (cuda, cuda_ipc, cuda_pool, cuda_vmm):
        monkeypatch.setattr(module, "Driver", lambda: SimpleNamespace(uuid=UUIDS.__getitem__))
    monkeypatch.setattr(driver, "_library", lambda: made)
    monkeypatch.setattr(cuda, "timeline_supported", lambda _: (True, ""))
    gc.collect()
    gc.freeze()  # or each of a thousand looks goes through all that other tests have left
    yield made
    gc.unfreeze()
    assert cuda._owned == set()


def creates(kind: str, gpu: Cuda) -> CudaMemory:
    made: CudaMemory = KINDS[kind].create(*(() if kind == "ipc" else (EPOCH,)), SLOTS, NBYTES, 0)
    return made


def opens(kind: str, gpu: Cuda) -> CudaMemory:
    wanted = Slots(HANDLE, UUIDS[0], SLOTS, NBYTES, EPOCH)
    more: dict[str, Any] = {} if kind == "ipc" else {"fetch": gpu.hands_over}
    opened: CudaMemory = KINDS[kind].open(wanted, 0, ring="cam0", **more)
    return opened


GETS = pytest.mark.parametrize("gets", [creates, opens])
OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS)


@OF_EACH_KIND
@GETS
def test_a_ctrl_c_leaves_nothing(gpu: Cuda, kind: str, gets: Callable[..., CudaMemory]) -> None:
    for interrupt in interrupts():
        memory = None
        with interrupt:
            memory = gets(kind, gpu)
        assert bool(gpu.has) is (memory is not None), interrupt.where
        del memory
        assert gpu.left() == ({}, 0), interrupt.where


@OF_EACH_KIND
@GETS
def test_a_driver_that_refuses_any_call_leaves_nothing(
    gpu: Cuda, kind: str, gets: Callable[..., CudaMemory]
) -> None:
    memory = None
    for calls in count():
        gpu.refuses = calls
        with contextlib.suppress(DeviceError):
            memory = gets(kind, gpu)
        gpu.refuses = -1
        if memory is not None:
            break
        assert gpu.left() == ({}, 0), calls
    assert calls > 0
    del memory
    assert gpu.left() == ({}, 0)


# ---- slots of the host that are registered -------------------------------------------------------


@pytest.fixture
def slots() -> PinnedMemory:
    return PinnedMemory(mmap.mmap(-1, SLOTS * 4096), 4096)


def test_a_ctrl_c_while_slots_are_registered_leaves_nothing(gpu: Cuda, slots: PinnedMemory) -> None:
    for interrupt in interrupts():
        memory = None
        with interrupt:
            memory = slots.under(0)
        assert bool(gpu.has) is (memory is not None), interrupt.where
        del memory
        assert gpu.left() == ({}, 0), interrupt.where


def test_a_driver_that_registers_half_of_it_leaves_nothing(gpu: Cuda, slots: PinnedMemory) -> None:
    for calls in count():
        gpu.refuses = calls
        memory = slots.under(0)
        gpu.refuses = -1
        if isinstance(memory, RegisteredMemory):
            break
        assert isinstance(memory, UnregisteredMemory)
        assert memory.status == 2
        assert gpu.left() == ({}, 0), calls
    assert calls == 2
    del memory
    assert gpu.left() == ({}, 0)
