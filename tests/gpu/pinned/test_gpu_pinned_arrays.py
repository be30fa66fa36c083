"""Slots of pinned rings as arrays of a GPU and of the CPU, and copies of them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import gpuring
from gpuring.arrays import tensors
from gpuring.errors import OverrunWarning, StaleViewWarning
from gpuring.ring import debug
from gpuring.slot_layout import ARRAY, Field
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.pinned import TAKES_S, WORDS, make, put, words
from tests.helpers.arrays import array_of, to_host

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]


def test_the_array_of_a_gpu_peer_is_the_slot_itself(ring, by_cpu):
    tools()
    with by_cpu.producer() as producer, ring.consumer() as consumer:
        (seq,) = put(producer)
        with consumer.acquire(0) as slot:
            assert not isinstance(array_of(slot), np.ndarray)
            assert (to_host(array_of(slot)) == words(seq)).all()
            assert slot.__dlpack_device__()[0] == 2  # kDLCUDA
    with ring.producer() as producer, by_cpu.consumer() as consumer:
        with producer.claim(0) as slot:
            array_of(slot)[...] = 7  # by a kernel, over the bus
        with consumer.acquire(TAKES_S) as frame:
            assert isinstance(frame.array, np.ndarray)
            assert (frame.array == 7).all()
            with pytest.raises(ValueError, match="read-only"):
                frame.array[0] = 0


def test_torch_reads_uploads_and_writes(name):
    torch = pytest.importorskip("torch")
    out = torch.zeros(WORDS, dtype=torch.int64, device="cuda")
    frame = np.arange(WORDS, dtype="i8")
    with make(name, dtype="i8") as by_cpu, gpuring.attach(name, device="cuda") as ring:
        with by_cpu.producer() as producer, ring.consumer() as consumer:
            with producer.claim(0) as slot:
                slot.array[...] = frame
            with consumer.acquire(0) as slot:
                view = torch.from_dlpack(slot)
                assert view.is_cuda
                assert slot.upload(out) is out
                assert torch.equal(out, view)
        assert (out.cpu().numpy() == frame).all()
        with ring.producer() as producer, by_cpu.consumer() as consumer:
            with producer.claim(0) as slot:
                slot.copy_from(out * 2)
            with consumer.acquire(TAKES_S) as slot:
                assert (slot.array == 2 * frame).all()


def test_what_cannot_be_uploaded(ring, by_cpu):
    tools()
    with by_cpu.producer() as producer, ring.consumer() as consumer:
        put(producer)
        with consumer.acquire(0) as slot:
            with pytest.raises(ValueError, match="shape"):
                slot.upload(library.zeros(3))
            with pytest.raises(TypeError, match="uint64"):
                slot.upload(library.to_gpu(np.zeros(WORDS)))
        with pytest.raises(gpuring.RingError, match="no longer yours"):
            slot.upload()
    with by_cpu.producer() as producer, by_cpu.consumer() as consumer:
        put(producer)
        with (
            consumer.acquire(0) as slot,
            pytest.raises(TypeError, match=r"copy_to .* device= if it is pinned"),
        ):
            slot.upload()


def test_fields_smaller_frames_and_batches(name):
    tools()
    with (
        make(name, shape=None, dtype=None, fields={"y": ((4, 6), "u1"), "uv": (8, "f4")}) as ring,
        gpuring.attach(name, device="cuda") as on_gpu,
        ring.producer() as producer,
        on_gpu.consumer() as consumer,
    ):
        with producer.claim(0) as slot:
            slot["y"][...], slot["uv"][...] = 3, 0.5
        with consumer.acquire(0) as slot:
            y, uv = slot.upload(field="y"), slot.upload(field="uv")
            with pytest.raises(TypeError, match="'y', 'uv'"):
                slot.upload()
        assert (y.shape, to_host(uv).dtype) == ((4, 6), np.float32)
        assert ((to_host(y) == 3).all(), (to_host(uv) == 0.5).all()) == (True, True)
    with (
        make(name, shape=(8, 8), dtype="i4") as ring,
        gpuring.attach(name, device="cuda") as on_gpu,
        ring.producer() as producer,
        on_gpu.consumer() as consumer,
    ):
        for k in range(3):
            with producer.claim(0, shape=(2, k + 1)) as slot:
                slot.array[...] = k
        with consumer.acquire_many(3, 0) as batch:
            uploads = [slot.upload() for slot in batch]
        assert [each.shape for each in uploads] == [(2, 1), (2, 2), (2, 3)]
        assert all((to_host(each) == k).all() for k, each in enumerate(uploads))


def test_bfloat16(name):
    cupy = pytest.importorskip("cupy")
    with (
        make(name, shape=8, dtype="bfloat16") as ring,
        gpuring.attach(name, device="cuda") as on_gpu,
        ring.producer() as producer,
        on_gpu.consumer() as consumer,
    ):
        with producer.claim(0) as slot:
            slot.array.view("u2")[...] = 0x3F80
        with consumer.acquire(0) as slot:
            upload = slot.upload()
        assert (cupy.asnumpy(upload.view("u2")) == 0x3F80).all()


@pytest.mark.parametrize("on", [None, 0], ids=["current", "default"])
def test_the_memory_of_an_upload_is_used_again_on_the_same_stream(on):
    """On another one the next array would not wait for what still reads this one."""
    upload = tensors.empty((WORDS,), Field(ARRAY, (WORDS,), np.dtype("u8"), 0), 0, on)
    address, _ = library.span(upload)
    del upload
    assert library.span(library.empty(WORDS))[0] == address


def test_upload_works_on_gpu_rings_too(name):
    kernels = tools()
    with (
        make(name, memory="ipc", device="cuda") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        with producer.claim(0) as slot:
            kernels.stamp(slot, slot.seq, None)
        with consumer.acquire(0) as slot:
            upload = slot.upload()
        assert (to_host(upload) == words(slot.seq)).all()


def test_debug_mode_sees_late_views_and_writes_beyond_a_slot(name, monkeypatch):
    monkeypatch.setattr(debug, "ON", True)
    tools()
    with (
        make(name, device="cuda") as ring,
        gpuring.attach(name) as by_cpu,
        by_cpu.producer() as producer,
        ring.consumer() as consumer,
    ):
        put(producer)
        slot = consumer.acquire(0)
        view = slot.array
        upload = slot.upload()
        slot.release()
        with pytest.warns(StaleViewWarning, match="used after it was released"):
            view.sum()
        assert upload.shape == (WORDS,)
        late = producer.claim(TAKES_S)
        ctypes.memset(late.array.ctypes.data + late.array.nbytes, 0, 8)
        with pytest.warns(OverrunWarning):
            late.publish()
