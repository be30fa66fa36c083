"""The baselines of `gpuring bench` are checked, too."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuring.cli.bench import baselines, throughput
from gpuring.cli.measure import settings
from gpuring.cli.measure.attempt import attempt
from gpuring.cli.measure.crew import Crew, RoleFailed
from gpuring.cli.measure.figures import Figure
from gpuring.cli.measure.kernels import Words
from gpuring.cli.measure.settings import Place


def test_a_word_that_comes_out_of_order_is_noticed(tmp_path):
    shared = tmp_path / "word"
    shared.write_bytes(bytes(4096))
    with Crew() as crew, crew.start(baselines.answer_word, str(shared), False) as other:
        other.receive()
        with shared.open("r+b") as file:  # in place: cutting it kills its readers
            file.write((2).to_bytes(8, "little"))
        with pytest.raises(RoleFailed, match="2 came instead of 1"):
            other.result()


def test_a_number_that_comes_out_of_order_is_noticed(tmp_path):
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    os.mkfifo(there)
    os.mkfifo(back)
    with (
        Crew() as crew,
        crew.start(baselines.take, there, back) as reader,
        Path(there).open("wb", buffering=0) as full,
        Path(back).open("rb", buffering=0),
    ):
        full.write((1).to_bytes(8, "little"))
        with pytest.raises(RoleFailed, match="1 came instead of 0"):
            reader.result()


def test_frames_that_are_missing_are_noticed(monkeypatch):
    """The figures of the two sides of a bare hand-over are compared."""
    with Crew() as crew:
        monkeypatch.setattr(crew, "call", lambda *args, **more: [1, 2, 3])
        blank = Figure("latency", "one-way", "bare word", "µs", {"kernel": False})
        monkeypatch.setattr(baselines, "answer_word", two)
        quick = settings.Settings(scale=0.01)
        (figure,) = attempt(blank, lambda: baselines._word(quick, crew, blank))
    assert figure.failed
    assert "3 numbers were sent, 2 arrived" in figure.skipped


def two(pipe, *_):
    pipe.send()
    return [1, 2]


def test_a_gpu_is_compared_with_the_same_kernels():
    """Without a GPU this checks which roles run, and with which arguments."""
    played = []

    class FakeCrew:
        def call(self, role, *args, **_):
            played.append((role.__name__, *args[1:3]))
            raise RoleFailed("no GPU")

        def start(self, role, *args, **_):
            played.append((role.__name__, args[1]))
            raise RoleFailed("no GPU")

    place = Place("timeline", "stream")
    found = list(baselines.run(settings.Settings(), FakeCrew(), place, 0.1))
    assert played == [("answer_word", True), ("both_sides",)]
    assert [(f.program, f.skipped) for f in found] == [
        ("bare word", "no GPU"), ("one process", "no GPU")
    ]  # fmt: skip
    assert all(f.setting["mps"] is False and f.setting["kernel"] is True for f in found)


@pytest.fixture
def fake_gpu(monkeypatch):
    """A fake GPU that notes launches, is busy once after each of them, and finds `wrong` words."""
    gpu = SimpleNamespace(launched=[], queries=[], wrong=0)

    def zeros(n):
        return Words(64 * n, lambda: gpu.wrong)

    def kernel(name, launch, *arguments):
        def go(pointer, seq):
            gpu.launched.append((name, pointer, arguments[1], seq))
            gpu.queries[:] = [600, 0]

        return SimpleNamespace(launch=go)

    tools = SimpleNamespace(
        zeros=zeros, busy=lambda: gpu.queries.pop(0), finish=lambda: None, kernel=kernel
    )
    monkeypatch.setattr(baselines, "cuda_tools", lambda: tools)
    return gpu


def test_the_kernel_of_the_baseline_is_waited_for(fake_gpu):
    work = baselines._work(True)
    work(5)
    assert fake_gpu.launched == [("stamp", 64 * 512, 512, 0), ("stamp", 64 * 512, 512, 5)]
    assert fake_gpu.queries == []


def test_one_process_stamps_and_checks_the_same_frames(fake_gpu):
    marks = baselines.both_sides(None, 0.001)
    assert marks == sorted(marks)
    frames = throughput.STRIDE * (len(marks) - 1)
    sides = [("stamp", 64 * 512, 512), ("check", 64 * 512, 512)]
    assert fake_gpu.launched == [(*side, n) for n in range(frames) for side in sides]
    fake_gpu.wrong = 3
    with pytest.raises(RuntimeError, match="wrong words"):
        baselines.both_sides(None, 0.001)
