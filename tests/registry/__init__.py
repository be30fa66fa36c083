"""Names in /dev/shm: who makes, finds, replaces and cleans them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def in_a_child(call: Callable[[], object]) -> None:
    """Runs it in a forked process, which is killed at its end, or by itself."""
    pid = os.fork()
    if pid == 0:
        try:
            kept = call()  # a ring that nobody has is closed
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
        del kept
    os.waitpid(pid, 0)
