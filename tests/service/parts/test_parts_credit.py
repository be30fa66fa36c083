"""Answers in parts: the room that a client has for them."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.promise import promise
from tests.helpers.rings import readable
from tests.service.parts import begun, last, part, read, take, value
from tests.service.services import answer, ask_here, in_thread, receives, send, serve


@promise(
    "parts.md",
    "`connect(parts=8)` gives each call room for 8 parts that were sent and not released. If there "
    "is none left, `call.part(timeout=0)` raises `RingFull` at once, and `call.part()` waits. The "
    "engine can go on with other calls, and nothing is dropped.",
)
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


@promise(
    "parts.md",
    "A call keeps the slot of its request until it ends, and a lap of the request ring later no "
    "client can send. So fail a call whose client has made no room for some seconds.",
)
@promise(
    "services.md",
    "| the same, with an answer in parts that has no room for the next one | clients wait a full "
    "lap of the request ring later, unless its engine [fails the call]"
    "(parts.md#a-client-that-reads-slowly) |",
)
def test_a_call_that_fails_is_no_longer_in_the_way(name):
    with (
        serve(name, slots=2) as server,
        gpuring.connect(name, parts=1) as slow,
        gpuring.connect(name) as other,
    ):
        call = send(slow, 0)
        (taken,) = server.take(timeout=PATIENCE_S)
        part(taken, 0)
        answered = send(other, 0)
        answer(*server.take(timeout=PATIENCE_S))
        answered.result(PATIENCE_S).release()
        with pytest.raises(gpuring.RingFull, match="has held sequence 2"):
            other.request(0)
        taken.fail("its client does not read")
        other.request(0).abandon()
        parts = call.parts(PATIENCE_S)
        assert read(parts, 1) == [0]
        with pytest.raises(gpuring.CallFailed, match="does not read"):
            next(parts)


@promise(
    "parts.md",
    "If there is none left, `call.part(timeout=0)` raises `RingFull` at once, and `call.part()` "
    "waits.",
)
def test_a_part_that_waits_goes_on_when_the_client_releases_one(pair):
    call, taken = begun(pair, 2)
    join = in_thread(part, taken, 2)
    parts = call.parts(PATIENCE_S)
    assert read(parts, 3) == [0, 1, 2]
    join()
    taken.end()
    assert read(parts) == []


def test_all_calls_of_a_client_have_all_their_parts_and_none_is_overwritten(pair):
    """The parts use every slot that the answers leave them."""
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


@promise(
    "parts.md",
    "A call is open until all of its parts are released.",
)
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


@promise(
    "parts.md",
    "`parts.ready` says whether the loop would wait.",
)
def test_parts_are_a_way_to_look_without_waiting(pair):
    call, taken = begun(pair)
    parts = call.parts(0)
    assert not parts.ready
    part(taken, 0)
    assert parts.ready
    assert read(parts, 1) == [0]
    assert not parts.ready
    taken.end()
    assert parts.ready
    assert read(parts) == []


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
        assert readable(client, PATIENCE_S)  # still, until it is asked
        assert parts.ready
        poll(lambda: not readable(client, 0))
        assert read(parts, 1) == [k]
        assert not parts.ready
    second.end()
    assert read(parts) == []
    first.end()
    join()
    assert read(slow) == []


@promise(
    "parts.md",
    "`client.fileno()` is readable when a part may have come.",
)
def test_a_client_is_readable_when_a_part_has_come(pair):
    _, client = pair
    call, taken = begun(pair)
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


def test_in_the_service_that_takes_its_place_a_client_has_room_for_parts_too(name):
    """A stream of the former service goes on to its end."""
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


def test_a_stream_that_has_ended_and_that_nobody_took_needs_no_room(pair):
    server, client = pair
    call, taken = begun(pair, 1)
    taken.end()
    assert call.wait(PATIENCE_S)
    poll(call._is_over)
    del call
    assert client.in_flight == 0
    ask_here(server, client, 1)


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
            assert not any(stream.ready for stream in streams)  # to look gives the parts back
            for taken in again:
                for k in range(parts):
                    part(taken, 10 + k)
                taken.end()
            assert [read(stream) for stream in streams] == [[10, 11, 12]] * n


def test_a_part_that_is_released_gives_credit_though_its_slot_was_left_out(name):
    """The client receives what is beyond it at once."""
    with serve(name) as server, gpuring.connect(name, calls=2, parts=8) as client:
        streams = [send(client, k).parts(PATIENCE_S) for k in range(2)]
        taken = [take(server) for _ in streams]
        for each in taken:
            for k in range(8):
                part(each, k, 0)
        assert all(parts.ready for parts in streams)
        assert read(streams[1], 8) == list(range(8))
        for k in range(8, 15):
            part(taken[1], k, 0)
        assert read(streams[0], 2) == [0, 1]
        part(taken[0], 8, 0)
        for each in taken:
            each.end()
        assert read(streams[0]) == list(range(2, 9))
        assert read(streams[1]) == list(range(8, 15))


@pytest.mark.parametrize("over", [False, True])
def test_parts_need_no_more_room_than_theirs_until_their_slots_are_passed(name, over):
    """If their call is over, that is the room of one call for all of them."""
    with serve(name) as server, gpuring.connect(name, calls=4, parts=8) as client:
        parts = send(client, 0).parts(PATIENCE_S)
        taken = take(server)
        for k in range(8):
            part(taken, k)
        if over:
            taken.end()
        assert parts.ready
        for k in range(client._options.answers - 9 - over):
            ask_here(server, client, k)
        calls = [send(client, 1), send(client, 2)]
        slow, quick = take(server), take(server)
        with slow.answer():  # in the slot before those of the parts
            last(quick, 1)
            assert read(parts, 8) == list(range(8))
            assert parts.ready is over
            calls.append(send(client, 3, timeout=0))
            with pytest.raises(gpuring.RingFull, match=f"{4 - over} are in flight"):
                client.request(0)
        if not over:
            taken.end()
            assert read(parts) == []
        calls.append(send(client, 4, timeout=0))
        last(take(server), 1)
        last(take(server), 1)
        for call in calls:
            call.result(PATIENCE_S).release()
