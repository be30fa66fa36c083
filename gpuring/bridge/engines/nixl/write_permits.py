"""Who may still write into the far memory, where both ends of a session are on one host.

Across a network the far end ends a session alone: the network card, or the connection, refuses what
the near end sends from then on.  On one host UCX copies without the far end: by a system call that
writes into another process (CMA), or through a mapping of the far GPU memory (cuda_ipc).  A near
end that has not heard yet that the session is over still writes, and one that was stopped with
SIGSTOP does so when it goes on.

So the near end needs a *permit*, which is a connection to a Unix socket of the far end.  It sends
nothing before it has the permit.  It closes the connection when its agent is destroyed, and if it
dies the kernel does so.  The far end waits for that before it gives its slots up.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket
import struct

from gpuring.bridge.descriptors import readable

_ADMITTED, _BYE = b"+", b"-"
_CREDENTIALS = struct.Struct("iII")  # struct ucred
_WARN_AFTER_S = 1.0
_LENGTH = 48
"""The length of the name under which permits are given."""

_log = logging.getLogger("gpuring.bridge")


class WritePermits:
    """The far end's side.  One near end at a time has a permit."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.name = f"gpuring-{secrets.token_hex(20)}"
        """How the near end finds it.  The socket has no file, so nothing is left behind."""
        assert len(self.name) == _LENGTH
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(1)
        self._writer: tuple[socket.socket, int, int] | None = None
        """The connection, the process's id and its pidfd."""

    def fileno(self) -> int:
        """Becomes readable when `admit` has something to do."""
        return self._listener.fileno()

    def admit(self) -> None:
        """Gives a permit to a near end that has come.  Never blocks."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._writer is None:
                self._writer = _admitted(connection)
            else:
                connection.close()

    def end(self) -> None:
        """Tells the near end that the session is over, and waits until it has let go or is dead.

        Logs a warning if that takes longer than a second.  Waits for as long as a stopped process
        is neither continued nor killed, because it could write until then.
        """
        self.admit()
        self._listener.close()  # a late caller was never admitted
        if self._writer is None:
            return
        connection, pid, pidfd = self._writer
        self._writer = None
        with connection:
            try:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                if not readable([connection.fileno()], _WARN_AFTER_S):
                    _log.warning(
                        "the bridge at the near end (pid %d) has not let go of the slots yet. "
                        "They are used again when it has, or is dead",
                        pid,
                    )
                    readable([connection.fileno()], math.inf)
                with contextlib.suppress(OSError):
                    if connection.recv(1) == _BYE:
                        return
                readable(
                    [pidfd], math.inf
                )  # it has died: its GPU work ends before the process does
            finally:
                os.close(pidfd)


class WritePermit:
    """The near end's side."""

    def __init__(self, name: str) -> None:
        """Raises OSError if the far end is not there, or not reachable from here."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(f"\0{name}")
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._admitted = False
        raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid: int = _CREDENTIALS.unpack(raw)[0]
        """The far end's process.  0: it is in another pid namespace."""

    def fileno(self) -> int:
        """Becomes readable when the far end has admitted this one, or has ended the session."""
        return self._socket.fileno()

    def admitted(self) -> bool:
        """Whether this end may write now.  Raises OSError if the session is over."""
        try:
            said = self._socket.recv(1)
        except BlockingIOError:
            return self._admitted
        if said != _ADMITTED:
            raise ConnectionResetError("the far end has ended the session")
        self._admitted = True
        return True

    def let_go(self) -> None:
        """This process does not write any more."""
        with contextlib.suppress(OSError):
            self._socket.send(_BYE)
        self._socket.close()


def is_name(text: object) -> bool:
    """Whether this can be such a name.  It came over the network."""
    return isinstance(text, str) and len(text) == _LENGTH and text.isascii() and text.isprintable()


def _admitted(connection: socket.socket) -> tuple[socket.socket, int, int] | None:
    """Admits a process of the same user that this one can watch.  Closes any other connection."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    try:
        if not pid or uid != os.geteuid():
            raise PermissionError("another user, or a process of another pid namespace")
        pidfd = os.pidfd_open(pid)
        try:
            connection.setblocking(False)
            connection.send(_ADMITTED)  # fails if it is dead, and the pidfd that of a stranger
        except OSError:
            os.close(pidfd)
            raise
    except OSError:
        connection.close()
        return None
    return connection, pid, pidfd
