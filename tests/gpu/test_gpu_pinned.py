"""Pinned rings: processes with and without a GPU in one ring, whose slots are host memory.

The children that stand for a camera or a recorder use the CPU alone, and never load CUDA.
"""

from __future__ import annotations

import ctypes
import gc
import os

import numpy as np
import pytest

import gpuring
from gpuring.errors import DeviceError, OverrunWarning, StaleViewWarning
from gpuring.memory import cuda, driver
from gpuring.ring import debug, ordering
from tests.gpu.ordering import done, tools
from tests.gpu.survivor import HELD_S, RECOVERY_S, Killing, my_turn, started, still_healthy
from tests.helpers.promise import promise
from tests.helpers.support import open_files, poll, segments_of

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]

WORDS = 1 << 14
SLOTS = 4
FRAMES = 200
ROUNDS = 10
TAKES_S = 60


def make(name, **options):
    more = {"slots": SLOTS, "shape": (WORDS,), "dtype": "u8", "memory": "pinned"}
    return gpuring.create(name, **(more | options))


def words(seq, n=WORDS):
    """What kernels.stamp writes."""
    first = seq * 0x9E3779B97F4A7C15 % 2**64
    return np.uint64(first) + np.arange(n, dtype="u8")


@pytest.fixture
def ring(name):
    """A pinned ring of this process's GPU."""
    with make(name, device="cuda") as ring:
        yield ring


@pytest.fixture
def by_cpu(ring):
    """Another handle of the same ring, which uses it by the CPU."""
    with gpuring.attach(ring.name) as other:
        yield other


def put(producer, frames=1):
    """Frames of the CPU.  Returns their sequences."""
    seqs = []
    for _ in range(frames):
        with producer.claim(TAKES_S) as slot:
            slot.array[...] = words(slot.seq)
        seqs.append(slot.seq)
    return seqs


# ---- three processes in one ring -----------------------------------------------------------------


def has_cuda():
    """Whether this process has opened a GPU.  Its parent may have loaded CuPy, and so libcuda."""
    return any("nvidia" in path for path in open_files().values())


def camera(pipe, name, frames):
    """Owns the ring, and writes frames by the CPU."""
    with make(name, subscriptions=["model", "disk"]) as ring, ring.producer() as producer:
        pipe.send()
        put(producer, frames)
        pipe.receive()
    return has_cuda()


def recorder(pipe, name, frames):
    """Reads frames by the CPU.  Returns how many were wrong."""
    wrong = 0
    with gpuring.attach(name, timeout=TAKES_S) as ring, ring.consumer("disk") as consumer:
        for _ in range(frames):
            with consumer.acquire(TAKES_S) as slot:
                wrong += not (slot.array == words(slot.seq)).all()
    return wrong, has_cuda()


@promise(
    "failure.md",
    "A process that uses a pinned ring by the CPU never touches CUDA.",
)
def test_a_camera_without_cuda_a_model_and_a_recorder_share_a_ring(name, children):
    cupy, kernels = tools()
    source = children(camera, name, FRAMES)
    source.receive()
    disk = children(recorder, name, FRAMES)
    wrong, stream = kernels.counter(), cupy.cuda.Stream(non_blocking=True)
    with gpuring.attach(name, device="cuda") as ring, ring.consumer("model") as consumer, stream:
        for _ in range(FRAMES):
            with consumer.acquire(TAKES_S) as slot:
                frame = slot.upload()
            kernels.check(frame, slot.seq, wrong, stream)
        stream.synchronize()
        assert int(wrong.get()[0]) == 0
        assert {peer.unregistered for peer in ring.stats().peers} == {None}
    assert disk.result() == (0, False)
    source.send()
    assert source.result() is False
    gpuring.unlink(name)  # and so its durable subscriptions
    assert segments_of(name) == []


def gpu_writer(pipe, name, frames):
    """Copies what its GPU computes into the slots, in stream order."""
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with gpuring.attach(name, device="cuda") as ring, ring.producer() as producer, stream:
        computed = cupy.empty(WORDS, "u8")
        pipe.send()
        for _ in range(frames):
            with producer.claim(TAKES_S) as slot:
                kernels.stamp(computed, slot.seq, stream)
                slot.copy_from(computed)


def test_frames_of_a_gpu_come_to_cpus_and_gpus(name, children):
    _, kernels = tools()
    with make(name, subscriptions=["disk"], device="cuda") as ring, ring.consumer("gpu") as frames:
        disk = children(recorder, name, FRAMES)
        writer = children(gpu_writer, name, FRAMES)
        writer.receive()
        wrong = kernels.counter()
        for _ in range(FRAMES):
            with frames.acquire(TAKES_S) as slot:
                kernels.check(slot.array, slot.seq, wrong, None)  # over the bus
        writer.result()
        assert disk.result() == (0, False)
        assert int(wrong.get()[0]) == 0


