"""When a dead process is gone altogether: its pidfd tells, where there is one, and no lock."""

from __future__ import annotations

import pytest

from gpuring.cli.inspect import describe
from gpuring.registry.survey import collect
from tests.helpers.promise import promise
from tests.helpers.support import poll
from tests.native.offer import gives_its_locks_up


@promise(
    "failure.md",
    "On a GPU the pidfd of the process must also say that the process and its GPU work are gone.",
    "Two things may be noticed only by these looks. One is that a peer has lost its locks although "
    "its process lives, which happens if a program closes all its descriptors.",
)
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


@promise(
    "README.md",
    'The peers of a GPU ring with `memory="ipc"` must share a pid namespace if the dead are to be '
    "cleared.",
)
@promise(
    "failure.md",
    "So peers of a GPU ring in different containers clear each other only if they have handed "
    "their pidfds to each other, or if the containers share a pid namespace (`--pid=host`, "
    "`--pid=container:…`). `gpuring inspect` shows the dead as dead, even if nobody can clear "
    "them.",
    "It is not cleared if everybody who had its pidfd is dead as well.",
)
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


@promise(
    "failure.md",
    "Peers in another pid namespace are looked at every 20 ms, unless they have handed their pidfd "
    "over.",
)
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
