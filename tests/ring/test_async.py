"""asyncio: nothing is lost, and a cancelled task leaves nothing held or armed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time

import pytest

import gpuring
from tests.helpers import raw_verbs
from tests.helpers.places import Place
from tests.helpers.processes import Pipe, poll, up
from tests.helpers.rings import (
    SMALL,
    bells,
    publish_and_wait,
    publish_at_random,
    put,
    readable,
    small_ring,
    waiters,
)

ROUNDS = 10_000


# ---- asyncio -------------------------------------------------------------------------------------


def produce(pipe: Pipe, place: Place, name: str, frames: int) -> None:
    """Publishes from an event loop.  Its claims have to wait, because the ring is small."""

    async def main() -> None:
        with gpuring.attach(name) as ring, ring.producer() as producer:
            pipe.receive()
            for value in range(frames):
                with await producer.claim_async(20) as slot:
                    place.fill(slot, value % 251)

    asyncio.run(main())


def test_a_task_gives_the_same_arguments_as_a_thread(ring):
    async def main() -> None:
        with ring.producer() as producer, ring.consumer() as consumer:
            with await producer.claim_async(0, shape=(2,)) as slot:
                assert slot.array.shape == (2,)
            for verb in (producer.claim_async, consumer.acquire_async):
                with pytest.raises(TypeError, match="takes no stream"):
                    await verb(0, stream=5)

    asyncio.run(main())


def test_frames_come_in_order_until_the_end_of_the_stream(place, name, children):
    async def main(ring: gpuring.Ring) -> list[tuple[int, int]]:
        got = []
        with ring.consumer() as consumer:
            child.send()
            async for slot in consumer:
                got.append((slot.seq, int(place.read(slot)[0])))
        return got

    with place.create(name, **SMALL) as ring:
        child = children(produce, place, name, 300)
        seqs, values = zip(*asyncio.run(main(ring)), strict=True)
        assert list(values) == [k % 251 for k in range(300)]
        assert list(seqs) == sorted(set(seqs))
        if ring.gate != "host":  # a claim that would have had to wait for the GPU leaves a gap
            assert list(seqs) == list(range(4, 304))
        child.result()
        assert waiters(ring) == 0


async def test_other_tasks_run_while_one_waits_and_while_one_never_has_to(ring):
    """The tasks of two busy rings and a third task take turns, although none ever has to wait for a
    frame."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticker = asyncio.create_task(tick())
    with ring.producer() as producer, ring.consumer() as consumer:
        while ticks <= 10:
            (await producer.claim_async()).publish()
            (await consumer.acquire_async()).release()
        ticks, task = 0, asyncio.create_task(consumer.acquire_async())
        while ticks <= 10:
            await asyncio.sleep(0)
        assert not task.done()
        put(producer)
        (await task).release()
        with pytest.raises(gpuring.RingTimeout, match=r"no frame within 0\.1 s"):
            await consumer.acquire_async(0.1)
    ticker.cancel()


async def test_a_loop_gives_each_frame_back_when_it_moves_on_and_when_it_is_left(ring):
    async def fail_at_the_first(consumer: gpuring.Consumer) -> None:
        async for _ in consumer:
            raise ZeroDivisionError

    with ring.producer() as producer, ring.consumer() as consumer:
        put(producer, 4)
        before = None
        async for slot in consumer:
            if before is not None:
                assert consumer._peer.holding() == [(slot.index, slot.seq)]
            before = slot.seq
            if slot.seq == 6:
                break
        assert consumer._peer.holding() == []
        with pytest.raises(ZeroDivisionError):
            await fail_at_the_first(consumer)
        assert consumer._peer.holding() == []
        put(producer)
        async for slot in consumer:
            slot.release()  # by hand
            break
        with pytest.raises(gpuring.RingTimeout):
            await consumer.acquire_async(0)


@pytest.mark.parametrize("how", ["cancel", "timeout", "close"])
@pytest.mark.parametrize("verb", ["acquire_async", "claim_async"])
async def test_a_wait_that_is_given_up_leaves_nothing(ring, verb, how):
    producer, consumer = ring.producer(), ring.consumer()
    actor = consumer
    if verb == "claim_async":
        put(producer, 4)
        actor = producer
    held = actor._peer.holding()
    task = asyncio.create_task(getattr(actor, verb)(0.05 if how == "timeout" else None))
    while waiters(ring) != 1:
        await asyncio.sleep(0.001)
    with pytest.raises(RuntimeError, match="task"):
        await getattr(actor, verb)(0)
    if how == "cancel":
        task.cancel()
    if how == "close":
        actor.close()
    with pytest.raises(
        {
            "cancel": asyncio.CancelledError,
            "timeout": gpuring.RingTimeout,
            "close": gpuring.RingClosed,
        }[how]
    ):
        await task
    assert waiters(ring) == 0
    if how != "close":
        assert actor._peer.holding() == held
        if verb == "claim_async":
            consumer.acquire(0).release()
        else:
            put(producer)
        rung = bells(ring)
        with await getattr(actor, verb)(0):
            assert bells(ring) == rung  # no bell is rung if nobody waits


