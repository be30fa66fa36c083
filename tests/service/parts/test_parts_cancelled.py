"""Answers in parts: a client that leaves before the end cancels the call."""

from __future__ import annotations

import _thread
import asyncio
import collections
import operator

import pytest

import gpuring
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.promise import promise
from tests.service.parts import begun, last, part, read, take, value
from tests.service.services import ask_here, in_thread, send


def leave_the_loop(call):
    for each in call.parts(PATIENCE_S):
        got = value(each)
        break
    return got


def leave_the_loop_of_a_task(call):
    async def leave():
        async for each in call.parts(PATIENCE_S):
            got = value(each)
            break
        return got

    return asyncio.run(leave())


def cancel(call):
    got = read(call.parts(PATIENCE_S), 1)
    call.cancel()
    return got[0]


def end_the_block(call):
    with call.parts(PATIENCE_S) as parts:
        return read(parts, 1)[0]


@promise(
    "parts.md",
    "A client that leaves the loop before the end cancels the call. `call.cancel()` cancels it, "
    "too, and so does a part that has not come within `timeout` seconds. The engine sees "
    "`call.cancelled`, which it can ask as often as it likes. `call.part()` raises "
    "`CallCancelled`, also while it waits, and the call is over then.",
)
@pytest.mark.parametrize("leave", [leave_the_loop, leave_the_loop_of_a_task, cancel, end_the_block])
def test_who_leaves_before_the_end_cancels_the_call_and_its_engine_sees_it(pair, leave):
    server, client = pair
    call, taken = begun(pair, 2)
    assert not taken.cancelled
    assert leave(call) == 0
    assert taken.cancelled
    with pytest.raises(gpuring.CallCancelled, match="the client of call 1 has given it up"):
        taken.part(0)
    assert taken.answered
    assert (server.counts.cancelled, server.counts.answered) == (1, 0)
    with pytest.raises(gpuring.RingError, match="was cancelled"):
        call.result(0)
    poll(lambda: client.in_flight == 0)
    ask_here(server, client, 1)


@promise(
    "parts.md",
    "`call.part()` raises `CallCancelled`, also while it waits, and the call is over then.",
)
def test_a_part_that_waits_hears_that_its_call_was_cancelled(pair):
    call, taken = begun(pair, 2)
    join = in_thread(taken.part)
    call.cancel()
    with pytest.raises(gpuring.CallCancelled):
        join()


async def test_a_task_that_is_cancelled_cancels_its_call(pair):
    call, taken = begun(pair)

    async def reads():
        async for _ in call.parts():
            pass

    task = asyncio.create_task(reads())
    part(taken, 0)
    while not call._handed:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert taken.cancelled
    taken.end()


@promise(
    "parts.md",
    "`call.cancel()` cancels it, too, and so does a part that has not come within `timeout` "
    "seconds.",
)
def test_a_part_that_does_not_come_in_time_ends_the_call(pair):
    call, taken = begun(pair, 1)
    parts = call.parts(0.01)
    assert read(parts, 1) == [0]
    with pytest.raises(gpuring.RingTimeout, match=r"no part within 0\.01 s; given up"):
        next(parts)
    assert taken.cancelled
    taken.end()


@promise(
    "services.md",
    "It leaves out calls that were given up, calls whose client is dead or has left, and calls "
    "that have expired.",
)
def test_an_engine_passes_over_calls_that_were_given_up(pair):
    """Their client gets its room back when an engine comes to them."""
    server, client = pair
    send(client, 0).cancel()
    with pytest.raises(gpuring.RingTimeout):
        send(client, 1).result(0)
    call = send(client, 2)
    (taken,) = server.take(3, timeout=PATIENCE_S)
    assert taken.meta["k"] == 2
    assert (server.counts.taken, server.counts.cancelled) == (1, 2)
    poll(lambda: client.in_flight == 1)
    last(taken, 0)
    assert read(call) == [0]


def test_a_request_of_another_call_is_not_cancelled(pair):
    """The word of a call is in its request, whose slot belongs to another call later."""
    server, client = pair
    old = send(client, 0)
    last(take(server), 0)
    slots = client.ring.slots
    for k in range(1, slots):
        ask_here(server, client, k)
    call = send(client, slots)
    assert (call._seq - old._seq) % slots == 0
    old.cancel()
    old._withdraw()
    taken = take(server)
    assert not taken.cancelled
    last(taken, 1)
    with call.result(PATIENCE_S) as slot:
        assert value(slot) == 1


@pytest.mark.parametrize("ending", [gpuring.Call.end, lambda call: last(call, 2)])
def test_a_call_that_is_cancelled_behind_its_end_is_not_whole(pair, ending):
    """The parts that were dropped are not handed out, and the loop raises."""
    _, client = pair
    call, taken = begun(pair, 2)
    ending(taken)
    parts = call.parts(PATIENCE_S)
    assert read(parts, 1) == [0]
    assert call._is_over()  # the end was received with the first part
    call.cancel()
    with pytest.raises(gpuring.RingError, match="was cancelled"):
        next(parts)
    assert client.in_flight == 0


@pytest.mark.parametrize("ending", ["end", "last"])
@pytest.mark.parametrize("had", [0, 1, 2])
def test_a_client_that_is_closed_behind_the_end_has_not_had_the_whole_answer(pair, ending, had):
    """The loop over the parts only ends as if complete where it has had all of them."""
    _, client = pair
    call, taken = begun(pair, 1)
    if ending == "end":
        part(taken, 1)
        taken.end()
    else:
        last(taken, 1)
    parts = call.parts(PATIENCE_S)
    got = read(parts, had)
    assert parts.ready
    client.close()
    if had == 2:
        assert got + read(parts) == [0, 1]
        return
    with pytest.raises(gpuring.RingClosed, match="this client was closed"):
        next(parts)


def test_a_ctrl_c_that_comes_when_parts_are_dropped_is_not_lost(pair):
    """No line of Python runs in their destructor, so the handler runs behind it."""
    server, client = pair
    call = send(client, 0)
    parts = [call.parts(PATIENCE_S)]
    del call
    taken = take(server)
    part(taken, 0)
    part(taken, 1)
    read(parts[0], 1)
    do = operator.methodcaller("__call__")  # runs in compiled code only
    with pytest.raises(KeyboardInterrupt):
        collections.deque(map(do, [_thread.interrupt_main, parts.clear]), 0)
    assert taken.cancelled
    with pytest.raises(gpuring.CallCancelled):
        taken.part(0)
    poll(lambda: client.in_flight == 0)
