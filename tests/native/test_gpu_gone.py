"""When a dead process is gone with its GPU work.  Its pidfd says so, if there is one, and no lock
does."""

from __future__ import annotations

import pytest

from gpuring.cli.inspect import describe
from gpuring.registry.survey import collect
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.native.offer import gives_its_locks_up

KINDS = pytest.mark.parametrize("kind", ["GPU ring", "host ring", "pinned, GPU", "pinned, CPU"])


def started(segment, children, kind):
    """A ring, a process with a peer that gives its locks up, and the peer's number."""
    memory, sync = {"G": ("ipc", "timeline"), "h": ("host", "host"), "p": ("pinned", "timeline")}[
        kind[0]
    ]
    ring = segment(2, memory=memory, sync=sync)
    child = children(gives_its_locks_up, ring.path)
    number = child.receive()
    if kind == "pinned, GPU":
        ring.poke("peer", "gpu", 1, number)
    return ring, child, number


@promise(
    "failure.md",
    "They are cleared as in a host ring, and peers with a GPU as in a GPU ring.",
)
@promise(
    "architecture.md",
    "On a GPU the pidfd of the process must also say that the process and its GPU work are gone.",
    "Two things may be noticed only by these looks. One is that a peer has lost its locks although "
    "its process lives, which happens if a program closes all its descriptors.",
)
@KINDS
def test_on_a_gpu_nobody_is_cleared_before_the_process_is_gone(segment, children, kind):
    """G1: its lock goes before its GPU work does.  A peer without a GPU has no such work."""
    ring, child, number = started(segment, children, kind)
    child.ask()
    assert ring.creator.live_peers() == []
    if "GPU" not in kind:
        assert ring.creator.reap() == [number]
        return
    assert ring.creator.reap() == []
    child.kill()
    assert ring.creator.reap() == [number]


@promise(
    "limits.md",
    'The peers of a GPU ring with `memory="ipc"` must share a pid namespace if the dead are to be '
    "cleared.",
)
@promise(
    "containers.md",
    "So peers of a GPU ring in different containers clear each other only if they have handed "
    "their pidfds to each other, or if the containers share a pid namespace (`--pid=host`, "
    "`--pid=container:…`). `gpuring inspect` shows the dead as dead, even if nobody can clear "
    "them.",
    "It is not cleared if everybody who had its pidfd is dead as well.",
)
@KINDS
def test_on_a_gpu_the_dead_of_another_pid_namespace_are_never_cleared(segment, children, kind):
    """Nobody outside the namespace can know when its GPU work is gone.  Without a GPU the locks are
    enough."""
    ring, child, number = started(segment, children, kind)
    there = ring.peek("peer", "pidns", number)
    ring.poke("peer", "pidns", there + 1, number)
    child.kill()
    (seen,) = collect("r", ring.creator).peers
    assert not seen.alive
    if "GPU" not in kind:
        assert ring.creator.reap() == [number]
        return
    assert ring.creator.reap() == []
    assert "DEAD, not cleared yet" in describe(collect("r", ring.creator))
    ring.poke("peer", "pidns", there, number)
    assert ring.creator.reap() == [number]


@promise(
    "architecture.md",
    "Peers in another pid namespace are looked at every 20 ms, unless they have handed their pidfd "
    "over.",
)
def test_the_watchdog_clears_who_has_no_pidfd_here(segment, children):
    """In host memory the watchdog looks at a peer of another pid namespace again and again."""
    ring = segment(2)
    child = children(gives_its_locks_up, ring.path)
    number = child.receive()
    ring.poke("peer", "pidns", ring.peek("peer", "pidns", number) + 1, number)
    ours = ring.producer()  # the only peer with a watchdog
    child.kill()
    poll(lambda: ring.creator.reaps == 1)
    assert ring.creator.live_peers() == [ours.number]
