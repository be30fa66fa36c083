"""bench/two_gpus.py over host memory: its processes, its check of frames, and what it writes."""

from __future__ import annotations

from typing import Any

import pytest

import gpuring
from bench import two_gpus
from gpuring.cli.measure import stored
from gpuring.cli.measure.crew import Crew, Pipe, RoleFailed
from gpuring.cli.measure.patterns import HostPattern
from tests import ROOT
from tests.helpers.commands import module

PATIENCE_S = 100


@pytest.mark.slow
def test_frames_are_taken_in_each_way(tmp_path):
    out = tmp_path / "figures.json"
    options = ["--host", "--rounds", 2, "--json", out]
    done = module("bench.two_gpus", *options, timeout=PATIENCE_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    run = stored.load(out)
    assert run.machine["cpu"]
    what = [(each.setting["nbytes"], each.name) for each in run.figures]
    assert what == [(nbytes, how) for nbytes in (64 << 10, 1 << 20) for how in ("copy", "kernel")]
    for each in run.figures:
        assert each.unit == "GB/s"
        assert each.values is not None
        assert each.values.n == 2
        assert each.values.p(0) > 0


def write_wrongly(pipe: Pipe, *args: Any) -> None:
    def stamp_all(self: HostPattern, slot: Any) -> None:
        slot.array.fill(slot.seq)
        self.spoil(slot)

    HostPattern.stamp_all = stamp_all
    two_gpus.write(pipe, *args)


@pytest.mark.slow
def test_a_wrong_word_is_no_result(name, monkeypatch):
    monkeypatch.setattr(two_gpus, "write", write_wrongly)
    monkeypatch.setattr(two_gpus, "ring_name", lambda: name)
    with Crew() as crew, pytest.raises(RoleFailed, match="20 words were wrong"):
        two_gpus.over_ring({two_gpus.HOST: crew}, "auto", two_gpus.HOST, two_gpus.HOST, 1 << 16, 20)
    gpuring.unlink(name)
