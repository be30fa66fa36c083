"""The kinds of GPU memory: who may write, who may join after the creator's death, what is left."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import gpuring
from gpuring import native
from gpuring.memory import gpus, kinds
from gpuring.native import dlpack
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.survivor import ring_is_whole, started
from tests.helpers.arrays import array_of, to_host
from tests.helpers.processes import open_files, poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of, tidied

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]

WORDS = 1 << 14
SLOTS = 4
FRAMES = SLOTS - 1  # the frames that start="oldest" finds
LARGE = 64 << 20
"""The bytes of a slot whose loss is seen."""
ROUNDS = 50
BATCH = 10


@pytest.fixture(params=kinds.ON_GPU)
def kind(request):
    able, reason = kinds.supported(request.param, 0)
    if not able:
        pytest.skip(reason)
    return request.param


def make(name, kind, **options):
    more = {"slots": SLOTS, "shape": (WORDS,), "dtype": "u8", "device": "cuda", "memory": kind}
    return gpuring.create(name, **(more | options))


def fill(ring, frames=FRAMES):
    kernels = tools()
    with ring.producer() as producer:
        for _ in range(frames):
            with producer.claim(10) as slot:
                kernels.stamp(slot, slot.seq, None)
    library.synchronize()


def wrong_words(consumer, frames=FRAMES):
    kernels = tools()
    wrong = kernels.counter()
    for _ in range(frames):
        with consumer.acquire(10) as slot:
            kernels.check(slot, slot.seq, wrong, None)
    return kernels.count(wrong)


# ---- who may write -------------------------------------------------------------------------------


def test_only_readers_of_vmm_are_kept_from_writing(name, kind):
    with make(name, kind) as ring:
        with ring.producer() as producer, ring.consumer() as consumer:
            look_at_both(producer, consumer, kind)
        ring_is_whole(ring)


def look_at_both(producer, consumer, kind):
    with producer.claim(10) as slot:
        written, _ = library.span(slot)
        assert slot.__cuda_array_interface__["data"] == (written, False)
        assert not dlpack.DLPackImport(slot.__dlpack__(max_version=(1, 0))).read_only
    with consumer.acquire(10) as slot:
        read, _ = library.span(slot)
        assert slot.__cuda_array_interface__["data"] == (read, kind == "vmm")
        opened = dlpack.DLPackImport(slot.__dlpack__(max_version=(1, 0)))
        assert opened.read_only is (kind == "vmm")
        copied = dlpack.DLPackImport(slot.__dlpack__(max_version=(1, 0), copy=True))
        assert not copied.read_only
    assert (written != read) is (kind == "vmm")


def by_kernel(slot):
    tools().stamp(slot, 0, None)
    library.synchronize()


def by_torch(slot):
    torch = pytest.importorskip("torch")
    torch.from_dlpack(slot).zero_()
    torch.cuda.synchronize()


def by_memset(slot):
    ptr, nbytes = library.span(slot)
    gpus.gpu(0).fill(ptr, 0, nbytes, 0)
    gpus.gpu(0).synchronize(0)


def by_copy(slot):
    _copy(slot, library.span(library.zeros(WORDS))[0])


def by_copy_from_the_host(slot):
    _copy(slot, np.zeros(WORDS, "u8").ctypes.data)


def _copy(slot, source):
    ptr, nbytes = library.span(slot)
    gpus.gpu(0).copy(ptr, source, nbytes, 0)
    gpus.gpu(0).synchronize(0)


WAYS = {
    way.__name__: way for way in (by_kernel, by_torch, by_memset, by_copy, by_copy_from_the_host)
}


def write(pipe, name, way):
    """Reads a frame, writes into it, and sends what has happened."""
    tools()
    ring = gpuring.attach(name, timeout=20)
    slot = ring.consumer(start="oldest").acquire(20)
    try:
        WAYS[way](slot)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
    else:
        pipe.send("written")
    pipe.receive()
    os._exit(0)  # the context may be lost


@promise(
    "failure.md",
    "Its CUDA context is lost. The frame is as it was, and the others go on.",
)
@promise(
    "trust.md",
    'On a GPU a consumer can write into its arrays with `memory="ipc"` and `"pool"`, which have no '
    'read-only mapping. With `"vmm"` it cannot. That keeps a consumer from writing by mistake.',
)
@pytest.mark.parametrize("way", WAYS)
def test_a_reader_that_writes_fails_alone(name, children, way):
    tools()
    if way == "by_torch":
        pytest.importorskip("torch")
    with make(name, "vmm") as ring:
        with ring.consumer(start="oldest") as witness:
            fill(ring)
            writer = children(write, name, way)
            said = writer.receive()
            assert "written" not in said, said
            assert "error" in said.lower()
            assert wrong_words(witness) == 0
            writer.kill()
            poll(lambda: len(ring.stats().peers) == 1)
        ring_is_whole(ring)


def test_a_debugged_reader_may_restore_what_was_written_beyond_a_slot(name, monkeypatch):
    from gpuring.ring import debug

    monkeypatch.setattr(debug, "ON", True)
    with make(name, "vmm") as ring, ring.producer() as producer, ring.consumer() as consumer:
        with producer.claim(10) as slot:
            array_of(slot)[...] = 7
        with consumer.acquire(10) as slot:
            assert set(to_host(array_of(slot)).tolist()) == {7}


# ---- the death of the creator --------------------------------------------------------------------


def create(pipe, name, kind, nbytes=8 * WORDS):
    tools()
    pipe.ask("up")
    ring = make(name, kind, shape=(nbytes // 8,))
    fill(ring)
    pipe.ask(ring._epoch.hex())
    ring.close()


def stay(pipe, name):
    tools()
    pipe.ask("up")
    with gpuring.attach(name, timeout=20) as ring, ring.consumer(lossless=False):
        pipe.ask("inside")


@promise(
    "limits.md",
    'Nobody new can join a GPU ring with `memory="ipc"` then. With `"vmm"` or `"pool"` others can '
    "join as long as a process that has joined lives.",
)
@promise(
    "failure.md",
    "Those inside go on in every ring.",
    "cannot: `attach` raises `PeerLost`. The driver keeps the memory while any process has it "
    "open.",
    "can attach as long as a process that has joined lives, and find the frames. After that "
    "`attach` raises `PeerLost`, and the memory is free.",
)
@pytest.mark.parametrize("inside", [0, 1, 2])
def test_who_may_join_after_the_creators_death(name, kind, inside, children):
    (creator,) = started(children, 1, create, name, kind)
    peers = started(children, inside, stay, name)
    epoch = creator.ask()
    for peer in peers:
        assert peer.ask() == "inside"
    creator.kill()
    if kind in kinds.OUTLIVE and inside:
        with gpuring.attach(name) as ring, ring.consumer(start="oldest") as consumer:
            assert wrong_words(consumer) == 0
            assert not ring.stats().creator_alive
            for peer in peers[:-1]:
                peer.kill()
            poll(lambda: len(ring.stats().peers) == 2)
            assert children(read_all, name).result() == 0
        # This process has left, and the last of the others hands the memory on.
        with gpuring.attach(name) as ring:
            ring_is_whole(ring)
    else:  # another test may have cleaned it away meanwhile
        with pytest.raises((gpuring.PeerLost, gpuring.RingNotFound)):
            gpuring.attach(name)
    for peer in peers:
        peer.kill()
    poll(lambda: nothing_left(name, epoch))


def read_all(pipe, name):
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as consumer:
        return wrong_words(consumer)


def free_nbytes():
    tools()
    return library.free_nbytes()


def files_of_rings():
    """How many files of rings and of the driver this process has open."""
    return sum("/dev/shm" in file or "nvidia" in file for file in open_files().values())


def nothing_left(name, epoch):
    """Whether the ring is gone, at the latest now."""
    tidied(name)
    sockets = Path(f"/dev/shm/gpuring+{epoch}")
    native.tidy_sockets(sockets, only_look=False)
    return not segments_of(name) and not sockets.exists()


@promise(
    "failure.md",
    "can attach as long as a process that has joined lives, and find the frames. After that "
    "`attach` raises `PeerLost`, and the memory is free.",
    "It removes rings whose processes are all dead, slots that have no ring, and sockets of the "
    "dead.",
)
@pytest.mark.parametrize("kind", sorted(kinds.OUTLIVE.intersection(kinds.ON_GPU)), indirect=True)
def test_nothing_is_left_when_everybody_was_killed(name, kind, children):
    for batch in range(ROUNDS // BATCH):
        creators = started(children, BATCH, create, name, kind, LARGE)
        peers = started(children, BATCH // 2, stay, name)
        for k, creator in enumerate(creators):
            epoch = creator.ask()
            if k % 2:
                peer = peers[k // 2]
                assert peer.ask() == "inside"
                if k % 3:
                    creator.kill()  # before anybody else joins
                with gpuring.attach(name) as ring, ring.consumer(start="oldest") as consumer:
                    assert wrong_words(consumer) == 0
                peer.kill()
            creator.kill()
            poll(lambda epoch=epoch: nothing_left(name, epoch))
        if batch == 0:
            free, files = free_nbytes(), files_of_rings()
    # Other tests use the GPU, too.  So this looks for a good part of what the rings had.
    lost = (ROUNDS - BATCH) * SLOTS * LARGE // 2
    poll(lambda: free_nbytes() > free - lost)
    poll(lambda: files_of_rings() <= files)


# ---- what a handle keeps -------------------------------------------------------------------------


def test_closing_gives_everything_back(name, kind):
    tools()
    for number in range(ROUNDS):
        with make(name, kind, shape=(LARGE,), dtype="u1") as ring:
            if number % 5 == 0:
                ring_is_whole(ring)
            with gpuring.attach(name) as again, again.consumer() as consumer:
                assert consumer.ring is again
        if number == 0:
            free, files = free_nbytes(), files_of_rings()
    lost = (ROUNDS - 1) * SLOTS * LARGE // 2
    poll(lambda: free_nbytes() > free - lost)
    poll(lambda: files_of_rings() <= files)


def test_an_array_outlives_its_ring(name, kind):
    with make(name, kind) as ring, ring.consumer() as consumer:
        fill(ring, 1)
        kept = array_of(consumer.acquire(10))
        expected = to_host(kept)
    assert (to_host(kept) == expected).all()


def attach_and_keep(pipe, name):
    tools()
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as consumer:
        pipe.send()
        pipe.receive()  # the creator has closed the ring
        return wrong_words(consumer)


def test_who_is_inside_reads_on_when_the_creator_has_closed(name, kind, children):
    tools()
    with make(name, kind) as ring:
        fill(ring)
        reader = up(children(attach_and_keep, name))
    junk = library.zeros(1 << 25)  # would take the slots if they were free
    reader.send()
    assert reader.result() == 0
    assert not library.to_host(junk).any()


@pytest.mark.parametrize("nbytes", [1, 4096, 3 << 20, 1 << 30])
@pytest.mark.parametrize("slots", [1, 64])
def test_slots_of_all_sizes_and_numbers_arrive(name, kind, nbytes, slots):
    if nbytes * slots > 8 << 30:
        pytest.skip("it needs more than 8 GiB")
    with (
        make(name, kind, slots=slots, shape=(nbytes,), dtype="u1") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        for k in range(2 * slots + 1):
            with producer.claim(10) as slot:
                array_of(slot)[-1:] = k % 251
            with consumer.acquire(10) as slot:
                assert int(array_of(slot)[-1]) == k % 251


def test_auto_says_what_it_took(name):
    with make(name, "auto") as ring:
        kind, why = kinds.choose("auto", 0)
        assert ring.memory == kind
        assert kind == ("vmm" if kinds.in_container() else "ipc"), why
