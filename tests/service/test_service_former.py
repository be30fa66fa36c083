"""What was begun in a service ends there, also when another one has replaced it."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.processes import PATIENCE_S, poll
from tests.helpers.promise import promise
from tests.service import services
from tests.service.services import (
    answer,
    ask_here,
    finish_in,
    send,
    serve,
)


@promise(
    "services.md", "A call that another engine of the former service has taken is still answered."
)
def test_what_another_engine_has_taken_is_still_answered(name, replaced):
    replaced()
    with gpuring.connect(name) as client, serve(name) as other:
        mine, lost = send(client, 0), send(client, 1)
        (taken,) = other.take(timeout=PATIENCE_S)
        server, former = replaced(), client._mailbox
        ask_here(server, client, 2)
        assert client._former == [former]
        answer(taken)
        finish_in(former, 0, mine)
        assert client.in_flight == 1  # the one that the other engine may still take
        other.close()
        with pytest.raises(gpuring.PeerLost):
            lost.result(PATIENCE_S)
        ask_here(server, client, 3)
        assert client._former == []
        assert former.left


@promise("services.md", "An answer, or a part of one, that has come stays until you release it.")
def test_an_answer_stays_until_it_is_released(name, replaced):
    server = replaced()
    with gpuring.connect(name) as client:
        call = send(client, 0)
        answer(server.take(timeout=PATIENCE_S)[0])
        slot = call.result(PATIENCE_S)
        server, former = replaced(), client._mailbox
        for k in range(1, 4):
            ask_here(server, client, k)
        assert not former.left
        got = slot.array.copy()
        assert (got == services.answer_of(services.content(former.id, 0))).all()
        slot.release()
        ask_here(server, client, 4)
        assert former.left


@promise("services.md", "An answer, or a part of one, that has come stays until you release it.")
def test_a_part_of_an_answer_stays_until_it_is_released(name, replaced):
    """It stays although the call has ended, because the engine has left."""
    replaced()
    with gpuring.connect(name, parts=4) as client:
        with serve(name) as other:
            call = send(client, 0)
            parts = call.parts(PATIENCE_S)
            (taken,) = other.take(timeout=PATIENCE_S)
            for k in range(2):
                with taken.part() as slot:
                    slot.array[...] = k
            first, former = next(parts), client._mailbox
            server = replaced()
        ask_here(server, client, 1)
        poll(lambda: client.in_flight and call._error)
        ask_here(server, client, 2)
        assert client._former == [former]
        assert (first.array == 0).all()
        parts.close()
        ask_here(server, client, 3)
        assert client._former == []


@promise("services.md", "So is one whose request was half written.")
def test_a_request_that_is_half_written_ends_with_its_service(name, replaced):
    replaced()
    with gpuring.connect(name) as client:
        slot = client.request()
        call = slot.call
        server = replaced()
        ask_here(server, client, 1)
        slot.publish()
        with pytest.raises(gpuring.PeerLost):
            call.result(PATIENCE_S)
        ask_here(server, client, 2)
        assert client._former == []


def test_calls_that_were_given_up_keep_nobody_in_the_former_service(name, replaced):
    replaced()
    with gpuring.connect(name) as client, serve(name) as other:
        call = send(client, 0)
        assert other.take(timeout=PATIENCE_S)
        call.cancel()
        send(client, 1)  # its PendingCall is dropped
        server = replaced()
        ask_here(server, client, 2)
        ask_here(server, client, 3)
        assert client._former == []
        assert client.in_flight == 0


def test_a_client_is_closed_in_the_former_service_too(name, replaced):
    replaced()
    client = gpuring.connect(name)
    with serve(name) as other:
        call = send(client, 0)
        assert other.take(timeout=PATIENCE_S)
        server, former = replaced(), client._mailbox
        ask_here(server, client, 1)
        client.close()
        assert former.left
        assert client.in_flight == 1
        with pytest.raises(gpuring.RingClosed, match="this client was closed"):
            call.result(PATIENCE_S)
