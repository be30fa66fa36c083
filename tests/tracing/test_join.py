"""Traces of several hosts on one time line.  Here another host is a process with another clock."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("perfetto")
pytest.importorskip("zmq")

from gpuring.errors import RingNotFound
from gpuring.registry import directory, survey
from gpuring.registry.stats import Clock
from gpuring.tracing.join import HostTrace, JoinError, align
from tests.bridge.bridges import WAIT_S, put_all, ring_of
from tests.helpers.commands import DEADLINE_S, exporting, running
from tests.helpers.commands import gpuring as command
from tests.helpers.processes import poll
from tests.tracing.picture import read
from tests.tracing.traced import until_ns

FRAMES = 40
AHEAD_NS = 1000 * 10**9
_NEW_TIME = 0x80
DETECT = """
import sys, gpuring
with gpuring.attach(sys.argv[1]) as ring, ring.consumer("detectors", start="oldest") as frames:
    for _ in range(int(sys.argv[2])):
        with gpuring.annotate("arrives at the detector"):  # named as the slices of a bridge are
            frames.acquire(timeout=60).release()
"""


def far_host(pipe, address, near, far, path):
    """The processes of the far host: an importer, a detector and a tracer.  Their clocks are
    ahead."""
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(_NEW_TIME):
            raise OSError(ctypes.get_errno(), "no time namespace")
        Path("/proc/self/timens_offsets").write_text(f"monotonic {AHEAD_NS // 10**9} 0\n")
    except OSError as error:
        pipe.send(str(error))
        return
    into = f"{address}/{near}", "--as", far, "--device", "host"
    with running("bridge", "import", *into) as importer:
        poll(lambda: is_measured(far), WAIT_S)
        detect = [sys.executable, "-c", DETECT, far, str(FRAMES)]
        with tracing(far, path), subprocess.Popen(detect) as detector:
            try:
                poll(lambda: subscriptions(far), WAIT_S)
                pipe.send("")
                assert detector.wait(WAIT_S) == 0
            finally:
                detector.kill()
        importer.send_signal(signal.SIGINT)
        importer.communicate(timeout=DEADLINE_S)


@contextlib.contextmanager
def tracing(name, path):
    with running("trace", name, "--seconds", 600, "--out", path) as tracer:
        poll(lambda: until_ns(name), WAIT_S)
        yield
        tracer.send_signal(signal.SIGINT)
        told, error = tracer.communicate(timeout=DEADLINE_S)
        assert tracer.returncode == 0, told + error


def is_measured(far):
    with contextlib.suppress(RingNotFound):
        return survey.collect(far, directory.look(far)).link.clock is not None


def subscriptions(far):
    return survey.collect(far, directory.look(far)).subscriptions


@pytest.fixture
def traced(children, name, tmp_path):
    """The traces of both hosts, while frames went from one to the other."""
    near, far = (tmp_path / f"{side}.pftrace" for side in ("near", "far"))
    with (
        ring_of(name) as ring,
        ring.producer(label="camera") as producer,
        exporting(name) as (_, address),
    ):
        there = children(far_host, address, name, f"{name}-far", far)
        if refused := there.receive():
            pytest.skip(refused)
        with tracing(name, near):
            put_all(producer, FRAMES).join()
            there.result()
    return near, far


def joined(tmp_path, *paths):
    both = tmp_path / "both.pftrace"
    done = command("trace", "--join", *paths, "--out", both)
    assert done.returncode == 0, done.stderr
    return done.stdout, read(both)


def test_the_clocks_of_two_hosts_are_aligned_within_the_error_that_is_stated(traced, tmp_path):
    told, seen = joined(tmp_path, *traced)
    host = os.uname().nodename
    (moved,) = [line for line in told.splitlines() if "moved by" in line]
    shift_ns = round(1e9 * float(moved.split("moved by ")[1].split(" s")[0]))
    (top,) = {each.split(" / ")[0] for each in seen.tracks if "times within" in each}
    error_ns = 1000 * int(top.split("within ")[1].split(" µs")[0])
    assert abs(shift_ns + AHEAD_NS) <= error_ns + 1000 < 10**9
    hops = seen.named("carries")
    assert len(hops) == FRAMES
    written = {each.args["sequence"]: each for each in seen.named("writes")}
    for hop in hops:
        (source,) = [each for each in seen.slices if hop in each.leads_to]
        assert source.name == f"reads {hop.args['near sequence']}"
        assert source.track.startswith(f"host {host}, near.pftrace")
        (got,) = hop.leads_to
        assert got.name == f"reads {hop.args['sequence']}"
        assert got.track.startswith(f"host {host}, far.pftrace")
        assert got.begin_ns >= hop.end_ns
        # By the aligned clocks no frame arrives before it was sent.
        assert hop.end_ns - source.begin_ns >= -error_ns
    assert written
    own = [each.args.get("by") for each in seen.named("arrives")]
    assert own == ["gpuring.annotate"] * FRAMES


@pytest.mark.slow
def test_each_host_has_a_track_with_its_processes_below(traced, tmp_path):
    _, seen = joined(tmp_path, *traced)
    tops = {each.partition(" / ")[0] for each in seen.tracks}
    bridges = {each for each in tops if each.startswith("bridge ")}
    assert len(bridges) == 1
    assert all(each.startswith("host ") for each in tops - bridges)
    assert len(tops - bridges) == 2
    assert any(f", pid {os.getpid()} / " in each for each in seen.tracks)


@pytest.mark.slow
def test_what_is_no_trace_or_has_no_bridge_is_refused(traced, tmp_path):
    near, far = traced
    rubbish = tmp_path / "rubbish"
    rubbish.write_bytes(b"\xff" * 100)
    out = "--out", tmp_path / "both"
    for files, why in (
        ((near, rubbish), "is not a trace of one host"),
        ((near, near), "no bridge says how the clocks"),
        ((near,), "at least two files"),
        ((near, tmp_path / "missing"), "No such file"),
    ):
        done = command("trace", "--join", *files, *out)
        assert done.returncode, why
        assert why in done.stderr
    done = command("trace", "--join", near, far, "--out", tmp_path / "both")
    assert done.returncode == 0
    done = command("trace", "--join", near, tmp_path / "both", *out)
    assert "is not a trace of one host" in done.stderr


# ---- clocks --------------------------------------------------------------------------------------


def host(name, *clocks):
    """The trace of a host with one ring, from 0 to 1 s on its own clock.  The name is the ring's
    epoch."""
    trace = HostTrace(Path(name), [], name, {name: "cam"}, list(clocks))
    trace.begin_ns, trace.end_ns = 0, 10**9
    return trace


def test_the_error_grows_with_the_time_since_the_measurement():
    traces = [host("a"), host("b", ("a", Clock(5, 1000, -(10**9))))]
    align(traces)
    assert (traces[1].shift_ns, traces[1].error_ns) == (5, 1000 + 200_000)  # after two seconds


def test_the_measurement_with_the_least_error_counts():
    clocks = [("a", Clock(5, 1000, -(10**10))), ("a", Clock(6, 2000, 5 * 10**8))]
    traces = [host("a"), host("b", *clocks)]
    align(traces)
    assert (traces[1].shift_ns, traces[1].error_ns) == (6, 2000 + 50_000)


def test_hosts_are_aligned_over_others_and_errors_add_up():
    """b measures a, and b measures c, so c is the near host of another bridge."""
    both = ("a", Clock(100, 10, 0)), ("c", Clock(-7, 20, 0))
    traces = [host("c"), host("a"), host("b", *both)]
    align(traces)
    assert [each.shift_ns for each in traces] == [0, -107, -7]
    drift = 100_000
    assert traces[2].error_ns == 20 + drift
    assert traces[1].error_ns == traces[2].error_ns + 10 + drift


def test_hosts_without_a_bridge_are_refused():
    with pytest.raises(JoinError, match="of a and c differ"):
        align([host("a"), host("b", ("a", Clock(5, 1, 0))), host("c")])
