"""bench/recovery_steps.py without a GPU: its steps come in order, and it leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.commands import module


@pytest.mark.slow
def test_the_steps_come_in_order(tmp_path):
    found = tmp_path / "steps.json"
    before = set(Path("/dev/shm").iterdir())
    options = ["--memory", "host", "memfd", "--rounds", "2", "--parallel", "2", "--json", found]
    done = module("bench.recovery_steps", *options, cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(found.read_text())["results"]
    assert [each["memory"] for each in results if not each["containers"]] == ["host", "memfd"]
    for each in results:
        assert len(each["rounds"]) == 2
        for row in each["rounds"]:
            assert row["process"] > 0
            assert 0 < row["cleared"] <= row["claimed"] <= row["verb"] < 100_000
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "steps-" in str(path)]
