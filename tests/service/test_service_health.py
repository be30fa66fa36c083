"""Whether a service can be asked, as a load balancer sees it: it is ready, warms up, hangs, or is
gone."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import threading

import pytest

import gpuring
from gpuring.cli import main
from tests.cli.planted import PLANTED
from tests.helpers.processes import PATIENCE_S, poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import put, small_ring
from tests.service.parts import part, read
from tests.service.services import answer, engine, holder, in_thread, running, send, serve


def is_waiting(server):
    return any(peer.waiting for peer in server.stats().peers)


def asked_s(server):
    number = server._requests.peer
    return next(peer.asked_s for peer in server.stats().peers if peer.number == number)


@promise(
    "services.md",
    '`gpuring.health("classify")` gives the same to a program, for the `/health` of an HTTP '
    "worker, for example.",
)
def test_an_engine_that_waits_is_ready(name):
    with serve(name) as server, gpuring.connect(name) as client:
        assert not gpuring.health(name).ok  # it has not asked for a call yet
        join = in_thread(server.take)
        poll(lambda: is_waiting(server))
        assert dataclasses.astuple(gpuring.health(name)) == (
            name, True, "1 of 1 engine ready", 1, 1, 0, 0.0,
        )  # fmt: skip
        send(client, 0)
        join()


def test_a_process_that_keeps_a_service_open_may_be_an_engine_of_it(name):
    with serve(name, engine=False), serve(name) as server, gpuring.connect(name) as client:
        assert gpuring.health(name).engines == 0
        join = in_thread(server.take)
        poll(lambda: is_waiting(server))
        assert gpuring.health(name).why == "1 of 1 engine ready"
        send(client, 0)
        join()


@pytest.mark.slow
def test_an_engine_that_waits_for_long_says_so_again(name):
    with serve(name) as server, gpuring.connect(name) as client:
        join = in_thread(server.take)
        poll(lambda: asked_s(server) is not None)
        poll(lambda: asked_s(server) > 0.5)
        poll(lambda: asked_s(server) < 0.5)
        send(client, 0)
        join()


@promise(
    "services.md",
    "Both also say how many calls wait, and for how long.",
    "An engine that warms up is not ready yet.",
)
def test_an_engine_that_warms_up_is_not_ready_yet(name):
    begun, go_on = threading.Event(), threading.Event()
    with serve(name) as server, gpuring.connect(name) as client:
        server.batch(1, warm_up=lambda: (begun.set(), go_on.wait(60)))(lambda requests: requests)
        with running(server):
            assert begun.wait(60)
            calls = [send(client, k) for k in range(3)]
            found = gpuring.health(name)
            assert (found.ok, found.ready, found.engines, found.waiting) == (False, 0, 1, 3)
            assert 0 < found.oldest_s < 60
            assert f"(pid {os.getpid()}) has not asked for a call yet" in found.why
            assert "3 calls wait, the oldest for" in found.why
            go_on.set()
            for call in calls:
                call.result(20).release()
            found = gpuring.health(name)
            assert (found.ok, found.waiting, found.oldest_s) == (True, 0, 0)


def test_one_call_that_waits_is_told_in_plain_words(name):
    with serve(name), gpuring.connect(name) as client:
        call = send(client, 0)
        assert "; 1 call waits for " in gpuring.health(name).why
        call.cancel()


@promise(
    "services.md",
    "An engine is ready if it lives, is not stopped, and has waited for calls or taken some within "
    "the last 10 seconds, or as long as `within_s` says.",
)
def test_an_engine_that_hangs_is_not_ready_any_more(name):
    with serve(name) as server, gpuring.connect(name) as client:
        send(client, 0)
        taken = server.take(timeout=10)
        poll(lambda: not gpuring.health(name, within_s=0.05).ok)
        assert "has not asked for a call for" in gpuring.health(name, within_s=0.05).why
        assert gpuring.health(name, within_s=60).ok
        del taken


@promise(
    "services.md",
    "Both name each engine that is not ready, also if others are.",
    "They also name an engine that has had a call for 2 seconds, or as long as `after_s` says, and "
    "has sent no part of the answer meanwhile.",
    "The command has `--within` and `--after` for these times.",
    "So an engine that hangs is named after 2 seconds, and is not ready any more after 10.",
)
def test_an_engine_that_has_had_a_call_for_long_is_named_while_it_still_counts_as_ready(
    name, children, capsys
):
    with serve(name, label="first") as server, gpuring.connect(name, label="web") as client:
        call = send(client, 0)
        taken = server.take(timeout=10)
        assert gpuring.health(name, after_s=60).why == "1 of 1 engine ready"
        here = f"(pid {os.getpid()})"
        told = f"web {here} waits for an answer of service {name}: first {here} has had its call"
        poll(lambda: told in gpuring.health(name, within_s=60, after_s=0.05).why)
        assert gpuring.health(name, within_s=60, after_s=0.05).ok
        assert main(["health", name, "--within", "60", "--after", "0.05"]) == 0
        assert told in capsys.readouterr().out
        poll(lambda: told in gpuring.health(name, within_s=60).why)  # 2 s is the default
        worker = up(children(engine, name, None, {"label": "second"}))
        worker.stop()
        stopped = f"1 of 2 engines ready; the engine second (pid {worker.pid}) is stopped"
        poll(lambda: gpuring.health(name, within_s=60, after_s=60).why == stopped)
        del taken
        call.cancel()


@promise(
    "services.md",
    "It is also 1 if an engine that is not ready has the oldest call of a full service, because "
    "then no client can send a request.",
)
def test_a_service_that_an_engine_keeps_full_cannot_be_asked(name, children):
    with serve(name, slots=2) as server, gpuring.connect(name) as client:
        worker = up(children(holder, name, 1))
        first = send(client, 0)
        poll(lambda: [peer for peer in server.stats().peers if peer.holding])
        worker.stop()
        server._requests._peer.ask()
        assert gpuring.health(name, within_s=60).ok  # another slot is free
        second = send(client, 1)
        with server.take(timeout=PATIENCE_S) as (taken,):
            answer(taken)
        second.result(PATIENCE_S).release()
        assert client.try_request() is None
        found = gpuring.health(name, within_s=60)
        assert (found.ok, found.ready, found.engines) == (False, 1, 2)
        assert "no request can be sent: peer" in found.why
        assert f"pid {worker.pid}, stopped) of subscription 'engines' has held" in found.why
        assert main(["health", name, "--within", "60"]) == 1
        waiting = in_thread(lambda: client.request(PATIENCE_S))
        poll(lambda: any(peer.waiting for peer in server.stats().producers))
        told = gpuring.health(name, within_s=60, after_s=0.0).why
        assert told.count("has held") == 1, told  # not again for who waits for the slot
        worker.kill()
        first.cancel()
        client.close()
        with pytest.raises(gpuring.RingClosed):
            waiting()


def test_an_engine_that_sends_parts_is_not_named(name):
    def had_s():
        return max(hold.age_s for peer in server.stats().peers for hold in peer.holding)

    with serve(name) as server, gpuring.connect(name, parts=2) as client:
        parts = send(client, 0).parts(PATIENCE_S)
        (call,) = server.take(timeout=PATIENCE_S)
        poll(lambda: "has had its call" in gpuring.health(name, after_s=had_s()).why)
        poll(lambda: had_s() > 0.2)
        part(call, 0)
        assert read(parts, 1) == [0]
        assert parts.ready is False  # releases it
        poll(lambda: gpuring.health(name, after_s=had_s()).why == "1 of 1 engine ready")
        call.end()
        assert read(parts) == []


def writes_down(pipe, name, log):
    """An engine that publishes each request in a ring.  That ring is full."""
    with serve(name) as server, gpuring.attach(log) as ring, ring.producer() as producer:
        pipe.send("up")
        with server.take():
            producer.claim()


def test_it_says_for_which_ring_an_engine_waits(name, children):
    with (
        serve(name, engine=False),
        small_ring(f"{name}-log") as log,
        log.consumer("recorder"),
        log.producer() as producer,
        gpuring.connect(name) as client,
    ):
        put(producer, log.slots)
        worker = up(children(writes_down, name, log.name))
        call = send(client, 0)
        poll(lambda: log.stats().held_up)
        poll(lambda: not gpuring.health(name, within_s=0.05).ok)
        why = gpuring.health(name, within_s=0.05).why
        assert f"(pid {worker.pid}) waits for a free slot of ring {log.name}" in why
        call.cancel()


def looks_up(pipe, name, ring):
    """An engine that reads a frame of a ring for each request."""
    with (
        serve(name) as server,
        gpuring.attach(ring) as it,
        it.consumer(reattach=True) as frames,
    ):
        pipe.send("up")
        with server.take():
            frames.acquire()


def test_it_says_how_to_start_an_importer_for_which_an_engine_waits(name, children):
    pytest.importorskip("zmq")
    near, far = f"{name}-near", f"{name}-near-far"
    with (
        PLANTED["an_importer_that_was_killed"](children, near),
        serve(name, engine=False),
        gpuring.connect(name) as client,
    ):
        up(children(looks_up, name, far))
        call = send(client, 0)
        why = poll(lambda: said_without(far, name))
        assert f"start `gpuring bridge import {socket.gethostname()}:PORT/{near} --as {far} " in why
        call.cancel()


def said_without(ring, name):
    """What `health` says of a service whose engine waits for a frame of the ring, or False."""
    found = gpuring.health(name, within_s=0.05)
    return not found.ok and f"waits for a frame of ring {ring}" in found.why and found.why


@promise(
    "services.md",
    "An engine is ready if it lives, is not stopped, and has waited for calls or taken some within "
    "the last 10 seconds, or as long as `within_s` says.",
)
def test_engines_that_are_stopped_or_dead_are_not_ready(name, children):
    with serve(name, engine=False):
        found = gpuring.health(name)
        assert (found.ok, found.why, found.engines) == (False, "it has no engine", 0)
        one, other = (up(children(engine, name)) for _ in range(2))
        poll(lambda: gpuring.health(name).why == "2 of 2 engines ready")
        one.stop()
        assert gpuring.health(name).why.startswith("1 of 2 engines ready; ")
        other.kill()
        found = gpuring.health(name)
        assert not found.ok
        assert f"(pid {one.pid}) is stopped" in found.why
        one.kill()
        assert not gpuring.health(name).ok
        poll(lambda: gpuring.health(name).engines == 0)


@promise("services.md", "An engine of several services is ready for all of them.")
def test_a_service_that_waits_behind_a_more_urgent_one_is_ready(name):
    """Its engine works on a call of the urgent one, and waits for calls of both."""
    with (
        serve(f"{name}-urgent") as urgent,
        serve(f"{name}-normal") as normal,
        gpuring.connect(urgent.name) as client,
    ):
        send(client, 0)
        batch = gpuring.take([urgent, normal], timeout=10)
        assert batch.server is urgent
        for each in (urgent, normal):
            assert gpuring.health(each.name, within_s=60).ok


def test_a_service_that_is_closed_cannot_be_asked(name):
    with serve(name) as server:
        server._requests._peer.ask()
        assert gpuring.health(name).ok
        server.ring._header.close_ring()
        found = gpuring.health(name)
        assert (found.ok, found.why) == (False, "it was closed")


def test_what_is_no_service_has_no_health(name):
    with pytest.raises(gpuring.RingNotFound):
        gpuring.health(name)
    with (
        gpuring.create(name, slots=2, shape=4, dtype="u1", device="host"),
        pytest.raises(
            gpuring.RingIncompatible, match=f"is a ring, not a service: `gpuring why {name}`"
        ),
    ):
        gpuring.health(name)
    for wrong in (-1, "5"):
        with pytest.raises((TypeError, ValueError), match="within_s"):
            gpuring.health(name, wrong)


@promise(
    "services.md",
    "`gpuring health classify` says in one line whether a service can be asked. Its exit status is "
    "0 if an engine is ready, 1 if none is, and 3 if there is no such service.",
)
def test_the_command_says_it_in_a_line_and_by_its_status(name, capsys):
    assert main(["health", name]) == 3
    assert name in capsys.readouterr().err
    with serve(name, label="rack 2") as server:
        assert main(["health", name]) == 1
        told = f"{name}: not ok, the engine rack 2 (pid {os.getpid()}) has"
        assert capsys.readouterr().out.startswith(told)
        server._requests._peer.ask()
        assert main(["health", name, "--within", "60"]) == 0
        assert capsys.readouterr().out == f"{name}: ok, 1 of 1 engine ready\n"
        assert main(["health", name, "--within", "60", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == dataclasses.asdict(
            gpuring.health(name, within_s=60)
        )
