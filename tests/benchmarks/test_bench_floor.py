"""`bench.floor` without a GPU: how it calls floor.cu, what it makes of its lines, and what it says
where nvcc is missing.  A script takes the place of the compiled program."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import floor
from gpuring.cli.measure.crew import Crew

LINE: dict[str, Any] = {
    "sync": "event",
    "gate": "stream",
    "kernel": True,
    "slots": 8,
    "consumers": 1,
    "nbytes": 4096,
    "frames": 2500,
    "wrong": 0,
}
THROUGHPUT = {
    **LINE,
    "what": "throughput",
    "frames_per_s": [21000.0, 22000.0, 23000.0],
}
COMMON = {"mps": False}


@pytest.fixture(autouse=True)
def fresh_build():
    floor.build.cache_clear()
    yield
    floor.build.cache_clear()


def program(tmp_path: Path, body: str) -> Path:
    script = tmp_path / "floor"
    script.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    script.chmod(0o755)
    return script


def settings(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(mps=False, quick=True, **more)


def test_the_compiler_finds_every_file_that_is_included(tmp_path):
    """The preprocessor of a C++ compiler takes the place of nvcc.  It prints a file that it does
    not find without a folder (-MG)."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    found = tmp_path / "found"
    nvcc = program(
        tmp_path,
        "import subprocess\n"
        "given = [each for each in sys.argv[1:-2] if not each.startswith('-arch')]\n"
        f"command = [{compiler!r}, '-M', '-MG', '-MF', {str(found)!r}, '-x', 'c++', *given]\n"
        "sys.exit(subprocess.run(command).returncode)",
    )
    floor.build(nvcc)
    sources = [each for each in found.read_text().split() if each.endswith(".cu")]
    assert {Path(each).name for each in sources} == {"floor.cu", "floor_ring.cu", "kernels.cu"}
    assert [each for each in sources if not Path(each).is_file()] == []


def test_throughput_has_the_setting_of_gpurings_figure():
    (rate,) = floor.figures_of(THROUGHPUT, {"mps": True})
    setting = {
        "sync": "event",
        "gate": "stream",
        "kernel": True,
        "slots": 8,
        "nbytes": 4096,
        "consumers": 1,
        "lossless": True,
        "members": 1,
        "producers": 1,
        "mps": True,
    }
    assert (rate.group, rate.name, rate.program, rate.unit) == (
        "throughput",
        "frames/s",
        "floor",
        "frames/s",
    )
    assert rate.setting == setting
    assert rate.values is not None
    assert (rate.values.n, rate.values.p50) == (3, 22000.0)
    assert "0 wrong" in rate.verified


def test_a_burst_becomes_microseconds_of_each_side():
    line = {**LINE, "what": "burst", "producer_ns": [3700.0], "consumer_ns": [3400.0]}
    producer, consumer = floor.figures_of(line, COMMON)
    assert (producer.group, producer.unit) == ("transitions", "µs")
    assert producer.setting == {"sync": "event", "kernel": True, "side": "producer", "mps": False}
    assert producer.values is not None
    assert producer.values.p50 == 3.7
    assert consumer.values is not None
    assert consumer.values.p50 == 3.4


@pytest.mark.parametrize(
    ("what", "name", "setting"),
    [
        ("roundtrip", "round trip", {"sync": "event", "gate": "stream", "busy": False}),
        ("oneway", "one-way", {"sync": "event", "gate": "stream", "busy": False}),
        ("wake", "wake-up", {}),
    ],
)
def test_latencies(what, name, setting):
    (figure,) = floor.figures_of({**LINE, "what": what, "us": [12.0, 13.0, 14.0]}, COMMON)
    assert (figure.group, figure.name, figure.unit) == ("latency", name, "µs")
    assert figure.setting == {**setting, "mps": False}
    assert figure.values is not None
    assert figure.values.p50 == 13.0


def test_a_wrong_word_leaves_no_values():
    for figure in floor.figures_of({**THROUGHPUT, "wrong": 3}, COMMON):
        assert figure.values is None
        assert figure.skipped == "verification failed: 3 wrong words in 2500 frames"


def test_every_option_that_is_asked_for_is_one_the_program_knows():
    known = set(re.findall(r'\{"--([a-z-]+)"', floor.SOURCE.read_text()))
    for quick in (False, True):
        for options in floor.plan(quick):
            assert set(options) <= known
            assert options["what"] in floor._HEADINGS
    assert {"device", "deadline"} <= known


def test_without_nvcc_one_figure_says_what_to_do(monkeypatch):
    monkeypatch.setattr(floor, "find_nvcc", lambda _environment: None)
    (figure,) = floor.run(settings(), Crew())
    assert figure.values is None
    assert "nvcc" in figure.skipped
    assert "CUDA_HOME" in figure.skipped


def test_nvcc_is_found_under_cuda_home(tmp_path):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\n")
    environment = {"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)}
    assert floor.find_nvcc(environment) != nvcc  # the file is not executable yet
    nvcc.chmod(0o755)
    assert floor.find_nvcc(environment) == nvcc


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    nvcc = program(tmp_path, "sys.exit('floor.cu(1): error: no such thing')")
    monkeypatch.setattr(floor, "find_nvcc", lambda _environment: nvcc)
    (figure,) = floor.run(settings(), Crew())
    assert "could not compile" in figure.skipped
    assert "no such thing" in figure.skipped


def test_what_was_whole_is_kept_when_the_program_fails(monkeypatch, tmp_path):
    fake = program(
        tmp_path,
        f"print({json.dumps(THROUGHPUT)!r})\n"
        "print('{\"what\": \"thr', end='', flush=True)\n"
        "sys.exit('floor: role 1: ' + os.environ['MARK'])",
    )
    monkeypatch.setattr(floor, "find_nvcc", lambda _environment: fake)
    monkeypatch.setattr(floor, "build", lambda _nvcc: fake)
    monkeypatch.setattr(floor, "plan", lambda quick: [{"what": "throughput", "slots": 8}])
    *whole, failed = floor.run(settings(environment={"MARK": "cudaMalloc: no memory"}), Crew())
    assert len(whole) == 1
    assert all(figure.values for figure in whole)
    assert "cudaMalloc: no memory" in failed.skipped


def test_a_program_that_hangs_is_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(floor, "DEADLINE_S", 0)
    monkeypatch.setattr(floor, "GRACE_S", 0.2)
    fake = program(tmp_path, "time.sleep(1000)")
    with pytest.raises(floor.FloorFailed, match="timed out"):
        list(floor.measure(fake, {"what": "wake"}, {}))
