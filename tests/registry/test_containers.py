"""Containers that share a /dev/shm and nothing else: pids there say nothing to each other.

Each process here is process 1 of namespaces of its own, and none of them can look another one up.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Iterator

import pytest

import gpuring
from tests.helpers import raw_verbs
from tests.helpers.processes import PATIENCE_S, Child, Pipe, open_files, poll
from tests.helpers.promise import promise
from tests.registry.containers import Contained, as_on_gpu, cleans, obey, shared_memory, start

SLOTS, SLOT_NBYTES = 4, 4096


@pytest.fixture
def shm() -> Iterator[str]:
    with shared_memory() as place:
        yield place


@pytest.fixture(params=[False, True], ids=["root", "own-users"])
def container(
    request: pytest.FixtureRequest, children: Callable[..., Child], shm: str
) -> Callable[..., Contained]:
    """Starts a peer of a ring in a container of its own."""
    return functools.partial(start, children, shm, request.param)


# ---- slots that are had by a descriptor --------------------------------------------------------


def on_gpu(pipe: Pipe, name: str, make: bool) -> None:
    header, slots = as_on_gpu(
        name, make=make, slots=SLOTS, slot_nbytes=SLOT_NBYTES, patience_s=PATIENCE_S
    )
    producer = raw_verbs.join_producer(header)
    reader = raw_verbs.join_consumer(header, secrets.token_hex(4).encode(), True, "next")
    assert not isinstance(producer, int)
    assert not isinstance(reader, int)

    def put(what: bytes) -> int:
        index = producer.claim(PATIENCE_S)
        assert index >= 0, index
        os.pwrite(slots, what, index * SLOT_NBYTES)
        assert producer.publish(index, producer.seq) == 0
        return producer.seq

    def get() -> tuple[int, bytes]:
        index = reader.acquire(PATIENCE_S)
        assert index >= 0, index
        seq = reader.seq
        what = os.pread(slots, 8, index * SLOT_NBYTES)
        assert reader.release(index, seq) == 0
        return seq, what

    obey(
        pipe,
        {
            "pid": os.getpid,
            "put": put,
            "get": get,
            "claim": lambda: producer.claim(PATIENCE_S),
            "seen": lambda: (header.reaps, len(header.live_peers())),
            "pidfds": lambda: sum("pidfd" in kind for kind in open_files().values()),
        },
    )


def test_a_ring_goes_on_without_its_creator_in_another_container(container, name):
    first, second = container(on_gpu, name, True), container(on_gpu, name, False)
    assert (first("pid"), second("pid")) == (1, 1)
    third = container(on_gpu, name, False)
    seq = first("put", b"from 1st")
    assert [each("get") for each in (first, second, third)] == [(seq, b"from 1st")] * 3

    second("claim")
    second.kill()
    for each in (first, third):  # although nobody in its container can tell
        poll(lambda each=each: each("seen") == (2, 4))
    seq = third("put", b"from 3rd")  # what the dead had claimed is passed over
    assert [each("get") for each in (first, third)] == [(seq, b"from 3rd")] * 2

    first.kill()  # the first one has made the ring and the slots
    poll(lambda: third("seen") == (4, 2))
    fourth = container(on_gpu, name, False)
    seq = fourth("put", b"from 4th")
    assert [each("get") for each in (third, fourth)] == [(seq, b"from 4th")] * 2
    for each in (third, fourth):
        each.kill()
    (removed,) = [each for each in container(cleans)("clean") if name in each]
    assert removed == name


@promise(
    "containers.md",
    "A process does so before it joins, so it is cleared even if it is killed as soon as it has "
    "joined.",
)
def test_who_is_killed_as_soon_as_it_has_joined_is_cleared(container, name):
    """Others get its pidfd before it joins."""
    first = container(on_gpu, name, True)
    for turn in range(1, 6):
        second = container(on_gpu, name, False)
        second.kill()
        poll(lambda turn=turn: first("seen") == (2 * turn, 2))
    first.kill()
    container(cleans)("clean")


def test_who_is_left_alone_right_after_its_join_clears_its_maker(container, name):
    first, second = container(on_gpu, name, True), container(on_gpu, name, False)
    first.kill()
    poll(lambda: second("seen") == (2, 2))
    second.kill()
    container(cleans)("clean")


@promise(
    "containers.md",
    'With `"vmm"`, `"pool"` and `"pinned"` peers hand their pidfds over.',
)
def test_everybody_has_the_pidfds_of_all_others(container, name):
    """That is true also of processes that did not hand over the slots.  So the last one left clears
    all others."""
    peers = [container(on_gpu, name, k == 0) for k in range(4)]
    for each in peers:
        poll(lambda each=each: each("pidfds") == 3)
    for each in peers[:3]:
        each.kill()
    poll(lambda: peers[3]("seen") == (6, 2))
    poll(lambda: peers[3]("pidfds") == 0)
    peers[3].kill()
    container(cleans)("clean")


# ---- pinned rings ------------------------------------------------------------------------------


def on_pinned_memory(pipe: Pipe, name: str, make: bool, gpu: bool) -> None:
    options = {"slots": SLOTS, "shape": 8, "dtype": "u1", "memory": "pinned"}
    ring = gpuring.create(name, **options) if make else gpuring.attach(name)
    if gpu:  # the entry says that there is a GPU
        ring._header.uses_gpu(bytes(range(16)), 0)
    frames = ring.consumer() if gpu else ring.producer()
    obey(
        pipe,
        {
            "put": lambda: frames.claim(PATIENCE_S).publish(),
            "get": lambda: kept.append(frames.acquire(PATIENCE_S)),
            "seen": lambda: (ring.stats().reaps, [peer.gpu for peer in ring.stats().peers]),
        },
    )


kept: list[object] = []


@promise(
    "containers.md",
    'With `"vmm"`, `"pool"` and `"pinned"` peers hand their pidfds over.',
)
@pytest.mark.parametrize("creator", ["camera", "model"])
def test_a_camera_clears_a_model_of_another_container(container, name, creator):
    """Only the model's pidfd says that its copies have ended."""
    peers = {}
    for role in ("camera", "model") if creator == "camera" else ("model", "camera"):
        peers[role] = container(on_pinned_memory, name, not peers, role == "model")
    camera, model = peers["camera"], peers["model"]
    for _ in range(SLOTS):
        camera("put")
    model("get")
    model.kill()
    camera("put")  # a lossless reader was in the way
    poll(lambda: camera("seen") == (1, [None]))
    camera.kill()
    container(cleans)("clean")


