"""A ring on one GPU read from another: matched by UUID, whatever the ordinals are there."""

from __future__ import annotations

import pytest

import gpuring

pytestmark = pytest.mark.gpu
FRAMES = 2000


@pytest.fixture(autouse=True)
def _two_gpus():
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")


def read_from(pipe, name, device):
    """Checks every frame with a kernel on GPU `device` of this process's own numbering."""
    import cupy
    import kernels

    cupy.cuda.Device(device).use()
    kernels.warm_up()
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring, ring.consumer() as consumer:
        pipe.send("joined")
        for _ in range(FRAMES):
            with consumer.acquire(60) as slot:
                assert slot.array.device.id == device
                kernels.check(slot.array, slot.seq, wrong, None)
        return int(wrong.get()[0])


@pytest.mark.parametrize("sync", ["timeline", "event"])
@pytest.mark.parametrize("device", [0, 1])
def test_the_numbering_of_the_reader_does_not_matter(device, sync, name, children, monkeypatch):
    import kernels

    kernels.warm_up()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")  # for the child; ours was read already
    with (
        gpuring.create(
            name, slots=4, shape=(4096,), dtype="u8", device="cuda:0", sync=sync
        ) as ring,
        ring.producer() as producer,
    ):
        child = children(read_from, name, device)
        assert child.receive() == "joined"
        for _ in range(FRAMES):
            with producer.claim(60) as slot:
                kernels.stamp(slot.array, slot.seq, None)
        assert child.result() == 0


def attach_blind(pipe, name):
    try:
        gpuring.attach(name).close()
    except gpuring.DeviceError as error:
        return str(error)
    return "attached"


def test_a_gpu_that_is_not_visible_is_named(name, children, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with gpuring.create(name, slots=2, shape=(8,), dtype="u8", device="cuda:0"):
        said = children(attach_blind, name).result()
    assert "cannot be seen from" in said
    assert said.count("GPU-") == 2
