"""Culprits in rings of this host."""

from __future__ import annotations

from collections.abc import Iterator

import gpuring
from tests.cli.planted.blame import Blame, Children, planted
from tests.cli.processes import (
    busy,
    camera,
    camera_with_a_reader,
    creator,
    holder,
    keeper,
    reader,
    reads_on,
    selects,
    stage,
    writer,
)
from tests.helpers.processes import up
from tests.helpers.rings import small_ring
from tests.helpers.words import locked


@planted
def a_stopped_reader(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        recorder = up(children(reader, name, "recorder"))
        recorder.stop()
        up(children(camera, name))
        yield Blame("stopped", recorder.pid, "recorder")


@planted
def a_full_ring_further_on(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name), small_ring(f"{name}-seen"):
        page = up(children(reader, f"{name}-seen", "page"))
        page.stop()
        up(children(reader, name, "viewer"))
        up(children(stage, name, "detector", f"{name}-seen"))
        up(children(camera, name))
        yield Blame("stopped", page.pid, "page")


@planted
def a_lost_handle(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        recorder = up(children(keeper, name, "recorder"))
        up(children(camera, name))
        yield Blame("keeps", recorder.pid, "recorder")


@planted
def a_held_frame(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        recorder = up(children(holder, name, "recorder"))
        up(children(camera, name))
        yield Blame("holds", recorder.pid, "recorder")


@planted
def a_busy_reader(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        recorder = up(children(busy, name, "recorder"))
        up(children(camera, name))
        yield Blame("takes", recorder.pid, "recorder")


@planted
def a_process_that_does_not_read_itself(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        yield Blame("itself", up(children(camera_with_a_reader, name)).pid, "own")


@planted
def a_subscription_that_nobody_reads(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name) as ring:
        ring.subscribe("recorder")
        up(children(reader, name, "viewer"))
        up(children(camera, name))
        yield Blame("no reader", None, "recorder")


@planted
def a_claim_that_is_never_published(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        yield Blame("writes", up(children(writer, name)).pid, "viewer")


@planted
def a_dead_process_that_nobody_clears(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        up(children(camera, name))
        recorder = up(children(holder, name, "recorder"))
        with locked(name):  # as a process does that is stopped at that moment
            recorder.kill()
            yield Blame("dead", recorder.pid, "recorder")


@planted
def a_stopped_camera(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        stopped = up(children(camera, name))
        stopped.stop()
        yield Blame("stopped", stopped.pid, "viewer")


@planted
def a_ring_without_producers(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        yield Blame("no producer")


@planted
def a_ring_whose_creator_was_killed(children: Children, name: str) -> Iterator[Blame]:
    """Somebody reads on, and waits for the next ring of that name."""
    made_it = up(children(creator, name))
    viewer = up(children(reads_on, name, "viewer"))
    try:
        made_it.kill()
        yield Blame("no creator")
    finally:
        viewer.kill()
        gpuring.unlink(name)


@planted
def a_select_that_has_lost_the_producer_of_one_ring(
    children: Children, name: str
) -> Iterator[Blame]:
    with small_ring(f"{name}-b"):
        made_it = up(children(creator, name))
        both = up(children(selects, name, f"{name}-b"))
        up(children(camera, f"{name}-b"))
        try:
            made_it.kill()
            yield Blame("no creator")
        finally:
            both.kill()
            gpuring.unlink(name)


@planted
def a_select_that_has_lost_all_producers(children: Children, name: str) -> Iterator[Blame]:
    made = [up(children(creator, each)) for each in (name, f"{name}-b")]
    both = up(children(selects, name, f"{name}-b"))
    try:
        for child in made:
            child.kill()
        yield Blame("no creator")
    finally:
        both.kill()
        gpuring.unlink(name)
        gpuring.unlink(f"{name}-b")


@planted
def a_ring_in_which_all_are_dead(children: Children, name: str) -> Iterator[Blame]:
    made_it, viewer = up(children(creator, name)), up(children(busy, name, "viewer"))
    try:
        viewer.stop()  # a stopped process does not clear the dead one
        made_it.kill()
        viewer.kill()
        yield Blame("dead ring")
    finally:
        gpuring.unlink(name)


@planted
def a_circle(children: Children, name: str) -> Iterator[Blame]:
    """Each of two processes waits for a slot that the other one keeps."""
    with small_ring(name), small_ring(f"{name}-b"):
        there = up(children(stage, name, "there", f"{name}-b"))
        up(children(stage, f"{name}-b", "back", name))
        up(children(camera, name))
        yield Blame("circle", there.pid)
