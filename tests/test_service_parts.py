"""Answers in parts: their order, their credit, their ends, and what happens when somebody dies."""

from __future__ import annotations

import _thread
import asyncio
import collections
import contextlib
import operator
import select
import threading

import pytest
from services import ask_here, content, in_thread, receives, send, serve, up
from support import poll, segments_of
from test_service_signals import quick, signals
from test_service_table import Torn

import gpuring
from gpuring._envelopes import END
from gpuring._slots import WriteSlot
from gpuring.service.mailbox import Mailbox
from gpuring.service.streaming import Parts

assert quick  # a fixture

PATIENCE_S = 20


def part(call, k, timeout=PATIENCE_S):
    """Sends part k."""
    with call.part(timeout) as slot:
        slot.array[...] = k


def last(call, k):
    with call.answer() as slot:
        slot.array[...] = k


def take(server):
    (call,) = server.take(timeout=PATIENCE_S)
    return call


def value(slot):
    """What is in a part, all of which is the same."""
    assert (slot.array == slot.array[0]).all()
    return int(slot.array[0])


def read(call, n=None, **options):
    """The next n parts; all parts."""
    parts = call if isinstance(call, Parts) else call.parts(PATIENCE_S, **options)
    got = []
    while n is None or len(got) < n:
        each = next(parts, None)
        if each is None:
            return got
        got.append(value(each))
    return got


@pytest.fixture
def pair(name):
    with serve(name) as server, gpuring.connect(name, calls=3, parts=2) as client:
        yield server, client
        assert client.in_flight == 0


# ---- order, and the end -------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [gpuring.Call.end, lambda call: last(call, 10)])
@pytest.mark.parametrize("tasks", [False, True])
def test_parts_come_in_order_and_have_an_end(pair, ending, tasks):
    server, client = pair

    def engine():
        call = take(server)
        for k in range(10):
            part(call, k)
        ending(call)

    async def in_tasks(call):
        return [value(each) async for each in call.parts(PATIENCE_S)]

    for _ in range(3):
        call, join = send(client, 0), in_thread(engine)
        got = asyncio.run(in_tasks(call)) if tasks else read(call)
        join()
        assert got == list(range(10 if ending is gpuring.Call.end else 11))
        assert (client.in_flight, client.late) == (0, 0)
    assert server.counts.answered == 3


def test_each_part_is_what_its_engine_wrote_wherever_it_is(name, place):
    with serve(name, place) as server, gpuring.connect(name, parts=2) as client:
        call = send(client, 0, place)

        def engine():
            taken = take(server)
            for k in range(20):
                with taken.part(PATIENCE_S) as slot:
                    slot.array[...] = taken.array + k
            taken.end()

        join = in_thread(engine)
        for k, each in enumerate(call.parts(PATIENCE_S)):
            assert (place.read(each.array) == content(client.id, 0) + k).all()
        assert k == 19
        join()


def test_a_whole_answer_is_the_only_part(pair):
    server, client = pair
    call = send(client, 0)
    last(take(server), 7)
    assert read(call) == [7]


def test_an_answer_may_have_no_part_at_all(pair):
    server, client = pair
    call = send(client, 0)
    take(server).end()
    assert read(call) == []


def test_parts_that_have_come_are_handed_out_before_a_failure(pair):
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    part(taken, 0)
    part(taken, 1)
    taken.fail("why")
    parts = call.parts(PATIENCE_S)
    assert read(parts, 2) == [0, 1]
    with pytest.raises(gpuring.CallFailed, match="why"):
        next(parts)


@pytest.mark.parametrize("early", [False, True])
def test_a_result_is_no_place_for_parts_and_says_so(pair, early):
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    join = None if early else in_thread(call.result, PATIENCE_S)
    part(taken, 0)
    with pytest.raises(
        gpuring.RingError, match=r"is answered in parts: take them with call\.parts"
    ):
        call.result(PATIENCE_S) if join is None else join()
    assert taken.cancelled
    taken.end()


