"""A worker that is started for one role, and so can inherit what cannot be sent later."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from gpuring.cli.bench.crew import Pipe, RoleFailed
from gpuring.cli.bench.peers.peer import RUN_S

START_S = 90.0
"""The first import of a large package, from a cold disk, is slow."""
EXIT_S = 5.0


class Heir:
    """A role in a process of its own; otherwise like crew.Part."""

    def __init__(self, role: Callable[..., Any], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_enter, args=(theirs, role, args), daemon=True)
        self._process.start()
        theirs.close()
        self.pid: int = self._process.pid or 0
        self._patience_s = START_S

    def told(self) -> bool:
        return self._pipe.poll()

    def send(self, value: Any = None) -> None:
        self._pipe.send(value)

    def receive(self) -> Any:
        return self._next("sent")

    def result(self) -> Any:
        value = self._next("returned")
        self._process.join(EXIT_S)
        return value

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Heir:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._pipe.close()

    def _next(self, expected: str) -> Any:
        try:
            if not self._pipe.poll(self._patience_s):
                raise RoleFailed(f"it said nothing for {self._patience_s:g} s")
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            raise RoleFailed("it died") from None
        if kind != expected:
            raise RoleFailed(value if kind == "raised" else f"it {kind} {value!r}")
        self._patience_s = RUN_S
        return value


def _enter(connection: Connection, role: Callable[..., Any], args: tuple[Any, ...]) -> None:
    # It may wait in a queue whose other ends its siblings hold: no end of file tells it that
    # nobody wants it any more.
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        outcome = ("returned", role(Pipe(connection), *args))
    except BaseException:
        outcome = ("raised", traceback.format_exc())
    connection.send(outcome)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
