"""Slots of a pinned ring in one process: registered with a GPU, or not, or used by the CPU alone.

The GPU is made up (fake_gpu.py).  tests/native/device/test_pinned_order.py has who waits for whom,
and tests/gpu/pinned a real GPU.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from typing import Any

import numpy as np
import pytest

import gpuring
from gpuring.errors import DeviceError
from gpuring.memory import cuda
from gpuring.memory.pinned import PinnedMemory, RegisteredMemory
from gpuring.registry import segment
from gpuring.ring import inner, ordering
from gpuring.slot_layout import Field
from tests.helpers.processes import Pipe, open_files, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.memory.fake_gpu import GpuArray

FIELD = Field("array", (5,), np.dtype("i4"), 0)
FRAME = np.arange(5, dtype="i4")
EPOCH = bytes(range(16))


def make(name: str, **options: Any) -> gpuring.Ring:
    return gpuring.create(name, slots=4, shape=5, dtype="i4", memory="pinned", **options)


@pytest.fixture
def host(name: str) -> PinnedMemory:
    """Slots that this process has just made."""
    made, making = PinnedMemory.create(name, EPOCH, 0o600, 4, 256)
    making.close()
    segment.remove_slots(segment.slots_name(name, EPOCH))
    return made


# ---- used by the CPU -----------------------------------------------------------------------------


@promise(
    "failure.md",
    "A process that uses a pinned ring by the CPU never touches CUDA.",
)
@pytest.mark.parametrize("device", [None, "host"])
def test_without_a_device_nobody_asks_for_a_gpu(name, device, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(cuda, "Driver", None)
    with make(name, device=device) as ring, gpuring.attach(name, device=device) as other:
        assert (ring.memory, ring.sync, ring.gate) == ("pinned", "timeline", "stream")
        assert repr(ring) == f"<Ring {name!r}: 4 × (5,) int32, pinned, timeline>"
        with ring.producer() as producer, other.consumer() as consumer:
            with producer.claim(0) as slot:
                slot.copy_from(FRAME)
            with consumer.acquire(0) as slot:
                assert (slot.array == FRAME).all()
                with pytest.raises(TypeError, match=r"copy_to .* device= if it is pinned"):
                    slot.upload()
    assert segments_of(name) == []


def test_what_a_pinned_ring_cannot_have(name):
    with pytest.raises(ValueError, match='a pinned ring has sync="timeline"'):
        make(name, sync="event")
    with pytest.raises(ValueError, match="cannot be an array on a GPU"):
        gpuring.create(name, slots=2, shape=3, dtype=[("x", "f4")], memory="pinned")
    assert segments_of(name) == []


def creates(pipe: Pipe, name: str) -> None:
    ring = make(name)
    with ring.producer() as producer, producer.claim(0) as slot:
        slot.array[...] = FRAME
    pipe.ask()


@promise(
    "failure.md",
    "a host ring or a pinned ring | can attach as long as somebody is inside. The last one to "
    "leave removes the names.",
)
def test_others_attach_after_the_death_of_the_creator(name, children):
    creator = up(children(creates, name))
    with gpuring.attach(name) as first:
        creator.kill()
        with (
            gpuring.attach(name) as other,
            other.consumer(start="oldest") as consumer,
            consumer.acquire(0) as slot,
        ):
            assert (slot.array == FRAME).all()
        assert not first.stats().creator_alive
    assert segments_of(name) == []  # this process was the last one


# ---- registered ----------------------------------------------------------------------------------


def test_the_arrays_of_a_gpu_are_over_the_slots(gpu, host):
    numpy = host.array(1, FIELD, (5,), writable=True)
    memory = host.under("cuda:1")
    assert isinstance(memory, RegisteredMemory)
    assert (memory.kind, memory.device, memory.mapped) == ("pinned", 1, True)
    array = memory.array(1, FIELD, (5,), writable=False)
    assert array.data.ptr == numpy.ctypes.data
    assert array.device.id == 1
    assert list(gpu.has.values()) == ["registered"]
    ended: list[str] = []
    memory.close(others=True, then=lambda: ended.append("ended"))
    assert memory.descriptor == -1
    del memory, numpy
    gc.collect()
    assert gpu.has, "the array keeps the registration"
    assert not ended
    del array
    gc.collect()
    assert (gpu.has, ended) == ({}, ["ended"])


@pytest.mark.parametrize("refused", [0, 304])
def test_everybody_offers_the_segment_and_with_it_the_pidfd(gpu, host, refused):
    """Only from the pidfd do peers in other pid namespaces learn that somebody's copies have
    ended."""
    assert "/dev/shm" in open_files()[host.descriptor]
    gpu.refuses_to_register = refused
    memory = host.under(0)
    assert "/dev/shm" in open_files()[memory.descriptor]
    assert not os.get_inheritable(memory.descriptor)
    memory.close(others=True, then=lambda: None)
    assert memory.descriptor == -1


def test_a_gpu_that_is_not_there_is_refused_and_nothing_is_left(gpu, name):
    with pytest.raises(DeviceError, match="there is no GPU 7"):
        make(name, device="cuda:7")
    with pytest.raises(ValueError, match="device must be"):
        make(name, device="gpu")
    with make(name) as ring:
        before = open_files()
        with pytest.raises(DeviceError, match="there is no GPU 7"):
            gpuring.attach(name, device=7)
        assert open_files() == before
        assert ring.stats().peers == ()
    assert gpu.has == {}
    assert segments_of(name) == []


# ---- not registered ------------------------------------------------------------------------------


def no_device(*_: object) -> None:
    raise DeviceError("the ring's header cannot be mapped")


@promise(
    "failure.md",
    "If CUDA does not register the slots, the ring works anyway. One warning says so when it is "
    "attached, and each copy to or from the GPU is waited for.",
)
@pytest.mark.parametrize("what", ["slots", "header", "timeline"])
def test_where_registration_is_refused_copies_are_waited_for(gpu, name, monkeypatch, what):
    if what == "slots":
        gpu.refuses_to_register = 304
    elif what == "timeline":
        gpu.lacks = "GPU 0 has no 64-bit stream waits"
    monkeypatch.setattr(ordering, "Device", no_device)
    status = "CUDA_ERROR_OPERATING_SYSTEM (304)" if what == "slots" else "NOT_SUPPORTED (801)"
    with make(name) as by_cpu:
        with pytest.warns(RuntimeWarning, match="not registered with GPU 0") as told:
            ring = gpuring.attach(name, device="cuda")
        assert len(told) == 1
        with by_cpu.producer() as producer, ring.consumer() as consumer:
            (peer,) = (each for each in ring.stats().peers if each.number == consumer.peer)
            assert peer.gpu == "00000000-0000-0000-0000-000000000001"
            assert str(peer.unregistered).endswith(status)
            with producer.claim(0) as slot:
                slot.copy_from(FRAME)
            with consumer.acquire(0, stream=9) as slot:
                assert isinstance(slot.array, np.ndarray)
                before = list(gpu.waited_for)
                upload = slot.upload(stream=9)
                assert gpu.waited_for == [*before, 9, 0]  # the stream's work, and the copy
            assert (upload.values == FRAME).all()
            producer.claim(0).abandon()
        with ring.producer() as producer, by_cpu.consumer() as consumer:
            with producer.claim(0, stream=9) as slot:
                before = list(gpu.waited_for)
                slot.use_on(9).copy_from(GpuArray(FRAME * 2))
                assert gpu.waited_for == [*before, 0]
            with consumer.acquire(0) as slot:
                assert (slot.array == 2 * FRAME).all()
        ring.close()
    gc.collect()
    assert gpu.has == {}


@pytest.mark.filterwarnings("ignore:.*not registered:RuntimeWarning")
def test_who_follows_or_is_spawned_uses_the_next_ring_as_before(gpu, name):
    gpu.refuses_to_register = 304
    camera = make(name)
    with gpuring.attach(name, device="cuda:1") as ring, pickle.loads(pickle.dumps(ring)) as same:
        assert inner.memory(same).device == 1
        with pickle.loads(pickle.dumps(camera)) as by_cpu:
            assert inner.memory(by_cpu).device is None
        with ring.consumer(reattach=True) as consumer:
            camera.close()
            with make(name) as camera, camera.producer() as producer:
                with producer.claim(0) as slot:
                    slot.copy_from(FRAME)
                with consumer.acquire(20) as slot:
                    assert slot.restarted
                    assert (slot.upload().values == FRAME).all()
                assert inner.memory(consumer.ring).device == 1


def test_a_host_ring_takes_and_gives_arrays_of_a_gpu(gpu, name):
    with (
        gpuring.create(name, slots=2, shape=5, dtype="i4", device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        out = GpuArray(np.zeros(5, "i4"))
        with producer.claim(0) as slot:
            slot.copy_from(GpuArray(FRAME.copy()))
            with pytest.raises(ValueError, match="shape"):
                slot.copy_from(GpuArray(FRAME[:2]))
        with consumer.acquire(0) as slot:
            slot.copy_to(out)
            assert (slot.array == FRAME).all()
        assert (out.values == FRAME).all()
        assert gpu.waited_for == [0, 0]
