"""The other end of a terminal in which a command runs."""

from __future__ import annotations

import os
import pty


class Screen:
    """Reads what the command writes to its terminal."""

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
