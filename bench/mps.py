"""A Multi-Process Service for the length of a run: a private daemon in its own directory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpuring.cli.measure.mps import CONTROL, PATIENCE_S, tell


class NoMps(Exception):
    """The daemon could not be started.  The text says why."""


def without() -> dict[str, str]:
    """An environment whose CUDA processes find no daemon."""
    return {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}


@contextlib.contextmanager
def daemon() -> Iterator[dict[str, str]]:
    """Runs a daemon, and yields the environment that makes CUDA processes its clients.  Raises
    NoMps."""
    with tempfile.TemporaryDirectory(prefix="gpuring-mps-") as place:
        ours = {
            "CUDA_MPS_PIPE_DIRECTORY": str(Path(place, "pipe")),
            "CUDA_MPS_LOG_DIRECTORY": str(Path(place, "log")),
        }
        for directory in ours.values():
            Path(directory).mkdir()
        environment = {**os.environ, **ours}
        quiet = subprocess.DEVNULL
        try:
            started = subprocess.run(  # without pipes, which the daemon would keep open
                [CONTROL, "-d"], env=environment, stdin=quiet, stdout=quiet, stderr=quiet,
                timeout=PATIENCE_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise NoMps(f"{CONTROL} -d: {error}") from None
        if started.returncode != 0:
            raise NoMps(f"{CONTROL} -d ended with {started.returncode}")
        try:
            if tell("get_server_list", environment).returncode != 0:
                raise NoMps(f"{CONTROL} was started and does not answer")
            yield environment
        finally:
            tell("quit", environment)
