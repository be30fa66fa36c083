"""The kill matrix for device order (tests/native/programs/kill_device): every fault point.

What readers are told of torn frames is compared with what the GPU of a fake driver found.
bench/results/kill-matrix-device.json keeps a long run:

    gcc -O2 -pthread -DGR_FAULTS -Wl,--wrap=gr_pidfd gpuring/native/{core,device}/*.c \
        tests/native/programs/{kill_device/*,fake_*,kill/{book,life,matrix,report,round}}.c -ldl \
        -o build/kill
    build/kill --core 'gpuring/native/[cd]*e' --rounds 10000 --seed 2029 --json FILE
"""

from __future__ import annotations

import pytest

from tests.helpers.compiled import BUILD_S, CORE, DEVICE, FAULTS, Edit, build, needs_compiler, run
from tests.helpers.promise import promise
from tests.kill.matrix import EACH_ROLE, RUN_S, dies_at_every_point_of, is_caught

PROGRAM = [
    "kill_device/*.c",
    *(f"kill/{name}.c" for name in ("book", "life", "matrix", "report", "round")),
]
WHERE = ("--core", "gpuring/native/[cd]*e")  # core and device
FLAGS = [*FAULTS, "-Wl,--wrap=gr_pidfd"]

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + RUN_S)]


@promise(
    "failure.md",
    "If a process is killed, at any instruction, **the others go on**. No reader gets a torn frame "
    "without being told.",
    "A reader of a torn frame is always told.",
    "A finished frame is called torn in three cases only:",
)
@pytest.mark.slow
def test_whoever_dies_wherever_streams_go_on_and_torn_frames_are_told_exactly(tmp_path):
    program = build(tmp_path, PROGRAM, FLAGS, device=True)
    dies_at_every_point_of((CORE, DEVICE), program, EACH_ROLE, *WHERE)


# name: (where to look for it, what to change)
MUTANTS: dict[str, tuple[tuple[str, ...], list[Edit]]] = {
    "nobody asks whether a frame that was released is torn": (
        ("--point", "device: unfinished"),
        [("released.c", "if (!events) return GD_TORN;", "if (!events) return GD_WHOLE;")],
    ),
    "nobody asks whether a frame that is held is torn": (
        ("--point", "device: unfinished"),
        [
            (
                "released.c",
                "if (!gr_torn(peer->core.ring, index, use->producer, use->producer_id, "
                "use->value))",
                "if (1)",
            )
        ],
    ),
    "a frame is torn as soon as its producer's number has died": (
        ("--point", "device:"),
        [("tear.c", "return value > gr_load_acquire(&mark->reached) ||", "return true ||")],
    ),
    "what is torn at its release is not said": (
        ("--point", "device: unfinished"),
        [
            (
                "ends.c",
                "else tell_of_torn(peer, call, seq);",
                "else gd_unreserve(&peer->released, 1);",
            )
        ],
    ),
    "a dead process's number is free before its GPU work is gone": (
        ("--point", "device: unfinished"),
        [("reap.c", "gpu_gone(ring, &ring->peer[p]);", "true;")],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_matrix_finds_each_mutant(mutant, tmp_path):
    where, edits = MUTANTS[mutant]
    program = build(tmp_path, PROGRAM, FLAGS, *edits, device=True)
    rounds = ("--rounds", 1000, "--deadline-ms", 600)  # it stops at the first
    is_caught(run(program, *WHERE, *rounds, *where, timeout=RUN_S))