def test_a_client_without_room_for_parts_gets_none(name):
    with serve(name) as server, gpuring.connect(name) as client:
        call = send(client, 0)
        taken = take(server)
        assert taken.window == 0
        with pytest.raises(gpuring.RingError, match=r"takes no parts: connect\(parts=…\)"):
            taken.part()
        with pytest.raises(
            gpuring.RingError, match=r"takes no parts: end\(\) ends an answer in parts"
        ):
            taken.end()
        last(taken, 0)
        assert read(call) == [0]


@pytest.mark.parametrize("parts", [-1, 128, 1.5, None])
def test_a_client_has_room_for_as_many_parts_as_a_ring_has_slots(name, parts):
    with serve(name):
        with gpuring.connect(name, calls=8, parts=126) as client:
            assert client._mailbox._ring.slots == 8 * (1 + 126) + 4
        with pytest.raises((ValueError, TypeError), match="parts is"):
            gpuring.connect(name, calls=8, parts=parts)


def test_one_part_is_written_at_a_time(pair):
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    slot = taken.part(0)
    for verb in (taken.part, taken.answer, taken.end):
        with pytest.raises(gpuring.RingError, match="a part of call 1 is being written"):
            verb()
    slot.array[...] = 0
    slot.publish()
    last(taken, 1)
    assert read(call) == [0, 1]
    for verb in (taken.part, taken.end, lambda: taken.cancelled, lambda: taken.window):
        with pytest.raises(gpuring.RingError, match="was answered"):
            verb()


def test_a_part_whose_block_raises_is_not_sent_and_its_slot_keeps_the_order(pair):
    """The slot of one call is used by another one only where that does not change its order."""
    server, client = pair
    calls = [send(client, k) for k in range(2)]
    first, second = server.take(2, timeout=PATIENCE_S)
    slot = first.part(0)
    part(second, 0)
    slot.abandon()
    part(second, 1)  # not in the slot that was begun before part 0
    for _ in range(20):
        with pytest.raises(ZeroDivisionError), first.part(0):
            raise ZeroDivisionError
    part(first, 0)
    first.end()
    second.end()
    assert [read(call) for call in calls] == [[0], [0, 1]]
    assert client.late == 0


# ---- credit -------------------------------------------------------------------------------------


def test_a_client_that_does_not_read_is_told_to_its_engine_alone(pair):
    server, client = pair
    slow, quick = send(client, 0), send(client, 1)
    first, second = server.take(2, timeout=PATIENCE_S)
    assert first.window == 2
    part(first, 0)
    part(first, 1)
    for timeout in (0, 0.01):
        with pytest.raises(gpuring.RingFull, match="has not released 2 parts"):
            first.part(timeout)
    reading = quick.parts(PATIENCE_S)
    for k in range(20):
        part(second, k, 0)
        assert read(reading, 1) == [k]
        assert reading.ready is False  # releases it
    second.end()
    assert read(reading) == []
    got = slow.parts(PATIENCE_S)
    assert read(got, 1) == [0]
    with pytest.raises(gpuring.RingFull):
        first.part(0)  # part 0 is still in the body of the loop
    assert read(got, 1) == [1]
    part(first, 2, 0)
    first.end()
    assert read(got) == [2]


def test_a_part_that_waits_goes_on_when_the_client_releases_one(pair):
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    part(taken, 0)
    part(taken, 1)
    join = in_thread(part, taken, 2)
    parts = call.parts(PATIENCE_S)
    assert read(parts, 3) == [0, 1, 2]
    join()
    taken.end()
    assert read(parts) == []


def test_all_calls_of_a_client_have_all_their_parts_and_none_is_overwritten(pair):
    """Every slot is used, and the answers still have theirs."""
    server, client = pair
    calls = [send(client, k) for k in range(3)]
    taken = server.take(3, timeout=PATIENCE_S)
    for each in taken:
        part(each, 0)
        part(each, 1)
    for each in taken:
        last(each, 2)
    held = [call.parts(PATIENCE_S) for call in calls]
    for k in range(3):  # all keep a slot at the same time
        assert [value(next(parts)) for parts in held] == [k] * 3
    assert [read(parts) for parts in held] == [[]] * 3
    assert (client.late, server.counts.undelivered) == (0, 0)


