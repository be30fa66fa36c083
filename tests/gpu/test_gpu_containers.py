"""GPU rings between containers that share a /dev/shm and nothing else.

Each process is process 1 of pid, ipc and mount namespaces of its own, so none of them can look up
the pid of another one.  The ring goes on when processes are killed with GPU work pending.
With GPURING_FIGURES=FILE the times that the survivors waited are appended there as JSON lines.
"""

from __future__ import annotations

import functools
import os
import time

import pytest

import gpuring
from gpuring.memory import kinds
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.survivor import HELD_S, RECOVERY_S, report
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.registry.containers import cleans, obey, shared_memory, start

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]

PATIENCE_S = 30.0
SLOTS, WORDS = 4, 1 << 14
TURNS = 30


@pytest.fixture
def container(children):
    """Starts a peer of a ring in a container of its own."""
    with shared_memory() as shm:
        yield functools.partial(start, children, shm, False)


def on_gpu(pipe, name, memory=None):
    """Creates a ring in this memory, or attaches to it.  Writes and reads as it is told to."""
    kernels = tools()
    stream, wrong = library.new_stream(), kernels.counter()
    if memory:
        spec = {"slots": SLOTS, "shape": (WORDS,), "dtype": "u8", "sync": "timeline"}
        ring = gpuring.create(name, device="cuda", memory=memory, **spec)
    else:
        ring = gpuring.attach(name, timeout=PATIENCE_S)
    producer, reader = ring.producer(), ring.consumer()
    kept = []

    def put():
        with producer.claim(PATIENCE_S) as slot:
            kernels.stamp(slot, slot.seq, None)
        return slot.seq

    def get():
        with reader.acquire(PATIENCE_S) as slot:
            kernels.check(slot, slot.seq, wrong, None)
        return slot.seq, kernels.count(wrong)

    def hang():
        """Publishes a frame that its GPU does not write before this process is killed."""
        latch = kernels.Latch(limit_s=HELD_S)
        slot = producer.claim(PATIENCE_S, stream=stream)
        latch.hold(stream)
        kernels.stamp(slot, slot.seq, stream)
        slot.publish()
        kept.append(latch)
        return slot.seq

    def hold():
        """Takes a frame.  Returns whether the stream has to wait for it."""
        kept.append(reader.acquire(PATIENCE_S, stream=stream))
        return kept[-1].seq, not library.done(stream)

    def go_on():
        """Waits until the stream has passed that frame.  Returns when, and whether the frame is
        torn."""
        poll(lambda: library.done(stream), RECOVERY_S)
        went_on = time.monotonic()
        slot = kept.pop()
        try:
            slot.release()
        except gpuring.FrameTorn:
            return went_on, True
        return went_on, False

    obey(
        pipe,
        {
            "what": lambda: (os.getpid(), ring.memory, ring.sync, ring.gate),
            "seen": lambda: (ring.stats().reaps, len(ring.stats().peers)),
            **{verb.__name__: verb for verb in (put, get, hang, hold, go_on)},
        },
    )


@promise(
    "containers.md",
    'With `"vmm"`, `"pool"` and `"pinned"` peers hand their pidfds over.',
)
@pytest.mark.parametrize(("memory", "kind"), [("auto", "vmm"), ("pool", "pool")])
def test_a_ring_goes_on_in_containers_when_its_processes_are_killed(
    memory, kind, container, name, request
):
    able, why = kinds.supported(kind, 0)
    if not able:
        pytest.skip(why)
    first = container(on_gpu, name, memory)
    second, third = container(on_gpu, name), container(on_gpu, name)
    peers = [first, second, third]
    assert [each("what") for each in peers] == [(1, kind, "timeline", "stream")] * 3
    for turn in range(TURNS):
        seq = peers[turn % 3]("put")
        assert [each("get") for each in peers] == [(seq, 0)] * 3

    seq = second("hang")
    assert [each("hold") for each in (first, third)] == [(seq, True)] * 2
    killed = time.monotonic()
    second.kill()
    ends = [each("go_on") for each in (first, third)]
    report({"test": request.node.name, "ms": [1e3 * (went_on - killed) for went_on, _ in ends]})
    assert [torn for _, torn in ends] == [True, True]
    for each in (first, third):  # although nobody in its container can tell
        poll(lambda each=each: each("seen") == (2, 4))
    seq = third("put")
    assert [each("get") for each in (first, third)] == [(seq, 0)] * 2

    first.kill()  # the first one has made the ring and its memory
    poll(lambda: third("seen") == (4, 2))
    fourth = container(on_gpu, name)
    assert fourth("what") == (1, kind, "timeline", "stream")
    seq = fourth("put")
    assert [each("get") for each in (third, fourth)] == [(seq, 0)] * 2
    for each in (third, fourth):
        each.kill()
    cleaner = container(cleans)
    poll(lambda: name in cleaner("clean"))


def attaches(pipe, name):
    tools()

    def attach():
        try:
            gpuring.attach(name).close()
        except gpuring.DeviceError as error:
            return str(error)
        return "attached"

    obey(pipe, {"attach": attach})


def test_legacy_ipc_is_refused_in_another_container(container, name):
    maker = container(on_gpu, name, "ipc")
    assert maker("what")[1] == "ipc"
    said = container(attaches, name)("attach")
    assert "the ring must be created with `memory` vmm" in said
    maker.kill()
    cleaner = container(cleans)
    poll(lambda: name in cleaner("clean"))
