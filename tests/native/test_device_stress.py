"""Device order under load (programs/device_stress.c): threads and streams, a fake CUDA driver.

The mutants show that it can fail.  Each takes one step of device order away, and the fake's GPU has
to see a frame that is written under a reader, read before it is whole or caught in a graph, or
somebody has to hang.
`./check` runs it under sanitizers, for longer.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.helpers.compiled import BUILD_S, FAULTS, Edit, build, needs_compiler, run

FRAMES, RUN_S = 500, 240
HANGS_S, HEALTHY_S = 3, 200  # without a claim: a mutant may hang, a healthy one is slow
PROGRAM = "device_stress.c"
STEPS_FLAGS = ["-O1", "-g", "-w"]

pytestmark = [needs_compiler, pytest.mark.deadline(BUILD_S + RUN_S)]


def stress(
    place: Path, *edits: Edit, frames: int = FRAMES, hung_s: int = HANGS_S, also: Sequence[str] = ()
) -> CompletedProcess[str]:
    program = build(place, PROGRAM, [*FAULTS, *also], *edits, device=True)
    # as the address sanitizer does
    return run(program, frames, hung_s, timeout=RUN_S, TSAN_OPTIONS="halt_on_error=1")


@pytest.mark.slow
def test_whatever_threads_and_streams_do_frames_are_whole_and_the_books_balance(tmp_path):
    done = stress(tmp_path, hung_s=HEALTHY_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the books balance") == 8  # events, words; both gates; with refusals


MUTANTS: dict[str, list[Edit]] = {
    "a wait is left out": [
        (
            "order.c",
            "status = peer->sync->wait(peer, call, owner, index, value);",
            "status = CU_OK;",
        )
    ],
    "nothing is promised": [
        (
            "record.c",
            "value = gr_promise(&peer->core, index, use->seq);",
            "value = use->seq << 16;",
        )
    ],
    "the frame is shown before the record": [
        (
            "ends.c",
            "if (gd_record(peer, call, index, &value) == GR_OK) {",
            "if (end == GD_PUBLISH && peer->use[index].streams == 1) {\n"
            "    struct gd_use *use = &peer->use[index];\n"
            "    const gd_stream on = use->stream[0];\n"
            "    value = gr_promise(&peer->core, index, use->seq);\n"
            "    finish(peer, call, index, value, end);\n"
            "    gd_pause();\n"
            "    struct gd_promise late = {index, value};\n"
            "    peer->device->sync->record(peer, on, &late);\n"
            "    return GR_OK;\n"
            "}\n"
            "if (gd_record(peer, call, index, &value) == GR_OK) {",
        )
    ],
    "a claim that was refused is not undone": [
        (
            "verbs.c",
            "gr_abandon(&peer->core, peer->core.last.index, peer->core.last.seq);\n"
            "            if (result == GR_BLOCKED && call->got) break;",
            "if (result == GR_BLOCKED && call->got) break;",
        )
    ],
    "an acquire that was refused is not undone": [
        (
            "verbs.c",
            "gr_give_back(&peer->core, peer->core.last.index, peer->core.last.seq);\n"
            "            if (result == GR_BLOCKED && call->got) break;",
            "if (result == GR_BLOCKED && call->got) break;",
        )
    ],
    "a promise whose record was refused is not paid": [("record.c", "use->unpaid = true;", ";")],
    "a refused record is paid before its streams are idle": [
        (
            "record.c",
            "for (uint32_t k = 0; k < use->streams;) {\n        int status = query",
            "for (uint32_t k = 0; k < 0;) {\n        int status = query",
        )
    ],
    "nobody asks whether the stream is captured": [
        ("stream.c", "return capturing ? CU_CAPTURE : CU_OK;", "return CU_OK;")
    ],
    "another stream of the slot is not waited for": [
        (
            "stream.c",
            "if (status == CU_OK)\n            status = device->driver->stream_wait_event((",
            "if (0) status = device->driver->stream_wait_event((",
        )
    ],
    "a look at a slot of others raises its fence": [
        (
            "event.c",
            "put_row(device, row);\n    return done;\n}\n\nstatic int wait",
            "put_row(device, row);\n"
            "    if (done) gr_raise_to(fence_of(device->ring, index, peer), value);\n"
            "    return done;\n}\n\nstatic int wait",
        )
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_load_finds_each_mutant(mutant, tmp_path):
    done = stress(tmp_path, *MUTANTS[mutant])
    assert done.returncode != 0, done.stdout


STEPS: dict[str, Edit] = {
    "a stream is known by its handle": (
        "stream.c",
        "return device->driver->stream_get_id((void *)stream, &id) == CU_OK ? id + 1 : 0;",
        "return (void)id, stream;",
    ),
    "two releases in progress find the same room": (
        "released.c",
        "released->n + released->reserved + 1",
        "released->n + 1",
    ),
}


@pytest.mark.slow
def test_step_by_step_our_own_earlier_work_comes_first(tmp_path):
    program = build(tmp_path, "device_steps.c", STEPS_FLAGS, device=True)
    assert run(program, timeout=RUN_S).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("mutant", STEPS)
def test_step_by_step_each_mutant_is_found(mutant, tmp_path):
    program = build(tmp_path, "device_steps.c", STEPS_FLAGS, STEPS[mutant], device=True)
    done = run(program, timeout=RUN_S)
    assert done.returncode == -signal.SIGABRT, done.stdout


SANITIZED: dict[str, tuple[str, str, Edit]] = {
    "somebody touches a slot that is not his any more": (
        "thread",
        "data race",
        (
            "ends.c",
            "use->open = false;\n"
            "    if (end == GD_RELEASE) return gr_release(&peer->core, index, use->seq);",
            "if (end == GD_RELEASE) {\n"
            "        enum gr_result result = gr_release(&peer->core, index, use->seq);\n"
            "        extern int usleep(unsigned);\n"
            "        usleep(1000); /* long enough for another thread to take the slot */\n"
            "        use->open = false;\n"
            "        return result;\n"
            "    }\n"
            "    use->open = false;",
        ),
    ),
    "a row of events is destroyed while somebody uses it": (
        "address",
        "heap-use-after-free",
        (
            "event.c",
            "    if (row) put_row(device, row);\n}",
            "    if (row) destroy(device, row);\n}",
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SANITIZED)
def test_a_sanitizer_finds_each_mutant(mutant, tmp_path):
    sanitizer, finding, edit = SANITIZED[mutant]
    long = {"frames": 10 * FRAMES, "hung_s": HEALTHY_S}  # it stops at the first finding
    done = stress(tmp_path, edit, also=["-DGR_DEBUG", f"-fsanitize={sanitizer}"], **long)
    assert done.returncode != 0, done.stdout
    assert finding in done.stderr, done.stderr
