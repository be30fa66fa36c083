"""No wake-up is lost (programs/wakeups.c), without the backstop that would make up for it.

The mutants show that it can fail: each takes away one step of edge D, and somebody has to hang.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.helpers.compiled import BUILD_S, build, needs_compiler, run

RUN_S, HANGS_S, ROUNDS = 240, 3, 30_000
FLAGS = ["-O2", "-w", "-DGR_SLICE_NS=1000000000000"]

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + RUN_S)]

MUTANTS = {
    "select announces itself to nobody": (
        "wait.c",
        "for (uint32_t k = 0; k < n; k++) gr_announce(peers[k], GR_SLEEPING);",
        ";",
    ),
    "select sleeps at the first bell only": (
        "wait.c",
        "signalled = gr_wait_bells(waited, n, slice_end);",
        "signalled = gr_wait_bells(waited, 1, slice_end);",
    ),
    "select reads the bells after the looks": (
        "wait.c",
        "signalled = gr_wait_bells(waited, n, slice_end);",
        "for (volatile int k = 0; k < 20000; k++);"  # otherwise it takes many rounds
        "for (uint32_t k = 0; k < n; k++) waited[k].value = peers[k]->ring->head->bell;"
        "signalled = gr_wait_bells(waited, n, slice_end);",
    ),
    "arming announces itself to nobody": (
        "notify.c",
        "gr_announce(&notifier->look, GR_ARMED);",
        ";",
    ),
    "arming does not look": (
        "notify.c",
        "enum gr_result result = answer_of(notifier);",
        "enum gr_result result = GR_BLOCKED;",
    ),
    "arming does not kick the notifier thread": (
        "notify.c",
        "if (!sleeps_at(bell, value)) kick();",
        ";",
    ),
    "the notifier thread does not look": (
        "notify.c",
        "if (answer_of(notifier) != GR_BLOCKED) make_readable(notifier);",
        ";",
    ),
    "disarming uncounts twice": (
        "notify.c",
        "if (notifier->armed) gr_withdraw(&notifier->look, GR_ARMED);",
        "if (notifier->armed) gr_withdraw(&notifier->look, GR_ARMED), "
        "atomic_fetch_sub(&notifier->look.ring->head->waiters, 1);",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1000, 5000])
def test_no_wake_up_is_lost(rounds, tmp_path):
    """`./check` plays ten times as many rounds."""
    run(build(tmp_path, "wakeups.c", FLAGS), rounds, check=True, timeout=RUN_S)


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Runs all chosen mutants at once, because they mostly sleep until the alarm."""
    started = {}
    try:
        for item in request.session.items:
            mutant = getattr(item, "callspec", None) and item.callspec.params.get("mutant")
            if item.path == request.path and mutant:
                place = tmp_path_factory.mktemp("mutant")
                program = build(place, "wakeups.c", FLAGS, MUTANTS[mutant])
                started[mutant] = subprocess.Popen([program, str(ROUNDS), str(HANGS_S)])
        yield started
    finally:
        for each in started.values():
            each.kill()
            each.wait()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_with_each_mutant_somebody_hangs_or_is_counted_too_often(mutant, running):
    status = running[mutant].wait(RUN_S)
    assert status in (-signal.SIGALRM, -signal.SIGABRT)  # it hung, or counts a sleeper
