"""A client that does not wait drops requests, and counts them."""

from __future__ import annotations

import contextlib

import pytest

import gpuring
from gpuring.cli.inspect import describe
from tests.helpers import commands
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.words import locked
from tests.service.services import (
    content,
    engine,
    finish,
    in_thread,
    is_held,
    is_taken_for_dead,
    send,
    serve,
)

FOR_EVER_S = 1e6
MANY = 60
"""A test of a client that waits, so long or so often, would not end within its deadline."""


def drops(client):
    """Tries to send when there is no room.  Returns how many requests were dropped so far."""
    assert client.try_request() is None
    return client.dropped


@promise(
    "services.md",
    "`try_request` is for a client that must not wait, such as a camera that asks a detector. It "
    "returns None where `request` would wait or raise `RingFull`, and counts the request as "
    "dropped:",
    "`client.dropped` has the count. The statistics of the request ring have it for each client "
    "and in all, and `gpuring metrics` and `gpuring inspect` have it in all.",
)
def test_a_request_that_finds_no_slot_is_counted_as_dropped(name):
    with serve(name, slots=2) as server, gpuring.connect(name) as one, gpuring.connect(name) as two:
        with pytest.raises(TypeError, match="takes no stream"):
            one.try_request(stream=5)
        with one.try_request(expires_s=60, shape=(2,)) as slot:
            call = slot.call
            assert slot.array.shape == (2,)
        (taken,) = server.take(timeout=10)
        assert taken.time_left <= 60
        send(two, 0)
        assert [drops(one), drops(one), drops(two)] == [1, 2, 1]
        stats = server.stats()
        assert [peer.dropped for peer in stats.producers] == [0, 2, 1]
        assert stats.dropped == 3
        assert "3 requests dropped by clients that do not wait" in describe(stats)
        taken.fail("done")
        with pytest.raises(gpuring.CallFailed):
            call.result(10)


def test_metrics_have_the_requests_that_were_dropped(name):
    pytest.importorskip("prometheus_client", reason="gpuring[tools] is not installed")
    with serve(name, slots=1) as server, gpuring.connect(name) as client:
        send(client, 0)
        assert client.try_request() is None
        told = commands.gpuring("metrics", "--once").stdout
        assert f'frames_dropped_total{{ring="{name}"}} 1.0' in told
        (taken,) = server.take(timeout=10)
        taken.fail("done")


@promise(
    "services.md",
    "It does so if the request ring is full, if all `calls` of the client are open, and if another "
    "thread is sending.",
)
def test_a_client_without_room_for_an_answer_drops(name):
    with serve(name) as server, gpuring.connect(name, calls=1) as client:
        call = send(client, 0)
        assert drops(client) == 1
        server.take(timeout=10)[0].fail("no")
        assert call.wait(10)
        client.try_request().abandon()  # a failure needs no room
        assert client.dropped == 1


@promise(
    "services.md",
    "It does so if the request ring is full, if all `calls` of the client are open, and if another "
    "thread is sending.",
)
def test_a_client_does_not_wait_for_a_thread_that_sends(name):
    with serve(name, slots=1) as server, gpuring.connect(name) as client:
        first = send(client, 0)
        sending = in_thread(send, client, 1)
        poll(lambda: is_held(client._sending))
        assert drops(client) == 1
        server.take(timeout=10)[0].fail("no")
        sending().cancel()
        first.cancel()


@promise(
    "services.md",
    "It also does so while there is no engine, or no service. So the camera goes on over restarts "
    "of its engines and of the service. `gpuring.health` says whether there is an engine.",
)
def test_a_camera_goes_on_over_the_death_of_its_engine(name, children):
    with serve(name, engine=False), gpuring.connect(name, engine_s=FOR_EVER_S) as camera:
        for k in range(2):
            assert drops(camera) == k + 1
            assert gpuring.health(name).engines == 0
            worker = up(children(engine, name))
            with camera.try_request() as slot:
                slot.array[...] = content(camera.id, k)
                slot.meta["k"] = k
                call = slot.call
            finish(camera, k, call)
            worker.kill()
            poll(lambda: not camera._has_engines())


@promise(
    "services.md",
    "It also does so while there is no engine, or no service. So the camera goes on over restarts "
    "of its engines and of the service.",
)
def test_a_client_drops_while_there_is_no_service_and_counts_on_in_the_next(name):
    server = serve(name)
    with gpuring.connect(name, engine_s=FOR_EVER_S) as client:
        server.close()
        assert [drops(client), drops(client)] == [1, 2]
        with serve(name, slots=1) as server:
            send(client, 0)
            assert drops(client) == 3
            assert server.stats().dropped == 1  # it is another ring


@promise(
    "services.md",
    "If a process that is stopped keeps the client from joining the next service, or from leaving "
    "the one before, `try_request` does not wait for it. In the first case it drops the request.",
)
def test_a_client_does_not_wait_to_join_the_next_service(name):
    with serve(name) as server, gpuring.connect(name) as client:
        server.close()
        with serve(name):
            with locked(name):
                for k in range(MANY):
                    assert drops(client) == k + 1
                with pytest.raises(gpuring.PeerLost, match="no other service"):
                    client.request(0)
            client.try_request().abandon()


@promise(
    "services.md",
    "If a process that is stopped keeps the client from joining the next service, or from leaving "
    "the one before, `try_request` does not wait for it.",
)
def test_a_client_does_not_wait_to_leave_a_former_service(name):
    with serve(name), gpuring.attach(name) as former, gpuring.connect(name) as client:
        before = len(former.stats().producers)
        with contextlib.ExitStack() as stack:
            with locked(name):
                stack.enter_context(serve(name, replace=True))
                for _ in range(MANY):
                    client.try_request().abandon()
                assert client._former == []
                assert len(former.stats().producers) == before
            poll(lambda: len(former.stats().producers) == before - 1)


def test_who_cannot_send_any_more_is_told(name):
    with serve(name), gpuring.connect(name) as client:
        is_taken_for_dead(client)
        with pytest.raises(gpuring.PeerLost):
            client.try_request()
        assert client.dropped == 0
    with pytest.raises(gpuring.RingClosed):
        client.try_request()
