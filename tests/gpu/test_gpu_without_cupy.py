"""Rings on a GPU where CuPy is not installed: with torch alone, and with nothing at all.

Each process is a child that cannot import CuPy, so the tests also run where CuPy is installed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import warnings

import numpy as np
import pytest

import gpuring
from gpuring.errors import OverrunWarning, StaleViewWarning
from gpuring.memory import frameworks, kinds
from gpuring.recording.message import RecordedRing, copier
from gpuring.ring import debug
from tests import ROOT
from tests.helpers.processes import PATIENCE_S
from tests.helpers.promise import promise

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]

SHAPE = (16, 32)
SLOTS = 4
HELD_CYCLES = 1_500_000_000
"""About a second of a GPU.  The reader must not be able to overtake it."""


@pytest.fixture
def alone(children, monkeypatch):
    """Starts children that have no CuPy."""
    hiding = str(ROOT / "tests/helpers/hiding")
    monkeypatch.syspath_prepend(hiding)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([hiding, os.environ.get("PYTHONPATH", "")]))
    return lambda target, *args: children(target, *args, method="spawn")


with_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="there is no torch")


def torch_alone():
    assert frameworks.cupy() is None
    return importlib.import_module("torch")


def make(name, kind="ipc", **options):
    place = {"device": "cuda"} if kind != "pinned" else {"device": "cuda:0"}
    more = {"slots": SLOTS, "shape": SHAPE, "dtype": "f4", "memory": kind} | place
    return gpuring.create(name, **(more | options))


# ---- every kind of memory ------------------------------------------------------------------------


def writes(pipe, name, kind):
    torch = torch_alone()
    with make(name, kind) as ring, ring.producer() as producer:
        pipe.ask()
        with producer.claim(PATIENCE_S) as slot:
            torch.from_dlpack(slot).fill_(2)
        with producer.claim(PATIENCE_S) as slot:
            slot.copy_from(torch.full(SHAPE, 3.0, device="cuda"))
        with producer.claim(PATIENCE_S) as slot:
            slot.copy_from(torch.full(SHAPE, 4.0))  # from pageable host memory
        wide = torch.full((SHAPE[0], 2 * SHAPE[1]), 5.0, device="cuda")
        with producer.claim(PATIENCE_S) as slot:
            slot.copy_from(wide[:, : SHAPE[1]])  # rows at a pitch
        pipe.receive()
    return "cupy" in sys.modules


def reads(pipe, name, kind):
    torch = torch_alone()
    found = []
    on = {"device": 0} if kind == "pinned" else {}
    with gpuring.attach(name, **on) as ring, ring.consumer(lossless=True) as frames:
        pipe.send()
        with frames.acquire(PATIENCE_S) as slot:
            tensor = torch.from_dlpack(slot)
            found.append((str(tensor.device), tuple(tensor.shape), tensor.unique().tolist()))
        with frames.acquire(PATIENCE_S) as slot:
            out = torch.zeros(SHAPE, device="cuda")
            slot.copy_to(out)
        found.append(out.unique().tolist())
        with frames.acquire(PATIENCE_S) as slot:
            up = slot.upload()
        found.append((type(up).__module__, str(up.dtype), up.unique().tolist()))
        host = np.zeros(SHAPE, "f4")
        with frames.acquire(PATIENCE_S) as slot:
            slot.copy_to(host)
            torch.cuda.synchronize()
        found.append(np.unique(host).tolist())
    assert "cupy" not in sys.modules
    return found


@with_torch
@pytest.mark.parametrize("kind", [*kinds.ON_GPU, "pinned"])
def test_frames_of_every_kind_of_memory_go_from_torch_to_torch(alone, name, kind):
    if kind != "pinned" and not kinds.supported(kind, 0)[0]:
        pytest.skip(kinds.supported(kind, 0)[1])
    writer = alone(writes, name, kind)
    writer.receive()
    reader = alone(reads, name, kind)
    reader.receive()
    writer.send()
    assert reader.result() == [
        ("cuda:0", SHAPE, [2.0]),
        [3.0],
        ("torch", "torch.float32", [4.0]),
        [5.0],
    ]
    writer.send()
    assert writer.result() is False


# ---- one process ---------------------------------------------------------------------------------


def uses_current_streams(_pipe, name):
    with make(name, sync="timeline") as ring, ring.producer() as producer:
        consumer = ring.consumer()
        torch = torch_alone()  # imported when the ring was there already
        kept = torch.empty(SHAPE, device="cuda")
        torch.cuda._sleep(1)
        with producer.claim(0) as slot:  # this loads all kernels
            torch.from_dlpack(slot).fill_(0)
        with consumer.acquire(PATIENCE_S) as slot:
            kept.copy_(torch.from_dlpack(slot))
        writing, reading = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(writing):
            slot = producer.claim(PATIENCE_S)
            assert slot._streams == (writing.cuda_stream,)
            torch.cuda._sleep(HELD_CYCLES)
            torch.from_dlpack(slot).fill_(7)
            slot.publish()
        with torch.cuda.stream(reading):
            slot = consumer.acquire(PATIENCE_S)
            assert slot._streams == (reading.cuda_stream,)
            kept.copy_(torch.from_dlpack(slot))
            slot.release()
        assert not writing.query(), "the writer was not held for long enough"
        reading.synchronize()
        assert kept.unique().tolist() == [7.0]
        with torch.cuda.stream(reading):
            slot = producer.claim(PATIENCE_S).use_on(None)
            assert slot._streams == (reading.cuda_stream,)
            slot.abandon()
        consumer.close()


@with_torch
def test_the_current_stream_is_that_of_torch(alone, name):
    alone(uses_current_streams, name).result()


def shows(_pipe, name):
    torch = torch_alone()
    fields = {"y": (SHAPE, "u1"), "uv": ((4,), "bfloat16")}
    with make(name) as ring, ring.producer() as producer, producer.claim(0) as slot:
        with pytest.raises(gpuring.DeviceError, match=r"use torch\.from_dlpack\(slot\), or pip"):
            slot.array  # noqa: B018
        tensor = torch.from_dlpack(slot)
        assert slot.__dlpack_device__() == (2, 0)
        interface = slot.__cuda_array_interface__
        assert interface["data"] == (tensor.data_ptr(), False)
        assert torch.as_tensor(slot, device="cuda").data_ptr() == tensor.data_ptr()
        tensor.fill_(1)
        copied = torch.utils.dlpack.from_dlpack(
            slot.__dlpack__(stream=torch.cuda.current_stream().cuda_stream or 1, copy=True)
        )
        tensor.fill_(2)
        assert copied.unique().tolist() == [1.0]
        assert copied.data_ptr() != tensor.data_ptr()
        del copied
    options = {"shape": None, "dtype": None, "fields": fields}
    with (
        make(f"{name}-2", **options) as ring,
        ring.producer() as producer,
        producer.claim(0) as slot,
    ):
        with pytest.raises(gpuring.DeviceError, match=r"from_dlpack\(slot\.field\('uv'\)\)"):
            slot["uv"]
        with pytest.raises(KeyError):
            slot["v"]
        with pytest.raises(TypeError, match="has the fields"):
            slot.array  # noqa: B018
        assert torch.from_dlpack(slot.field("uv")).fill_(1).dtype == torch.bfloat16
    smaller = {"slots": 2, "shape": 8, "dtype": "u1", "device": "cuda"}
    with (
        gpuring.create(f"{name}-3", **smaller) as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        with producer.claim(0, shape=(2, 3)) as slot:
            torch.from_dlpack(slot).fill_(9)
        with consumer.acquire(PATIENCE_S) as slot:
            assert slot.upload().tolist() == [[9] * 3] * 2


@with_torch
def test_what_slots_show_and_say(alone, name):
    alone(shows, name).result()


def finds_mistakes(_pipe, name):
    assert debug.ON
    torch = torch_alone()
    with make(name, slots=2) as ring, ring.producer() as producer:
        with ring.consumer() as consumer, warnings.catch_warnings():
            warnings.simplefilter("error")
            with producer.claim(0) as slot:
                poisoned = torch.from_dlpack(slot).view(torch.uint8).unique().tolist()
                assert poisoned == [debug.POISON]
                torch.from_dlpack(slot).fill_(1)
            with consumer.acquire(PATIENCE_S) as slot:
                kept = torch.from_dlpack(slot)
            producer.claim(PATIENCE_S).publish()
            consumer.acquire(PATIENCE_S).release()
            producer.claim(PATIENCE_S).publish()
            with pytest.warns(StaleViewWarning, match="was kept"):
                consumer.acquire(PATIENCE_S).release()
            del kept
        slot = producer.claim(PATIENCE_S)
        where = (slot._canary.data.ptr, False)
        beyond = type("Beyond", (), {})()
        beyond.__cuda_array_interface__ = {
            "shape": (4,), "typestr": "|u1", "data": where, "version": 3
        }  # fmt: skip
        torch.as_tensor(beyond, device="cuda").zero_()
        with pytest.warns(OverrunWarning):
            slot.publish()


@with_torch
def test_debug_mode_finds_mistakes(alone, name, monkeypatch):
    monkeypatch.setenv("GPURING_DEBUG", "1")
    alone(finds_mistakes, name).result()


def has_nothing_at_all(_pipe, name):
    assert frameworks.cupy() is None
    frame = np.arange(SHAPE[0] * SHAPE[1], dtype="f4").reshape(SHAPE)
    with make(name, "vmm") as ring, ring.producer() as producer, ring.consumer() as consumer:
        copy = copier(RecordedRing.of(ring, [field.name for field in ring.spec.fields]))
        with producer.claim(0) as slot:
            slot.copy_from(frame)
        with consumer.acquire(PATIENCE_S) as slot:
            assert (copy(slot).array == frame).all()
            out = np.zeros(SHAPE, "f4")
            slot.copy_to(out)
        assert (out == frame).all()
    assert "torch" not in sys.modules


def test_without_torch_too_frames_are_copied(alone, name):
    if not kinds.supported("vmm", 0)[0]:
        pytest.skip(kinds.supported("vmm", 0)[1])
    alone(has_nothing_at_all, name).result()


# ---- a service, a death --------------------------------------------------------------------------


def answers(pipe, name):
    torch = torch_alone()
    frame = (SHAPE, "f4")
    with gpuring.serve(name, request=frame, response=frame, device="cuda") as server:

        @server.batch(max_batch=3, max_wait_s=0, warm_up=True)
        def double(images):
            assert isinstance(images, torch.Tensor)
            return 2 * images

        pipe.send()
        for _ in range(2):
            (call,) = server.take(timeout=PATIENCE_S)
            with call.answer() as slot:
                slot.copy_from(3 * torch.from_dlpack(call.slot))
        stopper = threading.Thread(target=lambda: (pipe.receive(), server.stop()))
        stopper.start()
        server.run()
        stopper.join(PATIENCE_S)


def asks(_pipe, name):
    torch = torch_alone()
    found = []
    with gpuring.connect(name) as client:
        values = [torch.full(SHAPE, 1.0, device="cuda"), np.full(SHAPE, 2, "f4")]
        for value in (*values, *values):
            with client.call(value, timeout=PATIENCE_S) as slot:
                found += torch.from_dlpack(slot).unique().tolist()
    return found


@with_torch
@promise("services.md", "On a GPU without CuPy it is a tensor of torch.")
def test_a_service_answers_calls_with_tensors(alone, name):
    engine = alone(answers, name)
    engine.receive()
    assert alone(asks, name).result() == [3.0, 6.0, 2.0, 4.0]
    engine.send()
    engine.result()


def holds_a_frame(pipe, name):
    torch = torch_alone()
    with gpuring.attach(name) as ring, ring.consumer(lossless=True, start="oldest") as frames:
        slot = frames.acquire(PATIENCE_S)
        pipe.ask(torch.from_dlpack(slot).unique().tolist())


def goes_on(pipe, name):
    torch = torch_alone()
    with make(name) as ring, ring.producer() as producer:
        with producer.claim(0) as slot:
            torch.from_dlpack(slot).fill_(1)
        pipe.send()
        pipe.receive()  # the reader is dead
        for value in range(2 * SLOTS):
            with producer.claim(PATIENCE_S) as slot:
                torch.from_dlpack(slot).fill_(value)
        torch.cuda.synchronize()


@with_torch
def test_the_death_of_a_reader_holds_nobody_up(alone, name):
    producer = alone(goes_on, name)
    producer.receive()
    victim = alone(holds_a_frame, name)
    assert victim.receive() == [1.0]
    victim.kill()
    producer.send()
    producer.result()
