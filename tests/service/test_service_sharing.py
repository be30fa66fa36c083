"""Several threads in one client, several engines and clients in one service: joining, leaving."""

from __future__ import annotations

import re
import sys
import threading
import time

import pytest

import gpuring
from gpuring.registry import directory
from gpuring.ring.whose import nobody_has
from tests.helpers.gil import has_slot_without_gil, one_thread_at_a_time
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of, waiters
from tests.service import services
from tests.service.services import (
    answer,
    ask,
    ask_here,
    check,
    engine,
    in_thread,
    is_held,
    receives,
    send,
    serve,
)

# ---- threads ------------------------------------------------------------------------------------


def test_threads_may_share_a_client(name, children, watched):
    """There are more threads than it has room for calls, so they wait for each other."""
    worker = up(children(engine, name))

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


def test_threads_wait_in_turn_for_a_slot(name, watched):
    with serve(name, slots=1) as server, gpuring.connect(name) as client:
        calls = [send(client, 0)]
        sends = [in_thread(send, client, k) for k in (1, 2)]
        poll(lambda: is_held(client._sending) and len(client._calls.live) == 1)
        with pytest.raises(gpuring.RingFull, match="another thread is waiting"):
            client.request(0)
        for _ in range(3):
            answer(server.take(timeout=10)[0])
        calls += [sent() for sent in sends]
        for k, call in enumerate(calls):
            services.finish(client, k, call)


def test_a_thread_that_is_done_hands_the_receiving_on(name, no_slices):
    """One thread receives for all.  The others are not forgotten when its own answer has come."""
    with serve(name) as server, gpuring.connect(name) as client:
        calls = [send(client, k) for k in range(3)]
        waits = [in_thread(call.result, 15) for call in calls]
        poll(lambda: len(client._calls._heirs) == 2)
        for k, taken in enumerate(server.take(3, timeout=10)):
            answer(taken)
            check(client, k, waits[k]())


def test_who_ends_an_answer_twice_does_not_end_that_of_another_call(name, no_slices):
    """The thread that receives has the same slot again, but does not run yet, because it needs the
    GIL."""
    with serve(name) as server, gpuring.connect(name, calls=3) as client, one_thread_at_a_time():
        answers, met = client._mailbox._ring, False
        while not met:
            first, second = send(client, 0), send(client, 1)
            taken = server.take(2, timeout=10, max_wait_s=10)
            answer(taken[0])
            slot = first.result(10)
            while answers._header.frontier % answers.slots != slot.index:  # until it is the next
                ask_here(server, client, 2)
            wait = in_thread(second.result, 15)
            poll(lambda: waiters(answers) == 1)
            with slot:
                slot.release()
                answer(taken[1])
                met = has_slot_without_gil(client._mailbox._answers._peer)
            with wait() as slot:
                check(client, 1, slot)
        assert client.in_flight == 0


def test_a_request_that_is_sent_while_another_thread_looks_for_lost_ones_is_not_lost(
    name, monkeypatch
):
    """The other thread has seen the slot among those that are claimed.  When it looks for
    references there are none."""
    with serve(name) as server, gpuring.connect(name) as client:
        slots = [client.request(10)]
        calls = [slots[0].call]

        def meanwhile(*slot):
            if slots:
                in_thread(slots.pop().publish)()
            return nobody_has(*slot)

        monkeypatch.setattr("gpuring.service.mailbox.nobody_has", meanwhile)
        calls.append(send(client, 1))
        assert not slots
        taken = server.take(2, timeout=10, max_wait_s=10)
        assert [call.number for call in taken] == [call.number for call in calls]


def test_who_looks_after_the_calls_does_not_mind_threads_that_send(name):
    with serve(name) as server, gpuring.connect(name, calls=40) as client:
        calls = [send(client, k) for k in range(30)]
        done = threading.Event()

        def busy():  # as if calls came and ended
            while not done.is_set():  # another thread may run at this line, with a call or without
                if table.live.pop(0, None) is None:
                    table.live[0] = calls[0]
            table.live.pop(0, None)

        mailbox, table, interval = client._mailbox, client._calls, sys.getswitchinterval()
        join = in_thread(busy)
        try:
            sys.setswitchinterval(1e-6)
            for _ in range(1000):
                mailbox._look(time.monotonic() + 1)
                mailbox.no_room()
        finally:
            sys.setswitchinterval(interval)
            done.set()
        join()
        for call in server.take(30, timeout=10, max_wait_s=10):
            answer(call)
        for k, call in enumerate(calls):
            services.finish(client, k, call)


@promise(
    "services.md",
    "It leaves out calls that were given up, calls whose client is dead or has left, and calls "
    "that have expired.",
)
def test_closing_a_client_wakes_who_waits_and_drops_its_calls(name, watched):
    with serve(name) as server:
        client = gpuring.connect(name)
        call = send(client, 0)
        send(client, 1)
        wait = in_thread(call.result)
        poll(lambda: receives(client))
        (taken,) = server.take(timeout=10)
        client.close()
        client.close()
        with pytest.raises(gpuring.RingClosed, match="client was closed"):
            wait()
        with pytest.raises(gpuring.RingClosed):
            client.request()
        answer(taken)  # nobody gets the answer
        for _ in range(2):  # the first drops a call.  The second finds none, which is not the end.
            with pytest.raises(gpuring.RingTimeout):
                server.take(timeout=0)
        assert (server.counts.undelivered, server.counts.dropped) == (1, 1)
        assert segments_of(name) == [
            n for n in segments_of(name) if client.id.to_bytes(8, "big").hex() not in n
        ]
        with gpuring.connect(name) as other:
            ask_here(server, other, 1)


