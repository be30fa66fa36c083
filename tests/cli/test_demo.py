"""`gpuring demo` as a user runs it, stops it, or breaks it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.helpers.commands import gpuring as command
from tests.helpers.commands import running
from tests.helpers.processes import poll, runs

pytest.importorskip("av", reason="gpuring[demo] is not installed")
pytest.importorskip("matplotlib", reason="gpuring[demo] is not installed")
pytest.importorskip("rich", reason="gpuring[demo] is not installed")
Image = pytest.importorskip("PIL.Image", reason="gpuring[demo] is not installed")

import gpuring  # noqa: E402
from gpuring.cli.demo import roles  # noqa: E402
from gpuring.cli.demo.crew import Hearing  # noqa: E402
from gpuring.cli.demo.records import Job, Progress  # noqa: E402
from gpuring.memory import frameworks, kinds  # noqa: E402

DEADLINE_S = 100


def demo(*options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command.  Its children die with it, so the deadline ends all of them."""
    return command("demo", *options, timeout=DEADLINE_S)


def litter(pid: int) -> list[Path]:
    """The files of that process's demo in shared memory."""
    return [path for path in Path("/dev/shm").iterdir() if f"demo-{pid}" in path.name]


@pytest.mark.slow
def test_host_run_passes_and_writes_everything(tmp_path):
    _run_and_check(tmp_path, "host", "host")


@pytest.mark.gpu
def test_gpu_run_passes_and_writes_everything(tmp_path):
    if frameworks.cupy() is None:
        pytest.importorskip("torch", reason="neither CuPy nor torch is there to compute")
    _run_and_check(tmp_path, "cuda", kinds.choose("auto", 0)[0])


def _run_and_check(out: Path, device: str, memory: str) -> None:
    result = demo("--device", device, "--seconds", 2.4, "--flat-out", "--out", out)

    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"memory: {memory} (--device {device}")
    assert " · sync: " in lines[0]
    assert lines[-1] == "verdict: PASS"
    for name in ("contact-sheet.png", "latency.png"):
        with Image.open(out / name) as picture:
            picture.load()
            assert picture.format == "PNG"
            assert min(picture.size) > 500
            assert np.asarray(picture.convert("L")).std() > 20, f"{name} is blank"

    written = json.loads((out / "figures.json").read_text())
    assert written["ring"]["memory"] == memory
    assert {"memory_why", "sync", "sync_why", "gate", "slots"} <= written["ring"].keys()
    assert {"date", "gpuring", "cpu", "cores", "python", "gpus"} <= written["machine"].keys()
    assert written["producer"]["frames"] == 60
    assert written["verdict"]["passed"]
    assert all(check["passed"] for check in written["verdict"]["checks"])
    consumers = {consumer["name"]: consumer for consumer in written["consumers"]}
    assert consumers.keys() == {"analyser", "edges 1", "edges 2", "viewer"}
    assert consumers["analyser"]["frames"] == 60
    assert consumers["edges 1"]["frames"] + consumers["edges 2"]["frames"] == 60
    # A sequence that is void counts as lost.
    sequences = written["producer"]["last_seq"] - written["producer"]["first_seq"] + 1
    assert consumers["viewer"]["frames"] + consumers["viewer"]["lost"] == sequences
    for consumer in consumers.values():
        if consumer["frames"]:
            latency = consumer["latency_us"]
            assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]


