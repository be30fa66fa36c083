"""Rings from one slot of a byte to 64 slots of a gigabyte.  Also torch, which reads and writes a
slot."""

from __future__ import annotations

import os

import pytest

import gpuring
from tests.helpers.arrays import array_of

pytestmark = pytest.mark.gpu


def pass_frames(pipe, name, nbytes, frames):
    """Sends the first and the last byte of every frame."""
    seen = []
    with gpuring.attach(name, timeout=20) as ring, ring.consumer() as consumer:
        pipe.send("joined")
        for _ in range(frames):
            with consumer.acquire(60) as slot:
                array = array_of(slot)
                assert array.nbytes == nbytes
                seen.append((int(array[0]), int(array[-1])))
    return seen


@pytest.mark.parametrize("sync", ["timeline", "event"])
@pytest.mark.parametrize("nbytes", [1, 1 << 30])
@pytest.mark.parametrize("slots", [1, 64])
def test_slots_of_every_size(slots, nbytes, sync, name, children):
    if slots * nbytes > 1 << 35 and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("other tests need the memory at the same time")
    frames = 2 * slots + 1
    with gpuring.create(name, slots=slots, shape=(nbytes,), dtype="u1", sync=sync) as ring:
        child = children(pass_frames, name, nbytes, frames)
        assert child.receive() == "joined"
        with ring.producer() as producer:
            for k in range(frames):
                with producer.claim(60) as slot:
                    array_of(slot)[-1:] = k
                    array_of(slot)[:1] = k
            assert child.result() == [(k, k) for k in range(frames)]


@pytest.mark.parametrize("sync", ["timeline", "event"])
def test_torch_writes_and_reads_without_a_copy(sync, name):
    torch = pytest.importorskip("torch")
    with (
        gpuring.create(name, slots=2, shape=(1 << 20,), dtype="f4", sync=sync) as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        side = torch.cuda.Stream()
        for k in range(20):
            with producer.claim(10) as slot, torch.cuda.stream(side):
                tensor = torch.from_dlpack(slot)
                assert tensor.data_ptr() == slot.__cuda_array_interface__["data"][0]
                torch.cuda._sleep(2_000_000)  # the release has to wait for this stream
                tensor.fill_(k)
            with consumer.acquire(10, stream=side) as slot, torch.cuda.stream(side):
                assert float(torch.from_dlpack(slot).sum()) == float(k * (1 << 20))
