"""The errors of a service's verbs about arguments that they do not take."""

from __future__ import annotations

import asyncio
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpuring
from gpuring.registry import diagnosis
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.service.services import (
    answer,
    ask_here,
    check,
    content,
    receives,
    send,
    serve,
    whole,
)

TIMES = {
    "request": lambda client, server, call, time: client.request(time),
    "expires_s": lambda client, server, call, time: client.request(10, expires_s=time),
    "request_async": lambda client, server, call, time: asyncio.run(client.request_async(time)),
    "expires_s async": lambda client, server, call, time: asyncio.run(
        client.request_async(10, expires_s=time)
    ),
    "call": lambda client, server, call, time: client.call(whole(0), time),
    "call_async": lambda client, server, call, time: asyncio.run(client.call_async(whole(0), time)),
    "result": lambda client, server, call, time: call.result(time),
    "result_async": lambda client, server, call, time: asyncio.run(call.result_async(time)),
    "wait": lambda client, server, call, time: call.wait(time),
    "take": lambda client, server, call, time: server.take(timeout=time),
    "max_wait_s": lambda client, server, call, time: server.take(2, time, 10),
}


@pytest.mark.parametrize("of", TIMES)
@pytest.mark.parametrize(
    ("time", "error"),
    [(float("nan"), ValueError), (-1, ValueError), ("1", TypeError), (True, TypeError)],
)
def test_a_time_is_a_number_of_seconds_or_none(name, of, time, error):
    named = of.split()[0] if of.split()[0] in ("expires_s", "max_wait_s") else "timeout"
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        with pytest.raises(
            error, match=f"^{named} must be a number of seconds.* {re.escape(repr(time))}"
        ):
            TIMES[of](client, server, call, time)
        answer(server.take(timeout=10)[0])  # nothing was taken, sent or given up
        with call.result(10) as slot:
            check(client, 0, slot)
        assert client.in_flight == 0


@pytest.mark.parametrize(
    "time", [10, 10.0, np.float32(10), np.int64(10), pytest.param(10**400, id="10**400"), None]
)
def test_a_time_may_be_of_any_type_of_number(name, time):
    with serve(name) as server, gpuring.connect(name) as client:
        for k in range(2):
            call = send(client, k, timeout=time, expires_s=time)
            answer(server.take(1, time, time)[0])
            with call.result(time) if k else asyncio.run(call.result_async(time)) as slot:
                check(client, k, slot)


def test_a_batch_without_a_time_waits_until_it_is_full(name):
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(2)]
        assert len(server.take(2, None, timeout=10)) == 2
        del calls


def test_a_call_says_the_time_out_that_it_was_given(name):
    with serve(name), gpuring.connect(name) as client:
        with pytest.raises(gpuring.RingTimeout, match=r"no answer within 0\.01 s"):
            client.call(whole(0), timeout=0.01)
        with pytest.raises(gpuring.RingTimeout, match=r"no answer within 0\.01 s"):
            asyncio.run(client.call_async(whole(0), timeout=0.01))


TAKES = {
    "result": lambda call: call.result(0),
    "wait": lambda call: call.wait(0),
}


def test_a_call_that_is_cancelled_before_its_request_is_sent_never_comes(name):
    with serve(name) as server, gpuring.connect(name) as client:
        with client.request(10) as slot:
            call = slot.call
            call.cancel()
        with pytest.raises(gpuring.RingError, match="was cancelled"):
            call.result()
        assert client.in_flight == 0
        with pytest.raises(gpuring.RingTimeout):
            server.take(timeout=0)
        ask_here(server, client, 2)


@pytest.mark.parametrize("take", TAKES)
def test_nothing_answers_a_request_that_was_not_sent(name, take):
    with serve(name) as server, gpuring.connect(name, parts=1) as client:
        with client.request(10) as slot:
            call = slot.call
            with pytest.raises(gpuring.RingError, match=r"call 1 .* has not been sent .*block"):
                TAKES[take](call)
            assert not call.done
        with server.take(timeout=10) as (taken,):
            answer(taken)
        call.result(10).release()


def test_a_request_that_nobody_sends_holds_nobody_up(name):
    def forgets():
        slot = client.request(10)
        return slot.call.result(0.01)

    with serve(name) as server, gpuring.connect(name) as client:
        with pytest.raises(gpuring.RingTimeout, match=r"its request was not sent within 0\.01 s"):
            forgets()
        ask_here(server, client, 1)


