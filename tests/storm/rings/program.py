"""A process of a storm: when a signal may strike it, and how it goes on.

SIGINT raises KeyboardInterrupt and SIGTERM SystemExit, wherever the main thread is.  Most of the
time that is in the library.  Only while the process writes on its paper, a signal waits until that
is done.  Otherwise the books could be wrong although the library is right.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tests.helpers.processes import die_with
from tests.storm.paper import Findings, Progress

ATTACH_S = 20.0
WAIT_S = 0.5  # for one verb
TOLD = signal.SIGINT, signal.SIGTERM


class Program:
    """The state that all endpoints of a process share."""

    def __init__(self, folder: Path, number: int, role: str, names: list[str], seed: int) -> None:
        self.folder, self.number, self.role, self.names = folder, number, role, names
        self.chance = random.Random(seed * 1_000_003 + number)
        self.progress = Progress(folder / "progress")
        self.findings = Findings(folder / "findings")
        self.ending = False
        """It was told to end, by SIGTERM."""
        self._armed = False
        self._kept_back: int | None = None
        self._participations = iter(range(1 << 12))
        self._lock = threading.Lock()

    def begin(self, parent: int) -> None:
        """Prepares a new process, which ends with its parent."""
        die_with(parent)
        self._trace = (self.folder / f"trace.{self.number}").open("w")
        faulthandler.register(signal.SIGUSR1, file=self._trace, all_threads=True)
        for number in TOLD:
            signal.signal(number, self._signalled)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)

    @property
    def finishing(self) -> bool:
        """Whether the storm is over.  Then nobody makes frames or rings any more."""
        return (self.folder / "finish").exists()

    def participation(self) -> int:
        with self._lock:
            return next(self._participations)

    def step(self) -> None:
        self.progress.step(self.number)

    def find(self, what: str, error: BaseException | None = None) -> None:
        self.findings.add(f"{self.role}.{self.number}", what, error)

    # ---- signals -------------------------------------------------------------------------------

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self.ending = True
        if not self._armed:
            if self._kept_back != signal.SIGTERM:
                self._kept_back = number
            return
        self._armed = False  # one at a time
        if number == signal.SIGTERM:
            raise SystemExit(0)
        raise KeyboardInterrupt

    def arm(self) -> None:
        """From now on signals interrupt.  One that was kept back does so now."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._armed = True
        number, self._kept_back = self._kept_back, None
        if number is not None:
            self._signalled(number, None)

    def disarm(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._armed = False

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keeps signals back during a block.  If the block raises, they stay back."""
        was = self._armed
        self.disarm()
        yield
        if was:
            self.arm()

    def closed(self, *things: Any) -> None:
        """Closes each of them while signals come, and once more if that was interrupted."""
        for thing in things:
            try:
                self.arm()
                thing.close()
                self.disarm()
            except (KeyboardInterrupt, SystemExit):
                self.disarm()
                thing.close()
