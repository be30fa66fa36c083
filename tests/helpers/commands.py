"""The `gpuring` command and other programs as users start them, each with a deadline."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEADLINE_S = 60


def environment() -> dict[str, str]:
    """The environment as Python knows it.  Readline, which pytest loads, adds COLUMNS behind
    Python's back."""
    return dict(os.environ)


COMMAND = (sys.executable, "-m", "gpuring")


def gpuring(*options: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return module("gpuring", *options, **more)


def module(name: str, *options: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a module as a program to its end."""
    return _run([sys.executable, "-m", name, *map(str, options)], more)


def python(program: str | Path, *arguments: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program, its text or a file, in an interpreter of its own, to its end."""
    how = [str(program)] if isinstance(program, Path) else ["-c", program]
    return _run([sys.executable, *how, *map(str, arguments)], more)


def _run(command: list[str], more: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    usual = {"stdin": subprocess.DEVNULL, "timeout": DEADLINE_S, "env": environment()}
    check = more.pop("check", False)
    return subprocess.run(command, check=check, capture_output=True, text=True, **usual | more)


@contextlib.contextmanager
def running(*options: Any, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Runs the command during a block, and kills it afterwards.  If the test fails, its output is
    shown."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    more = pipes | {"env": environment()} | more
    process = subprocess.Popen([*COMMAND, *map(str, options)], text=True, **more)
    passed = False
    try:
        yield process
        passed = True
    finally:
        process.kill()
        told = process.communicate()
        if not passed:
            print(" ".join(map(str, ["gpuring", *options])), *told, sep="\n")


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """The next line of the process's standard error that has this text.  The process is killed at
    the deadline."""
    assert process.stderr is not None
    killer = threading.Timer(DEADLINE_S, process.kill)
    killer.start()
    try:
        for line in process.stderr:
            if text in line:
                return line
    finally:
        killer.cancel()
    raise AssertionError(f"it ended without {text!r}, or was killed after {DEADLINE_S} s")


@contextlib.contextmanager
def exporting(ring: str, *options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A bridge's export command, and its address."""
    listen = ("--listen", "127.0.0.1:0")
    with running("bridge", "export", ring, *listen, *options) as process:
        told = line_with(process, "listens at")
        yield process, told.partition("listens at")[2].strip()
