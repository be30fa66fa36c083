"""The commands, without a process for each."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuring.cli import main

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs `gpuring` to its end in this process."""
    handler = signal.getsignal(signal.SIGTERM)  # some have their own

    def run(*options: Any) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        status = main([str(option) for option in options])
        return subprocess.CompletedProcess(options, status, *capsys.readouterr())

    yield run
    signal.signal(signal.SIGTERM, handler)
