"""`gpuring tap` beside a producer that dies with its GPU at work."""

from __future__ import annotations

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.helpers.commands import running
from tests.helpers.processes import poll, up

pytestmark = pytest.mark.gpu


def publish_held(pipe, name):
    """Publishes a frame that its GPU never finishes."""
    kernels = tools()
    latch = kernels.Latch(limit_s=100)
    stream = library.new_stream()
    with gpuring.attach(name) as ring, ring.producer(gate="stream") as producer:
        pipe.ask()
        slot = producer.claim(10, stream=stream)
        latch.hold(stream)
        kernels.stamp(slot, slot.seq, stream)
        slot.publish()
        pipe.ask()


@pytest.mark.parametrize("sync", ["timeline", "event"])
def test_a_torn_frame_of_a_gpu_is_thrown_away_and_said_so(name, children, tmp_path, sync):
    with gpuring.create(name, slots=2, shape=1024, dtype="u8", device="cuda", sync=sync) as ring:
        victim = up(children(publish_held, name))
        with running("tap", name, "--out", tmp_path) as process:
            poll(lambda: any(peer.role == "consumer" for peer in ring.stats().peers), 60)
            victim.ask()
            poll(lambda: any(p.holding for p in ring.stats().peers if p.role == "consumer"))
            victim.kill()
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 1
        assert "0 frames" in errors
        assert "1 torn frame thrown away" in errors
        assert "one of them died" in errors
        assert not list(tmp_path.iterdir())
