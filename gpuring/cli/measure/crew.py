"""Worker processes: started once, used many times, because a CUDA context takes a second to make.

A role is a module-level function `role(pipe, *args)`; what it returns is its result. Every wait has
a deadline. A worker that misses one, raises or dies is killed and never used again. All workers end
with the process that started them, even if that one is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from .signals import uninterrupted

PATIENCE_S = 120.0
_EXIT_S = 5.0

_Order = tuple[Callable[..., Any], tuple[Any, ...]]
"""A role and its arguments."""


class RoleFailed(Exception):
    """A role raised, died, or was silent for too long; the text has its traceback."""

    def __init__(self, why: str, pid: int = 0) -> None:
        super().__init__(f"pid {pid} {why}" if pid else why)
        self.why = why

    @property
    def last_line(self) -> str:
        """The last line of a traceback: what was raised."""
        return str(self).strip().splitlines()[-1].strip().removeprefix("gpuring.errors.")


class Pipe:
    """A role's end of its conversation with the benchmark."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, value: Any = None) -> None:
        self._connection.send(("sent", value))

    def receive(self) -> Any:
        return self._connection.recv()

    def told(self) -> bool:
        """Whether something has come that was not received yet."""
        return self._connection.poll()


class Part:
    """A role that a worker is playing."""

    def __init__(self, crew: Crew, worker: _Worker, patience_s: float) -> None:
        self._crew = crew
        self._worker = worker
        self._patience_s = patience_s
        self._over = False

    @property
    def pid(self) -> int:
        return self._worker.pid

    def receive(self) -> Any:
        """The next thing that the role sent.  Raises RoleFailed."""
        ended, value = self.next()
        if ended:
            raise RoleFailed(f"ended instead of answering: {value!r}", self.pid)
        return value

    def told(self) -> bool:
        """Whether `receive` or `result` would not wait."""
        return self._worker.pipe.poll()

    def send(self, value: Any = None) -> None:
        self._worker.pipe.send(value)

    def result(self) -> Any:
        """What the role returned; its worker is free again.  Raises RoleFailed."""
        ended, value = self.next()
        if not ended:
            raise self._failed(f"sent {value!r} instead of ending")
        return value

    def next(self) -> tuple[bool, Any]:
        """Whether the role has ended, and what it returned or sent.  Raises RoleFailed."""
        try:
            if not self._worker.pipe.poll(self._patience_s):
                raise self._failed(f"said nothing for {self._patience_s:g} s")
            kind, value = self._worker.pipe.recv()
        except (EOFError, OSError):
            raise self._failed(f"died: {self._worker.ending()}") from None
        if kind == "raised":
            raise self._failed(f"failed:\n\n{value.rstrip()}")
        if kind == "returned":
            self._over = True
            self._crew.give_back(self._worker)
        return kind == "returned", value

    def kill(self) -> None:
        """SIGKILL; the process is gone when this returns."""
        self._over = True
        self._worker.end()

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._over:
            self.kill()

    def _failed(self, why: str) -> RoleFailed:
        self.kill()
        return RoleFailed(why, self.pid)


def speaking(parts: Iterable[Part], timeout_s: float) -> list[Part]:
    """Waits until some part has said something, and returns all parts that have."""
    by_pipe = {part._worker.pipe: part for part in parts}
    return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout_s)]  # type: ignore[index]


def answers(parts: Sequence[Part], patience_s: float) -> list[Any]:
    """What each of them says next.  Raises RoleFailed as soon as one has failed: the others, which
    may wait for that one, would never speak."""
    said: dict[Part, Any] = {}
    deadline = time.monotonic() + patience_s
    while left := [part for part in parts if part not in said]:
        heard = speaking(left, max(0.0, deadline - time.monotonic()))
        if not heard:
            raise RoleFailed(f"no answer within {patience_s:g} s")
        said.update((part, part.receive()) for part in heard)
    return [said[part] for part in parts]


class _Worker:
    """only: the one role of its life, with arguments that it inherits."""

    def __init__(
        self, environment: Mapping[str, str], method: str, only: _Order | None = None
    ) -> None:
        context: Any = multiprocessing.get_context(method)
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.only = only is not None
        args = (theirs, environment, only)
        self._process = context.Process(target=_work, args=args, daemon=True)
        self._process.start()
        theirs.close()
        self.pid: int = self._process.pid or 0

    def leave(self) -> None:
        """Its process is about to end by itself; it is gone when this returns."""
        self._process.join(_EXIT_S)
        self.end()

    def ending(self) -> str:
        """How its process, which is dying, has ended."""
        self._process.join(1.0)
        code = self._process.exitcode
        if code is None:
            return "without a word"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


class Crew:
    """The workers of one run.  As a context manager it ends with all of them gone.

    environment: set in each worker before it has loaded anything that reads it, NumPy too unless
    a fork server has loaded it.
    method: how processes are started, "spawn" or "forkserver".
    """

    def __init__(self, environment: Mapping[str, str] | None = None, method: str = "spawn") -> None:
        self._environment = dict(environment or {})
        self._method = method
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []

    def start(
        self,
        role: Callable[..., Any],
        *args: Any,
        patience_s: float = PATIENCE_S,
        inherit: bool = False,
    ) -> Part:
        """Has an idle worker, or a new one, play `role`.

        inherit: a new process plays this role alone. Queues and locks of multiprocessing can only
        be inherited by a new process, not sent to one that runs.
        """
        if inherit:
            return Part(self, self._hire((role, args)), patience_s)
        try:
            worker = self._idle.pop() if self._idle else self._hire()
            worker.pipe.send((role, args))
        except OSError as error:  # its end of a pipe is closed already
            raise RoleFailed(f"{sys.executable} does not start: {error.strerror}") from None
        return Part(self, worker, patience_s)

    def call(self, role: Callable[..., Any], *args: Any, patience_s: float = PATIENCE_S) -> Any:
        """The result of a role that needs nobody else."""
        with self.start(role, *args, patience_s=patience_s) as part:
            return part.result()

    def give_back(self, worker: _Worker) -> None:
        if worker.only:
            worker.leave()
        else:
            self._idle.append(worker)

    def _hire(self, only: _Order | None = None) -> _Worker:
        # A worker does not hear Ctrl-C, also while it still imports.
        with uninterrupted(), _set(self._environment):
            worker = _Worker(self._environment, self._method, only)
            self._all.append(worker)
        return worker

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            with contextlib.suppress(OSError):
                worker.end()


@contextlib.contextmanager
def _set(environment: Mapping[str, str]) -> Iterator[None]:
    """Sets these variables in the block."""
    kept = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for key, value in kept.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _work(connection: Connection, environment: Mapping[str, str], only: _Order | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to us too; the crew ends us
    # A role may wait at a queue or a ring whose other users live on.  Then neither an end of file
    # nor PeerLost tells it that its result is not wanted any more.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    if only is not None:
        connection.send(_outcome(connection, only))
        return
    while True:
        try:
            order = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(_outcome(connection, order))


def _outcome(connection: Connection, order: _Order) -> tuple[str, Any]:
    role, args = order
    try:
        return "returned", role(Pipe(connection), *args)
    except BaseException:
        return "raised", traceback.format_exc()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
