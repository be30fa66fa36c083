"""Single keys, where there is a terminal to press them on."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import tty
from typing import Any

from gpuring.deadlines import deadline_of, left_s

_KEY = re.compile(rb"\x1b[\[O][ABFH]|\x1b\[[1456]~|[jkgGqQ ]")
_NAMES = {
    **{"q": "quit", "Q": "quit", "g": "graph", "k": "up", "[A": "up", "j": "down", "[B": "down"},
    **{"[5~": "page up", "[6~": "page down", " ": "page down"},
    **{"[H": "home", "[1~": "home", "[F": "end", "[4~": "end", "G": "end"},
}
"""Terminals send ESC and the rest for the keys that have no letter, some of them O for [."""


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

    def within(self, seconds: float) -> list[str]:
        """Waits that long for a key that has a name here.  Returns those that were pressed, at
        once, or nothing when the time is up."""
        deadline = deadline_of(seconds)
        while left := left_s(deadline):
            readable, _, _ = select.select([self._fd] if self._fd >= 0 else [], [], [], left)
            if readable:
                pressed = os.read(self._fd, 64)
                if not pressed:  # the terminal has gone
                    return ["quit"]
                if names := named(pressed):
                    return names
        return []


def named(pressed: bytes) -> list[str]:
    """The names of the keys for which a terminal sends these bytes."""
    return [_NAMES[key.decode().lstrip("\x1b").replace("O", "[")] for key in _KEY.findall(pressed)]
