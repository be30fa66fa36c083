"""A service whose engines and clients are killed at random: the books of the living balance."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter

import pytest

import gpuring
from gpuring.service import Batch
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.service.services import answer, answer_of, check, content, send, serve
from tests.service.watched_turns import watching


def unsteady_engine(pipe, name, seed):
    dice = random.Random(seed)
    streams = {}
    with serve(name) as server:
        pipe.send("up")
        while not pipe.told():
            with contextlib.suppress(gpuring.RingTimeout):
                calls = server.take(
                    dice.randint(1, 5), dice.choice((0, 0.001)), 0 if streams else 0.05
                )
                streams |= {call: 0 for call in calls if in_parts(call.meta["k"])}
                answer_some(Batch(call for call in calls if call not in streams), dice)
            for call, sent in list(streams.items()):
                with contextlib.suppress(gpuring.RingFull):
                    streams[call] += go_on(call, sent, dice)
            streams = {call: sent for call, sent in streams.items() if not call.answered}


def answer_some(calls, dice):
    with contextlib.suppress(ZeroDivisionError), calls:
        for call in dice.sample(calls, len(calls)):
            if dice.random() < 0.02:
                raise ZeroDivisionError("on purpose")
            answer(call)


PARTS = 8


def in_parts(k):
    return k % 3 == 0


def go_on(call, sent, dice):
    """Sends the next part of a stream, or its end.  Returns how many parts were sent."""
    if dice.random() < 0.005:
        call.fail("on purpose")
    elif sent == PARTS:
        answer(call)
    else:
        with contextlib.suppress(gpuring.CallCancelled, ZeroDivisionError), call.part(0) as slot:
            slot.array[...] = answer_of(call.array) + sent
            if dice.random() < 0.02:
                raise ZeroDivisionError("the part is not sent")
            return 1
    return 0


def bookkeeper(pipe, name, seed):
    """Makes calls at random until it is told to stop.  Returns how many calls ended in which
    way."""
    dice = random.Random(seed)
    books: Counter[str] = Counter()
    flying = []
    with watching() as watch, gpuring.connect(name, calls=6, parts=3, engine_s=20) as client:
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
    """Waits for the calls that were given up.  They stay in flight until their answer has come or
    cannot come any more."""
    client._mailbox.pump(lambda: client.in_flight == 0, time.monotonic() + 0.05)
    return client.in_flight == 0


def end(client, k, call, dice):
    patience = 20 if dice is None or dice.random() < 0.9 else dice.choice((0, 0.001))
    if in_parts(k):
        return end_of_parts(client, k, call, patience, dice)
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


def end_of_parts(client, k, call, patience, dice):
    taken = 0
    try:
        for part in call.parts(patience):
            if taken == PARTS:
                check(client, k, part)
            else:
                assert (part.array == answer_of(content(client.id, k)) + taken).all()
            taken += 1
            if dice is not None and dice.random() < 0.02:
                return "left"
    except gpuring.CallFailed:
        return "failed"
    except gpuring.RingTimeout:
        return "timeout"
    except gpuring.PeerLost:
        return "broken" if taken else "lost"
    assert taken == PARTS + 1
    return "whole"


@promise(
    "services.md",
    "Several client processes ask, and one or more engine processes answer. If one of these "
    "processes is killed, the others go on.",
    "Every call of a living client ends in exactly one way. It ends with an answer, with "
    "`CallFailed` or with `PeerLost`. It ends with `RingTimeout` if it was given a time-out, and "
    "with `RingClosed` if its own client was closed.",
)
@pytest.mark.slow
def test_every_call_of_the_living_ends_in_one_way_while_engines_and_clients_are_killed(
    name, children, request
):
    dice = random.Random(4)
    until = time.monotonic() + 5 + request.config.getoption("--stress-seconds")
    roles = [unsteady_engine] * 3 + [bookkeeper] * 3
    with serve(name, slots=16, engine=False):
        # Engines start first, because clients give up after a while.
        cast = [up(children(role, name, n)) for n, role in enumerate(roles)]
        kills: Counter[str] = Counter()
        while time.monotonic() < until or kills.total() < 6:
            time.sleep(dice.uniform(0.05, 0.3))  # the time between two kills
            for each in cast:
                assert not each.pipe.poll() or each.receive(), "a process has ended by itself"
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
        ends = sum(
            each[kind]
            for kind in ("answered", "whole", "left", "broken", "failed", "timeout", "lost")
        )
        assert ends == each["sent"], each
    assert total["answered"] > 100, total
    assert total["whole"] > 30, total
    assert total["left"] > 0, total
    assert total["failed"] > 0, total
    assert total["lost"] == 0, total  # somebody always came
    assert min(kills.values()) > 1, kills
    assert segments_of(name) == []
