"""The examples run as they are, and the guide shows them as they are."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
RINGS = "numbers", "squares", "lidar", "weights"
ON_HOST = "no GPU here, so this runs on host memory with NumPy"


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def start(request, tmp_path, monkeypatch):
    """Starts an example in a directory of its own; it and its children end with the test."""
    taken = [ring for ring in RINGS if Path("/dev/shm", f"gpuring.{ring}").exists()]
    assert not taken, f"rings of the examples' names are there already: {taken}"
    if request.param == "host":  # also where there is a GPU
        (tmp_path / "cupy.py").write_text("raise ImportError('hidden by a test')")
        paths = [tmp_path, ROOT]
    else:
        paths = [ROOT]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*map(str, paths), *filter(None, inherited)]))
    started = []

    def start(*path, args=()):
        command = [sys.executable, str(EXAMPLES.joinpath(*path)), *args]
        started.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
            )
        )
        return started[-1]

    start.on_host = request.param == "host"
    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    left = [path for ring in RINGS for path in Path("/dev/shm").glob(f"gpuring.{ring}*")]
    for path in left:
        path.unlink()
    assert not left


def _lines(process, patience_s=100):
    out, _ = process.communicate(timeout=patience_s)
    assert process.returncode == 0
    return out.splitlines()


def _check(lines, on_host):
    if on_host:
        assert lines.pop(0) == ON_HOST
    for n, line in enumerate(lines):
        sent, squares = line.split(" came back as ")
        assert int(sent) == n
        assert [float(x) for x in squares.strip("[]").split()] == [n * n] * 8
    assert len(lines) == 4


@pytest.mark.parametrize("first", ["send.py", "change.py"])
def test_two_scripts(start, first):
    """In whichever order they are started."""
    second = {"send.py": "change.py", "change.py": "send.py"}[first]
    processes = {name: start("two_scripts", name) for name in (first, second)}
    _check(_lines(processes["send.py"]), start.on_host)
    assert _lines(processes["change.py"]) == ([ON_HOST] if start.on_host else [])


def test_one_script(start):
    _check(_lines(start("one_script.py")), start.on_host)


def test_sensor_latest(start, tmp_path):
    """It checks its log and its plans itself; here, that its figures add up."""
    h5py = pytest.importorskip("h5py", reason="gpuring[examples] is not installed")
    lines = _lines(start("sensor_latest.py", args=["1"]))
    if start.on_host:
        assert lines.pop(0) == ON_HOST
    assert re.match(r"lidar +\d+ scans/s of 2048 points, late by p50 ", lines.pop(0))
    text = "\n".join(lines)  # planner and logger are two processes: in either order
    plans, lost = re.search(
        r"planner +(\d+) plans, (\d+) scans lost, age .* ms$", text, re.M
    ).groups()
    assert int(plans) + int(lost) == 1000
    assert int(lost) > int(plans) > 0, "a planner at 100 Hz passes over most scans"
    assert re.search(r"logger +1000 scans in scans.h5, age", text)
    assert "every one, in order, bit for bit as the lidar measured it" in text
    with h5py.File(tmp_path / "scans.h5") as log:
        assert len(log["points"]) == len(log["meta"]) == 1000


@pytest.mark.deadline(100)  # four processes import torch
def test_weights_handover(start):
    """It compares checksums itself; here, that all end with the same weights, the late one too."""
    pytest.importorskip("torch", reason="gpuring[examples] is not installed")
    lines = _lines(start("weights_handover.py", args=["150"]))
    if start.on_host:
        assert lines.pop(0) == "no GPU here, so this runs on host memory with torch on the CPU"
    text = "\n".join(lines)
    (loss,) = re.findall(r"trainer +made 30 versions, loss ([\d.]+)", text)
    assert float(loss) < 0.5, "the model has learned nothing"
    samplers = re.findall(r"sampler (\d) +used (\d+) versions, (\d+) … 30, loss (\d\.\d{4})", text)
    assert sorted(number for number, *_ in samplers) == ["0", "1", "2"]
    assert {loss for *_, loss in samplers} == {loss}
    used, first = next((int(used), int(first)) for n, used, first, _ in samplers if n == "2")
    assert first > 1, "the third sampler came late"
    assert used <= 31 - first


def test_the_guide_shows_the_examples_as_they_are():
    """Its first blocks leave out what is for machines without a GPU, and nothing else."""
    guide = (ROOT / "docs" / "guide.md").read_text()
    for name in ("two_scripts/send.py", "two_scripts/change.py", "one_script.py"):
        block = re.search(rf"```python\n# examples/{name}\n(.*?)```", guide, re.DOTALL)
        assert block, f"the guide does not show {name}"
        lines = (line.strip() for line in (EXAMPLES / name).read_text().splitlines())
        for line in filter(None, map(str.strip, block[1].splitlines())):
            assert line in lines, f"{name} has no line {line!r}, or in another place"
