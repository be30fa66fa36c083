"""When a dead process is gone altogether: its pidfd tells, where there is one, and no lock."""

from __future__ import annotations

import pytest

from gpuring.cli.inspect import describe
from gpuring.registry.stats import collect
from tests.helpers.support import poll
from tests.native.offer import gives_its_locks_up


@pytest.mark.parametrize(("memory", "sync"), [("ipc", "timeline"), ("host", "host")])
def test_on_a_gpu_nobody_is_cleared_before_the_process_is_gone(segment, children, memory, sync):
    """G1: its lock goes before its GPU work does.  In host memory there is no such work."""
    ring = segment(2, memory=memory, sync=sync)
    child = children(gives_its_locks_up, ring.path)
    number = child.receive()
    child.send()
    child.receive()
    assert ring.creator.live_peers() == []
    if memory == "host":
        assert ring.creator.reap() == [number]
        return
    assert ring.creator.reap() == []
    child.kill()
    assert ring.creator.reap() == [number]


@pytest.mark.parametrize(("memory", "sync"), [("ipc", "timeline"), ("host", "host")])
def test_on_a_gpu_the_dead_of_another_pid_namespace_are_never_cleared(
    segment, children, memory, sync
):
    """Nobody outside can tell when its GPU work is gone.  In host memory the locks tell all."""
    ring = segment(2, memory=memory, sync=sync)
    child = children(gives_its_locks_up, ring.path)
    number = child.receive()
    there = ring.peek("peer", "pidns", number)
    ring.poke("peer", "pidns", there + 1, number)
    child.kill()
    (seen,) = collect("r", ring.creator).peers
    assert not seen.alive
    if memory == "host":
        assert ring.creator.reap() == [number]
        return
    assert ring.creator.reap() == []
    assert "DEAD, not cleared yet" in describe(collect("r", ring.creator))
    ring.poke("peer", "pidns", there, number)
    assert ring.creator.reap() == [number]


def test_the_watchdog_clears_who_has_no_pidfd_here(segment, children):
    """In host memory: it looks at a peer of another pid namespace again and again."""
    ring = segment(2)
    child = children(gives_its_locks_up, ring.path)
    number = child.receive()
    ring.poke("peer", "pidns", ring.peek("peer", "pidns", number) + 1, number)
    ours = ring.producer()  # whose process has a watchdog; nobody else reaps
    child.kill()
    poll(lambda: ring.creator.reaps == 1)
    assert ring.creator.live_peers() == [ours.number]
