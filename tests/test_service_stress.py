"""A service whose engines and clients are killed at random: the books of the living balance."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter

import pytest
from services import (
    answer,
    check,
    send,
    serve,
    up,
)
from support import poll, segments_of
from test_service_locks import watching

import gpuring


def unsteady_engine(pipe, name, seed):
    dice = random.Random(seed)
    with serve(name) as server:
        pipe.send("up")
        while not pipe.told():
            with contextlib.suppress(gpuring.RingTimeout, ZeroDivisionError):  # noqa: SIM117
                with server.take(
                    dice.randint(1, 5), dice.choice((0, 0.001)), timeout=0.05
                ) as calls:
                    for call in dice.sample(calls, len(calls)):
                        if dice.random() < 0.02:
                            raise ZeroDivisionError("on purpose")
                        answer(call)


def bookkeeper(pipe, name, seed):
    """Calls at random until it is told to stop; how each call ended, by kind."""
    dice = random.Random(seed)
    books: Counter[str] = Counter()
    flying = []
    with watching() as watch, gpuring.connect(name, calls=6, engine_s=20) as client:
        pipe.send("up")
        k = 0
        while not pipe.told():
            if len(flying) < 6 and dice.random() < 0.6:
                try:
                    flying.append((k, send(client, k, timeout=0.2)))
                except gpuring.RingFull:
                    books["full"] += 1
                else:
                    books["sent"] += 1
                    k += 1
            elif flying:
                books[end(client, *flying.pop(dice.randrange(len(flying))), dice)] += 1
        for each in flying:
            books[end(client, *each, None)] += 1
        poll(lambda: settle(client))
        books["late"] = client.late
    assert watch.wrong == []
    return books


def settle(client):
    """Calls that were given up stay in flight until their answer has come or is known not to."""
    client._mailbox.pump(lambda: client.in_flight == 0, time.monotonic() + 0.05)
    return client.in_flight == 0


def end(client, k, call, dice):
    patience = 20 if dice is None or dice.random() < 0.9 else dice.choice((0, 0.001))
    try:
        with call.result(patience) as slot:
            check(client, k, slot)
    except gpuring.CallFailed:
        return "failed"
    except gpuring.RingTimeout:
        return "timeout"
    except gpuring.PeerLost:
        return "lost"
    return "answered"


@pytest.mark.slow
@pytest.mark.deadline(100)
def test_every_call_of_the_living_ends_in_one_way_while_engines_and_clients_are_killed(
    name, children, request
):
    dice = random.Random(4)
    until = time.monotonic() + 5 + request.config.getoption("--stress-seconds")
    roles = [unsteady_engine] * 3 + [bookkeeper] * 3
    with serve(name, slots=16, engine=False):
        # Engines first: clients give up after a while.
        cast = [up(children(role, name, n)) for n, role in enumerate(roles)]
        kills: Counter[str] = Counter()
        while time.monotonic() < until or kills.total() < 6:
            time.sleep(dice.uniform(0.05, 0.3))  # how often somebody is killed
            for each in cast:
                assert not each.pipe.poll() or each.receive(), "nobody ends by himself"
            k = 3 * (kills.total() % 2) + dice.randrange(3)  # an engine, a client, an engine, …
            cast[k].kill()
            kills[roles[k].__name__] += 1
            cast[k] = up(children(roles[k], name, dice.random()))
        for each in cast[3:]:
            with contextlib.suppress(BrokenPipeError):  # it has failed: result() says how
                each.send()
        books = [each.result() for each in cast[3:]]
        for each in cast[:3]:
            each.send()
            each.result()
    total = sum(books, Counter())
    for each in books:
        ends = each["answered"] + each["failed"] + each["timeout"] + each["lost"]
        assert ends == each["sent"], each
    assert total["answered"] > 100, total
    assert total["failed"] > 0, total
    assert total["lost"] == 0, total  # somebody always came
    assert min(kills.values()) > 1, kills
    assert segments_of(name) == []
