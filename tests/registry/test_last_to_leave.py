"""The last process that leaves the ring of a dead creator takes its names out of /dev/shm."""

from __future__ import annotations

import os
import secrets
import signal
import sys

import pytest

import gpuring
from gpuring import native
from gpuring.registry import leftovers
from gpuring.ring import inner
from tests.helpers.processes import Pipe, poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.registry.containers import as_on_gpu

OPTIONS = {"slots": 4, "shape": 4, "dtype": "u1", "device": "host"}


def creates(pipe: Pipe, name: str, linked: bool = False) -> None:
    """Creates a ring and publishes a frame, until it is killed."""
    ring = gpuring.create(name, **OPTIONS)
    producer = ring.producer()
    producer.claim().publish()
    if linked:
        inner.set_link(ring, secrets.token_bytes(16), 1, 0)
    pipe.ask()


def reads(pipe: Pipe, name: str, how: str) -> None:
    """Attaches and reads, and leaves when it is told to."""
    ring = gpuring.attach(name)
    frames = ring.consumer(start="oldest")
    pipe.ask()
    if how == "it closes the ring":
        ring.close()
    elif how == "its program ends":
        sys.exit()  # the frames are still open
    else:
        del frames, ring  # the frames and the ring are dropped


LEAVES = ("it closes the ring", "its program ends", "it drops the ring")


@promise(
    "failure.md",
    "Those inside go on in every ring.",
    "can attach as long as somebody is inside. The last one to leave removes the names.",
    "**Names.** If the creator of a ring is dead, the last process that leaves the ring cleanly "
    "takes its names out of `/dev/shm`.",
)
@pytest.mark.parametrize("how", LEAVES)
def test_the_last_one_takes_the_names_of_the_dead_away(name, children, how):
    creator = up(children(creates, name))
    readers = [children(reads, name, how) for _ in range(2)]
    for reader in readers:
        reader.receive()
    creator.kill()
    before = segments_of(name)
    for reader in readers:
        assert segments_of(name) == before
        gpuring.attach(name).close()  # this one is not the last, and changes nothing
        assert segments_of(name) == before
        reader.send()
        reader.process.join(60)
    assert len(before) == 2
    assert segments_of(name) == []


def test_of_several_that_leave_at_the_same_moment_one_is_the_last(name, children):
    readers = []
    for _ in range(3):
        creator = up(children(creates, name))
        readers = [children(reads, name, LEAVES[0]) for _ in range(4)]
        for reader in readers:
            reader.receive()
        creator.kill()
        for reader in readers:
            reader.stop()
            reader.send()
        for reader in readers:
            os.kill(reader.pid, signal.SIGCONT)
        for reader in readers:
            reader.result()
        assert segments_of(name) == []


def test_who_is_killed_leaves_the_names_to_those_that_come_later(name, children):
    creator, reader = children(creates, name), None
    creator.receive()
    reader = up(children(reads, name, LEAVES[0]))
    creator.kill()
    reader.kill()
    assert len(segments_of(name)) == 2
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as frames:
        poll(lambda: len(ring.stats().peers) == 1)  # the dead were cleared
        frames.acquire(10).release()
    assert segments_of(name) == []


@promise(
    "failure.md",
    "The names of a ring that a bridge has made also stay, because the importer goes on with that "
    "ring.",
    "**Durable subscriptions.** Their ring keeps its name when its creator closes it or dies, and "
    "the next ring of that name takes them over.",
)
@pytest.mark.parametrize("what", ["of a bridge", "with a durable subscription"])
def test_a_ring_that_others_want_to_go_on_with_keeps_its_names(name, children, what):
    creator = up(children(creates, name, what == "of a bridge"))
    with gpuring.attach(name) as ring:
        if what == "with a durable subscription":
            ring.subscribe("recorder")
        creator.kill()
        before = segments_of(name)
        with ring.consumer():
            pass
    assert segments_of(name) == before
    assert name in gpuring.clean()


def test_nobody_takes_the_names_of_a_ring_that_has_replaced_the_one_of_the_dead(name, children):
    creator = up(children(creates, name))
    with gpuring.attach(name) as old:
        creator.kill()
        with gpuring.create(name, **OPTIONS) as ring:
            old.close()
            gpuring.attach(name).close()
            assert len(segments_of(name)) == 2
            assert not ring._header.closed


ON_GPU = {"slots": 4, "slot_nbytes": 4096, "patience_s": 10}


def creates_on_gpu(pipe: Pipe, name: str) -> None:
    kept = as_on_gpu(name, make=True, **ON_GPU)
    pipe.ask()
    del kept


@promise(
    "failure.md",
    "On a GPU the names stay, for the next start or `gpuring clean`, if another process has the "
    "ring open at that moment, or arrays of it.",
)
def test_names_on_a_gpu_stay_for_those_who_may_still_join(name, children):
    """Processes that have only attached have no peer, so nobody who tidies up counts them."""
    creator = up(children(creates_on_gpu, name))
    (first, fd), (second, other_fd) = (as_on_gpu(name, make=False, **ON_GPU) for _ in range(2))
    assert not native.goes_with_the_last(name, first)
    creator.kill()
    assert not native.goes_with_the_last(name, first)
    second.disown()
    assert native.goes_with_the_last(name, first)
    first.disown()
    assert not native.goes_with_the_last(name, first)
    assert leftovers.remove_dead(name)
    os.close(fd)
    os.close(other_fd)