def test_a_call_needs_its_room_until_its_parts_are_released(name):
    with serve(name) as server, gpuring.connect(name, calls=1, parts=2) as client:
        call = send(client, 0)
        taken = take(server)
        part(taken, 0)
        taken.end()
        parts = call.parts(PATIENCE_S)
        assert read(parts, 1) == [0]
        assert call.done
        with pytest.raises(gpuring.RingFull):
            client.request(0)
        assert read(parts) == []
        ask_here(server, client, 1)


def test_parts_are_a_way_to_look_without_waiting(pair):
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    parts = call.parts(0)
    assert not parts.ready
    part(taken, 0)
    assert parts.ready
    assert read(parts, 1) == [0]
    assert not parts.ready
    taken.end()
    assert parts.ready
    assert read(parts) == []


def readable(client, seconds):
    return select.select([client], [], [], seconds)[0] == [client]


def test_a_client_is_readable_though_another_thread_has_received_the_part(pair):
    server, client = pair
    assert not readable(client, 0)
    slow, call = send(client, 0), send(client, 1)
    first, second = server.take(2, max_wait_s=PATIENCE_S, timeout=PATIENCE_S)
    parts = call.parts(PATIENCE_S)
    join = in_thread(slow.wait, PATIENCE_S)
    poll(lambda: receives(client))
    for k in range(2):
        part(second, k)
        poll(call._has_part)
        poll(lambda: receives(client))
        assert readable(client, PATIENCE_S)  # until it is asked
        assert parts.ready
        poll(lambda: not readable(client, 0))
        assert read(parts, 1) == [k]
        assert not parts.ready
    second.end()
    assert read(parts) == []
    first.end()
    join()
    assert read(slow) == []


def test_a_client_is_readable_when_a_part_has_come(pair):
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    parts = call.parts(PATIENCE_S)
    assert not readable(client, 0)
    for k in range(3):
        part(taken, k)
        assert readable(client, PATIENCE_S)
        assert parts.ready
        assert read(parts, 1) == [k]
        assert not parts.ready
        poll(lambda: not readable(client, 0))
    taken.end()
    assert readable(client, PATIENCE_S)
    assert read(parts) == []
    poll(lambda: not readable(client, 0))


# ---- cancelled ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("leave", [leave_the_loop, leave_the_loop_of_a_task, cancel, end_the_block])
def test_who_leaves_before_the_end_cancels_the_call_and_its_engine_sees_it(pair, leave):
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    part(taken, 0)
    part(taken, 1)
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


def test_a_part_that_waits_hears_that_its_call_was_cancelled(pair):
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    part(taken, 0)
    part(taken, 1)
    join = in_thread(taken.part)
    call.cancel()
    with pytest.raises(gpuring.CallCancelled):
        join()


def test_a_task_that_is_cancelled_cancels_its_call(pair):
    server, client = pair

    async def main():
        call = send(client, 0)
        taken = take(server)

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

    asyncio.run(main())


def test_a_part_that_does_not_come_in_time_ends_the_call(pair):
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    part(taken, 0)
    parts = call.parts(0.01)
    assert read(parts, 1) == [0]
    with pytest.raises(gpuring.RingTimeout, match=r"no part within 0\.01 s; given up"):
        next(parts)
    assert taken.cancelled
    taken.end()


def test_an_engine_passes_over_calls_that_were_given_up(pair):
    """Their client has its room again when an engine comes to them."""
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


# ---- the dead -----------------------------------------------------------------------------------


def streamer(pipe, name, n, more=0):
    """An engine that sends n parts of a call, and more when it is told to, and does not end it."""
    with serve(name) as server:
        pipe.send("up")
        call = take(server)
        for k in range(n):
            part(call, k)
        pipe.send("sent")
        pipe.receive()
        for k in range(n, n + more):
            part(call, k)
        if more:
            pipe.send("sent")
            pipe.receive()


