"""Short storms, whose output has the seed; `python -m tests.storm rings` is a long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.support import segments_of

STORM = (sys.executable, "-m", "tests.storm", "rings")
FEW = [
    "keeper-0", "keeper-1", "anchor-0", "anchor-1", "alone-0", "writer-0", "writer-1", "jobs-0",
    "jobs-1",
]  # fmt: skip
STORMS = {
    "deaths": (["kill", "stop"], ["lossy-0", "newest-1", "awaiting-1", "crowd"]),
    "ends": (["term", "stop"], ["follower-0", "handing-1", "daemons", "select"]),
    "interrupts": (["int", "stop"], ["lossy-0", "awaiting-1", "awaitingwriter-0", "select"]),
    "everything": (["kill", "stop", "term", "int"], ["alone-1", "follower-1", "newest-0"]),
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", STORMS)
def test_the_books_balance_after_a_storm(kind):
    signals, more = STORMS[kind]
    seed = list(STORMS).index(kind) + 1
    options = ["--seconds", "6", "--seed", str(seed), "--patience", "40"]
    storm = subprocess.Popen(
        [*STORM, *options, "--signals", *signals, "--roles", *FEW, *more],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        said, _ = storm.communicate(timeout=120)
    finally:
        storm.kill()  # its processes end with it
        storm.wait()
        left = segments_of(f"storm-{storm.pid}-")
        for path in left:
            Path("/dev/shm", path).unlink()
    assert storm.returncode == 0, said
    assert " published" in said
    assert not left
