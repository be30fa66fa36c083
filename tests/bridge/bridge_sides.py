"""Each side of a bridge, as a test plays it.  Needs pyzmq."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import zmq

from gpuring import slot_layout
from gpuring.bridge import Export
from gpuring.bridge.network import wire, wire_bytes

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
        """The next message of a kind.  Others before it are dropped."""
        while True:
            assert self._socket.poll(1000 * WAIT_S), f"no {kind.__name__}"
            self._route, *parts = self._socket.recv_multipart()
            self._session, message = wire_bytes.decode(parts)
            if isinstance(message, kind):
                return message
            assert not isinstance(message, wire.Bye), message.reason

    def next(self, seconds: float) -> wire.Message | None:
        """The next message, if one comes within this time."""
        if not self._socket.poll(1000 * seconds):
            return None
        self._route, *parts = self._socket.recv_multipart()
        self._session, message = wire_bytes.decode(parts)
        return message

    def said_so_far(self) -> list[type[wire.Message]]:
        """The kinds of the messages that have come, until none comes for a tenth of a second."""
        said = []
        while self._socket.poll(100):
            _, *parts = self._socket.recv_multipart()
            said.append(type(wire_bytes.decode(parts)[1]))
        return said

    def say(self, *messages: wire.Message, another: bool = False) -> None:
        """Sends messages.  `another`: in a session other than the importer's."""
        for message in messages:
            session = self._session ^ another
            self._socket.send_multipart([self._route, *wire_bytes.encode(session, message)])

    def welcome(self) -> wire.Hello:
        """Answers the next Hello, and begins a session."""
        hello: wire.Hello = self.heard(wire.Hello)
        self.say(wire.Welcome("h", EPOCH, 0, SPEC, {"zmq": {}}))
        self.heard(wire.Open)
        return hello

    def frame(self, seq: int, to_seq: int) -> tuple[wire.Message, wire.Message]:
        """Sends a frame whose words are its sequence."""
        return (
            wire.Data(to_seq, 0, np.full(4, seq).tobytes()),
            wire.Frame(seq, to_seq, NBYTES, 1, 0, ()),
        )


class Far:
    """An importer that the test plays, with all of its sessions over one connection."""

    def __init__(self, socket: Any, ring: str, address: str) -> None:
        self.socket, self._ring = socket, ring
        socket.linger = 0
        socket.connect(f"tcp://{address}")

    def say(self, session: int, *messages: wire.Message) -> None:
        for message in messages:
            self.socket.send_multipart(wire_bytes.encode(session, message))

    def hello(
        self, policy: str = "lossless", epoch: str = "", seq: int = 0, *, session: int = 7,
        who: str = "far/x", run: str = "0" * 16, **more: Any,
    ) -> None:  # fmt: skip
        """Says Hello as an importer that has everything of this epoch up to this sequence."""
        self.say(session, wire.Hello(self._ring, who, run, policy, epoch, seq, **more))

    def next(self) -> wire.Message:
        assert self.socket.poll(1000 * WAIT_S), "the exporter says nothing"
        return wire_bytes.decode(self.socket.recv_multipart())[1]

    def heard(self, *kinds: type[wire.Message]) -> Any:
        """The next message of these kinds.  Others before it are dropped."""
        while not isinstance(message := self.next(), kinds):
            pass
        return message

    def begin(self, session: int, *credits: int) -> None:
        self.hello(session=session)
        self.heard(wire.Welcome)
        self.say(session, wire.Open("zmq", 8), wire.Flow(0, credits))


@contextlib.contextmanager
def exporter() -> Iterator[Near]:
    """An exporter that the test plays, at a port of its own."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind("tcp://127.0.0.1:0")
        yield Near(socket)


@contextlib.contextmanager
def importer(ring: str, address: str, **options: int) -> Iterator[Far]:
    """An importer that is connected to an exporter of the ring.  `options` are for its socket."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        for option, value in options.items():
            setattr(socket, option, value)
        yield Far(socket, ring, address)


@contextlib.contextmanager
def asking(out: Export, near: str, who: str) -> Iterator[Far]:
    """A lossy importer that has said Hello."""
    with importer(near, out.address) as far:
        far.hello("lossy", who=who)
        yield far