def passes_over(server):
    with contextlib.suppress(gpuring.RingTimeout):
        server.take(timeout=0.05)
    return server.counts.cancelled


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_a_stream_whose_engine_dies_or_leaves_is_lost_and_not_begun_again(
    name, children, leaves, other
):
    with serve(name, engine=False), gpuring.connect(name, parts=4, engine_s=100) as client:
        engine = up(children(streamer, name, 3))
        call = send(client, 0)
        assert engine.receive() == "sent"
        parts = call.parts(PATIENCE_S)
        assert read(parts, 2) == [0, 1]
        engine.send() if leaves else engine.kill()
        with contextlib.ExitStack() as stack:
            if other:
                successor = stack.enter_context(serve(name))
            assert read(parts, 1) == [2]  # it has come
            with pytest.raises(gpuring.PeerLost, match="died, or left, after 3 parts"):
                next(parts)
            if other:
                assert poll(lambda: passes_over(successor)) == 1
                ask_here(successor, client, 1)
                assert client.in_flight == 0


def test_what_another_engine_begins_again_behind_parts_that_were_taken_is_not_handed_out(
    name, children
):
    """It has the call before the client has noticed that its engine is dead."""
    with serve(name, engine=False), gpuring.connect(name, parts=4) as client:
        engine = up(children(streamer, name, 2))
        call = send(client, 0)
        assert engine.receive() == "sent"
        parts = call.parts(PATIENCE_S)
        assert read(parts, 2) == [0, 1]
        engine.kill()
        with serve(name) as other:
            taken = take(other)
            part(taken, 10)
            with pytest.raises(gpuring.PeerLost, match="after 2 parts"):
                next(parts)
            with pytest.raises(gpuring.CallCancelled):
                taken.part()
            poll(lambda: client.in_flight == 0)


def test_if_nobody_has_taken_a_part_another_engine_gives_them_from_the_first(name, children):
    """Its parts are not counted with those of the dead engine, which are still in the ring."""
    with serve(name, engine=False), gpuring.connect(name, calls=1, parts=4) as client:
        engine = up(children(streamer, name, 3))
        call = send(client, 0)
        assert engine.receive() == "sent"
        engine.kill()
        with serve(name) as other:
            taken = take(other)
            assert taken.redelivered
            part(taken, 10, 0)
            with pytest.raises(gpuring.RingFull):  # 3 + 1 of 4
                taken.part(0)
            parts = call.parts(PATIENCE_S)
            assert read(parts, 1) == [10]
            assert client.late == 0
            for k in range(11, 20):
                part(taken, k)
                assert read(parts, 1) == [k]
            taken.end()
            assert read(parts) == []
        assert client.in_flight == 0


def test_parts_of_a_dead_engine_that_nobody_has_taken_are_forgotten(name, children):
    """Also before another engine has sent anything."""
    with serve(name, engine=False), gpuring.connect(name, parts=4, engine_s=100) as client:
        engine = up(children(streamer, name, 3))
        call = send(client, 0)
        assert engine.receive() == "sent"
        engine.kill()
        poll(lambda: client._mailbox._ring._header.reap() or client._mailbox._ring._header.reaps)
        parts = call.parts(PATIENCE_S)
        assert not parts.ready
        with serve(name) as other:
            last(take(other), 9)
            assert read(parts) == [9]
        assert client.in_flight == 0


