"""CUDA's Multi-Process Service, through which processes share a GPU without switching it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

CONTROL = "nvidia-cuda-mps-control"
PATIENCE_S = 20.0


def installed() -> bool:
    return shutil.which(CONTROL) is not None


def reachable() -> bool:
    """Whether the environment leads to a daemon already: every process here is its client."""
    return installed() and tell("get_server_list", os.environ).returncode == 0


def tell(command: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return control([CONTROL], environment, f"{command}\n")


def control(
    command: list[str], environment: Mapping[str, str], told: str = ""
) -> subprocess.CompletedProcess[str]:
    try:  # without pipes from it, which a daemon would keep open
        return subprocess.run(
            command, input=told, env=dict(environment), text=True, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(command, 1, stderr=str(error))
