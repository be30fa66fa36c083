"""align: how long a frame waits for others, and times that go back."""

from __future__ import annotations

import re
import warnings

import pytest

import gpuring
from tests.ring.align import SPEC, now, pts


@pytest.mark.parametrize("partial", [False, True])
def test_no_more_than_depth_frames_wait(streams, partial):
    """The producer of the stream that goes on is never held up."""
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
    """Frames that are there are found before any stream is called late."""
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


def test_a_time_out_says_what_came_and_matched_no_others(streams):
    both = streams()
    aligned = both.align("pts")
    both.put(0, 100)
    both.put(1, 1, 2)
    with pytest.raises(gpuring.RingTimeout) as told:
        next(aligned)
    name = both.rings[1].name
    assert f"2 frames of ring {name!r} matched no others (the newest 'pts': 2.0)" in str(told.value)
    assert "none came" not in str(told.value)
    with pytest.raises(gpuring.RingTimeout, match=f"none came of ring {name!r}: ") as told:
        next(aligned)
    assert "matched no others" not in str(told.value), "that was the step before"


def test_a_time_out_says_why_nothing_came(streams):
    both = streams(reattach=True)
    aligned = both.align("pts")
    ring, name = both.rings[1], both.rings[1].name
    both.put(0, 100)
    with ring.consumer("slow"):
        both.put(1, *range(ring.slots))
        with pytest.raises(gpuring.RingTimeout):  # they match no others
            next(aligned)
        full = f"none came of ring {name!r}: .* is full: subscription 'slow' has not taken"
        with pytest.raises(gpuring.RingTimeout, match=full):
            next(aligned)
    both.producers[1].close()
    with pytest.raises(gpuring.RingTimeout, match=f"ring {name!r}: everything was read"):
        next(aligned)


def test_time_that_goes_back_in_a_ring_that_was_replaced_is_told(name, stack):
    """The times go back when a camera starts again."""

    def create(which, **options):
        return stack.enter_context(gpuring.create(which, **SPEC, device="host", **options))

    def put(producer, value):
        with producer.claim(0) as slot:
            slot.meta["pts"] = value

    left, right = create(f"{name}-0"), create(f"{name}-1")
    attached = stack.enter_context(gpuring.attach(f"{name}-1"))
    consumers = [left.consumer(), attached.consumer(reattach=True)]
    aligned = gpuring.align(consumers, "pts", partial=True, timeout=20)
    with left.producer() as lefts, right.producer() as rights:
        put(lefts, 100)
        put(rights, 100)
        assert pts(next(aligned)) == (100, 100)
    with create(f"{name}-1", replace=True).producer() as rights:
        put(rights, 0)
        with pytest.warns(RuntimeWarning, match=r"went back from 100\.0 to 0\.0"):
            assert pts(next(aligned)) == (None, 0)
        aligned.close()


def test_a_tolerance_that_matches_nothing_is_told_once(streams):
    both = streams()
    aligned = both.align("pts", within=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(0, 200, 2):
            both.put(0, 1000 * k)
            both.put(1, 1000 * k + 500)
            assert now(aligned) == []
            assert len(caught) == (sum(aligned.unmatched) >= 100)
    (told,) = caught
    assert told.category is RuntimeWarning
    for ring in both.rings:
        words = rf"(49|50|51) frames of ring {ring.name!r} matched no others \(the newest 'pts': "
        assert re.search(words, str(told.message))


def test_frames_before_the_last_tuple_are_no_reason_for_a_warning(streams):
    both = streams()
    aligned = both.align("pts")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(0, 160, 2):
            both.put(0, k, k + 1)
            both.put(1, k + 1)
            assert now(aligned) == [(k + 1, k + 1)]
        assert aligned.unmatched == (80, 0)
        both.put(0, *range(200, 204))
        both.put(1, 203)
        assert now(aligned) == [(203, 203)]
        for k in range(300, 399):
            both.put(0, k)
            now(aligned)
    both.put(0, *range(400, 404))
    with pytest.warns(RuntimeWarning, match=f"none came of ring {both.rings[1].name!r}"):
        now(aligned)
