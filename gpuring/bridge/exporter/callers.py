"""The importers at the other ends of an exporter's connections, and what comes from them.

worker.py decides what a message means, and when a session ends.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import zmq

from gpuring.bridge.exporter.connection_limits import Connection, ConnectionLimits
from gpuring.bridge.exporter.link import Link
from gpuring.bridge.exporter.listener import RouterChannel
from gpuring.bridge.network import multipart, wire
from gpuring.deadlines import deadline_of, left_s

_CUT_S = 3.0
"""How long a connection may take to end that was shut down."""


@dataclass
class Caller:
    """The other end of a connection."""

    channel: RouterChannel
    hello: wire.Hello
    heard_s: float
    link: Link | None = None
    """None: it waits for the ring, and has asked before that was there."""
    why: str = ""
    """Why it waits."""
    said_s: float = 0.0
    welcomed: bool = False

    def post(self, message: wire.Message) -> None:
        """Raises EngineError."""
        self.channel.post(message)
        self.said_s = time.monotonic()


class Callers(dict[bytes, Caller]):
    """All of them, by ZeroMQ's name of the connection."""

    def __init__(self, router: Any, connections: ConnectionLimits) -> None:
        self._router, self._connections = router, connections
        self.later: deque[tuple[Any, list[Any]]] = deque()
        """Messages that have come, and were not heard yet."""

    def waiting(self) -> list[Caller]:
        """The callers that wait for the ring."""
        return [caller for caller in self.values() if caller.link is None]

    def of(self, link: Link) -> list[Caller]:
        return [caller for caller in self.values() if caller.link is link]

    def in_session(self) -> list[Connection | None]:
        return [caller.channel.connection for caller in self.values()]

    def next(self) -> tuple[Any, list[Any]]:
        """The next message: its first part, which says who has sent it, and the others.  Raises
        zmq.Again."""
        return self.later.popleft() if self.later else self._receive()

    def _receive(self) -> tuple[Any, list[Any]]:
        frame, *parts = multipart.receive(self._router)
        return frame, [part.buffer for part in parts]

    def stop_sending(self, caller: Caller) -> None:
        """Makes sure that nothing more is sent from the near slots of a session.  Called before
        these slots are given back.

        The far side may still accept data of this session.  It usually ends a session earlier than
        we do, because its limit of silence is shorter.  But if only its own messages are held up,
        it goes on to receive what is under way on a slow link.  And an error may have ended the
        session on this side alone.  Then bytes of later frames would arrive before our Bye, and be
        published.

        ZeroMQ keeps what it has to send over a connection that has ended, until all messages from
        that connection were read.  So this reads messages.  Those of other callers are kept for
        later.
        """
        channel = caller.channel
        if not channel.is_sending:
            return
        if channel.connection is not None:
            self._connections.disconnect(channel.connection)
        deadline = deadline_of(_CUT_S)
        while channel.is_sending:
            if not left_s(deadline):
                raise TimeoutError(f"what is sent to {caller.hello.importer} cannot be stopped")
            try:
                said = self._receive()
            except zmq.Again:
                time.sleep(0.0005)
            else:
                if said[0].bytes != channel.route:
                    self.later.append(said)
