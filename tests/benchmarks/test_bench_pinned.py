"""bench/pinned.py without a GPU: its processes, how it checks frames, and what it writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuring
from bench import pinned
from gpuring.cli.measure import stored
from gpuring.cli.measure.crew import Crew, Pipe, RoleFailed
from tests import ROOT
from tests.helpers.commands import module

PATIENCE_S = 100


@pytest.mark.slow
def test_it_measures_the_ring_beside_plain_copies(tmp_path):
    out = tmp_path / "figures.json"
    options = ["--host", "--rounds", 2, "--json", out]
    done = module("bench.pinned", *options, timeout=PATIENCE_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    run = stored.load(out)
    who = ("gpuring", *pinned.BESIDE)
    expected = [("attach", "gpuring"), *((what, each) for each in who for what in RATES)]
    expected += [("rate beside", each) for each in pinned.BESIDE]
    for size in pinned.SIZES:
        found = [each for each in run.figures if each.setting["size"] == size]
        assert sorted((each.name, each.program) for each in found) == sorted(expected)
        for each in found:
            assert each.values is not None
            assert each.values.p(0) > 0
            assert each.verified


RATES = ("rate", "latency")


def films_wrongly(pipe: Pipe, which: str, *args: Any) -> None:
    if which == "whole":
        pinned.content = lambda seq, nbytes: np.zeros(nbytes, "u1")
    else:
        pinned.stamp = lambda slot: slot.array[:8].fill(0)
    pinned.camera(pipe, *args)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["whole", "ends"])
def test_a_wrong_byte_is_no_result(name, monkeypatch, which):
    real = Crew.start

    def start(crew: Crew, role: Any, *args: Any, **options: Any) -> Any:
        if role is pinned.camera:
            return real(crew, films_wrongly, which, *args, **options)
        return real(crew, role, *args, **options)

    monkeypatch.setattr(Crew, "start", start)
    monkeypatch.setattr(pinned, "ring_name", lambda: name)
    with Crew() as crew, pytest.raises(RoleFailed, match="verification failed"):
        pinned.measure(crew, "4 KiB", 1, on_gpu=False)
    gpuring.unlink(name)
