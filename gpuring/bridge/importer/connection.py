"""An importer's connection to the exporter: its socket, what was sent and heard, why it was lost.

A connection is one session.  If it is lost, another object is made, so nothing here is started
again.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import zmq
import zmq.utils.monitor

from gpuring import native
from gpuring.bridge.engines.contract import EngineError
from gpuring.bridge.importer.near_clock import NearClock
from gpuring.bridge.network import keys, multipart, wire, wire_bytes

_HUNG_UP = (
    "the connection was closed at once. Perhaps the two sides do not agree on a key (--key), or "
    "that is no exporter"
)
_NOBODY = "nobody answers there"
_SHORT_S = 1.0
"""What is over sooner and has carried nothing was no session that another one can rely on."""
_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Connection:
    """One connection to the exporter, which is one session."""

    def __init__(self, context: Any, address: str, known: dict[str, bytes] | None) -> None:
        self.number = secrets.randbits(64)
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger, self.socket.sndhwm, self.socket.rcvhwm = 0, 0, 0
        self.socket.maxmsgsize = wire.MAX_ENCRYPTED
        self.socket.reconnect_ivl = -1  # a new connection is a new session
        self.socket.ipv6 = "[" in address
        if known is not None:
            keys.use(self.socket, known)
        self.monitor = self.socket.get_monitor_socket(_EVENTS)
        self._is_there = False
        """Whether something listens at the address."""
        self._connect(address)
        self.heard_s = self.said_s = time.monotonic()
        self.is_answered = False
        """Whether the exporter has said anything."""
        self.near: wire.Welcome | None = None
        self.clock = NearClock()
        self.is_open = False
        self._open_s = 0.0
        self._mark: tuple[str, int] = ("", 0)
        """Up to where the far ring had come when it was opened."""

    def _connect(self, address: str) -> None:
        try:
            self.socket.connect(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise EngineError(f"{address} cannot be connected to: {error}") from None

    def post(self, message: wire.Message) -> None:
        self._send(message)
        self.said_s = time.monotonic()

    def ask_time(self) -> None:
        """If it is time to ask.  It does not count as said: a Ping says more."""
        if self.is_open and (question := self.clock.ask(native.now_ns())) is not None:
            self._send(question)

    def _send(self, message: wire.Message) -> None:
        try:
            multipart.send(self.socket, wire_bytes.encode(self.number, message))
        except zmq.Again:  # the connection is lost already
            raise EngineError(self.why_lost() or _NOBODY) from None
        except zmq.ZMQError as error:
            raise EngineError(f"the exporter cannot be reached: {error}") from None

    def open(self, mark: tuple[str, int]) -> None:
        """The session begins.  The far ring has everything up to `mark`."""
        self.is_open, self._open_s, self._mark = True, time.monotonic(), mark

    def was_of_use(self, mark: tuple[str, int]) -> bool:
        """Whether it has carried a frame, or was there for a while.  An exporter that ends each
        session at once is not asked for the next one as if it had come back."""
        lasted_s = time.monotonic() - self._open_s
        return self.is_open and (lasted_s >= _SHORT_S or mark != self._mark)

    def why_lost(self) -> str:
        """Why the connection is lost.  Empty if it is not."""
        while self.monitor.poll(0):
            event = zmq.utils.monitor.recv_monitor_message(self.monitor, zmq.NOBLOCK)
            if event["event"] == zmq.EVENT_CONNECTED:
                self._is_there = True
                continue
            if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return "the exporter does not know this key"
            if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                return _HUNG_UP
            if self.near is not None:
                return "the connection was closed"
            return _HUNG_UP if self._is_there else _NOBODY
        return ""

    def why_silent(self, seconds: float) -> str:
        """Why nothing was heard for so long."""
        if lost := self.why_lost():
            return lost
        return f"the exporter said nothing for {seconds:g} s" if self._is_there else _NOBODY

    def close(self, linger_ms: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)
