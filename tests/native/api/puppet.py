"""Drives tests/native/programs/puppet.c, which calls gpuring.h as it is told to."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from pathlib import Path

from tests.helpers.processes import PATIENCE_S

S = 1_000_000_000
FOREVER = -1
NEXT, OLDEST = -1, -2
PRODUCES = ("produce", "-")
CONSUMES = ("consume", "c", NEXT, "")


class Puppet:
    """A process of the puppet."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            errors="surrogateescape",
        )
        self.pid = self._process.pid

    def __call__(self, *command: object) -> str:
        """Sends a command.  Returns the answer."""
        self.tell(*command)
        return self.hear()

    def tell(self, *command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, command)) + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        assert ready, f"it said nothing for {PATIENCE_S} s"
        line = self._process.stdout.readline()
        assert line.endswith("\n"), f"it has ended: {self._process.wait(PATIENCE_S)}"
        return line[:-1]

    def ok(self, *command: object) -> dict[str, str]:
        """Sends a command that succeeds.  Returns the words of the answer by what stands before
        their "="."""
        status, *words = self(*command).split(" ")
        assert status == "GPURING_OK", " ".join([status, *words])
        return dict(word.split("=") for word in words if "=" in word)

    def leaves(self) -> None:
        """Ends it cleanly, after it has left and detached its ring."""
        self.ok("close", 0)
        self.ok("detach")
        self.end()

    def refused(self, *command: object) -> tuple[str, str]:
        """Sends a command that is refused.  Returns the status, and the words of the error."""
        status, _, text = self(*command).partition(" ")
        assert status != "GPURING_OK"
        return status.removeprefix("GPURING_"), text

    def until_stopped(self) -> None:
        """Waits until it has stopped itself (its `stop-at`)."""
        info = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert info is not None
        assert info.si_code == os.CLD_STOPPED

    def stops(self) -> bool:
        """Waits until it has stopped itself or has answered.  Returns whether it has stopped."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
            if select.select([self._process.stdout], [], [], 0.002)[0]:
                return False
        raise AssertionError(f"it did nothing for {PATIENCE_S} s")

    def go_on(self) -> None:
        """Continues it when it has stopped itself."""
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)  # so `stops` knows of the next stop
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def end(self) -> None:
        """Ends it cleanly.  Sanitizers then report leaks."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(PATIENCE_S) == 0
        finally:
            self.clear()

    def clear(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Halted:
    """A puppet that stops at the k-th step of one command."""

    def __init__(self, puppet: Puppet, k: int, *command: object) -> None:
        self._puppet = puppet
        puppet("halt", k)
        puppet.tell(*command)
        self.answer = "" if puppet.stops() else puppet.hear()
        """Empty: it has stopped."""
        self.was_over = bool(self.answer)
        """Whether there were fewer steps."""
        if self.was_over:
            puppet("halt", 0)

    def end(self) -> str:
        if not self.answer:
            self._puppet.go_on()
            self.answer = self._puppet.hear()
        return self.answer
