"""When to look for the near ring, while it is not there.

The log says that it is missing, because the name may be wrong.  Nothing here attaches to a ring.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from gpuring.bridge.worker import SupervisorPipe
from gpuring.errors import RingError
from gpuring.native import NameWatch
from gpuring.registry import directory, segment

_LOOK_S = 0.5
"""How often it is looked for, if nothing says that it has come."""


class RingLookup:
    """Looks for a ring until it is there for the first time, and later whenever somebody waits."""

    def __init__(self, name: str, supervisor: SupervisorPipe) -> None:
        self._name, self._supervisor = name, supervisor
        self._path = Path(segment.path_of(segment.header_name(name)))
        self._names: NameWatch | None = None
        """Can be read when something in /dev/shm has got a name."""
        self._was_there = False
        self._found = 0
        """Which file had the name of the ring at the last look.  0: none."""
        self._looked_s = 0.0
        self._logged: type | None = None
        """What was wrong when the log said so last."""

    def fileno(self) -> int:
        """Becomes readable when the ring may have come.  -1 if nobody can say so."""
        if self._names is None:
            with contextlib.suppress(OSError):  # this user has no more watches
                self._names = NameWatch(segment.SHM)
        return -1 if self._names is None else self._names.fd

    def look(self, somebody_waits: bool) -> bool:
        """Whether to try now to attach to the ring for those who wait for it.

        Says once that the ring is not there or cannot be read, and that it is there then.
        """
        if self._was_there and not somebody_waits:
            return False
        if self._names is not None:
            self._names.drain()
        now, found = time.monotonic(), 0
        with contextlib.suppress(OSError):
            found = self._path.stat().st_ino
        if found == self._found and now - self._looked_s < _LOOK_S:
            return False
        self._found, self._looked_s = found, now
        if not self._was_there:
            self._tell()
        return somebody_waits and found != 0

    def _tell(self) -> None:
        try:
            directory.look(self._name)
        except (RingError, OSError) as error:  # the text has the rings of this host, which change
            if type(error) is not self._logged:
                self._supervisor.log(f"waits for ring {self._name!r} to be created. {error}")
            self._logged = type(error)
        else:
            self._was_there = True
            if self._logged is not None:
                self._supervisor.log(f"ring {self._name!r} is there now")
