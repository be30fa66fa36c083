"""Programs of the pages, as their readers start them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.docs.examples import EXAMPLES, RINGS, files_of, lock


class Programs:
    """Programs that run in one folder.  What they start ends with them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *command: Any, before: Any = (), **more: Any) -> subprocess.Popen[str]:
        """Starts a program.  `before` comes before the interpreter in the command."""
        process = subprocess.Popen(
            [*before, sys.executable, *map(str, command)],
            stdout=subprocess.PIPE, text=True, cwd=self._folder, start_new_session=True, **more,
        )  # fmt: skip
        self._started.append(process)
        return process

    def terminate(self, process: subprocess.Popen[str]) -> None:
        """Sends SIGTERM to the program itself, also if it is process 1 of what `before` has
        made."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        inside = process.args[0] != sys.executable
        os.kill(int(children[0]) if inside else process.pid, signal.SIGTERM)

    def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in filter(None, (process.stdout, process.stderr)):
                pipe.close()


PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Before a program: it is process 1 of a pid namespace, as in a container."""


@pytest.fixture(params=["a process", "process 1"])
def before(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What comes before the interpreter: nothing, or a command that makes the program process 1 of
    a pid namespace."""
    if request.param == "a process":
        return ()
    tried = subprocess.run([*PROCESS_1, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no pid namespaces here: {tried.stderr.strip()}")
    return PROCESS_1


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    """Programs that end with the test, and import this checkout."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, inherited)]))
    made = Programs(tmp_path)
    yield made
    made.end()


@pytest.fixture
def code(page_code: str, name: str) -> str:
    """The code of a block with ring names of this test."""
    rings = r'"(cam0|cam1|shards|classify|urgent|normal|generate)"'
    return re.sub(rings, rf'"{name}.\1"', page_code)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Undoes what a block does to signal handlers."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def start(request, programs, monkeypatch):
    """Starts an example.

    No other test may use the names of the example's rings meanwhile, also in another worker of
    pytest-xdist.  The test is skipped if another program has them.  `alone=False` is for an example
    that makes no ring.
    """
    if request.param == "host":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hides the GPU where there is one
    names, locks = set(), contextlib.ExitStack()

    def start(*path, args=(), alone=True, **options):
        example = EXAMPLES.joinpath(*path)
        taken = set(RINGS.get(path[0], ())) if alone else set()
        if not taken <= names:
            lock(locks, min(taken))
            if there := [path for name in taken for path in files_of(name)]:
                pytest.skip(f"another program has rings of the example's names: {there}")
            names.update(taken)
        process = programs.start(example, *args, **options)
        if alone:
            names.add(f"example-{process.pid}")
        return process

    start.on_host = request.param == "host"
    with locks:
        yield start
        programs.end()
        left = [path for name in names for path in files_of(name)]
        for path in left:
            path.unlink()
        assert not left
