"""The other end of the terminal that a command has."""

from __future__ import annotations

import os
import pty


class Screen:
    """It reads what the command writes there."""

    def __init__(self):
        self.fd, self.theirs = pty.openpty()
        self.text = ""

    def until(self, condition):
        while not condition(self.text):
            self.text += os.read(self.fd, 65536).decode(errors="replace")

    def forget(self):
        self.text = ""

    def close(self):
        os.close(self.fd)
        os.close(self.theirs)
