"""How the far side of a bridge measures the near host's clock.  The test makes up the times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuring.bridge.importer.near_clock import ASK_NS, NearClock
from gpuring.bridge.network import wire

BEGIN_NS = 10**12
DELAYS = st.tuples(st.integers(0, 10**9), st.integers(0, 10**9))


def measured(clock, asks_ns, ahead_ns, there_ns, back_ns):
    """The clock after one question and its answer, which take these times on their ways."""
    question = clock.ask(asks_ns)
    answer = wire.Time(question.asked_ns, asks_ns + there_ns + ahead_ns)
    return clock.heard(answer, asks_ns + there_ns + back_ns)


@given(st.integers(-(10**11), 10**15), st.lists(DELAYS, min_size=1, max_size=40))
def test_the_true_difference_is_within_the_error_whatever_the_two_ways_take(ahead_ns, delays):
    clock = NearClock()
    for k, (there_ns, back_ns) in enumerate(delays):
        now = BEGIN_NS + 2 * k * ASK_NS
        best = measured(clock, now, ahead_ns, there_ns, back_ns)
        assert abs(best.ahead_ns - ahead_ns) <= best.error_ns
        assert 2 * best.error_ns <= sum(delays[0]) + 1 or k


def test_the_shortest_round_trip_counts_until_it_is_old():
    clock = NearClock()
    short = measured(clock, BEGIN_NS, 5, 100_000, 100_000)
    assert (short.ahead_ns, short.error_ns) == (5, 100_000)
    assert measured(clock, BEGIN_NS + ASK_NS, 5, 3_000_000, 0) == short  # waited behind a frame
    # A round trip that adds 0.1 ms is better than a drift of 1.5 s.
    late = measured(clock, BEGIN_NS + 3 * ASK_NS, 5, 200_000, 200_000)
    assert late.error_ns == 200_000


def test_it_asks_now_and_then():
    clock = NearClock()
    assert clock.ask(BEGIN_NS) == wire.AskTime(BEGIN_NS)
    assert clock.ask(BEGIN_NS + ASK_NS - 1) is None
    assert clock.ask(BEGIN_NS + ASK_NS) == wire.AskTime(BEGIN_NS + ASK_NS)


def test_what_answers_an_earlier_question_or_none_is_not_heard():
    clock = NearClock()
    clock.ask(BEGIN_NS)
    clock.ask(BEGIN_NS + ASK_NS)
    assert clock.heard(wire.Time(BEGIN_NS, 1), BEGIN_NS + ASK_NS + 1) is None
    answer = wire.Time(BEGIN_NS + ASK_NS, 1)
    assert clock.heard(answer, BEGIN_NS + ASK_NS + 1) is not None
    assert clock.heard(answer, BEGIN_NS + ASK_NS + 2) is None
