"""Frames that are computed right in a slot, and rings in memory of the user."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

import gpuring
from gpuring.memory import driver, gpus
from tests.helpers.rings import segments_of

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]

SHAPE = (256, 1024)
NBYTES = 4 * 256 * 1024
SLOTS = 4


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def ring(name):
    with gpuring.create(name, slots=SLOTS, shape=SHAPE, dtype="f4", device="cuda") as ring:
        yield ring


@pytest.fixture
def ends(ring):
    with ring.producer() as producer, ring.consumer(start="oldest") as consumer:
        yield producer, consumer


# ---- allocate ------------------------------------------------------------------------------------


def test_a_result_is_born_in_the_slot(cupy, ends):
    producer, consumer = ends
    x = cupy.arange(SHAPE[0] * SHAPE[1], dtype="f4").reshape(SHAPE)
    for n in range(2 * SLOTS):
        with producer.claim() as slot:
            with slot.allocate():
                y = cupy.sqrt(x) + n  # a temporary and the result
            copied = slot.copy_from(y)
            at = slot.array.data.ptr
            assert copied == (y.data.ptr != at)
        with consumer.acquire() as slot:
            assert np.allclose(slot.array.get(), np.sqrt(x.get()) + n)
        del y


def test_one_allocation_at_a_time_gets_the_slot(cupy, ends):
    producer, _ = ends
    with producer.claim() as slot:
        at = slot.array.data.ptr
        with slot.allocate():
            first = cupy.empty(SHAPE, "f4")
            second = cupy.empty(SHAPE, "f4")
            other = cupy.empty(5, "f4")
            assert first.data.ptr == at
            assert at not in (second.data.ptr, other.data.ptr)
            del first
            gc.collect()
            third = cupy.empty(SHAPE, "f4")
            assert third.data.ptr == at
        assert cupy.empty(SHAPE, "f4").data.ptr != at
        assert not slot.copy_from(third)
        assert slot.copy_from(second)


def test_another_stream_has_the_slot_to_itself(cupy, ends):
    """The work on a temporary on one stream is not ordered before the result on another one."""
    producer, _ = ends
    with producer.claim() as slot:
        at = slot.array.data.ptr
        with slot.allocate():
            first = cupy.empty(SHAPE, "f4")
            assert first.data.ptr == at
            del first
            with cupy.cuda.Stream(non_blocking=True) as other:
                second = cupy.zeros(SHAPE, "f4")
                assert second.data.ptr != at
                other.synchronize()


def test_a_kernel_on_another_stream_is_waited_for(cupy, ends):
    producer, consumer = ends
    other = cupy.cuda.Stream(non_blocking=True)
    with producer.claim() as slot, other, slot.allocate():
        y = cupy.full(SHAPE, 7, "f4")
        assert y.data.ptr == slot.array.data.ptr
        assert other.ptr in slot._streams
    with consumer.acquire() as slot:
        assert float(slot.array.min()) == float(slot.array.max()) == 7


def test_the_ordinary_allocator_is_back_after_an_error(cupy, ends):
    producer, _ = ends
    before = cupy.cuda.get_allocator()
    with pytest.raises(ZeroDivisionError), producer.claim() as slot, slot.allocate():
        raise ZeroDivisionError
    assert cupy.cuda.get_allocator() == before


# ---- memory of the user's ------------------------------------------------------------------------


def reads(pipe, name, value):
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as consumer:
        slot = consumer.acquire(timeout=60)
        assert float(slot.array.min()) == float(slot.array.max()) == value
        slot.release()


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp: pinned, as a file descriptor, on a device."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


def mapped(nbytes):
    """Virtual memory as a user makes it, with cuMemCreate and without an import.

    Returns the address and the size: this many bytes, or the least that the GPU maps.
    """
    handle, ptr, none = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64(0)
    size, prop = ctypes.c_size_t(), AllocationProp(1, 1, Location(1, 0))
    least = ctypes.byref(size), ctypes.byref(prop), ctypes.c_int(0)
    driver.call("cuMemGetAllocationGranularity", *least)
    size.value = max(size.value, nbytes)
    driver.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(prop), none)
    driver.call("cuMemAddressReserve", ctypes.byref(ptr), size, ctypes.c_size_t(0), none, none)
    driver.call("cuMemMap", ptr, size, ctypes.c_size_t(0), handle, none)
    access = Access(prop.location, 3)
    driver.call("cuMemSetAccess", ptr, size, ctypes.byref(access), ctypes.c_size_t(1))
    return ptr.value, size.value


def lies_in(ring, ptr, name, children):
    """Checks that the ring's slots lie in the given memory, and that another process reads them."""
    with ring, ring.producer() as producer:
        with producer.claim() as slot:
            slot.array[...] = 3
            assert ptr is None or slot.array.data.ptr == ptr + slot.index * NBYTES
        assert children(reads, name, 3, method="spawn").result() is None


def test_memory_of_cudamalloc_is_taken(cupy, name, children):
    with cupy.cuda.using_allocator(None):
        own = cupy.zeros((SLOTS, *SHAPE), "f4")
    ring = gpuring.create(name, slots=SLOTS, shape=SHAPE, dtype="f4", memory=own)
    assert ring.memory == "ipc"
    lies_in(ring, own.data.ptr, name, children)
    assert float(own.max()) == 3
    assert segments_of(name) == []


def test_virtual_memory_is_taken(cupy, name, children):
    with gpus.current(0):
        ptr, nbytes = mapped(SLOTS * NBYTES)
    memory = cupy.cuda.UnownedMemory(ptr, nbytes, None, 0)
    own = cupy.ndarray((nbytes,), "u1", cupy.cuda.MemoryPointer(memory, 0))
    ring = gpuring.create(name, slots=SLOTS, shape=SHAPE, dtype="f4", memory=own)
    assert ring.memory == "vmm"
    lies_in(ring, None, name, children)
    assert float(own.view("f4").max()) == 3


def test_a_tensor_of_torch_is_taken(name, children):
    torch = pytest.importorskip("torch")
    own = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")  # a segment of its own
    ring = gpuring.create(name, slots=SLOTS, shape=SHAPE, dtype="f4", memory=own)
    lies_in(ring, own.data_ptr(), name, children)


@pytest.mark.parametrize(
    "what", ["a part", "the begin", "a pool", "strided", "small", "on the host"]
)
def test_what_cannot_be_shared_is_refused(cupy, name, what):
    with cupy.cuda.using_allocator(None):
        whole = cupy.zeros((2 * SLOTS, *SHAPE), "f4")
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        pooled = cupy.zeros((SLOTS, *SHAPE), "f4")
    own, error, words = {
        "the begin": (whole[:SLOTS], gpuring.DeviceError, "bytes of an allocation"),
        "a part": (whole[SLOTS:], gpuring.DeviceError, "a part of an allocation"),
        "a pool": (pooled, gpuring.DeviceError, "cannot be shared|a part of"),
        "strided": (whole[::2], ValueError, "C-contiguous"),
        "small": (whole[:1], ValueError, "bytes need"),
        "on the host": (np.zeros(NBYTES * SLOTS, "u1"), TypeError, "an array on a GPU"),
    }[what]
    with pytest.raises(error, match=words):
        gpuring.create(name, slots=SLOTS, shape=SHAPE, dtype="f4", memory=own)
    assert segments_of(name) == []
