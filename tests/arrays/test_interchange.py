"""Slots as seen by other libraries, and arrays that outlive their ring."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import gpuring
from gpuring import slot_layout
from tests.helpers.arrays import array_of
from tests.helpers.commands import python
from tests.helpers.processes import Pipe
from tests.helpers.rings import small_ring


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
        pytest.skip("on a GPU only vmm forbids it: test_gpu_memory.py")
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
        for _ in range(3 * ring.slots):
            with producer.claim() as slot:
                assert seen.setdefault(slot.index, id(slot.array)) == id(slot.array)


def test_whoever_keeps_a_slot_or_its_array_has_them_for_himself(ring):
    """Later frames of the same slot come with another object.  There are two in all, not more."""
    with ring.producer() as producer:
        for keep in (lambda slot: slot, lambda slot: slot.array):
            kept, ids = None, set()
            for _ in range(6 * ring.slots):
                with producer.claim() as slot:
                    ids.add(id(slot))
                    if slot.index == 0:
                        assert kept is None or keep(slot) is not kept
                        kept = keep(slot)
                slot = None
            assert len(ids) == ring.slots + 1


def test_torch_reads_and_writes_the_slot_itself(place, ring):
    torch = pytest.importorskip("torch")
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim() as slot:
            tensor = torch.from_dlpack(slot)
            tensor.fill_(3)
            assert tensor.shape == (3, 5)
            assert (place.read(slot) == 3).all()
        with frames.acquire() as slot:
            tensor = torch.from_dlpack(slot)
            assert tensor.is_cuda == place.on_gpu
            assert (tensor.cpu().numpy() == 3).all()


def test_bfloat16_and_float8_reach_torch(place, name):
    torch = pytest.importorskip("torch")
    for dtype in slot_layout.EXTENDED:
        kind = getattr(torch, dtype)
        with (
            place.create(name, slots=2, shape=(2, 3), dtype=kind) as ring,
            gpuring.attach(name) as other,
            ring.producer() as producer,
            other.consumer() as frames,
        ):
            assert other.spec.fields[0].extended == dtype
            with producer.claim() as slot:
                tensor = torch.from_dlpack(slot)
                assert tensor.dtype == kind
                tensor.copy_(torch.full((2, 3), 1.5).to(kind))
            with producer.claim() as slot:
                slot.copy_from(torch.full((2, 3), 1.5).to(kind))
            for _ in range(2):
                with frames.acquire() as slot:
                    assert slot.array.dtype.itemsize == kind.itemsize
                    assert (torch.from_dlpack(slot).float().cpu() == 1.5).all()


def test_bfloat16_without_ml_dtypes_is_its_bits(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with gpuring.create(name, slots=2, shape=4, dtype="bfloat16", device="host") as ring:
        assert ring.spec.fields[0].dtype == np.dtype("u2")
        with ring.producer() as producer, producer.claim() as slot:
            assert slot.__dlpack__(max_version=(1, 0))
            with pytest.raises(TypeError, match="bfloat16"):
                slot.copy_from(np.zeros(4, "f4"))
            slot.copy_from(np.full(4, 0x3FC0, "u2"))


def test_jax_reads_the_slot_itself(place, ring):
    jax = pytest.importorskip("jax")
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim() as slot:
            slot.copy_from(jax.numpy.full((3, 5), 4, "float32"))
        with frames.acquire() as slot:
            total = jax.numpy.sum(jax.dlpack.from_dlpack(slot))
            assert float(jax.block_until_ready(total)) == 60


def test_numba_compiles_for_the_slot(place, ring):
    if place.on_gpu:
        pytest.skip("test_gpu_interop.py tests this on a GPU")
    numba = pytest.importorskip("numba")

    @numba.njit
    def double(x):
        for k in range(x.size):
            x.flat[k] *= 2

    with ring.producer() as producer, producer.claim() as slot:
        slot.array[...] = 4
        double(slot.array)
        assert (slot.array == 8).all()


def test_each_field_is_exported_by_itself(place, name):
    torch = pytest.importorskip("torch")
    fields = {"y": ((4, 6), "u1"), "uv": ((2, 6), "i2")}
    with place.create(name, slots=2, fields=fields) as ring, ring.producer() as producer:
        with producer.claim() as slot:
            torch.from_dlpack(slot.field("y")).fill_(1)
            torch.from_dlpack(slot.field("uv")).fill_(2)
            assert (place.read(array_of(slot, "y")) == 1).all()
            assert (place.read(array_of(slot, "uv")) == 2).all()
            with pytest.raises(TypeError, match=r"'y', 'uv': .* slot\.field\(name\) for other"):
                torch.from_dlpack(slot)
            with pytest.raises(KeyError, match="'v'"):
                slot.field("v")
            kept = slot.field("y")
        with pytest.raises(gpuring.RingError, match="no longer yours"):
            kept.__dlpack__()
        for _ in range(2):
            producer.claim()
        with pytest.raises(gpuring.RingError, match="no longer yours"):
            kept.__dlpack__()


def test_what_dlpack_is_asked_for(ring, place):
    """`__dlpack__` takes the arguments of the array API's specification, 2023.12."""
    with ring.producer() as producer, producer.claim(shape=(2, 2)) as slot:
        assert '"dltensor"' in repr(slot.__dlpack__())
        assert '"dltensor"' in repr(slot.__dlpack__(max_version=(0, 8)))
        assert '"dltensor_versioned"' in repr(slot.__dlpack__(max_version=(1, 3), copy=False))
        assert slot.__dlpack__(dl_device=slot.__dlpack_device__(), stream=-1)
        with pytest.raises(BufferError, match="device"):
            slot.__dlpack__(dl_device=(7, 0))
        with pytest.raises(BufferError, match="stream"):
            slot.__dlpack__(stream=0)
        if not place.on_gpu:
            with pytest.raises(BufferError, match="stream"):
                slot.__dlpack__(stream=1)


