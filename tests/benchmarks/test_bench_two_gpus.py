"""bench/two_gpus.py over host memory: its processes, its check of frames, and what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuring
from bench import two_gpus
from gpuring.cli.bench.crew import Crew, Pipe, RoleFailed
from gpuring.cli.bench.patterns import HostPattern
from tests import ROOT

PATIENCE_S = 100


@pytest.mark.slow
def test_frames_are_taken_in_each_way(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = ["-m", "bench.two_gpus", "--host", "--rounds", "2", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, *command],
        check=False, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert written["card"]["cpu"]
    what = [(each["nbytes"], each["what"]) for each in written["figures"]]
    assert what == [(nbytes, how) for nbytes in (64 << 10, 1 << 20) for how in ("copy", "kernel")]
    for each in written["figures"]:
        assert len(each["frames/s"]) == len(each["GB/s"]) == 2
        assert min(each["frames/s"]) > 0


def write_wrongly(pipe: Pipe, *args: Any) -> None:
    def stamp_all(self: HostPattern, slot: Any) -> None:
        slot.array.fill(slot.seq)
        self.spoil(slot)

    HostPattern.stamp_all = stamp_all  # type: ignore[method-assign]
    two_gpus.write(pipe, *args)


@pytest.mark.slow
def test_a_wrong_word_is_no_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_gpus, "write", write_wrongly)
    monkeypatch.setattr(two_gpus, "ring_name", lambda: name)
    with Crew() as crew, pytest.raises(RoleFailed, match="20 words were wrong"):
        two_gpus.over_ring({two_gpus.HOST: crew}, "auto", two_gpus.HOST, two_gpus.HOST, 1 << 16, 20)
    gpuring.unlink(name)
