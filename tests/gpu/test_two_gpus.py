"""A ring on one GPU, used from another: in each kind of memory and in both directions.

The two GPUs are 0 and 1 of the test's process.  Words follow from the sequence of their frame, and
are checked where the reader is.
"""

from __future__ import annotations

import ctypes
import json
import os
import uuid

import numpy as np
import pytest

import gpuring
from gpuring.memory import cuda, driver, gpus, kinds
from gpuring.native import Driver
from gpuring.ring import inner
from gpuring.slot_layout import ARRAY
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.survivor import (
    RECOVERY_S,
    Killing,
    publish_and_hang,
    report,
    ring_is_whole,
    started,
)
from tests.helpers import raw_verbs
from tests.helpers.commands import environment
from tests.helpers.commands import gpuring as command
from tests.helpers.processes import poll

pytestmark = pytest.mark.gpu
FRAMES = 1000
WORDS = 4096
COPIES = 12
COPIED_WORDS = 1 << 20


def can_reach(device, other):
    able = ctypes.c_int()
    driver.call("cuDeviceCanAccessPeer", ctypes.byref(able), device, other)
    return bool(able.value)


@pytest.fixture(autouse=True)
def _two_gpus():
    if gpus.count() < 2:
        pytest.skip("needs two GPUs")
    if not (can_reach(0, 1) and can_reach(1, 0)):
        pytest.skip("the two GPUs have no peer access")
    with library.on_gpu(0):
        yield


def make(name, owner=0, kind="ipc", words=WORDS, **options):
    able, why = kinds.supported(kind, owner)
    if not able:
        pytest.skip(why)
    spec = {"slots": 4, "shape": (words,), "dtype": "u8", "memory": kind}
    return gpuring.create(name, device=f"cuda:{owner}", **(spec | options))


def write(producer, frames, device):
    kernels = tools()
    for _ in range(frames):
        with producer.claim(60) as slot:
            assert inner.array(slot, ARRAY).device.id == device
            kernels.stamp(slot, slot.seq, None)


def wrong_words(consumer, frames, device):
    """Reads so many frames, on the current device.  Returns how many words were not theirs."""
    kernels = tools()
    wrong = kernels.counter()
    for _ in range(frames):
        with consumer.acquire(60) as slot:
            assert inner.array(slot, ARRAY).device.id == device
            kernels.check(slot, slot.seq, wrong, None)
    return kernels.count(wrong)


# ---- two processes -------------------------------------------------------------------------------


def use_from(pipe, name, device):
    """Names the GPU to attach().  Until it uses the frames, another GPU is current."""
    library.use(1 - device)
    with gpuring.attach(name, timeout=20, device=device) as ring, library.on_gpu(device):
        with ring.consumer() as consumer:
            pipe.send("joined")
            pipe.send(wrong_words(consumer, FRAMES, device))
        pipe.receive()  # the owner of the ring reads
        with ring.producer() as producer:
            write(producer, FRAMES, device)


@pytest.mark.parametrize("sync", ["timeline", "event"])
@pytest.mark.parametrize("kind", kinds.ON_GPU)
@pytest.mark.parametrize("owner", [0, 1])
def test_frames_cross_to_and_from_another_gpu(owner, kind, sync, name, children):
    with make(name, owner, kind, sync=sync) as ring, library.on_gpu(owner):
        child = children(use_from, name, 1 - owner)
        assert child.receive() == "joined"
        with ring.producer() as producer:
            write(producer, FRAMES, owner)
            assert child.receive() == 0
            with ring.consumer() as consumer:
                child.send()
                assert wrong_words(consumer, FRAMES, owner) == 0
        child.result()


def read_from(pipe, name, device):
    """Checks every frame with a kernel on GPU `device` of this process's own numbering."""
    library.use(device)
    with gpuring.attach(name, timeout=20) as ring, ring.consumer() as consumer:
        pipe.send("joined")
        return wrong_words(consumer, FRAMES, device)


