"""Culprits in services."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import gpuring
from tests.cli.planted.blame import Blame, Children, planted
from tests.cli.processes import (
    answers_in_parts,
    asks,
    asks_for_parts,
    is_connected,
    tries_to_answer,
)
from tests.helpers.processes import Child, up
from tests.service import services


@contextlib.contextmanager
def service(name: str, **options: int) -> Iterator[Callable[[Child], Child]]:
    """Keeps a service in this process, and yields a function that waits until a child is up.  The
    children are killed at the end, and what they leave is removed."""
    started: list[Child] = []

    def started_up(child: Child) -> Child:
        started.append(up(child))
        return child

    with services.serve(name, engine=False, **options):
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


@planted
def an_engine_that_never_answers(children: Children, name: str) -> Iterator[Blame]:
    with service(name) as up:
        engine = up(children(services.holder, name, 1))
        up(children(asks, name))
        yield Blame("answers", engine.pid, "engines")


@planted
def a_stopped_engine(children: Children, name: str) -> Iterator[Blame]:
    with service(name) as up:
        engine = up(children(services.engine, name))
        engine.stop()
        up(children(asks, name))
        yield Blame("stopped", engine.pid, "engines")


@planted
def a_client_that_does_not_read(children: Children, name: str) -> Iterator[Blame]:
    with service(name) as up:
        up(children(answers_in_parts, name))
        yield Blame("reads", up(children(asks_for_parts, name)).pid)


@planted
def a_client_that_does_not_read_in_a_full_service(children: Children, name: str) -> Iterator[Blame]:
    """Its engine has the slot that the next request needs."""
    with service(name, slots=2) as up:
        up(children(tries_to_answer, name))
        client = up(children(asks_for_parts, name))
        up(children(asks, name))
        yield Blame("reads", client.pid)


@planted
def a_service_without_engines(children: Children, name: str) -> Iterator[Blame]:
    with service(name) as up:
        up(children(asks, name))
        yield Blame("no engine", None, "engines")


@planted
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
