"""Culprits in bridges.  Needs pyzmq."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import gpuring
from gpuring import bridge
from tests.bridge.bridges import WAIT_S, bridged
from tests.cli.planted.blame import Blame, Children, planted
from tests.cli.processes import busy, camera, imports, reader, reads_on
from tests.helpers.processes import PATIENCE_S, up
from tests.helpers.rings import put, small_ring


@planted
def a_bridge_whose_other_side_does_not_read(children: Children, name: str) -> Iterator[Blame]:
    with (
        small_ring(name),
        bridged(name, f"{name}-far", slots=4),
        gpuring.attach(f"{name}-far", timeout=WAIT_S),
    ):
        page = up(children(busy, f"{name}-far", "page"))
        up(children(camera, name))
        yield Blame("takes", page.pid, "page")


@planted
def an_importer_that_is_stopped(children: Children, name: str) -> Iterator[Blame]:
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


@planted
def an_exporter_whose_worker_is_stopped(children: Children, name: str) -> Iterator[Blame]:
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


@planted
def a_far_ring_whose_near_ring_has_no_producer(children: Children, name: str) -> Iterator[Blame]:
    """The name is that of the far ring."""
    near = f"{name}-near"
    with small_ring(near) as ring, bridged(near, name, slots=4):
        gpuring.attach(name, timeout=WAIT_S).close()
        up(children(reads_on, name, "viewer"))
        with ring.producer() as producer:
            put(producer, 1)
        yield Blame("no near producer")


@planted
def an_importer_that_was_killed(children: Children, name: str) -> Iterator[Blame]:
    """Somebody reads on in its ring, and producers of the near ring wait for it."""
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


@planted
def a_bridge_without_its_exporter(children: Children, name: str) -> Iterator[Blame]:
    """The exporter was killed.  Its subscription is still there."""
    with small_ring(name) as ring:
        ring.subscribe("bridge: vm/far", patience=10 * PATIENCE_S)
        up(children(camera, name))
        yield Blame("no exporter", None, "bridge: vm/far")
