"""Whoever allocates or opens GPU memory has it whole, or nothing is left: also after a Ctrl-C.

The driver is made up (fake_gpu.py), and counts what it has given out.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import mmap
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from gpuring.errors import DeviceError
from gpuring.memory import Given, cuda
from gpuring.memory.cuda import CudaMemory, Slots
from gpuring.memory.pinned import PinnedMemory, RegisteredMemory, UnregisteredMemory
from tests.helpers.interrupted import interrupts
from tests.helpers.processes import poll
from tests.memory import EPOCH, FIELD, KINDS, NBYTES, SLOTS
from tests.memory.fake_gpu import UUIDS, Gpu, put

HANDLE = (SLOTS * NBYTES).to_bytes(8, "little").ljust(64, b"\0")


@pytest.fixture(autouse=True)
def quick(gpu: Gpu) -> Iterator[None]:
    """Freezes what other tests have left, or each of a thousand collections would go through it.

    It stays frozen, as the modules do (conftest.py): thawed, they would slow all later tests down.
    """
    gc.collect()
    gc.freeze()
    yield
    assert cuda._owned == set()


def left(gpu: Gpu) -> tuple[dict[int, str], int]:
    gc.collect()
    assert gpu.stack == [0]
    poll(lambda: not gpu.open_fds())  # another thread closes what others have sent
    return gpu.has, gpu.open_fds()


def creates(kind: str, gpu: Gpu) -> CudaMemory:
    return CudaMemory.create(kind, EPOCH, SLOTS, NBYTES, 0)


def opens(kind: str, gpu: Gpu) -> CudaMemory:
    wanted = Slots(HANDLE, UUIDS[0], SLOTS, NBYTES, EPOCH)
    return CudaMemory.open(kind, wanted, 0, ring="cam0", fetch=gpu.descriptor)


GETS = pytest.mark.parametrize("gets", [creates, opens])
OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS)


@OF_EACH_KIND
@GETS
def test_a_ctrl_c_leaves_nothing(gpu, kind, gets):
    for interrupt in interrupts():
        memory = None
        with interrupt:
            memory = gets(kind, gpu)
        assert bool(gpu.has) is (memory is not None), interrupt.where
        del memory
        assert left(gpu) == ({}, 0), interrupt.where


@OF_EACH_KIND
@GETS
def test_a_driver_that_refuses_any_call_leaves_nothing(gpu, kind, gets):
    memory = None
    for calls in count():
        gpu.refuses = calls
        with contextlib.suppress(DeviceError):
            memory = gets(kind, gpu)
        gpu.refuses = -1
        if memory is not None:
            break
        assert left(gpu) == ({}, 0), calls
    assert calls > 0
    del memory
    assert left(gpu) == ({}, 0)


def test_a_ctrl_c_while_memory_of_the_package_is_made_leaves_nothing(gpu):
    for interrupt in interrupts():
        memory = None
        with interrupt:
            memory = cuda.uninterrupted(0, functools.partial(cuda.plain, NBYTES, 0))
        assert bool(gpu.has) is (memory is not None), interrupt.where
        del memory
        assert left(gpu) == ({}, 0), interrupt.where


# ---- memory of the user's ------------------------------------------------------------------------


@pytest.fixture
def virtual(gpu: Gpu) -> Given:
    """Virtual memory for which the driver makes a descriptor."""
    nbytes = SLOTS * NBYTES

    def tells(_gpu: Gpu, base: int, size: int, at: int) -> None:
        put(base, ctypes.c_uint64, at)
        put(size, ctypes.c_size_t, nbytes)

    gpu.CALLS = gpu.CALLS | {
        "cuMemGetAddressRange_v2": tells,
        "cuMemRetainAllocationHandle": lambda gpu, out, _: gpu._gives(out, "retained"),
    }
    return Given(1 << 30, nbytes, 0, None)


@pytest.fixture
def plain(gpu: Gpu, virtual: Given) -> Given:
    gpu.CALLS = gpu.CALLS | {"cuMemRetainAllocationHandle": lambda *_: 1}
    return virtual


def adopt(given: Given, ring: str = "cam0") -> CudaMemory:
    return CudaMemory.adopt(given, ring, EPOCH, SLOTS, NBYTES)


@pytest.mark.parametrize("of", ["virtual", "plain"])
def test_memory_that_a_ring_has_is_not_given_to_a_second_one(gpu, of, request):
    given = request.getfixturevalue(of)
    memory = adopt(given)
    array = memory.array(0, FIELD, FIELD.shape, writable=True)
    with pytest.raises(ValueError, match="the slots of ring 'cam0' already"):
        adopt(given, "cam1")
    adopt(replace(given, ptr=2 << 30), "cam2")
    memory.close(others=False, then=lambda: None)
    del memory
    with pytest.raises(ValueError, match="the slots of ring 'cam0' already"):
        adopt(given, "cam1")  # the array is still there
    del array
    adopt(given, "cam1")
    assert left(gpu) == ({}, 0)


def test_a_ctrl_c_while_memory_is_adopted_leaves_nothing(gpu, virtual):
    for interrupt in interrupts():
        memory = None
        with interrupt:
            memory = adopt(virtual)
        assert bool(gpu.has) is (memory is not None), interrupt.where
        del memory
        assert left(gpu) == ({}, 0), interrupt.where


# ---- slots of the host that are registered -------------------------------------------------------


@pytest.fixture
def slots() -> PinnedMemory:
    return PinnedMemory(mmap.mmap(-1, SLOTS * 4096), 4096)


def test_a_ctrl_c_while_slots_are_registered_leaves_nothing(gpu, slots):
    for interrupt in interrupts():
        memory = None
        with interrupt:
            memory = slots.under(0)
        assert bool(gpu.has) is (memory is not None), interrupt.where
        del memory
        assert left(gpu) == ({}, 0), interrupt.where


def test_a_driver_that_registers_half_of_it_leaves_nothing(gpu, slots):
    for calls in count():
        gpu.refuses = calls
        memory = slots.under(0)
        gpu.refuses = -1
        if isinstance(memory, RegisteredMemory):
            break
        assert isinstance(memory, UnregisteredMemory)
        assert memory.status == 2
        assert left(gpu) == ({}, 0), calls
    assert calls == 3
    del memory
    assert left(gpu) == ({}, 0)
