"""Whole bridges over NIXL, in host memory of one host."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import gpuring
from gpuring import bridge
from gpuring.bridge.engines import nixl
from tests.bridge.bridge_engines import use_bounce_buffers
from tests.helpers.processes import PATIENCE_S, poll

pytest.importorskip("zmq", reason="bridges need pyzmq")
if nixl.facts() is None:
    pytest.skip("NIXL is not installed", allow_module_level=True)

WORDS = 1 << 17


def connected(into: Any, *, but: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Waits for a session.  Returns something that is different for each session."""

    def found() -> Any:
        try:
            (link,) = into.stats().links
        except (gpuring.RingError, ValueError):
            return None
        now = into.pid, link.sessions
        return now if link.connected and now != but else None

    session: tuple[int, int] = poll(found)
    return session


@pytest.mark.parametrize(
    "environment",
    [{"UCX_TLS": "all"}, {"UCX_TLS": "tcp,cuda_copy"}, {}],
    ids=["all", "tcp", "bounce buffers"],
)
def test_each_frame_comes_once_over_kills_of_both_workers(name, monkeypatch, tmp_path, environment):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    if not environment:
        use_bounce_buffers(monkeypatch, tmp_path)
    here = f"{name}.far"
    with (
        gpuring.create(name, slots=8, shape=(WORDS,), dtype="u8", device="host") as ring,
        ring.producer() as producer,
        bridge.export(name, listen="127.0.0.1:0") as out,
    ):
        poll(lambda: out.address)
        with bridge.import_(f"{out.address}/{name}", name=here, device="host", slots=8) as into:
            session = connected(into)
            assert into.stats().links[0].engine.startswith("nixl (both sides are on one host")
            with (
                gpuring.attach(here, timeout=PATIENCE_S) as far,
                far.consumer(start="oldest") as frames,
            ):
                n = 0
                for victim in (out, into):
                    n = through(producer, frames, n, 40)
                    for more in range(4):  # these are on their way when it dies
                        publish(producer, n + more)
                    os.kill(victim.pid, signal.SIGKILL)
                    n = taken(frames, n, 4)
                    session = connected(into, but=session)
                through(producer, frames, n, 40)


def publish(producer: Any, n: int) -> None:
    with producer.claim(PATIENCE_S) as slot:
        slot.array.fill(n)


def taken(frames: Any, n: int, many: int) -> int:
    """Takes the next frames, and checks every word.  Returns the number of the one after them."""
    for expected in range(n, n + many):
        with frames.acquire(PATIENCE_S) as slot:
            assert (slot.array == expected).all(), f"{slot.array[0]} where {expected} was next"
    return n + many


def through(producer: Any, frames: Any, n: int, many: int) -> int:
    for each in range(n, n + many):
        publish(producer, each)
        taken(frames, each, 1)
    return n + many
