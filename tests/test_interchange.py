"""Slots as seen by other libraries, and arrays that outlive their ring."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from support import Pipe

import gpuring


@pytest.fixture
def ring(place, name):
    with place.create(name, slots=2, shape=(3, 5), dtype="f4", meta=[("pts", "i8")]) as ring:
        yield ring


def test_numpy_sees_the_slot_itself(place, ring):
    if place.on_gpu:
        pytest.skip("NumPy cannot see a GPU's memory")
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim() as slot:
            assert np.shares_memory(np.from_dlpack(slot), slot.array)
            np.asarray(slot)[...] = 7
        with frames.acquire() as slot:
            assert (slot.array == 7).all()
            assert np.shares_memory(np.asarray(slot), slot.array)
            assert (np.from_dlpack(slot) == 7).all()
            assert slot.__dlpack_device__() == (1, 0)
            assert not hasattr(slot, "__cuda_array_interface__")


def test_a_reader_on_the_host_cannot_write(place, ring):
    if place.on_gpu:
        pytest.skip("a GPU cannot forbid it")
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim(shape=(2, 2)) as slot:
            slot.array[...] = 1
            slot.meta["pts"] = 1
        with frames.acquire() as slot:
            for array in (slot.array, slot["array"]):
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0
            with pytest.raises(ValueError, match="read-only"):
                slot.meta["pts"] = 0
            assert slot.meta["pts"] == 1


def test_cupy_sees_the_slot_itself(place, ring):
    if not place.on_gpu:
        pytest.skip("CuPy sees GPU memory only")
    import cupy

    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim() as slot:
            view = cupy.from_dlpack(slot)
            assert view.data.ptr == slot.array.data.ptr
            view[...] = 7
            assert cupy.asarray(slot).data.ptr == slot.array.data.ptr
            assert not hasattr(slot, "__array_interface__")
        with frames.acquire() as slot:
            assert slot.__dlpack_device__()[0] == 2
            assert (place.read(cupy.from_dlpack(slot)) == 7).all()


def test_arrays_are_made_once_per_slot(ring):
    with ring.producer() as producer:
        seen = {}
        for _ in range(6):
            with producer.claim() as slot:
                assert seen.setdefault(slot.index, (slot, slot.array)) == (slot, slot.array)
                assert seen[slot.index][1] is slot.array


def test_torch_sees_the_slot_itself(place, ring):
    torch = pytest.importorskip("torch")
    with ring.producer() as producer, producer.claim() as slot:
        tensor = torch.from_dlpack(slot)
        tensor.fill_(3)
        assert tensor.shape == (3, 5)
        assert (place.read(slot.array) == 3).all()


def test_host_arrays_and_metadata_outlive_the_ring(name):
    ring = gpuring.create(name, slots=2, shape=4, dtype="u1", meta=[("pts", "i8")], device="host")
    producer = ring.producer()
    slot = producer.claim()
    array, meta = slot.array, slot.meta
    array[...] = 9
    meta["pts"] = 9
    slot.publish()
    ring.close()
    del ring, producer, slot
    gc.collect()
    assert array.tolist() == [9] * 4
    assert meta["pts"] == 9


def test_a_host_ring_takes_no_stream(name):
    with gpuring.create(name, slots=2, shape=4, dtype="u1", device="host") as ring:
        with ring.producer() as producer, pytest.raises(TypeError, match="stream"):
            producer.claim(stream=0)
        assert ring.stats().cursor == 2


class NoCupy:
    """An import hook that has neither CuPy nor CUDA."""

    def find_spec(self, module, path=None, target=None):
        if module.partition(".")[0] in ("cupy", "cuda", "torch"):
            raise ImportError(f"{module} is blocked by this test")


def without_cupy(pipe: Pipe, name: str) -> list[str]:
    for module in [m for m in sys.modules if m.partition(".")[0] == "gpuring"]:
        del sys.modules[module]
    sys.meta_path.insert(0, NoCupy())
    import gpuring as fresh

    ring = fresh.create(name, slots=2, shape=4, dtype="u1", device="host")
    with ring, ring.producer() as producer, ring.consumer() as frames:
        producer.claim().publish()
        frames.acquire().release()
    errors = []
    for device in (None, "cuda", "cuda:0"):
        try:
            fresh.create(name, slots=2, shape=4, dtype="u1", device=device)
        except fresh.DeviceError as error:
            errors.append(str(error))
    assert not {"cupy", "cuda", "torch"} & set(sys.modules)
    return errors


def test_the_package_works_without_cupy(children, name):
    """And says what to do when a GPU is asked for."""
    for error in children(without_cupy, name).result():
        assert "device=" in error
        assert "cuda12" in error or "cupy" in error.lower(), error
