"""Checks of both kill matrices: a process dies at every place, and a failed recovery is noticed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess

from tests import ROOT
from tests.helpers.compiled import run

RUN_S = 200


EACH_ONCE = 0
"""As a number of rounds: one role dies at each point, or is stopped there."""
EACH_ROLE = 400
"""Each role that comes to a point dies there, and is stopped there."""


def dies_at_every_point_of(
    folders: tuple[Path, ...], program: Path, rounds: int, *options: object
) -> None:
    report = program.parent / "report.json"
    done = run(program, *options, "--rounds", rounds, "--json", report, timeout=RUN_S)
    assert done.returncode == 0, done.stderr
    points = json.loads(report.read_text())["points"]
    named = {
        name
        for folder in folders
        for path in (ROOT / folder).glob("*.c")
        for name in re.findall(r'FAULT\("([^"]+)"\)', path.read_text())
    }
    assert set(points) == named | {"device: unfinished"}
    killed = {
        point: sum(role["killed"] for role in of["roles"].values()) for point, of in points.items()
    }
    assert [point for point, rounds in killed.items() if rounds == 0] == []


def is_caught(done: CompletedProcess[str]) -> None:
    assert done.returncode == 1, done.stdout
    assert re.match(r"round \d+ of seed 1: \w+ dies at ", done.stderr), done.stderr
