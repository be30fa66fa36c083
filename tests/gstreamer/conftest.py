"""Pipelines as users start them.  They have a deadline, and end with the test."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuring import config
from tests.helpers.processes import PATIENCE_S, poll


class Pipeline:
    def __init__(self, description: str, *options: str, **environment: str) -> None:
        """options: such as "-v"; the others are quiet."""
        self.process = subprocess.Popen(
            ["gst-launch-1.0", *options, *description.split()], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )  # fmt: skip
        self.description, self.pid = description, self.process.pid

    def end(self, status: int = 0) -> str:
        """Waits for its end.  Returns what it has printed."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == status, said
        return said

    def until(self, text: str, times: int) -> str:
        """Waits until it has printed this so many times (with -v).  Returns what it has printed
        since the last look."""
        said = ""
        assert self.process.stdout
        while said.count(text) < times:
            line = self.process.stdout.readline()
            assert line, f"it ended without {text!r} {times} times: {said}"
            said += line
        return said

    def interrupt(self) -> str:
        """Interrupts it, as Ctrl-C does.  Returns what it has printed since."""
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Sends SIGSTOP.  It has stopped when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        poll(
            lambda: all(
                each.read_text().rpartition(") ")[2][0] == "T"
                for each in Path(f"/proc/{self.pid}/task").glob("*/stat")
            )
        )

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which GStreamer finds the elements."""
    if not shutil.which("gst-launch-1.0"):
        pytest.skip("no GStreamer: gst-launch-1.0")
    if not config.has_gstreamer():
        pytest.skip("built without GStreamer's development files")
    registry = tmp_path_factory.mktemp("gstreamer") / "registry.bin"
    given = os.environ.get("GST_PLUGIN_PATH", "")
    path = f"{config.GSTREAMER}:{given}" if given else str(config.GSTREAMER)
    return {"GST_PLUGIN_PATH": path, "GST_REGISTRY": str(registry)}


@pytest.fixture
def environment(plugins: dict[str, str]) -> dict[str, str]:
    """The environment of pipelines.  Tests of a GPU have their own."""
    return plugins


@functools.cache
def _elements(**environment: str) -> frozenset[str]:
    """What GStreamer has.  It may start CUDA: the test's deadline is all that ends it."""
    listed = subprocess.run(
        ["gst-inspect-1.0"], env=os.environ | environment, check=True, text=True,
        capture_output=True,
    )  # fmt: skip
    return frozenset(re.findall(r"^\S+:  (\S+): ", listed.stdout, re.M))


def need_elements(environment: dict[str, str], *names: str) -> None:
    """Skips a test where GStreamer lacks one of other people's elements."""
    missing = {*names} - _elements(**environment) - {"gpuringsink", "gpuringsrc"}
    if missing:
        pytest.skip(f"GStreamer has no {', '.join(sorted(missing))}")


@pytest.fixture
def launch(environment: dict[str, str]) -> Iterator[Callable[..., Pipeline]]:
    """Starts a pipeline, whose elements have to be there."""
    started: list[Pipeline] = []

    def launch(description: str, *options: str) -> Pipeline:
        need_elements(environment, *re.findall(r"(?:^|!)\s*(\w+)(?=\s|$)", description))
        started.append(Pipeline(description, *(options or ("-q",)), **environment))
        return started[-1]

    yield launch
    for each in started:
        each.kill()
        each.process.communicate(timeout=PATIENCE_S)
