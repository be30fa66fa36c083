"""Each side of a bridge, as a test plays it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuring import slot_layout
from gpuring.bridge.network import wire

WAIT_S = 60.0
SPEC = slot_layout.make(shape=4, dtype="i8").to_bytes().decode()
NBYTES = 32
EPOCH = "0" * 32


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
            if isinstance(message, kind):
                return message
            assert not isinstance(message, wire.Bye), message.reason

    def next(self, seconds: float) -> wire.Message | None:
        """The next message, if one comes within this time."""
        if not self._socket.poll(1000 * seconds):
            return None
        self._route, *parts = self._socket.recv_multipart()
        self._session, message = wire.decode(parts)
        return message

    def said_so_far(self) -> list[type[wire.Message]]:
        """What has come, and comes within a tenth of a second."""
        said = []
        while self._socket.poll(100):
            _, *parts = self._socket.recv_multipart()
            said.append(type(wire.decode(parts)[1]))
        return said

    def say(self, *messages: wire.Message, another: bool = False) -> None:
        """With `another` as if they belonged to a session that is not the one of the importer."""
        for message in messages:
            session = self._session ^ another
            self._socket.send_multipart([self._route, *wire.encode(session, message)])

    def welcome(self) -> wire.Hello:
        """Answers the next Hello, and begins a session."""
        hello: wire.Hello = self.heard(wire.Hello)
        self.say(wire.Welcome("h", EPOCH, 0, SPEC, {"zmq": {}}))
        self.heard(wire.Open)
        return hello

    def frame(self, seq: int, to_seq: int) -> tuple[wire.Message, wire.Message]:
        """What it says of a frame whose words are its sequence."""
        return (
            wire.Data(to_seq, 0, np.full(4, seq).tobytes()),
            wire.Frame(seq, to_seq, NBYTES, 1, 0, ()),
        )


class Far:
    """An importer that the test plays, with all of its sessions over one connection."""

    def __init__(self, socket: Any, ring: str, address: str) -> None:
        self._socket, self._ring = socket, ring
        socket.linger = 0
        socket.connect(f"tcp://{address}")

    def say(self, session: int, *messages: wire.Message) -> None:
        for message in messages:
            self._socket.send_multipart(wire.encode(session, message))

    def heard(self, *kinds: type[wire.Message]) -> Any:
        """The next message of these kinds.  All others are left out."""
        while True:
            assert self._socket.poll(1000 * WAIT_S), f"none of {kinds}"
            _, message = wire.decode(self._socket.recv_multipart())
            if isinstance(message, kinds):
                return message

    def begin(self, session: int, *credits: int) -> None:
        self.say(session, wire.Hello(self._ring, "far/x", "0" * 16, "lossless", "", 0))
        self.heard(wire.Welcome)
        self.say(session, wire.Open("zmq", 8), wire.Flow(0, credits))
