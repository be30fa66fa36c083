"""Each side of a bridge, while the test plays the other one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpuring

zmq = pytest.importorskip("zmq")

from gpuring import bridge, spec  # noqa: E402
from gpuring.bridge import wire  # noqa: E402

WAIT_S = 30.0
SPEC = spec.make(shape=4, dtype="i8").to_bytes().decode()
NBYTES = 32


class Near:
    """An exporter that the test plays."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._route, self._session = b"", 0
        self.address = socket.last_endpoint.decode().removeprefix("tcp://")

    def heard(self, kind: type[wire.Message]) -> Any:
        """The next message of a kind.  All others are left out."""
        while True:
            assert self._socket.poll(1000 * WAIT_S), f"no {kind.__name__}"
            self._route, *parts = self._socket.recv_multipart()
            self._session, message = wire.decode(parts)
            assert not isinstance(message, wire.Bye), message.reason
            if isinstance(message, kind):
                return message

    def say(self, *messages: wire.Message) -> None:
        for message in messages:
            self._socket.send_multipart([self._route, *wire.encode(self._session, message)])

    def frame(self, seq: int, to_seq: int) -> tuple[wire.Message, wire.Message]:
        """What it says of a frame whose words are its sequence."""
        return (
            wire.Data(to_seq, 0, np.full(4, seq).tobytes()),
            wire.Frame(seq, to_seq, NBYTES, 1, 0, ()),
        )


@pytest.fixture
def near() -> Iterator[Near]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind("tcp://127.0.0.1:0")
        yield Near(socket)


@contextlib.contextmanager
def importing(near: Near, name: str) -> Iterator[gpuring.Consumer]:
    """An importer that is connected, and a reader of its ring."""
    with bridge.import_(f"{near.address}/x", name=name, device="host", timeout=WAIT_S):
        near.heard(wire.Hello)
        near.say(wire.Welcome("h", "0" * 32, 0, SPEC, {"zmq": {}}))
        near.heard(wire.Open)
        with gpuring.attach(name, timeout=WAIT_S) as ring, ring.consumer(start="oldest") as frames:
            yield frames


def word(frames: gpuring.Consumer) -> int:
    with frames.acquire(timeout=WAIT_S) as slot:
        assert (slot.array == slot.array[0]).all()
        return int(slot.array[0])


def test_an_end_and_a_new_beginning_that_come_together(near: Near, name: str) -> None:
    """The credits before are void, and the far side says from when on they are not."""
    with importing(near, name) as frames:
        near.say(wire.Begin())
        credits = near.heard(wire.Flow).credits
        near.say(*near.frame(1, credits[0]), wire.End(died=False), wire.Begin())
        assert word(frames) == 1
        near.heard(wire.Begin)
        again = near.heard(wire.Flow).credits
        assert min(again) > max(credits)
        near.say(*near.frame(2, again[0]))
        assert word(frames) == 2
