"""An importer, while the test plays its exporter."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gpuring
from gpuring.errors import RingError
from gpuring.ring import inner
from tests.helpers.processes import Pipe, poll, up
from tests.helpers.rings import create_far

pytest.importorskip("zmq")

from gpuring import bridge, native
from gpuring.bridge.importer.ring_writer import RingWriter
from gpuring.bridge.importer.supervisor import Import
from gpuring.bridge.importer.worker import again_at
from gpuring.bridge.network import wire
from gpuring.registry import directory
from tests.bridge.bridge_sides import EPOCH, NBYTES, SPEC, WAIT_S, Near, exporter


@pytest.fixture
def near() -> Iterator[Near]:
    with exporter() as near:
        yield near


@contextlib.contextmanager
def importing(
    near: Near, name: str, stopped: tuple[wire.Message, ...] = ()
) -> Iterator[gpuring.Consumer]:
    """An importer that is connected, and a reader of its ring.  The importer is stopped while the
    messages `stopped` are sent, so it gets all of them at once."""
    with bridge.import_(f"{near.address}/x", name=name, device="host", timeout=WAIT_S) as into:
        near.welcome()
        if stopped:
            os.kill(into.pid, signal.SIGSTOP)
            near.say(*stopped)
            os.kill(into.pid, signal.SIGCONT)
        with gpuring.attach(name, timeout=WAIT_S) as ring, ring.consumer(start="oldest") as frames:
            yield frames


def word(frames: gpuring.Consumer) -> int:
    with frames.acquire(timeout=WAIT_S) as slot:
        assert (slot.array == slot.array[0]).all()
        return int(slot.array[0])


def test_an_end_and_a_new_beginning_that_come_together(near, name):
    """Earlier credits are void.  The far side says from where on they count again."""
    with importing(near, name) as frames:
        near.say(wire.Begin())
        credits = near.heard(wire.Flow).credits
        near.say(*near.frame(1, credits[0]), wire.End(died=False), wire.Begin())
        assert word(frames) == 1
        near.heard(wire.Begin)
        again = near.heard(wire.Flow).credits
        assert min(again) > max(credits)
        near.say(*near.frame(2, again[0]))
        assert word(frames) == 2


def test_a_beginning_before_the_first_end_is_not_answered(near, name):
    """A stream may end while the engine is being opened.  Then both come together, and only what
    follows the end is answered."""
    with importing(near, name, stopped=(wire.Begin(), wire.End(died=False))) as frames:
        poll(lambda: native.look(frames._peer)[0] == native.ENDED, WAIT_S)
        assert wire.Begin not in near.said_so_far()
        near.say(wire.Begin())
        near.heard(wire.Begin)
        near.say(*near.frame(1, near.heard(wire.Flow).credits[0]))
        assert word(frames) == 1


def test_what_belongs_to_another_session_is_not_heard(near, name):
    with importing(near, name) as frames:
        near.say(wire.Begin())
        credits = near.heard(wire.Flow).credits
        near.say(wire.Bye("of another session", True), another=True)
        near.say(*near.frame(1, credits[0]))
        assert word(frames) == 1
        flow = near.heard(wire.Flow)
        while flow.acked < 1:
            flow = near.heard(wire.Flow)


def test_what_was_published_is_acknowledged_though_there_is_no_new_credit(near, name):
    """The reader keeps all slots, so at last there is none to be claimed."""
    with importing(near, name):
        near.say(wire.Begin())
        flow, seq = near.heard(wire.Flow), 0
        credits = [*flow.credits]
        while credits:
            seq += 1
            near.say(*near.frame(seq, credits.pop(0)))
            while not credits and flow.acked < seq:
                flow = near.heard(wire.Flow)
                credits += flow.credits
        assert (flow.acked, flow.credits) == (seq, ())


def credits_of(said: list[wire.Message]) -> list[int]:
    return [each for flow in said if isinstance(flow, wire.Flow) for each in flow.credits]


def test_credits_are_within_the_window_that_engines_may_rely_on(name):
    """The other producer takes three sequences between those of the importer."""
    said: list[wire.Message] = []
    with (
        gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring,
        ring.producer() as other,
    ):
        inner.set_link(ring, b"e" * 16, 0, 0)
        writer = RingWriter(ring, 1 << 20, most=2)
        writer.join()
        writer.begin("zmq", {"zmq": {}}, said.append)
        writer.step()
        first = credits_of(said)[0]
        for _ in range(3):
            other.claim().publish()
        for seq, told in ((0, [0, 1]), (1, [0, 1]), (5, [0, 1, 5, 6]), (6, [0, 1, 5, 6, 7])):
            assert [each - first for each in credits_of(said)] == told
            writer.take(wire.Frame(seq + 1, first + seq, NBYTES, 1, 0, (), part=bytes(NBYTES)))
            writer.step()
        writer.close()


# ---- the ring that it fills ----------------------------------------------------------------------


def leave(pipe: Pipe, name: str, *seqs: int) -> None:
    """An importer's ring.  Each time that the test says so, it has come to the next sequence."""
    origin = {"host": "h", "ring": "x"}
    options = {"slots": 4, "shape": 4, "dtype": "i8", "device": "host"}
    with create_far(name, origin, **options) as ring:
        for seq in seqs:
            inner.set_link(ring, bytes.fromhex(EPOCH), seq, 2)
            pipe.ask(None)