# ---- who waits for whom --------------------------------------------------------------------------


def test_a_camera_waits_exactly_until_the_copy_engine_has_read_the_slot(ring, by_cpu):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with by_cpu.producer() as producer, ring.consumer() as consumer:
        seqs = put(producer, SLOTS)
        uploads = [cupy.empty(WORDS, "u8") for _ in seqs]
        with kernels.Latch() as latch:
            latch.hold(stream)
            for out in uploads:
                with consumer.acquire(0, stream=stream) as slot:
                    slot.upload(out)
            for _ in range(3):
                with pytest.raises(gpuring.RingFull, match="GPU work"):
                    producer.claim(0)
            latch.open()
            again = put(producer, SLOTS)  # over the slots that were read
            assert again == [seq + SLOTS for seq in seqs]
            stream.synchronize()
            assert not latch.expired
        for seq, upload in zip(seqs, uploads, strict=True):
            assert (upload.get() == words(seq)).all()
        assert ring.stats().dropped == 0


def test_a_recorder_waits_exactly_until_the_copy_engine_has_written_the_slot(ring, by_cpu):
    cupy, kernels = tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with ring.producer() as producer, by_cpu.consumer() as consumer:
        source = cupy.empty(WORDS, "u8")
        with kernels.Latch() as latch:
            latch.hold(stream)
            with producer.claim(0, stream=stream) as slot:
                kernels.stamp(source, slot.seq, stream)
                with stream:
                    slot.copy_from(source, stream=stream)
            with pytest.raises(gpuring.RingTimeout, match="GPU work"):
                consumer.acquire(0)
            latch.open()
            with consumer.acquire(TAKES_S) as frame:
                assert (frame.array == words(frame.seq)).all()
                assert frame.lost == 0
            assert not latch.expired


@pytest.mark.parametrize("gate", ["stream", "host"])
def test_two_gpu_peers_are_ordered_as_on_a_gpu_ring(ring, gate):
    cupy, kernels = tools()
    writing, reading = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    wrong = kernels.counter()
    with ring.producer(gate=gate) as producer, ring.consumer(gate=gate) as consumer:
        for _ in range(5 * SLOTS):
            with producer.claim(TAKES_S, stream=writing) as slot:
                kernels.stamp(slot.array, slot.seq, writing)
            with consumer.acquire(TAKES_S, stream=reading) as slot:
                kernels.check(slot.array, slot.seq, wrong, reading)
        with kernels.Latch() as latch:
            latch.hold(writing)
            with producer.claim(TAKES_S, stream=writing) as slot:
                kernels.stamp(slot.array, slot.seq, writing)
            if gate == "stream":
                with consumer.acquire(0, stream=reading) as slot:
                    kernels.check(slot.array, slot.seq, wrong, reading)
                assert not done(cupy, reading)
            else:
                with pytest.raises(gpuring.RingTimeout, match="GPU work"):
                    consumer.acquire(0, stream=reading)
            latch.open()
            reading.synchronize()
            assert not latch.expired
    assert int(wrong.get()[0]) == 0


def test_upload_on_another_stream_is_waited_for_by_the_release(ring, by_cpu):
    cupy, kernels = tools()
    first, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with by_cpu.producer() as producer, ring.consumer() as consumer:
        seqs, upload = put(producer, SLOTS), cupy.empty(WORDS, "u8")
        with kernels.Latch() as latch:
            latch.hold(other)
            with consumer.acquire(0, stream=first) as slot:
                slot.upload(upload, stream=other)
            with pytest.raises(gpuring.RingFull, match="GPU work"):
                producer.claim(0)
            latch.open()
            other.synchronize()
            assert not latch.expired
        assert (upload.get() == words(seqs[0])).all()


# ---- arrays --------------------------------------------------------------------------------------


