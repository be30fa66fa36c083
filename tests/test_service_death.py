"""A service while its members are killed: calls go to another engine, or fail."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import services
from services import (
    answer,
    ask_here,
    check,
    engine,
    finish,
    holder,
    in_thread,
    rings,
    send,
    sender,
    serve,
)
from support import poll

import gpuring
from gpuring.service.server import Server

# ---- engines ------------------------------------------------------------------------------------


def test_a_dead_engines_calls_go_to_another_one(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client:
        victim = children(holder, name, 3)
        assert victim.receive() == "up"
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


def test_calls_wait_for_the_next_engine_where_the_service_is_kept(name, children):
    with serve(name, engine=False), gpuring.connect(name, engine_s=20) as client:
        victim = children(holder, name, 1)
        assert victim.receive() == "up"
        calls = [send(client, k) for k in range(2)]
        assert victim.receive() == [0]
        waits = [in_thread(call.result, 20) for call in calls]
        victim.kill()
        poll(lambda: client.ring.stats().reaps)
        successor = children(engine, name)
        assert successor.receive() == "up"
        for k, wait in enumerate(waits):
            check(client, k, wait())
        successor.send()
        assert successor.result()["redelivered"] == 1


def test_calls_fail_when_no_engine_comes(name, children):
    with serve(name, engine=False), gpuring.connect(name, engine_s=0.1) as client:
        victim = children(holder, name, 1)
        assert victim.receive() == "up"
        calls = [send(client, k) for k in range(2)]
        assert victim.receive() == [0]
        victim.kill()
        for call in calls:
            with pytest.raises(gpuring.PeerLost, match=r"no engine for 0\.1 s"):
                call.result(20)
        assert client.in_flight == 2  # they are in the ring still
        with serve(name) as other:  # which comes too late
            for call in other.take(2, max_wait_s=10, timeout=10):
                answer(call)
            ask_here(other, client, 5)
        assert (client.in_flight, client.late) == (0, 2)


def test_calls_are_lost_with_the_last_engine_of_a_service_that_nobody_keeps(name, children):
    victim = children(holder, name, 1)
    assert victim.receive() == "up"
    with gpuring.connect(name, engine_s=20) as client:
        calls = [send(client, k) for k in range(2)]
        assert victim.receive() == [0]
        victim.kill()
        begun = time.monotonic()
        for call in calls:
            with pytest.raises(gpuring.PeerLost, match="its engine is gone"):
                call.result(20)
        assert time.monotonic() - begun < 15  # nothing to wait 20 s for: nobody can get them
        assert client.in_flight == 0
        with serve(name) as other:  # host memory outlives its creator
            ask_here(other, client, 2)
    assert rings(name) == []


def test_without_redelivery_a_dead_engines_calls_are_lost(name, children):
    once = {"redeliver": False}
    with serve(name, engine=False, **once), gpuring.connect(name) as client:
        victim = children(holder, name, 1, once)
        assert victim.receive() == "up"
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
    pipe.send("writing")
    pipe.receive()
    slot.publish()


def dies_after_its_answer(pipe, name):
    """Between the answer and the release of its request."""
    server = serve(name)
    pipe.send("up")
    Server._end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    (call,) = server.take()
    answer(call)


def test_an_engine_killed_while_it_writes_an_answer(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client:
        victim = children(writes_an_answer, name)
        assert victim.receive() == "up"
        call = send(client, 0)
        assert victim.receive() == "writing"
        with serve(name) as other:
            victim.kill()
            (taken,) = other.take(timeout=10)
            answer(taken)
            finish(client, 0, call)
        assert client.late == 0


def test_an_answer_that_came_twice_is_given_once(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client:
        victim = children(dies_after_its_answer, name)
        assert victim.receive() == "up"
        call = send(client, 0)
        victim.process.join(20)
        with serve(name) as other:
            (taken,) = other.take(timeout=10)
            assert taken.redelivered
            answer(taken)
            finish(client, 0, call)
            ask_here(other, client, 1)
        assert (client.late, client.in_flight) == (1, 0)


@pytest.mark.parametrize("looks", [True, False])
def test_answers_that_come_too_often_overwrite_each_other_and_block_nobody(name, children, looks):
    """Each engine that dies after its answer takes one more slot of a client that does not look.
    (A client looks before each request, and while it waits.)"""

    def deaths(n):
        for _ in range(n):
            victim = children(dies_after_its_answer, name)
            assert victim.receive() == "up"
            yield
            victim.process.join(20)
            assert victim.process.exitcode == -signal.SIGKILL

    with serve(name, engine=False), gpuring.connect(name, calls=3) as client:
        with serve(name) as server:
            first = send(client, 0)
            answer(server.take(timeout=10)[0])
        again = None
        for _ in deaths(4):
            again = again or send_unseeing(client, 1)
        if looks:
            with serve(name):  # nobody sends to nobody
                client.request(10).abandon()
        assert len(list(deaths(3))) == 3  # with the first answer one more than the ring has slots
        with serve(name) as other:
            answer(other.take(timeout=10)[0])
            finish(client, 1, again)
            if looks:
                finish(client, 0, first)
            else:
                with pytest.raises(gpuring.PeerLost, match="has dealt with it, and no answer"):
                    first.result(20)
            ask_here(other, client, 2)
            assert other.counts.undelivered == 0
        assert client.in_flight == 0


def send_unseeing(client, k):
    """As send(), but does not receive what is there before."""
    with client._requests.claim(10) as slot:
        client._begin(slot, None)
        slot.array[...], slot.meta["k"] = services.content(client.id, k), k
        return slot.call


def test_a_client_that_is_stopped_holds_nobody_up(name, children):
    with serve(name) as server, gpuring.connect(name) as client:
        stopped = children(sender, name, 8)
        stopped.receive()
        os.kill(stopped.pid, signal.SIGSTOP)
        for call in server.take(8, timeout=10):
            answer(call)
        for k in range(20):
            ask_here(server, client, k)
        assert server.counts.undelivered == 0
        stopped.kill()


def test_a_call_whose_answer_was_missed_is_known_to_be_lost(name, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(timeout=10)
        monkeypatch.setattr(server, "_reach", lambda _: None)
        answer(taken)
        monkeypatch.undo()
        assert server.counts.undelivered == 1
        with pytest.raises(gpuring.PeerLost, match="has dealt with it, and no answer came"):
            call.result(20)
        ask_here(server, client, 1)


def look_now(client, call):
    """The next wait looks at once at what has become of the call."""
    client._mailbox._looked = call._sent_at = 0


def test_an_answer_that_comes_between_two_looks_is_not_lost(name, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        (taken,) = server.take(timeout=10)

        def nothing_yet(*_, **__):
            answer(taken)  # just after the client has looked for it
            raise gpuring.RingTimeout

        with monkeypatch.context() as patched:
            patched.setattr(client._mailbox._answers, "acquire", nothing_yet)
            look_now(client, call)
            assert not call.wait(0)
        finish(client, 0, call)


def test_an_answer_that_a_ctrl_c_came_upon_is_found_again(name, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        answer(server.take(timeout=10)[0])

        def interrupted(_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(client._mailbox, "_dispatch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                call.result(10)
        finish(client, 0, call)


def test_the_time_without_engines_begins_anew_with_each_gap(name):
    with serve(name, engine=False), gpuring.connect(name, engine_s=20) as client:
        with serve(name):
            call = send(client, 0)
        look_now(client, call)
        assert not call.wait(0)
        client._mailbox._orphaned -= 100
        with serve(name) as server:
            answer(server.take(timeout=10)[0])
            finish(client, 0, call)
            call = send(client, 1)
        look_now(client, call)
        assert not call.wait(0)
        with serve(name) as server:
            answer(server.take(timeout=10)[0])
            finish(client, 1, call)


def test_a_lost_call_is_not_told_while_its_answer_may_be_behind_another_one(name):
    """An engine that is slow with one answer keeps the client from later ones, and loses none."""
    with serve(name) as server, gpuring.connect(name) as client:
        slow, quick = (send(client, k) for k in range(2))
        first, second = server.take(2, timeout=10)
        writing = first.answer()
        answer(second)
        assert not quick.wait(0.3)  # for some looks; synchronises nothing
        writing.array[...] = services.answer_of(first.array)
        writing.meta["k"], writing.meta["client"] = 0, client.id
        writing.publish()
        finish(client, 1, quick)
        finish(client, 0, slow)


def test_a_stopped_engine_holds_up_its_own_calls_only(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client:
        stopped = children(holder, name, 1)
        assert stopped.receive() == "up"
        call = send(client, 0)
        assert stopped.receive() == [0]
        os.kill(stopped.pid, signal.SIGSTOP)
        with serve(name) as other:
            for k in range(1, 20):
                ask_here(other, client, k)
            with pytest.raises(gpuring.RingTimeout):
                call.result(0.1)
            stopped.kill()
            (taken,) = other.take(timeout=10)
            answer(taken)
            ask_here(other, client, 20)
        assert (client.late, client.in_flight) == (1, 0)


def test_the_creators_death_leaves_the_others_going_on(name, children):
    creator = children(engine, name)
    assert creator.receive() == "up"
    with serve(name) as other, gpuring.connect(name) as client:
        creator.kill()
        for k in range(5):
            ask_here(other, client, k)
        with gpuring.connect(name) as late:  # in host memory; on a GPU nobody new could
            ask_here(other, late, 1)
    assert rings(name) == []  # the last one to leave has removed the names


def test_a_service_whose_processes_are_all_dead_starts_again(name, children):
    pair = children(holder, name, 1), children(sender, name, 1)
    assert pair[0].receive() == "up"
    pair[1].receive()
    assert pair[0].receive() == [0]
    for child in pair:
        child.kill()
    assert len(rings(name)) == 4  # two rings, each with its slots
    with serve(name) as server, gpuring.connect(name) as client:
        assert server.ring._created
        ask_here(server, client, 0)
    assert rings(name) == []


# ---- clients ------------------------------------------------------------------------------------


def test_a_dead_clients_calls_are_dropped(name, children, monkeypatch):
    with serve(name) as server, gpuring.connect(name) as client:
        victim = children(sender, name, 3)
        dead = f"{name}.{victim.receive():016x}"
        (held,) = server.take(timeout=10)
        assert len([ring for ring in rings(name) if dead in ring]) == 2
        victim.kill()
        poll(lambda: not server._clients[held.client].ring._header.creator_alive)
        mine = send(client, 0)
        (taken,) = server.take(3, max_wait_s=0.01, timeout=10)
        assert taken.client == client.id
        answer(held)
        answer(taken)
        finish(client, 0, mine)
        counts = server.counts
        assert (counts.dropped, counts.undelivered, counts.answered) == (2, 1, 1)
        monkeypatch.setattr("gpuring.service.server._TIDY_S", 0)
        with pytest.raises(gpuring.RingTimeout):
            server.take(timeout=0)
        assert [ring for ring in rings(name) if dead in ring] == []
        assert list(server._clients) == [client.id]


def test_many_answers_to_the_dead_may_be_open_at_once(name, children):
    with serve(name) as server:
        victim = children(sender, name, 3)
        victim.receive()
        taken = server.take(3, timeout=10)
        victim.kill()
        poll(lambda: not server._clients[taken[0].client].ring._header.creator_alive)
        with contextlib.ExitStack() as stack:
            for call in taken:
                stack.enter_context(call.answer()).array[:] = 1
        assert server.counts.undelivered == 3
        assert server.stats().subscriptions[0].lag == 0


def claims_a_request(pipe, name):
    client = gpuring.connect(name)
    slot = client.request()
    pipe.send()
    pipe.receive()
    slot.publish()


def test_a_client_killed_while_it_writes_a_request(name, children):
    with serve(name) as server, gpuring.connect(name) as client:
        victim = children(claims_a_request, name)
        victim.receive()
        call = send(client, 0)
        victim.kill()
        answer(server.take(timeout=10)[0])
        finish(client, 0, call)


def connects(pipe, name):
    client = gpuring.connect(name)
    pipe.send()
    pipe.receive()
    client.close()


def test_what_a_dead_client_left_is_removed_by_an_engine_that_never_met_it(name, children):
    with serve(name, engine=False):
        victim = children(connects, name)
        victim.receive()
        assert len(rings(name)) == 4
        victim.kill()
        with serve(name):
            assert len(rings(name)) == 2


def test_the_example_runs():
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, root / "examples" / "service.py"],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert "6000 calls answered; engine" in done.stdout, done.stderr
