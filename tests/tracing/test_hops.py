"""Bridges between two rings of this host, which are traced together."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter

import pytest

pytest.importorskip("perfetto")
pytest.importorskip("zmq")

import gpuring
from gpuring import bridge
from tests.bridge.bridges import WAIT_S, connected, put, ring_of, take
from tests.helpers.commands import DEADLINE_S, running
from tests.helpers.processes import poll
from tests.tracing.picture import read
from tests.tracing.traced import until_ns

FRAMES = 20


def traced(path, near, *fars):
    """The near ring with a bridge to each far one, whose frames are all read."""
    with contextlib.ExitStack() as stack:
        ring = stack.enter_context(ring_of(near))
        producer = stack.enter_context(ring.producer(label="camera"))
        out = stack.enter_context(bridge.export(near, listen="127.0.0.1:0"))
        readers = []
        for far in fars:
            stack.enter_context(bridge.import_(f"{out.address}/{near}", name=far, device="host"))
            its = stack.enter_context(gpuring.attach(far, timeout=WAIT_S))
            detector = its.consumer("detectors", start="oldest", label="detector")
            readers.append(stack.enter_context(detector))
        poll(lambda: connected(out) and len(out.stats().links) == len(fars), WAIT_S)
        process = stack.enter_context(
            running("trace", near, *fars, "--seconds", 600, "--out", path)
        )
        poll(lambda: all(until_ns(each) for each in (near, *fars)), WAIT_S)
        threads = [threading.Thread(target=take_all, args=(each,)) for each in readers]
        for each in threads:
            each.start()
        for n in range(FRAMES):
            put(producer, n)
        for each in threads:
            each.join()
        process.send_signal(signal.SIGINT)
        out_text, error = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, out_text + error
    return read(path)


def take_all(frames):
    assert [take(frames) for _ in range(FRAMES)] == [*range(FRAMES)]


def reads_of(slices, ring, subscription):
    return [
        each
        for each in slices
        if each.name.startswith("reads")
        and (each.args["ring"], each.args["subscription"]) == (ring, subscription)
    ]


def test_a_frame_is_followed_over_a_bridge(name, tmp_path):
    far = f"{name}-far"
    seen = traced(tmp_path / "hops.pftrace", name, far)
    hops = seen.named("carries")
    assert len(hops) == FRAMES
    written = {
        each.args["sequence"]: each for each in seen.named("writes") if each.args["ring"] == far
    }
    assert len(written) > FRAMES / 2
    for hop in hops:
        origin = int(hop.name.split()[1])
        (source,) = [each for each in seen.slices if hop in each.leads_to]
        assert source.name == f"reads {origin}"
        assert source.args["ring"] == hop.args["from"] == name
        assert source.begin_ns == hop.begin_ns
        (got,) = hop.leads_to
        assert got in reads_of(seen.slices, far, "detectors")
        assert got.args["sequence"] == hop.args["sequence"]
        assert hop.end_ns <= got.begin_ns
        if hop.args["sequence"] in written:  # otherwise its slot was claimed before the trace
            assert hop.end_ns == written[hop.args["sequence"]].end_ns
    assert all(each.track.startswith(f"bridge {name} to {far} / ") for each in hops)
    # A bridge claims slots for frames that have not come yet.  Nobody has to wait because of that.
    assert any(each.args["ring"] == far for each in seen.named("waits for frame"))
    assert not [each for each in seen.named("waits for bridge, pid") if each.args["ring"] == far]


def test_two_bridges_of_a_ring_are_told_apart(name, tmp_path):
    fars = [f"{name}-a", f"{name}-b"]
    seen = traced(tmp_path / "hops.pftrace", name, *fars)
    hops = seen.named("carries")
    assert Counter(each.args["to"] for each in hops) == dict.fromkeys(fars, FRAMES)
    for hop in hops:
        (source,) = [each for each in seen.slices if hop in each.leads_to]
        assert source.args["subscription"].endswith(f"/{hop.args['to']}")
