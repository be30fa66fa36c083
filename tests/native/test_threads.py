"""One thread leaves while another is in a verb of the same peer (programs/threads.c); orphans.

The mutants show that it can fail: each takes away a part of edge L, or of what a leave takes back.
"""

from __future__ import annotations

import pytest

from tests.helpers.compiled import BUILD_S, FAULTS, Edit, build, needs_compiler, run

RUN_S = 240

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + RUN_S)]

MUTANTS: dict[str, Edit] = {
    "a leave does not wait for verbs": (
        "members.c",
        "result = wait_for_verbs(me);",
        "result = GR_OK;",
    ),
    "a verb is counted after its look": (
        "peer.h",
        "atomic_fetch_add_explicit(inside_of(me), 1, memory_order_seq_cst);\n"
        "    if (is_mine(me)) return GR_OK;",
        "bool mine = is_mine(me);\n"
        '    GR_FAULT("looked");\n'
        "    atomic_fetch_add_explicit(inside_of(me), 1, memory_order_seq_cst);\n"
        "    if (mine) return GR_OK;",
    ),
    "a leave takes nothing back": (
        "members.c",
        "gr_take_back(ring, me->self.number, me->self.u);",
        "",
    ),
    "nobody looks for orphans": (
        "reap.c",
        "if (!has_orphans(ring)) return GR_OK;",
        "return GR_OK;",
    ),
    "an orphan is opened without a word": (
        "reap.c",
        "atomic_fetch_add_explicit(&ring->sub[u].redo, 1, memory_order_seq_cst);\n    if (known)",
        "if (known)",
    ),
    "who leaves asleep is counted for ever": ("reap.c", "    uncount(ring, &ring->peer[p]);", ""),
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("rounds", [200, 2000])
def test_nothing_is_left_behind(rounds, tmp_path):
    """`./check` runs this under sanitizers."""
    run(build(tmp_path, "threads.c", FAULTS), rounds, check=True, timeout=RUN_S)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_leaves_something_behind(mutant, tmp_path):
    program = build(tmp_path, "threads.c", FAULTS, MUTANTS[mutant])
    done = run(program, 5000, timeout=RUN_S)
    assert "not so" in done.stderr
