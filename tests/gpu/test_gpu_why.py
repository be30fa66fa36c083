"""If a kernel never ends, `gpuring why` blames its process, and not the one that has the frame."""

from __future__ import annotations

import json

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.survivor import publish_and_hang, started
from tests.helpers.commands import gpuring as command
from tests.helpers.processes import poll

pytestmark = pytest.mark.gpu


def why(name):
    done = command("why", name, "--after", 0.3, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == bool(found)
    return found


@pytest.mark.parametrize("reads", [False, True], ids=["nobody reads", "a reader has the frame"])
def test_a_kernel_that_never_ends_is_to_blame(name, children, reads):
    tools()
    with (
        gpuring.create(
            name, slots=2, shape=1024, dtype="u8", device="cuda", sync="timeline"
        ) as ring,
        ring.consumer("viewer", gate="stream") as viewer,
    ):
        (victim,) = started(children, 1, publish_and_hang, name)
        victim.send()
        assert victim.receive() == "published"
        held = viewer.acquire(10, stream=library.new_stream()) if reads else None
        (jam,) = poll(lambda: why(name))
        (end,) = jam["culprits"]
        assert (end["reason"], [each["pid"] for each in end["peers"]]) == ("gpu", [victim.pid])
        victim.kill()  # its work goes with it
        poll(lambda: why(name) == [])
        del held


def test_work_that_is_done_is_no_jam(name):
    tools()
    for sync in ("timeline", "event"):
        with (
            gpuring.create(name, slots=2, shape=1024, dtype="u8", device="cuda", sync=sync) as ring,
            ring.producer() as producer,
            ring.consumer("viewer") as viewer,
        ):
            stream = library.new_stream()
            for _ in range(3):
                producer.claim(10, stream=stream).publish()
                viewer.acquire(10, stream=stream).release()
            stream.synchronize()
            assert command("why", name, "--after", 0).returncode == 0
