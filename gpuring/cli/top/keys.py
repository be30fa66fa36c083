"""The q key, where there is a terminal to press it on."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from typing import Any

from gpuring.deadlines import deadline_of, left_s


class Keys:
    """Reads single keys from stdin; as a context manager it gives the terminal back as it was."""

    def __init__(self) -> None:
        self._fd = -1
        self._before: list[Any] = []
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if sys.stdin.isatty():
                self._fd = sys.stdin.fileno()

    def __enter__(self) -> Keys:
        if self._fd >= 0:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def quit_within(self, seconds: float) -> bool:
        """Waits that long; True, and at once, when q was pressed."""
        deadline = deadline_of(seconds)
        while left := left_s(deadline):
            readable, _, _ = select.select([self._fd] if self._fd >= 0 else [], [], [], left)
            if readable:
                pressed = os.read(self._fd, 64)
                if not pressed or b"q" in pressed.lower():  # nothing: the terminal has gone
                    return True
        return False
