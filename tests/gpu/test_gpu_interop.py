"""Other libraries' streams are ordered behind a slot's, and the ring behind theirs.

As in test_gpu_order.py a latch holds one stream, and what has to wait for it must not be done
before it is opened.  Where `order=False`, the order is taken away, and the test must notice.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpuring.arrays import copying, streams
from tests.gpu import library, ordering
from tests.helpers import raw_verbs
from tests.helpers.arrays import array_of, to_host

pytestmark = pytest.mark.gpu
WORDS = 1 << 16
LIMIT_S = 20

FILL = r"""
extern "C" __global__ void fill(unsigned long long *words, int n, unsigned long long *count) {
    __shared__ unsigned long long value;
    if (threadIdx.x == 0) value = ++count[0];
    __syncthreads();
    for (int k = threadIdx.x; k < n; k += blockDim.x) words[k] = value;
}
"""


@pytest.fixture
def tools():
    return ordering.tools()


@pytest.fixture
def ring(gated, name):
    with gated.create(name, slots=2, shape=(WORDS,), dtype="u8") as ring:
        yield ring


def _streams(n):
    return [library.new_stream() for _ in range(n)]


def _done(stream):
    return library.done(SimpleNamespace(ptr=streams.handle(stream)))


def _by_cupy(slot, stream):
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.ExternalStream(stream.ptr):
        return cupy.from_dlpack(slot)


def _by_torch(slot, stream):
    torch = pytest.importorskip("torch")
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        return torch.from_dlpack(slot)


def _by_use_on(slot, stream):
    slot.use_on(stream)


IMPORTS = [_by_cupy, _by_torch, _by_use_on]


@pytest.mark.parametrize("imported", IMPORTS)
@pytest.mark.parametrize("order", [True, False])
def test_an_importer_waits_for_the_slots_stream(tools, ring, imported, order):
    kernels = tools
    a, b = _streams(2)
    wrong = kernels.counter()
    with ring.producer() as producer, kernels.Latch(LIMIT_S) as latch:
        slot = producer.claim(10, stream=a)
        imported(slot, b)  # an earlier import: the work up to the last one counts
        latch.hold(a)
        kernels.stamp(slot, slot.seq, a)
        if order:
            imported(slot, b)
        kernels.check(slot, slot.seq, wrong, b)
        if not order:
            b.synchronize()
        early = _done(b)
        latch.open()
        b.synchronize()
        slot.publish()
    assert not latch.expired
    assert early is not order
    assert (kernels.count(wrong) == 0) is order


@pytest.mark.parametrize("imported", IMPORTS)
@pytest.mark.parametrize("order", [True, False])
def test_publish_waits_for_an_importers_stream(tools, ring, imported, order):
    kernels = tools
    a, b, c = _streams(3)
    wrong = kernels.counter()
    with ring.producer() as producer, ring.consumer() as frames, kernels.Latch(LIMIT_S) as latch:
        slot = producer.claim(10, stream=a)
        imported(slot, b)
        latch.hold(b)
        kernels.stamp(slot, slot.seq, b)
        if not order:
            raw_verbs.forget_other_streams(slot)
        slot.publish()
        slot = frames.acquire(10, stream=c)
        kernels.check(slot, slot.seq, wrong, c)
        if not order:
            c.synchronize()
        early = _done(c)
        latch.open()
        c.synchronize()
        slot.release()
    assert not latch.expired
    assert early is not order
    assert (kernels.count(wrong) == 0) is order


@pytest.mark.parametrize("imported", IMPORTS)
def test_release_waits_for_an_importers_stream(tools, gated, name, imported):
    kernels = tools
    a, b, c = _streams(3)
    wrong = kernels.counter()
    with (
        gated.create(name, slots=1, shape=(WORDS,), dtype="u8") as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
        kernels.Latch(LIMIT_S) as latch,
    ):
        with producer.claim(10, stream=a) as slot:
            kernels.stamp(slot, slot.seq, a)
        with frames.acquire(10, stream=b) as slot:
            imported(slot, c)
            latch.hold(c)
            kernels.check(slot, slot.seq, wrong, c)
        with producer.claim(10, stream=a) as slot:
            kernels.stamp(slot, slot.seq, a)
        early = _done(a)
        latch.open()
        c.synchronize()
        assert not latch.expired
    assert not early
    assert kernels.count(wrong) == 0


def test_torch_streams_may_be_given(tools, ring):
    torch = pytest.importorskip("torch")
    kernels = tools
    mine, theirs = torch.cuda.Stream(), torch.cuda.Stream()
    int(torch.zeros(WORDS, dtype=torch.int64, device="cuda").fill_(1).sum())  # loads the kernels
    with ring.producer() as producer, ring.consumer() as frames, kernels.Latch(LIMIT_S) as latch:
        slot = producer.claim(10, stream=mine)
        with torch.cuda.stream(mine):
            latch.hold(mine)
            torch.from_dlpack(slot).view(torch.int64).fill_(7)
        slot.publish()
        slot = frames.acquire(10, stream=theirs)
        with torch.cuda.stream(theirs):
            total = torch.from_dlpack(slot).view(torch.int64).sum()
        early = _done(theirs)
        latch.open()
        theirs.synchronize()
        slot.release()
        assert int(total) == 7 * WORDS
    assert not early
    assert not latch.expired


def test_a_copy_outlives_the_slot(tools, ring):
    cupy = pytest.importorskip("cupy")
    with ring.producer() as producer:
        for stream in (None, 1, 2, -1):
            with producer.claim(10) as slot:
                slot.array.fill(5)
                capsule = slot.__dlpack__(stream=stream, copy=True, max_version=(1, 0))
                copy = cupy.fromDlpack(capsule)
                assert copy.data.ptr != slot.array.data.ptr
                slot.array.fill(6)
            cupy.cuda.runtime.deviceSynchronize()
            assert (copy.get() == 5).all()


def test_the_cuda_array_interface(tools, ring):
    cupy = pytest.importorskip("cupy")
    (a,) = _streams(1)
    with ring.producer() as producer:
        with producer.claim(10) as slot:
            interface = slot.__cuda_array_interface__
            assert (interface["version"], interface["stream"]) == (3, 1)
            assert interface["data"] == (slot.array.data.ptr, False)
            assert cupy.asarray(slot).data.ptr == slot.array.data.ptr
        with producer.claim(10, stream=a) as slot:
            assert slot.__cuda_array_interface__["stream"] == a.ptr


# ---- Numba and JAX ---------------------------------------------------------------------------


def test_numba_on_a_stream_of_its_own(tools, ring):
    cuda = pytest.importorskip("numba.cuda")
    cupy, kernels = pytest.importorskip("cupy"), tools

    @cuda.jit
    def put(words, value):
        k = cuda.grid(1)
        if k < words.size:
            words[k] = value

    mine = cuda.stream()
    (c,) = _streams(1)
    scratch, out = cuda.device_array(WORDS, "u8"), cupy.empty(WORDS, "u8")
    try:
        put[WORDS // 256, 256, mine](scratch, np.uint64(1))  # compiled and loaded before the latch
    except AttributeError as error:  # an older Numba beside a newer NumPy
        pytest.skip(f"numba does not compile here: {error}")
    mine.synchronize()
    with ring.producer() as producer, ring.consumer() as frames, kernels.Latch(LIMIT_S) as latch:
        slot = producer.claim(10, stream=mine)
        latch.hold(mine)
        # sync=False: the work is on the slot's stream, so nobody has to wait on the host
        put[WORDS // 256, 256, mine](cuda.as_cuda_array(slot, sync=False), np.uint64(9))
        slot.publish()
        slot = frames.acquire(10, stream=c)
        out.data.copy_from_device_async(slot.array.data, out.nbytes, c)
        early = _done(c)
        latch.open()
        c.synchronize()
        slot.release()
        assert (out.get() == 9).all()
        with producer.claim(10) as slot:
            slot.copy_from(scratch)
            assert (to_host(array_of(slot)) == 1).all()
    assert not early
    assert not latch.expired


def test_jax_waits_for_the_slots_stream(tools, gated, name):
    jax = pytest.importorskip("jax")
    cupy, kernels = pytest.importorskip("cupy"), tools
    if jax.default_backend() != "gpu":
        pytest.skip("this jax has no CUDA")
    cupy.cuda.Device(0).use()  # jax, when it starts, makes the last of several GPUs current
    (a,) = _streams(1)
    total = jax.jit(lambda x: x.sum())
    with (
        gated.create(name, slots=2, shape=WORDS, dtype="f4") as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
    ):
        for held in (False, True):  # the first round compiles and loads everything
            with kernels.Latch(LIMIT_S / 4) as latch:
                if not held:
                    latch.open()
                with producer.claim(10, stream=a) as slot, a:
                    latch.hold(a)
                    slot.array.fill(3 + held)
                with frames.acquire(10, stream=a) as slot:
                    # JAX may wait on the host.  Then the latch expires, and the sum is right, too.
                    answer = total(jax.dlpack.from_dlpack(slot))
                    latch.open()
                    assert float(jax.block_until_ready(answer)) == WORDS * (3 + held)
        with producer.claim(10, stream=a) as slot:
            slot.copy_from(jax.numpy.full(WORDS, 6, "float32"))
        with frames.acquire(10) as slot:
            assert (to_host(array_of(slot)) == 6).all()


# ---- copy_from -------------------------------------------------------------------------------


def test_a_copy_from_pinned_memory_does_not_wait(tools, ring):
    kernels = tools
    (a,) = _streams(1)
    frame = library.pinned_words(2 * WORDS).view("u8")
    frame[:] = np.arange(WORDS)
    with (
        ring.producer() as producer,
        kernels.Latch(LIMIT_S) as latch,
        producer.claim(10, stream=a) as slot,
    ):
        latch.hold(a)
        slot.copy_from(frame)
        pending = not _done(a)
        latch.open()
        a.synchronize()
        assert (to_host(array_of(slot)) == np.arange(WORDS)).all()
    assert pending
    assert not latch.expired


def test_a_copy_waits_for_the_sources_stream(tools, ring):
    torch = pytest.importorskip("torch")
    kernels = tools
    a = _streams(1)[0]
    theirs = torch.cuda.Stream()
    with ring.producer() as producer, kernels.Latch(LIMIT_S) as latch:
        with torch.cuda.stream(theirs):
            source = torch.zeros(WORDS, dtype=torch.uint64, device="cuda")
            source.view(torch.int64).fill_(1)
            theirs.synchronize()
            slot = producer.claim(10, stream=a)
            latch.hold(theirs)
            source.view(torch.int64).fill_(2)
            slot.copy_from(source)
        early = _done(a)
        latch.open()
        a.synchronize()
        assert (to_host(array_of(slot)) == 2).all()
        slot.publish()
    assert not early
    assert not latch.expired


@pytest.mark.parametrize("keep", [True, False])
def test_a_source_may_be_dropped_right_away(tools, ring, keep, monkeypatch):
    torch = pytest.importorskip("torch")
    kernels = tools
    if not keep:
        monkeypatch.setattr(copying, "_keep", lambda *_: None)
    a = _streams(1)[0]
    theirs = torch.cuda.Stream()
    with ring.producer() as producer, kernels.Latch(LIMIT_S) as latch, torch.cuda.stream(theirs):
        torch.zeros(WORDS, dtype=torch.int64, device="cuda").fill_(0)  # loads the kernels
        slot = producer.claim(10, stream=a)
        source = torch.full((WORDS,), 1, dtype=torch.int64, device="cuda")
        latch.hold(a)
        slot.copy_from(source.view(torch.uint64))
        del source
        torch.full((WORDS,), 2, dtype=torch.int64, device="cuda")  # in the same memory, if free
        theirs.synchronize()
        latch.open()
        a.synchronize()
        assert (to_host(array_of(slot)) == (1 if keep else 2)).all()
        slot.publish()
    assert not latch.expired


def test_rows_at_a_pitch(tools, gated, name):
    """Decoders give such rows."""
    cupy = pytest.importorskip("cupy")
    surface = cupy.arange(4 * 8, dtype="u1").reshape(4, 8)
    with (
        gated.create(name, slots=2, shape=(4, 6), dtype="u1") as ring,
        ring.producer() as producer,
        producer.claim(10) as slot,
    ):
        slot.copy_from(surface[:, :6])
        assert (to_host(array_of(slot)) == surface.get()[:, :6]).all()


# ---- CUDA graphs -----------------------------------------------------------------------------


def test_one_graph_for_each_slot(tools, ring):
    """The guide's recipe: a graph is captured once per slot, and launched between claim and
    publish."""
    cupy = pytest.importorskip("cupy")
    a, b = _streams(2)
    fill = cupy.RawKernel(FILL, "fill")
    count, out = cupy.zeros(1, "u8"), cupy.zeros(WORDS, "u8")
    fill((1,), (256,), (out, np.int32(WORDS), count))  # loads it
    count.fill(0)
    cupy.cuda.runtime.deviceSynchronize()
    with ring.producer() as producer, ring.consumer() as frames:
        writing, reading, where = {}, {}, {}
        for frame in range(1, 4 * ring.slots):
            with producer.claim(10, stream=a) as slot:
                if slot.index not in writing:
                    where[slot.index] = slot.array.data.ptr
                    with a:
                        a.begin_capture()
                        fill((1,), (256,), (slot.array, np.int32(WORDS), count))
                        writing[slot.index] = a.end_capture()
                assert where[slot.index] == slot.array.data.ptr
                writing[slot.index].launch(a)
            with frames.acquire(10, stream=b) as slot:
                if slot.index not in reading:
                    b.begin_capture()
                    out.data.copy_from_device_async(slot.array.data, out.nbytes, b)
                    reading[slot.index] = b.end_capture()
                reading[slot.index].launch(b)
            b.synchronize()
            assert (out.get() == frame).all()
        assert len(writing) == len(reading) == ring.slots
