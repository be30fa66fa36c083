"""Request and response while everybody lives: calls, and engines that take several at once."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gpuring
from tests import ROOT
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.service import services
from tests.service.services import (
    answer,
    ask_here,
    check,
    engine,
    in_thread,
    send,
    serve,
)

# ---- calls --------------------------------------------------------------------------------------


@promise(
    "services.md",
    'The request of a call is `call.array`, or `call["field"]` if it has several fields. Its '
    "metadata is `call.meta`, and `call.client` says which client sent it.",
)
def test_a_call_is_answered(name, place):
    with serve(name, place) as server, gpuring.connect(name) as client:
        for k in range(70):  # more than the ring has slots
            call = send(client, k, place)
            (taken,) = server.take(timeout=10)
            assert (taken.client, taken.number, int(taken.meta["k"])) == (client.id, k + 1, k)
            assert (place.read(taken.slot) == services.content(client.id, k)).all()
            answer(taken)
            with call.result(10) as slot:
                check(client, k, slot, place)
        assert client.in_flight == 0
        assert server.counts.answered == 70


@promise("services.md", "Metadata that you do not set is zero, in a request, an answer and a part.")
def test_a_call_has_no_metadata_of_an_earlier_one(name):
    def use(slot):
        assert slot.meta.item() == (0, 0)
        slot.meta["k"] = slot.meta["client"] = 7

    with (
        serve(name, slots=1, request_meta=[("k", "i4"), ("client", "u8")]) as server,
        gpuring.connect(name, calls=1, parts=1) as client,
    ):
        for _ in range(8):  # more than there are slots
            with client.request(10) as slot:
                use(slot)
                call = slot.call
            (taken,) = server.take(timeout=10)
            with taken.part(timeout=10) as slot:
                use(slot)
            for part in call.parts(10):
                if not taken.answered:
                    part.release()
                    with taken.answer() as slot:
                        use(slot)


@promise(
    "services.md",
    'With `serve(…, answers="host")` answers are in host memory even if requests are on a GPU.',
)
def test_answers_may_live_on_the_host(name, place):
    with serve(name, place, answers="host") as server, gpuring.connect(name) as client:
        call = send(client, 1, place)
        (taken,) = server.take(timeout=10)
        with taken.answer() as slot:
            assert isinstance(slot.array, np.ndarray)
            slot.array[...] = services.answer_of(place.read(taken.slot))
            slot.meta["k"], slot.meta["client"] = 1, client.id
        with call.result(10) as slot:
            check(client, 1, slot)


@promise(
    "services.md",
    'The request of a call is `call.array`, or `call["field"]` if it has several fields.',
    'You answer by `with call.answer()`, `call.reply(value)` or `call.fail("why")`.',
)
def test_several_fields_and_no_metadata(name):
    fields = {"a": ((3,), "f4"), "b": ((2, 2), "u1")}
    with (
        gpuring.serve(name, request=fields, response=((2,), "f8"), device="host") as server,
        gpuring.connect(name) as client,
    ):
        with client.request() as slot:
            slot["a"][:], slot["b"][:] = 1.5, 7
            with pytest.raises(TypeError, match="request_meta= and response_meta="):
                _ = slot.meta
            call = slot.call
        (taken,) = server.take(timeout=10)
        assert (taken["a"].tolist(), taken["b"].tolist()) == ([1.5] * 3, [[7, 7], [7, 7]])
        with pytest.raises(TypeError, match="has no metadata"):
            _ = taken.meta
        taken.reply(np.full(2, taken["a"].sum()))
        with call.result(10) as slot:
            assert slot.array.tolist() == [4.5, 4.5]
            with pytest.raises(TypeError, match="has no metadata"):
                _ = slot.meta


def test_frames_may_be_smaller_than_their_slots(name):
    with serve(name) as server, gpuring.connect(name) as client:
        with client.request(shape=(5,)) as slot:
            slot.array[:] = 2
            call = slot.call
        (taken,) = server.take(timeout=10)
        assert taken.array.shape == (5,)
        with taken.answer(shape=(2, 2)) as slot:
            slot.array[:] = 3
        with call.result(10) as slot:
            assert slot.array.tolist() == [[3, 3], [3, 3]]


def test_one_line_calls(name, children):
    worker = up(children(engine, name))
    with gpuring.connect(name) as client:
        with client.call(services.whole(7), timeout=10) as slot:
            assert (slot.array == services.answer_of(7)).all()

        def fill(slot):
            slot.array[:], slot.meta["k"] = 8, 5

        with client.call(fill, timeout=10) as slot:
            assert (slot.array == services.answer_of(8)).all()
            assert slot.meta["k"] == 5
    worker.send()
    assert worker.result()["answered"] == 2


@promise(
    "services.md",
    "You may answer the calls in any order. You may also answer a later batch before an earlier "
    "one.",
)
def test_answers_come_in_any_order_and_are_matched(name, place):
    with serve(name, place) as server, gpuring.connect(name) as client:
        calls = [send(client, k, place) for k in range(8)]
        place.wait()  # with gate="host" they are there when the GPU has written them
        earlier, later = server.take(4, timeout=10), server.take(4, timeout=10)
        for taken in (*later, *reversed(earlier)):
            answer(taken)
        for k in (3, 0, 7, 1, 2, 6, 5, 4):
            with calls[k].result(10) as slot:
                check(client, k, slot, place)


def test_each_client_gets_its_own_answers_whoever_computes_them(name, place, children):
    with serve(name, place, engine=False, slots=8):
        engines = [children(engine, name, place) for _ in range(2)]
        assert [each.receive() for each in engines] == ["up", "up"]
        total = 60 if place.on_gpu else 200
        askers = [children(services.asker, name, place, total, depth) for depth in (1, 3, 6)]
        assert [each.receive() for each in askers] == ["up"] * 3
        assert len({each.result() for each in askers}) == 3
        for each in engines:
            each.send()
        counts = [each.result() for each in engines]
        assert sum(each["answered"] for each in counts) == 3 * total
        assert sum(each["undelivered"] + each["redelivered"] for each in counts) == 0


@promise(
    "services.md",
    "`call.wait(timeout)` and `call.done` look whether the answer has come, and do not give the "
    "call up.",
)
def test_wait_done_and_cancel(name):
    with serve(name) as server, gpuring.connect(name) as client:
        first, second, third = (send(client, k) for k in range(3))
        assert not first.done
        assert not first.wait(0.01)
        taken = server.take(3, timeout=10)
        answer(taken[0])
        assert first.done
        assert first.wait(0)
        slot = first.result()
        assert first.result(0) is slot
        first.cancel()  # its answer was received, and is released
        with pytest.raises(gpuring.RingError, match="was released"):
            first.result()
        second.cancel()
        with pytest.raises(gpuring.RingError, match="was cancelled"):
            second.result()
        assert client.in_flight == 2  # the answer to the second may come still
        answer(taken[1])
        with third:
            answer(taken[2])
            check(client, 2, third.result(10))
        assert (client.in_flight, client.late) == (0, 1)


# ---- batches ------------------------------------------------------------------------------------


def test_a_batch_takes_what_is_there(name):
    with serve(name) as server, gpuring.connect(name) as client:
        for k in range(5):
            send(client, k)
        first, rest = server.take(4, timeout=10), server.take(4, timeout=10)
        assert [int(call.meta["k"]) for call in first] == [0, 1, 2, 3]
        assert [int(call.meta["k"]) for call in rest] == [4]


@promise("services.md", "It waits up to `max_wait_s` more for the batch to fill.")
def test_a_batch_waits_to_be_filled_and_no_longer(name):
    with serve(name) as server, gpuring.connect(name) as client:
        send(client, 0)
        take = in_thread(server.take, 3, 1000.0, 10.0)
        poll(lambda: len(server._calls) == 1)
        send(client, 1)
        send(client, 2)
        assert len(take()) == 3

        send(client, 3)
        assert len(server.take(3, max_wait_s=0.01, timeout=10)) == 1


@promise(
    "services.md",
    "By default it learns from its last batches how long to wait.",
    "It also says how long batches have waited to fill, and how long one waits at most now.",
)
def test_a_batch_waits_for_the_calls_that_it_expects_and_for_no_others(name):
    with serve(name) as server, gpuring.connect(name) as client:
        patience, now = server._patience, 1
        for _ in range(200):  # three calls each time, for which it is worth to wait for 20 s
            patience.begin(now)
            patience.open(now, 8)
            patience.close(now, 3)
            now += 160 * 10**9
        patience.begin(now)
        send(client, 0)
        take = in_thread(server.take, 8)
        poll(lambda: len(server._calls) == 1)
        send(client, 1)
        send(client, 2)
        assert len(take()) == 3
        assert server.counts.max_wait_s == pytest.approx(20)
        assert 0 < server.counts.waited_s < 20


def test_where_calls_come_one_at_a_time_an_engine_waits_for_no_other(name):
    with serve(name) as server, gpuring.connect(name) as client:
        for k in range(100):
            call = send(client, k)
            (taken,) = server.take(8, timeout=10)
            answer(taken)
            with call.result(10) as answered:
                check(client, k, answered)
        assert (server.counts.waited_s, server.counts.max_wait_s) == (0, 0)


@promise("services.md", "`server.take(max_batch, max_wait_s, timeout)` returns at least one call.")
def test_take_waits_as_long_as_it_is_told(name):
    with serve(name) as server:
        with pytest.raises(gpuring.RingTimeout, match="no call within 0"):
            server.take(timeout=0)
        with pytest.raises(gpuring.RingTimeout, match=r"0\.01 s"):
            server.take(timeout=0.01)
        take = in_thread(server.take)
        with gpuring.connect(name) as client:
            send(client, 0)
            assert len(take()) == 1


def test_an_interrupted_take_has_taken_nothing(name, monkeypatch):
    with serve(name, slots=4) as server, gpuring.connect(name) as client:
        for k in range(4):  # each slot was some call's that is over
            ask_here(server, client, k)
        calls = [send(client, k) for k in range(2)]
        acquire, turns = server._requests.acquire_many, []

        def interrupted(*args, **options):
            turns.append(args)
            if len(turns) == 2:
                raise KeyboardInterrupt
            return acquire(*args, **options)

        monkeypatch.setattr(server._requests, "acquire_many", interrupted)
        monkeypatch.setattr(server._requests, "_replaced", True)
        with pytest.raises(KeyboardInterrupt):
            server.take(4, max_wait_s=5, timeout=10)
        monkeypatch.undo()
        assert server._requests._peer.holding() == []  # another engine could have them
        taken = server.take(4, timeout=10)
        assert [(int(call.meta["k"]), call.redelivered) for call in taken] == [
            (0, False), (1, False)
        ]  # fmt: skip
        for call in taken:
            answer(call)
        for k, call in enumerate(calls):
            check(client, k, call.result(10))


@promise(
    "services.md",
    "[`python examples/service.py`](../examples/service.py) does the same on the host, and kills "
    "one of its engines.",
)
@pytest.mark.slow
def test_the_example_runs():
    root = ROOT
    done = subprocess.run(
        [sys.executable, root / "examples" / "service.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert "6000 calls answered; engine" in done.stdout, done.stderr


def test_the_number_of_a_client_is_shown_in_one_form(name, monkeypatch):
    monkeypatch.setattr("secrets.randbits", lambda bits: 0xABC)
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(timeout=10)
        shown = "0000000000000abc"
        assert (str(client.id), repr(taken.client), f"{taken.client}") == (shown,) * 3
        assert taken.client == client.id == 0xABC
        assert f" {shown} " in repr(taken)
        assert any(f"{name}.{shown}" in each for each in segments_of(name))
        del call
