"""Two actors in the C core, stopped at every step (programs/schedules)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.compiled import BUILD_S, PROGRAMS, build, needs_compiler, run

RUN_S = 100
FLAGS = ["-O1", "-g", "-w", "-include", f"{PROGRAMS}/schedules/steps.h", "-Wl,--wrap=nanosleep"]

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + 2 * RUN_S)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("schedules"), "schedules/*.c", FLAGS)


@pytest.mark.parametrize(
    "scene",
    ["H5", "H14", "H20", "E3", "E10", "M1", "A1", "A5", "A9", "G4", "T5", "D8", "D10"],
)
def test_it_holds_wherever_the_actors_stop(program, scene):
    done = run(program, scene, timeout=RUN_S + 10)
    assert re.fullmatch(r"\d+ schedules\n", done.stdout), done.stderr
