"""The `gpuring` command as its users start it: a process of its own, with a deadline."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

DEADLINE_S = 60
COMMAND = (sys.executable, "-m", "gpuring")


def gpuring(*options: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs it to its end."""
    more = {"stdin": subprocess.DEVNULL, "timeout": DEADLINE_S} | more
    return subprocess.run(
        [*COMMAND, *map(str, options)], check=False, capture_output=True, text=True, **more
    )


@contextlib.contextmanager
def running(*options: Any, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Runs it beside; it is gone afterwards."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*COMMAND, *map(str, options)], text=True, **(pipes | more))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
