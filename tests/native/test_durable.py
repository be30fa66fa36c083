"""Each frame of a durable subscription is read or counted as lost, whichever process is killed
between two stores (programs/durable.c)."""

from __future__ import annotations

import pytest

from tests.helpers.compiled import BUILD_S, FAULTS, build, needs_compiler, run

RUN_S = 60

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + 2 * RUN_S)]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("durable"), "durable.c", FAULTS)


@pytest.mark.parametrize(
    "how",
    ["join", "note", "count", "give", "clear", "tell", "skip", "subscribe", "acquire", "latest"],
)
def test_each_frame_is_read_or_counted(program, how):
    done = run(program, how, timeout=RUN_S + 10)
    assert (done.returncode, done.stdout) == (0, "each frame was read or counted\n"), done.stderr
