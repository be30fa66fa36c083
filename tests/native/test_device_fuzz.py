"""Hostile words and a hostile driver for the verbs of device order (programs/device_fuzz.c)."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.helpers.compiled import BUILD_S, Edit, build, needs_compiler, run

INPUTS, RUN_S = 20_000, 240
FLAGS = ["-O1", "-g", "-w", "-DGR_FAULTS", "-fsanitize=address,undefined"]
FLAGS += ["-fno-sanitize-recover=all", "-DGR_SLICE_NS=300000", "-DGD_LAP_NS=2000"]  # short waits

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + RUN_S)]


def fuzz(place: Path, *edits: Edit) -> CompletedProcess[str]:
    program = build(place, "device_fuzz.c", FLAGS, *edits, device=True)
    return run(program, "--inputs", INPUTS, timeout=RUN_S)


@pytest.mark.slow
def test_no_word_and_no_driver_makes_device_order_crash_or_hang(tmp_path):
    done = fuzz(tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inputs"] == INPUTS


MUTANTS: dict[str, Edit] = {
    "what is said of a refusal is left out": (
        "stream.c",
        "call->trouble = (struct gd_trouble){.where = where, .stream = stream, .status = status};",
        "(void)stream;",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_fuzzer_finds_each_mutant(mutant, tmp_path):
    done = fuzz(tmp_path, MUTANTS[mutant])
    assert done.returncode != 0, done.stdout
