"""The kill matrix (tests/native/programs/kill): every fault point, every role that comes to it.

The mutants show that it can fail.  Each takes one line out of the recovery, and then a survivor has
to hang, lose a frame, or find that the ring has lost a slot.  bench/results/kill-matrix-host.json
keeps a long run:

    gcc -O2 -pthread -DGR_FAULTS {gpuring/native/core,tests/native/programs/kill}/*.c -o build/kill
    build/kill --rounds 10000 --seed 2029 --json bench/results/kill-matrix-host.json
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.compiled import BUILD_S, CORE, FAULTS, Edit, build, needs_compiler, run
from tests.helpers.promise import promise
from tests.kill.matrix import EACH_ONCE, EACH_ROLE, RUN_S, dies_at_every_point_of, is_caught

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + RUN_S)]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("kill"), "kill/*.c", FAULTS)


@promise(
    "failure.md",
    "If a process is killed, at any instruction, **the others go on**.",
    "If a process dies while it clears another one, another process does that work again.",
)
@promise(
    "architecture.md",
    "The other is that a newcomer was killed in the middle of its join.",
    "A waiting thread may also be late by one such interval if the process that should wake it "
    "cannot be cleared. That is so if a process without a producer or a consumer is killed in the "
    "middle of `close()`, or if a process is stopped after it has changed the ring and before it "
    "wakes the others.",
)
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("rounds", [EACH_ONCE, EACH_ROLE])
def test_whoever_dies_wherever_the_survivors_go_on_and_the_books_balance(matrix, rounds):
    dies_at_every_point_of((CORE,), matrix, rounds)


WITHOUT_LONG_TICKS: list[Edit] = [
    ("watchdog.c", "LONG_TICK_MS = 1000, FULL_LOOK_MS = 100,", "FULL_LOOK_MS = 1000000,"),
    (
        "watchdog.c",
        "soon ? TICK_MS : tick_ms < LONG_TICK_MS / 2 ? 2 * tick_ms : LONG_TICK_MS;",
        "soon ? TICK_MS : 1000000;",
    ),
]


@promise(
    "architecture.md",
    "A watchdog sleeps at the pidfds of all others, and learns of newcomers in time, because a "
    "join wakes everybody who sleeps at the ring, and a thread that is about to sleep tells its "
    "watchdog who has joined.",
)
@pytest.mark.slow
def test_no_death_waits_for_the_tick_of_a_watchdog(tmp_path):
    """A thread that wakes up or goes to sleep reports newcomers to the watchdog, so the tick may be
    long.

    The short tick stays: 20 ms after a join that was not complete yet, or after LOCK was busy.
    """
    program = build(tmp_path, "kill/*.c", FAULTS, *WITHOUT_LONG_TICKS)
    done = run(program, "--rounds", 150, timeout=RUN_S)  # the rest is not reached
    assert done.returncode == 0, done.stderr


def test_a_fault_point_that_is_not_reached_shows(matrix):
    where = ("--role", "closer", "--point", "close: closed")
    done = run(matrix, "--rounds", 1, *where, timeout=RUN_S)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(re.match(r"close: closed .* closer 1$", line) for line in lines)
    assert any(re.match(r"claim: swapped .* NOBODY DIED HERE$", line) for line in lines)


# name: (where to look for it, what to change)
MUTANTS: dict[str, tuple[tuple[str, ...], list[Edit]]] = {
    "a reaper does not open what the dead held": (
        ("--point", "acquire: confirmed"),
        [
            (
                "reap.c",
                "claim_word(seq_of(t), GR_NONE, drop ? GR_DONE : GR_OPEN)",
                "drop ? claim_word(seq_of(t), GR_NONE, GR_DONE) : t",
            )
        ],
    ),
    "a claim looks at the first word of the mask only": (
        (),
        [("ring.h", "(ring)->sub_words, sub_mask_of(", "1, sub_mask_of(")],
    ),
    "a reaper does not void what the dead was writing": (
        ("--point", "claim: claimed"),
        [("reap.c", "gr_cas(&slot->word, w, claim_word(seq_of(w), GR_NONE, GR_VOID))", "1")],
    ),
    "a reaper does not say that a frame was opened": (
        ("--role", "member", "--point", "acquire: confirmed"),
        [
            (
                "reap.c",
                "atomic_fetch_add_explicit(&ring->sub[u].redo, 1, memory_order_seq_cst);\n"
                '            GR_FAULT("reap: redo bumped");',
                "",
            )
        ],
    ),
    "a reaper does not ring the bell, and nobody looks by himself": (
        ("--point", "claim: claimed"),
        [
            (
                "reap.c",
                "gr_ring_bell(ring);\n    gr_store_sc(&entry->word, peer_word(GR_FREE, 0, 0));",
                "gr_store_sc(&entry->word, peer_word(GR_FREE, 0, 0));",
            ),
            ("wait.h", "GR_SLICE_NS (INT64_C(50)", "GR_SLICE_NS (INT64_C(2000)"),
        ],
    ),
    "a reaper frees the entry first": (
        ("--role", "reaper", "--point", "reap: slot"),
        [
            (
                "reap.c",
                "bool producer = role_of(word) == GR_PRODUCER;",
                "bool producer = role_of(word) == GR_PRODUCER;\n"
                "    gr_store_sc(&entry->word, peer_word(GR_FREE, 0, 0));",
            )
        ],
    ),
    "a leaver frees its entry before its subscription": (
        ("--point", "leave: leaving"),
        [
            (
                "members.c",
                "peer_word(GR_LEAVING, me->self.role, me->self.u)",
                "peer_word(GR_FREE, 0, 0)",
            )
        ],
    ),
    "a reaper's mark says nothing of what was finished": (
        ("--role", "producer", "--point", "device: unfinished"),
        [("tear.c", "&mark->reached, reached)", "&mark->reached, 0)")],
    ),
    "a reaper does not raise the fences of the dead": (
        ("--role", "consumer", "--point", "device: unfinished"),
        [("reap.c", "atomic_exchange_explicit(fence, promised, memory_order_seq_cst);", ";")],
    ),
    "nobody tells the watchdog of newcomers": (
        ("--role", "joiner"),
        [
            *WITHOUT_LONG_TICKS,
            (
                "watchdog.c",
                "void gr_tell_of_joins(struct gr_ring *ring) {",
                "void gr_tell_of_joins(struct gr_ring *ring) {\n    if (ring) return;",
            ),
        ],
    ),
    "a reaper takes every dead peer for a sleeper": (
        ("--role", "joiner"),
        [
            (
                "reap.c",
                "if (counted) atomic_fetch_sub_explicit(&ring->head->waiters, counted,",
                "atomic_fetch_sub_explicit(&ring->head->waiters, counted | 1,",
            )
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_matrix_finds_each_mutant(mutant, tmp_path):
    where, edits = MUTANTS[mutant]
    program = build(tmp_path, "kill/*.c", FAULTS, *edits)
    is_caught(run(program, "--rounds", 100, "--deadline-ms", 400, *where, timeout=RUN_S))