@pytest.mark.slow
def test_a_client_that_waits_for_a_slot_forgets_the_parts_of_a_dead_engine(name, children):
    """Another engine waits for their room, and has the slot that the client waits for."""
    with (
        serve(name, engine=False, slots=2) as keeper,
        gpuring.connect(name, calls=3, parts=2) as client,
    ):
        engine = up(children(streamer, name, 2))
        call = send(client, 0)
        assert engine.receive() == "sent"
        other_slot = send(client, 1)
        engine.kill()
        with serve(name) as other:
            taken = take(other)
            assert taken.redelivered
            with pytest.raises(gpuring.RingFull):
                taken.part(0)

            def engine_goes_on():
                part(taken, 10)
                taken.end()

            join = in_thread(engine_goes_on)
            behind = send(client, 2, timeout=PATIENCE_S)  # a lap behind the stream
            join()
            assert read(call) == [10]
            assert client.late == 0
            for each in (other_slot, behind):
                each.cancel()
        assert keeper.ring.slots == 2


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
    do = operator.methodcaller("__call__")  # in compiled code all the way, as nothing else is
    with pytest.raises(KeyboardInterrupt):
        collections.deque(map(do, [_thread.interrupt_main, parts.clear]), 0)
    assert taken.cancelled
    with pytest.raises(gpuring.CallCancelled):
        taken.part(0)
    poll(lambda: client.in_flight == 0)


def dies_after_its_end(pipe, name, n):
    """Between the end of the stream and the release of its request."""
    with serve(name) as server:
        pipe.send("up")
        call = take(server)
        for k in range(n):
            part(call, k)
        slot = server._claim_answer(call, None, None, END)
        WriteSlot.publish(slot)
        pipe.send("sent")
        pipe.receive()


def test_a_stream_that_is_whole_is_not_begun_again(name, children):
    """The second engine hears that nobody takes what it sends."""
    with serve(name, engine=False), gpuring.connect(name, parts=2) as client:
        engine = up(children(dies_after_its_end, name, 2))
        call = send(client, 0)
        assert engine.receive() == "sent"
        parts = call.parts(PATIENCE_S)
        assert read(parts, 1) == [0]
        engine.kill()
        with serve(name) as other:
            taken = take(other)
            assert taken.redelivered
            join = in_thread(lambda: [part(taken, k) for k in range(100)])
            assert read(parts) == [1]
            client._mailbox.pump(lambda: client.late > 0, None)  # as before each request
            with pytest.raises(gpuring.CallCancelled):
                join()
            ask_here(other, client, 1)


def test_an_engine_hears_that_its_client_has_died(name, children):
    with serve(name) as server:
        client = up(children(dies_waiting, name))
        taken = take(server)
        part(taken, 0)
        part(taken, 1)
        join = in_thread(taken.part)
        client.kill()
        with pytest.raises(gpuring.CallCancelled, match="or is dead"):
            join()
        assert server.counts.undelivered == 1
    assert segments_of(name) == []


def dies_waiting(pipe, name):
    with gpuring.connect(name, parts=2, timeout=PATIENCE_S) as client:
        call = send(client, 0)
        pipe.send("up")
        pipe.receive()
        del call


def test_an_engine_hears_that_its_client_has_left(name):
    with serve(name) as server:
        client = gpuring.connect(name, parts=2)
        call = send(client, 0)
        taken = take(server)
        part(taken, 0)
        client.close()
        assert taken.cancelled
        with pytest.raises(gpuring.CallCancelled):
            taken.part()
        with pytest.raises(gpuring.RingClosed):
            read(call)


def test_a_stream_ends_with_its_client(name):
    with serve(name) as server, gpuring.connect(name, parts=2) as client:
        call = send(client, 0)
        taken = take(server)
        part(taken, 0)
        parts = call.parts(PATIENCE_S)
        assert read(parts, 1) == [0]
        join = in_thread(next, parts)
        poll(lambda: receives(client))
        client.close()
        with pytest.raises(gpuring.RingClosed):
            join()
        assert taken.cancelled


def test_a_part_that_is_missing_ends_the_stream(pair):
    """It was overwritten, or torn.  What comes behind it is not handed out as the next one."""
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    part(taken, 0)
    parts = call.parts(PATIENCE_S)
    assert read(parts, 1) == [0]
    part(taken, 1)
    lost = client._mailbox._answers.acquire(PATIENCE_S)
    lost._call = None
    lost.release()
    assert not parts.ready
    part(taken, 2, 0)
    with pytest.raises(gpuring.PeerLost, match="after 1 parts"):
        next(parts)
    assert taken.cancelled
    taken.end()


