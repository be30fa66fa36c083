"""Request and response while everybody lives.  Deaths: test_service_death.py."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import services
from services import answer, ask, check, engine, send, serve
from support import poll

import gpuring
from gpuring.service.server import Server


def in_thread(function, *args):
    """Runs it in a thread; join() gives its result or raises what it raised."""
    outcome = []

    def run():
        try:
            outcome.append((function(*args), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join():
        thread.join(20)
        assert not thread.is_alive()
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    return join


def rings(name):
    return sorted(p.name for p in Path("/dev/shm").glob(f"gpuring.{name}*"))


# ---- calls -------------------------------------------------------------------------------------


def test_a_call_is_answered(name, place):
    with serve(name, place) as server, gpuring.connect(name) as client:
        for k in range(70):  # more than the ring has slots
            call = send(client, k, place)
            (taken,) = server.take(timeout=10)
            assert (taken.client, taken.number, int(taken.meta["k"])) == (client.id, k + 1, k)
            assert (place.read(taken.array) == services.content(client.id, k)).all()
            answer(taken)
            with call.result(10) as slot:
                check(client, k, slot, place)
        assert client.in_flight == 0
        assert server.counts.answered == 70


def test_answers_may_live_on_the_host(name, place):
    with serve(name, place, answers="host") as server, gpuring.connect(name) as client:
        call = send(client, 1, place)
        (taken,) = server.take(timeout=10)
        with taken.answer() as slot:
            assert isinstance(slot.array, np.ndarray)
            slot.array[...] = services.answer_of(place.read(taken.array))
            slot.meta["k"], slot.meta["client"] = 1, client.id
        with call.result(10) as slot:
            check(client, 1, slot)


def test_several_fields_and_no_metadata(name):
    fields = {"a": ((3,), "f4"), "b": ((2, 2), "u1")}
    with (
        gpuring.serve(name, request=fields, response=((2,), "f8"), device="host") as server,
        gpuring.connect(name) as client,
    ):
        with client.request() as slot:
            slot["a"][:], slot["b"][:] = 1.5, 7
            assert slot.meta is None
            call = slot.call
        (taken,) = server.take(timeout=10)
        assert (taken["a"].tolist(), taken["b"].tolist()) == ([1.5] * 3, [[7, 7], [7, 7]])
        assert taken.meta is None
        taken.reply(taken["a"].sum())
        with call.result(10) as slot:
            assert slot.array.tolist() == [4.5, 4.5]
            assert slot.meta is None


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
    worker = children(engine, name)
    assert worker.receive() == "up"
    with gpuring.connect(name) as client:
        with client.call(7, timeout=10) as slot:
            assert (slot.array == services.answer_of(7)).all()

        def fill(slot):
            slot.array[:], slot.meta["k"] = 8, 5

        with client.call(fill, timeout=10) as slot:
            assert (slot.array == services.answer_of(8)).all()
            assert slot.meta["k"] == 5
    worker.send()
    assert worker.result()["answered"] == 2


def test_answers_come_in_any_order_and_are_matched(name, place):
    with serve(name, place) as server, gpuring.connect(name) as client:
        calls = [send(client, k, place) for k in range(8)]
        for taken in reversed(server.take(8, timeout=10)):
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
        first.cancel()  # has its answer: it is released
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


# ---- batches -----------------------------------------------------------------------------------


def test_a_batch_takes_what_is_there(name):
    with serve(name) as server, gpuring.connect(name) as client:
        for k in range(5):
            send(client, k)
        assert [int(call.meta["k"]) for call in server.take(4, timeout=10)] == [0, 1, 2, 3]
        assert [int(call.meta["k"]) for call in server.take(4, timeout=10)] == [4]


def test_a_batch_waits_to_be_filled_and_no_longer(name):
    with serve(name) as server, gpuring.connect(name) as client:
        send(client, 0)
        take = in_thread(server.take, 3, 20.0, 10.0)
        poll(lambda: server.stats().subscriptions[0].lag == 1 and server.counts.taken == 1)
        send(client, 1)
        send(client, 2)
        begun = time.monotonic()
        assert len(take()) == 3
        assert time.monotonic() - begun < 15  # not the 20 s that it might have waited

        send(client, 3)
        assert len(server.take(3, max_wait_s=0.01, timeout=10)) == 1


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
        fill, turns = Server._fill, []

        def interrupted(*args):
            turns.append(args)
            if len(turns) == 2:
                raise KeyboardInterrupt
            fill(*args)

        monkeypatch.setattr(Server, "_fill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            server.take(4, max_wait_s=5, timeout=10)
        monkeypatch.undo()
        taken = server.take(4, timeout=10)
        assert [(int(call.meta["k"]), call.redelivered) for call in taken] == [
            (0, False), (1, False)
        ]  # fmt: skip
        for call in taken:
            answer(call)
        for k, call in enumerate(calls):
            check(client, k, call.result(10))


# ---- what goes wrong ---------------------------------------------------------------------------


def test_a_late_answer_is_discarded(name):
    with serve(name) as server, gpuring.connect(name, calls=2) as client:
        first = send(client, 0)
        with pytest.raises(gpuring.RingTimeout, match=r"call 1 .* no answer within 0 s"):
            first.result(0)
        with pytest.raises(gpuring.RingTimeout):
            first.result(10)  # it is over
        second = send(client, 1)
        with pytest.raises(gpuring.RingFull):  # the late answer needs its room
            send(client, 2, timeout=0.01)
        for taken in server.take(2, timeout=10):
            answer(taken)
        with second.result(10) as slot:
            check(client, 1, slot)
        assert (client.late, client.in_flight) == (1, 0)
        assert server.counts.undelivered == 0


def test_an_expired_call_is_passed_over(name):
    with serve(name) as server, gpuring.connect(name) as client:
        stale = send(client, 0, expires_s=0)
        send(client, 1, expires_s=30)
        assert [int(call.meta["k"]) for call in server.take(2, timeout=10)] == [1]
        assert server.counts.expired == 1
        with pytest.raises(gpuring.RingTimeout, match="it has expired, and no answer came"):
            stale.result(10)


def test_a_full_ring_says_so_at_once_or_waits(name):
    with serve(name, slots=2) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(2)]
        with pytest.raises(gpuring.RingFull, match="'engines' has not taken"):
            client.request(0)
        with pytest.raises(gpuring.RingFull, match=r"within 0\.01 s"):
            client.request(0.01)
        assert client.in_flight == 2
        third = in_thread(send, client, 2)
        for taken in server.take(2, timeout=10):
            answer(taken)
        calls.append(third())
        answer(server.take(timeout=10)[0])
        for k, call in enumerate(calls):
            with call.result(10) as slot:
                check(client, k, slot)


def test_the_callers_own_limit_is_told_at_once(name):
    with serve(name) as server, gpuring.connect(name, calls=2) as client:
        send(client, 0)
        second = send(client, 1)
        with pytest.raises(gpuring.RingFull, match=r"2 calls .* in flight, 0 of them answered"):
            client.request()  # for ever, but nobody else could end one
        for taken in server.take(2, timeout=10):
            answer(taken)
        with pytest.raises(gpuring.RingFull, match=r"2 calls .* in flight, 2 of them answered"):
            client.request()
        with second.result(10) as slot:
            check(client, 1, slot)
        client.request(10).abandon()
        assert client.in_flight == 1


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
        for k in range(60, 90, 3):  # taken last in, first out
            calls = [send(client, k + n) for n in range(3)]
            for taken in reversed(server.take(3, timeout=10)):
                answer(taken)
            services.finish(client, k, calls[0])
            calls.append(send(client, k))
            answer(server.take(timeout=10)[0])
            for n, call in ((0, calls[3]), (2, calls[2]), (1, calls[1])):
                services.finish(client, k + n, call)
        assert (client.in_flight, client.late, server.counts.undelivered) == (0, 0, 0)


def test_an_exception_fails_the_calls_of_its_batch(name):
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(3)]
        with pytest.raises(ZeroDivisionError), server.take(3, timeout=10) as batch:  # noqa: PT012
            answer(batch[0])
            raise ZeroDivisionError("weights × 0")
        with calls[0].result(10) as slot:
            check(client, 0, slot)
        for call in calls[1:]:
            with pytest.raises(gpuring.CallFailed, match="ZeroDivisionError: weights × 0"):
                call.result(10)
        assert (client.in_flight, server.counts.failed) == (0, 2)
        assert server.stats().subscriptions[0].lag == 0


def test_what_a_batch_leaves_unanswered_fails(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        with server.take(timeout=10):
            pass
        with pytest.raises(gpuring.CallFailed, match="left it unanswered"):
            call.result(10)


def test_a_failure_has_a_text_of_a_size(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        server.take(timeout=10)[0].fail("x" * 1000)
        with pytest.raises(gpuring.CallFailed, match=r"failed: x{240}$"):
            call.result(10)
        call = send(client, 0)
        server.take(timeout=10)[0].fail("")
        with pytest.raises(gpuring.CallFailed, match=r"failed: $"):
            call.result(10)
        ask_here(server, client, 1)


def ask_here(server, client, k):
    call = send(client, k)
    answer(server.take(timeout=10)[0])
    services.finish(client, k, call)


def test_an_answer_that_raises_is_not_sent_and_may_be_tried_again(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(timeout=10)
        with pytest.raises(ValueError, match="half"), taken.answer() as slot:  # noqa: PT012
            slot.array[:3] = 0
            raise ValueError("half done")
        assert not taken.answered
        assert not call.done
        answer(taken)
        with call.result(10) as slot:
            check(client, 0, slot)
        assert server.counts.answered == 1


def test_a_call_is_answered_once(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(timeout=10)
        answer(taken)
        for again in (
            taken.answer,
            lambda: taken.fail("x"),
            lambda: taken.array,
            lambda: taken.meta,
        ):
            with pytest.raises(gpuring.RingError, match="was answered"):
                again()
        services.finish(client, 0, call)


def test_a_request_that_raises_is_not_sent(name):
    with serve(name) as server, gpuring.connect(name) as client:
        with pytest.raises(ValueError, match="half"), client.request():
            raise ValueError("half done")
        assert client.in_flight == 0
        with pytest.raises(gpuring.RingTimeout):
            server.take(timeout=0)
        ask_here(server, client, 1)


# ---- threads -----------------------------------------------------------------------------------


def test_threads_may_share_a_client(name, children):
    """More threads than it has room for calls: they wait for each other."""
    worker = children(engine, name)
    assert worker.receive() == "up"

    def many(client, first):
        for k in range(first, first + 50):
            ask(client, k)

    with gpuring.connect(name, calls=4) as client:
        joins = [in_thread(many, client, 100 * n) for n in range(7)]
        for join in joins:
            join()
        assert (client.in_flight, client.late) == (0, 0)
    worker.send()
    assert worker.result()["answered"] == 350


def test_threads_wait_in_turn_for_a_slot(name):
    with serve(name, slots=1) as server, gpuring.connect(name) as client:
        calls = [send(client, 0)]
        sends = [in_thread(send, client, k) for k in (1, 2)]
        poll(lambda: client._sending.locked() and len(client._mailbox.live) == 1)
        with pytest.raises(gpuring.RingFull, match="another thread is waiting"):
            client.request(0)
        for _ in range(3):
            answer(server.take(timeout=10)[0])
        calls += [sent() for sent in sends]
        for k, call in enumerate(calls):
            services.finish(client, k, call)


def test_a_thread_that_is_done_hands_the_receiving_on(name, monkeypatch):
    """Who receives does it for all; when its own answer has come the others are not forgotten."""
    monkeypatch.setattr("gpuring.service.mailbox.SLICE_S", 60)  # they are woken, and do not poll
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(3)]
        waits = [in_thread(call.result, 15) for call in calls]
        poll(lambda: len(client._mailbox.changed._waiters) == 2)
        for k, taken in enumerate(server.take(3, timeout=10)):
            answer(taken)
            check(client, k, waits[k]())


def test_closing_a_client_wakes_who_waits_and_drops_its_calls(name):
    with serve(name) as server:
        client = gpuring.connect(name)
        call = send(client, 0)
        send(client, 1)
        wait = in_thread(call.result)
        poll(lambda: client._mailbox.receiving)
        (taken,) = server.take(timeout=10)
        client.close()
        client.close()
        with pytest.raises(gpuring.RingClosed, match="client was closed"):
            wait()
        with pytest.raises(gpuring.RingClosed):
            client.request()
        answer(taken)  # goes nowhere
        with pytest.raises(gpuring.RingTimeout):
            server.take(timeout=0)
        assert (server.counts.undelivered, server.counts.dropped) == (1, 1)
        assert rings(name) == [
            n for n in rings(name) if client.id.to_bytes(8, "big").hex() not in n
        ]
        with gpuring.connect(name) as other:
            ask_here(server, other, 1)


# ---- who is there ------------------------------------------------------------------------------


def test_engines_join_by_name_or_by_the_same_terms(name):
    with serve(name) as first, serve(name) as second, gpuring.serve(name) as third:
        assert len(first.stats().subscriptions[0].members) == 3
        with gpuring.connect(name) as client:
            for k, server in enumerate((first, second, third)):
                ask_here(server, client, k)


@pytest.mark.parametrize(
    "other", [{"request": ((1,), "i8")}, {"response_meta": None}, {"redeliver": False}]
)
def test_engines_must_agree(name, other):
    with serve(name) as server:
        with pytest.raises(gpuring.RingIncompatible, match="exists with another"):
            serve(name, **other)
        with pytest.raises(gpuring.RingExists):
            serve(name, engine=False)
        assert len(server.stats().peers) == 2  # nobody stayed


def test_a_service_and_a_ring_are_not_the_same(name):
    with pytest.raises(gpuring.RingNotFound):
        gpuring.connect(name)
    with pytest.raises(gpuring.RingNotFound):
        gpuring.serve(name)
    with gpuring.create(name, slots=2, shape=(1,), dtype="i8", device="host") as ring:
        for join in (gpuring.connect, gpuring.serve):
            with pytest.raises(gpuring.RingIncompatible, match="is a ring, not a service"):
                join(name)
        assert ring.stats().peers == ()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"request": ((1,), "i8")}, TypeError),
        ({"engine": False}, TypeError),
        (services.TERMS | {"answers": "cuda"}, ValueError),
        (services.TERMS | {"slots": 0}, ValueError),
    ],
)
def test_wrong_arguments_are_refused(name, wrong, error):
    with pytest.raises(error):
        gpuring.serve(name, **({"device": "host"} | wrong))
    with pytest.raises(ValueError, match="cannot name"):
        gpuring.serve("x" * 120)
    assert rings(name) == []


def test_wrong_arguments_of_a_client_are_refused(name):
    with serve(name) as server:
        for wrong in ({"calls": 0}, {"calls": 1021}, {"engine_s": -1}):
            with pytest.raises(ValueError, match="is "):
                gpuring.connect(name, **wrong)
        with pytest.raises(ValueError, match="max_batch"):
            server.take(0)
        assert len(server.stats().peers) == 2


def test_a_request_waits_for_an_engine(name):
    with serve(name, engine=False) as keeper, gpuring.connect(name, engine_s=15) as client:
        with pytest.raises(gpuring.RingError, match="only holds it open"):
            keeper.take()
        with pytest.raises(gpuring.PeerLost, match="there is no engine"):
            client.request(0)
        sending = in_thread(send, client, 0)
        with serve(name) as server:
            call = sending()
            answer(server.take(timeout=10)[0])
            services.finish(client, 0, call)
        with (
            gpuring.connect(name, engine_s=0.01) as impatient,
            pytest.raises(gpuring.PeerLost, match=r"within 0\.01 s"),
        ):
            impatient.request()


def test_an_engine_that_leaves_gives_its_calls_back(name):
    with serve(name, engine=False), gpuring.connect(name) as client:
        with serve(name) as leaver:
            calls = [send(client, k) for k in range(2)]
            assert len(leaver.take(2, timeout=10)) == 2
        with serve(name) as other:
            taken = other.take(2, timeout=10)
            assert [call.redelivered for call in taken] == [False, False]  # nobody died
            for call in taken:
                answer(call)
        for k, call in enumerate(calls):
            services.finish(client, k, call)


def test_an_engine_that_leaves_by_an_exception_fails_its_calls(name):
    with serve(name, engine=False), gpuring.connect(name) as client:
        call = send_when_served(name, client)
        with pytest.raises(gpuring.CallFailed, match="RuntimeError: out of memory"):
            call.result(10)


def send_when_served(name, client):
    with pytest.raises(RuntimeError), serve(name) as server:  # noqa: PT012
        call = send(client, 0)
        server.take(timeout=10)
        raise RuntimeError("out of memory")
    return call


def test_a_service_that_is_closed_finishes_what_is_there(name):
    owner = serve(name)
    with serve(name) as other, gpuring.connect(name) as client:
        done, taken_by_other, lost = (send(client, k) for k in range(3))
        answer(owner.take(timeout=10)[0])
        (call,) = other.take(timeout=10)
        owner.close()
        owner.close()
        with pytest.raises(gpuring.RingClosed):
            client.request(0)
        answer(call)
        services.finish(client, 0, done)
        services.finish(client, 1, taken_by_other)
        assert len(other.take(timeout=10)) == 1  # and never answers it
        with pytest.raises(gpuring.EndOfStream):
            other.take(timeout=10)
        other.close()
        with pytest.raises(gpuring.RingClosed, match="the service was closed"):
            lost.result(10)
    assert rings(name) == []
