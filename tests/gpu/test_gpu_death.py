"""Death with GPU work pending: whoever is killed, the others' streams complete and the books
balance.

Children are started a batch ahead, because a process with a CUDA context takes a second to come up.
Each round kills one of them at a moment when a survivor waits for its GPU work.  It measures how
long the survivor waited, and for how much of this time the kernel had not removed the victim yet.
With
GPURING_FIGURES=FILE the distributions are appended there as JSON lines.
"""

from __future__ import annotations

from itertools import count

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.survivor import (
    RECOVERY_S,
    Killing,
    my_turn,
    publish_and_hang,
    report,
    ring_is_whole,
    started,
    still_healthy,
)
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(400)]

ROUNDS = 50
BATCH = 10
WORDS = 1 << 14


def _victims(children, target, name):
    """Yields children without end that are up and wait for their turn.  At most BATCH are alive."""
    waiting = []
    for number in count():
        if not waiting:
            wanted = min(BATCH, ROUNDS - number)
            waiting = started(children, max(1, wanted), target, name)
        yield waiting.pop()


def _figures(request, times):
    """Reports figures of `times`, which are pairs from Killing.waited_s."""
    ms, gone_ms = (sorted(1e3 * s for s in each) for each in zip(*times, strict=True))
    figures = {
        "test": request.node.name, "rounds": len(ms), "p50_ms": ms[len(ms) // 2],
        "p99_ms": ms[int(len(ms) * 0.99)], "max_ms": ms[-1],
        "gone_p50_ms": gone_ms[len(ms) // 2], "gone_max_ms": gone_ms[-1],
        "after_gone_max_ms": max(1e3 * (waited - gone) for waited, gone in times),
    }  # fmt: skip
    report(figures)


def _memory_is_back(before):
    """Waits until the kernel has freed the device memory of the killed, which takes a moment."""
    slack = 64 << 20
    poll(lambda: library.free_nbytes() > before - slack)


# ---- a producer dies with its frame unfinished -------------------------------------------------


@promise(
    "failure.md",
    "The frame is **torn**. Acquire passes over it.",
    "The frame is torn. That reader gets `FrameTorn` from `slot.check()` and at release.",
    "It goes on: a survivor stores the word. | nothing",
    "There is none, because no stream waits for another process. The call itself goes on, or "
    "passes over the frame. | a thread polls",
    "There is none, as above. | a thread polls",
)
def test_a_producer_dies_with_work_pending(safe, name, children, request):
    tools()
    victims, waited = _victims(children, publish_and_hang, name), []
    stream = library.new_stream()
    with gpuring.create(name, slots=2, shape=(WORDS,), dtype="u8", **safe) as ring:
        before = 0
        for number in range(ROUNDS):
            victim = next(victims)
            with ring.consumer() as consumer:
                victim.send()
                assert victim.receive() == "published"
                if ring.gate == "stream":
                    slot = consumer.acquire(10, stream=stream)
                    assert not library.done(stream), "nothing to wait for"
                    killing = Killing(victim)
                    poll(lambda: library.done(stream), RECOVERY_S)
                    waited.append(killing.waited_s())
                    with pytest.raises(gpuring.FrameTorn):
                        slot.check()
                    with pytest.raises(gpuring.FrameTorn):
                        slot.release()
                else:
                    killing = Killing(victim, 0.02)
                    with pytest.raises(gpuring.PeerLost):  # the torn frame is passed over
                        consumer.acquire(RECOVERY_S)
                    waited.append(killing.waited_s())
                assert ring.stats().deaths[0].torn == 1
                assert ring.stats().deaths[0].pid == victim.pid
            victim.kill()
            still_healthy(number)
            if number == BATCH:
                before = library.free_nbytes()
        _memory_is_back(before)
        ring_is_whole(ring)
    _figures(request, waited)


# ---- a consumer dies while its GPU reads -------------------------------------------------------


def read_and_hang(pipe, name):
    stream, kernels, latch = my_turn(pipe)
    wrong = kernels.counter()
    consumer = gpuring.attach(name, timeout=20).consumer(start="oldest")
    pipe.send("joined")
    slot = consumer.acquire(10, stream=stream)
    latch.hold(stream)
    kernels.check(slot, slot.seq, wrong, stream)
    slot.release()
    pipe.ask("released")


@promise("failure.md", "The subscription ends, so producers no longer wait for it.")
def test_a_consumer_dies_while_its_gpu_reads(safe, name, children, request):
    kernels = tools()
    victims, waited = _victims(children, read_and_hang, name), []
    stream = library.new_stream()
    with (
        gpuring.create(name, slots=1, shape=(WORDS,), dtype="u8", **safe) as ring,
        ring.producer() as producer,
    ):
        for number in range(ROUNDS):
            victim = next(victims)
            victim.send()
            assert victim.receive() == "joined"
            with producer.claim(10, stream=stream) as slot:
                kernels.stamp(slot, slot.seq, stream)
            assert victim.receive() == "released"
            if ring.gate == "stream":
                slot = producer.claim(10, stream=stream)
                assert not library.done(stream), "nothing to wait for"
                killing = Killing(victim)
                poll(lambda: library.done(stream), RECOVERY_S)
            else:
                killing = Killing(victim, 0.02)
                slot = producer.claim(RECOVERY_S, stream=stream)
            waited.append(killing.waited_s())
            slot.abandon()
            victim.kill()
            still_healthy(number)
        stream.synchronize()
        assert not ring.stats().subscriptions
    _figures(request, waited)


# ---- a member dies with a frame, the creator dies idle -----------------------------------------


def hold_one(pipe, name):
    tools()
    pipe.ask("up")
    consumer = gpuring.attach(name, timeout=20).consumer("shared")
    pipe.send("joined")
    slot = consumer.acquire(20)
    pipe.ask(slot.seq)


@promise(
    "failure.md",
    "The frames that it held go to another member with `slot.redelivered` set, which is the "
    "default. With `redeliver=False` they are dropped.",
)
def test_a_members_frame_goes_to_another_member(safe, name, children, request):
    kernels = tools()
    wrong, waited = kernels.counter(), []
    victims = _victims(children, hold_one, name)
    with (
        gpuring.create(name, slots=4, shape=(WORDS,), dtype="u8", **safe) as ring,
        ring.producer() as producer,
        ring.consumer("shared") as other,
    ):
        for _ in range(BATCH):
            victim = next(victims)
            victim.send()
            assert victim.receive() == "joined"
            with producer.claim(10) as slot:
                kernels.stamp(slot, slot.seq, None)
            seq = victim.receive()
            killing = Killing(victim)
            with other.acquire(RECOVERY_S) as slot:
                waited.append(killing.waited_s())
                assert (slot.seq, slot.redelivered) == (seq, True)
                kernels.check(slot, slot.seq, wrong, None)
            victim.kill()
        assert kernels.count(wrong) == 0
    _figures(request, waited)


def create_and_wait(pipe, name, safe):
    tools()
    ring = gpuring.create(name, slots=4, shape=(WORDS,), dtype="u8", **safe)
    pipe.ask("up")
    ring.close()


@promise(
    "limits.md",
    "The process that creates a ring owns the memory. If it dies, the processes that are in the "
    'ring can finish. Nobody new can join a GPU ring with `memory="ipc"` then.',
)
@promise(
    "failure.md",
    "Those inside go on in every ring.",
    "cannot: `attach` raises `PeerLost`. The driver keeps the memory while any process has it "
    "open.",
)
def test_those_inside_finish_after_the_creators_death(safe, name, children):
    kernels = tools()
    creator = children(create_and_wait, name, safe)
    assert creator.receive() == "up"
    wrong = kernels.counter()
    with (
        gpuring.attach(name) as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        creator.kill()
        junk = library.zeros(1 << 25)  # would take the slots if they were free
        for _ in range(200):
            with producer.claim(10) as slot:
                kernels.stamp(slot, slot.seq, None)
            with consumer.acquire(10) as slot:
                kernels.check(slot, slot.seq, wrong, None)
        assert kernels.count(wrong) == 0
        assert not library.to_host(junk).any()
        with pytest.raises(gpuring.PeerLost, match="is dead"):
            gpuring.attach(name)
    assert segments_of(name) == []  # this process was the last one