class TornPart(Torn):
    """An engine that dies before its GPU has written one of its parts, as far as one can tell."""

    def __init__(self, name, client, children, n, more=0):
        self.client = client
        self.engine = up(children(streamer, name, n, more))
        self.call = send(client, 0)
        assert self.engine.receive() == "sent"


def test_torn_parts_that_nobody_has_taken_come_again_from_another_engine(name, children):
    with serve(name, engine=False), gpuring.connect(name, parts=3) as client:
        torn = TornPart(name, client, children, 3)
        torn.sticks(0)
        torn.dies()
        parts = torn.call.parts(PATIENCE_S)
        assert not parts.ready
        with serve(name) as other:
            taken = take(other)
            part(taken, 8)
            last(taken, 9)
            assert read(parts) == [8, 9]
        assert client.in_flight == 0


def test_a_torn_part_behind_one_that_was_taken_ends_the_stream(name, children):
    with serve(name, engine=False), gpuring.connect(name, parts=3) as client:
        torn = TornPart(name, client, children, 1, 2)
        parts = torn.call.parts(PATIENCE_S)
        assert read(parts, 1) == [0]
        torn.engine.send()
        assert torn.engine.receive() == "sent"
        torn.sticks(1)
        torn.dies()
        with pytest.raises(gpuring.PeerLost, match="after 1 parts"):
            next(parts)


def test_in_the_service_that_takes_its_place_a_client_has_room_for_parts_too(name):
    """And a stream of the former one goes on to its end."""
    with serve(name) as old, gpuring.connect(name, parts=2) as client:
        call = send(client, 0)
        taken = take(old)
        part(taken, 0)
        parts = call.parts(PATIENCE_S)
        assert read(parts, 1) == [0]
        with serve(name, replace=True) as new:
            other = send(client, 1)
            there = take(new)
            assert there.window == 2
            theirs = other.parts(PATIENCE_S)
            for k in range(5):
                part(there, k)
                part(taken, 1 + k)
                assert read(theirs, 1) == [k]
                assert read(parts, 1) == [1 + k]
            there.end()
            taken.end()
            assert read(theirs) == read(parts) == []
            assert client.in_flight == 0


# ---- interrupts and threads ---------------------------------------------------------------------


@pytest.mark.slow
def test_an_interrupt_anywhere_in_a_stream_leaves_its_client_whole(name, quick):
    """No part is lost or comes twice, whether the loop goes on or not."""
    with serve(name) as server, gpuring.connect(name, calls=2, parts=2) as client:
        for interrupt in signals(step=1):
            call = send(client, 0)
            taken = take(server)
            part(taken, 0)
            part(taken, 1)
            got = []
            with interrupt:
                parts = call.parts(PATIENCE_S)
                for each in parts:
                    got.append(value(each))
                    if len(got) == 2:
                        taken.end()
            if interrupt.raised:
                assert got in ([], [0], [0, 1]), interrupt.where
                parts = each = None
                call.cancel()
                taken.answered or taken.end()
            else:
                assert got == [0, 1]
            del call
            client.request(PATIENCE_S).abandon()
            poll(lambda: client.in_flight == 0)


def test_threads_and_tasks_take_parts_of_one_client(name, children):
    with serve(name, engine=False), gpuring.connect(name, calls=6, parts=3) as client:
        engine = up(children(many_streams, name))

        def reads(k):
            return [read(send(client, k)) for _ in range(5)]

        async def in_tasks():
            async def reads(k):
                call = send(client, k)
                return [value(each) async for each in call.parts(PATIENCE_S)]

            return await asyncio.gather(*(reads(k) for k in range(3)))

        joins = [in_thread(reads, k) for k in range(3)]
        assert asyncio.run(in_tasks()) == [list(range(k, k + 20)) for k in range(3)]
        for k, join in enumerate(joins):
            assert join() == [list(range(k, k + 20))] * 5
        assert (client.in_flight, client.late) == (0, 0)
        engine.send()
        engine.result()


