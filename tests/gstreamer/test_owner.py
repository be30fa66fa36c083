"""Rings of another user: refused, unless `owner` names that user."""

from __future__ import annotations

import os

import pytest

import gpuring
from tests.gstreamer.pipelines import GRAY, numbers
from tests.helpers.processes import PATIENCE_S, poll, up
from tests.registry.strangers import NOBODY, as_nobody

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


def shared(pipe, name):
    """Makes a ring with mode 0666, writes three frames into it, and then reads three."""
    with gpuring.create(
        name, slots=4, shape=(36, 64), dtype="u1", device="host", mode=0o666
    ) as ring:
        with ring.producer() as producer:
            pipe.ask("there")
            poll(lambda: ring.stats().subscriptions)
            for k in range(3):
                with producer.claim(PATIENCE_S) as slot:
                    slot.array[:] = k
        pipe.receive()
        with ring.consumer() as frames:
            pipe.send("reads")
            seen = [int(frame.array[0, 0]) for frame, _ in zip(frames, range(3), strict=False)]
    return len(seen)


def test_a_ring_of_another_user_is_used_if_that_user_is_named(name, launch, children):
    child = up(children(as_nobody, shared, name))
    said = launch(f"gpuringsrc ring={name} caps={GRAY} ! fakesink").end(1)
    assert f"attach with `owner` {NOBODY}" in said
    child.send()
    launch(f"gpuringsrc ring={name} caps={GRAY} owner={NOBODY} ! fakesink").end()
    said = launch(f"{numbers(1)} ! gpuringsink ring={name} create=false").end(1)
    assert f"attach with `owner` {NOBODY}" in said
    child.ask()
    launch(f"{numbers(3)} ! gpuringsink ring={name} create=false owner={NOBODY}").end()
    assert child.result() == 3
