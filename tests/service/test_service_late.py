"""Calls whose time is up, and answers that come too late."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.service import services
from tests.service.services import (
    answer,
    ask_here,
    check,
    finish,
    holder,
    send,
    serve,
)


@promise(
    "services.md",
    "The error says which engine has the call, for how long, and whether it is stopped.",
)
def test_a_time_out_says_which_engine_has_the_call(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client:
        worker = up(children(holder, name, 2))
        first, second = send(client, 1), send(client, 2)
        worker.receive()  # it has both
        has = rf"given up\. Its engine \(.*pid {worker.pid}\) has had it for \d+\.\d+ s"
        with pytest.raises(gpuring.RingTimeout, match=f"no answer within 0 s; {has}$"):
            first.result(0)
        worker.stop()
        with pytest.raises(
            gpuring.RingTimeout, match=f"no part within 0 s; {has}, and is stopped$"
        ):
            next(iter(second.parts(0)))
        worker.kill()


@promise(
    "services.md",
    "**Time-outs.** `result(timeout)` raises `RingTimeout` and gives the call up. An answer that "
    "comes later is discarded. The call needs its room until then.",
)
def test_a_late_answer_is_discarded(name):
    with serve(name) as server, gpuring.connect(name, calls=2) as client:
        first = send(client, 0)
        with pytest.raises(gpuring.RingTimeout, match=r"call 1 .* no answer within 0 s"):
            first.result(0)
        assert repr(client) == f"<Client of '{name}': 1 of 2 calls in flight, 1 of them given up>"
        depths = set()
        for _ in range(3):
            with pytest.raises(gpuring.RingTimeout) as again:
                first.result(10)  # the call is over
            depths.add(len(again.traceback))
        assert len(depths) == 1  # the error does not keep the frames of those that had it before
        second = send(client, 1)
        with pytest.raises(gpuring.RingFull):  # the late answer needs its room
            send(client, 2, timeout=0.01)
        for taken in server.take(2, timeout=10):
            answer(taken)
        with second.result(10) as slot:
            check(client, 1, slot)
        assert (client.late, client.in_flight) == (1, 0)
        assert server.counts.undelivered == 0


def test_room_that_calls_that_were_given_up_need_is_told(name):
    with serve(name) as server, gpuring.connect(name, calls=2) as client:
        for k in range(2):
            with pytest.raises(gpuring.RingTimeout):
                send(client, k).result(0)
        told = r"2 of them were given up.* until an engine answers or drops it\. Wait for the eng"
        with pytest.raises(gpuring.RingFull, match=told):
            client.request(0)
        with pytest.raises(gpuring.RingTimeout):
            server.take(timeout=0)  # passes over them
        kept = send(client, 2)
        with pytest.raises(gpuring.RingTimeout):
            send(client, 3).result(0)
        told = r"1 of them was given up.*\. Take a result and release it first"
        with pytest.raises(gpuring.RingFull, match=told):
            client.request(0)
        kept.cancel()


def expires(client, k):
    send(client, k, expires_s=0)


def is_cancelled(client, k):
    send(client, k).cancel()


def is_of_one_who_left(client, k):
    with gpuring.connect(client.name) as another:
        send(another, k)


@pytest.mark.parametrize(
    ("left_out", "counted"),
    [(expires, "expired"), (is_cancelled, "cancelled"), (is_of_one_who_left, "dropped")],
)
def test_a_call_behind_those_that_are_left_out_is_there_at_once(name, left_out, counted):
    with serve(name) as server, gpuring.connect(name, calls=4) as client:
        for k in range(3):
            left_out(client, k)
        call = send(client, 7)
        with server.take(timeout=0) as (taken,):
            answer(taken)
        finish(client, 7, call)
        assert getattr(server.counts, counted) == 3
        with pytest.raises(gpuring.RingTimeout):
            server.take(timeout=0)


@promise(
    "services.md",
    "It leaves out calls that were given up, calls whose client is dead or has left, and calls "
    "that have expired.",
    "With `expires_s=` engines leave a call out when nobody waits for it any more.",
)
def test_calls_that_always_expire_do_not_prolong_a_take(name, monkeypatch):
    """For each one that is left out another one comes."""
    with serve(name) as server, gpuring.connect(name, calls=2) as client:
        came = []

        def another(_, left_out):
            if left_out and len(came) < 10 * server.ring.slots:
                came[-1].cancel()
                came.append(send(client, 0, expires_s=0))

        came.append(send(client, 0, expires_s=0))
        monkeypatch.setattr(type(server.counts), "expired", property(lambda _: 0, another))
        with pytest.raises(gpuring.RingTimeout, match="no call within"):
            server.take(timeout=0)
        assert len(came) < 3 * server.ring.slots


def test_an_expired_call_is_passed_over(name):
    with serve(name) as server, gpuring.connect(name) as client:
        stale = send(client, 0, expires_s=0)
        send(client, 1, expires_s=30)
        assert [int(call.meta["k"]) for call in server.take(2, timeout=10)] == [1]
        assert server.counts.expired == 1
        with pytest.raises(gpuring.RingTimeout, match="it has expired, and no answer came"):
            stale.result(10)


@promise("services.md", "`call.time_left` says how many seconds are left until the call expires.")
def test_an_engine_sees_how_much_time_a_call_has_left(name):
    with serve(name) as server, gpuring.connect(name) as client:

        def taken_in_time():
            pending.append(send(client, 2, expires_s=0.1))
            try:
                return server.take(timeout=0)[0]
            except gpuring.RingTimeout:  # it has expired just now
                pending.pop().cancel()

        pending = [send(client, 0, expires_s=3600), send(client, 1)]
        first, second = server.take(2, timeout=10)
        third = poll(taken_in_time)
        assert 3000 < first.time_left <= 3600
        assert second.time_left is None
        assert third.time_left <= 0.1
        poll(lambda: third.time_left == 0)  # it can be answered all the same
        for k, call in enumerate((first, second, third)):
            answer(call)
            check(client, k, pending[k].result(10))
            with pytest.raises(gpuring.RingError, match="was answered"):
                _ = call.time_left


@pytest.mark.parametrize("expires_s", [float("inf"), 1e300, 1e11, 0])
def test_a_call_may_expire_at_any_time(name, expires_s):
    """The time may also be one that the envelope cannot hold."""
    with serve(name) as server, gpuring.connect(name) as client:
        first, second = send(client, 0, expires_s=expires_s), send(client, 1)
        taken = server.take(2, timeout=10)
        assert [int(call.meta["k"]) for call in taken] == ([0, 1] if expires_s > 0 else [1])
        del first, second


@promise("services.md", "You may keep answers, and release them in any order.")
def test_old_answers_that_are_kept_cost_their_own_room_only(name):
    """Answers take the slots of a ring in turn, but pass over those that are held."""
    with serve(name) as server, gpuring.connect(name, calls=4) as client:
        kept = []
        for k in range(3):
            kept.append(send(client, k))
            answer(server.take(timeout=10)[0])
            kept[k].result(10)
        for k in range(3, 60):
            ask_here(server, client, k)
        for k, call in enumerate(kept):
            check(client, k, call.result())
            call.cancel()
        for k in range(60, 90, 3):  # the last request is answered first
            calls = [send(client, k + n) for n in range(3)]
            for taken in reversed(server.take(3, timeout=10)):
                answer(taken)
            services.finish(client, k, calls[0])
            calls.append(send(client, k))
            answer(server.take(timeout=10)[0])
            for n, call in ((0, calls[3]), (2, calls[2]), (1, calls[1])):
                services.finish(client, k + n, call)
        assert (client.in_flight, client.late, server.counts.undelivered) == (0, 0, 0)
