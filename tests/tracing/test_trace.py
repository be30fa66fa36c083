"""`gpuring trace` on pipelines of real processes, and what its file shows."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import gpuring
from gpuring.cli import main
from tests.cli.processes import camera, holder, reader, stage
from tests.helpers.commands import DEADLINE_S, running
from tests.helpers.commands import gpuring as command
from tests.helpers.processes import poll, up
from tests.helpers.rings import drain, put, small_ring
from tests.service import services

pytest.importorskip("perfetto")

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

from gpuring.tracing.collector import Collector
from gpuring.tracing.perfetto import write, write_packets
from gpuring.tracing.timeline import Timeline
from tests.tracing.picture import read
from tests.tracing.pipelines import paced, stalls, trace, trace_frames
from tests.tracing.traced import until_ns


def test_a_running_pipeline_is_traced_and_each_frame_can_be_followed(children, name, path):
    """It goes from the camera to the detector and to the page, over two rings."""
    with small_ring(name, slots=8), small_ring(f"{name}-seen", slots=8):
        page = up(children(reader, f"{name}-seen", "page"))
        detector = up(children(stage, name, "detector", f"{name}-seen"))
        source = up(children(paced, name, 0.002))
        told, seen = trace_frames(path, name, f"{name}-seen")
    assert f"{name}: " in told
    assert str(path) in told
    assert {each.pid for each in seen.named("writes")} == {source.pid, detector.pid}
    assert {each.pid for each in seen.named("reads")} == {detector.pid, page.pid}
    arrows = [(a, b) for a in seen.named("writes") for b in a.leads_to]
    assert len(arrows) > 20
    for a, b in arrows:
        assert (b.args["ring"], b.args["sequence"]) == (a.args["ring"], a.args["sequence"])
        assert b.begin_ns >= a.end_ns  # nobody reads what is not published
    whole = [each for each in seen.named("reads") if "end" not in each.args]
    written = {(each.args["ring"], each.args["sequence"]) for each in seen.named("writes")}
    led = {(b.args["ring"], b.args["sequence"]) for _, b in arrows}
    assert {(r.args["ring"], r.args["sequence"]) for r in whole} & written <= led
    waits = seen.named("waits for frame")
    assert {each.pid for each in waits} == {detector.pid, page.pid}
    assert f"camera, pid {source.pid}" in {each.args["culprit"] for each in waits}
    assert f"ring {name} / lag of detector" in seen.counts
    assert seen.counts[f"ring {name} / lost by detector"] == [0]


def test_a_wait_names_who_holds_the_frame(children, name, path):
    with small_ring(name):
        up(children(reader, name, "viewer"))
        recorder = up(children(holder, name, "recorder"))
        source = up(children(camera, name))
        poll(lambda: gpuring.ls() and _is_full(name))
        _, seen = trace(path, name, seconds=1.5)
    (wait,) = {(each.name, each.pid) for each in seen.named("waits for recorder")}
    assert wait[0].startswith(f"waits for recorder, pid {recorder.pid}, which holds ")
    assert wait[1] == source.pid
    assert {each.args["end"] for each in seen.named("waits for recorder")} == {"still waits"}


def _is_full(name):
    (ring,) = [each for each in gpuring.ls() if each.name == name]
    return ring.in_the_way is not None


def test_a_recorder_that_stalls_is_found(children, name, path):
    """Arrows lead from its release to the claim that has waited for it."""
    with small_ring(name):
        recorder = up(children(stalls, name, 0.1))
        source = up(children(paced, name, 0.002))
        _, seen = trace_frames(path, name)
    stalled = [each for each in seen.named("reads") if each.end_ns - each.begin_ns > 90e6]
    assert stalled
    # Between two frames, it waits for the subscription of that name, which has no pid.
    held = [each for each in seen.named("waits for recorder, pid") if each.pid == source.pid]
    assert held
    assert {each.args["culprit's pid"] for each in held} == {recorder.pid}
    ended = [each for each in stalled if "end" not in each.args]
    assert any(each.leads_to for each in ended)
    for each in ended:
        for claim in each.leads_to:
            assert claim.name == f"writes {each.args['sequence'] + 4}"
            assert claim.pid == source.pid
            assert claim.begin_ns >= each.end_ns
    own = seen.named("write")
    assert any(each.end_ns - each.begin_ns > 90e6 and each.pid == recorder.pid for each in own)


def test_who_is_killed_is_shown_and_its_last_frame(children, name, path):
    with small_ring(name) as ring:
        up(children(reader, name, "viewer"))
        source = up(children(paced, name, 0.002))
        with running("trace", name, "--seconds", 60, "--out", path) as process:
            poll(lambda: until_ns(name))
            before = ring.stats().cursor
            poll(lambda: ring.stats().cursor > before + 10)
            source.kill()
            poll(lambda: ring.stats().deaths)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert name in out
    seen = read(path)
    assert any(f"pid {source.pid}, is dead" in what for _, what in seen.instants)
    assert any(each.pid == source.pid for each in seen.named("writes"))


def asks(pipe, name):
    with gpuring.connect(name, timeout=10, label="client") as client:
        pipe.send()
        k = 0
        while not pipe.told():
            services.send(client, k).result().release()
            k += 1


def test_calls_are_shown_from_the_request_to_the_answer(children, name, path):
    with services.serve(name, label="keeper", slots=8) as server:
        clients = [up(children(asks, name)) for _ in range(2)]
        with running("trace", name, "--seconds", 60, "--out", path) as process:
            traced = 0
            while traced < 400:
                for call in server.take(timeout=10):
                    services.answer(call)
                traced += until_ns(name) != 0
            process.send_signal(signal.SIGTERM)
            for child in clients:
                child.send()
            while process.poll() is None or any(child.process.is_alive() for child in clients):
                with contextlib.suppress(gpuring.RingTimeout):
                    for call in server.take(timeout=0.05):
                        services.answer(call)
        assert process.returncode == 0
    seen = read(path)
    calls = [each for each in seen.slices if each.name.startswith("call ")]
    assert len(calls) > 50
    for call in calls:
        inside = [
            each
            for each in seen.slices
            if each.track == call.track
            and each is not call
            and call.begin_ns <= each.begin_ns
            and each.end_ns <= call.end_ns
        ]
        assert {"is sent", "in the queue", "answer waits"} <= {each.name for each in inside}
    requests = [each for each in seen.named("writes") if each.args["ring"] == name]
    assert {each.pid for each in requests} == {child.pid for child in clients}
    answered = [
        answer
        for request in requests
        for taken in request.leads_to
        for answer in taken.leads_to
        if answer.args.get("call") == request.args["call"]
    ]
    assert len(answered) > 50
    got = {each.pid for answer in answered for each in answer.leads_to}
    assert got == {child.pid for child in clients}


def holds_several(pipe, names):
    """A reader that holds the last three frames of each ring, and has slices of its own."""
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(gpuring.attach(name)) for name in names]
        readers = [stack.enter_context(ring.consumer(label="holds")) for ring in rings]
        held = [[] for _ in readers]
        pipe.send()
        while True:
            with gpuring.annotate("look"):
                for consumer, its in zip(readers, held, strict=True):
                    its.append(consumer.acquire())
                    if len(its) == 3:
                        its.pop(0).release()


def test_several_frames_at_a_time_have_a_track_each(children, name, path):
    names = [name, f"{name}-b"]
    with small_ring(name, slots=8), small_ring(names[1], slots=8):
        child = up(children(holds_several, names))
        for each in names:
            up(children(paced, each, 0.005))
        _, seen = trace_frames(path, *names)
    lanes = [each for each in seen.tracks if "reads" in each]
    assert len(lanes) == 6
    assert {each.pid for each in seen.named("reads")} == {child.pid}


def test_an_own_slice_is_shown_once(children, name, path):
    """It is shown once although both rings of its process are traced."""
    names = [name, f"{name}-b"]
    with small_ring(name, slots=8), small_ring(names[1], slots=8):
        up(children(holds_several, names))
        for each in names:
            up(children(paced, each, 0.005))
        _, seen = trace_frames(path, *names)
    own = sorted(seen.named("look"), key=lambda each: each.begin_ns)
    assert len(own) > 10
    assert all(a.end_ns <= b.begin_ns for a, b in pairwise(own))


def test_what_was_missed_is_said_and_shown(children, name, path):
    """The command is stopped while a camera writes more events than there is room for."""
    with small_ring(name) as ring:
        up(children(camera, name))
        with running("trace", name, "--seconds", DEADLINE_S, "--out", path) as process:
            poll(lambda: until_ns(name))
            for frames, then in (100, signal.SIGSTOP), (4000, signal.SIGCONT), (100, signal.SIGINT):
                begun = ring.stats().cursor
                poll(lambda end=begun + frames: ring.stats().cursor >= end)
                process.send_signal(then)
            told, _ = process.communicate(timeout=DEADLINE_S)
    seen = read(path)
    assert "more were overwritten before they were read" in " ".join(told.split())
    gaps = [what for _, what in seen.instants if what.endswith("events missing")]
    assert gaps
    assert len(seen.named("writes")) > 1000


def selects(pipe, names):
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(gpuring.attach(name)) for name in names]
        readers = [stack.enter_context(ring.consumer(label="selects")) for ring in rings]
        pipe.send()
        while True:
            for consumer in gpuring.select(readers, timeout=10):
                consumer.acquire().release()


def test_a_wait_for_several_rings_is_one_slice(children, name, path):
    names = [name, f"{name}-b"]
    with small_ring(name), small_ring(names[1]):
        child = up(children(selects, names))
        up(children(paced, name, 0.005))
        _, seen = trace_frames(path, *names, quiet=names[1:])
    waits = [each for each in seen.slices if each.pid == child.pid and "waits" in each.name]
    assert len(waits) > 10
    # The trace may begin and end between the two looks of one wait.
    assert sum(each.name != "waits for any of 2 rings" for each in waits) <= 2
    assert set(names) <= set(waits[-1].args)


def test_a_ring_that_is_made_again_is_traced_too(name, path):
    with (
        small_ring(name) as ring,
        ring.producer() as producer,
        running("trace", name, "--seconds", 60, "--out", path) as process,
    ):
        first = poll(lambda: until_ns(name))
        poll(lambda: until_ns(name) > first)
        put(producer)
        with small_ring(name, replace=True) as another, another.producer() as after:
            poll(lambda: until_ns(name))
            put(after)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=DEADLINE_S)
    first, second = [line for line in out.splitlines() if line.startswith(name)]
    assert first.startswith(f"{name}: ")
    assert second.startswith(f"{name}, made again: ")
    seen = read(path)
    assert (f"ring {name}, made again", f"{name} was made again") in seen.instants
    tracks = [each.track.rpartition(" / ")[2] for each in seen.named("writes")]
    assert tracks == [f"{name}: writes", f"{name}, made again: writes"]
    assert len(seen.named("writes")) == 2


def test_what_cannot_be_traced_is_said(name, path):
    done = command("trace", name, "--out", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"No ring or service named '{name}'" in done.stderr
    assert command("trace", name, name, "--out", path).returncode == 2
    with small_ring(name):
        with running("trace", name, "--seconds", 60, "--out", path) as process:
            poll(lambda: until_ns(name))
            done = command("trace", name, "--out", path)
            assert done.returncode == 1
            assert "is being traced by another process already" in done.stderr
            process.kill()
        done = command("trace", name, "--seconds", 0.01, "--out", path / "no")
        assert done.returncode == 1
        assert "cannot be written" in done.stderr


def test_a_trace_that_cannot_be_written_whole_is_removed(path):
    def packets():
        yield TracePacket(timestamp=1)
        raise OSError(errno.ENOSPC, "as of a full disk")

    with pytest.raises(OSError, match="full disk"):
        write_packets(path, packets())
    assert not path.exists()
    link = path.with_name("stdout")  # as that of /dev, where the output goes into a file
    link.symlink_to(path)
    with pytest.raises(OSError, match="full disk"):
        write_packets(link, packets())
    assert link.is_symlink()


def test_that_there_is_no_room_for_events_is_said(name, path, monkeypatch, capsys):
    with small_ring(name):
        asked = ["trace", name, "--seconds", "0.1", "--out", str(path)]
        handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        for free, said in [(1 << 30, f"see `gpuring why {name}`"), (0, "has no room for them")]:
            monkeypatch.setattr(
                "shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free)
            )
            assert main(asked) == 0
            assert said in " ".join(capsys.readouterr().out.split())
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_what_a_peer_has_made_up_is_shown_and_costs_nothing_else(name, path):
    """A peer may write what it likes into its events: no file of Perfetto has such numbers."""
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("x") as consumer:
        collector = Collector([name])
        put(producer)
        drain(consumer)
        collector.end()
    for parts in collector.rings[0].parts.values():
        made_up = parts[0].copy()
        made_up[:, 2] |= np.uint64(0xFFFFFFFF << 32)  # the thread; the process, a sequence, …
        made_up[:, 3:] = np.iinfo("u8").max
        parts.append(made_up)
    timeline = Timeline(collector.rings, collector.ended_ns)
    write(path, timeline.draw(), timeline.pids, collector.threads)
    assert os.getpid() in {each.pid for each in read(path).named("reads")}
