"""Hostile words: the core's own fuzzer under sanitizers, and damaged tables through the Python API.

The long run is `fuzz --inputs 1000000` (see programs/fuzz.c and fuzz_offer.c).  Damaged first
pages and descriptions at attach are in test_header.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuring
from gpuring.cli import inspect
from gpuring.ring import inner
from tests.helpers.compiled import build, needs_compiler, run
from tests.helpers.promise import promise

CI_INPUTS = 50_000
CI_CONVERSATIONS = 3_000
FLAGS = ["-g", "-O1", "-DGR_FAULTS", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def figures_of(place: Path, name: str, inputs: int) -> dict[str, Any]:
    program = build(place, f"{name}.c", FLAGS)
    done = run(program, "--inputs", inputs, timeout=240)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    assert figures["inputs"] == inputs
    return figures


@promise(
    "trust.md",
    "Everything that is read from a header at attach is copied and checked against its range and "
    "the real size of the file. Only the checked copy is used. Sequences, owners and shapes that "
    "are read later are checked before they are used as an index.",
    "They cannot make a correct peer read or write outside the mapped files through words of the "
    "header.",
)
@needs_compiler
@pytest.mark.slow
@pytest.mark.deadline(300)
def test_no_word_makes_the_core_crash_or_hang_or_leave_its_tables(tmp_path):
    figures = figures_of(tmp_path, "fuzz", CI_INPUTS)
    assert figures["attached"] > CI_INPUTS // 10  # many get past the checks of attach


@promise(
    "trust.md",
    "That holds nobody else up.",
)
@needs_compiler
@pytest.mark.slow
@pytest.mark.deadline(300)
def test_no_client_or_server_harms_those_that_hand_descriptors_on(tmp_path):
    """No process crashes or hangs, no descriptor is left, and an honest client gets the slots."""
    figures_of(tmp_path, "fuzz_offer", CI_CONVERSATIONS)


WORD = struct.Struct("<Q")
FIRST_WORD = 24  # the first word that changes while a ring lives
VALUES = (
    st.sampled_from([0, 1, 2, 64, 255, 2**32 - 1, 2**47, 2**48 - 1, 2**63, 2**64 - 1])
    | st.integers(0, 2**64 - 1)
    | st.builds(lambda seq, owner, phase: seq << 16 | owner << 8 | phase,
                st.integers(0, 12), st.sampled_from([0, 1, 2, 3, 4, 200, 255]), st.integers(0, 4))
    | st.builds(lambda state, role, u: state << 16 | role << 8 | u,
                st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 1, 2, 255]))
)  # fmt: skip


def use(name: str) -> None:
    """Asks a ring everything that needs no wait."""
    ours = [ring for ring in gpuring.ls() if ring.name == name]
    for seen in ours:
        json.dumps(dataclasses.asdict(seen))
        inspect.describe(seen)
    with gpuring.attach(name) as ring:
        ring.stats()
        epoch, seq, lost = inner.link(ring)
        if epoch:
            inner.set_link(ring, epoch, seq, lost)
        with contextlib.suppress(gpuring.RingError), ring.producer() as producer:
            producer.claim(0).publish()
        for lossless in (True, False):
            try:
                frames = ring.consumer("x" if lossless else None, lossless=lossless)
            except (gpuring.RingError, ValueError):  # ValueError: it exists, and is of another kind
                continue
            with contextlib.suppress(gpuring.RingError), frames:
                for _ in range(3):
                    with frames.acquire(0) as slot:
                        slot.check()
        ring.stats()


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), VALUES), min_size=1, max_size=6)
)
def test_damaged_tables_are_told_by_the_errors_of_gpuring_only(name, damage):
    with (
        gpuring.create(
            name, slots=2, shape=4, dtype="u1", meta=[("pts", "i8")], max_peers=5,
            max_subscriptions=2, device="host", replace=True,
        ) as ring,
        ring.producer() as producer,
        ring.consumer("x") as frames,
    ):  # fmt: skip
        producer.claim(0).publish()
        held = frames.acquire(0)
        path = Path("/dev/shm", f"gpuring.{name}")
        valid = path.read_bytes()
        words = len(valid.rstrip(b"\0")) // WORD.size  # the description comes last
        used = [  # head, link, tables
            k for k in range(FIRST_WORD, words) if k < 48 or 120 <= k < 136 or k >= 512
        ]
        with path.open("r+b", buffering=0) as file:
            for where, value in damage:
                file.seek(used[int(where * len(used))] * WORD.size)
                file.write(WORD.pack(value))
            with contextlib.suppress(gpuring.RingIncompatible):
                use(name)
            file.seek(FIRST_WORD * WORD.size)
            file.write(valid[FIRST_WORD * WORD.size :])
        held.release()


def test_a_frame_of_impossible_dimensions_is_passed_over_and_told(name):
    with (
        gpuring.create(name, slots=2, shape=4, dtype="u1", device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
    ):
        for _ in range(2):
            producer.claim(0).publish()
        at = 4096 + ring._header.max_subscriptions * 192 + ring._header.max_peers * 256 + 40
        with Path("/dev/shm", f"gpuring.{name}").open("r+b", buffering=0) as file:
            file.seek(at)
            file.write(WORD.pack(9))
        with pytest.raises(gpuring.RingIncompatible, match=name):
            frames.acquire(0)
        with frames.acquire(0) as slot:
            assert slot.seq == 3
