"""Answers in parts: what happens when an engine or a client dies or leaves."""

from __future__ import annotations

import contextlib

import pytest

import gpuring
from gpuring.ring.write_slot import WriteSlot
from gpuring.service._envelopes import END
from tests.helpers.processes import PATIENCE_S, poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.helpers.words import written_by_gpu
from tests.service.parts import begun, last, part, read, take
from tests.service.services import ask_here, in_thread, passes_over, receives, send, serve
from tests.service.torn_answers import Torn


def streamer(pipe, name, n, more=0):
    """An engine that sends n parts of a call, and more when it is told to, and does not end it."""
    with serve(name) as server:
        pipe.send("up")
        call = take(server)
        for k in range(n):
            part(call, k)
        pipe.ask("sent")
        for k in range(n, n + more):
            part(call, k)
        if more:
            pipe.ask("sent")


@promise(
    "parts.md",
    "the loop raises `PeerLost` after the parts that have come; no other engine gets the call",
)
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
            assert read(parts, 1) == [2]  # this part had come already
            with pytest.raises(gpuring.PeerLost, match="died, or left, after 3 parts"):
                next(parts)
            if other:
                assert poll(lambda: passes_over(successor)) == 1
                ask_here(successor, client, 1)
                assert client.in_flight == 0


def test_what_another_engine_begins_again_behind_parts_that_were_taken_is_not_handed_out(
    name, children
):
    """The other engine has the call before the client has noticed that the first engine is dead."""
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


@promise(
    "parts.md",
    "another engine gives the answer from its beginning, also while the client waits to send "
    "another request",
)
def test_if_nobody_has_taken_a_part_another_engine_gives_them_from_the_first(name, children):
    """The parts of the new engine are not counted with those of the dead one, which are still in
    the ring."""
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
    """They are forgotten even before another engine has sent anything."""
    with serve(name, engine=False), gpuring.connect(name, parts=4, engine_s=100) as client:
        engine = up(children(streamer, name, 3))
        call = send(client, 0)
        assert engine.receive() == "sent"
        assert call.wait(PATIENCE_S)  # the parts are here
        engine.kill()
        poll(lambda: client._mailbox._ring._header.reap() or client._mailbox._ring._header.reaps)
        parts = call.parts(PATIENCE_S)
        assert not parts.ready
        with serve(name) as other:
            last(take(other), 9)
            assert read(parts) == [9]
        assert client.in_flight == 0


def dies_after_its_end(pipe, name, n):
    """An engine that dies between the end of its stream and the release of the request."""
    with serve(name) as server:
        pipe.send("up")
        call = take(server)
        for k in range(n):
            part(call, k)
        slot = server._claim_answer(call, None, None, END)
        WriteSlot.publish(slot)
        pipe.ask("sent")


@promise(
    "parts.md",
    "the parts are whole; the next engine gets `CallCancelled` when it sends them again",
)
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


@promise(
    "parts.md",
    "It also does so when the client has died or left.",
    "`call.part()` raises `CallCancelled`",
)
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
        pipe.ask("up")
        del call


@promise(
    "parts.md",
    "It also does so when the client has died or left.",
)
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
    """The part was overwritten, or torn.  The part behind it is not handed out in its place."""
    _, client = pair
    call, taken = begun(pair, 1)
    parts = call.parts(PATIENCE_S)
    assert read(parts, 1) == [0]
    part(taken, 1)
    lost = client._mailbox._answers.acquire(PATIENCE_S)
    lost._call = None
    lost.release()
    assert not parts.ready
    part(taken, 2, 0)
    with pytest.raises(gpuring.PeerLost, match="after 1 part of"):
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

    def sticks(self, index=0):
        ring = self.client._mailbox._ring
        written_by_gpu(ring, ring._header.slots + index)
        super().sticks(index)


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


@promise(
    "parts.md",
    "A part that is missing, because it is torn, ends the loop with `PeerLost`, too.",
)
def test_a_torn_part_behind_one_that_was_taken_ends_the_stream(name, children):
    with serve(name, engine=False), gpuring.connect(name, parts=3) as client:
        torn = TornPart(name, client, children, 1, 2)
        parts = torn.call.parts(PATIENCE_S)
        assert read(parts, 1) == [0]
        torn.engine.send()
        assert torn.engine.receive() == "sent"
        torn.sticks(1)
        torn.dies()
        with pytest.raises(gpuring.PeerLost, match="after 1 part of"):
            next(parts)


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


@promise(
    "parts.md",
    "another engine gives the answer from its beginning, also while the client waits to send "
    "another request",
)
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
