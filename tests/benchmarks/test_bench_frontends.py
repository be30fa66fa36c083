"""The comparison of ways to pass photos: each runs for real in host memory, and wrong answers are
found."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpuring
from bench import frontends
from bench.frontends import __main__ as command
from bench.frontends import light, measure, transport
from gpuring.cli.measure.crew import Crew, Pipe

WAYS = list(frontends.ways())
TINY = ["--device", "host", "--size", "64x48", "--seconds", "0.3", "--patience", "2"]


@pytest.fixture(autouse=True)
def needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch", "uvicorn", "starlette", "PIL", "zmq"):
        pytest.importorskip(module, reason="gpuring[examples] or pyzmq is not installed")
    monkeypatch.setattr(sys, "path", [*sys.path])  # the benchmark adds the examples
    monkeypatch.setattr(gpuring, "exit_on_sigterm", lambda: None)  # the examples call it


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Runs the comparison.  Returns its status and its only record."""
    out = tmp_path / "out.json"
    status = command.main([*TINY, "--json", str(out), *arguments])
    found = json.loads(out.read_text())
    assert found["machine"]["python"]
    (record,) = found["records"]
    return status, record


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_way_answers_right(tmp_path, way):
    count = ["--workers", "1", "--engines", "1", "--calls", "2", "--no-deaths"]
    http = [] if way == "ring" else ["--no-http"]
    status, record = run(tmp_path, "--only", way, *count, *http)
    assert (status, record["way"], record.get("failed")) == (0, way, None)
    assert record["codec"] == "Pillow"
    for part in ("photos", "frames", "http")[: 3 - len(http)]:
        figures = record[part]
        assert (figures["wrong"], figures["failed"]) == (0, {})
        assert figures["requests"] > 0
        assert figures["p50_ms"] <= figures["p99_ms"]
    stages = {"decode", "send", "wait", "encode", "engine takes", "model", "engine answers", "all"}
    for part in ("photos", "frames"):
        for figures in ("stages_ms", "stages_cpu_ms"):
            assert record[part][figures].keys() | {"all"} == stages


@pytest.mark.slow
def test_with_the_ring_nothing_fails_when_a_worker_and_an_engine_are_killed(tmp_path):
    count = ["--workers", "2", "--engines", "2", "--calls", "2", "--no-http"]
    status, record = run(tmp_path, "--only", "ring", *count)
    assert (status, record.get("failed")) == (0, None)
    deaths = record["deaths"]
    assert (deaths["wrong"], deaths["failed"], deaths["workers_that_hang"]) == (0, {}, 0)


def test_sums_show_any_pixel_that_is_not_right():
    """A pixel of another row that gives the right sum is found, too."""
    setting = transport.Setting("host", 4, 6, 2, 1, 1, 1)
    enlarge, sums = light.model(setting), light.Sums(setting, 2)
    take, encode = light.codec(setting, 2)
    answers = [enlarge(transport.as_tensor(take(b"%d" % n), "cpu")) for n in range(2)]
    first, second = map(encode, answers)
    assert sums.is_right(0, first)
    assert sums.is_right(1, second)
    assert not sums.is_right(0, second)
    answers[0][0, 0, 0] += 1
    assert not sums.is_right(0, encode(answers[0]))
    assert not sums.is_right(1, encode(answers[1].flip(0)))


@pytest.mark.slow
def test_a_worker_that_is_left_hanging_is_counted_and_killed(monkeypatch):
    monkeypatch.setattr(measure, "HANG_S", 0.1)
    setting = transport.Setting("host", 4, 6, 2, 2, 1, 1, patience_s=0.1)
    with Crew() as crew:
        victim, hangs, engine = (crew.start(waits_for_ever) for _ in range(3))
        for part in (victim, hangs, engine):
            part.receive()
        case = SimpleNamespace(workers=[victim, hangs], engines=[engine], setting=setting)
        case.order = lambda *_: None
        found = measure._deaths(case, light.Sums(setting, 1), 0.3)
        assert found["workers_that_hang"] == 1
        for part in (victim, hangs, engine):
            assert not Path(f"/proc/{part.pid}").exists()


def waits_for_ever(pipe: Pipe) -> None:
    pipe.send()
    pipe.receive()


def test_an_answer_to_another_photo_is_wrong():
    """An answer of another size is wrong, too.  One that differs hardly at all is right."""
    load = frontends.example("upscale_load")
    front = importlib.import_module("upscale_frontends")
    jpegs = list(load.photos(2, 48, 64))
    answers = load.Answers(jpegs)
    first, second = (front.encode_on_cpu(each.astype("u1")) for each in answers.wanted)
    assert answers.is_right(0, first)
    assert answers.is_right(1, second)
    assert not answers.is_right(0, second)
    assert not answers.is_right(1, jpegs[1])
    found = [{"answers": [[first], [second, first]]}, {"answers": [[second], []]}]
    assert measure._wrong(found, answers) == 2