@pytest.mark.parametrize("take", ["result", "wait", "parts"])
def test_who_has_handed_the_slot_to_another_thread_waits_until_that_has_sent_it(name, take):
    with serve(name) as server, gpuring.connect(name, parts=1) as client:
        slot = client.request(10)
        call = slot.call

        def send_and_answer():
            slot.array[...] = content(client.id, 0)
            poll(lambda: receives(client))  # it waits
            slot.publish()
            answer(server.take(timeout=10)[0])

        with ThreadPoolExecutor() as pool:
            sent = pool.submit(send_and_answer)
            if take == "wait":
                assert call.wait(10)
            parts = call.parts(10) if take == "parts" else None
            with call.result(10) if parts is None else next(parts) as got:
                check(client, 0, got)
            sent.result()


@pytest.mark.parametrize("take", ["result", "wait", "parts"])
def test_who_alone_could_send_the_request_is_warned(name, take, monkeypatch):
    """The warning is an error here, or the wait would not end."""
    takes = {
        "result": lambda call: call.result(),
        "wait": lambda call: call.wait(),
        "parts": lambda call: next(call.parts()),
    }
    monkeypatch.setattr(diagnosis, "is_alone", lambda: True)
    with serve(name) as server, gpuring.connect(name, parts=1) as client:
        slot = client.request(10)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match=r"may never end: its request .* publish\(\)"):
                takes[take](slot.call)
            assert take == "parts" or not slot.call.wait(0.01)  # nothing is said with a time-out
        slot.abandon()
        ask_here(server, client, 1)


def test_no_part_comes_of_a_request_that_was_not_sent(name):
    with serve(name) as server, gpuring.connect(name, parts=1) as client:
        with (
            pytest.raises(gpuring.RingError, match="has not been sent"),
            client.request(10) as slot,
        ):
            next(slot.call.parts(10))
        ask_here(server, client, 1)


@promise(
    "services.md",
    "If there are several fields, `client.call` takes a function in place of a value. The function "
    "gets the slot and writes the fields. It may write metadata, too.",
    "An engine writes them in the block of `call.answer()`.",
)
def test_several_fields_are_written_and_no_value(name):
    fields = {"image": ((4,), "u1"), "box": ((2,), "f4")}
    values = {"image": [1] * 4, "box": [2] * 2}

    def fill(slot):
        for field, value in values.items():
            slot[field][:] = value

    def fill_with_metadata(slot):
        fill(slot)
        slot.meta["k"] = 7

    meta = [("k", "i4")]
    with (
        gpuring.serve(
            name, request=fields, response=fields, request_meta=meta, device="host"
        ) as server,
        gpuring.connect(name) as client,
        ThreadPoolExecutor() as pool,
    ):
        with pytest.raises(TypeError, match=r"For the request give call\(\) a function"):
            client.call(values, timeout=10)
        called = pool.submit(client.call, fill_with_metadata, timeout=10)
        with server.take(timeout=10) as (taken,):
            assert taken["box"].tolist() == values["box"]
            assert taken.meta["k"] == 7
            with pytest.raises(TypeError, match=r"For the answer write them in .* call\.answer"):
                taken.reply(values)
            with taken.answer() as slot:
                fill(slot)
        with called.result(10) as slot:
            assert slot["image"].tolist() == values["image"]


def test_none_is_neither_a_request_nor_an_answer(name):
    """NumPy assigns it as NaN."""
    floats = {"request": ((2,), "f4"), "response": ((2,), "f4")}
    with serve(name, **floats) as server, gpuring.connect(name) as client:
        with pytest.raises(TypeError, match=r"call\(\) takes a function .* not None"):
            client.call(None, timeout=10)
        with pytest.raises(TypeError, match=r"call\(\) takes a function .* not None"):
            asyncio.run(client.call_async(None, timeout=10))
        assert client.in_flight == 0
        with client.request(10) as slot:
            call = slot.call
        [taken] = server.take(timeout=10)
        with pytest.raises(TypeError, match=r"reply\(\) takes what is assigned .* not None"):
            taken.reply(None)
        assert not taken.answered
        taken.reply(np.full(2, 7))
        with call.result(10) as slot:
            assert slot.array.tolist() == [7, 7]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"request": (3, 4)}, "request: dtype: NumPy makes no dtype of 4"),
        ({"response": (3, 4)}, "response: dtype: NumPy makes no dtype of 4"),
        ({"response": 3}, "response: a field is described by (shape, dtype)"),
        ({"request": ((-3,), "f4")}, "request: a shape must be a positive integer"),
        ({"request_meta": "user"}, "request: meta: NumPy makes no dtype of 'user'"),
        ({"response_meta": "user"}, "response: meta: NumPy makes no dtype of 'user'"),
    ],
)
def test_what_describes_a_service_wrongly_is_named(name, wrong, told):
    terms = {"request": ((3,), "f4"), "response": ((3,), "f4")} | wrong
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(told)}"):
        gpuring.serve(name, **terms, device="host")


