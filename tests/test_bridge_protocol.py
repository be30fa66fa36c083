"""Each side of a bridge, while the test plays the other one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import poll

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


@pytest.mark.parametrize("policy", wire.POLICIES[:2])
def test_an_importer_that_was_given_up_gets_no_bytes_of_later_frames(
    name: str, policy: str
) -> None:
    """Most of the bytes wait in the exporter when it ends the session and gives the slots back.
    The importer says nothing, and goes on to take what comes."""
    over, whole, put = threading.Event(), [], 0
    shape, meta = 1 << 17, [("n", "i8")]
    with (
        gpuring.create(name, slots=40, shape=shape, dtype="i8", meta=meta, device="host") as ring,
        bridge.export(name, listen="127.0.0.1:0", timeout=0.1, patience=0) as out,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):

        def produce() -> None:
            nonlocal put
            with ring.producer() as producer:
                while not over.is_set():
                    with contextlib.suppress(gpuring.RingFull), producer.claim(0.1) as slot:
                        slot.array[...] = slot.meta["n"] = put
                        put += 1

        socket.linger, socket.rcvhwm, socket.rcvbuf = 0, 1, 1 << 16
        socket.connect(f"tcp://{out.address}")
        hello = wire.Hello(name, "h/x", "0" * 16, policy, "", 0, timeout_ms=1000)
        socket.send_multipart(wire.encode(7, hello))
        while not isinstance(wire.decode(socket.recv_multipart())[1], wire.Welcome):
            pass
        socket.send_multipart(wire.encode(7, wire.Open("zmq", 64)))
        socket.send_multipart(wire.encode(7, wire.Flow(0, tuple(range(1, 33)))))
        writing = threading.Thread(target=produce)
        writing.start()
        try:
            poll(lambda: out.stats().links[0].lag == 32, WAIT_S)
            poll(lambda: not out.stats().links, WAIT_S)
            until = put + 80
            poll(lambda: put >= until, WAIT_S)
            while socket.poll(500):
                message = wire.decode(socket.recv_multipart())[1]
                if isinstance(message, wire.Data):
                    last = np.frombuffer(message.part, "i8")
                elif isinstance(message, wire.Frame):
                    whole.append(bool((last == np.frombuffer(message.meta, "i8")[0]).all()))
        finally:
            over.set()
            writing.join()
    assert all(whole), f"{whole.count(False)} of {len(whole)} frames were torn"
    assert whole
