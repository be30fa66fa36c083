"""Rings of another user who is trusted: they are bridged, made again, and pickled."""

from __future__ import annotations

import pickle

import pytest

import gpuring
from tests.helpers.commands import exporting, running
from tests.helpers.commands import gpuring as gpuring_command
from tests.registry.strangers import NOBODY, OPTIONS


def shares(pipe, name):
    """Makes the ring, and makes it again when it is told to.  Each has a frame."""
    for number in (7, 8):
        options = {"mode": 0o666, "replace": number == 8}
        with gpuring.create(name, **OPTIONS, **options) as ring, ring.producer() as producer:
            pipe.ask()
            with producer.claim(10) as slot:
                slot.array[...] = number
            pipe.receive()


def reads(frames, number):
    with frames.acquire(30) as slot:
        assert (slot.array == number).all()


def test_who_follows_a_ring_of_another_user_finds_the_next_one(name, stranger):
    maker = stranger(shares, name)
    maker.receive()
    with gpuring.attach(name, owner=NOBODY) as ring, ring.consumer(reattach=True) as frames:
        with pickle.loads(pickle.dumps(ring)) as same:
            assert same.slots == ring.slots
        maker.send()
        reads(frames, 7)
        maker.send()
        maker.receive()
        maker.send()
        reads(frames, 8)
    maker.send()
    maker.result()


def test_a_bridge_carries_a_ring_of_another_user_whom_it_was_told_to_trust(name, stranger):
    pytest.importorskip("zmq")
    far, maker = ("--as", f"{name}-far", "--device", "host"), stranger(shares, name)
    maker.receive()
    told = gpuring_command("bridge", "export", name)
    assert (told.returncode, "belongs to user" in told.stderr) == (1, True)
    with (
        exporting(name, "--owner", NOBODY) as (_, address),
        running("bridge", "import", f"{address}/{name}", *far),
        gpuring.attach(f"{name}-far", timeout=30) as there,
        there.consumer(start="oldest", reattach=True) as frames,
    ):
        maker.send()
        reads(frames, 7)
        with gpuring.attach(name, owner=NOBODY) as ring:
            (kept,) = ring.stats().subscriptions
            assert len(kept.members) == 2  # the worker, and the supervisor that keeps its place
        maker.send()
        maker.receive()
        maker.send()
        reads(frames, 8)
    maker.send()
    maker.result()
