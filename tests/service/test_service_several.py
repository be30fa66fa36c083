"""One engine of several services: what it takes first, how it waits, and what it leaves out."""

from __future__ import annotations

import pytest

import gpuring
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.service.services import answer, finish, in_thread, send, serve


@pytest.fixture
def two(name, place):
    """An engine of two services, the urgent one first, and a client of each."""
    with (
        serve(f"{name}-urgent", place) as urgent,
        serve(f"{name}-normal", place) as normal,
        gpuring.connect(urgent.name, calls=16) as first,
        gpuring.connect(normal.name, calls=16) as second,
    ):
        yield urgent, normal, first, second


@promise(
    "services.md",
    "An engine can serve several services.",
    "All calls of a batch are of one service, and `calls.server` says of which. As long as an "
    "earlier service has calls, those of the later ones wait.",
)
def test_the_first_service_that_has_calls_goes_first(two, place):
    urgent, normal, first, second = two
    calls = [(second, k, send(second, k, place)) for k in range(2)]
    calls += [(first, k, send(first, k, place)) for k in range(3)]
    place.wait()  # with gate="host" a call is there when the GPU has written it
    order = []
    while len(order) < 6:
        with gpuring.take([urgent, normal], 2, timeout=10) as batch:
            if not order:  # one more, while others have waited for long
                calls.append((first, 3, send(first, 3, place)))
                place.wait()
            order += [batch.server] * len(batch)
            for call in batch:
                answer(call)
    assert order == [urgent] * 4 + [normal] * 2
    for client, k, call in calls:
        finish(client, k, call, place)


@pytest.mark.parametrize("index", [0, 1])
def test_a_call_to_any_of_several_services_ends_the_wait(two, index, place):
    servers, client = two[:2], two[2 + index]
    taking = in_thread(gpuring.take, servers)
    poll(lambda: all(any(peer.waiting for peer in each.stats().peers) for each in servers))
    call = send(client, 7, place)
    batch = taking()
    assert batch.server is servers[index]
    answer(batch[0])
    finish(client, 7, call, place)


def test_a_batch_of_several_services_is_filled_from_one(two, place):
    urgent, normal, first, second = two
    send(second, 0, place)
    taking = in_thread(gpuring.take, [urgent, normal], 2, 20.0, 10.0)
    poll(lambda: len(normal._calls) == 1)
    send(first, 1, place)
    send(second, 2, place)
    assert [int(call.meta["k"]) for call in taking()] == [0, 2]
    batch = gpuring.take([urgent, normal], 2, timeout=10)
    assert (batch.server, [int(call.meta["k"]) for call in batch]) == (urgent, [1])


def test_several_services_wait_as_long_as_they_are_told(two):
    servers = two[:2]
    for timeout in (0, 0.01):
        with pytest.raises(gpuring.RingTimeout, match=rf"services .*urgent', .*within {timeout}"):
            gpuring.take(servers, timeout=timeout)


def test_what_several_services_leave_out_does_not_end_the_wait(two, place):
    urgent, normal, first, second = two
    send(first, 0, place, expires_s=0)
    left = gpuring.connect(urgent.name)
    send(left, 1, place)
    left.close()
    place.wait()  # with gate="host" a call is there when the GPU has written it
    call = send(second, 2, place)
    batch = gpuring.take([urgent, normal], timeout=10)
    assert batch.server is normal
    answer(batch[0])
    finish(second, 2, call, place)
    assert (urgent.counts.expired, urgent.counts.dropped) == (1, 1)


@promise("services.md", "Services that were closed are left out until all of them are closed.")
def test_services_that_were_closed_are_left_out_until_the_last(name):
    kept = [serve(f"{name}-{k}", engine=False) for k in range(3)]
    servers = [gpuring.serve(each.name) for each in kept]
    with gpuring.connect(servers[2].name) as client:
        kept[0].close()
        call = send(client, 0)
        answer(gpuring.take(servers, timeout=10)[0])
        finish(client, 0, call)
        taking = in_thread(gpuring.take, servers)
        poll(lambda: any(peer.waiting for peer in servers[2].stats().peers))
    for each in kept[1:]:
        each.close()
    with pytest.raises(gpuring.EndOfStream, match="was closed"):
        taking()
    for each in servers:
        each.close()
    with pytest.raises(gpuring.RingClosed):
        gpuring.take(servers, timeout=10)


def test_what_is_no_server_is_refused(two):
    urgent, _, first, _ = two
    with pytest.raises(TypeError, match="several servers"):
        gpuring.take(urgent)
    with pytest.raises(TypeError, match="what serve"):
        gpuring.take([urgent, first])
    with pytest.raises(ValueError, match="at least one"):
        gpuring.take([])
    with pytest.raises(ValueError, match="max_batch"):
        gpuring.take([urgent], 0, timeout=0)