@pytest.mark.slow
def test_loops_and_pace(tmp_path):
    result = demo(
        *("--device", "host", "--seconds", 0.4, "--loops", 3, "--fps", 100, "--slots", 2),
        *("--out", tmp_path),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    producer = json.loads((tmp_path / "figures.json").read_text())["producer"]
    assert producer["frames"] == 30
    assert producer["frames_per_s"] <= 100


@pytest.mark.slow
def test_it_plays_at_the_rate_of_the_video_unless_told_otherwise(tmp_path):
    result = demo("--device", "host", "--seconds", 1, "--out", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "pace: 25 frames/s, the video's own rate\n" in result.stdout
    producer = json.loads((tmp_path / "figures.json").read_text())["producer"]
    assert (producer["frames"], producer["paced_at_frames_per_s"]) == (25, 25)
    assert producer["frames_per_s"] <= 25


def test_a_late_first_frame_is_not_made_up_for(name, monkeypatch):
    clock = [100.0]

    def go_on(seconds: float) -> None:
        clock[0] += seconds

    def frames() -> Iterator[tuple[int, Any]]:
        go_on(0.5)
        yield from ((pts, np.zeros(4, "u1")) for pts in range(5))

    times = SimpleNamespace(
        monotonic=lambda: clock[0], monotonic_ns=lambda: round(clock[0] * 1e9), sleep=go_on
    )
    monkeypatch.setattr(roles, "time", times)
    clip: Any = SimpleNamespace(frames=frames)
    shape: Any = {"shape": 4, "dtype": "u1", "meta": [("pts", "i8")]}
    with gpuring.create(name, slots=2, **shape, device="host") as ring:
        report = roles.produce("producer", ring, Job(name, clip, 1, 25.0, "numpy"), Mock())
    assert report.frames_per_s == pytest.approx(25)


def test_whoever_speaks_puts_the_time_out_off():
    """A run may take longer than --timeout, which limits only silence."""
    part = Mock(next=lambda: (False, Progress(1, 0, [])))
    hearing = Hearing({"producer": part}, 50.0)
    hearing.deadline = 0.0
    hearing._hear("producer", part)
    assert hearing.deadline > time.monotonic()


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_nothing_behind(tmp_path, stop):
    with _started(tmp_path) as process:
        children = _children(process.pid)
        if stop == signal.SIGINT:
            os.killpg(process.pid, stop)  # to the children, too, as a terminal does
        else:
            process.send_signal(stop)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
        assert errors == "gpuring demo: interrupted\n"
        # Python's own resource tracker ends a moment after its parent.
        poll(lambda: not any(map(runs, children)))
        assert litter(process.pid) == []


@pytest.mark.slow
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_a_killed_process_fails_the_run(tmp_path, role):
    with _started(tmp_path) as process:
        with gpuring.attach(f"demo-{process.pid}") as ring:
            victim = next(peer.pid for peer in ring.stats().peers if peer.role == role)
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
        assert f"(pid {victim}) died: killed by signal 9" in errors
        assert "PeerLost" not in errors, "a consequence, reported as if it were the cause"
        assert litter(process.pid) == []


@pytest.mark.slow
def test_a_demo_without_progress_ends(tmp_path):
    result = demo(
        *("--device", "host", "--fps", 0.01, "--timeout", 4, "--out", tmp_path, "--plain")
    )
    assert result.returncode == 1
    assert "no progress for 4 s" in result.stderr


@pytest.mark.slow
def test_a_file_that_is_no_video(tmp_path):
    text = tmp_path / "notes.mp4"
    text.write_text("no video\n")
    for path in (text, tmp_path / "absent.mp4"):
        result = demo(path, "--device", "host", "--out", tmp_path)
        assert result.returncode == 2
        assert str(path) in result.stderr


@contextmanager
def _started(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo that would run for a long time.  All four consumers are at work."""
    options = ("--device", "host", "--fps", 20, "--loops", 1000, "--out", out)
    with running("demo", *options, start_new_session=True) as process:
        poll(lambda: len(_consumers_at_work(process)) == 4)
        yield process


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _consumers_at_work(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the consumers that have seen some frames."""
    for stats in gpuring.ls():
        if stats.name == f"demo-{process.pid}":
            peers = [peer for peer in stats.peers if peer.role == "consumer" and peer.frames > 3]
            return [peer.pid for peer in peers]
    return []
