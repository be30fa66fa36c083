"""align: which frames come together, also against a reference; wrong arguments."""

from __future__ import annotations

import math
import os
from collections import deque
from contextlib import ExitStack
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuring
from tests.helpers.places import HOST, ON_GPU
from tests.ring.align import SPEC, Streams, now


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


@pytest.mark.parametrize(("others", "within"), [((math.nan, 1), 2), ((1,), 0)])
def test_a_value_that_is_no_number_fits_nobody(streams, others, within):
    both = streams()
    both.put(0, math.nan, 1)
    both.put(1, *others)
    aligned = both.align("pts", within)
    assert now(aligned) == [(1, 1)]
    assert aligned.unmatched == (1, len(others) - 1)


@pytest.mark.parametrize("meta", ["f8", "i8"])
@pytest.mark.parametrize("within", [10**400, Fraction(10**400), np.uint8(2)], ids=type)
def test_a_number_of_any_kind_is_added_to_values(streams, meta, within):
    both = streams(meta=[("pts", meta)])
    both.put(0, 1000)
    both.put(1, 1002)
    assert now(both.align("pts", within)) == [(1000, 1002)]


def test_integers_are_compared_exactly(streams):
    """A comparison of floats would take 2⁵³ + 1 for 2⁵³."""
    both = streams(meta=[("pts", "i8")])
    both.put(0, 1)
    both.put(1, 2**53 + 1)
    assert len(now(both.align("pts", 2**53))) == 1


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
                assert [int(place.read(slot)[0]) for slot in slots] == [k - 1] * 2


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


# ---- against a reference -------------------------------------------------------------------------


def reference(streams: list[list[int]], within: int, partial: bool) -> list[tuple]:
    """The tuples of whole streams.  Each has the oldest frame of all, and the first frames of the
    other streams that are near enough."""
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


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(RISING, min_size=1, max_size=3),
    within=st.integers(0, 5),
    partial=st.booleans(),
    data=st.data(),
)
def test_whatever_the_order_of_arrival_the_tuples_are_those_of_the_reference(
    values, within, partial, data
):
    """This holds as long as every stream may wait for every other one."""
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


@settings(max_examples=100, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=60),
    within=st.integers(0, 3),
    depth=st.integers(2, 6),
    partial=st.booleans(),
)
def test_with_bounds_the_books_balance(arrivals, within, depth, partial):
    """Each frame is either handed out or counted, exactly once.  Nobody is ever held up."""
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
    with pytest.raises(ValueError, match="max_wait_s"):
        gpuring.align([one, two], "pts", max_wait_s=-1)
    with (
        gpuring.create(name, **SPEC | {"slots": 2, "meta": [("v", "f4", 3)]}, device="host") as odd,
        pytest.raises(TypeError, match='aligned by a number, such as an "i8" of nanoseconds'),
    ):
        gpuring.align([odd.consumer()], "v")
