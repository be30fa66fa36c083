"""Fixtures of the tests of services."""

from __future__ import annotations

import gc

import pytest

import gpuring
from tests.helpers.processes import PATIENCE_S
from tests.service.services import serve
from tests.service.watched_turns import watching


@pytest.fixture
def no_slices(monkeypatch):
    """Makes slices so long that a wait ends in time only if it is woken."""
    monkeypatch.setattr("gpuring.service._inbox.SLICE_S", 10 * PATIENCE_S)


@pytest.fixture
def slots():
    return 8


@pytest.fixture
def calls():
    return 8


@pytest.fixture
def server(name, slots):
    """An engine of this process."""
    with serve(name, slots=slots) as server:
        yield server


@pytest.fixture
def client(name, server, calls):
    """A client of this process, of that engine."""
    with gpuring.connect(name, calls=calls) as client:
        yield client


@pytest.fixture
def quick(monkeypatch):
    """Makes slices short, so that waits soon look again."""
    monkeypatch.setattr("gpuring.service._inbox.SLICE_S", 0.005)
    gc.collect()
    gc.freeze()  # the collector runs often, and skips what is there by now


@pytest.fixture
def replaced(name):
    """A function that has a service take the place of the one before."""
    servers = []

    def replace(**options):
        servers.append(serve(name, replace=True, **options))
        for server in servers[-2:-1]:
            server.close()
        return servers[-1]

    yield replace
    for server in servers:
        server.close()


@pytest.fixture
def watched():
    with watching() as watch:
        yield watch
    assert watch.wrong == []
    assert watch.taken > 2
