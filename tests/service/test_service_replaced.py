"""Services that are closed or replaced while clients use them.  The clients go on in the next
one."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest

import gpuring
from tests.helpers.processes import PATIENCE_S, open_files, poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.service import services
from tests.service.in_loops import ask_here as ask_here_async
from tests.service.services import (
    TERMS,
    answer,
    ask_here,
    check,
    engine,
    finish,
    finish_in,
    holder,
    in_thread,
    is_held,
    send,
    serve,
)

# ---- calls --------------------------------------------------------------------------------------


@promise(
    "services.md",
    "A service ends when its creator closes it, when another one takes its name (`serve(…, "
    "replace=True)`), or on a GPU when it is started again after its creator died. Its clients "
    "need not connect again: the next `request` goes to the new service.",
    "A call that no engine of the former service has taken, or will take, is lost: `result()` "
    "raises `PeerLost`.",
    "The client does not send it again by itself, because an engine may have worked on it.",
    "`client.id` and `client.ring` change.",
)
def test_the_next_request_goes_to_the_service_that_took_the_place(name, replaced):
    replaced()
    with gpuring.connect(name) as client:
        taken, waiting = send(client, 0), send(client, 1)
        first, numbers = client.ring, (client.id, client.name)
        server = replaced()
        for call in (taken, waiting):
            with pytest.raises(gpuring.PeerLost, match="is lost: the service was closed or replac"):
                call.result(PATIENCE_S)
        ask_here(server, client, 2)
        assert client.ring is not first
        assert first.closed
        assert numbers != (client.id, client.name)
        with pytest.raises(gpuring.RingTimeout):
            server.take(timeout=0)  # nobody has sent the others again
        assert client.in_flight == 0


@promise(
    "services.md",
    "A service ends when its creator closes it, when another one takes its name (`serve(…, "
    "replace=True)`), or on a GPU when it is started again after its creator died.",
    "While there is no new service, `request` waits for it for as long as `connect(engine_s=)` "
    "says.",
    "Clients go on in the next service of that name, as described "
    "[above](#when-a-service-is-replaced).",
)
def test_a_request_waits_for_the_service_to_come_back(name):
    server = serve(name)
    with gpuring.connect(name, engine_s=PATIENCE_S) as client:
        ask_here(server, client, 0)
        server.close()
        sending = in_thread(send, client, 1, None)
        poll(lambda: is_held(client._sending))
        with serve(name) as server:
            call = sending()
            answer(server.take(timeout=PATIENCE_S)[0])
            finish(client, 1, call)


@promise("services.md", "Then it raises `PeerLost`, and the next request tries again.")
def test_a_request_says_that_no_service_came(name):
    with serve(name), gpuring.connect(name, engine_s=0.01) as client:
        pass
    with serve(name) as server, gpuring.connect(name, engine_s=0.01) as client:
        server.close()
        with pytest.raises(gpuring.PeerLost, match=r"was closed, and no other .* within 0\.01 s$"):
            client.request()
        with pytest.raises(gpuring.PeerLost, match=r"was closed, and no other .* came yet$"):
            client.request(0)
        with serve(name) as other:
            ask_here(other, client, 0)


def test_who_has_to_wait_for_room_goes_to_the_next_service(name, replaced):
    replaced()
    with gpuring.connect(name, calls=2) as client, serve(name) as other:
        full = [send(client, k) for k in range(2)]
        taken, former = other.take(2, timeout=PATIENCE_S), client._mailbox
        waiting = in_thread(send, client, 2, None)
        poll(lambda: is_held(client._sending))
        server = replaced()
        call = waiting()
        answer(server.take(timeout=PATIENCE_S)[0])
        finish(client, 2, call)
        for k, call in enumerate(full):
            answer(taken[k])
            finish_in(former, k, call)


@promise(
    "services.md",
    "Threads and tasks that wait to send a request go there, too, and tasks keep their turn.",
)
def test_who_waits_for_a_slot_goes_to_the_next_service(name, replaced):
    replaced(slots=1)
    with gpuring.connect(name) as client:
        lost = send(client, 0)
        waiting = in_thread(send, client, 1, None)
        poll(lambda: any(each.waiting for each in client.ring.stats().producers))
        server = replaced()
        call = waiting()
        answer(server.take(timeout=PATIENCE_S)[0])
        finish(client, 1, call)
        with pytest.raises(gpuring.PeerLost):
            lost.result(PATIENCE_S)


def test_a_call_in_one_line_goes_to_the_next_service(name, replaced):
    replaced()
    with gpuring.connect(name) as client:
        server = replaced()
        calling = in_thread(client.call, services.content(0, 5), PATIENCE_S)
        (taken,) = server.take(timeout=PATIENCE_S)
        taken.reply(services.whole(7))
        with calling() as slot:
            assert (slot.array == 7).all()


def test_a_name_that_was_taken_from_a_service_without_engines_leads_to_the_next(name, children):
    """gpuring.unlink() does not close the ring."""
    with serve(name, engine=False) as keeper, gpuring.connect(name, engine_s=PATIENCE_S) as client:
        gpuring.unlink(name)
        with serve(name) as server:
            ask_here(server, client, 0)
            assert not keeper.closed


# ---- what is still open in the former service ---------------------------------------------------


# ---- services that do not fit -------------------------------------------------------------------


@promise(
    "services.md",
    "If the new service has other shapes, dtypes or metadata, or other memory, `request` raises "
    "`RingIncompatible`.",
)
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            {"request": ((3,), "i8")},
            r"another request: it has \(3,\) int64 .* that had \(64,\) int64",
        ),
        ({"response_meta": None}, "another response: it has .* and no metadata, and this client"),
    ],
)
def test_a_service_with_other_terms_is_told(name, other, told):
    with gpuring.serve(name, **TERMS, device="host"), gpuring.connect(name) as client:
        with gpuring.serve(name, **(TERMS | other), device="host", replace=True) as server:
            before = len(open_files())
            for _ in range(3):
                with pytest.raises(gpuring.RingIncompatible, match=told):
                    client.request(1)
            assert len(server.stats().peers) == 2
            assert len(open_files()) <= before  # fewer, if the old service's watchdog ends only now
        with serve(name) as server:
            ask_here(server, client, 0)


@promise("services.md", "It also does so if a plain ring has that name now.")
def test_a_ring_that_is_no_service_is_told(name):
    plain = {"slots": 2, "shape": (1,), "dtype": "i8", "device": "host", "replace": True}
    with (
        serve(name),
        gpuring.connect(name) as client,
        gpuring.create(name, **plain),
        pytest.raises(gpuring.RingIncompatible, match="is a ring, not a service"),
    ):
        client.request(1)


@promise(
    "services.md", "The number of slots, `redeliver` and `engine` of the creator may be different."
)
def test_what_engines_agree_on_may_be_another(name, replaced):
    """This is the number of slots, what happens to the calls of dead engines, and who keeps the
    ring."""
    replaced()
    with gpuring.connect(name, engine_s=PATIENCE_S) as client:
        replaced(slots=3, redeliver=False, engine=False)
        with gpuring.serve(name) as server:
            ask_here(server, client, 0)


# ---- processes ----------------------------------------------------------------------------------


def test_a_service_is_replaced_while_its_engines_are_dead(name, children):
    victim = up(children(holder, name, 1))
    with gpuring.connect(name, engine_s=PATIENCE_S) as client:
        call = send(client, 0)
        assert victim.receive() == [0]
        victim.kill()
        worker = up(children(engine, name, None, {"replace": True}))
        with pytest.raises(gpuring.PeerLost):
            call.result(PATIENCE_S)
        services.ask(client, 1)
        worker.send()
        assert worker.result()["answered"] == 1


@promise(
    "services.md",
    "In host memory it does so even when all engines are dead and only a client is left. `serve(…, "
    "replace=True)` replaces the service then.",
)
def test_a_client_keeps_a_service_whose_engines_are_dead(name, children):
    """So engines with other terms must take the name."""
    other = {"request": ((3,), "i8")}
    victim = up(children(engine, name))
    with gpuring.connect(name) as client:
        victim.kill()
        with pytest.raises(gpuring.RingIncompatible, match="with another request"):
            serve(name, **other)
        serve(name, replace=True, **other).close()
        assert client.in_flight == 0
    with serve(name, **other):
        pass  # nobody is left in it


def test_a_client_goes_on_in_every_kind_of_memory(name, place, children):
    """Meanwhile the client keeps an answer of the former service."""
    first = up(children(engine, name, place))
    with gpuring.connect(name, timeout=10, engine_s=PATIENCE_S) as client:
        services.ask(client, 0, place)
        kept, former = send(client, 1, place).result(PATIENCE_S), client._mailbox
        second = up(children(engine, name, place, {"replace": True}))
        assert first.result()["answered"] == 2  # the engine finds its service closed
        services.ask(client, 2, place)
        check(former, 1, kept, place)
        kept.release()
        services.ask(client, 3, place)
        assert client._former == []
        assert former.left
    second.send()
    assert second.result()["answered"] == 2


# ---- what is left -------------------------------------------------------------------------------


def maps(name):
    return Path("/proc/self/maps").read_text().count(name)


@promise(
    "services.md",
    "Then a request or a look at `in_flight` leaves the former service, and nothing is left of it.",
)
@pytest.mark.slow
def test_nothing_is_left_of_the_services_before(name, replaced):
    replaced()
    with gpuring.connect(name) as client:
        client.fileno()

        async def one(server, k):
            await ask_here_async(server, client, k)

        def one_round(k):
            lost = send(client, k)
            server = replaced()
            ask_here(server, client, k)
            with pytest.raises(gpuring.PeerLost):
                lost.result(PATIENCE_S)
            asyncio.run(one(server, k))
            assert client._former == []

        def left():
            gc.collect()
            files, names = len(open_files()), len(segments_of(name))
            return files, names, maps(name), threading.active_count()

        for k in range(3):
            one_round(k)
        before = left()
        for k in range(3, 23):
            one_round(k)
        assert left() == before
        assert len(client._queues) <= 1