def many_streams(pipe, name):
    """An engine that has several streams at a time, a part of each in turn."""
    running = {}
    with serve(name) as server:
        pipe.send("up")
        while not pipe.told():
            with contextlib.suppress(gpuring.RingTimeout):
                for call in server.take(8, timeout=0 if running else 0.05):
                    running[call] = int(call.meta["k"])
            for call, k in list(running.items()):
                with contextlib.suppress(gpuring.RingFull):
                    part(call, k, 0)
                    running[call] += 1
                    if k == int(call.meta["k"]) + 19:
                        call.end()
                        del running[call]


def test_a_stream_that_has_ended_and_that_nobody_took_needs_no_room(pair):
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    part(taken, 0)
    taken.end()
    assert call.wait(PATIENCE_S)
    poll(call._is_over)
    del call
    assert client.in_flight == 0
    ask_here(server, client, 1)


@pytest.mark.parametrize("ending", [gpuring.Call.end, lambda call: last(call, 2)])
def test_a_call_that_is_cancelled_behind_its_end_is_not_whole(pair, ending):
    """What was dropped is not handed out, and the loop says so."""
    server, client = pair
    call = send(client, 0)
    taken = take(server)
    part(taken, 0)
    part(taken, 1)
    ending(taken)
    parts = call.parts(PATIENCE_S)
    assert read(parts, 1) == [0]
    assert call._is_over()  # the end was received with the first part
    call.cancel()
    with pytest.raises(gpuring.RingError, match="was cancelled"):
        next(parts)
    assert client.in_flight == 0


def test_parts_that_were_received_before_their_engine_left_are_not_the_first(name):
    """Another engine has sent the answer when somebody takes the first part."""
    with serve(name, engine=False), gpuring.connect(name, parts=4) as client:
        with serve(name) as server:
            call = send(client, 0)
            taken = take(server)
            for k in range(3):
                part(taken, k)
            assert call.wait(PATIENCE_S)
        with serve(name) as other:
            taken = take(other)
            part(taken, 10)
            taken.end()
            assert read(call) == [10]
        assert client.in_flight == 0


def test_an_end_that_another_thread_has_received_belongs_to_the_stream(name, monkeypatch):
    """A thread may wait for the GIL when it has received it, and then its engine leaves."""
    received, go_on = threading.Event(), threading.Event()
    give = Mailbox._dispatch

    def slowly(box, answer):
        if threading.current_thread() is not threading.main_thread():
            received.set()
            go_on.wait(PATIENCE_S)
        give(box, answer)

    with serve(name, engine=False), gpuring.connect(name, parts=3, engine_s=100) as client:
        with serve(name) as server:
            call = send(client, 0)
            taken = take(server)
            part(taken, 0)
            assert call.wait(PATIENCE_S)
            monkeypatch.setattr(Mailbox, "_dispatch", slowly)
            taken.end()
            join = in_thread(lambda: client._mailbox.pump(call._is_over, None))
            assert received.wait(PATIENCE_S)
        parts = call.parts(PATIENCE_S)
        assert not parts.ready
        go_on.set()
        join()
        assert read(parts) == [0]
        assert client.in_flight == 0


def test_parts_that_a_client_holds_and_nobody_took_have_their_room(name):
    """Another engine sends no more than there is room for beside them, and overwrites nothing."""
    n, parts = 12, 3
    with serve(name, engine=False), gpuring.connect(name, calls=n, parts=parts) as client:
        with serve(name) as server:
            calls = [send(client, k) for k in range(n)]
            for taken in server.take(n, timeout=PATIENCE_S):
                for k in range(parts):
                    part(taken, k)
            for call in calls:
                assert call.wait(PATIENCE_S)
        with serve(name) as other:
            again = other.take(n, timeout=PATIENCE_S)
            for taken in again:
                with pytest.raises(gpuring.RingFull):
                    taken.part(0)
            streams = [call.parts(PATIENCE_S) for call in calls]
            assert not any(stream.ready for stream in streams)  # that gives the parts back
            for taken in again:
                for k in range(parts):
                    part(taken, 10 + k)
                taken.end()
            assert [read(stream) for stream in streams] == [[10, 11, 12]] * n
