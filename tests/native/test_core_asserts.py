"""The assertions of the core (GR_ASSERT in gpuring/native/core/atomics.h) hold, and can fail."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.helpers.compiled import BUILD_S, Edit, build, needs_compiler

RUN_S, ROUNDS = 120, "2000"
FLAGS = ["-O1", "-w", "-DGR_DEBUG"]

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + RUN_S)]

MUTANTS: dict[str, Edit] = {
    "c >= me->last.seq": (
        "members.c",
        "me->wait.spin_ns = GR_SPIN_MAX_NS;",
        "me->wait.spin_ns = GR_SPIN_MAX_NS; me->last.seq = 1 << 30;",
    ),
    "gr_load_sc(&ring->slot[i].word) == mine": (
        "claim.c",
        'GR_FAULT("claim: hinted");',
        "gr_cas(&ring->slot[i].word, mine, claim_word(c, GR_NONE, GR_VOID));",
    ),
    "gr_load_acquire(fence_of(me->ring, index, me->self.number)) < next": (
        "claim.c",
        # Only for producers.  Otherwise the number of a consumer could not be used again, and the
        # program's consumers, which come and go, would run out of numbers first.
        'GR_FAULT("publish: recorded");',
        "gr_store_relaxed(work_of(me->ring, index, me->self.number), value - 1);",
    ),
    "value <= gr_load_relaxed(work_of(": ("claim.c", "gr_store_relaxed(work, value);", ";"),
    "at->high >= me->cursor.high": ("walk.h", "at->high = to;", "at->high = 0;"),
    "gr_masks_cover(ring)": (
        "members.c",
        "atomic_fetch_or_explicit(&head->peer_mask[p / 64], bit_of(p), memory_order_seq_cst);",
        ";",
    ),
}


@pytest.mark.slow
def test_the_assertions_hold_under_load(tmp_path):
    subprocess.run([build(tmp_path, "stress.c", FLAGS), ROUNDS], check=True, timeout=RUN_S)


@pytest.mark.slow
@pytest.mark.parametrize("condition", MUTANTS)
def test_an_assertion_that_fails_says_its_condition(condition, tmp_path):
    program = build(tmp_path, "stress.c", FLAGS, MUTANTS[condition])
    done = subprocess.run(
        [program, ROUNDS], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == -signal.SIGABRT
    assert f"does not hold: {condition}" in done.stderr
