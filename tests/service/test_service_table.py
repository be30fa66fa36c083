"""The sentences of docs/services.md that no other file of tests holds."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gpuring
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.service import services
from tests.service.services import answer, ask_here, finish, in_thread, send, serve
from tests.service.torn_answers import Torn

# ---- calls --------------------------------------------------------------------------------------


@promise("services.md", "Requests and answers live in rings, so nothing is copied on the way.")
def test_neither_a_request_nor_an_answer_is_copied(name):
    """Each side sees what the other one writes into the slot afterwards."""
    with serve(name) as server, gpuring.connect(name) as client:
        with client.request() as slot:
            written, call = slot.array, slot.call
        (taken,) = server.take(timeout=10)
        written[:] = 5
        assert (taken.array == 5).all()
        with taken.answer() as slot:
            written = slot.array
        with call.result(10) as slot:
            written[:] = 6
            assert (slot.array == 6).all()


@promise("services.md", "With `timeout=` it waits until the service appears.")
def test_an_engine_waits_for_its_service_to_appear(name):
    with pytest.raises(gpuring.RingNotFound):
        gpuring.serve(name, timeout=0.05)
    begun = threading.Event()
    joining = in_thread(lambda: begun.set() or gpuring.serve(name, timeout=20))
    assert begun.wait(20)
    looks = iter(range(50))  # long enough for serve to look and find nothing
    poll(lambda: next(looks, None) is None)
    with serve(name, engine=False), joining() as server, gpuring.connect(name) as client:
        ask_here(server, client, 0)


@promise(
    "services.md",
    "SystemExit and Ctrl-C do not fail the calls. The server gives these calls to another engine "
    "when it closes.",
)
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_an_engine_that_is_told_to_end_gives_its_calls_to_another_one(name, end):
    with serve(name, engine=False), gpuring.connect(name) as client:
        with pytest.raises(end), serve(name) as server:  # noqa: PT012
            call = send(client, 0)
            with server.take(timeout=10):
                raise end
        with serve(name) as other:
            answer(other.take(timeout=10)[0])
            finish(client, 0, call)
        assert (client.late, client.in_flight) == (0, 0)


@promise("services.md", "`call.slot` is for `torch.from_dlpack`.")
def test_the_slot_of_a_call_is_an_array_to_others(name):
    with serve(name) as server, gpuring.connect(name) as client:
        send(client, 3)
        (taken,) = server.take(timeout=10)
        assert np.shares_memory(np.from_dlpack(taken.slot), taken.array)
        assert (np.from_dlpack(taken.slot) == services.content(client.id, 3)).all()


@promise("services.md", "`client.call(…, timeout=)` sets this by itself.")
def test_engines_pass_over_a_call_in_one_line_whose_time_is_up(name):
    with serve(name) as server, gpuring.connect(name) as client:
        with pytest.raises(gpuring.RingTimeout):
            client.call(services.whole(1), timeout=0)
        send(client, 2)
        (taken,) = server.take(2, timeout=10)
        assert (int(taken.meta["k"]), server.counts.expired) == (2, 1)


@promise(
    "services.md",
    "`server.counts` says how many calls were taken, answered, failed, expired, cancelled, "
    "dropped, undelivered and redelivered.",
)
def test_each_end_of_a_call_is_counted(name):
    with serve(name) as server:
        client, gone = gpuring.connect(name), gpuring.connect(name)
        calls = [send(client, k) for k in range(3)]
        send(gone, 3)
        taken = server.take(4, max_wait_s=10, timeout=10)
        send(client, 4, expires_s=0)
        send(client, 6).cancel()
        send(gone, 5)
        gone.close()
        answer(taken[0])
        taken[1].fail("why")
        answer(taken[2])
        answer(taken[3])
        with pytest.raises(gpuring.RingTimeout):
            server.take(3, timeout=0)
        counts = {"taken": 4, "answered": 2, "failed": 1, "expired": 1, "dropped": 1}
        counts |= {"cancelled": 1, "undelivered": 1, "redelivered": 0}
        counts |= {"waited_s": 0, "max_wait_s": 0}
        assert vars(server.counts) == counts
        assert calls[0].wait(10)
        client.close()


@promise("services.md", "Answers have a ring of `calls + 4` slots.")
@pytest.mark.parametrize("calls", [1, 8])
def test_answers_have_a_ring_of_four_slots_more_than_calls(name, calls):
    with serve(name), gpuring.connect(name, calls=calls):
        (ring,) = [ring for ring in gpuring.ls() if ring.name.startswith(f"{name}.")]
        assert ring.slots == calls + 4


@promise(
    "services.md",
    "A request ring has at most 250 peers. A client needs one of them, and an engine or a keeper "
    "needs two.",
)
def test_a_client_needs_one_peer_and_an_engine_or_keeper_two(name):
    def peers():
        return len(keeper.stats().peers)

    with serve(name, engine=False) as keeper:
        assert peers() == 2
        with gpuring.connect(name) as client, serve(name) as server:
            assert peers() == 5
            ask_here(server, client, 0)
            assert peers() == 5
            (ring,) = [ring for ring in gpuring.ls() if ring.name.startswith(f"{name}.")]
            assert len(ring.peers) == 3  # the client's own two, and the engine
        with serve(name), gpuring.attach(name) as ring:
            others = [ring.producer() for _ in range(186)]
            clients = [gpuring.connect(name) for _ in range(60)]
            assert peers() == 250
            with pytest.raises(gpuring.TooManyPeers):
                gpuring.connect(name)
            for each in (*clients, *others):
                each.close()


# ---- an answer whose GPU work died with its engine ----------------------------------------------


@promise("services.md", "the answer is torn: `result()` raises `PeerLost`")
def test_a_torn_answer_that_was_not_received_is_lost(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client:
        torn = Torn(name, client, children)
        torn.sticks()
        torn.dies()
        with serve(name) as other:
            with pytest.raises(gpuring.PeerLost):
                torn.call.result(20)
            ask_here(other, client, 1)


@promise(
    "services.md",
    "the answer is torn: `answer.check()` and its release raise `FrameTorn`; if it was released "
    "before, a later `result()` raises it",
)
def test_a_torn_answer_that_is_held_is_told_by_check_and_at_release(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client:
        torn = Torn(name, client, children)
        slot = torn.call.result(10)
        torn.sticks()
        torn.dies()
        with pytest.raises(gpuring.FrameTorn):
            slot.check()
        with pytest.raises(gpuring.FrameTorn):
            slot.release()
        with serve(name) as other:
            ask_here(other, client, 1)


@promise(
    "services.md",
    "the answer is torn: `answer.check()` and its release raise `FrameTorn`; if it was released "
    "before, a later `result()` raises it",
)
def test_a_torn_answer_that_was_released_is_told_by_a_later_result(name, children):
    with serve(name, engine=False), gpuring.connect(name) as client:
        torn = Torn(name, client, children)
        slot = torn.call.result(10)
        torn.sticks()
        slot.release()
        torn.dies()
        with serve(name) as other:
            call = send(client, 1)
            answer(other.take(timeout=10)[0])
            with pytest.raises(gpuring.FrameTorn):
                call.result(10)
            finish(client, 1, call)