# ---- rings in host memory ----------------------------------------------------------------------


def in_host_memory(pipe: Pipe, name: str, make: bool) -> None:
    options = {"slots": SLOTS, "shape": 8, "dtype": "u1", "device": "host"}
    ring = gpuring.create(name, **options) if make else gpuring.attach(name)
    producer, reader = ring.producer(), ring.consumer()

    def put(value: int) -> int:
        with producer.claim(PATIENCE_S) as slot:
            slot.array[...] = value
        return slot.seq

    def get() -> tuple[int, int]:
        with reader.acquire(PATIENCE_S) as slot:
            return slot.seq, int(slot.array[0])

    kept = []
    obey(
        pipe,
        {
            "put": put,
            "get": get,
            "claim": lambda: kept.append(producer.claim(PATIENCE_S)),
            "seen": lambda: (ring.stats().reaps, sorted(peer.pid for peer in ring.stats().peers)),
            "files": lambda: sorted(os.listdir("/dev/shm")),  # noqa: PTH208
        },
    )


@promise(
    "containers.md",
    "Host rings need only the shared `/dev/shm`: the kernel drops the file locks of the dead in "
    "every namespace.",
)
@promise(
    "failure.md",
    "Host rings need only a common `/dev/shm`.",
)
def test_a_host_ring_needs_no_socket(container, name):
    """On host memory the locks show every death, in any namespace."""
    first, second = (container(in_host_memory, name, make) for make in (True, False))
    seq = first("put", 7)
    assert [each("get") for each in (first, second)] == [(seq, 7)] * 2
    assert first("seen") == (0, [1, 1, 1, 1])
    assert [each.partition("+")[0] for each in first("files")] == [f"gpuring.{name}"] * 2
    first("claim")
    first.kill()
    poll(lambda: second("seen") == (2, [1, 1]))
    third = container(in_host_memory, name, False)
    seq = third("put", 9)
    assert [each("get") for each in (second, third)] == [(seq, 9)] * 2
    for each in (second, third):
        each.kill()
    assert name in container(cleans)("clean")
