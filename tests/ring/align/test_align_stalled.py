"""align over streams of other processes, one of which stands still, dies, comes late, or comes
back."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

import pytest

import gpuring
from tests.helpers.processes import Pipe, poll
from tests.ring.align import SPEC, now, pts


def camera(pipe: Pipe, name: str, first: int = 0) -> None:
    """Publishes as many frames as the test asks for.  The number 0 asks for the last frame of
    all."""
    with gpuring.attach(name, timeout=20) as ring, ring.producer() as producer:
        pipe.send()
        while more := pipe.receive():
            for k in range(first, first + more):
                with producer.claim(20) as slot:
                    slot.meta["pts"] = k
            first += more
            pipe.send()


@pytest.fixture
def cameras(name, children):
    """Three rings, a process that publishes in each, and a consumer of each."""
    rings = [gpuring.create(f"{name}-{k}", **SPEC, device="host") for k in range(3)]
    crew = [children(camera, ring.name) for ring in rings]
    for each in crew:
        each.receive()
    yield crew, [ring.consumer() for ring in rings]
    for ring in rings:
        ring.close()


def all_publish(crew, frames=1):
    for each in crew:
        each.send(frames)
    for each in crew:
        each.receive()


def test_a_stream_that_stands_still_holds_up_nobody(cameras):
    """A process is stopped and continued.  Its frames then come alone, and later ones together
    again."""
    crew, consumers = cameras
    aligned = gpuring.align(consumers, "pts", partial=True, timeout=0)
    all_publish(crew, 3)
    assert now(aligned) == [(k, k, k) for k in range(3)]
    os.kill(crew[1].pid, signal.SIGSTOP)
    crew[1].send(40)  # to be done when it goes on
    found = []
    for _ in range(40):
        all_publish([crew[0], crew[2]])  # a process whose ring is jammed does not answer
        found += now(aligned)
    assert found == [(k, None, k) for k in range(3, 43 - 3)], "four frames wait, and no more"
    os.kill(crew[1].pid, signal.SIGCONT)
    found = []
    while len(found) < 40:
        found += now(aligned)
    assert found == [(None, k, None) for k in range(3, 40)] + [(k, k, k) for k in range(40, 43)]
    crew[1].receive()
    all_publish(crew, 2)
    assert now(aligned) == [(k, k, k) for k in (43, 44)]
    assert aligned.unmatched == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("partial", [False, True])
def test_a_stream_that_dies(cameras, partial):
    """What its producer has published is handed out.  The end of the loop says that the producer
    died."""
    crew, consumers = cameras
    aligned = gpuring.align(consumers, "pts", partial=partial, timeout=20)
    all_publish(crew)
    crew[1].kill()
    assert pts(next(aligned)) == (0, 0, 0)
    if partial:
        all_publish([crew[0], crew[2]])
        assert pts(next(aligned)) == (1, None, 1)
        for each in (crew[0], crew[2]):
            each.send(0)
            each.result()
    with pytest.raises(gpuring.PeerLost):
        next(aligned)


@pytest.mark.slow
def test_a_late_stream_is_waited_for_and_then_takes_part(cameras):
    """At first its ring has no producer."""
    crew, consumers = cameras
    aligned = gpuring.align(consumers, "pts", timeout=0)
    all_publish(crew[:2], 3)
    assert now(aligned) == []
    all_publish([crew[2]], 2)
    assert now(aligned) == [(0, 0, 0), (1, 1, 1)]
    all_publish([crew[2]], 3)
    all_publish(crew[:2], 1)
    assert now(aligned) == [(2, 2, 2), (3, 3, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["another producer", "another ring"])
@pytest.mark.parametrize("waits", ["sync", "async"])
def test_a_stream_that_is_reattached_is_missing_meanwhile(name, children, how, waits, stack):
    create, names = partial(gpuring.create, **SPEC, device="host"), [f"{name}-{k}" for k in (0, 1)]
    rings = [stack.enter_context(create(each)) for each in names]
    crew = [children(camera, ring.name) for ring in rings]
    for each in crew:
        each.receive()
    ours = stack.enter_context(gpuring.attach(names[1]))
    consumers = [rings[0].consumer(), ours.consumer("x", reattach=True)]
    aligned = gpuring.align(consumers, "pts", partial=True, depth=2, timeout=20)

    def step():
        if waits == "sync":
            return next(aligned)

        async def main():
            return await anext(aligned)

        return asyncio.run(main())

    all_publish(crew, 2)
    assert [pts(step()), pts(step())] == [(0, 0), (1, 1)]
    crew[1].kill()
    poll(lambda: rings[1].stats().reaps == 1)
    all_publish(crew[:1], 2)
    assert pts(step()) == (2, None)
    if how == "another ring":
        stack.enter_context(create(names[1], replace=True))
    crew[1] = children(camera, names[1], 3)
    crew[1].receive()
    all_publish(crew[1:])
    left, right = step()
    assert (pts((left, right)), right.restarted) == ((3, 3), True)
    all_publish(crew)
    assert pts(step()) == (4, 4)
    aligned.close()
