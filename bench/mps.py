"""Runs of CUDA processes with MPS on or off (cli/measure/mps.py talks to its server)."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpuring.cli.measure.mps import CONTROL, control, installed, reachable, tell

__all__ = ["MODES", "NoMps", "daemon", "environment", "installed", "modes", "reachable"]

MODES = {"off": (False,), "on": (True,), "both": (False, True)}
"""What an option --mps asks for."""


def modes(asked: str | None, *, both: bool = True) -> tuple[bool, ...]:
    """The modes to measure.  Without an option it is on if a daemon is reachable.  Otherwise it is
    off, and also on if MPS is installed, unless `both` is False."""
    if asked is None:
        asked = "on" if reachable() else "both" if installed() and both else "off"
    return MODES[asked]


class NoMps(Exception):
    """The daemon could not be started.  The text says why."""


@contextlib.contextmanager
def environment(on: bool) -> Iterator[dict[str, str]]:
    """The environment of CUDA processes that share a GPU through the reachable daemon or a private
    one, or that find none.  Raises NoMps."""
    if on == reachable():
        yield dict(os.environ)
    elif on:
        with daemon() as private:
            yield private
    else:
        yield {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}


@contextlib.contextmanager
def daemon() -> Iterator[dict[str, str]]:
    """Runs a daemon in a directory of its own, and yields the environment that makes CUDA processes
    its clients.  Raises NoMps."""
    with tempfile.TemporaryDirectory(prefix="gpuring-mps-") as place:
        ours = {
            "CUDA_MPS_PIPE_DIRECTORY": str(Path(place, "pipe")),
            "CUDA_MPS_LOG_DIRECTORY": str(Path(place, "log")),
        }
        for directory in ours.values():
            Path(directory).mkdir()
        clients = {**os.environ, **ours}
        started = control([CONTROL, "-d"], clients)
        if started.returncode != 0:
            raise NoMps(f"{CONTROL} -d ended with {started.returncode} {started.stderr or ''}")
        try:
            if tell("get_server_list", clients).returncode != 0:
                raise NoMps(f"{CONTROL} was started and does not answer")
            yield clients
        finally:
            tell("quit", clients)
