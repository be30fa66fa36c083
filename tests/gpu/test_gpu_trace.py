"""`gpuring trace` of a ring on a GPU shows a kernel of known length with that length."""

from __future__ import annotations

import signal
import time

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.kernels import Latch
from tests.gpu.ordering import tools
from tests.helpers.commands import DEADLINE_S, running
from tests.helpers.processes import poll

pytest.importorskip("perfetto")

from tests.tracing.picture import read
from tests.tracing.traced import until_ns

pytestmark = pytest.mark.gpu

KERNEL_S = 0.05
FRAMES = 6


def traced(name, path, sync, act):
    """The trace of a ring while `act` uses its producer and consumer."""
    with (
        gpuring.create(name, slots=4, shape=1024, dtype="u8", device="cuda", sync=sync) as ring,
        ring.producer(label="camera") as producer,
        ring.consumer("viewer", label="viewer") as viewer,
    ):
        with running("trace", name, "--seconds", 60, "--out", path) as process:
            poll(lambda: until_ns(name))
            act(producer, viewer)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, out
    return read(path)


def test_a_slice_lasts_as_long_as_the_kernel(name, tmp_path):
    tools()
    took_s = []

    def act(producer, viewer):
        stream = library.new_stream()
        latch = Latch(KERNEL_S)  # never opened, so each kernel spins for that long
        for _ in range(FRAMES):
            slot = producer.claim(10, stream=stream)
            begun = time.monotonic()
            latch.hold(stream)
            slot.publish()
            stream.synchronize()
            took_s.append(time.monotonic() - begun)
            viewer.acquire(10, stream=stream).release()
            stream.synchronize()

    seen = traced(name, tmp_path / "gpu.pftrace", "timeline", act)
    slices = sorted(seen.named("GPU: writes"), key=lambda each: each.begin_ns)
    assert len(slices) == FRAMES
    for each, host_s in zip(slices, took_s, strict=True):
        assert 0.5 * KERNEL_S < (each.end_ns - each.begin_ns) / 1e9 < 1.5 * host_s
        assert 0 < each.args["was done at most so many µs later"] < 1e6 * KERNEL_S
    assert all(each.track.endswith(f"/ {name}: GPU") for each in slices)


def test_with_events_the_moment_is_shown_at_which_it_was_seen(name, tmp_path):
    tools()

    def act(producer, viewer):
        stream = library.new_stream()
        for _ in range(FRAMES):
            producer.claim(10, stream=stream).publish()
            viewer.acquire(10, stream=stream).release()
            stream.synchronize()

    seen = traced(name, tmp_path / "gpu.pftrace", "event", act)
    assert len(seen.named("writes")) == FRAMES
    assert seen.named("GPU") == []
    done = [what for _, what in seen.instants if what.startswith("GPU: ")]
    assert done
    assert all(what.endswith("was seen to be done") for what in done)