@pytest.mark.parametrize("device", [0, 1])
def test_the_numbering_of_the_reader_does_not_matter(device, name, children, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")  # for the child.  CUDA has read ours already.
    with make(name) as ring, ring.producer() as producer:
        child = children(read_from, name, device)
        assert child.receive() == "joined"
        write(producer, FRAMES, 0)
        assert child.result() == 0


@pytest.mark.parametrize("kind", kinds.ON_GPU)
@pytest.mark.parametrize("owner", [0, 1])
def test_a_producer_on_another_gpu_dies_with_work_pending(owner, kind, name, children, request):
    """The peers on the ring's own GPU go on."""
    with make(name, owner, kind, sync="timeline") as ring, library.on_gpu(owner):
        tools()
        stream = library.new_stream()
        with ring.consumer() as consumer:
            (victim,) = started(children, 1, publish_and_hang, name, 1 - owner)
            victim.send()
            assert victim.receive() == "published"
            slot = consumer.acquire(10, stream=stream)
            assert not library.done(stream), "nothing to wait for"
            killing = Killing(victim)
            poll(lambda: library.done(stream), RECOVERY_S)
            waited_s, gone_s = killing.waited_s()
            report({"test": request.node.name, "ms": 1e3 * waited_s, "gone_ms": 1e3 * gone_s})
            with pytest.raises(gpuring.FrameTorn):
                slot.check()
            with pytest.raises(gpuring.FrameTorn):
                slot.release()
        ring_is_whole(ring)


# ---- one process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds.ON_GPU)
def test_one_process_uses_a_ring_under_both_gpus(kind, name):
    with make(name, 0, kind) as here, gpuring.attach(name, device=1) as there:
        for writer, reader, to in [(here, there, 1), (there, here, 0)]:
            with writer.producer() as producer, reader.consumer() as consumer:
                for _ in range(20):
                    with library.on_gpu(1 - to):
                        write(producer, 1, 1 - to)
                    with library.on_gpu(to):
                        assert wrong_words(consumer, 1, to) == 0


@pytest.mark.parametrize("kind", kinds.ON_GPU)
def test_frames_are_copied_from_and_to_another_gpu_and_the_host(kind, name):
    """Each copy has arrays of its own, so only the waits of the copies themselves count."""
    with make(name, 0, kind, COPIED_WORDS) as ring:
        with ring.producer() as producer, ring.consumer() as consumer:
            assert copies_between_gpus(producer, consumer) == 0
            for _ in range(COPIES):
                with producer.claim(60) as slot:
                    slot.copy_from(words(slot.seq))
                with consumer.acquire(60) as slot:
                    out = np.zeros(COPIED_WORDS, "u8")
                    slot.copy_to(out)
                    assert (out == words(slot.seq)).all()
        library.synchronize()


def copies_between_gpus(producer, consumer):
    with library.on_gpu(1):
        kernels = tools()
        wrong = kernels.counter()
        sources, outs = ([library.zeros(COPIED_WORDS) for _ in range(COPIES)] for _ in range(2))
        library.synchronize()
    for source, out in zip(sources, outs, strict=True):
        with producer.claim(60) as slot:
            with library.on_gpu(1):
                kernels.stamp(source, slot.seq, None)
            slot.copy_from(source)
        with consumer.acquire(60) as slot:
            slot.copy_to(out)
            with library.on_gpu(1):
                kernels.check(out, slot.seq, wrong, None)
    with library.on_gpu(1):
        return kernels.count(wrong)


def test_tensors_of_torch_are_copied_from_and_to_another_gpu(name):
    """GPU 0 is current, for CuPy and for torch."""
    torch = pytest.importorskip("torch")
    source = torch.arange(COPIED_WORDS, device="cuda:1")
    for ring in make(name, words=COPIED_WORDS, dtype="i8"), host_ring(name):
        with ring, ring.producer() as producer, ring.consumer() as consumer:
            with producer.claim(60) as slot:
                slot.copy_from(source)
            out = torch.zeros_like(source)
            with consumer.acquire(60) as slot:
                slot.copy_to(out)
            assert torch.equal(out, source)
        assert torch.cuda.current_device() == 0


def host_ring(name):
    return gpuring.create(f"{name}-host", slots=4, shape=COPIED_WORDS, dtype="i8", device="host")


def copies_on_gpu_1(pipe, name):
    torch = pytest.importorskip("torch")
    source = torch.arange(WORDS, device="cuda:1")
    out = torch.zeros_like(source)
    with make(name, 1, dtype="i8") as ring:
        with ring.producer() as producer, ring.consumer() as consumer:
            with producer.claim(60) as slot:
                slot.copy_from(source)
            with consumer.acquire(60) as slot:
                slot.copy_to(out)
            with producer.claim(60) as slot:
                slot.copy_from(out)
            with consumer.acquire(60) as slot:
                uploaded = torch.as_tensor(slot.upload(), device="cuda:1")
        return torch.equal(uploaded, source), torch.cuda.current_device()


def test_a_program_that_names_gpu_1_need_not_make_it_the_current_one(name, children):
    """torch then says that GPU 0 is current, on which there is no context."""
    pytest.importorskip("torch")
    assert children(copies_on_gpu_1, name).result() == (True, 0)


@pytest.fixture
def beside():
    """A stream that is current on GPU 1.  The test itself has GPU 0 current."""
    with library.on_gpu(1):
        tools()
        stream = library.new_stream()
        with stream, library.on_gpu(0):
            yield stream
        library.synchronize()


def test_copies_from_another_gpu_wait_for_its_current_stream(name, beside):
    kernels = tools()
    with library.on_gpu(1):
        source = library.zeros(WORDS)
    with make(name) as ring, ring.producer() as producer, ring.consumer() as consumer:
        with kernels.Latch() as latch:
            with producer.claim(60) as slot:
                with library.on_gpu(1):
                    latch.hold(beside)
                    kernels.stamp(source, slot.seq, beside)
                slot.copy_from(source)
            assert not latch.expired  # nothing has waited for the GPU
            assert not library.done(library.default_stream())
        assert wrong_words(consumer, 1, 0) == 0
        assert not latch.expired


def test_the_current_stream_of_another_gpu_waits_for_copies_to_it(name, beside):
    kernels = tools()
    with library.on_gpu(1):
        out, wrong = library.zeros(WORDS), kernels.counter()
    with make(name) as ring, ring.producer() as producer, ring.consumer() as consumer:
        write(producer, 1, 0)
        with kernels.Latch() as latch, consumer.acquire(60) as slot:
            latch.hold(library.default_stream())
            slot.copy_to(out)
            with library.on_gpu(1):
                kernels.check(out, slot.seq, wrong, beside)
            assert not library.done(beside)
            latch.open()
        with library.on_gpu(1):
            assert kernels.count(wrong, beside) == 0
        assert not latch.expired


def words(seq):
    """The words that the kernel `stamp` writes."""
    with np.errstate(over="ignore"):
        return np.uint64(seq) * np.uint64(0x9E3779B97F4A7C15) + np.arange(COPIED_WORDS, dtype="u8")


# ---- what cannot be reached, and what the commands say -------------------------------------------


def joins(pipe, name, device):
    with gpuring.attach(name, device=device) as ring, ring.consumer():
        pipe.ask("joined")


def test_everybody_sees_who_is_on_which_gpu(name, children):
    uuids = [str(uuid.UUID(bytes=Driver().uuid(device))) for device in (0, 1)]
    with make(name) as ring, ring.producer():
        child = children(joins, name, 1)
        assert child.receive() == "joined"
        stats = ring.stats()
        assert stats.gpu == uuids[0]
        assert {peer.role: peer.gpu for peer in stats.peers} == {
            "producer": uuids[0],
            "consumer": uuids[1],
        }
        said = " ".join(command("inspect", name).stdout.split())  # a line may end anywhere
        assert f"its slots are on GPU {uuids[0][:8]}" in said
        assert f"GPU {uuids[1][:8]}" in said
        child.finish()


def attach_blind(pipe, name):
    try:
        gpuring.attach(name).close()
    except gpuring.DeviceError as error:
        return str(error)
    return "attached"


def test_a_gpu_that_is_not_visible_is_named(name, children, monkeypatch):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible[1])
    with make(name):
        said = children(attach_blind, name).result()
    assert "cannot be seen from" in said
    assert said.count("GPU-") == 2


