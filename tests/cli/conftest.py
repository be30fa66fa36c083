"""Runs commands without a process for each."""

from __future__ import annotations

import logging
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
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    log = logging.getLogger("gpuring.bridge")
    logged = log.handlers[:], log.level

    def run(*options: Any) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        status = main([str(option) for option in options])
        return subprocess.CompletedProcess(options, status, *capsys.readouterr())

    yield run
    for each, handler in handlers.items():  # some commands have their own
        signal.signal(each, handler)
    log.handlers[:], log.level = logged
