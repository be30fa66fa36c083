"""The ring of an exporter, while it is not there: the log says so, because a name may be wrong."""

from __future__ import annotations

import time

from gpuring import directory
from gpuring.bridge.worker import Up
from gpuring.errors import RingError

_LOOK_S = 0.5
"""How often it is looked for."""


class Awaited:
    """Looks for a ring until it is there for the first time."""

    def __init__(self, name: str, up: Up) -> None:
        self._name, self._up = name, up
        self._is_there = False
        self._looked_s = 0.0
        self._told: type | None = None
        """What was wrong when the log said so last."""

    def look(self) -> None:
        """Says once that the ring is not there or cannot be read, and that it is there then."""
        now = time.monotonic()
        if self._is_there or now - self._looked_s < _LOOK_S:
            return
        self._looked_s = now
        try:
            directory.look(self._name)
        except (RingError, OSError) as error:  # the text has the rings of this host, which change
            if type(error) is not self._told:
                self._up.log(f"waits for ring {self._name!r} to be created. {error}")
            self._told = type(error)
        else:
            self._is_there = True
            if self._told is not None:
                self._up.log(f"ring {self._name!r} is there now")