# ---- who is there -------------------------------------------------------------------------------


@promise(
    "services.md",
    "`serve` creates the service. If the service is there and has the same terms, `serve` joins "
    "it.",
    "`gpuring.serve(name)` alone joins the service that is there.",
)
def test_engines_join_by_name_or_by_the_same_terms(name):
    with serve(name) as first, serve(name) as second, gpuring.serve(name) as third:
        assert len(first.stats().subscriptions[0].members) == 3
        with gpuring.connect(name) as client:
            for k, server in enumerate((first, second, third)):
                ask_here(server, client, k)


@promise("services.md", "If it has other terms, `serve` raises `RingIncompatible`.")
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            {"request": ((1,), "bfloat16")},
            "request: it has (64,) int64 and metadata [('k', '<i8')], and you gave "
            "(1,) bfloat16 and metadata [('k', '<i8')]",
        ),
        (
            {"response": {"scores": ((2, 3), "f4"), "label": (1, "u1")}, "response_meta": None},
            "response: it has (64,) int64 and metadata [('k', '<i8'), ('client', '<u8')], and you "
            "gave scores (2, 3) float32, label (1,) uint8 and no metadata",
        ),
        ({"redeliver": False}, "redeliver: it has True, and you gave False"),
    ],
)
def test_engines_must_agree(name, other, told):
    with serve(name) as server:
        told = f"^service '{name}' exists with another {re.escape(told)}. Join it without request="
        with pytest.raises(gpuring.RingIncompatible, match=told):
            serve(name, **other)
        assert len(server.stats().peers) == 2  # no other peer is left


def keeps(pipe, name):
    with serve(name, engine=False):
        pipe.ask("up")


@promise(
    "services.md",
    "A keeper joins no service. If the last one was killed and others live in its service, write "
    "`serve(..., engine=False, replace=True)`, or it raises `RingExists`.",
)
def test_a_keeper_takes_the_place_of_a_killed_one_or_is_refused(name, children):
    keeper = up(children(keeps, name))
    with gpuring.serve(name) as engine:
        keeper.kill()
        with pytest.raises(gpuring.RingExists):
            serve(name, engine=False)
        with serve(name, engine=False, replace=True), pytest.raises(gpuring.EndOfStream):
            engine.take(10)


def test_a_service_and_a_ring_are_not_the_same(name):
    with pytest.raises(gpuring.RingNotFound):
        gpuring.connect(name)
    with pytest.raises(gpuring.RingNotFound, match="With request= and response= it is created"):
        gpuring.serve(name)
    with gpuring.create(name, slots=2, shape=(1,), dtype="i8", device="host") as ring:
        for join in (gpuring.connect, gpuring.serve):
            with pytest.raises(gpuring.RingIncompatible, match="is a ring, not a service"):
                join(name)
        assert ring.stats().peers == ()


def test_the_names_that_a_message_lists_are_those_of_services_not_of_their_clients(
    name, monkeypatch
):
    monkeypatch.setattr(directory, "_MAX_LISTED", 10_000)
    with serve(name) as server, gpuring.connect(name) as client:
        answers = client._mailbox._ring.name
        with pytest.raises(gpuring.RingNotFound, match=f"this host has .*{name}") as error:
            gpuring.connect(f"other-{name}")
        assert answers not in str(error.value)
        server.close()
        with pytest.raises(gpuring.RingNotFound, match="this host has ") as error:
            gpuring.connect(name)
        assert answers not in str(error.value)


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
    assert segments_of(name) == []


def test_wrong_arguments_of_a_client_are_refused(name):
    with serve(name) as server:
        for wrong in ({"calls": 0}, {"calls": 1021}, {"engine_s": -1}):
            with pytest.raises(ValueError, match="must be "):
                gpuring.connect(name, **wrong)
        with pytest.raises(ValueError, match="max_batch"):
            server.take(0)
        assert len(server.stats().peers) == 2


def test_a_request_waits_for_an_engine(name):
    with serve(name, engine=False) as keeper, gpuring.connect(name, engine_s=15) as client:
        with pytest.raises(gpuring.RingError, match="engine=False"):
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
        with pytest.raises(RuntimeError), serve(name) as server:  # noqa: PT012
            call = send(client, 0)
            server.take(timeout=10)
            raise RuntimeError("out of memory")
        with pytest.raises(gpuring.CallFailed, match="RuntimeError: out of memory"):
            call.result(10)


@promise(
    "services.md",
    "Without one, the service ends with the engine that created it.",
    "The process that creates a service owns it. When the creator leaves cleanly, the service "
    "ends. Calls that other engines have are then answered, and all other calls get `PeerLost`.",
)
def test_a_service_that_is_closed_finishes_what_is_there(name):
    owner = serve(name)
    with serve(name) as other, gpuring.connect(name) as client:
        done, taken_by_other, lost = (send(client, k) for k in range(3))
        answer(owner.take(timeout=10)[0])
        (call,) = other.take(timeout=10)
        owner.close()
        owner.close()
        with pytest.raises(gpuring.PeerLost, match="was closed, and no other service"):
            client.request(0)
        answer(call)
        services.finish(client, 0, done)
        services.finish(client, 1, taken_by_other)
        never = other.take(timeout=10)
        assert len(never) == 1
        with pytest.raises(gpuring.EndOfStream):
            other.take(timeout=10)
        other.close()
        with pytest.raises(gpuring.PeerLost, match="the service was closed"):
            lost.result(10)
    assert segments_of(name) == []