def test_an_importer_that_makes_another_ring_counts_all_sequences_since_the_last_one(
    near, name, children
):
    """The session in which the ring is made ends before a frame has come.  What the exporter has
    given up by then counts with the first frame of the next session."""
    before = up(children(leave, name, 5))
    before.kill()
    with bridge.import_(f"{near.address}/x", name=name, device="host", timeout=WAIT_S):
        hello = near.heard(wire.Hello)
        assert (hello.epoch, hello.seq) == (EPOCH, 5)
        near.say(wire.Welcome("h", EPOCH, 9, SPEC, {"zmq": {}}))
        near.heard(wire.Open)
        near.say(wire.Bye("it was a test", True))
        near.heard(wire.Bye)
        again = near.heard(wire.Hello)
        assert (again.epoch, again.seq) == (EPOCH, 5)
        with gpuring.attach(name, timeout=WAIT_S) as ring:
            link = ring.stats().link
            assert (ring.slots, link.seq, link.lost) == (16, 5, 2)


def test_an_importer_asks_how_far_the_ring_had_come_when_nobody_fills_it_any_more(
    near, name, children, monkeypatch
):
    """The importer before goes on during the first look at the header, and is killed then."""
    before = up(children(leave, name, 5, 6))

    def look(ring: str) -> Any:
        monkeypatch.undo()
        header = directory.look(ring)
        before.ask(None)
        before.kill()
        return header

    monkeypatch.setattr(directory, "look", look)
    with bridge.import_(f"{near.address}/x", name=name, device="host", timeout=WAIT_S):
        assert near.welcome().seq == 6


# ---- when it connects again ----------------------------------------------------------------------


@pytest.mark.slow
def test_an_importer_rests_longer_and_longer_if_each_session_ends_at_once(near, name):
    """An exporter whose engine fails still answers."""
    with bridge.import_(f"{near.address}/x", name=name, device="host", timeout=WAIT_S):
        near.welcome()
        began_s, sessions = time.monotonic(), 0
        while time.monotonic() < began_s + 2:
            sessions += 1
            near.say(wire.Bye("the engine has failed", True))
            near.heard(wire.Bye)
            near.welcome()
    # Each rest is 3/16 of the time since the beginning at least, and not shorter than 37 ms.
    assert sessions < 25


