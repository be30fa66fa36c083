"""A ring whose slots are handed on, as on a GPU.  Here they are in a memfd."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator

import pytest

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.processes import Child, Pipe
from tests.helpers.segment import Segment
from tests.native.offer import directory, opened, slots, sockets


@pytest.fixture
def ring(segment: Callable[..., Segment]) -> Iterator[Segment]:
    """A header like that of a ring on a GPU.  None of its sockets may be left after the test."""
    made = segment(2, memory="vmm", sync="timeline", epoch=secrets.token_bytes(16))
    yield made
    made.unlock()
    made.creator.disown()
    left = sockets(made)
    shutil.rmtree(directory(made), ignore_errors=True)
    assert not left


def offers(pipe: Pipe, path: str) -> list[int]:
    """When it is told to, it leaves this ring, and returns what another one of it does."""
    header = opened(path)
    native.offer(header, slots(b"12345678"))
    peer = raw_verbs.join_producer(header)
    pipe.ask(peer.number)
    header.disown()
    return Segment(2).producer().put()


@pytest.fixture
def stopped(ring: Segment, children: Callable[..., Child]) -> Child:
    """A process that offers the slots and is stopped."""
    child = children(offers, ring.path)
    ring._dead.append(child.receive())
    child.stop()
    return child
