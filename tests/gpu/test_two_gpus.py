"""A ring on one GPU read from another: matched by UUID, whatever the ordinals are there."""

from __future__ import annotations

import pytest

import gpuring
from gpuring.memory import kinds

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
        check(consumer, wrong, device)
    return int(wrong.get()[0])


def check(consumer, wrong, device):
    import kernels

    for _ in range(FRAMES):
        with consumer.acquire(60) as slot:
            assert slot.array.device.id == device
            kernels.check(slot.array, slot.seq, wrong, None)


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


def read_by_argument(pipe, name, device):
    """Names the GPU to attach().  Another one is current until the frames are worked on."""
    import cupy
    import kernels

    cupy.cuda.Device(1 - device).use()
    with gpuring.attach(name, timeout=20, device=device) as ring, cupy.cuda.Device(device):
        kernels.warm_up()
        wrong, copy = kernels.counter(), cupy.empty(4096, "u8")
        with ring.consumer() as consumer:
            pipe.send("joined")
            check(consumer, wrong, device)
            with consumer.acquire(60) as slot:
                slot.copy_to(copy)
                kernels.check(copy, slot.seq, wrong, None)
        return int(wrong.get()[0])


@pytest.mark.parametrize("kind", kinds.ON_GPU)
@pytest.mark.parametrize("owner", [0, 1])
def test_a_gpu_is_named_and_frames_cross_in_both_directions(owner, kind, name, children):
    import cupy
    import kernels

    able, why = kinds.supported(kind, owner)
    if not able:
        pytest.skip(why)
    with (
        gpuring.create(
            name, slots=4, shape=(4096,), dtype="u8", device=f"cuda:{owner}", memory=kind
        ) as ring,
        cupy.cuda.Device(owner),
        ring.producer() as producer,
    ):
        kernels.warm_up()
        child = children(read_by_argument, name, 1 - owner)
        assert child.receive() == "joined"
        for _ in range(FRAMES + 1):
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
