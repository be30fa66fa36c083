"""align: how long a frame waits for others, and times that go back."""

from __future__ import annotations

import pytest

from align import now


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
