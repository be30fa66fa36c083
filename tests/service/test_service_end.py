"""Engines and clients whose interpreter ends before they have closed anything."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys

import pytest

import gpuring
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.promise import promise
from tests.service.services import answer, ask_here, finish, send, serve

ENDS = {
    "the end of the script": "",
    "sys.exit": "sys.exit(3)",
    "an error": "raise RuntimeError('on purpose')",
    "sys.exit in a handler": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)",
}

BEGIN = """
import os, signal, sys, threading, time
import gpuring
from tests.service import services
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
"""

ENGINE = """
server = services.serve(sys.argv[1], redeliver=sys.argv[2] == "True")
print("up", flush=True)
calls = server.take(3, max_wait_s=20)
with_block = calls[0].answer()
with_block.array[:3] = 1
again = calls[1].answer()
again.array[:3] = 1
again.abandon()
print([int(call.meta["k"]) for call in calls], flush=True)
sys.stdin.readline()
"""

CLIENT = """
client = gpuring.connect(sys.argv[1], calls=8)
calls = [services.send(client, k) for k in range(4)]
slot = client.request()
threads = [threading.Thread(target=calls[k].result, daemon=True) for k in (0, 1)]
for thread in threads:
    thread.start()
answer = calls[2].result(20)
print("up", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def script():
    """Runs a program in a process of its own.  It prints, and goes on when it gets a line."""
    started = []

    def start(text, *args):
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", BEGIN + text, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        with process:
            pass


def go_on(process):
    """Lets the program go on to its end.  Returns its exit status."""
    process.stdin.write("\n")
    process.stdin.flush()
    return process.wait(PATIENCE_S)


@promise(
    "services.md",
    "An interpreter that ends without `close` also gives its calls to another engine.",
    "another engine gets them, and `call.redelivered` is not set",
)
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("how", ENDS)
def test_an_engine_that_ends_without_closing_gives_its_calls_to_another_one(name, script, how):
    with serve(name, engine=False), gpuring.connect(name) as client:
        process = script(ENGINE + ENDS[how], name, True)
        assert process.stdout.readline() == "up\n"
        calls = [send(client, k) for k in range(3)]
        assert process.stdout.readline() == "[0, 1, 2]\n"
        with serve(name) as other:
            go_on(process)
            taken = []
            while len(taken) < 3:
                taken += other.take(3, timeout=10)
            assert sorted(int(call.meta["k"]) for call in taken) == [0, 1, 2]
            for call in taken:
                answer(call)
            for k, call in enumerate(calls):
                finish(client, k, call)
        assert (client.late, client.in_flight) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_without_redelivery_they_are_lost_as_with_its_death(name, script, how):
    with serve(name, engine=False, redeliver=False), gpuring.connect(name) as client:
        process = script(ENGINE + ENDS[how], name, False)
        assert process.stdout.readline() == "up\n"
        calls = [send(client, k) for k in range(3)]
        assert process.stdout.readline() == "[0, 1, 2]\n"
        with serve(name, redeliver=False) as other:
            go_on(process)
            for call in calls:
                with pytest.raises(gpuring.PeerLost, match="has dealt with it, and no answer came"):
                    call.result(PATIENCE_S)
            ask_here(other, client, 4)
        assert client.in_flight == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_a_client_that_ends_without_closing_hangs_nobody(name, script, how):
    with serve(name) as server:
        process = script(CLIENT + ENDS[how], name)
        taken = server.take(4, max_wait_s=0.2, timeout=20)
        while len(taken) < 4:
            taken += server.take(4, timeout=20)
        answer(taken[2])
        assert process.stdout.readline() == "up\n"
        go_on(process)
        for number in (0, 1, 3):
            answer(taken[number])
        assert server.counts.undelivered == 3
        with gpuring.connect(name) as client:
            ask_here(server, client, 0)


# ---- whoever closes what first -------------------------------------------------------------------


@pytest.mark.parametrize("first", ["the ring", "the reader", "the answers"])
def test_requests_go_back_and_answers_are_given_up_in_whatever_order_it_closes(name, first):
    with serve(name, engine=False), gpuring.connect(name) as client:
        server, calls = serve(name), [send(client, k) for k in range(3)]
        taken = server.take(3, timeout=10)
        open_, begun = taken[0].answer(), taken[1].answer()
        begun.abandon()
        writer = open_._owner
        with serve(name) as other:
            if first == "the ring":
                server.ring.close()
            elif first == "the reader":
                server._requests.close()
            else:
                writer.ring.close()
                server.ring.close()
            assert writer.closed or writer._peer.holding() == []
            again = other.take(3, timeout=10)
            assert [int(call.meta["k"]) for call in again] == [0, 1, 2]
            for call in again:
                answer(call)
            for k, call in enumerate(calls):
                finish(client, k, call)
        with contextlib.suppress(gpuring.RingError):
            server.close()
        poll(lambda: len(client._mailbox._ring.stats().peers) <= 2)


def test_whoever_finds_a_request_that_nobody_has_gives_it_to_another_engine(name):
    """A thread that waits in this process may find it before the engine that is closing does."""
    with serve(name) as server, serve(name) as other, gpuring.connect(name) as client:
        call = send(client, 0)
        server.take(timeout=PATIENCE_S)[0].array.sum()  # reads the request, so that it was seen
        server._calls.clear()  # as close() begins
        with pytest.warns(ResourceWarning, match="nobody has its slot"):
            server._requests._give_back_lost()
        answer(other.take(timeout=PATIENCE_S)[0])
        finish(client, 0, call)


# ---- without a close ----------------------------------------------------------------------------


def warned(name, recwarn):
    gc.collect()
    told = [str(each.message) for each in recwarn if name in str(each.message)]
    recwarn.clear()
    return told


@pytest.mark.parametrize("circle", [False, True])
def test_one_warning_names_a_server_or_a_client_that_was_dropped(name, recwarn, circle):
    """No warning names one of its rings, producers and consumers."""
    so = "so it leaves the service. Close it, or use it in a with block"

    def drops(server, client):
        if circle:
            server._itself, client._itself = server, client
        ask_here(server, client, 0)

    with serve(name, engine=False) as keeper:
        with serve(name) as server:
            drops(server, gpuring.connect(name))
            told = [f"service '{name}': a client was not closed. Nobody has it any more, {so}"]
            assert warned(name, recwarn) == told
        with gpuring.connect(name) as client:
            drops(serve(name), client)
            told = [f"service '{name}': a server was not closed. Nobody has it any more, {so}"]
            assert warned(name, recwarn) == told
        assert len(keeper.stats().peers) == 2
