"""A peer that joins while nobody looks is watched by those that wait for it (programs/late_join.c).

Two things that would hide a mistake are taken away: the watchdog's ticks, and the look after each
slice of a wait.
"""

from __future__ import annotations

import signal
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.helpers.compiled import BUILD_S, Edit, build, needs_compiler, run
from tests.helpers.promise import promise

RUN_S, HANGS_S = 60, 2
FLAGS = ["-O1", "-g", "-w", "-DGR_SLICE_NS=INT64_C(1000000000000000)"]
NO_TICKS: Edit = (
    "watchdog.c",
    "TICK_MS = 20, LONG_TICK_MS = 1000,",
    "TICK_MS = 100000000, LONG_TICK_MS = 100000000,",
)

pytestmark = [needs_compiler, pytest.mark.slow, pytest.mark.deadline(BUILD_S + RUN_S)]


TELLS = {
    "stream": ("order.c", "gr_tell_of_joins(peer->core.ring);\n"),
    "gate": ("order.c", "gr_tell_of_joins(peer->core.ring); /* as"),
    "poll": ("verbs.c", "gr_tell_of_joins(peer->core.ring);"),
}


def joins(place: Path, how: str, seconds: int, *edits: Edit) -> CompletedProcess[str]:
    program = build(place, "late_join.c", FLAGS, NO_TICKS, *edits, device=True)
    return run(program, how, seconds, timeout=RUN_S + 10)


@promise(
    "architecture.md",
    "A thread also does so when it polls and finds nothing, and before it waits for GPU work or "
    "lets a stream wait.",
)
@pytest.mark.parametrize("how", TELLS)
def test_the_watchdog_knows_who_is_waited_for(how, tmp_path):
    done = joins(tmp_path, how, RUN_S)
    assert (done.returncode, done.stdout) == (0, "it goes on\n"), done.stderr


@pytest.mark.parametrize("how", TELLS)
def test_who_does_not_tell_the_watchdog_waits_for_ever(how, tmp_path):
    file, call = TELLS[how]
    silent = (file, call, call.replace("gr_tell_of_joins(peer->core.ring);", ";"))
    assert joins(tmp_path, how, HANGS_S, silent).returncode == -signal.SIGALRM
