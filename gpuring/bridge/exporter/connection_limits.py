"""The connections at an exporter's port, as the kernel sees them.

ZeroMQ limits neither the number of connections nor that of the parts of a message, and it keeps the
parts until the last one has come.  It does not end a connection either.  So this file watches the
sockets themselves, and shuts down those that need too much.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

import zmq
import zmq.utils.monitor

from gpuring.bridge.exporter.send_backlog import Backlog
from gpuring.bridge.network import wire

MOST = 256
"""How many connections there may be, with and without a session."""
WITHOUT_SESSION_S = 10.0
"""How long a connection may be without a session.  An importer says Hello at once."""
MOST_NBYTES = 3 * wire.MAX_OFFER
"""How many bytes of a message may come.  The longest that is read has a little more than one offer,
and what comes before and behind it is short.  A part without content has two bytes in the network,
and takes ZeroMQ 64 bytes and this process a microsecond."""
LOOK_S = 0.1
"""How often the connections are looked at."""

EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""What the monitor of the socket tells.  A handshake fails by the protocol if the keys are not of
one pair.  If an importer gave it up, as one does while this process is stopped, it fails without
that, and nobody is to be blamed."""
_STRANGERS_S = 60.0
"""How often the log says that somebody without the right key tries to connect."""

_BYTES_RECEIVED = 128
"""Where `struct tcp_info` has tcpi_bytes_received."""


@dataclass
class Connection:
    """A connection."""

    fd: int
    """ZeroMQ's, which may be closed and be something else at any time."""
    peer: Any
    """The address and port at its other end."""
    idle_since_s: float
    """Since when it has no session."""
    heard: bool = False
    """Whether a whole message has come since the last look."""
    nbytes: int = 0
    """How many bytes had come when a whole message was last known."""
    backlog: Backlog = field(default_factory=Backlog)


class ConnectionLimits:
    """The limits of the connections at one ROUTER socket."""

    def __init__(self, router: Any) -> None:
        self._router = router
        self._family = socket.AF_INET6 if router.ipv6 else socket.AF_INET
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        self._most = MOST if soft == resource.RLIM_INFINITY else min(MOST, max(1, soft // 2))
        self.socket = router.get_monitor_socket(EVENTS)
        """Can be read when somebody has connected, or could not."""
        self._strangers, self._strangers_s = False, 0.0
        """Whether somebody without the right key has come since the log said so, and when that may
        be said again."""
        self._known: dict[int, Connection] = {}
        self._looked_s = 0.0

    def admit(self, in_session: list[Connection | None]) -> list[str]:
        """Notes who has connected.  Of too many, it disconnects the oldest one without a session.
        Returns what there is to log."""
        self._note()
        if len(self._known) > self._most:
            self._forget_the_gone()
        busy, log = _descriptors_of(in_session), []
        if self._strangers and time.monotonic() >= self._strangers_s:
            log.append("somebody cannot connect: both sides need the keys of one pair, or none")
            self._strangers, self._strangers_s = False, time.monotonic() + _STRANGERS_S
        others = [connection for connection in self._known.values() if connection.fd not in busy]
        others.sort(key=lambda each: each.idle_since_s)
        for connection in others[: max(0, len(self._known) - self._most)]:
            self.disconnect(connection)
            log.append(f"there are {self._most} connections: {connection.peer[0]} was disconnected")
        return log

    def _note(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                event = zmq.utils.monitor.recv_monitor_message(self.socket, zmq.NOBLOCK)
                if event["event"] != zmq.EVENT_ACCEPTED:
                    self._strangers = True
                    continue
                fd = event["value"]
                with contextlib.suppress(OSError), self._borrowed(fd) as end:
                    self._known[fd] = Connection(fd, end.getpeername(), time.monotonic())

    def of(self, frame: Any) -> Connection | None:
        """Who has sent a message, of which this is a frame.  None: the connection is gone already.

        Raises WireError for a peer that speaks a version of ZeroMQ's protocol below 3, in which a
        message does not say where it comes from.  No bridge does.
        """
        try:
            fd = frame.get(zmq.SRCFD)
        except zmq.ZMQError:
            raise wire.WireError("a peer of a version that no bridge speaks") from None
        if fd not in self._known:  # it has connected since `admit`
            self._note()
        connection = self._known.get(fd)
        if connection is not None:
            connection.heard = True
        return connection

    def look(self, in_session: list[Connection | None]) -> list[str]:
        """Disconnects those that say too much or nothing.  Returns what there is to log."""
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return []
        self._looked_s, log = now, []
        busy = _descriptors_of(in_session)
        for connection in list(self._known.values()):
            come = self._come(connection)
            if connection.fd in busy:
                connection.idle_since_s = now
            why = ""
            if come is None:
                del self._known[connection.fd]
            elif connection.heard:
                connection.heard, connection.nbytes = False, come
            elif come - connection.nbytes > MOST_NBYTES:
                why = "sends a message without an end"
            if not why and now - connection.idle_since_s > WITHOUT_SESSION_S:
                why = f"has asked for nothing for {WITHOUT_SESSION_S:g} s"
            if why and come is not None:
                self.disconnect(connection)
                log.append(f"{connection.peer[0]} {why}: it was disconnected")
        return log

    def disconnect(self, connection: Connection) -> None:
        """Shuts a connection down.  What ZeroMQ has not sent to it yet is not sent any more."""
        self._known.pop(connection.fd, None)
        with contextlib.suppress(OSError), self._borrowed(connection.fd) as end:
            if end.getpeername() == connection.peer:
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Before the context is destroyed."""
        self._router.disable_monitor()
        self.socket.close(0)

    def _come(self, connection: Connection) -> int | None:
        """How many bytes have come from a connection.  None: it is gone."""
        try:
            with self._borrowed(connection.fd) as end:
                if end.getpeername() != connection.peer:
                    return None
                known = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
        except OSError:
            return None
        return int(struct.unpack_from("<Q", known, _BYTES_RECEIVED)[0])

    def _forget_the_gone(self) -> None:
        for connection in list(self._known.values()):
            if self._come(connection) is None:
                del self._known[connection.fd]

    @contextlib.contextmanager
    def _borrowed(self, fd: int) -> Any:
        """A socket of Python over ZeroMQ's descriptor."""
        end = socket.socket(self._family, socket.SOCK_STREAM, fileno=fd)
        try:
            yield end
        finally:
            end.detach()


def _descriptors_of(connections: list[Connection | None]) -> set[int]:
    return {connection.fd for connection in connections if connection is not None}
