"""What a client's threads and event loops may do with its turns and its books
(gpuring/service/_books.pyx).

`watching` replaces the turns, and sees in which order they are taken.  Tests with several threads
and loops, and the one that kills engines and clients, run under it.
"""

from __future__ import annotations

import asyncio
import functools
import sys

import pytest

import gpuring
from gpuring.service.pending import Answer, PendingCall
from tests.helpers.processes import poll
from tests.service.services import answer, finish, in_thread, receives, send, serve
from tests.service.watched_turns import watching


def test_the_watch_sees_who_sends_while_it_receives(name):
    with serve(name), watching() as watch, gpuring.connect(name) as client:
        client.request(10).abandon()
        assert watch.wrong == []
        with client._calls.turn, client._sending:
            pass
        assert watch.wrong == ["0 is taken, and [1] were"]


# ---- the books ----------------------------------------------------------------------------------


class Sleeper:
    """A sleeper that looks at the books when it is woken."""

    def __init__(self, books, call):
        self.books, self.call, self.saw = books, call, []

    def wake(self):
        live, room = self.call in self.books.all(), dict(self.books.for_room)
        self.saw.append((live, self.call._is_done(), self.books.writing, room))


@pytest.fixture
def sleeper(name):
    """The only one who sleeps until a call ends or there is room."""
    with serve(name), gpuring.connect(name, calls=1) as client:
        slot = client.request(10)
        sleeper = Sleeper(client._calls, slot.call)
        yield client, slot, sleeper


def python_in(verb):
    """The Python functions that `verb` calls."""
    called = []

    def profile(frame, event, _):
        if event == "call":
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        verb()
    finally:
        sys.setprofile(before)
    return called


def test_whoever_is_woken_finds_the_books_in_order(sleeper):
    client, slot, who = sleeper
    books, error = client._calls, gpuring.RingError("on purpose")
    assert books.enter(who, who.call._sleepers, who.call._is_done)
    assert books.enter(who, books.for_room, books.has_room)
    assert python_in(functools.partial(books.end, who.call, error)) == ["wake", "wake"]
    assert who.saw == [(False, True, 0, {}), (False, True, 0, {})]
    slot.abandon()


def test_no_step_of_the_books_runs_python_code(sleeper):
    client, slot, who = sleeper
    books = client._calls
    other = PendingCall(client._mailbox, 7, 7, None)
    steps = [
        books.all,
        books.has_room,
        functools.partial(books.enter, who, books.for_room, books.has_room),
        functools.partial(books.leave, who, books.for_room),
        functools.partial(books.end, other, gpuring.RingError("on purpose")),
        books.pass_turn,
    ]
    for step in steps:
        assert python_in(step) == []
    books.inherit(who)
    assert python_in(books.pass_turn) == ["wake"]
    slot.abandon()


# ---- what nothing else does under the watch ------------------------------------------------------


def test_what_ends_calls_while_others_wait_for_them(name, watched):
    """Calls end by a failure, a time-out, a cancellation, a second answer, and the client's
    close."""

    async def waits(call):
        with pytest.raises(gpuring.RingClosed):
            await call.result_async()

    def loop(call):
        asyncio.run(waits(call))

    with serve(name) as server:
        client = gpuring.connect(name)
        pending = [send(client, k) for k in range(6)]
        failing = in_thread(pending[0].result, 20)
        poll(lambda: receives(client))
        rest = [in_thread(loop, pending[n]) for n in (1, 2)]
        taken = server.take(6, timeout=10)
        taken[0].fail("why")
        with pytest.raises(gpuring.CallFailed):
            failing()
        with pytest.raises(gpuring.RingTimeout):
            pending[3].result(0)
        answer(taken[3])
        pending[4].cancel()
        answer(taken[4])
        answer(taken[5])
        finish(client, 5, pending[5])
        assert client.late == 2
        poll(lambda: pending[1]._sleepers and pending[2]._sleepers)
        client.close()
        for join in rest:
            join()


def test_several_threads_may_cancel_an_answered_call(name, watched, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        answer(server.take(timeout=10)[0])
        assert call.wait(10)
        release, released = Answer._done, []

        def slowly(slot, well):
            released.append(slot)
            in_thread(call.cancel)()  # another thread comes just now
            release(slot, well)

        monkeypatch.setattr(Answer, "_done", slowly)
        call.cancel()
        assert len(released) == 1
        assert client.in_flight == 0
