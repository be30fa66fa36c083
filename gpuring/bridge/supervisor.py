"""The supervisor of either side: it starts the worker, starts another one when that dies, and has
what stays meanwhile.

Any thread of the user's program may call the public methods.  A thread of its own listens to the
worker, does what the worker asks for, and leaves the rings at the end.  Each side has a class of
its own for these steps.  So an interrupt in a public method leaves nothing half done.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from gpuring.bridge.descriptors import readable
from gpuring.bridge.stats import BridgeStats, LinkStats
from gpuring.deadlines import deadline_of, left_s
from gpuring.errors import RingError, RingTimeout
from gpuring.printable import printable
from gpuring.ring import inner

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpuring.ring.ring import Ring

log = logging.getLogger("gpuring.bridge")

_BOOT = """# gpuring bridge: worker of the {title}
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C may come while it imports what it needs
sys.path[:] = {path!r}
from gpuring.bridge.worker_main import main
main()"""
_QUICK_S = 2.0
"""A worker that ends sooner than that is started again after a rest."""
_MAX_REST_S = 1.0
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""What a machine may have enough of again."""
_STOP_S = 0.8
"""A worker that has not ended by then is killed."""
_ANSWER_S = 10.0
_LOOK_S = 0.5
"""How often a wait looks whether a signal has come.  If the kernel gave that to another thread, as
it may when the process was stopped, nobody wakes the one that has to handle it."""
_CLEARED_S = 5.0
"""If a dead worker is not cleared by then, the log says so.  A stopped process may have the lock of
a ring."""
_LEFT_S = 12.0
"""How long `close` waits until the rings are left.  A stopped process may have the lock of one."""


