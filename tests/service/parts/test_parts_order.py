"""Answers in parts: their order, and their end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import gpuring
from tests.helpers.arrays import array_of, assign
from tests.helpers.processes import PATIENCE_S
from tests.helpers.promise import promise
from tests.service.parts import begun, last, part, read, take, value
from tests.service.services import ask_here, content, in_thread, send, serve


@promise(
    "parts.md",
    "The client gets the parts in the order in which they were sent. An engine ends the call with "
    "`call.end()`, or with `call.answer()`, which is the last part then.",
)
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
                    assign(array_of(slot), array_of(taken.slot) + k)
            taken.end()

        join = in_thread(engine)
        for k, each in enumerate(call.parts(PATIENCE_S)):
            assert (place.read(each) == content(client.id, 0) + k).all()
        assert k == 19
        join()


@promise(
    "parts.md",
    "To `call.parts()` an answer as a whole is the only part.",
)
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


@promise(
    "parts.md",
    "It may also fail the call: the client gets the parts that were sent, and then `CallFailed`.",
)
def test_parts_that_have_come_are_handed_out_before_a_failure(pair):
    call, taken = begun(pair, 2)
    taken.fail("why")
    parts = call.parts(PATIENCE_S)
    assert read(parts, 2) == [0, 1]
    with pytest.raises(gpuring.CallFailed, match="why"):
        next(parts)


@promise(
    "parts.md",
    "If parts come to `call.result()`, it raises `RingError`, and the call is over.",
)
@pytest.mark.parametrize("early", [False, True])
def test_a_result_is_no_place_for_parts_and_says_so(pair, early):
    call, taken = begun(pair)
    join = None if early else in_thread(call.result, PATIENCE_S)
    part(taken, 0)
    with pytest.raises(
        gpuring.RingError, match=r"is answered in parts: take them with call\.parts"
    ):
        call.result(PATIENCE_S) if join is None else join()
    assert taken.cancelled
    taken.end()


@promise(
    "parts.md",
    "By default `parts` is 0. Then `call.part()` and `call.end()` raise `RingError`, and "
    "`call.window` is 0.",
)
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


@promise(
    "parts.md",
    "Answers have a ring of `calls × (1 + parts) + 4` slots then.",
)
@pytest.mark.parametrize("parts", [-1, 128, 1.5, None])
def test_a_client_has_room_for_as_many_parts_as_a_ring_has_slots(name, parts):
    with serve(name):
        with gpuring.connect(name, calls=8, parts=126) as client:
            assert client._mailbox._ring.slots == 8 * (1 + 126) + 4
        with pytest.raises((ValueError, TypeError), match="parts must be"):
            gpuring.connect(name, calls=8, parts=parts)


@promise(
    "parts.md",
    "A call has one part at a time that is being written.",
)
def test_one_part_is_written_at_a_time(pair):
    call, taken = begun(pair)
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


@pytest.mark.filterwarnings("ignore:.*nobody has its slot:ResourceWarning")
@pytest.mark.parametrize(
    "go_on",
    [
        lambda taken: part(taken, 1),
        lambda taken: last(taken, 1),
        lambda taken: taken.end(),
        lambda taken: taken.fail("on purpose"),
    ],
    ids=["part", "answer", "end", "fail"],
)
def test_a_part_that_nobody_has_is_in_nobodys_way(pair, go_on):
    """The part's slot was dropped before it was sent."""
    server, client = pair
    call, taken = begun(pair, 1)
    taken.part(0)
    go_on(taken)
    if not taken.answered:
        taken.end()
    parts = call.parts(PATIENCE_S)
    assert read(parts, 1) == [0]
    with contextlib.suppress(gpuring.CallFailed):
        assert read(parts) in ([], [1])
    ask_here(server, client, 1)