@pytest.mark.parametrize("kind", kinds.ON_GPU)
def test_without_peer_access_attach_says_what_to_do_and_that_works(kind, name, monkeypatch):
    """Only the driver's answer is made up."""
    no = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)  # it leaves the result 0
    library_of = ctypes.CDLL("libcuda.so.1")
    functions = {each: getattr(library_of, each) for each in raw_verbs.driver_symbols()}
    table = {
        each: ctypes.cast(function, ctypes.c_void_p).value
        for each, function in (functions | {"cuDeviceCanAccessPeer": no}).items()
    }
    blind = Driver(table)
    monkeypatch.setattr(cuda, "Driver", lambda: blind)
    with make(name, 0, kind) as ring:
        with pytest.raises(gpuring.DeviceError, match=r"is GPU 0 and cannot be reached") as caught:
            gpuring.attach(name, device=1)
        assert f"attach({name!r}, device=0)" in str(caught.value)
        with gpuring.attach(name, device=0) as attached, attached.consumer() as consumer:
            with ring.producer() as producer:
                write(producer, 1, 0)
            with consumer.acquire(10) as slot, library.on_gpu(1):
                kernels = tools()
                wrong, out = kernels.counter(), library.zeros(WORDS)
                slot.copy_to(out)
                kernels.check(out, slot.seq, wrong, None)
                assert kernels.count(wrong) == 0


def test_doctor_tries_both_directions(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    said = command("doctor", "--json", timeout=None, env=environment())
    found = {each["what"]: each for each in json.loads(said.stdout)["findings"]}
    for what in ("peer access", "probe: 0 to 1", "probe: 1 to 0"):
        assert found[what]["level"] == "ok", found[what]