class Bridge:
    """One side of a bridge.  It is a context manager, and works until it is closed."""

    def __init__(self, title: str, options: dict[str, Any]) -> None:
        self._title = title
        self._options = options
        self._made_in = os.getpid()
        self._worker: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._again = False
        self._error: str | None = None
        self._closing = threading.Event()
        self._over = threading.Event()
        """There is no worker any more, and no other one is started."""
        self._done = threading.Event()
        """The rings were left, too."""
        self._answers: dict[int, Any] = {}
        self._answered = threading.Condition()
        self._asked = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=title, daemon=True)

    # ---- for users -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id of the worker.  0 while there is none."""
        worker = self._worker
        return worker.pid if worker is not None else 0

    def stats(self) -> BridgeStats:
        """What this side is doing.  Asks the worker, and waits for it for at most 10 s.  There are
        no links while a worker is being started, and none after `close`.

        Raises RingTimeout if the worker is stopped, and RingError if the bridge cannot go on, or in
        a forked child.
        """
        self._check_own()
        with self._answered:
            self._asked += 1
            number, worker = self._asked, self._worker
            told = self._say(stats=number) and self._answered.wait_for(
                lambda: number in self._answers or self._worker is not worker, _ANSWER_S
            )
            self._raise_if_over()
            if self._worker is None or self._worker is not worker:
                return BridgeStats(self._title, 0, self._restarts, ())
            if not told:
                raise RingTimeout(f"{self._title}: its worker (pid {self.pid}) does not answer")
            links = tuple(LinkStats(**each) for each in self._answers.pop(number))
        return BridgeStats(self._title, self.pid, self._restarts, links)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the bridge cannot go on, and raises RingError then.  Returns after `timeout`
        seconds, or when it is closed.  Ctrl-C interrupts.  Raises RingError in a forked child."""
        self._check_own()
        until = deadline_of(timeout if timeout is None else max(0.0, timeout))
        while (rest_s := left_s(until)) and not self._over.wait(min(rest_s, _LOOK_S)):
            pass
        self._raise_if_over()

    def close(self, *, again: bool = False) -> None:
        """Ends this side cleanly, within a second.  May be called twice.  If it was interrupted,
        call it again.

        `again`: another importer of the same name follows, and the exporter keeps the frames for it
        as long as its patience lasts.  Or another exporter follows, and the ring keeps them so.

        Raises RingTimeout if a ring cannot be left, because a stopped process has its lock.  It is
        left when that goes on.  In a forked child nothing is done: the bridge is its parent's.
        """
        if self._made_in != os.getpid():
            return
        if not self._closing.is_set():
            self._again = again
            self._closing.set()
        self._stop()
        until = deadline_of(_LEFT_S)
        while not self._done.wait(_STOP_S):
            if (worker := self._worker) is not None:
                worker.kill()
            if not left_s(until):
                raise RingTimeout(f"{self._title}: a ring cannot be left yet. Close it again later")
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_own(self) -> None:
        if self._made_in != os.getpid():
            raise RingError(
                f"{self._title}: this handle was made before fork() and belongs to the parent. "
                "Make a bridge in the child, or start processes with the 'spawn' method"
            )

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise RingError(f"{self._title}: {self._error}")

    # ---- the worker ----------------------------------------------------------------------------

    def _start(self) -> Self:
        self._thread.start()
        return self

    def _spawn(self) -> subprocess.Popen[bytes]:
        code = _BOOT.format(title=printable(self._title), path=sys.path)
        worker = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        _tell(worker, **self._options, **self._known())
        self._worker = worker  # now, because what other threads say comes after what it has to know
        return worker

    def _say(self, **message: Any) -> bool:
        """Whether a worker lives and the message could be sent to it."""
        worker = self._worker
        return worker is not None and _tell(worker, **message)

    def _stop(self) -> None:
        self._say(stop=True, again=self._again)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
        if (worker := self._worker) is not None:
            worker.kill()
            worker.wait()
            self._worker = None
        if self._error is not None:
            log.error("%s is over: %s", self._title, self._error)
        self._over.set()
        with self._answered:
            self._answered.notify_all()
        while not self._done.is_set():
            try:
                self._leave()
            except RingTimeout as error:
                log.warning("%s: %s", self._title, error)
            else:
                self._done.set()

    @property
    def _ends(self) -> bool:
        return self._closing.is_set() or self._error is not None

    def _work(self) -> None:
        rest_s = 0.0
        while not self._ends:
            began = time.monotonic()
            try:
                worker = self._spawn()
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                log.warning("%s: no worker can be started yet: %s", self._title, error)
                self._closing.wait(_MAX_REST_S)
                continue
            if self._ends:  # `close` may have seen no worker
                self._stop()
            self._listen(worker)
            self._bury(worker)
            if self._ends:
                break
            self._restarts += 1
            told = "%s: its worker (pid %d) is dead, another one is started"
            log.warning(told, self._title, worker.pid)
            quick = time.monotonic() - began < _QUICK_S
            rest_s = min(max(0.1, 2 * rest_s), _MAX_REST_S) if quick else 0.0
            if rest_s > 0.1:
                self._closing.wait(rest_s)

    def _listen(self, worker: subprocess.Popen[bytes]) -> None:
        """Does what the worker asks for, until it ends or its time is over."""
        assert worker.stdout is not None
        begun = b""
        deadline = math.inf
        while readable([worker.stdout.fileno()], left_s(deadline)):
            more = os.read(worker.stdout.fileno(), 1 << 16)
            if not more:
                return
            *lines, begun = (begun + more).split(b"\n")
            for line in lines:
                self._heard(json.loads(line))
            if self._error is not None and deadline == math.inf:
                deadline = deadline_of(_STOP_S)

    def _heard(self, message: dict[str, Any]) -> None:
        if "log" in message:
            log.info("%s: %s", self._title, printable(message["log"]))
        elif "fatal" in message:
            self._error = printable(message["fatal"])
        elif "stats" in message:
            with self._answered:
                self._answers[message["stats"]] = message["links"]
                self._answered.notify_all()
        elif not self._closing.is_set():
            try:
                self._asked_for(message)
            except (RingError, OSError, ValueError) as error:
                self._error = str(error)
                self._stop()

    def _bury(self, worker: subprocess.Popen[bytes]) -> None:
        """Waits until the worker is gone, and what it had is cleared."""
        worker.kill()
        worker.wait()
        self._died()
        with self._answered:
            self._worker = None
            self._answered.notify_all()
        for stream in filter(None, (worker.stdin, worker.stdout)):
            with contextlib.suppress(OSError):
                stream.close()
        deadline = deadline_of(_CLEARED_S)
        for ring in self._rings():
            while any(peer.pid == worker.pid and not peer.alive for peer in ring.stats().peers):
                inner.header(ring).reap()
                if self._closing.is_set():
                    return
                if not left_s(deadline):
                    told = "%s: its dead worker (pid %d) cannot be cleared from ring %r yet"
                    log.warning(told, self._title, worker.pid, ring.name)
                    deadline = math.inf
                time.sleep(0.002 if deadline < math.inf else 0.05)

    # ---- what each side has of its own ---------------------------------------------------------

    def _known(self) -> dict[str, Any]:
        """What a new worker has to know, beside what all have to."""
        raise NotImplementedError

    def _rings(self) -> list[Ring]:
        raise NotImplementedError

    def _died(self) -> None:
        """A worker is gone, and what it had in rings is not cleared yet."""

    def _asked_for(self, message: dict[str, Any]) -> None:
        raise NotImplementedError

    def _leave(self) -> None:
        """Leaves the rings, when the worker is gone.  Raises RingTimeout, and is called again."""
        raise NotImplementedError


def leave(ring: Ring) -> None:
    """Closes a ring.  Raises RingTimeout if that cannot be done now."""
    try:
        ring.close()
    except (RingError, OSError) as error:  # what is left is cleared as that of the dead is
        if isinstance(error, RingTimeout):
            raise


def _tell(worker: subprocess.Popen[bytes], **message: Any) -> bool:
    assert worker.stdin is not None
    try:
        worker.stdin.write(json.dumps(message).encode() + b"\n")
    except (OSError, ValueError):
        return False
    return True
