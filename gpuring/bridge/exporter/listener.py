"""The socket at which an exporter listens, and over which it sends.

ZeroMQ keeps what was not sent yet.  A send never blocks, and fails when ZeroMQ keeps too much.
"""

from __future__ import annotations

import time
from typing import Any

import zmq

from gpuring.bridge.engines.contract import EngineError
from gpuring.bridge.exporter.connection_limits import EVENTS, Connection
from gpuring.bridge.exporter.send_backlog import Backlog
from gpuring.bridge.network import keys, multipart, wire, wire_bytes
from gpuring.bridge.network.addresses import NoAddress, addresses, is_name
from gpuring.bridge.worker import Fatal, SupervisorPipe
from gpuring.deadlines import deadline_of, left_s

_MESSAGES = 64
"""How many messages of a connection wait to be heard.  Those of an importer are short."""
_MOST_UNREAD = 32 << 20
"""How many bytes may wait to be sent to an importer, beside the frames that may be on their way."""
_HEARD_S = 0.01
_AGAIN_S = 5.0
"""How long to try again while the address is in use, perhaps by an exporter that ends."""
_REST_S = 0.1
_NAME_AGAIN_S = 1.0
"""How long to wait before a name is asked for again."""


def listen(
    context: Any, address: str, key: str | None, supervisor: SupervisorPipe
) -> tuple[Any, keys.Doorkeeper | None]:
    """A socket that listens, and who asks for keys, if there is one.  Waits until a name has an
    address.  Raises Fatal."""
    asked, address = address, _address_of(address, supervisor)
    router: Any = context.socket(zmq.ROUTER)
    router.linger, router.sndhwm, router.rcvhwm = 0, 0, _MESSAGES
    router.router_mandatory = True
    router.maxmsgsize = wire.MAX_ENCRYPTED
    router.handshake_ivl = 5000
    router.ipv6 = "[" in address
    door = None
    if key is not None:
        known = keys.read(key, keys.EXPORT)
        door = keys.Doorkeeper(context, known)
        keys.serve(router, known)
    router.get_monitor_socket(EVENTS)  # ConnectionLimits reads it, and so misses no caller
    where = asked if asked == address else f"{asked} ({address})"
    logged, deadline = False, deadline_of(_AGAIN_S)
    while True:
        try:
            router.bind(f"tcp://{address}")
            return router, door
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or not left_s(deadline):
                raise Fatal(f"cannot listen at {where}: {_why(error)}") from None
            if not logged:
                supervisor.log(
                    f"another process listens at {where}. It is tried again for {_AGAIN_S:g} s"
                )
            logged = True
            supervisor.wait_without_a_loop(_REST_S)


def _address_of(listen: str, supervisor: SupervisorPipe) -> str:
    """Where to listen.  Waits until a name has an address."""
    host, port = listen.rsplit(":", 1)
    logged = False
    while is_name(host):
        try:
            host = addresses(host)[0]
        except NoAddress as error:
            if not logged:
                supervisor.log(f"{error}. It is tried again")
            logged = True
            supervisor.wait_without_a_loop(_NAME_AGAIN_S)
    return f"{host}:{port}"


def _why(error: zmq.ZMQError) -> str:
    if error.errno == zmq.EADDRINUSE:
        return "another process listens there. Give another port"
    if error.errno == zmq.EADDRNOTAVAIL:
        return "this host does not have that address"
    return str(error)


class RouterChannel:
    """engine.Channel over the exporter's socket."""

    def __init__(
        self, router: Any, connection: Connection | None, route: bytes, number: int
    ) -> None:
        self._router = router
        self.connection = connection
        """The connection.  None if it is gone already."""
        self.route, self.number = route, number
        """The connection, as ZeroMQ calls it, and the session."""
        self._backlog = Backlog() if connection is None else connection.backlog
        self.frames_nbytes = 0
        """How many bytes of frames may be on their way."""

    def data(self, to_seq: int, begin: int, part: Any, *, track: bool = False) -> Any:
        return self._send(wire.Data(to_seq, begin, part), track)

    def post(self, message: wire.Message) -> None:
        self._send(message)

    @property
    def is_sending(self) -> bool:
        """Whether ZeroMQ still sends from memory that it was given."""
        self._router.poll(0)  # it gives up what is for a connection that is gone
        return self._backlog.is_sending

    def _send(self, message: wire.Message, track: bool = False) -> Any:
        """Returns what says when the last part was sent, if it is sent from where it is."""
        self._check_backlog()
        parts = [self.route, *wire_bytes.encode(self.number, message)]
        wants_mark = self._backlog.wants_mark
        if wants_mark:
            parts[-1] = zmq.Frame(parts[-1], track=True, copy=False)
        track = track or wants_mark or len(parts[-1]) >= multipart.COPIED
        try:
            sent = multipart.send(self._router, parts, track=track)
        except zmq.ZMQError as error:
            why = "the connection was closed" if error.errno == zmq.EHOSTUNREACH else error
            raise EngineError(f"the importer cannot be reached: {why}") from None
        # Of a short part that is no Frame pyzmq sends a copy, and says at once that it was sent.
        is_mark = wants_mark or len(parts[-1]) >= zmq.COPY_THRESHOLD
        self._backlog.add(sum(map(len, parts[1:])), sent if is_mark else None)
        return sent

    def _check_backlog(self) -> None:
        most = self.frames_nbytes + _MOST_UNREAD
        if self._backlog.nbytes > most:
            time.sleep(_HEARD_S)  # a thread of pyzmq hears what was sent
            if self._backlog.nbytes > most:
                raise EngineError("the importer does not read what it is sent")
