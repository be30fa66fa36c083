"""What an event loop receives in one turn of an engine whose GPU is not done."""

from __future__ import annotations

import asyncio

import pytest

import gpuring
from gpuring.service import delivery, mailbox
from tests.helpers.processes import PATIENCE_S
from tests.native.device.instant_driver import attach_driver
from tests.service.in_loops import settled
from tests.service.services import answer, send, serve


@pytest.fixture
def drivers(monkeypatch):
    """Puts the ring of answers on a GPU.  Gives the drivers of its client and of its engine."""
    found = []

    def driven(function):
        def call(*args):
            ring = function(*args)
            attach_driver(ring)
            found.append(ring.driver)
            return ring

        return call

    monkeypatch.setattr(mailbox, "make_answer_ring", driven(mailbox.make_answer_ring))
    monkeypatch.setattr(delivery, "attach", driven(delivery.attach))
    return found


@pytest.mark.parametrize("written", [False, True])
def test_a_loop_receives_what_is_written_and_at_most_one_answer_that_is_not(name, drivers, written):
    """If a stream waited for answers that nobody has asked for, the next request would be late."""

    async def main():
        waits = [asyncio.ensure_future(call.result_async(PATIENCE_S)) for call in calls]
        await settled()
        held = client._mailbox._answers._peer.holding
        for each in taken[1:]:
            answer(each)
        assert len(held()) == 0
        while not held():
            await asyncio.sleep(0)
        assert len(held()) == (3 if written else 1)
        engine.stuck = False
        engine.finish()
        for each in asyncio.as_completed(waits, timeout=PATIENCE_S):
            (await each).release()

    with serve(name) as server, gpuring.connect(name, calls=4) as client:
        calls = [send(client, k) for k in range(4)]
        taken = server.take(4, timeout=PATIENCE_S)
        answer(taken[0])  # the engine joins the ring of answers
        calls.pop(0).result(PATIENCE_S).release()
        _, engine = drivers
        engine.stuck = not written
        asyncio.run(main())
        assert not any(driver.broken for driver in drivers)
