"""The slots of a pinned ring are registered with CUDA, or that is refused."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import gpuring
from gpuring.errors import DeviceError
from gpuring.memory import cuda, pinned
from gpuring.native.gpu import Refused
from gpuring.ring import ordering
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.pinned import WORDS, make, put, words
from tests.gpu.survivor import still_healthy
from tests.helpers.arrays import array_of, to_host
from tests.helpers.promise import promise

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]

ROUNDS = 10


def test_an_array_keeps_the_mapping_and_the_last_one_gives_it_back(name, monkeypatch):
    """After that the same pages can be registered again."""
    tools()
    given_back = []
    real = pinned.Registered

    def noted(*args):
        registered = real(*args)
        weakref.finalize(registered, given_back.append, registered.ptr)
        return registered

    monkeypatch.setattr(pinned, "Registered", noted)
    with make(name, device="cuda") as ring, ring.producer() as producer:
        with producer.claim(0) as slot:
            array = array_of(slot)
            array[...] = 5
        library.synchronize()
    gc.collect()
    assert (to_host(array) == 5).all()
    assert given_back == []
    del array, slot, producer, ring
    gc.collect()
    assert len(given_back) == 1
    for _ in range(ROUNDS):
        with make(name, device="cuda") as ring, gpuring.attach(name, device="cuda") as other:
            assert (ring.memory, other.memory) == ("pinned", "pinned")
    still_healthy(1)


def refuse(*_):
    raise Refused("cuMemHostRegister_v2: CUDA_ERROR_OPERATING_SYSTEM (304)", 304)


def no_device(*_):
    raise DeviceError("the ring's header cannot be mapped")


@promise(
    "failure.md",
    "If CUDA does not register the slots, the ring works anyway. One warning says so when it is "
    "attached, and each copy to or from the GPU is waited for.",
)
@pytest.mark.parametrize("what", ["slots", "header", "timeline"])
def test_where_registration_is_refused_copies_are_waited_for(name, monkeypatch, what):
    kernels = tools()
    with monkeypatch.context() as patched:
        if what == "slots":
            patched.setattr(pinned, "Registered", refuse)
        elif what == "header":
            patched.setattr(ordering, "Device", no_device)
        else:
            patched.setattr(cuda, "timeline_supported", lambda _: (False, "no 64-bit words"))
        with pytest.warns(RuntimeWarning, match="not registered with GPU 0") as told:
            ring = make(name, device="cuda")
        assert len(told) == 1
    stream = library.new_stream()
    with ring, gpuring.attach(name) as by_cpu:
        with by_cpu.producer() as producer, ring.consumer() as consumer:
            (peer,) = ring.stats().subscriptions[0].members
            (seen,) = (each for each in ring.stats().peers if each.number == peer)
            assert seen.gpu
            assert seen.unregistered.endswith("(304)" if what == "slots" else "(801)")
            for on in (None, stream):
                put(producer)
                with consumer.acquire(0, stream=on) as slot:
                    slot.use_on(stream)
                    assert isinstance(slot.array, np.ndarray)
                    upload = slot.upload(stream=on)
                with producer.claim(0) as slot:  # needs no wait, because the frame was read
                    slot.array[...] = 0
                with consumer.acquire(0):
                    pass
                assert (to_host(upload) == words(slot.seq - 1)).all()
        with ring.producer() as producer, by_cpu.consumer() as consumer:
            source = library.empty(WORDS)
            with kernels.Latch(limit_s=0.2) as latch, producer.claim(0, stream=stream) as slot:
                latch.hold(stream)
                kernels.stamp(source, slot.seq, stream)
                slot.copy_from(source, stream=stream)  # waits for what the stream had to do
            with consumer.acquire(0) as frame:
                assert (frame.array == words(frame.seq)).all()
