"""A service while its members are killed or stopped: calls go to another engine, or fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest

import gpuring
from gpuring.registry.leftovers import tidy
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.service.services import (
    answer,
    ask_here,
    check,
    content,
    engine,
    finish,
    holder,
    in_thread,
    outlives_its_creator,
    passes_over,
    send,
    sender,
    serve,
)

# ---- engines ------------------------------------------------------------------------------------


@promise(
    "services.md",
    "`call.redelivered` says that another engine died with this call, and perhaps because of it.",
    "another engine gets them, and `call.redelivered` is set",
)
def test_a_dead_engines_calls_go_to_another_one(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client:
        victim = up(children(holder, name, 3))
        calls = [send(client, k) for k in range(3)]
        assert victim.receive() == [0, 1, 2]
        with serve(name) as other:
            victim.kill()
            taken = []
            while len(taken) < 3:
                taken += other.take(3, timeout=10)
            assert [(int(call.meta["k"]), call.redelivered) for call in taken] == [
                (0, True), (1, True), (2, True)
            ]  # fmt: skip
            for call in taken:
                answer(call)
            for k, call in enumerate(calls):
                finish(client, k, call)
        assert client.late == 0


@promise(
    "services.md",
    "`server.counts` says how many calls were taken, answered, failed, expired, cancelled, "
    "dropped, undelivered and redelivered.",
    "they wait up to `engine_s` for the next engine; if none comes, `result()` raises `PeerLost`, "
    "and an engine that comes later passes over them",
    "Calls then also wait while no engine is there. So the service outlives its last engine. "
    "Clients need no other service as long as this keeper lives.",
)
@pytest.mark.slow
def test_calls_wait_for_the_next_engine_where_the_service_is_kept(name, children):
    with serve(name, engine=False), gpuring.connect(name, engine_s=20) as client:
        victim = up(children(holder, name, 1))
        calls = [send(client, k) for k in range(2)]
        assert victim.receive() == [0]
        waits = [in_thread(call.result, 20) for call in calls]
        victim.kill()
        poll(lambda: client.ring.stats().reaps)
        successor = up(children(engine, name))
        for k, wait in enumerate(waits):
            check(client, k, wait())
        successor.send()
        assert successor.result()["redelivered"] == 1


@promise(
    "services.md",
    "they wait up to `engine_s` for the next engine; if none comes, `result()` raises `PeerLost`, "
    "and an engine that comes later passes over them",
)
@pytest.mark.slow
def test_calls_fail_when_no_engine_comes(name, children):
    with serve(name, engine=False), gpuring.connect(name, engine_s=0.1) as client:
        victim = up(children(holder, name, 1))
        calls = [send(client, k) for k in range(2)]
        assert victim.receive() == [0]
        victim.kill()
        for call in calls:
            with pytest.raises(gpuring.PeerLost, match=r"no engine for 0\.1 s"):
                call.result(20)
        assert client.in_flight == 2  # they are in the ring still
        with serve(name) as other:  # this engine comes too late
            ask_here(other, client, 5)
            assert (other.counts.taken, other.counts.cancelled) == (1, 2)
        assert (client.in_flight, client.late) == (0, 2)


@promise(
    "services.md",
    "`result()` raises `PeerLost` at once; the next calls wait up to `engine_s` for an engine",
)
@pytest.mark.slow
def test_calls_are_lost_with_the_last_engine_of_a_service_that_nobody_keeps(name, children):
    victim = up(children(holder, name, 1))
    with gpuring.connect(name, engine_s=1000) as client:
        calls = [send(client, k) for k in range(2)]
        assert victim.receive() == [0]
        victim.kill()
        for call in calls:  # nothing to wait for: nobody can get them
            with pytest.raises(gpuring.PeerLost, match="its engine is gone"):
                call.result(1000)
        assert client.in_flight == 0
        sending = in_thread(send, client, 2)
        with serve(name) as other:  # host memory outlives its creator
            call = sending()
            answer(other.take(timeout=10)[0])
            finish(client, 2, call)
    assert segments_of(name) == []


@promise(
    "services.md",
    "`result()` raises `PeerLost`; no call is worked on twice",
    "With `redeliver=False` it is computed once at most.",
)
@pytest.mark.slow
def test_without_redelivery_a_dead_engines_calls_are_lost(name, children):
    once = {"redeliver": False}
    with serve(name, engine=False, **once), gpuring.connect(name) as client:
        victim = up(children(holder, name, 1, once))
        call = send(client, 0)
        assert victim.receive() == [0]
        with serve(name, **once) as other:
            victim.kill()
            with pytest.raises(gpuring.PeerLost, match="has dealt with it, and no answer came"):
                call.result(20)
            ask_here(other, client, 1)


def writes_an_answer(pipe, name):
    server = serve(name)
    pipe.send("up")
    (call,) = server.take()
    slot = call.answer()
    slot.array[:3] = 1
    pipe.ask("writing")
    slot.publish()


@promise(
    "services.md",
    "the same as for a call that was not answered",
    "later answers to that client wait behind it",
)
def test_later_answers_wait_behind_a_stopped_engines_half_written_one_until_it_dies(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client, gpuring.connect(name) as third:
        stopped = up(children(writes_an_answer, name))
        first = send(client, 0)
        assert stopped.receive() == "writing"
        stopped.stop()
        with serve(name) as other:
            second = send(client, 1)
            answer(other.take(timeout=10)[0])
            assert not second.wait(0.05)
            ask_here(other, third, 0)  # those of another client do not
            stopped.kill()
            finish(client, 1, second)
            answer(other.take(timeout=10)[0])
            finish(client, 0, first)
        assert client.late == 0


@promise("services.md", "nothing: engines do not wait for it")
@pytest.mark.slow
def test_a_client_that_is_stopped_holds_nobody_up(name, children):
    with serve(name) as server, gpuring.connect(name) as client:
        stopped = up(children(sender, name, 8))
        os.kill(stopped.pid, signal.SIGSTOP)
        for call in server.take(8, timeout=10):
            answer(call)
        for k in range(20):
            ask_here(server, client, k)
        assert server.counts.undelivered == 0
        stopped.kill()


@promise(
    "services.md",
    "its calls time out, and others go on; everybody waits for it a full lap of the request ring "
    "later, as for any holder of a slot",
    "`slots` counts requests that wait *and* requests that engines work on.",
)
def test_a_stopped_engine_holds_up_its_own_calls_and_everybody_a_lap_later(name, children):
    with serve(name, engine=False, slots=4), gpuring.connect(name) as client:
        stopped = up(children(holder, name, 1))
        call = send(client, 0)
        assert stopped.receive() == [0]
        stopped.stop()
        with serve(name) as other:
            for k in range(1, 4):
                ask_here(other, client, k)
            with pytest.raises(gpuring.RingFull, match=rf"pid {stopped.pid}.*'engines'"):
                client.request(0)
            with pytest.raises(gpuring.RingTimeout):
                call.result(0.1)
            stopped.kill()
            assert poll(lambda: passes_over(other)) == 1
            ask_here(other, client, 4)
        assert (client.late, client.in_flight) == (1, 0)


@pytest.mark.parametrize("tasks", [False, True])
def test_a_full_ring_names_the_stopped_engine(name, children, tasks):
    def request(client, timeout):
        return asyncio.run(client.request_async(timeout)) if tasks else client.request(timeout)

    with serve(name, slots=1, engine=False), gpuring.connect(name) as client:
        stopped = up(children(holder, name, 1))
        call = send(client, 0)
        assert stopped.receive() == [0]
        os.kill(stopped.pid, signal.SIGSTOP)
        told = rf"no free slot within 0\.2 s: .*pid {stopped.pid}, stopped\).* has held sequence"
        with pytest.raises(gpuring.RingFull, match=told):
            request(client, 0.2)
        with pytest.raises(gpuring.RingFull, match="no free slot at once: "):
            request(client, 0)
        call.cancel()


@promise(
    "services.md",
    "all others go on, and new ones may join; the last one to leave removes the names",
)
@pytest.mark.slow
def test_the_creators_death_leaves_the_others_going_on(name, children):
    outlives_its_creator(name, children, joins=True)
    assert segments_of(name) == []  # the last one to leave has removed the names


@promise("failure.md", "Nothing is left behind that would keep a later start from working.")
@promise(
    "services.md",
    "`serve` finds what they left, removes it and starts again; `gpuring clean` also removes it",
)
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("clean", [False, True])
def test_a_service_whose_processes_are_all_dead_starts_again(name, children, clean):
    server, client = up(children(holder, name, 1)), children(sender, name, 1)
    client.receive()
    assert server.receive() == [0]
    for child in (server, client):
        child.kill()
    assert len(segments_of(name)) == 4  # two rings, each with its slots
    if clean:
        tidy(lambda each: each.startswith(name))
        assert segments_of(name) == []
    with serve(name) as server, gpuring.connect(name) as client:
        assert server.ring._created
        ask_here(server, client, 0)
    assert segments_of(name) == []


# ---- clients ------------------------------------------------------------------------------------


@promise(
    "services.md",
    "It leaves out calls that were given up, calls whose client is dead or has left, and calls "
    "that have expired.",
    "engines drop them when they take them, or their answers go nowhere; an engine removes the "
    "names of the client's ring",
)
def test_a_dead_clients_calls_are_dropped(name, children, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        victim = children(sender, name, 3)
        dead = f"{name}.{victim.receive():016x}"
        (held,) = server.take(timeout=10)
        assert len([ring for ring in segments_of(name) if dead in ring]) == 2
        victim.kill()
        poll(lambda: not server._delivery.writers[held.client].ring._header.creator_alive)
        mine = send(client, 0)
        (taken,) = server.take(3, max_wait_s=0.01, timeout=10)
        assert taken.client == client.id
        answer(held)
        answer(taken)
        finish(client, 0, mine)
        counts = server.counts
        assert (counts.dropped, counts.undelivered, counts.answered) == (2, 1, 1)
        monkeypatch.setattr("gpuring.service._engine.TIDY_S", 0)

        def is_tidy():  # a look begins where the one before has stopped
            with pytest.raises(gpuring.RingTimeout):
                server.take(timeout=0)
            return not any(dead in ring for ring in segments_of(name))

        poll(is_tidy)
        assert list(server._delivery.writers) == [client.id]


def test_many_answers_to_the_dead_may_be_open_at_once(name, children):
    with serve(name) as server:
        victim = up(children(sender, name, 3))
        taken = server.take(3, timeout=10)
        victim.kill()
        poll(lambda: not server._delivery.writers[taken[0].client].ring._header.creator_alive)
        with contextlib.ExitStack() as stack:
            for call in taken:
                stack.enter_context(call.answer()).array[:] = 1
        assert server.counts.undelivered == 3
        assert server.stats().subscriptions[0].lag == 0


def claims_a_request(pipe, name):
    client = gpuring.connect(name)
    slot = client.request()
    pipe.ask()
    slot.array[:], slot.meta["k"] = content(client.id, 7), 7
    call = slot.call
    slot.publish()
    finish(client, 7, call)
    client.close()


@promise("services.md", "engines wait behind it for the requests that were begun later", "nothing")
@pytest.mark.parametrize("dies", [True, False])
def test_engines_wait_behind_a_stopped_clients_half_written_request_until_it_dies(
    name, children, dies
):
    with serve(name) as server, gpuring.connect(name) as client:
        stopped = up(children(claims_a_request, name))
        stopped.stop()
        call = send(client, 0)
        with pytest.raises(gpuring.RingTimeout):
            server.take(timeout=0.05)
        if dies:
            stopped.kill()
        else:
            os.kill(stopped.pid, signal.SIGCONT)
            stopped.send()
        for k in (0,) if dies else (7, 0):
            (taken,) = server.take(timeout=10)
            assert taken.meta["k"] == k
            answer(taken)
        finish(client, 0, call)
        if not dies:
            stopped.result()


def connects(pipe, name):
    client = gpuring.connect(name)
    pipe.ask()
    client.close()


@pytest.mark.slow
def test_what_a_dead_client_left_is_removed_by_an_engine_that_never_met_it(name, children):
    with serve(name, engine=False):
        victim = up(children(connects, name))
        assert len(segments_of(name)) == 4
        victim.kill()
        with serve(name):
            assert len(segments_of(name)) == 2
