"""The processes that tests start, whichever way they are started."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

import gpuring
from tests.helpers import commands
from tests.helpers.processes import Pipe, few_descriptors, until


def variable(pipe: Pipe) -> str | None:
    return os.environ.get("GPURING_TEST")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_child_has_our_environment(children, monkeypatch, method):
    monkeypatch.delenv("GPURING_TEST", raising=False)
    assert children(variable, method=method).result() is None
    monkeypatch.setenv("GPURING_TEST", "1")  # the server of forks is there by now
    assert children(variable, method=method).result() == "1"


def who_has_a_gpu_open(pipe: Pipe) -> list[int]:
    """Which of this process and its parent have a GPU open."""
    pids = (os.getpid(), os.getppid())
    return [pid for pid in pids if any("nvidia" in file for file in _open_files(pid))]


def _open_files(pid: int) -> list[str]:
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found.append(str(each.readlink()))
    return found


@pytest.mark.gpu
def test_the_server_that_forks_children_has_not_started_cuda(children, name):
    with gpuring.create(name, slots=2, shape=8, dtype="u1", device="cuda"):
        assert any("nvidia" in file for file in _open_files(os.getpid()))
        assert children(attaches, name).result() == "cuda"
    assert children(who_has_a_gpu_open).result() == []


def attaches(pipe: Pipe, name: str) -> str:
    with gpuring.attach(name) as ring, ring.consumer():
        return "host" if ring.memory == "host" else "cuda"


def has_few_descriptors_beside_a_thread(_pipe: Pipe) -> None:
    """The thread accepts connections, as the watchdog of an offered ring does.  Nobody connects."""
    done = threading.Event()

    def accepts() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):  # nobody has connected, or no descriptor is free
                listener.accept()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        listener.listen()
        listener.setblocking(False)
        thread = threading.Thread(target=accepts)
        thread.start()
        try:
            for _ in range(300):
                with few_descriptors(0), pytest.raises(OSError, match="Too many open files"):
                    os.dup(0)
        finally:
            done.set()
            thread.join()


def test_no_descriptor_is_left_beside_a_thread_that_accepts(children):
    children(has_few_descriptors_beside_a_thread).result()


def test_a_wait_for_what_a_program_does_ends_with_the_program(tmp_path):
    made = tmp_path / "made"
    with subprocess.Popen(["touch", made], text=True) as program:
        until(made.exists, program)
        with pytest.raises(AssertionError, match="ended with 0, and it is not so"):
            until((tmp_path / "other").exists, program)


def test_a_program_that_does_not_say_what_is_waited_for_is_killed(monkeypatch):
    monkeypatch.setattr(commands, "DEADLINE_S", 0.01)
    silent = subprocess.Popen(["sleep", "60"], stderr=subprocess.PIPE, text=True)
    with silent, pytest.raises(AssertionError, match="without 'ready', or was killed"):
        commands.line_with(silent, "ready")
    assert silent.returncode < 0