def test_an_engine_that_runs_does_not_wait_for_ever_for_a_full_batch(name):
    with serve(name) as server:
        told = '^max_wait_s must be a number of seconds or "learn" here, not None: '
        with pytest.raises(ValueError, match=told):
            server.batch(2, None)


def test_how_long_a_batch_waits_is_a_time_or_learned(name):
    """The message names both."""
    with serve(name) as server:
        for wrong, kind in (("lern", TypeError), (-1, ValueError), (b"learn", TypeError)):
            told = f'^max_wait_s must be a number of seconds >= 0, None or "learn", not {wrong!r}$'
            for take in (server.take, server.batch):
                with pytest.raises(kind, match=told):
                    take(2, wrong)


@pytest.mark.parametrize("text", [5, b"no", None, (), ValueError("no")])
def test_why_a_call_fails_is_a_text(name, text):
    told = f"^fail.. takes the text that the client gets, not {re.escape(repr(text))}"
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        calls = server.take(timeout=10)
        for fail in (calls.fail, calls[0].fail):
            with pytest.raises(TypeError, match=told):
                fail(text)
        answer(calls[0])
        with pytest.raises(TypeError, match=told):
            calls.fail(text)  # refused also if there is no call to fail
        with call.result(10) as slot:
            check(client, 0, slot)


def test_a_batch_may_be_larger_than_any_can_be(name):
    with serve(name, slots=2) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(2**70, 0, 10)
        answer(taken)
        with call.result(10) as slot:
            check(client, 0, slot)
        server.batch(2**70)(lambda requests: requests)
        assert server._work.max_batch == 2


@pytest.mark.parametrize("server", [5, None, "classify"])
def test_figures_are_those_of_servers(server):
    prometheus = pytest.importorskip("gpuring.service.prometheus")
    with pytest.raises(
        TypeError, match=f"^figures are those of what serve.. returned, not {server!r}"
    ):
        prometheus.EngineCollector(server)


WHOLE = ((2, 3), "i4")


@promise(
    "services.md",
    "A value for `call.reply` or `client.call` must have the shape of the array, and a dtype that "
    'NumPy casts to that of the array as "same_kind".',
)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (7, ValueError),
        ([1, 2, 3], ValueError),
        (np.zeros((1, 3), "i4"), ValueError),
        (np.zeros((2, 3, 1), "i4"), ValueError),
        (np.zeros((2, 3), "f4"), TypeError),
        ([[1.5] * 3] * 2, TypeError),
        (np.zeros((2, 3), "c8"), TypeError),
    ],
)
def test_a_value_that_would_be_broadcast_or_lose_something_is_refused(name, value, error):
    with (
        serve(name, request=WHOLE, response=WHOLE) as server,
        gpuring.connect(name) as client,
    ):
        for ask in (client.call, lambda *of: asyncio.run(client.call_async(*of))):
            with pytest.raises(error, match="the request "):
                ask(value, 10)
        assert client.in_flight == 0
        with client.request(10) as slot:
            call = slot.call
        (taken,) = server.take(timeout=10)
        with pytest.raises(error, match="the answer "):
            taken.reply(value)
        taken.reply([[1, 2, 3], [4, 5, 6]])  # nothing was answered before
        with call.result(10) as answered:
            assert answered.array.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f4", np.arange(3)),
        ("f4", np.arange(3.0)),
        ("u1", [1, 2, 3]),
        ("i8", np.arange(3, dtype="u1")),
        ("i2", np.arange(3)),
        ("?", [True, False, True]),
        ("bfloat16", np.arange(3, dtype="u2")),
    ],
)
def test_a_value_of_the_same_kind_is_cast(name, dtype, value):
    what = ((3,), dtype)
    with serve(name, request=what, response=what) as server, gpuring.connect(name) as client:
        with client.request(10) as slot:
            call = slot.call
        (taken,) = server.take(timeout=10)
        taken.reply(value)
        with call.result(10) as answered:
            assert answered.array.tolist() == np.asarray(value).tolist()


def test_a_number_is_a_value_where_the_array_has_no_shape(name):
    what = ((), "u1")
    with serve(name, request=what, response=what) as server, gpuring.connect(name) as client:
        with client.request(10) as slot:
            call = slot.call
        (taken,) = server.take(timeout=10)
        with pytest.raises(TypeError):
            taken.reply(1.5)
        taken.reply(7)
        with call.result(10) as answered:
            assert int(answered.array) == 7
