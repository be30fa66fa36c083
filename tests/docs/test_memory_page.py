"""The blocks of the pages that make rings in other memory."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

import gpuring
from tests.docs.blocks import block, run
from tests.helpers.processes import PATIENCE_S, poll

SHAPE = (1080, 1920, 3)


@block("guide.md", 8)
def test_a_ring_in_host_memory(code):
    with run(code)["ring"] as ring:
        assert (ring.memory, ring.shape) == ("host", SHAPE)


@block("memory.md", 0)
@pytest.mark.gpu
def test_memory_by_name(code):
    with run(code)["ring"] as ring:
        assert ring.memory == "vmm"


@block("memory.md", 1)
@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_a_camera_without_a_gpu(code, name, on_gpu):
    camera, model, recorder = re.split(r"\n\n(?=# )", code)
    run(camera, picture=np.zeros(SHAPE, "u1"))
    with (
        gpuring.create(f"{name}.cam0", slots=8, shape=SHAPE, dtype="u1", memory="pinned") as ring,
        ring.producer() as producer,
    ):
        run(recorder)
        if on_gpu:
            publishing = threading.Thread(target=_publish_one, args=(ring, producer))
            publishing.start()
            assert run(model)["picture"].shape == SHAPE
            publishing.join()


def _publish_one(ring: gpuring.Ring, producer: gpuring.Producer) -> None:
    poll(lambda: ring.stats().subscriptions)
    with producer.claim(PATIENCE_S) as slot:
        slot.array[...] = 1
    producer.close()


@block("memory.md", 2)
@pytest.mark.gpu
def test_memory_of_ones_own(code):
    cupy = pytest.importorskip("cupy", reason="its arrays are CuPy's")
    with run(code, cupy=cupy)["ring"] as ring:
        assert ring.memory == "ipc"


@block("memory.md", 3)
@pytest.mark.gpu
def test_another_gpu(code, name):
    cupy = pytest.importorskip("cupy", reason="its arrays are CuPy's")
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("it needs two GPUs")
    with (
        gpuring.create(f"{name}.cam0", slots=8, shape=(4, 6), dtype="f4", device=0) as ring,
        ring.producer() as producer,
    ):
        publishing = threading.Thread(target=_publish_one, args=(ring, producer))
        publishing.start()
        assert float(run(code, cupy=cupy)["brightness"]) == 1
        publishing.join()
