"""Pipelines of real processes in which one process is planted that keeps all others waiting.

Each is a function of PLANTED.  It gets `children` and a name for its ring, and ends when the
processes end.  It returns who is to blame.

    python -m tests.cli.planted       plants one of them at random; you have to find out which one
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gpuring
from tests.cli.processes import (
    answers_in_parts,
    asks,
    asks_for_parts,
    busy,
    camera,
    camera_with_a_reader,
    creator,
    holder,
    imports,
    is_connected,
    keeper,
    reader,
    reads_on,
    selects,
    stage,
    up,
    writer,
)
from tests.helpers.processes import PATIENCE_S, Child
from tests.helpers.rings import put, small_ring
from tests.helpers.words import locked
from tests.service import services

Children = Callable[..., Child]


@dataclass(frozen=True)
class Blame:
    reason: str
    pid: int | None = None
    subscription: str | None = None


@contextlib.contextmanager
def a_stopped_reader(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        recorder = up(children(reader, name, "recorder"))
        recorder.stop()
        up(children(camera, name))
        yield Blame("stopped", recorder.pid, "recorder")


@contextlib.contextmanager
def a_full_ring_further_on(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name), small_ring(f"{name}-seen"):
        page = up(children(reader, f"{name}-seen", "page"))
        page.stop()
        up(children(reader, name, "viewer"))
        up(children(stage, name, "detector", f"{name}-seen"))
        up(children(camera, name))
        yield Blame("stopped", page.pid, "page")


@contextlib.contextmanager
def a_lost_handle(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        recorder = up(children(keeper, name, "recorder"))
        up(children(camera, name))
        yield Blame("keeps", recorder.pid, "recorder")


@contextlib.contextmanager
def a_held_frame(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        recorder = up(children(holder, name, "recorder"))
        up(children(camera, name))
        yield Blame("holds", recorder.pid, "recorder")


@contextlib.contextmanager
def a_busy_reader(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        recorder = up(children(busy, name, "recorder"))
        up(children(camera, name))
        yield Blame("takes", recorder.pid, "recorder")


@contextlib.contextmanager
def a_process_that_does_not_read_itself(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        yield Blame("itself", up(children(camera_with_a_reader, name)).pid, "own")


@contextlib.contextmanager
def a_subscription_that_nobody_reads(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name) as ring:
        ring.subscribe("recorder")
        up(children(reader, name, "viewer"))
        up(children(camera, name))
        yield Blame("no reader", None, "recorder")


@contextlib.contextmanager
def a_claim_that_is_never_published(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        yield Blame("writes", up(children(writer, name)).pid, "viewer")


@contextlib.contextmanager
def service(name: str) -> Iterator[Callable[[Child], Child]]:
    """Keeps a service in this process, and yields a function that waits until a child is up.  The
    children are killed at the end, and what they leave is removed."""
    started: list[Child] = []

    def started_up(child: Child) -> Child:
        started.append(up(child))
        return child

    with services.serve(name, engine=False):
        try:
            yield started_up
        finally:
            for child in started:
                child.kill()
            unlink_rings_of_clients(name)


def unlink_rings_of_clients(name: str) -> None:
    for one in gpuring.ls():
        if one.name.startswith(f"{name}."):
            gpuring.unlink(one.name)


@contextlib.contextmanager
def an_engine_that_never_answers(children: Children, name: str) -> Iterator[Blame]:
    with service(name) as up:
        engine = up(children(services.holder, name, 1))
        up(children(asks, name))
        yield Blame("answers", engine.pid, "engines")


@contextlib.contextmanager
def a_stopped_engine(children: Children, name: str) -> Iterator[Blame]:
    with service(name) as up:
        engine = up(children(services.engine, name))
        engine.stop()
        up(children(asks, name))
        yield Blame("stopped", engine.pid, "engines")


@contextlib.contextmanager
def a_client_that_does_not_read(children: Children, name: str) -> Iterator[Blame]:
    with service(name) as up:
        up(children(answers_in_parts, name))
        yield Blame("reads", up(children(asks_for_parts, name)).pid)


@contextlib.contextmanager
def a_service_without_engines(children: Children, name: str) -> Iterator[Blame]:
    with service(name) as up:
        up(children(asks, name))
        yield Blame("no engine", None, "engines")


@contextlib.contextmanager
def a_service_whose_only_engine_was_killed(children: Children, name: str) -> Iterator[Blame]:
    """The engine had created it, so its subscription is gone, too."""
    engine = up(children(services.engine, name))
    client = up(children(is_connected, name))
    engine.kill()
    try:
        yield Blame("no engine")
    finally:
        client.kill()
        unlink_rings_of_clients(name)
        gpuring.unlink(name)


@contextlib.contextmanager
def a_dead_process_that_nobody_clears(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        up(children(camera, name))
        recorder = up(children(holder, name, "recorder"))
        with locked(name):  # as a process does that is stopped at that moment
            recorder.kill()
            yield Blame("dead", recorder.pid, "recorder")


@contextlib.contextmanager
def a_bridge_whose_other_side_does_not_read(children: Children, name: str) -> Iterator[Blame]:
    from tests.bridge.bridges import WAIT_S, bridged

    with (
        small_ring(name),
        bridged(name, f"{name}-far", slots=4),
        gpuring.attach(f"{name}-far", timeout=WAIT_S),
    ):
        page = up(children(busy, f"{name}-far", "page"))
        up(children(camera, name))
        yield Blame("takes", page.pid, "page")


@contextlib.contextmanager
def an_importer_that_is_stopped(children: Children, name: str) -> Iterator[Blame]:
    from tests.bridge.bridges import WAIT_S, bridged

    with (
        small_ring(name),
        bridged(name, f"{name}-far", slots=4) as (_, into),
        gpuring.attach(f"{name}-far", timeout=WAIT_S),
    ):
        up(children(reader, f"{name}-far", "page"))
        up(children(camera, name))
        os.kill(into.pid, signal.SIGSTOP)
        try:
            yield Blame("stopped", into.pid)
        finally:
            os.kill(into.pid, signal.SIGCONT)


@contextlib.contextmanager
def an_exporter_whose_worker_is_stopped(children: Children, name: str) -> Iterator[Blame]:
    from tests.bridge.bridges import WAIT_S, bridged

    with small_ring(name) as ring, bridged(name, f"{name}-far", slots=4):
        gpuring.attach(f"{name}-far", timeout=WAIT_S).close()
        seen = ring.stats()
        (worker,) = {peer.pid for peer in seen.peers} - {os.getpid()}
        os.kill(worker, signal.SIGSTOP)
        try:
            up(children(camera, name))
            yield Blame("stopped", worker, seen.subscriptions[0].name)
        finally:
            os.kill(worker, signal.SIGCONT)


@contextlib.contextmanager
def a_far_ring_whose_near_ring_has_no_producer(children: Children, name: str) -> Iterator[Blame]:
    """The name is that of the far ring."""
    from tests.bridge.bridges import WAIT_S, bridged

    near = f"{name}-near"
    with small_ring(near) as ring, bridged(near, name, slots=4):
        gpuring.attach(name, timeout=WAIT_S).close()
        up(children(reads_on, name, "viewer"))
        with ring.producer() as producer:
            put(producer, 1)
        yield Blame("no near producer")


@contextlib.contextmanager
def an_importer_that_was_killed(children: Children, name: str) -> Iterator[Blame]:
    """Somebody reads on in its ring, and producers of the near ring wait for it."""
    from gpuring import bridge
    from tests.bridge.bridges import WAIT_S

    far = f"{name}-far"
    with small_ring(name), bridge.export(name, listen="127.0.0.1:0") as out:
        importer = children(imports, f"{out.address}/{name}", far)
        gpuring.attach(far, timeout=WAIT_S).close()
        viewer = up(children(reads_on, far, "viewer"))
        up(children(camera, name))
        importer.kill()
        try:
            yield Blame("no creator")
        finally:
            viewer.kill()
            gpuring.unlink(far)


@contextlib.contextmanager
def a_bridge_without_its_exporter(children: Children, name: str) -> Iterator[Blame]:
    """The exporter was killed.  Its subscription is still there."""
    with small_ring(name) as ring:
        ring.subscribe("bridge: vm/far", patience=10 * PATIENCE_S)
        up(children(camera, name))
        yield Blame("no exporter", None, "bridge: vm/far")


@contextlib.contextmanager
def a_stopped_camera(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        stopped = up(children(camera, name))
        stopped.stop()
        yield Blame("stopped", stopped.pid, "viewer")


@contextlib.contextmanager
def a_ring_without_producers(children: Children, name: str) -> Iterator[Blame]:
    with small_ring(name):
        up(children(reader, name, "viewer"))
        yield Blame("no producer")


@contextlib.contextmanager
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


@contextlib.contextmanager
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


@contextlib.contextmanager
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


@contextlib.contextmanager
def a_ring_in_which_all_are_dead(children: Children, name: str) -> Iterator[Blame]:
    made_it, viewer = up(children(creator, name)), up(children(busy, name, "viewer"))
    try:
        viewer.stop()  # a stopped process does not clear the dead one
        made_it.kill()
        viewer.kill()
        yield Blame("dead ring")
    finally:
        gpuring.unlink(name)


@contextlib.contextmanager
def a_circle(children: Children, name: str) -> Iterator[Blame]:
    """Each of two processes waits for a slot that the other one keeps."""
    with small_ring(name), small_ring(f"{name}-b"):
        there = up(children(stage, name, "there", f"{name}-b"))
        up(children(stage, f"{name}-b", "back", name))
        up(children(camera, name))
        yield Blame("circle", there.pid)


PLANTED: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        *(a_stopped_reader, a_full_ring_further_on, a_lost_handle, a_held_frame, a_busy_reader),
        *(a_process_that_does_not_read_itself, a_subscription_that_nobody_reads),
        a_claim_that_is_never_published,
        *(an_engine_that_never_answers, a_client_that_does_not_read, a_service_without_engines),
        *(a_stopped_engine, a_service_whose_only_engine_was_killed),
        *(a_dead_process_that_nobody_clears, a_bridge_whose_other_side_does_not_read),
        *(an_importer_that_is_stopped, an_exporter_whose_worker_is_stopped),
        a_bridge_without_its_exporter,
        *(an_importer_that_was_killed, a_select_that_has_lost_all_producers),
        a_select_that_has_lost_the_producer_of_one_ring,
        a_far_ring_whose_near_ring_has_no_producer,
        *(a_stopped_camera, a_ring_without_producers, a_circle),
        *(a_ring_whose_creator_was_killed, a_ring_in_which_all_are_dead),
    )
}


def main() -> None:
    """Plants one of the jams, and prints the name of its ring.  Prints which one it was when a line
    comes."""
    started: list[Child] = []

    def children(target: Any, *args: Any) -> Child:
        started.append(Child(target, args, PATIENCE_S, "forkserver"))
        return started[-1]

    ring = f"cam-{secrets.token_hex(2)}"
    chosen = random.SystemRandom().choice(list(PLANTED))
    try:
        with PLANTED[chosen](children, ring) as blame:
            print(ring, flush=True)
            sys.stdin.readline()
            print(chosen, blame, flush=True)
            for child in started:
                child.end()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
