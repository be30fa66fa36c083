"""A lossless subscription begins behind the one frame that a claim may still overwrite
(programs/first_frame.c)."""

from __future__ import annotations

import pytest

from tests.helpers.compiled import BUILD_S, FAULTS, build, needs_compiler, run

RUN_S = 60

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + 2 * RUN_S)]


def test_it_begins_behind_what_a_claim_past_its_gate_overwrites(tmp_path):
    done = run(build(tmp_path, "first_frame.c", FAULTS), timeout=RUN_S + 10)
    said = "it begins behind the frame that may go\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr
