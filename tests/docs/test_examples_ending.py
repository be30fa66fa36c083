"""The processes that an example starts end with it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.docs.examples import (
    EXAMPLES,
    FRONT_ENDS,
    PLAIN,
    RINGS,
    files_of,
    needs,
)
from tests.helpers.processes import poll


def _session(pid):
    """The processes in the session of a process that a test has started, without zombies: {pid:
    command}."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = path.read_text().rsplit(")")[1].split()[:4]
            if int(session) == pid and state != "Z":
                found[int(path.parent.name)] = (path.parent / "cmdline").read_text()
    return found


def _children(pid):
    """Those of them that run Python and that the example itself has started.  An import may start
    one as well (h5py's runs `uname`), which still has the example's command for a moment."""
    found = _session(pid)
    return {
        each: command
        for each, command in found.items()
        if "python" in command and command != found.get(pid)
    }


def _killed_with_its_children(process, *rings):
    process.kill()
    process.wait()
    with contextlib.suppress(AssertionError):
        poll(lambda: not _session(process.pid), 120)  # some are still importing torch
    assert _session(process.pid) == {}
    for ring in rings:
        for path in files_of(ring):
            path.unlink()


CHILDREN = {
    "sensor_latest.py": 2,
    "weights_handover.py": 3,
    "video_pipeline.py": 5,
    "inference_frontends.py": 8,
    "upscale_frontends.py": 4,
    "service.py": 5,
    "token_stream.py": 5,
    "one_script.py": 1,
    "two_hosts/run.py": 7,
    "supervised/run.py": 11,
}
"""How many processes each example starts."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CHILDREN)
def test_children_end_when_their_parent_is_killed(start, name):
    needs("av", "h5py", "zmq", *FRONT_ENDS)
    process = start(name)
    poll(lambda: len(_children(process.pid)) >= CHILDREN[name], 60)
    _killed_with_its_children(process, *RINGS.get(name, ()), f"example-{process.pid}")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", ["two_scripts/send.py", *CHILDREN])
def test_an_example_that_gets_sigterm_ends_with_its_children_and_leaves_nothing(start, name):
    """The end of the test looks for files that it has left."""
    needs("av", "h5py", "zmq", *FRONT_ENDS)
    process = start(*name.split("/") if name not in CHILDREN else [name])
    rings = RINGS.get(name.removesuffix("/send.py"), (f"example-{process.pid}",))
    if name == "two_hosts/run.py":
        rings = ()  # of the hosts themselves
    poll(lambda: all(map(files_of, rings)), 60)
    poll(lambda: len(_children(process.pid)) >= CHILDREN.get(name, 0), 60)
    process.terminate()
    assert process.wait(60) == 143
    poll(lambda: _session(process.pid) == {}, 60)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("name", "children"),
    [
        ("two_scripts/send.py", 0),
        *((name, n) for name, n in CHILDREN.items() if name != "one_script.py"),
        ("sensor_latest.py", 1),
        ("inference_frontends.py", 1),
    ],
)
def test_ctrl_c_ends_an_example_with_its_children_and_without_a_traceback(start, name, children):
    """A terminal sends it to all of its processes.  It comes when all are there, or when the first
    child begins.  The child of one_script gets it, too, and may still import torch then."""
    needs("av", "h5py", "zmq", *FRONT_ENDS)
    rings = RINGS["two_scripts"] if name == "two_scripts/send.py" else ()
    process = start(*name.split("/"), stderr=subprocess.STDOUT)
    poll(lambda: all(map(files_of, rings)), 60)
    poll(lambda: len(_children(process.pid)) >= children, 60)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert "Traceback" not in said
    assert process.returncode == 130
    poll(lambda: _session(process.pid) == {}, 60)


INTERRUPTED = """
import os, signal, sys, threading

started = threading.Thread.start

def start(self):
    started(self)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread.start = start
from inference_frontends import kept_running

signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
with kept_running((print,)):
    pass
"""


def test_ctrl_c_while_the_thread_of_kept_running_starts_ends_that_thread(programs, monkeypatch):
    needs(*FRONT_ENDS)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    assert programs.start("-c", INTERRUPTED).wait(60) == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sensor_latest.py", "weights_handover.py", "video_pipeline.py", "service.py"]
)
def test_an_example_whose_child_is_killed_at_the_start_says_so_and_ends(start, name):
    needs("av", "h5py", *FRONT_ENDS)
    process = start(name, stderr=subprocess.PIPE)

    def children():
        return [pid for pid, command in _session(process.pid).items() if "spawn_main" in command]

    poll(children, 60)
    os.kill(min(children()), signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.fullmatch(r"[\w ]+ ended before all were ready", said.strip())


LATE = f"""#!/bin/sh
case "$*" in *detector.py*) while kill -0 $PPID; do sleep 0.02; done 2>/dev/null ;; esac
exec {shutil.which("setpriv")} "$@"
"""
"""Ties the detector to its parent when this is dead."""


@pytest.mark.slow
def test_who_is_tied_too_late_ends_with_two_hosts(start, tmp_path, monkeypatch):
    needs("zmq")
    if not start.on_host:
        pytest.skip("it runs in host memory")
    (tmp_path / "setpriv").write_text(LATE)
    (tmp_path / "setpriv").chmod(0o755)
    before = PLAIN if os.geteuid() == 0 else []
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    process = start("two_hosts/run.py", before=before)
    poll(lambda: any("detector.py" in each for each in _session(process.pid).values()), 60)
    _killed_with_its_children(process, *RINGS["two_hosts/run.py"])
