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
        """Those who wait for the ring."""
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
        """Before the near slots of a session are given back: nothing is sent from them any more.

        The far side may still take what comes in this session.  It ends one after a shorter
        silence than we do.  But if only its own messages are held up, it hears what was on the way
        for as long as a slow link takes.  And a session may end by an error on this side alone.
        Bytes of later frames would then arrive in front of our Bye, and be published.

        ZeroMQ does not give up what is for a connection that has ended before everything was read
        that has come from there.  What comes from others meanwhile is heard later.
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
