"""align: the end of streams and of loops, and what is given back."""

from __future__ import annotations

import threading

import pytest

import gpuring
from tests.helpers.words import tear
from tests.ring.align import now, pts


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
    tear(both.rings[0], left.seq, left)
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