def test_a_copy_is_made_if_asked_for(ring, place):
    if place.on_gpu:
        pytest.skip("test_gpu_interop.py tests this on a GPU")
    with ring.producer() as producer:
        with producer.claim() as slot:
            slot.array[...] = 5
            copy = np.from_dlpack(_Copied(slot))
            assert not np.shares_memory(copy, slot.array)
        assert (copy == 5).all()


class _Copied:
    """Asks for a copy as numpy.from_dlpack(slot, copy=True) does, which NumPy has from 2.1 on."""

    def __init__(self, slot):
        self._slot = slot
        self.__dlpack_device__ = slot.__dlpack_device__

    def __dlpack__(self, **_):
        return self._slot.__dlpack__(copy=True)


def test_importers_are_told_what_is_read_only(place, ring):
    if place.on_gpu:
        pytest.skip("on a GPU only vmm forbids it: test_gpu_memory.py")
    with ring.producer() as producer, ring.consumer() as frames:
        producer.claim().publish()
        with frames.acquire() as slot:
            assert not np.from_dlpack(slot).flags.writeable


def test_what_dlpack_has_no_word_for(name):
    with (
        gpuring.create(name, slots=2, shape=4, dtype=">f4", device="host") as ring,
        ring.producer() as producer,
        producer.claim() as slot,
    ):
        with pytest.raises(BufferError, match=">f4"):
            slot.__dlpack__()
        assert np.shares_memory(np.asarray(slot), slot.array)


def test_an_exported_slot_outlives_its_ring(name):
    ring = small_ring(name, 2)
    slot = ring.producer().claim()
    slot.array[...] = 9
    tensor = np.from_dlpack(slot)
    unused = slot.__dlpack__(max_version=(1, 0))
    before = sys.getrefcount(slot.array)
    del unused  # nobody has imported the capsule
    after = sys.getrefcount(slot.array)
    assert after == before - 1
    slot.publish()
    ring.close()
    del ring, slot
    gc.collect()
    assert tensor.tolist() == [9] * 4


def test_a_host_slot_is_used_on_no_stream(ring, place):
    if not place.on_gpu:
        with ring.producer() as producer, producer.claim() as slot:
            with pytest.raises(TypeError, match="stream"):
                slot.use_on(1)
            with pytest.raises(TypeError, match="stream"):
                slot.copy_from(slot.array, stream=1)


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
    with small_ring(name, 2) as ring:
        with ring.producer() as producer, pytest.raises(TypeError, match="stream"):
            producer.claim(stream=0)
        assert ring.stats().cursor == 2


OF_GPUS = {"cupy", "cuda", "torch"}


class NoCupy:
    """An import hook that has neither CuPy nor CUDA."""

    def find_spec(self, module, path=None, target=None):
        if module.partition(".")[0] in OF_GPUS:
            raise ModuleNotFoundError(f"{module} is blocked by this test", name=module)


def without_cupy(pipe: Pipe, name: str) -> list[str]:
    for module in [m for m in sys.modules if m.partition(".")[0] in {"gpuring", *OF_GPUS}]:
        del sys.modules[module]  # these tests have imported what is installed
    sys.meta_path.insert(0, NoCupy())
    import gpuring as fresh

    ring = fresh.create(name, slots=2, shape=4, dtype="u1", device="host")
    with ring, ring.producer() as producer, ring.consumer() as frames:
        producer.claim().publish()
        frames.acquire().release()
    errors = []
    for device in (None, "cuda", "cuda:0"):
        try:
            fresh.create(name, slots=2, shape=4, dtype="u1", device=device).close()
        except Exception as error:  # of the class before: compiled modules are not loaded anew
            errors.append(f"{type(error).__name__}: {error}")
    assert not OF_GPUS & set(sys.modules)
    return errors


def test_the_package_works_without_cupy(children, name):
    """If a GPU is asked for and there is none, the error says what to do."""
    for error in children(without_cupy, name).result():
        assert error.startswith("DeviceError: ")
        assert "device='host'" in error


_LATE_DELETER = """
import ctypes, sys, gpuring

with gpuring.create(sys.argv[1], slots=1, shape=4, dtype="u1", device="host") as ring:
    with ring.producer() as producer, producer.claim() as slot:
        capsule = slot.__dlpack__(max_version=(1, 0))
        get, rename = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_SetName
        get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
        tensor = get(capsule, b"dltensor_versioned")
        used = ctypes.create_string_buffer(b"used_dltensor_versioned")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(used))
        rename(capsule, used)
        deleter = ctypes.c_void_p.from_address(tensor + 16)
        ctypes.CDLL(None).__cxa_atexit(deleter, ctypes.c_void_p(tensor), None)
"""


def test_a_tensor_may_die_after_python(place, name):
    if place.on_gpu:
        pytest.skip("this does not depend on the kind of memory")
    assert python(_LATE_DELETER, name).returncode == 0


def test_long_double_is_not_in_dlpack(place, name):
    if place.on_gpu:
        pytest.skip("no GPU has long doubles")
    with place.create(name, slots=1, shape=4, dtype="g") as ring, ring.producer() as producer:
        slot = producer.claim()
        with pytest.raises(BufferError, match="DLPack has no"):
            slot.__dlpack__()
