"""Who starts, torments and judges the processes of a storm.

It has no ring itself and no thread, so it may fork: a new process costs a few milliseconds and is a
program of its own, which ends as programs do.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.storm import harness
from tests.storm.harness import SIGNALS, Become, Failed
from tests.storm.paper import ROW, Findings, Progress, load, read

from .books import Books
from .cast import ROLES, play
from .program import TOLD, Program


@dataclass
class Child:
    pid: int
    number: int
    role: str
    told: bool = False
    """To end."""
    counted: int = 0
    """Its progress when that last rose ..."""
    rose: float = field(default_factory=time.monotonic)
    """... and when that was."""


class Rings(harness.Storm):
    """Processes of every role over host rings, which are replaced again and again."""

    SECONDS, PATIENCE_S, PAUSE_S = 60.0, 20.0, 0.08

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--signals", nargs="*", choices=SIGNALS, default=list(SIGNALS))
        parser.add_argument("--roles", nargs="*", choices=ROLES, default=list(ROLES))

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names = [f"{self.name}-{k}" for k in range(2)]
        self.children: list[Child] = []
        self.killed: set[int] = set()
        self.judged: set[str] = set()
        self.progress = Progress(self.folder / "progress", create=True)
        self.findings = Findings(self.folder / "findings")
        self.rings = self.folder / "rings"
        self.rings.mkdir()
        self._started = 0

    # ---- processes -----------------------------------------------------------------------------

    def start(self, role: str) -> None:
        number, parent = self._started, os.getpid()
        self._started += 1
        signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)  # until the process has its handlers
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)
        else:
            program = Program(self.folder, number, role, self.names, self.args.seed)
            raise Become(lambda: (program.begin(parent), play(program)))
        self.children.append(Child(pid, number, role))
        self.counts["processes"] += 1

    def reap(self) -> None:
        """Notes which processes have ended.  Starts their roles again, until the storm is over."""
        again = not (self.folder / "finish").exists()
        for child in list(self.children):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            self.children.remove(child)
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGKILL:
                self.killed.add(child.number)
            elif code == -signal.SIGTERM and child.told:
                pass  # a second signal, after the interpreter has removed its handlers
            elif code != 0:
                self.findings.add(f"{child.role}.{child.number}", f"ended with {code}")
            # The ring that a killed keeper leaves goes when the next one creates a ring.
            owes = child.number in self.killed or not self.progress[child.number]
            if again or (child.role.startswith("keeper") and owes):
                self.start(child.role)

    def torment(self) -> None:
        if self.counts["turns"] % 25 == 0:
            self.judge()
        self.counts["turns"] += 1
        if not self.args.signals:
            return
        what = self.chance.choice(self.args.signals)
        there = [child for child in self.children if child.pid not in self.asleep]
        if what in ("kill", "term"):
            there = [child for child in there if not ROLES[child.role].steady]
        if what in ("term", "int"):  # a second one would hit an interpreter that ends
            there = [child for child in there if not child.told]
        if there:
            child = self.chance.choice(there)
            self.hit(what, child.pid)
            child.told |= what == "term"

    def look(self) -> None:
        self.reap()
        for finding in self.findings:
            raise Failed(finding)
        now = time.monotonic()
        for child in self.children:
            counted = self.progress[child.number]
            if counted != child.counted or child.pid in self.asleep:
                child.counted, child.rose = counted, now
            elif now - child.rose > self.args.patience:
                raise Failed(self._stuck(child))

    def _stuck(self, child: Child) -> str:
        text = f"{child.role}.{child.number} has done nothing for {self.args.patience} s"
        for each in self.children:
            os.kill(each.pid, signal.SIGUSR1)  # faulthandler
        time.sleep(0.5)
        trace = (self.folder / f"trace.{child.number}").read_text()
        shown = [
            subprocess.run([sys.executable, "-m", "gpuring", "inspect", name], check=False,
                           capture_output=True, text=True, timeout=20).stdout
            for name in self.names
        ]  # fmt: skip
        return "\n".join([text, trace, *shown])

    # ---- the course of it ----------------------------------------------------------------------

    def begin(self) -> None:
        for role in self.args.roles:
            self.start(role)
        time.sleep(0.5)

    def finish(self) -> None:
        """Producers end, and rings are closed.  Other processes end when they have read everything.
        Followers wait for a next ring until they are told to end, and creators keep the memory for
        them."""
        for child in self.children:
            child.rose = time.monotonic()
        (self.folder / "finish").touch()
        self._wait_for(lambda child: not child.role.startswith(("follower", "keeper")))
        while any(child.role.startswith("follower") for child in self.children):
            for child in self.children:  # again: a `__del__` may swallow what the handler raises
                if child.role.startswith("follower"):
                    child.told = True
                    os.kill(child.pid, signal.SIGTERM)
            self._wait_for(lambda child: child.role.startswith("follower"), most_s=1)
        self._wait_for(lambda child: True)
        self.judge(all_=True)
        self.look()

    def _wait_for(self, whom: Callable[[Child], bool], most_s: float = math.inf) -> None:
        until = time.monotonic() + most_s
        while any(whom(child) for child in self.children) and time.monotonic() < until:
            self.look()
            time.sleep(0.01)

    def end(self) -> None:
        for child in self.children:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
        for name in self.names:
            for path in Path("/dev/shm").glob(f"gpuring.{name}*"):
                path.unlink()

    # ---- the books -----------------------------------------------------------------------------

    def judge(self, *, all_: bool = False) -> None:
        """Judges the rings that are over, the oldest of each name first, and forgets them."""
        living = {child.number for child in self.children}
        by_name: dict[int, list[tuple[int, Path]]] = {}
        for folder in self.rings.iterdir():
            for path in folder.iterdir():
                if len(joins := read(path, ROW.itemsize)):
                    index, created_ns = int(joins["producer"][0]), int(joins["seq"][0])
                    by_name.setdefault(index, []).append((created_ns, folder))
                    break
        for rings in by_name.values():
            rings.sort()
            for _, folder in rings if all_ else rings[:-1]:
                sheets = load(folder)
                if not all_ and any(
                    int(who.split(".")[1]) in living and not (sheet["mark"] == b"Z").any()
                    for who, sheet in sheets.items()
                ):
                    break
                self._judge_one(folder, sheets)

    def _judge_one(self, folder: Path, sheets: dict[str, np.ndarray]) -> None:
        books = Books(sheets, self.killed.__contains__)
        wrong = books.judge()
        if folder.name in self.judged and books.counts["published"]:
            wrong.append("somebody came back to a ring that was over")
        for text in wrong:
            kept = shutil.copytree(folder, self.folder / f"wrong-{folder.name}", dirs_exist_ok=True)
            self.findings.add(f"the books of {folder.name} (kept in {kept})", text)
        self.counts += books.counts
        self.counts["rings"] += folder.name not in self.judged
        self.judged.add(folder.name)
        for who in sheets:
            (folder / who).unlink()
