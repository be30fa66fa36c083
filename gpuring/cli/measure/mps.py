"""CUDA's Multi-Process Service, through which processes share a GPU without switching it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PATIENCE_S = 20.0
MODES = {"off": (False,), "on": (True,), "both": (False, True)}
"""What an option --mps asks for."""


class NoMps(Exception):
    """The daemon could not be started.  The text says why."""


def installed() -> bool:
    return shutil.which(CONTROL) is not None


def reachable() -> bool:
    """Whether the environment leads to a daemon already: every process here is its client."""
    return installed() and _tell("get_server_list", os.environ).returncode == 0


@contextlib.contextmanager
def environment(on: bool) -> Iterator[dict[str, str]]:
    """That of CUDA processes that share a GPU through the daemon that is reachable, or through a
    private one; or that find none.  Raises NoMps."""
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
        started = _control([CONTROL, "-d"], clients)
        if started.returncode != 0:
            raise NoMps(f"{CONTROL} -d ended with {started.returncode} {started.stderr or ''}")
        try:
            if _tell("get_server_list", clients).returncode != 0:
                raise NoMps(f"{CONTROL} was started and does not answer")
            yield clients
        finally:
            _tell("quit", clients)


def _tell(command: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return _control([CONTROL], environment, f"{command}\n")


def _control(
    command: list[str], environment: Mapping[str, str], told: str = ""
) -> subprocess.CompletedProcess[str]:
    try:  # without pipes from it, which a daemon would keep open
        return subprocess.run(
            command, input=told, env=dict(environment), text=True, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(command, 1, stderr=str(error))
