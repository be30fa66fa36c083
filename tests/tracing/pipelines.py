"""Processes whose rings are traced, and the command that does it.  Needs perfetto."""

from __future__ import annotations

import time

import gpuring
from tests.helpers.commands import gpuring as command
from tests.helpers.rings import put
from tests.tracing.picture import read


def trace(path, *names, seconds=0.5):
    done = command("trace", *names, "--seconds", seconds, "--out", path)
    assert done.returncode == 0, done.stderr
    return done.stdout, read(path)


def paced(pipe, name, period_s):
    """A camera that publishes at a steady rate."""
    with gpuring.attach(name) as ring, ring.producer(label="camera") as producer:
        pipe.send()
        while True:
            put(producer)
            time.sleep(period_s)


def stalls(pipe, name, stall_s):
    """A recorder that now and then takes long for a frame."""
    with (
        gpuring.attach(name) as ring,
        ring.consumer("recorder", label="recorder") as frames,
    ):
        pipe.send()
        for slot in frames:
            with gpuring.annotate("write"):
                if slot.seq % 16 == 0:
                    time.sleep(stall_s)