@pytest.mark.slow
def test_an_importer_gives_up_though_it_is_welcomed_if_each_session_ends_at_once(near, name):
    where = f"{near.address}/x"
    with bridge.import_(where, name=name, device="host", timeout=WAIT_S, give_up=3) as into:

        def go_on() -> None:
            into.wait(0)
            said = near.next(0.05)
            if isinstance(said, wire.Hello):
                near.say(wire.Welcome("h", EPOCH, 0, SPEC, {"zmq": {}}))
            elif isinstance(said, wire.Open):
                near.say(wire.Bye("the engine has failed", True))

        with pytest.raises(RingError, match="no session for 3 s: the engine has failed"):
            poll(go_on, WAIT_S)


def attempts(answered_s: float, until_s: float) -> list[float]:
    """The times at which an importer connects after its session ended at 0, if each attempt fails
    after `answered_s`."""
    times, now = [], again_at(0.0, -1000.0, 0.0)
    while now < until_s:
        times.append(now)
        now = again_at(now + answered_s, now, 0.0)
    return times


def test_an_importer_connects_soon_after_the_exporter_is_back():
    """The rests grow with the time that the exporter has been gone, because it is seldom gone for
    long."""
    times = attempts(0.0, 60.0)
    assert times[0] < 0.07
    for before, after in itertools.pairwise(times):
        assert after - before <= max(0.07, min(0.32 * before, 2.5))
    assert len(times) < 70
    for before, after in itertools.pairwise(attempts(3.0, 60.0)):
        assert after - before - 3.0 < 0.07


# ---- what an exporter may not say ----------------------------------------------------------------

FRAME = (NBYTES, 1, 0, ())
"""What follows the two sequences of a Frame."""
Said = Callable[[Near, tuple[int, ...]], list[wire.Message]]
WRONG: list[tuple[str, Said]] = [
    ("data behind the end", lambda near, c: [wire.Data(c[0], NBYTES - 8, bytes(16))]),
    ("data for slot", lambda near, c: [wire.Data(c[-1] + 1, 0, b"x")]),
    ("for slot sequence", lambda near, c: [wire.Frame(1, c[-1] + 1, *FRAME)]),
    ("for slot sequence", lambda near, c: list(near.frame(1, c[1]))),
    ("frame 2 out of turn", lambda near, c: [*near.frame(2, c[0]), *near.frame(2, c[1])]),
    ("not like the slots", lambda near, c: [wire.Frame(9, c[0], NBYTES - 8, *FRAME[1:])]),
]


@pytest.mark.slow
def test_an_exporter_that_breaks_a_rule_is_hung_up_on(near, name):
    """Frames that were right may be published, and the next session goes on behind them."""
    with importing(near, name) as frames:
        for why, wrong in WRONG:
            near.say(wire.Begin())
            credits = near.heard(wire.Flow).credits
            near.say(*wrong(near, credits))
            assert why in near.heard(wire.Bye).reason
            there = near.welcome().seq
        near.say(wire.Begin())
        near.say(*near.frame(3, near.heard(wire.Flow).credits[0]))
        assert [word(frames) for _ in range(2 if there else 1)] == ([2, 3] if there else [3])


def test_a_ring_that_was_asked_for_twice_is_joined_once(near, name, monkeypatch):
    """As if the first session was lost while the supervisor made the ring."""
    asked_for, asked = Import._asked_for, list[dict[str, Any]]()

    def answers_both_at_once(self: Import, message: dict[str, Any]) -> None:
        asked.append(message)
        if len(asked) == 2:
            for each in asked:
                asked_for(self, each)

    monkeypatch.setattr(Import, "_asked_for", answers_both_at_once)
    with bridge.import_(f"{near.address}/x", name=name, device="host", timeout=WAIT_S):
        for then in [wire.Bye("once more", True)], []:
            while not isinstance(near.next(WAIT_S), wire.Hello):
                pass
            near.say(wire.Welcome("h", EPOCH, 0, SPEC, {"zmq": {}}), *then)
        near.heard(wire.Open)
        credits = near.heard(wire.Flow).credits
        near.say(*near.frame(1, credits[0]))
        with gpuring.attach(name) as ring, ring.consumer(start="oldest") as frames:
            assert word(frames) == 1
        assert near.heard(wire.Flow).credits[0] == credits[-1] + 1
