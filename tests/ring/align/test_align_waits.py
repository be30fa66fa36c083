"""align: waiting in asyncio and in threads, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

import gpuring
from tests.helpers.interrupted import interrupts
from tests.helpers.processes import poll
from tests.helpers.rings import waiters
from tests.ring.align import now, pts


def test_asyncio(streams):
    """Other tasks run meanwhile.  A task that is cancelled loses no frame and leaves no waiter
    behind."""
    both = streams()
    aligned = both.align("pts", timeout=None)

    async def main() -> list[tuple]:
        task = asyncio.ensure_future(anext(aligned))
        while any(waiters(ring) != 1 for ring in both.rings):
            await asyncio.sleep(0.001)
        both.put(0, 1)
        while both.held() != [1, 0] or waiters(both.rings[1]) != 1:
            await asyncio.sleep(0.001)
        with pytest.raises(RuntimeError, match="another task"):
            await both.consumers[0].acquire_async()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [waiters(ring) for ring in both.rings] == [0, 0]
        both.put(1, 1, 2)
        both.put(0, 2)
        both.end()
        return [pts(slots) async for slots in aligned]

    assert asyncio.run(main()) == [(1, 1), (2, 2)]


async def test_asyncio_times_out_and_gives_way(streams):
    both = streams()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticker = asyncio.ensure_future(tick())
    aligned = both.align("pts", timeout=0.05)
    k = 0
    while ticks <= 10:
        both.put(0, k)
        both.put(1, k)
        assert pts(await anext(aligned)) == (k, k)
        k += 1
    with pytest.raises(gpuring.RingTimeout):
        await anext(aligned)
    ticker.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["pts", None])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.filterwarnings("ignore:ring .* nobody has its slot:ResourceWarning")
def test_ctrl_c_anywhere_loses_no_frame(streams, by, partial):
    both = streams()
    aligned = both.align(by, partial=partial, depth=2)
    now(aligned)
    k = both.rings[0].slots - 2  # so that pts counts as the sequence does
    for interrupt in interrupts(step=7):  # a step of 1 takes half a minute
        k += 2
        found, raised = [], True
        both.put(0, k, k + 1)
        both.put(1, k, k + 1)
        while raised:
            with interrupt:
                while True:
                    try:
                        slots = next(aligned)
                    except gpuring.RingTimeout:
                        break
                    # Not pts(): in debug mode metadata is Python, and the interrupt would come
                    # when the frames have been handed out.
                    found.append(tuple(None if slot is None else slot.seq for slot in slots))
            raised, interrupt.raised = interrupt.raised, False
        if by:
            assert found == [(k, k), (k + 1, k + 1)], interrupt.where
        else:
            assert found[-1] == (k + 1, k + 1), interrupt.where
        assert both.held() == [0, 0], interrupt.where


@pytest.mark.filterwarnings("ignore:ring .* nobody has its slot:ResourceWarning")
def test_an_interrupted_close_can_be_repeated(streams):
    both = streams()
    for interrupt in interrupts():
        both.put(0, 1, 2, 3)
        both.put(1, 1)
        aligned = both.align("pts")
        next(aligned)
        with pytest.raises(gpuring.RingTimeout):
            next(aligned)
        with interrupt:
            aligned.close()
        aligned.close()
        assert both.held() == [0, 0], interrupt.where
        with both.consumers[0].acquire(0) as two, both.consumers[0].acquire(0) as three:
            assert pts((two, three)) == (2, 3), interrupt.where


def test_ctrl_c_ends_a_wait(streams):
    both = streams()
    aligned = both.align("pts", timeout=None)
    both.put(0, 1)

    def interrupt() -> None:
        poll(lambda: waiters(both.rings[1]) == 1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        next(aligned)
    thread.join()
    both.put(1, 1)
    assert pts(next(aligned)) == (1, 1)


def test_who_waits_for_a_partner_sleeps(streams):
    both = streams()
    both.put(0, 1)
    wall, cpu = time.monotonic(), time.process_time()
    with pytest.raises(gpuring.RingTimeout):
        next(both.align("pts", timeout=0.5, max_wait_s=20))
    assert time.process_time() - cpu < (time.monotonic() - wall) / 5