def test_the_array_of_a_gpu_peer_is_the_slot_itself(ring, by_cpu):
    cupy, _ = tools()
    with by_cpu.producer() as producer, ring.consumer() as consumer:
        (seq,) = put(producer)
        with consumer.acquire(0) as slot:
            assert isinstance(slot.array, cupy.ndarray)
            assert (slot.array.get() == words(seq)).all()
            assert slot.__dlpack_device__()[0] == 2  # kDLCUDA
    with ring.producer() as producer, by_cpu.consumer() as consumer:
        with producer.claim(0) as slot:
            slot.array[...] = 7  # by a kernel, over the bus
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
    cupy, _ = tools()
    with by_cpu.producer() as producer, ring.consumer() as consumer:
        put(producer)
        with consumer.acquire(0) as slot:
            with pytest.raises(ValueError, match="shape"):
                slot.upload(cupy.zeros(3, "u8"))
            with pytest.raises(TypeError, match="uint64"):
                slot.upload(cupy.zeros(WORDS, "f8"))
        with pytest.raises(gpuring.RingError, match="no longer yours"):
            slot.upload()
    with by_cpu.producer() as producer, by_cpu.consumer() as consumer:
        put(producer)
        with (
            consumer.acquire(0) as slot,
            pytest.raises(TypeError, match="used by the CPU here: attach with device="),
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
        assert (y.shape, uv.dtype) == ((4, 6), np.float32)
        assert ((y.get() == 3).all(), (uv.get() == 0.5).all()) == (True, True)
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
        assert all((each.get() == k).all() for k, each in enumerate(uploads))


def test_bfloat16(name):
    cupy, _ = tools()
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


def test_upload_works_on_gpu_rings_too(name):
    _, kernels = tools()
    with (
        make(name, memory="ipc", device="cuda") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        with producer.claim(0) as slot:
            kernels.stamp(slot.array, slot.seq, None)
        with consumer.acquire(0) as slot:
            upload = slot.upload()
        assert (upload.get() == words(slot.seq)).all()


# ---- registration --------------------------------------------------------------------------------


def test_an_array_keeps_the_mapping_and_the_last_one_gives_it_back(name, monkeypatch):
    """After that the same pages can be registered again."""
    cupy, _ = tools()
    given_back = []
    real = driver.unregister
    monkeypatch.setattr(driver, "unregister", lambda at: (given_back.append(at), real(at)))
    with make(name, device="cuda") as ring, ring.producer() as producer:
        with producer.claim(0) as slot:
            array = slot.array
            array[...] = 5
        cupy.cuda.Device().synchronize()
    gc.collect()
    assert (array.get() == 5).all()
    assert given_back == []
    del array, slot, producer, ring
    gc.collect()
    assert len(given_back) == 1
    for _ in range(ROUNDS):
        with make(name, device="cuda") as ring, gpuring.attach(name, device="cuda") as other:
            assert (ring.memory, other.memory) == ("pinned", "pinned")
    still_healthy(cupy, 1)


def refuse(*_):
    raise driver.Refused("cuMemHostRegister_v2: CUDA_ERROR_OPERATING_SYSTEM (304)", 304)


def no_device(*_):
    raise DeviceError("the ring's header cannot be mapped")


@promise(
    "failure.md",
    "If CUDA does not register the slots of a pinned ring, the ring works all the same. One "
    "warning says so when it is attached, and each copy to or from the GPU is waited for.",
)
@pytest.mark.parametrize("what", ["slots", "header", "timeline"])
def test_where_registration_is_refused_copies_are_waited_for(name, monkeypatch, what):
    cupy, kernels = tools()
    with monkeypatch.context() as patched:
        if what == "slots":
            patched.setattr(driver, "register", refuse)
        elif what == "header":
            patched.setattr(ordering, "Device", no_device)
        else:
            patched.setattr(cuda, "timeline_supported", lambda _: (False, "no 64-bit words"))
        with pytest.warns(RuntimeWarning, match="not registered with GPU 0") as told:
            ring = make(name, device="cuda")
        assert len(told) == 1
    stream = cupy.cuda.Stream(non_blocking=True)
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
                with producer.claim(0) as slot:  # nobody waits: it was read
                    slot.array[...] = 0
                with consumer.acquire(0):
                    pass
                assert (upload.get() == words(slot.seq - 1)).all()
        with ring.producer() as producer, by_cpu.consumer() as consumer:
            source = cupy.empty(WORDS, "u8")
            with kernels.Latch(limit_s=0.2) as latch, producer.claim(0, stream=stream) as slot:
                latch.hold(stream)
                kernels.stamp(source, slot.seq, stream)
                slot.copy_from(source, stream=stream)  # waits for what the stream had to do
            with consumer.acquire(0) as frame:
                assert (frame.array == words(frame.seq)).all()


# ---- deaths with copies pending ------------------------------------------------------------------


def upload_and_hang(pipe, name):
    stream, _, latch = my_turn(pipe)
    import cupy

    consumer = gpuring.attach(name, device="cuda", timeout=20).consumer()
    out = cupy.empty(WORDS, "u8")
    pipe.send("joined")
    slot = consumer.acquire(TAKES_S, stream=stream)
    latch.hold(stream)
    slot.upload(out)
    slot.release()
    pipe.send("released")
    pipe.receive()


def test_a_camera_goes_on_when_a_reader_dies_with_its_upload_pending(name, children):
    cupy, _ = tools()
    victims = started(children, ROUNDS, upload_and_hang, name)
    with make(name, slots=1) as ring, ring.producer() as producer:
        for number, victim in enumerate(victims):
            victim.send()
            assert victim.receive() == "joined"
            put(producer)
            assert victim.receive() == "released"
            with pytest.raises(gpuring.RingFull, match="GPU work"):
                producer.claim(0)
            killing = Killing(victim)
            producer.claim(RECOVERY_S).abandon()
            waited_s, _ = killing.waited_s()
            assert waited_s < HELD_S
            victim.kill()
            still_healthy(cupy, number)
        assert not ring.stats().subscriptions


def copy_and_hang(pipe, name):
    stream, _, latch = my_turn(pipe)
    import cupy

    producer = gpuring.attach(name, device="cuda", timeout=20).producer()
    frame = cupy.zeros(WORDS, "u8")
    slot = producer.claim(TAKES_S, stream=stream)
    latch.hold(stream)
    slot.copy_from(frame, stream=stream)
    slot.publish()
    pipe.send("published")
    pipe.receive()


def test_readers_of_both_kinds_are_told_of_a_copy_that_was_cut_off(name, children):
    cupy, _ = tools()
    victims = started(children, ROUNDS, copy_and_hang, name)
    stream = cupy.cuda.Stream(non_blocking=True)
    with make(name, device="cuda") as ring, gpuring.attach(name) as by_cpu:
        for number, victim in enumerate(victims):
            with ring.consumer() as on_gpu, by_cpu.consumer() as on_cpu:
                victim.send()
                assert victim.receive() == "published"
                slot = on_gpu.acquire(TAKES_S, stream=stream)
                with pytest.raises(gpuring.RingTimeout, match="GPU work"):
                    on_cpu.acquire(0)
                Killing(victim)
                with pytest.raises(gpuring.PeerLost):  # the torn frame is passed over
                    on_cpu.acquire(RECOVERY_S)
                poll(lambda: done(cupy, stream), RECOVERY_S)
                with pytest.raises(gpuring.FrameTorn):
                    slot.check()
                with pytest.raises(gpuring.FrameTorn):
                    slot.release()
            assert ring.stats().deaths[0].torn == 1
            victim.kill()
            still_healthy(cupy, number)


def create_and_put(pipe, name):
    ring = make(name)
    producer = ring.producer()
    put(producer, SLOTS)
    pipe.send()
    pipe.receive()


def uploads_the_rest(name):
    with gpuring.attach(name, device="cuda") as ring, ring.consumer(start="oldest") as consumer:
        for _ in range(SLOTS - 1):
            with consumer.acquire(0) as slot:
                upload = slot.upload()
            assert (upload.get() == words(slot.seq)).all()
        with pytest.raises(gpuring.PeerLost):
            consumer.acquire(0)


def test_gpus_join_after_the_death_of_a_camera(name, children):
    tools()
    source = children(create_and_put, name)
    source.receive()
    with gpuring.attach(name) as first:
        source.kill()
        uploads_the_rest(name)
        assert first.stats().deaths[0].pid == source.pid
    assert segments_of(name) == []


# ---- what is built on rings ----------------------------------------------------------------------


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


def ask(pipe, name):
    with gpuring.connect(name, timeout=TAKES_S) as client:
        for k in range(20):
            with client.request(TAKES_S) as slot:
                slot.array[...] = k
                call = slot.call
            answer = call.result(TAKES_S)
            assert (answer.array == 2 * k).all()
    return has_cuda()


def test_a_service_has_clients_without_cuda_and_an_engine_on_the_gpu(name, children):
    tools()
    frame = ((WORDS,), "i8")
    with gpuring.serve(
        name, request=frame, response=frame, memory="pinned", device="cuda"
    ) as server:
        client = children(ask, name)
        for _ in range(20):
            (call,) = server.take(timeout=TAKES_S)
            doubled = call.slot.upload() * 2
            with call.answer() as slot:
                slot.copy_from(doubled)
        assert client.result() is False


def test_one_process_may_use_a_ring_in_both_ways(ring, by_cpu):
    """The GPU of a handle is in the entries of its peers."""
    with ring.producer() as first, by_cpu.producer() as second:
        gpus = {peer.number: peer.gpu for peer in ring.stats().peers}
    assert gpus[second.peer] is None
    assert gpus[first.peer]
    assert os.getpid() == ring.stats().creator_pid
