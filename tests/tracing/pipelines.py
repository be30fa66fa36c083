"""Processes whose rings are traced, and the command that does it.  Needs perfetto."""

from __future__ import annotations

import signal
import time

import gpuring
from gpuring.registry import directory, survey
from tests.helpers.commands import DEADLINE_S, running
from tests.helpers.commands import gpuring as command
from tests.helpers.processes import until
from tests.helpers.rings import put
from tests.tracing.picture import read
from tests.tracing.traced import until_ns


def trace(path, *names, seconds):
    done = command("trace", *names, "--seconds", seconds, "--out", path)
    assert done.returncode == 0, done.stderr
    return done.stdout, read(path)


def trace_frames(path, *names, frames=100, quiet=()):
    """Traces until each ring has had so many frames more, however long that takes.  Those in
    `quiet` get none."""

    def cursors():
        return [survey.collect(each, directory.look(each)).cursor for each in busy]

    busy = [each for each in names if each not in quiet]
    with running("trace", *names, "--seconds", 600, "--out", path) as process:
        until(lambda: all(map(until_ns, names)), process)
        ends = [cursor + frames for cursor in cursors()]
        until(lambda: all(map(int.__ge__, cursors(), ends)), process)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    return told, read(path)


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
