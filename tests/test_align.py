"""align: which frames come together, what is given back, and what a stream does to the others."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from collections import deque
from contextlib import ExitStack
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import HOST, ON_GPU, Pipe, Place, poll, tear
from test_interrupt import interrupts
from test_select import waiters

import gpuring

SPEC = {"slots": 8, "shape": 4, "dtype": "u1", "meta": [("pts", "f8")]}


class Streams:
    """Rings with a producer and a consumer each; `put(0, 1, 2)` publishes pts 1 and 2 in ring 0."""

    def __init__(self, stack: ExitStack, place: Place, name: str, n: int = 2, **options) -> None:
        how = {"lossless": options.pop("lossless", True)}
        spec = SPEC | options
        self.place = place
        self.rings = [stack.enter_context(place.create(f"{name}-{k}", **spec)) for k in range(n)]
        self.producers = [ring.producer() for ring in self.rings]
        self.consumers = [ring.consumer(**how) for ring in self.rings]

    def put(self, k: int, *pts: float) -> None:
        for each in pts:
            with self.producers[k].claim(20) as slot:
                slot.meta["pts"] = each
                self.place.fill(slot.array, int(each) % 251 if math.isfinite(each) else 0)

    def end(self, *which: int) -> None:
        for k in which or range(len(self.producers)):
            self.producers[k].close()

    def held(self) -> list[int]:
        """How many frames of each ring this process holds."""
        return [len(consumer._peer.holding()) for consumer in self.consumers]

    def align(self, *args, **options) -> gpuring.Aligned:
        return gpuring.align(self.consumers, *args, **({"timeout": 0} | options))


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def streams(name, stack):
    """On host memory."""
    return lambda n=2, **options: Streams(stack, HOST, name, n, **options)


def pts(slots: tuple) -> tuple:
    """Of a tuple of slots."""
    return tuple(None if slot is None else float(slot.meta["pts"]) for slot in slots)


def now(aligned: gpuring.Aligned) -> list[tuple]:
    """All tuples that come without waiting."""
    found = []
    try:
        for slots in aligned:
            found.append(pts(slots))
    except gpuring.RingTimeout:
        return found
    return [*found, "end"]


# ---- which frames come together ------------------------------------------------------------------


def test_the_figure_of_the_docstring(streams):
    both = streams()
    both.put(0, 0, 40, 80, 120)
    both.put(1, 1, 41, 121, 161)
    aligned = both.align("pts", 2)
    assert now(aligned) == [(0, 1), (40, 41), (120, 121)]
    both.end()
    assert now(aligned) == ["end"]
    assert aligned.unmatched == (1, 0)
    aligned = both.align("pts", 2, partial=True)
    assert now(aligned) == [(None, 161), "end"], "it was given back, and comes again"


def test_the_figure_with_partial_tuples(streams):
    both = streams()
    both.put(0, 0, 40, 80, 120)
    both.put(1, 1, 41, 121, 161)
    both.end()
    aligned = both.align("pts", 2, partial=True)
    assert now(aligned) == [(0, 1), (40, 41), (80, None), (120, 121), (None, 161), "end"]
    assert aligned.unmatched == (0, 0)


def test_exact_needs_equal_values(streams):
    both = streams()
    both.put(0, 1, 2, 3)
    both.put(1, 1, 2.5, 3)
    aligned = both.align("pts")
    assert now(aligned) == [(1, 1), (3, 3)]
    assert aligned.unmatched == (1, 1)


def test_drift_beyond_the_tolerance_ends_the_match_and_no_sooner(streams):
    both = streams(slots=16)
    both.put(0, *range(0, 100, 10))
    both.put(1, *(11 * k for k in range(9)))
    aligned = both.align("pts", 4)
    assert now(aligned)[:5] == [(10 * k, 11 * k) for k in range(5)]


def test_different_rates_match_where_they_meet(streams):
    both = streams(slots=16)
    both.put(0, *range(0, 100, 10))
    both.put(1, 1, 31, 61, 91)
    both.end()
    aligned = both.align("pts", 4)
    assert now(aligned) == [(0, 1), (30, 31), (60, 61), (90, 91), "end"]
    assert aligned.unmatched == (6, 0)


def test_frames_that_have_no_number_do_not_fit_each_other(streams):
    both = streams(2, meta=[("pts", "f8")])
    both.put(0, math.nan, 1)
    both.put(1, math.nan, 1)
    aligned = both.align("pts", 2)
    assert now(aligned) == [(1, 1)]
    assert aligned.unmatched == (1, 1)


def test_frames_with_the_same_value_pair_one_by_one(streams):
    both = streams()
    both.put(0, 5, 5, 6)
    both.put(1, 5, 6, 6)
    both.end()
    assert now(both.align("pts", partial=True)) == [(5, 5), (5, None), (6, 6), (None, 6), "end"]


def test_consumers_of_one_ring(streams):
    one = streams(1)
    consumers = [*one.consumers, one.rings[0].consumer()]
    one.put(0, 1, 2)
    consumers[1].acquire(0).release()
    aligned = gpuring.align(consumers, "pts", timeout=0)
    assert now(aligned) == [(2, 2)]
    assert aligned.unmatched == (1, 0)


def test_a_value_that_is_no_number_fits_nobody(streams):
    both = streams()
    both.put(0, math.nan, 1)
    both.put(1, 1)
    aligned = both.align("pts")
    assert now(aligned) == [(1, 1)]
    assert aligned.unmatched == (1, 0)


@pytest.mark.parametrize("lossless", [True, False])
def test_the_newest_of_each(streams, lossless):
    both = streams(lossless=lossless)
    aligned = both.align()
    both.put(0, 1, 2, 3)
    assert now(aligned) == []
    both.put(0, 4)
    both.put(1, 7, 8)
    with both.align() as other:
        assert next(other)[0].array is not None
    aligned.close()
    both.put(0, 5)
    both.put(1, 9)
    assert now(aligned) == [(5, 9)], "what the other one had handed out does not come again"
    both.put(1, 10, 11)
    assert now(aligned) == []
    both.put(0, 6)
    assert now(aligned) == [(6, 11)]


def test_the_newest_of_those_that_have_one(streams):
    both = streams()
    aligned = both.align(partial=True, depth=3)
    both.put(0, 1, 2)
    assert now(aligned) == []
    both.put(0, 3)
    assert now(aligned) == [(3, None)]
    assert aligned.unmatched == (2, 0)


def test_slots_are_the_frames_on_every_kind_of_memory(place, name):
    """On a GPU they are ordered on the stream that is current when they are handed out."""
    with ExitStack() as stack:
        both = Streams(stack, place, name)
        aligned = both.align("pts", timeout=10)
        for k in range(20):
            both.put(0, k)
            if k:
                both.put(1, k - 1)
                slots = next(aligned)
                assert [int(place.read(slot.array)[0]) for slot in slots] == [k - 1] * 2


@pytest.mark.gpu
def test_a_frame_that_waited_is_ordered_on_the_stream_of_its_step(name):
    cupy = pytest.importorskip("cupy")
    with ExitStack() as stack:
        both = Streams(stack, ON_GPU[0], name)
        aligned = both.align("pts")
        both.put(0, 1)
        with cupy.cuda.Stream(non_blocking=True):
            assert now(aligned) == []
        both.put(1, 1)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for slot in next(aligned):
                assert stream.ptr in slot._streams
            aligned.close()


# ---- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("partial", [False, True])
def test_no_more_than_depth_frames_wait(streams, partial):
    """And the producer of the stream that goes on is never held up."""
    both = streams()
    aligned = both.align("pts", depth=3, partial=partial)
    found = []
    for k in range(50):
        both.put(0, k)  # RingFull if the ring were jammed
        found += now(aligned)
        assert both.held()[0] < 3
    assert found == ([(k, None) for k in range(48)] if partial else [])
    assert aligned.unmatched == (0 if partial else 48, 0)
    both.put(1, 48)
    assert now(aligned) == [(48, 48)]


def test_who_comes_late_comes_alone(streams):
    both = streams()
    aligned = both.align("pts", partial=True, depth=2)
    both.put(0, 1, 2, 3)
    assert now(aligned) == [(1, None), (2, None)]
    both.put(1, 1, 2, 3)
    assert now(aligned) == [(None, 1), (None, 2), (3, 3)]


def test_a_frame_waits_so_many_seconds_and_no_longer(streams):
    both = streams()
    aligned = both.align("pts", partial=True, max_wait_s=0.05, timeout=20)
    both.put(0, 1)
    (slot, missing) = next(aligned)
    assert slot.age >= 0.05
    assert missing is None


def test_a_frame_waits_although_a_slow_loop_takes_longer(streams):
    """What is there is found before anybody is called late."""
    both = streams()
    aligned = both.align("pts", max_wait_s=0, timeout=20)
    both.put(0, 1, 2, 3, 4, 5, 6)
    both.put(1, 1, 2, 3, 4, 5, 6)
    both.end()
    assert now(aligned) == [*((k, k) for k in range(1, 7)), "end"]


def test_time_that_goes_back_is_told_once_and_matches_again(streams):
    both = streams(slots=16)
    aligned = both.align("pts")
    both.put(0, 100, 101, 0, 1, 0)
    both.put(1, 100, 101, 0, 1)
    with pytest.warns(RuntimeWarning, match=r"'pts' went back from 101\.0 to 0\.0") as told:
        assert now(aligned) == [(100, 100), (101, 101), (0, 0), (1, 1)]
    assert len(told) == 2, "once for each stream"


def test_one_stream_whose_time_goes_back_holds_up_nobody(streams):
    both = streams()
    aligned = both.align("pts", partial=True)
    both.put(0, 100)
    both.put(1, 100)
    assert now(aligned) == [(100, 100)]
    both.put(1, 0)
    with pytest.warns(RuntimeWarning, match="went back"):
        assert now(aligned) == [(None, 0)]
    for k in range(1, 30):
        both.put(0, 100 + k)
        both.put(1, k)
        assert (None, k) in now(aligned)


# ---- against a reference -------------------------------------------------------------------------


def reference(streams: list[list[int]], within: int, partial: bool) -> list[tuple]:
    """What comes of whole streams: the oldest frame of all, with those heads of the others that are
    near enough."""
    queues, found = [deque(each) for each in streams], []
    while any(queues) if partial else all(queues):
        first = min(queue[0] for queue in queues if queue)
        near = [bool(queue) and queue[0] <= first + within for queue in queues]
        if partial or all(near):
            both = zip(queues, near, strict=True)
            found.append(tuple(queue.popleft() if fits else None for queue, fits in both))
        else:
            next(queue for queue in queues if queue[0] == first).popleft()
    return found


SLOTS = 32
RISING = st.lists(st.integers(0, 40), max_size=SLOTS // 2).map(sorted)


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(RISING, min_size=1, max_size=3),
    within=st.integers(0, 5),
    partial=st.booleans(),
    data=st.data(),
)
@pytest.mark.deadline(120)
def test_whatever_the_order_of_arrival_the_tuples_are_those_of_the_reference(
    values, within, partial, data
):
    """As long as everybody may wait for everybody."""
    with ExitStack() as stack:
        all_of = Streams(stack, HOST, f"test-align-{os.getpid()}", len(values), slots=SLOTS)
        aligned = all_of.align("pts", within, partial=partial, depth=SLOTS)
        left, found = [deque(each) for each in values], []
        while any(left):
            k = data.draw(st.sampled_from([k for k, each in enumerate(left) if each]))
            all_of.put(k, left[k].popleft())
            if not left[k]:
                all_of.end(k)
            if data.draw(st.booleans()) and "end" not in found:
                found += now(aligned)
        all_of.end()
        if "end" not in found:
            found += now(aligned)
        expected = reference(values, within, partial)
        assert found == [*expected, "end"]
        for k, each in enumerate(values):
            handed = sum(slots[k] is not None for slots in expected)
            assert handed + aligned.unmatched[k] <= len(each)
            assert not (partial and aligned.unmatched[k])


@settings(max_examples=150, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=60),
    within=st.integers(0, 3),
    depth=st.integers(2, 6),
    partial=st.booleans(),
)
@pytest.mark.deadline(120)
def test_with_bounds_the_books_balance(arrivals, within, depth, partial):
    """Each frame is handed out or counted, once, and nobody is ever held up."""
    with ExitStack() as stack:
        three = Streams(stack, HOST, f"test-align-{os.getpid()}", 3)
        aligned = three.align("pts", within, partial=partial, depth=depth)
        clock, put, found = [0] * 3, [[], [], []], []
        for k, step in arrivals:
            clock[k] += step
            three.put(k, clock[k])
            put[k].append(clock[k])
            found += now(aligned)
            assert max(three.held()) < depth
        still = three.held()
        for slots in found:
            values = [each for each in slots if each is not None]
            assert max(values) - min(values) <= within
            assert partial or None not in slots
        for k in range(3):
            got = [slots[k] for slots in found if slots[k] is not None]
            assert got == sorted(got)
            assert len(got) + aligned.unmatched[k] + still[k] == len(put[k])
            if partial:
                assert got == put[k][: len(got)]
                assert aligned.unmatched[k] == 0


# ---- the end -------------------------------------------------------------------------------------


def test_the_end_of_one_stream_is_the_end_of_whole_tuples(streams):
    both = streams()
    both.put(0, 1, 2, 3)
    both.put(1, 1, 2)
    both.end(1)
    aligned = both.align("pts")
    assert now(aligned) == [(1, 1), (2, 2), "end"]
    assert both.held() == [0, 0], "what was not handed out comes again"
    assert now(gpuring.align(both.consumers[:1], "pts", timeout=0)) == [(3,)]


def test_partial_tuples_go_on_to_the_end_of_every_stream(streams):
    both = streams()
    aligned = both.align("pts", partial=True)
    both.put(1, 1)
    both.end(1)
    assert now(aligned) == []
    both.put(0, 1, 2)
    assert now(aligned) == [(1, 1), (2, None)]
    both.end(0)
    assert now(aligned) == ["end"]


def test_a_stream_that_begins_again_takes_part_again(streams):
    both = streams()
    aligned = both.align("pts", partial=True)
    both.end(1)
    both.put(0, 1)
    assert now(aligned) == [(1, None)]
    both.end(0)
    assert now(aligned) == ["end"]
    both.producers = [ring.producer() for ring in both.rings]
    both.put(0, 2)
    both.put(1, 2)
    assert now(aligned) == [(2, 2)]


def test_a_consumer_that_is_closed_is_an_error(streams):
    both = streams()
    aligned = both.align("pts", timeout=20)
    both.put(0, 1)
    closer = threading.Timer(0, both.consumers[1].close)
    closer.start()
    with pytest.raises(gpuring.RingClosed):
        next(aligned)
    closer.join()
    aligned.close()


def test_a_loop_that_is_left_gives_back_what_it_has_not_handed_out(streams):
    both = streams()
    both.put(0, 1, 2, 3)
    both.put(1, 2, 3)
    for slots in both.align("pts", partial=True):
        assert pts(slots) == (1, None)
        break
    assert both.held() == [0, 0]
    aligned = both.align("pts")
    with aligned:
        assert pts(next(aligned)) == (2, 2)
    assert both.held() == [0, 0]
    assert now(aligned) == [(3, 3)]
    with pytest.raises(ZeroDivisionError):
        fail_at_the_first(both)
    assert both.held() == [0, 0]


def fail_at_the_first(both):
    both.put(0, 4)
    both.put(1, 4)
    for _ in both.align("pts"):
        raise ZeroDivisionError


def test_a_slot_that_the_user_has_released_is_released_once(streams):
    both = streams()
    both.put(0, 1, 2)
    both.put(1, 1, 2)
    for slots in both.align("pts"):
        slots[0].release()
        with slots[1]:
            pass
        if both.held() == [0, 0]:
            break
    assert both.held() == [0, 0]


def test_a_torn_frame_is_told(streams):
    both = streams()
    both.put(0, 1)
    both.put(1, 1)
    aligned = both.align("pts")
    left, _ = next(aligned)
    tear(both.rings[0], left.seq)
    both.put(0, 2)
    both.put(1, 2)
    with pytest.raises(gpuring.FrameTorn) as torn:
        next(aligned)
    assert torn.value.seqs == (8,)
    assert now(aligned) == [(2, 2)]


def test_a_timeout_says_who_is_missing(streams):
    both = streams()
    both.put(0, 1)
    with pytest.raises(gpuring.RingTimeout, match=rf"within 0\.01 s.*'{both.rings[1].name}'"):
        next(both.align("pts", timeout=0.01))


# ---- streams of other processes ------------------------------------------------------------------


def camera(pipe: Pipe, name: str, first: int = 0) -> None:
    """Publishes as many frames as it is told to, the last of all when it is told 0."""
    with gpuring.attach(name, timeout=20) as ring, ring.producer() as producer:
        pipe.send()
        while more := pipe.receive():
            for k in range(first, first + more):
                with producer.claim(20) as slot:
                    slot.meta["pts"] = k
            first += more
            pipe.send()


@pytest.fixture
def cameras(name, children):
    """Three rings, a process that publishes in each, and a consumer of each."""
    rings = [gpuring.create(f"{name}-{k}", **SPEC, device="host") for k in range(3)]
    crew = [children(camera, ring.name) for ring in rings]
    for each in crew:
        each.receive()
    yield crew, [ring.consumer() for ring in rings]
    for ring in rings:
        ring.close()


def all_publish(crew, frames=1):
    for each in crew:
        each.send(frames)
    for each in crew:
        each.receive()


@pytest.mark.deadline(90)
def test_a_stream_that_stands_still_holds_up_nobody(cameras):
    """SIGSTOP, and later SIGCONT: then its frames come alone, and later ones together again."""
    crew, consumers = cameras
    aligned = gpuring.align(consumers, "pts", partial=True, timeout=0)
    all_publish(crew, 3)
    assert now(aligned) == [(k, k, k) for k in range(3)]
    os.kill(crew[1].pid, signal.SIGSTOP)
    crew[1].send(40)  # it will do that when it goes on
    found = []
    for _ in range(40):
        all_publish([crew[0], crew[2]])  # a process whose ring is jammed does not answer
        found += now(aligned)
    assert found == [(k, None, k) for k in range(3, 43 - 3)], "four frames wait, and no more"
    os.kill(crew[1].pid, signal.SIGCONT)
    found = []
    while len(found) < 40:
        found += now(aligned)
    assert found == [(None, k, None) for k in range(3, 40)] + [(k, k, k) for k in range(40, 43)]
    crew[1].receive()
    all_publish(crew, 2)
    assert now(aligned) == [(k, k, k) for k in (43, 44)]
    assert aligned.unmatched == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.deadline(90)
@pytest.mark.parametrize("partial", [False, True])
def test_a_stream_that_dies(cameras, partial):
    """What it has published is handed out; the end of the whole says that it died."""
    crew, consumers = cameras
    aligned = gpuring.align(consumers, "pts", partial=partial, timeout=20)
    all_publish(crew)
    crew[1].kill()
    assert pts(next(aligned)) == (0, 0, 0)
    if partial:
        all_publish([crew[0], crew[2]])
        assert pts(next(aligned)) == (1, None, 1)
        for each in (crew[0], crew[2]):
            each.send(0)
            each.result()
    with pytest.raises(gpuring.PeerLost):
        next(aligned)


@pytest.mark.slow
@pytest.mark.deadline(90)
def test_a_late_stream_is_waited_for_and_then_takes_part(cameras):
    """Nobody writes into its ring at first."""
    crew, consumers = cameras
    aligned = gpuring.align(consumers, "pts", timeout=0)
    all_publish(crew[:2], 3)
    assert now(aligned) == []
    all_publish([crew[2]], 2)
    assert now(aligned) == [(0, 0, 0), (1, 1, 1)]
    all_publish([crew[2]], 3)
    all_publish(crew[:2], 1)
    assert now(aligned) == [(2, 2, 2), (3, 3, 3)]


@pytest.mark.slow
@pytest.mark.deadline(90)
@pytest.mark.parametrize("how", ["another producer", "another ring"])
@pytest.mark.parametrize("waits", ["sync", "async"])
def test_a_stream_that_is_reattached_is_missing_meanwhile(name, children, how, waits, stack):
    create, names = partial(gpuring.create, **SPEC, device="host"), [f"{name}-{k}" for k in (0, 1)]
    rings = [stack.enter_context(create(each)) for each in names]
    crew = [children(camera, ring.name) for ring in rings]
    for each in crew:
        each.receive()
    ours = stack.enter_context(gpuring.attach(names[1]))
    consumers = [rings[0].consumer(), ours.consumer("x", reattach=True)]
    aligned = gpuring.align(consumers, "pts", partial=True, depth=2, timeout=20)

    def step():
        if waits == "sync":
            return next(aligned)

        async def main():
            return await anext(aligned)

        return asyncio.run(main())

    all_publish(crew, 2)
    assert [pts(step()), pts(step())] == [(0, 0), (1, 1)]
    crew[1].kill()
    poll(lambda: rings[1].stats().reaps == 1)
    all_publish(crew[:1], 2)
    assert pts(step()) == (2, None)
    if how == "another ring":
        stack.enter_context(create(names[1], replace=True))
    crew[1] = children(camera, names[1], 3)
    crew[1].receive()
    all_publish(crew[1:])
    left, right = step()
    assert (pts((left, right)), right.restarted) == ((3, 3), True)
    all_publish(crew)
    assert pts(step()) == (4, 4)
    aligned.close()


# ---- asyncio, interrupts -------------------------------------------------------------------------


def test_asyncio(streams):
    """Other tasks run meanwhile; who is cancelled loses nothing and leaves nobody waiting."""
    both = streams()
    aligned = both.align("pts", timeout=None)

    async def main() -> list[tuple]:
        task = asyncio.ensure_future(anext(aligned))
        while any(waiters(ring) != 1 for ring in both.rings):
            await asyncio.sleep(0.001)
        both.put(0, 1)
        while both.held() != [1, 0] or waiters(both.rings[1]) != 1:
            await asyncio.sleep(0.001)
        with pytest.raises(RuntimeError, match="another task"):
            await both.consumers[0].acquire_async()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [waiters(ring) for ring in both.rings] == [0, 0]
        both.put(1, 1, 2)
        both.put(0, 2)
        both.end()
        return [pts(slots) async for slots in aligned]

    assert asyncio.run(main()) == [(1, 1), (2, 2)]


def test_asyncio_times_out_and_gives_way(streams):
    both = streams()

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticker = asyncio.ensure_future(tick())
        until, aligned = time.monotonic() + 0.1, both.align("pts", timeout=0.05)
        k = 0
        while time.monotonic() < until:
            both.put(0, k)
            both.put(1, k)
            assert pts(await anext(aligned)) == (k, k)
            k += 1
        assert ticks > 10
        with pytest.raises(gpuring.RingTimeout):
            await anext(aligned)
        ticker.cancel()

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("by", ["pts", None])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.filterwarnings("ignore:ring .* nobody has its slot:ResourceWarning")
@pytest.mark.deadline(120)
def test_ctrl_c_anywhere_loses_no_frame(streams, by, partial):
    both = streams()
    aligned = both.align(by, partial=partial, depth=2)
    now(aligned)
    k = 0
    for interrupt in interrupts(step=3):  # 1 takes half a minute, and was clean
        k += 2
        found, raised = [], True
        both.put(0, k, k + 1)
        both.put(1, k, k + 1)
        while raised:
            with interrupt:
                while True:
                    try:
                        slots = next(aligned)
                    except gpuring.RingTimeout:
                        break
                    found.append(pts(slots))
            raised, interrupt.raised = interrupt.raised, False
        if by:
            assert found == [(k, k), (k + 1, k + 1)], interrupt.where
        else:
            assert found[-1] == (k + 1, k + 1), interrupt.where
        assert both.held() == [0, 0], interrupt.where


@pytest.mark.filterwarnings("ignore:ring .* nobody has its slot:ResourceWarning")
def test_an_interrupted_close_can_be_repeated(streams):
    both = streams()
    for interrupt in interrupts():
        both.put(0, 1, 2, 3)
        both.put(1, 1)
        aligned = both.align("pts")
        next(aligned)
        with pytest.raises(gpuring.RingTimeout):
            next(aligned)
        with interrupt:
            aligned.close()
        aligned.close()
        assert both.held() == [0, 0], interrupt.where
        with both.consumers[0].acquire(0) as two, both.consumers[0].acquire(0) as three:
            assert pts((two, three)) == (2, 3), interrupt.where


def test_ctrl_c_ends_a_wait(streams):
    both = streams()
    aligned = both.align("pts", timeout=None)
    both.put(0, 1)

    def interrupt() -> None:
        poll(lambda: waiters(both.rings[1]) == 1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        next(aligned)
    thread.join()
    both.put(1, 1)
    assert pts(next(aligned)) == (1, 1)


def test_who_waits_sleeps(streams):
    both = streams()
    both.put(0, 1)
    wall, cpu = time.monotonic(), time.process_time()
    with pytest.raises(gpuring.RingTimeout):
        next(both.align("pts", timeout=0.5, max_wait_s=20))
    assert time.process_time() - cpu < (time.monotonic() - wall) / 5


# ---- arguments -----------------------------------------------------------------------------------


def test_wrong_arguments_are_refused(streams, name):
    both = streams()
    one, two = both.consumers
    with pytest.raises(TypeError, match=r"align\(\[left, right\]\)"):
        gpuring.align(one)
    with pytest.raises(ValueError, match="a consumer"):
        gpuring.align([])
    with pytest.raises(TypeError, match="not Ring"):
        gpuring.align(both.rings)
    with pytest.raises(ValueError, match="twice"):
        gpuring.align([one, one])
    with pytest.raises(ValueError, match=r"no metadata field 'stamp'; its fields: pts"):
        gpuring.align([one, two], "stamp")
    for wrong in (-1, math.nan):
        with pytest.raises(ValueError, match="within"):
            gpuring.align([one, two], "pts", wrong)
    with pytest.raises(ValueError, match="within"):
        gpuring.align([one, two], within=1)
    for depth in (1, 9):
        with pytest.raises(ValueError, match=r"depth must be 2 … 8"):
            gpuring.align([one, two], "pts", depth=depth)
    for option in ("timeout", "max_wait_s"):
        with pytest.raises(ValueError, match=option):
            gpuring.align([one, two], "pts", **{option: -1})
    with (
        gpuring.create(name, **SPEC | {"slots": 2, "meta": [("v", "f4", 3)]}, device="host") as odd,
        pytest.raises(TypeError, match="aligned by a number"),
    ):
        gpuring.align([odd.consumer()], "v")