def test_cancelled_at_random_moments_nothing_is_lost_or_held(ring):
    """A thread publishes, while tasks that wait for frames are cancelled all the time."""
    frames, dice = 2000, random.Random(3)

    def publish() -> None:
        with ring.producer() as producer:
            for _ in range(frames):
                put(producer)

    async def main() -> list[int]:
        seqs: list[int] = []

        async def take() -> None:
            with await consumer.acquire_async() as slot:
                seqs.append(slot.seq)

        while True:
            task = asyncio.create_task(take())
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                assert consumer._peer.holding() == []
            except gpuring.EndOfStream:
                return seqs

    with ring.consumer() as consumer:
        thread = threading.Thread(target=publish)
        thread.start()
        assert asyncio.run(main()) == list(range(4, 4 + frames))
        thread.join()
    assert waiters(ring) == 0


@pytest.mark.slow
async def test_a_loop_of_a_task_loses_no_wake_up(name, children):
    names = [f"{name}-{k}" for k in range(2)]
    rings = [small_ring(each) for each in names]
    late = 0

    async def read(consumer: gpuring.Consumer) -> None:
        nonlocal late
        async for _ in consumer:
            late += time.monotonic() - began[0] > 0.045
            began[0] = time.monotonic()

    consumers = [ring.consumer() for ring in rings]
    child = children(publish_at_random, names, ROUNDS, 2)
    child.send()
    for ring in rings:
        poll(lambda ring=ring: raw_verbs.has_producer(ring._header))
    began = [time.monotonic()]
    await asyncio.gather(*(read(consumer) for consumer in consumers))
    assert late < ROUNDS / 100, f"{late} of {ROUNDS} woke at the end of a slice"
    child.result()
    for ring in rings:
        ring.close()


async def test_a_task_that_waits_sleeps(ring):
    with ring.producer(), ring.consumer() as consumer:
        wall, cpu = time.monotonic(), time.process_time()
        with pytest.raises(gpuring.RingTimeout):
            await consumer.acquire_async(0.3)
        assert time.process_time() - cpu < (time.monotonic() - wall) / 5


def test_a_producer_that_is_killed_ends_the_loop(place, name, children):
    seqs = []

    async def main(consumer: gpuring.Consumer) -> None:
        async for slot in consumer:
            seqs.append(slot.seq)
            place.read(slot)
            killer.start()

    with place.create(name, **SMALL) as ring, ring.consumer() as consumer:
        child = up(children(publish_and_wait, name, 1))
        killer = threading.Timer(0.2, child.kill)
        with pytest.raises(gpuring.PeerLost):
            asyncio.run(main(consumer))
        killer.join()
        assert seqs == [4]


def test_a_loop_goes_on_over_restarts(name):
    rings = [small_ring(name)]
    producers = [rings[0].producer()]

    async def restart(consumer: gpuring.Consumer, another_ring: bool) -> None:
        producers[-1].close()
        while not consumer._restarted:  # it has seen the end
            await asyncio.sleep(0.001)
        if another_ring:
            rings.append(small_ring(name, replace=True))
            rings[0].close()
        producers.append(rings[-1].producer())
        put(producers[-1])

    async def main() -> list[tuple[int, bool]]:
        got = []
        with gpuring.attach(name) as mine, mine.consumer("x", reattach=True) as consumer:
            put(producers[0])
            fileno = consumer.fileno()
            async for slot in consumer:
                got.append((slot.seq, slot.restarted))
                if len(got) == 3:
                    break
                task = asyncio.create_task(restart(consumer, len(got) == 2))
            await task
            assert consumer.fileno() == fileno
            with pytest.raises(gpuring.RingTimeout):
                consumer.acquire(0)
            assert not readable(consumer)
            put(producers[-1])
            assert readable(consumer, 20)
        return got

    assert asyncio.run(main()) == [(4, False), (5, True), (4, True)]
    rings[1].close()


def test_loops_of_several_threads_at_several_rings(name):
    """One notifier thread serves all of them, also several consumers of one ring."""
    rings = [small_ring(f"{name}-{k}") for k in range(3)]
    frames, results = 500, []

    async def read(consumer: gpuring.Consumer) -> int:
        return sum([slot.seq async for slot in consumer])

    def loop(consumers: list[gpuring.Consumer]) -> None:
        async def main() -> list[int]:
            return await asyncio.gather(*(read(consumer) for consumer in consumers))

        results.append(asyncio.run(main()))

    loops = [[ring.consumer() for ring in rings] for _ in range(3)]
    threads = [threading.Thread(target=loop, args=(consumers,)) for consumers in loops]
    producers = [ring.producer() for ring in rings]
    for thread in threads:
        thread.start()
    for _ in range(frames):
        for producer in producers:
            put(producer)
    for producer in producers:
        producer.close()
    for thread in threads:
        thread.join()
    assert results == [[sum(range(4, 4 + frames))] * 3] * 3
    assert [waiters(ring) for ring in rings] == [0] * 3
    for ring in rings:
        ring.close()


def test_a_wait_whose_loop_was_closed_is_in_nobodys_way(name):
    """A second Ctrl-C ends asyncio.run before its tasks have ended.  The garbage collector ends
    them later."""
    with small_ring(name, 2) as ring:
        producer, reader = ring.producer(), ring.consumer()
        old = asyncio.new_event_loop()
        left = reader.acquire_async()
        task = old.create_task(left)
        old.call_later(0.01, old.stop)
        old.run_forever()
        assert not task.done()
        task._log_destroy_pending = False
        old.close()

        async def waits():
            found = asyncio.create_task(reader.acquire_async(20))
            await asyncio.sleep(0.01)  # until it waits
            with contextlib.suppress(RuntimeError):
                left.close()  # as the garbage collector would
            producer.claim(0).publish()
            return await found

        assert asyncio.run(waits()).seq == 2
