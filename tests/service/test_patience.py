"""What an engine learns of its batches.  The simulations use no clock, so they always do the
same."""

from __future__ import annotations

import pytest

from gpuring.service._patience import Patience
from tests.helpers.promise import promise

MS = 1_000_000


class Engine:
    """Takes batches of calls that are published at given times, and works on each for `fixed` ns
    and `each` ns a call.  A client publishes its next call `pause` ns after its answer."""

    def __init__(self, fixed, each, clients, pause, spread=0):
        self.fixed, self.each, self.pause, self.spread = fixed, each, pause, spread
        self.patience = Patience()
        self.now, self.waited, self.sizes = 1, 0, []
        self.coming = sorted(k * spread for k in range(clients))

    def come(self, until):
        there = [time for time in self.coming if time <= until]
        self.coming = self.coming[len(there) :]
        return there

    def batch(self, most=32):
        patience = self.patience
        patience.begin(self.now)
        self.now = max(self.now, self.coming[0])
        there = self.come(self.now)
        for published in there:
            patience.came(published)
        patience.open(self.now, most)
        begun = self.now
        while patience.expects(len(there)) and self.now < patience.until:
            self.now = min(patience.until, self.coming[0] if self.coming else patience.until)
            there += self.come(self.now)
        self.waited += self.now - begun
        patience.close(self.now, len(there))
        self.now += self.fixed + self.each * len(there)
        patience.answered(self.now)
        answers = [self.now + self.pause + k * self.spread for k in range(len(there))]
        self.coming = sorted(self.coming + answers)
        self.sizes.append(len(there))
        return len(there)

    def run(self, batches):
        for _ in range(batches):
            self.batch()
        return self.sizes[-batches:]


@promise("services.md", "Where calls come one at a time it does not wait.")
@pytest.mark.parametrize(("fixed", "each"), [(5 * MS, 0), (5 * MS, MS), (0, MS)])
def test_where_calls_come_one_at_a_time_nothing_is_waited_for(fixed, each):
    engine = Engine(fixed, each, clients=1, pause=1000)
    assert set(engine.run(500)) == {1}
    assert engine.waited == 0
    assert engine.patience.max_wait_s == 0


@promise(
    "services.md",
    "It waits only if it expects more calls, and for at most a quarter of the fixed cost of a "
    "batch, which is the time that a batch takes however few calls it has.",
)
def test_an_engine_does_not_begin_a_batch_of_one_while_seven_more_are_about_to_come():
    """There are eight clients.  Each asks again when it was answered, a little after the client
    before it."""
    engine = Engine(4 * MS, MS // 10, clients=8, pause=1000, spread=MS // 50)
    engine.run(60)
    assert engine.run(50) == [8] * 50
    assert 0 < engine.patience.max_wait_s <= 0.0013


@promise(
    "services.md",
    "It waits only if it expects more calls, and for at most a quarter of the fixed cost of a "
    "batch, which is the time that a batch takes however few calls it has.",
)
def test_a_batch_waits_for_a_quarter_of_what_it_costs_beside_its_calls_at_most():
    engine = Engine(4 * MS, MS, clients=8, pause=1000, spread=MS // 2)
    for _ in range(300):
        before = engine.waited
        engine.batch()
        assert engine.waited - before <= engine.patience.fixed_ns / 4
    assert engine.patience.fixed_ns == pytest.approx(4 * MS, rel=0.01)


def test_a_batch_that_saves_nothing_waits_for_nothing():
    """Such a batch takes as long as its calls take one by one."""
    engine = Engine(0, MS, clients=8, pause=1000, spread=MS // 50)
    engine.run(200)
    before = engine.waited
    engine.run(100)
    assert engine.waited - before <= 100 * MS / 100  # there are 100 batches of 1 ms or more


def test_when_the_others_leave_it_stops_to_wait_for_them():
    engine = Engine(4 * MS, 0, clients=8, pause=1000, spread=MS // 50)
    engine.run(100)
    del engine.coming[1:]
    engine.run(40)
    before = engine.waited
    assert set(engine.run(100)) == {1}
    assert engine.waited == before


def test_calls_that_come_for_an_answer_are_not_expected():
    """The engine goes on working after it has answered, and its client asks again meanwhile."""
    engine = Engine(0, 0, clients=1, pause=0)
    for _ in range(300):
        engine.batch()
        engine.now += 4 * MS
    assert engine.waited == 0


def test_one_batch_that_takes_long_does_not_make_the_others_wait():
    """The engine may have compiled something, for example."""
    engine = Engine(4 * MS, 0, clients=8, pause=1000, spread=MS // 50)
    engine.batch()
    engine.now += 10_000 * MS
    engine.run(50)
    engine.now += 10_000 * MS
    engine.batch()
    assert engine.patience.fixed_ns < 6 * MS
