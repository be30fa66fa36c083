"""What an exporter tells those whom it does not serve, and its log of them."""

from __future__ import annotations

from gpuring.bridge.engines.contract import EngineError
from gpuring.bridge.exporter.connection_limits import ConnectionLimits
from gpuring.bridge.exporter.listener import RouterChannel
from gpuring.bridge.network import wire
from gpuring.bridge.worker import SupervisorPipe

_KNOWN = 256
"""How many importers are known that were refused or wait.  They may choose any names."""


class Refusals:
    """An importer may ask again and again.  The log says of each what has changed."""

    def __init__(self, supervisor: SupervisorPipe, connections: ConnectionLimits) -> None:
        self._supervisor, self._connections = supervisor, connections
        self._said: dict[str, str] = {}
        """What the log has said last of importers that were refused and may ask again, or wait."""

    def for_good(self, channel: RouterChannel, reason: str) -> None:
        self._supervisor.log(f"an importer was refused: {reason}")
        self._answer(channel, wire.Refuse(reason, False))

    def for_now(self, channel: RouterChannel, importer: str, reason: str) -> None:
        self.log(importer, f"was refused: {reason}")
        self._answer(channel, wire.Refuse(reason, True))

    def for_a_moment(self, channel: RouterChannel, reason: str) -> None:
        """The same question is answered as soon as it comes again, so the log says nothing."""
        self._answer(channel, wire.Refuse(reason, True))

    def _answer(self, channel: RouterChannel, refuse: wire.Refuse) -> None:
        try:
            channel.post(refuse)
        except EngineError:  # it is gone, or asks again and again without reading the answers
            if channel.connection is not None:
                self._connections.disconnect(channel.connection)

    def log(self, importer: str, what: str) -> None:
        """Once, until it is served or something else is to be said of it."""
        if self._said.pop(importer, None) != what:
            self._supervisor.log(f"{importer} {what}")
        self._said[importer] = what
        if len(self._said) > _KNOWN:
            del self._said[next(iter(self._said))]

    def forget(self, importer: str) -> None:
        """It is served."""
        self._said.pop(importer, None)
