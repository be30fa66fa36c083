"""Answers that are foreseen (programs/rhythm.c).

The program has a clock of its own, so the figures are the same each time.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.helpers.compiled import BUILD_S, FAULTS, build, needs_compiler, run

RUN_S, WAITS = 100, 400
FLAGS = [*FAULTS, "-Wl,--wrap=gr_now_ns,--wrap=syscall"]
SHARE, BEFORE_IT_ADAPTED_NS = 0.02, 100_000

REGULAR = [
    (300_000, 0),
    (1_000_000, 1_000),
    (4_000_000, 10_000),
    (16_700_000, 50_000),
    (40_000_000, 0),
]
JITTERY = [(300_000, 30_000), (4_000_000, 1_000_000), (16_700_000, 5_000_000)]

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + 2 * RUN_S)]

MUTANTS = {
    "the last timer's lateness is not learnt": (
        "average(late_ns, &rhythm->late_ns, &rhythm->late_off_ns);",
        "rhythm->late_ns = 0;",
    ),
    "it wakes up in time, but sleeps on": (
        "result = spin_for_it(me, verb, early, until);",
        "until++;",
    ),
    "it spins for whatever comes": ("margin > rhythm->period_ns / GR_SPIN_SHARE ||", ""),
    "the forecast never changes": ("if (++rhythm->strange < 4) return;", "return;"),
    "who is woken too early sleeps on unannounced": (
        "enum gr_result result;\n    gr_announce(me, GR_SLEEPING);",
        "enum gr_result result;\n    if (until % 2) gr_announce(me, GR_SLEEPING);",
    ),
}

NO_GATE = ("wait.c", *MUTANTS["it spins for whatever comes"])
NOT_COUNTED = ("wait.c", "rhythm->saved_ns -= gr_now_ns() - now;", "")


def waits(program: Path, period_ns: int, jitter_ns: int) -> dict[str, float]:
    done = run(program, period_ns, jitter_ns, WAITS, check=True, timeout=RUN_S)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def check(program: Path) -> None:
    for period_ns, jitter_ns in REGULAR:
        figures = waits(program, period_ns, jitter_ns)
        assert figures["punctual"] > 0.85 * figures["waits"]  # awake when the frame came
        assert figures["overdrawn_ns"] < BEFORE_IT_ADAPTED_NS
        assert figures["awake"] < SHARE
    for period_ns, jitter_ns in JITTERY:
        figures = waits(program, period_ns, jitter_ns)
        assert figures["sleeps"] < 1.05 * figures["waits"] + 10  # hardly any sleep ends too early
        assert figures["overdrawn_ns"] < BEFORE_IT_ADAPTED_NS


def test_a_reader_is_awake_when_a_regular_frame_comes_and_spins_no_more_than_its_share(tmp_path):
    check(build(tmp_path, "rhythm.c", FLAGS))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_is_late_or_spins_too_much(mutant, tmp_path):
    program = build(tmp_path, "rhythm.c", FLAGS, ("wait.c", *MUTANTS[mutant]))
    with pytest.raises((AssertionError, subprocess.SubprocessError)):
        check(program)


@pytest.mark.slow
@pytest.mark.parametrize("edits", [(NO_GATE,), (NO_GATE, NOT_COUNTED)], ids=["counted", "not"])
def test_even_who_spins_for_whatever_comes_spins_no_more_than_the_share(edits, tmp_path):
    program = build(tmp_path, "rhythm.c", FLAGS, *edits)
    most = max(waits(program, *each)["overdrawn_ns"] for each in JITTERY)
    assert (most > 10 * BEFORE_IT_ADAPTED_NS) == (NOT_COUNTED in edits)
