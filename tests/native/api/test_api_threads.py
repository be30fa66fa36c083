"""Threads of one process by way of gpuring.h, under sanitizers (programs/api_threads.c)."""

from __future__ import annotations

import pytest

from tests.helpers.compiled import BUILD_S, build, needs_compiler, run
from tests.helpers.rings import small_ring

FRAMES = 1500

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + 200)]


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_threads_of_one_process_race_for_nothing(name, tmp_path, sanitizer):
    flags = ["-O1", "-g", "-w", "-DGR_DEBUG", f"-fsanitize={sanitizer}"]
    place = tmp_path / "it"
    place.mkdir()
    program = build(place, "api_threads.c", [*flags, "-fno-sanitize-recover=all"], api=True)
    with small_ring(name, producers=2, meta=[("byte", "i8")]) as ring:
        done = run(program, name, FRAMES, timeout=150)
        assert done.returncode == 0, done.stderr
        assert ring.stats().deaths == ()
    had = [[*map(int, line.split())] for line in done.stdout.splitlines()]
    (one, _), (other, _), alone, (late, _) = had
    assert one + other == 2 * FRAMES
    assert alone == [2 * FRAMES, 0]
    assert late <= 2 * FRAMES
