"""Programs that load batches for ever, and the rings that they leave."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.commands import environment


@contextlib.contextmanager
def program(kind: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A program that loads for ever, and its workers."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.torch.datasets", kind],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, [int(pid) for pid in process.stdout.readline().split()]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def left_by(pid: int) -> list[str]:
    return [each.name for each in Path("/dev/shm").glob(f"gpuring*loader-{pid}-*")]
