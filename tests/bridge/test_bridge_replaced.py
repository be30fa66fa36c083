"""A near ring that is replaced, and replaced again, while an importer still needs the first one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.helpers.processes import poll

pytest.importorskip("zmq")

from gpuring import bridge
from gpuring.bridge import Export
from gpuring.bridge.network import wire
from tests.bridge import bridge_sides
from tests.bridge.bridge_sides import WAIT_S, Far
from tests.bridge.bridges import kill_worker, put, ring_of

SLOTS = 8
"""Of each ring, so their first sequence is 8."""


class Importer:
    """An importer that the test plays, and what it has."""

    def __init__(self, far: Far) -> None:
        self.far = far
        self._session, self._epoch, self._seq = 0, "", 0

    def comes(self) -> str:
        """Begins a session with what it has.  Returns the epoch of the ring that the exporter gives
        it."""
        self._session += 1
        has = "lossless", self._epoch, self._seq
        self.far.hello(*has, session=self._session, timeout_ms=int(1000 * WAIT_S))
        self._epoch = self.far.heard(wire.Welcome).epoch
        self.far.say(self._session, wire.Open("zmq", SLOTS), wire.Flow(0, (*range(8, 16),)))
        return self._epoch

    def takes(self, frames: int) -> list[tuple[int, int]]:
        """The sequences of the next frames, and what was lost before each of them.  It does not
        acknowledge them."""
        found = []
        for _ in range(frames):
            frame = self.far.heard(wire.Frame)
            found.append((frame.seq, frame.lost))
            self._seq = frame.seq
        return found

    def has_all(self) -> None:
        """Acknowledges what it has, and hears that the ring was replaced."""
        self.far.say(self._session, wire.Flow(self._seq, ()))
        assert self.far.heard(wire.Bye).reason == "the near ring was replaced"


@contextlib.contextmanager
def behind(name: str) -> Iterator[tuple[Export, Importer, str]]:
    """An exporter, an importer that has not acknowledged four frames of the first ring, and the
    epoch of the second one.  That had three frames, and both rings are closed."""
    with (
        bridge.export(name, listen="127.0.0.1:0", timeout=WAIT_S) as out,
        bridge_sides.importer(name, out.address) as far,
    ):
        importer = Importer(far)
        with ring_of(name, SLOTS) as first, first.producer() as producer:
            importer.comes()
            for n in range(4):
                put(producer, n)
            assert importer.takes(4) == [(seq, 0) for seq in range(8, 12)]
        with ring_of(name, SLOTS, shape=32) as second, second.producer() as producer:
            # The exporter's worker and its supervisor join.
            poll(lambda: len(second.stats().peers) == 3, WAIT_S)
            for n in range(3):
                put(producer, n)
        yield out, importer, second._epoch.hex()


@pytest.mark.slow
def test_a_ring_that_is_gone_before_the_one_in_front_of_it_was_taken_still_comes(name):
    with behind(name) as (_, importer, second):
        importer.has_all()
        assert importer.comes() == second
        assert importer.takes(3) == [(8, 0), (9, 0), (10, 0)]


@pytest.mark.slow
def test_two_rings_that_replace_each_other_while_an_importer_is_behind_come_in_order(name):
    with behind(name) as (_, importer, second), ring_of(name, SLOTS) as third:
        importer.has_all()
        assert importer.comes() == second
        assert importer.takes(3) == [(8, 0), (9, 0), (10, 0)]
        with third.producer() as producer:
            put(producer, 0)
            importer.has_all()
            assert importer.comes() == third._epoch.hex()
            assert importer.takes(1) == [(8, 0)]


@pytest.mark.slow
def test_what_only_the_rings_between_had_counts_though_the_exporters_worker_dies(name):
    with behind(name) as (out, importer, _), ring_of(name, SLOTS) as third:
        kill_worker(out)
        with third.producer() as producer, bridge_sides.importer(name, out.address) as far:
            importer.far = far
            assert importer.comes() == third._epoch.hex()
            put(producer, 0)
            assert importer.takes(1) == [(8, 3)]
